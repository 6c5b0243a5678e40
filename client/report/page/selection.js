// What a part of the time, of the vCPUs and of the guest's spans comes to.
import { PARTS, sumsOf } from "./statistics.js";
import { Times, partsOf, upper } from "./times.js";
import { Tree } from "./tree.js";

/** Outcomes of ticks, by their codes. */
export const OUTCOMES = ["recorded", "late", "aged", "overflow", "lost", "masked", "idle", "blocked"];
const LATE = 1;
const AGED = 2;
const BLOCKED = 7;

const COUNTERS = ["ticks", "recorded", "aged", "overflow", "lost", "masked", "idle", "early", "late", "truncated",
  "broken", "by_table", "by_bytes", "by_frame_pointer", "mixed", "blocks", "blocked", "blocked_overflow", "blocked_aged"];

function noCounters() {
  return { missing: null, missing_blocked: null, ...Object.fromEntries(COUNTERS.map((name) => [name, 0])) };
}

/** Counters of several vCPUs together. */
export function sumOf(all) {
  const sum = noCounters();
  for (const counters of all) {
    for (const name of COUNTERS) sum[name] += counters[name];
    if (counters.missing !== null) sum.missing = (sum.missing ?? 0) + counters.missing;
  }
  return sum;
}

/** What is missing: where more came than was due, by no more than chance explains, nothing is. */
function told(missing, came) {
  return missing < 0 && -missing <= 2 * Math.sqrt(came) ? 0 : missing;
}

/** A recording: its stacks, its counts and its time. */
export class Recording {
  constructor({ head, columns }) {
    this.head = head;
    this.columns = columns;
    this.report = head.report;
    this.time = head.time;
    this.vcpus = head.vcpus;
    this.labels = head.labels.map(([name, kind, image, file, line]) => ({
      name,
      kind,
      image: image === 0 ? null : head.images[image - 1],
      file: file === 0 ? null : head.files[file - 1],
      line,
    }));
    this.tree = Tree.fromDepths(columns.node_depth, columns.node_label);
    this.ways = new Uint8Array(this.tree.length);
    this.ways.set(columns.node_way, 1);
    this.marks = this.findMarks();
    this.hasMarks = this.marks.some((mark) => mark !== 0);
    if (this.time) {
      this.readTicks();
      this.times = this.readTimes();
      this.spans = this.readSpans();
      this.events = this.readEvents();
    }
    this.choose(null);
  }

  /** Shows one of the recordings of which the rings tell, by its place among them; `null` is the file's own. */
  choose(which) {
    const own = this.report.recording;
    const { mode, unit, period_ns: period, ...chosen } = which === null ? own : this.time.recordings[which];
    // Of some the rings hold samples, and nothing tells how they were taken.
    Object.assign(this, { mode: mode ?? "cpu", unit, period, range: which === null ? null : [chosen.from_ns, chosen.to_ns] });
    if (this.time) Object.assign(this, this.sets[which ?? 0] ?? this.sets[0]);
  }

  /** The part of a range in which the chosen recording ran; `null` is all. */
  within(range) {
    if (this.range === null || range === null) return range ?? this.range;
    const from = Math.min(Math.max(range[0], this.range[0]), this.range[1]);
    return [from, Math.min(Math.max(range[1], from), this.range[1])];
  }

  label(name) {
    return this.labels.findIndex((label) => label.kind === "special" && label.name === name);
  }

  /** By node: 1 below `[truncated]`, 2 below `[broken]`, as the outermost frame. */
  findMarks() {
    const marks = new Uint8Array(this.tree.length);
    const [truncated, broken] = [this.label("[truncated]"), this.label("[broken]")];
    for (let node = 1; node < this.tree.length; node += 1) {
      const parent = this.tree.parent[node];
      if (parent !== 0) marks[node] = marks[parent];
      else if (this.tree.label[node] === truncated && truncated >= 0) marks[node] = 1;
      else if (this.tree.label[node] === broken && broken >= 0) marks[node] = 2;
    }
    return marks;
  }

  /** The counts of nodes in whole stacks, which are neither broken nor truncated. */
  whole(own) {
    return own.map((count, node) => (this.marks[node] ? 0 : count));
  }

  /** Each recording's ticks and waits. A tick's vCPU is its place among all: the numbers of vCPUs may be any. */
  readTicks() {
    const { tick_at: at, tick_vcpu: vcpu, tick_outcome: outcome, tick_node: node, tick_entered: entered, wait_ns: ns, wait_count: count, wait_flags: flags } = this.columns;
    this.placeOf = new Map();
    for (const number of [...this.vcpus, ...vcpu]) if (!this.placeOf.has(number)) this.placeOf.set(number, this.placeOf.size);
    let [index, wait] = [0, 0];
    // A part of the file's own recording has none of its own.
    this.sets = this.time.recordings.map(({ ticks: length }) => {
      if (length === null) return null;
      const ticks = { at: new Float64Array(length), place: new Uint16Array(length), outcome: new Uint8Array(length), node: new Uint32Array(length), entered: new Uint32Array(length) };
      const waits = [];
      let next = 0;
      for (const end = index + length; index < end; index += 1) {
        if (outcome[index] === BLOCKED) {
          const bits = flags[wait];
          const is = (bit) => (bits & bit) !== 0;
          waits.push({ from: at[index], to: at[index] + ns[wait], vcpu: vcpu[index], node: node[index], entered: entered[index], count: count[wait], hasStack: is(1), isFirst: is(2), isAged: is(4) });
          wait += 1;
          continue;
        }
        ticks.at[next] = at[index];
        ticks.place[next] = this.placeOf.get(vcpu[index]);
        ticks.outcome[next] = outcome[index];
        ticks.node[next] = node[index];
        ticks.entered[next] = entered[index];
        next += 1;
      }
      return { ticks: Object.fromEntries(Object.entries(ticks).map(([key, values]) => [key, values.subarray(0, next)])), waits };
    });
  }

  readTimes() {
    const { told_at: at, told_running: running, told_runnable: runnable, told_blocked: blocked, told_offline: offline } = this.columns;
    const times = new Map();
    let begin = 0;
    for (const ring of this.time.rings) {
      const end = begin + ring.told;
      const part = (values) => values.subarray(begin, end);
      times.set(ring.vcpu, new Times(part(at), [running, runnable, blocked, offline].map(part), ring.tells_states));
      begin = end;
    }
    return times;
  }

  readSpans() {
    const { span_name: name, span_vcpu: vcpu, span_from: from, span_length: length, span_nested: nested } = this.columns;
    return Array.from(name, (id, at) => ({
      name: id,
      vcpu: vcpu[at],
      from: from[at],
      to: length[at] === 0 ? null : from[at] + length[at] - 1,
      isNested: nested[at] === 1,
    }));
  }

  readEvents() {
    const { event_at: at, event_kind: kind, event_vcpu: vcpu, event_name: name, event_value: value } = this.columns;
    const kinds = ["mark", "counter", "began", "ended", "resumed"];
    return Array.from(at, (moment, index) => ({
      at: moment,
      kind: kinds[kind[index]],
      vcpu: vcpu[index],
      name: name[index],
      value: value[index],
    }));
  }

  /** How a vCPU's time was spent; it is not known inside spans. */
  timesOf(vcpu) {
    const inside = this.report.window?.inside ?? null;
    return (inside === null && this.times.get(vcpu)) || new Times([], [], false);
  }

  /** The names of spans, by their ids. */
  spanNames() {
    const names = [...new Set((this.spans ?? []).map((span) => span.name))];
    return names.map((id) => [id, this.head.names[id]]);
  }

  /** Up to when a span is known to be open whose end is not known: it may lie in a gap. */
  knownUntil(span) {
    const gaps = this.time.rings.find((ring) => ring.vcpu === span.vcpu)?.gaps ?? [];
    return gaps.find(([, last]) => last > span.from)?.[0] ?? Infinity;
  }

  /** When nested spans of this name were open on each vCPU: windows in order and apart. */
  windowsOf(name) {
    const windows = new Map(this.time.rings.map((ring) => [ring.vcpu, []]));
    for (const span of this.spans) {
      if (span.name !== name || !span.isNested) continue;
      const to = span.to ?? this.knownUntil(span);
      const known = windows.get(span.vcpu);
      if (known === undefined || to <= span.from) continue;
      const last = known[known.length - 1];
      if (last && span.from <= last[1]) last[1] = Math.max(last[1], to);
      else known.push([span.from, to]);
    }
    return windows;
  }

  /**
   * The counts of a part: `window` is a pair of moments, or `null` for the whole recording; `vcpus` a set, or `null`
   * for all; `span` a name's id, or `null`: then what lies in nested spans of this name counts, and what ran for others.
   */
  select({ window, vcpus, span }) {
    const isIn = (vcpu) => vcpus === null || vcpus.has(vcpu);
    const shown = this.vcpus.filter(isIn);
    if (window === null && span === null) {
      const own = new Float64Array(this.tree.length);
      const { count_node: node, count_vcpu: vcpu, count_value: value } = this.columns;
      let recorded = 0;
      for (let at = 0; at < node.length; at += 1) {
        if (!isIn(vcpu[at])) continue;
        own[node[at]] += value[at];
        recorded += value[at];
      }
      const counters = this.report.vcpus.filter((each) => isIn(each.vcpu)).map((each) => each.counters);
      return this.selection({ own, recorded, counters, shown, window: null, isWhole: true });
    }
    const [from, to] = window ?? [this.time.from_ns, this.time.to_ns];
    const allowed = span === null ? null : { windows: this.windowsOf(span), entered: span + 1 };
    const byVcpu = new Map(shown.map((vcpu) => [vcpu, noCounters()]));
    let [own, recorded] = [null, 0];
    if (span === null && this.waits.length === 0) {
      this.counted = this.countFrom(this.counted, this.ticksIn(from, to), shown);
      own = this.counted.own;
      recorded = this.addCounters(this.counted.sums, byVcpu);
    } else {
      own = new Float64Array(this.tree.length);
      recorded = this.countTicks(from, to, byVcpu, allowed, own) + this.countWaits(from, to, byVcpu, allowed, own);
    }
    if (span === null) for (const [vcpu, counters] of byVcpu) this.findMissing(vcpu, from, to, counters);
    this.countMarks(own, byVcpu);
    return this.selection({ own, recorded, counters: [...byVcpu.values()], shown, window: [from, to], allowed, isWhole: false });
  }

  /** Adds what tells how the part's samples lie in time. */
  selection(part) {
    const [from, to] = part.window ?? (this.time ? [this.time.from_ns, this.time.to_ns] : [0, 0]);
    const sum = sumOf(part.counters);
    const waited = this.mode === "wall" ? sum.blocked + sum.blocked_overflow + sum.blocked_aged : 0;
    sum.missing = told(sum.missing, sum.ticks + waited);
    return { ...part, from, to, sum };
  }

  /** Adds the ticks of a range to the counters and to the counts of nodes, or of their cells; gives how many have a stack. */
  countTicks(from, to, byVcpu, allowed, own, cells = null) {
    const sums = new Float64Array(this.placeOf.size * OUTCOMES.length);
    this.addTicks(this.ticksIn(from, to), 1, [...byVcpu.keys()], allowed, { own, total: null, sums, cells });
    return this.addCounters(sums, byVcpu);
  }

  /** The indices of the ticks of a range: the first, and the one after the last. */
  ticksIn(from, to) {
    return [from, to].map((end) => upper(this.ticks.at, end, true));
  }

  /** Adds ticks to counts, or takes them away if `sign` is -1: by node, with callers if there are totals, and by vCPU and outcome. */
  addTicks([first, end], sign, vcpus, allowed, { own, total, sums, cells = null }) {
    const { at, place, outcome, node, entered } = this.ticks;
    const { parent } = this.tree;
    const isIn = new Uint8Array(this.placeOf.size);
    const windows = [];
    for (const vcpu of vcpus) {
      isIn[this.placeOf.get(vcpu)] = 1;
      windows[this.placeOf.get(vcpu)] = allowed?.windows.get(vcpu);
    }
    for (let index = first; index < end; index += 1) {
      const on = place[index];
      if (isIn[on] === 0 || (allowed !== null && entered[index] !== allowed.entered && !holds(windows[on], at[index]))) continue;
      const kind = outcome[index];
      sums[on * OUTCOMES.length + kind] += sign;
      if (kind > AGED) continue;
      const leaf = node[index];
      own[cells === null ? leaf : cells[leaf]] += sign;
      if (total === null || leaf === 0) continue;
      for (let up = leaf; up !== 0; up = parent[up]) total[up] += sign;
      total[0] += sign;
    }
  }

  /** Adds sums by vCPU and outcome to the counters; gives how many ticks have a stack. */
  addCounters(sums, byVcpu) {
    let recorded = 0;
    for (const [vcpu, counters] of byVcpu) {
      OUTCOMES.forEach((name, kind) => {
        const ticks = sums[this.placeOf.get(vcpu) * OUTCOMES.length + kind];
        counters.ticks += ticks;
        counters[name] += ticks;
        if (kind === LATE) counters.recorded += ticks;
        if (kind <= AGED) recorded += ticks;
      });
    }
    return recorded;
  }

  /** Counts a range, starting from the one before where they share most ticks, as while a range is dragged. */
  countFrom(before, [first, end], vcpus) {
    const { ticks } = this;
    const shares = before && before.ticks === ticks && before.vcpus === String(vcpus) && before.total !== null &&
      Math.abs(first - before.range[0]) + Math.abs(end - before.range[1]) < (end - first) / 8;
    const size = this.placeOf.size * OUTCOMES.length;
    const counted = shares
      ? { own: before.own.slice(), total: before.total.slice(), sums: before.sums.slice() }
      : { own: new Uint32Array(this.tree.length), total: null, sums: new Float64Array(size) };
    const [from, to] = shares ? before.range : [first, first];
    const add = (range, sign) => this.addTicks(range, sign, vcpus, null, counted);
    add([Math.min(first, from), from], 1);
    add([to, Math.max(end, to)], 1);
    add([from, Math.max(first, from)], -1);
    add([Math.min(end, to), to], -1);
    return { ...counted, ticks, vcpus: String(vcpus), range: [first, end] };
  }

  /** The same for waits. */
  countWaits(from, to, byVcpu, allowed, own, cells = null) {
    let recorded = 0;
    for (const wait of this.waits) {
      const counters = byVcpu.get(wait.vcpu);
      if (counters === undefined || wait.to < from || wait.from >= to) continue;
      const isWhole = allowed === null || wait.entered === allowed.entered;
      // The windows about the wait, and not all in the range: there may be as many as waits.
      const [first, last] = [Math.max(from, wait.from), Math.min(to, wait.to + 1)];
      const parts = isWhole ? [[from, to]] : partsWithin(allowed.windows.get(wait.vcpu) ?? [], first, last);
      const amount = parts.reduce((sum, [begin, end]) => sum + countWithin(wait, begin, end), 0);
      if (wait.isFirst && holds(parts, wait.from)) counters.blocks += 1;
      if (!wait.hasStack) {
        counters.blocked_overflow += amount;
        continue;
      }
      counters[wait.isAged ? "blocked_aged" : "blocked"] += amount;
      recorded += amount;
      own[cells === null ? wait.node : cells[wait.node]] += amount;
    }
    return recorded;
  }

  findMissing(vcpu, from, to, counters) {
    const ring = this.time.rings.find((each) => each.vcpu === vcpu);
    if (ring === undefined || this.mode === "off-cpu" || !(this.period > 0)) return;
    // Where the ring has no records, none are missing: they were not fetched.
    let [running, blocked, came] = [0, 0, 0];
    for (const [first, last] of covered(ring, from, to)) {
      const time = this.timesOf(vcpu).ofWindow(first, last);
      if (time === null) return;
      running += time[0];
      blocked += time[2];
      for (const wait of this.waits) if (wait.vcpu === vcpu) came += countWithin(wait, first, last);
    }
    const isWall = this.mode === "wall";
    counters.missing = Math.floor((running + (isWall ? blocked : 0)) / this.period) - counters.ticks - (isWall ? came : 0);
    if (isWall) counters.missing_blocked = Math.floor(blocked / this.period) - came;
  }

  /** Stacks that are cut or end badly; they are not known by vCPU. */
  countMarks(own, byVcpu) {
    const [first] = byVcpu.values();
    if (first === undefined || !this.hasMarks) return;
    for (let node = 1; node < own.length; node += 1) {
      if (this.marks[node] === 1) first.truncated += own[node];
      if (this.marks[node] === 2) first.broken += own[node];
    }
  }

  /** The counts of stacks through each node; made once for a selection. */
  totals(selection) {
    const { counted } = this;
    if (counted?.own === selection.own) return (counted.total ??= this.tree.totals(selection.own));
    return (selection.total ??= this.tree.totals(selection.own));
  }

  /**
   * What changes follow from: by cell, the sums over the parts of a selection's time. `to` has for each node the cell in which
   * stacks that end there are counted, `parent` for each cell the one around it, which comes before it; 0 is none. `null` where
   * it is not known.
   */
  sumsByCell(selection, { to, parent }) {
    if (this.unit !== "samples") return null;
    const [hits, hits2, both] = [0, 1, 2].map(() => new Float64Array(parent.length));
    const found = this.byParts(selection, (counts, samples) => {
      for (let cell = parent.length - 1; cell > 0; cell -= 1) {
        const count = counts[cell];
        hits[cell] += count;
        hits2[cell] += count ** 2;
        both[cell] += count * samples;
        counts[parent[cell]] += count;
      }
    }, { to, length: parent.length });
    if (found === null) return null;
    const { parts, samples, samples2 } = sumsOf(found.parts, found.parts);
    return (cell) => ({ parts, samples, samples2, hits: hits[cell], hits2: hits2[cell], both: both[cell] });
  }

  /**
   * The samples of each part of the time that has any, and what `each` makes of the counts of every part's nodes, or of as many
   * cells if `to` has the nodes' cells; `null` where there is no time, or all samples lie in one part.
   */
  byParts(selection, each, { to: cells, length } = { to: null, length: this.tree.length }) {
    if (!this.time || this.unit === "nanoseconds") return null;
    const { from, to, allowed = null } = selection;
    const { step, count } = partsOf(from, to, PARTS);
    const own = new Float64Array(length);
    const vcpus = new Map(selection.shown.map((vcpu) => [vcpu, noCounters()]));
    const [parts, results] = [[], []];
    for (let part = 0; part < count; part += 1) {
      const first = from + part * step;
      const last = part === count - 1 ? to : Math.min(first + step, to);
      own.fill(0);
      const samples = this.countTicks(first, last, vcpus, allowed, own, cells) + this.countWaits(first, last, vcpus, allowed, own, cells);
      if (samples === 0) continue;
      parts.push(samples);
      results.push(each(own, samples));
    }
    return parts.length < 2 ? null : { parts, results };
  }
}

function holds(windows = [], at) {
  const after = upperOf(windows, at);
  return after > 0 && at < windows[after - 1][1];
}

/** The first of these windows that begins after a moment. */
function upperOf(windows, at) {
  let low = 0;
  let high = windows.length;
  while (low < high) {
    const middle = (low + high) >> 1;
    if (windows[middle][0] <= at) low = middle + 1;
    else high = middle;
  }
  return low;
}

/** The parts of a range that lie in windows. */
function partsWithin(windows, from, to) {
  const parts = [];
  for (let index = Math.max(upperOf(windows, from) - 1, 0); index < windows.length && windows[index][0] < to; index += 1) {
    const [first, last] = [Math.max(windows[index][0], from), Math.min(windows[index][1], to)];
    if (first < last) parts.push([first, last]);
  }
  return parts;
}

/** What a wait counts within a range: its part of what was counted for it, in proportion to the time. */
function countWithin({ from, to, count }, first, last) {
  if (from === to) return first <= from && from < last ? count : 0;
  // As whole numbers, so that it is what reports count.
  const until = (at) => {
    const passed = Math.min(Math.max(at - from, 0), to - from);
    if (count * passed <= Number.MAX_SAFE_INTEGER) return Math.floor((count * passed) / (to - from));
    return Number((BigInt(count) * BigInt(passed)) / BigInt(to - from));
  };
  return until(last) - until(first);
}

/** The parts of a range of which a ring has the records. */
function covered(ring, from, to) {
  const parts = [];
  let start = Math.max(from, ring.held_since_ns);
  for (const [first, last] of [...ring.gaps, [to, to]]) {
    const end = Math.min(first, to);
    if (start < end) parts.push([start, end]);
    start = Math.max(start, last);
  }
  return parts;
}
