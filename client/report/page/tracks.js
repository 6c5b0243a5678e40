// Time: a track for each vCPU, lanes of the guest's spans, marks and counters.
import { AXIS, Axis, LANE, LEFT, MOST_LANES } from "./axis.js";
import { css } from "./canvas.js";
import { amountWithUnit, clock, duration, grouped, moment, percent } from "./format.js";
import { upper } from "./times.js";

/** From this length on, vCPUs are heatmaps: a column a second, the part of the second downwards. */
const HEATMAP_FROM_NS = 90e9;
const SECOND = 1e9;

/** The tracks: what happened on each vCPU, and the guest's own events. */
export class Tracks extends Axis {
  /** Shows a recording's time; `state` has zoom, window and base, `vcpus` those that are selected. */
  show(recording, state) {
    this.recording = recording;
    this.state = state;
    const { from_ns: from, to_ns: to } = recording.time;
    [this.from, this.to] = state.zoom ?? [from, Math.max(to, from + 1)];
    // A range that is dragged changes only what lies over the tracks.
    const key = `${this.from}|${this.to}|${state.vcpus && [...state.vcpus]}|${state.recording}|${css("--paper")}|${this.width}`;
    if (key === this.drawn) {
      this.drawRanges();
      return;
    }
    this.drawn = key;
    this.rows = this.findRows();
    this.draw();
  }

  findRows() {
    const { recording, state } = this;
    const isHeat = this.to - this.from >= HEATMAP_FROM_NS && recording.mode !== "off-cpu";
    const shown = recording.time.rings.map((ring) => ring.vcpu).filter((vcpu) => state.vcpus === null || state.vcpus.has(vcpu));
    const many = shown.length > 8;
    const rows = shown.flatMap((vcpu) => {
      if (!isHeat) return [{ kind: "bars", vcpu, height: many ? 18 : 40 }];
      // How the vCPU's time was spent stands below its heatmap.
      return [{ kind: "heat", vcpu, height: many ? 24 : 50 }, { kind: "bars", vcpu, height: many ? 8 : 14, isBelow: true }];
    });
    const lanes = (all, lane) => {
      rows.push(...all.slice(0, MOST_LANES).map(lane));
      if (all.length > MOST_LANES) rows.push({ kind: "more", name: `and ${all.length - MOST_LANES} more`, height: LANE });
    };
    lanes(recording.spanNames(), ([id, name]) => ({ kind: "span", id, name, height: LANE }));
    const marks = new Set(recording.events.filter((event) => event.kind === "mark").map((event) => event.name));
    if (marks.size > 0) rows.push({ kind: "marks", name: "marks", height: LANE });
    const counters = new Set(recording.events.filter((event) => event.kind === "counter").map((event) => event.name));
    lanes([...counters], (id) => ({ kind: "counter", id, name: recording.head.names[id], height: 30 }));
    this.height = this.place(rows);
    return rows;
  }

  draw() {
    this.grids = { heat: this.count("heat"), bars: this.count("bars") };
    this.drawRows();
    this.drawChanges();
    this.drawRanges();
  }

  nameOf(row) {
    if (row.isBelow) return "";
    return row.kind === "heat" || row.kind === "bars" ? `vCPU ${row.vcpu}` : row.name;
  }

  drawRow(row) {
    if (row.kind === "heat") this.drawHeat(row);
    else if (row.kind === "bars") this.drawBars(row);
    else if (row.kind === "span") this.drawSpans(row);
    else if (row.kind === "marks") this.drawMarks(row);
    else this.drawCounter(row);
  }

  /** The ticks of each column on each vCPU: on CPU, masked, lost; in a heatmap by part of the second. */
  count(kind) {
    const rows = this.rows.filter((row) => row.kind === kind);
    if (rows.length === 0) return null;
    const isHeat = kind === "heat";
    const span = this.to - this.from;
    const pixels = Math.max(1, this.width - LEFT);
    const bar = Math.max((span / pixels) * 2, Math.min(4 * this.recording.period, (span / pixels) * 16));
    const columnNs = isHeat ? SECOND * Math.max(1, Math.ceil(span / SECOND / pixels)) : bar;
    const first = isHeat ? Math.floor(this.from / columnNs) * columnNs : this.from;
    const columns = Math.ceil((this.to - first) / columnNs);
    const parts = isHeat ? rows[0].height / 2 : 3;
    const places = new Int32Array(this.recording.placeOf.size).fill(-1);
    rows.forEach((row, which) => {
      row.which = which;
      const place = this.recording.placeOf.get(row.vcpu);
      if (place !== undefined) places[place] = which;
    });
    const cells = new Float64Array(rows.length * columns * parts);
    const { at, place, outcome } = this.recording.ticks;
    const end = upper(at, this.to, true);
    for (let index = upper(at, this.from, true); index < end; index += 1) {
      const which = places[place[index]];
      const part = partOf(outcome[index]);
      if (which < 0 || part < 0 || (isHeat && part > 0)) continue;
      const column = Math.floor((at[index] - first) / columnNs);
      const row = isHeat ? Math.floor(((at[index] % SECOND) / SECOND) * parts) : part;
      cells[(which * columns + column) * parts + row] += 1;
    }
    const most = cells.reduce((largest, value) => Math.max(largest, value), 1);
    return { cells, columns, columnNs, first, parts, most };
  }

  cell(row, column, part) {
    const { cells, columns, parts } = this.grids[row.kind];
    return cells[(row.which * columns + column) * parts + part];
  }

  edges({ first, columnNs }, column) {
    // Whole pixels: those that two columns share would be darker.
    const [left, right] = [column, column + 1].map((at) => Math.round(this.x(first + at * columnNs)));
    return [left, right - left];
  }

  drawHeat(row) {
    const { context } = this;
    const [hue, light] = css("--heat").split(" ").map(Number);
    const grid = this.grids.heat;
    const height = row.height / grid.parts;
    for (let column = 0; column < grid.columns; column += 1) {
      const [x, w] = this.edges(grid, column);
      for (let part = 0; part < grid.parts; part += 1) {
        const count = this.cell(row, column, part);
        if (count === 0) continue;
        const strength = Math.sqrt(count / grid.most);
        context.fillStyle = `hsl(${hue - 40 * strength} 90% ${light + (50 - light) * strength}%)`;
        context.fillRect(x, row.y + part * height, w, height);
      }
    }
  }

  drawBars(row) {
    const { context } = this;
    const grid = this.grids.bars;
    const times = this.recording.timesOf(row.vcpu);
    for (let column = 0; column < grid.columns; column += 1) {
      const [x, w] = this.edges(grid, column);
      const from = Math.round(grid.first + column * grid.columnNs);
      const to = Math.round(Math.min(from + grid.columnNs, this.to));
      const told = to > from ? times.shares(from, to) : null;
      for (const [from_, part, color] of this.stacked(row, column, told)) {
        context.fillStyle = css(color);
        context.fillRect(x, row.y + row.height * (1 - from_ - part), Math.max(w - (w > 4 ? 0.5 : 0), 0.5), row.height * part);
      }
    }
  }

  /** What a column of a vCPU holds, in the order in which it is drawn: where it begins, its part, its colour. */
  stacked(row, column, told) {
    const perTick = this.recording.mode === "off-cpu" ? 0 : this.recording.period / this.grids.bars.columnNs;
    const sampled = [0, 1, 2].map((part) => this.cell(row, column, part) * perTick);
    const isSampled = perTick > 0;
    const running = isSampled ? sampled : [told?.[0] ?? 0, 0, 0];
    const ran = Math.max(1, running[0] + running[1] + running[2]);
    const [stolen, blocked] = [told?.[1] ?? 0, told?.[2] ?? 0];
    // What the guest measured hangs from the top, what was sampled stands before it: the one is known by the second, the
    // other varies by chance from column to column.
    const placed = [[1 - blocked, blocked, "--blocked"], [1 - blocked - stolen, stolen, "--stolen"]];
    let from = 0;
    for (const [at, color] of ["--run", "--masked", "--lost"].entries()) {
      placed.push([from, running[at] / ran, color]);
      from += running[at] / ran;
    }
    return placed.filter(([, part]) => part > 0);
  }

  drawSpans(row) {
    const { context } = this;
    context.fillStyle = css("--span");
    let last = -1;
    for (const span of this.recording.spans) {
      if (span.name !== row.id || span.from > this.to || (span.to ?? Infinity) < this.from) continue;
      const left = Math.max(this.x(span.from), LEFT);
      const right = Math.min(this.x(Math.min(span.to ?? this.to, this.to)), this.width);
      // Spans within a pixel are drawn once.
      if (right <= last + 0.5) continue;
      context.globalAlpha = span.to === null ? 0.5 : 0.85;
      context.fillRect(left, row.y + 3, Math.max(right - left, 1), row.height - 6);
      last = right;
    }
    context.globalAlpha = 1;
  }

  drawMarks(row) {
    const { context } = this;
    context.fillStyle = css("--mark");
    let last = -2;
    for (const event of this.recording.events) {
      if (event.kind !== "mark" || event.at < this.from || event.at > this.to) continue;
      const x = this.x(event.at);
      if (x < last + 1) continue;
      last = x;
      context.fillRect(x, row.y + 2, 1, row.height - 4);
      context.beginPath();
      context.moveTo(x, row.y + 2);
      context.lineTo(x + 6, row.y + 5);
      context.lineTo(x, row.y + 8);
      context.fill();
    }
  }

  drawCounter(row) {
    const { context } = this;
    const values = this.recording.events.filter((event) => event.kind === "counter" && event.name === row.id);
    const low = values.reduce((least, event) => Math.min(least, event.value), Infinity);
    const high = values.reduce((most, event) => Math.max(most, event.value), -Infinity);
    const y = (value) => row.y + row.height - 3 - ((value - low) / (high - low || 1)) * (row.height - 6);
    context.strokeStyle = css("--counter");
    context.lineWidth = 1.25;
    context.beginPath();
    let before = null;
    for (const event of values) {
      const x = this.x(event.at);
      if (x > this.width) break;
      if (before === null) context.moveTo(x, y(event.value));
      else {
        context.lineTo(x, y(before));
        context.lineTo(x, y(event.value));
      }
      before = event.value;
    }
    if (before !== null) context.lineTo(this.x(Math.min(this.to, this.recording.time.to_ns)), y(before));
    context.stroke();
    context.fillStyle = css("--dim");
    context.fillText(`${grouped(low)} to ${grouped(high)}`, LEFT + 4, row.y + 8);
  }

  /** Recordings that begin and end, suspensions, and time that the rings do not hold. */
  drawChanges() {
    const { context } = this;
    for (const event of this.recording.events) {
      if (!["began", "ended", "resumed"].includes(event.kind) || event.at < this.from || event.at > this.to) continue;
      const x = this.x(event.at);
      context.fillStyle = css(event.kind === "resumed" ? "--stolen" : "--ink");
      context.fillRect(x, AXIS - 8, 1.5, this.height);
    }
    context.fillStyle = css("--hole");
    for (const row of this.rows) {
      if (row.vcpu === undefined) continue;
      const ring = this.recording.time.rings.find((each) => each.vcpu === row.vcpu);
      for (const [from, to] of [[this.recording.time.from_ns, ring.held_since_ns], ...ring.gaps]) {
        if (to <= from || to < this.from || from > this.to) continue;
        const [left, right] = [Math.max(this.x(from), LEFT), Math.min(this.x(to), this.width)];
        for (let x = left; x < right; x += 4) context.fillRect(x, row.y, 1, row.height);
      }
    }
  }

  /** What lies under the pointer, as lines. */
  tip(event) {
    if (!this.rows || event.offsetX < LEFT) return null;
    const row = this.rows.find((each) => event.offsetY >= each.y && event.offsetY < each.y + each.height);
    const at = this.at(event.offsetX);
    const { recording } = this;
    const date = recording.time.unix_ns === null ? "" : `, ${clock(recording.time.unix_ns + at)} UTC`;
    const lines = [`${moment(at, (this.to - this.from) / 1000)}${date}`];
    const near = ((this.to - this.from) / (this.width - LEFT)) * 3;
    for (const change of recording.events) {
      if (Math.abs(change.at - at) > near) continue;
      if (change.kind === "began" || change.kind === "ended") lines.push(`recording ${change.name} ${change.kind}`);
      if (change.kind === "resumed") lines.push("the guest resumed after a suspend");
    }
    if (!row) return lines;
    if (row.kind === "bars" || row.kind === "heat") {
      const { first, columnNs, parts } = this.grids[row.kind];
      const column = Math.floor((at - first) / columnNs);
      const from = Math.round(first + column * columnNs);
      const told = recording.timesOf(row.vcpu).shares(from, Math.round(from + columnNs));
      const counts = Array.from({ length: parts }, (_, part) => this.cell(row, column, part) || 0);
      lines.push(`vCPU ${row.vcpu}, ${duration(Math.round(columnNs))} here:`);
      if (row.kind === "heat") lines.push(amountWithUnit(counts.reduce((sum, n) => sum + n, 0)));
      else lines.push(`${amountWithUnit(counts[0])}${counts[1] ? `, ${counts[1]} masked` : ""}${counts[2] ? `, ${counts[2]} lost` : ""}`);
      if (told) {
        const others = recording.timesOf(row.vcpu).tellsStates ? `, stolen ${percent(told[1])}, blocked ${percent(told[2])}` : "";
        lines.push(`running ${percent(told[0])}${others} (measured about once a second)`);
      }
    } else if (row.kind === "span") {
      const inside = recording.spans.filter((span) => span.name === row.id && span.from <= at + near && (span.to ?? Infinity) >= at - near);
      for (const span of inside.slice(0, 3)) {
        lines.push(`${row.name} on vCPU ${span.vcpu}: ${span.to === null ? "not ended" : duration(span.to - span.from)}`);
      }
      if (inside.length > 3) lines.push(`and ${inside.length - 3} more`);
    } else if (row.kind === "more") {
      lines.push(`${row.name}, which are not drawn: \`report\` lists all`);
    } else if (row.kind === "marks") {
      const marks = recording.events.filter((each) => each.kind === "mark" && Math.abs(each.at - at) <= near);
      for (const mark of marks.slice(0, 5)) lines.push(`${recording.head.names[mark.name]} ${mark.value} on vCPU ${mark.vcpu}`);
    } else {
      const before = recording.events.filter((each) => each.kind === "counter" && each.name === row.id && each.at <= at);
      if (before.length > 0) lines.push(`${row.name} = ${before[before.length - 1].value}`);
    }
    return lines;
  }
}

/** Where the ticks of an outcome are drawn: 0 on CPU, 1 masked, 2 without a stack for another reason; -1 nowhere. */
function partOf(outcome) {
  if (outcome <= 2) return 0;
  if (outcome === 5) return 1;
  return outcome === 6 ? -1 : 2;
}
