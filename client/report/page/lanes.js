// The calls of a trace over time: a lane for each stack of the guest, and below them each function's calls over time.
import { AXIS, Axis, LANE, LEFT, MOST_LANES } from "./axis.js";
import { css, elide } from "./canvas.js";
import { INK, MATCH, MERGED } from "./colors.js";
import { clock, duration, grouped, moment } from "./format.js";
import { upper } from "./times.js";

const CALL = 16;
const COUNTS = 38;
/** The part of such a lane that its text takes, so that no bar is behind it. */
const HEAD = 14;
/** The most rows of one lane. */
const MOST_DEPTH = 32;
/** The width of a column of calls over time, in pixels. */
const COLUMN = 2;
/** What the highlighting of a function says. */
export const CHOSEN = 1;
export const MATCHED = 2;

/**
 * What of the calls is drawn, by lane and row, from left to right: place and width in pixels, the call and how many more
 * there are. Calls that are narrower than a pixel and begin in the same one are one cell, of the most highlighted of them.
 */
export function cellsOf(calls, { from, to, pixels, lanes, highlights }) {
  const scale = pixels / (to - from);
  const cells = Array.from({ length: lanes }, () => []);
  const end = upper(calls.start, to);
  for (let call = 0; call < end; call += 1) {
    const [start, row, lane] = [calls.start[call], calls.row[call] - 1, calls.lane[call]];
    // Row 0 are calls that are not drawn.
    if (row < 0 || row >= MOST_DEPTH || lane >= lanes || start + calls.length[call] < from) continue;
    const left = Math.max((start - from) * scale, 0);
    const right = Math.min((start + calls.length[call] - from) * scale, pixels);
    const line = (cells[lane][row] ??= []);
    const last = line[line.length - 1];
    if (right - left >= 1) line.push({ x: left, w: right - left, call, calls: 1, isNarrow: false });
    else if (last?.isNarrow && last.x === Math.floor(left)) {
      last.calls += 1;
      if (highlights[calls.function[call]] > highlights[calls.function[last.call]]) last.call = call;
    } else line.push({ x: Math.floor(left), w: 1, call, calls: 1, isNarrow: true });
  }
  return cells;
}

export class Lanes extends Axis {
  constructor(canvas, overlay, { onChoose, ...on }) {
    super(canvas, overlay, on);
    this.onChoose = onChoose;
  }

  /**
   * Shows a trace; `state` has zoom, window and the chosen function, `labels` the functions that have lanes of their own,
   * `highlights` by function how it is highlighted.
   */
  show(trace, state, { labels, highlights, palette }) {
    this.recording = trace;
    this.state = state;
    const { from_ns: from, to_ns: to } = trace.time;
    [this.from, this.to] = state.zoom ?? [from, Math.max(to, from + 1)];
    // A range that is dragged changes only what lies over the lanes.
    const key = `${this.from}|${this.to}|${labels}|${highlights}|${css("--paper")}|${this.width}`;
    if (key === this.drawn) {
      this.drawRanges();
      return;
    }
    Object.assign(this, { drawn: key, highlights, palette });
    this.rows = this.findRows(labels);
    this.height = this.place(this.rows);
    const pixels = Math.max(1, this.width - LEFT);
    const lanes = Math.min(trace.time.lanes.length, MOST_LANES);
    this.cells = cellsOf(trace.calls, { from: this.from, to: this.to, pixels, lanes, highlights });
    this.columns = Math.max(1, Math.floor(pixels / COLUMN));
    this.counts = trace.overTime([this.from, this.to], this.columns);
    this.drawRows();
    this.drawHoles();
    this.drawRanges();
  }

  findRows(labels) {
    const { time, depths, labels: names } = this.recording;
    const rows = time.lanes.slice(0, MOST_LANES).flatMap((name, lane) => {
      const [depth, shown] = [depths[lane], Math.min(depths[lane], MOST_DEPTH)];
      // All of its calls may be left out.
      const calls = depth === 0 ? [] : [{ kind: "calls", lane, name, height: shown * CALL }];
      return depth > shown ? [...calls, { kind: "more", name: `${depth - shown} deeper rows`, height: LANE }] : calls;
    });
    const more = (all, what) => {
      if (all.length > MOST_LANES) rows.push({ kind: "more", name: `${all.length - MOST_LANES} more ${what}`, height: LANE });
    };
    more(time.lanes, "stacks");
    rows.push(...labels.slice(0, MOST_LANES).map((label) => ({ kind: "counts", label, name: names[label].name, height: COUNTS })));
    more(labels, "functions");
    return rows;
  }

  nameOf(row) {
    return row.name;
  }

  drawRow(row) {
    if (row.kind === "calls") this.drawCalls(row);
    else this.drawCounts(row);
  }

  drawCalls(row) {
    const { context, highlights, recording: { calls, labels } } = this;
    const ink = css("--ink");
    for (const [depth, line] of this.cells[row.lane].entries()) {
      const y = row.y + depth * CALL;
      for (const cell of line ?? []) {
        const label = calls.function[cell.call];
        const isNarrow = cell.calls > 1 && highlights[label] !== CHOSEN;
        context.fillStyle = highlights[label] === MATCHED ? MATCH : isNarrow ? MERGED : this.palette.color(label);
        const isOther = this.state.chosen !== null && label !== this.state.chosen;
        context.globalAlpha = isOther && highlights[label] !== MATCHED ? 0.3 : calls.end[cell.call] >= 3 ? 0.75 : 1;
        context.fillRect(LEFT + cell.x, y, Math.max(cell.w - (cell.w > 3 ? 0.75 : 0), 0.5), CALL - 1);
        context.globalAlpha = 1;
        const fits = cell.calls === 1 ? elide(context, labels[label].name, cell.w - 8) : "";
        if (fits === "") continue;
        context.fillStyle = isOther ? ink : INK;
        context.fillText(fits, LEFT + cell.x + 4, y + CALL / 2);
      }
    }
  }

  drawCounts(row) {
    const { context, columns } = this;
    const counts = this.counts[row.label];
    if (counts === null) return;
    const most = counts.reduce((largest, count) => Math.max(largest, count), 1);
    const w = (this.width - LEFT) / columns;
    context.fillStyle = css(row.label === this.state.chosen ? "--accent" : "--span");
    for (let column = 0; column < columns; column += 1) {
      const high = (counts[column] / most) * (row.height - HEAD);
      if (high > 0) context.fillRect(LEFT + column * w, row.y + row.height - high, w, high);
    }
    context.fillStyle = css("--dim");
    context.fillText(`at most ${grouped(most)} in ${duration(Math.round(this.columnNs))}`, LEFT + 4, row.y + 8);
  }

  get columnNs() {
    return (this.to - this.from) / this.columns;
  }

  /** Time of which records were lost: any lane may lack calls there. */
  drawHoles() {
    const { context } = this;
    context.fillStyle = css("--hole");
    let last = LEFT;
    for (const [, from, to] of this.recording.time.holes) {
      if (to < this.from || from > this.to) continue;
      const right = Math.min(this.x(to), this.width);
      for (let x = Math.max(this.x(from), last); x <= right; x += 4) {
        context.fillRect(x, AXIS, 1, this.height);
        last = x + 4;
      }
    }
  }

  /** The row and the cell under the pointer. */
  hit(event) {
    const row = this.rows?.find((each) => event.offsetY >= each.y && event.offsetY < each.y + each.height);
    if (row?.kind !== "calls") return { row, cell: null };
    const x = event.offsetX - LEFT;
    const line = this.cells[row.lane][Math.floor((event.offsetY - row.y) / CALL)] ?? [];
    return { row, cell: line.find((cell) => x >= cell.x && x < cell.x + cell.w) ?? null };
  }

  release(event) {
    const { drag } = this;
    const isClick = drag && drag.kind !== "pan" && Math.abs(event.offsetX - drag.x) < 3;
    const { row, cell } = isClick ? this.hit(event) : {};
    const label = cell ? this.recording.calls.function[cell.call] : row?.label;
    if (label === undefined) super.release(event);
    else {
      this.drag = null;
      this.onChoose(label);
    }
  }

  /** What lies under the pointer, as lines. */
  tip(event) {
    if (!this.rows || event.offsetX < LEFT) return null;
    const at = this.at(event.offsetX);
    const { recording: { calls, time, labels, head } } = this;
    const step = (this.to - this.from) / 1000;
    const date = time.unix_ns === null ? "" : `, ${clock(time.unix_ns + at)} UTC`;
    const lines = [`${moment(at, step)}${date}`];
    const hole = time.holes.find(([, from, to]) => at >= from && at <= to);
    if (hole) lines.push(`records of vCPU ${hole[0]} were lost here`);
    const { row, cell } = this.hit(event);
    if (row?.kind === "counts") {
      const column = Math.min(Math.floor((at - this.from) / this.columnNs), this.columns - 1);
      lines.push(row.name, `${grouped(this.counts[row.label]?.[column] ?? 0)} calls in ${duration(Math.round(this.columnNs))} here`);
    } else if (row?.kind === "more") lines.push(`${row.name}, which are not drawn`);
    else if (cell?.calls > 1) lines.push(`${grouped(cell.calls)} calls, each narrower than a pixel; one of them:`);
    if (!cell) return lines;
    const { call } = cell;
    lines.push(labels[calls.function[call]].name, `${duration(calls.length[call])} from ${moment(calls.start[call], step)} on vCPU ${calls.vcpu[call]}`,
      `self ${duration(calls.self[call])}, waited ${duration(calls.waited[call])}`);
    if (calls.end[call] !== 0) lines.push(head.ends[calls.end[call]]);
    if (calls.hole[call]) lines.push("records were lost inside");
    return lines;
  }
}
