// The time axis: rows over time on a canvas, and over it the ranges that are chosen.
import { css, elide, prepare, tickStep } from "./canvas.js";
import { clock, moment } from "./format.js";

export const LEFT = 110;
export const AXIS = 22;
const GAP = 3;
export const LANE = 18;
export const MOST_LANES = 24;

/**
 * Rows over time on two canvases. A page gives it `rows` and `height`; `recording.time` has the first and the last moment,
 * `state` the ranges.
 */
export class Axis {
  constructor(canvas, overlay, { onRange, onZoom, onHover }) {
    this.canvas = canvas;
    this.overlay = overlay;
    this.onRange = onRange;
    this.onZoom = onZoom;
    this.onHover = onHover;
    this.drag = null;
    overlay.addEventListener("pointerdown", (event) => this.press(event));
    overlay.addEventListener("pointermove", (event) => this.move(event));
    overlay.addEventListener("pointerup", (event) => this.release(event));
    overlay.addEventListener("pointerleave", () => this.onHover(null));
    overlay.addEventListener("dblclick", () => this.onZoom(null));
    overlay.addEventListener("wheel", (event) => this.wheel(event), { passive: false });
  }

  get width() {
    return this.canvas.parentElement.clientWidth;
  }

  /** Places rows below each other; answers the height of all. */
  place(rows) {
    let y = AXIS;
    for (const row of rows) {
      if (row.isBelow) y -= GAP - 1;
      row.y = y;
      y += row.height + GAP;
    }
    return y;
  }

  x(at) {
    return LEFT + ((at - this.from) / (this.to - this.from)) * (this.width - LEFT);
  }

  at(x) {
    const part = (x - LEFT) / Math.max(1, this.width - LEFT);
    const { from_ns: first, to_ns: last } = this.recording.time;
    return Math.round(Math.min(Math.max(this.from + part * (this.to - this.from), first), last));
  }

  /** Draws the axis and each row's name, ground and content. */
  drawRows() {
    const context = prepare(this.canvas, this.width, this.height);
    this.context = context;
    context.font = "12px system-ui, sans-serif";
    context.textBaseline = "middle";
    this.drawAxis();
    for (const row of this.rows) {
      context.fillStyle = css("--dim");
      context.fillText(elide(context, this.nameOf(row), LEFT - 10), 2, row.y + row.height / 2);
      if (row.kind === "more") continue;
      context.save();
      context.beginPath();
      context.rect(LEFT, row.y, this.width - LEFT, row.height);
      context.clip();
      context.fillStyle = css("--track");
      context.fillRect(LEFT, row.y, this.width - LEFT, row.height);
      this.drawRow(row);
      context.restore();
    }
  }

  drawAxis() {
    const { context } = this;
    const unixNs = this.recording.time.unix_ns;
    const stepOf = (pixels) => tickStep(this.to - this.from, (this.width - LEFT) / pixels);
    // Dates with milliseconds are longer.
    const step = stepOf(unixNs !== null && stepOf(110) < 1e9 ? 150 : 110);
    let free = 0;
    for (let at = Math.ceil(this.from / step) * step; at <= this.to; at += step) {
      const x = this.x(at);
      context.fillStyle = css("--line");
      context.fillRect(x, AXIS - 6, 1, this.height);
      context.fillStyle = css("--dim");
      const date = unixNs === null ? "" : `  ${clock(unixNs + at).slice(0, step < 1e9 ? 12 : 8)}`;
      const time = moment(at, step);
      // At the end the date goes, and then the time stands before the line.
      const texts = this.width > 700 ? [time + date, time] : [time];
      const fits = texts.find((text) => x + 3 + context.measureText(text).width <= this.width);
      const from = fits ? x + 3 : x - 3 - context.measureText(time).width;
      if (from >= free) context.fillText(fits ?? time, from, 8);
      free = from + context.measureText(fits ?? time).width + 6;
    }
  }

  drawRanges() {
    const context = prepare(this.overlay, this.width, this.height);
    const draw = (range, color, name, isRight) => {
      if (!range) return;
      const left = Math.max(this.x(range[0]), LEFT);
      const right = Math.min(this.x(range[1]), this.width);
      if (right < LEFT || left > this.width) return;
      context.fillStyle = color;
      context.globalAlpha = 0.16;
      context.fillRect(left, AXIS - 6, Math.max(right - left, 1), this.height);
      context.globalAlpha = 1;
      context.fillRect(left, AXIS - 6, 1.5, this.height);
      context.fillRect(right - 1.5, AXIS - 6, 1.5, this.height);
      context.font = "bold 12px system-ui, sans-serif";
      // At other ends: the ranges may begin at the same moment.
      context.textAlign = isRight ? "right" : "left";
      context.fillText(name, isRight ? right - 4 : left + 4, AXIS + 2);
    };
    draw(this.state.base, css("--base"), "base", true);
    draw(this.state.window, css("--accent"), this.state.base ? "new" : "", false);
  }

  /** Moves, zooms or selects by a key; tells whether it is one that does. */
  key(event) {
    const { window: range, zoom } = this.state;
    const step = { ArrowLeft: -1, ArrowRight: 1 }[event.key];
    if (step !== undefined && event.shiftKey && range) {
      const shift = Math.round(step * (range[1] - range[0]) * 0.25);
      const { from_ns: first, to_ns: last } = this.recording.time;
      const moved = Math.min(Math.max(shift, first - range[0]), last - range[1]);
      this.onRange("window", [range[0] + moved, range[1] + moved]);
    } else if (step !== undefined) this.pan(step * 0.1);
    else if (event.key === "+" || event.key === "=") this.zoomBy(0.5);
    else if (event.key === "-") this.zoomBy(2);
    else if (event.key === "Enter") this.onRange("window", zoom);
    else if (event.key === "b") this.onRange("base", zoom);
    else return false;
    return true;
  }

  press(event) {
    if (event.button !== 0 || event.offsetX < LEFT) return;
    // Beyond the canvas too; an event that a program made has no pointer to capture.
    if (event.isTrusted) this.overlay.setPointerCapture(event.pointerId);
    const kind = event.shiftKey ? "pan" : event.ctrlKey || event.metaKey ? "base" : "window";
    this.drag = { kind, x: event.offsetX, from: this.from, to: this.to };
  }

  move(event) {
    if (!this.drag) {
      this.onHover(this.tip(event), event);
      return;
    }
    const { kind, x, from, to } = this.drag;
    if (kind === "pan") {
      const shift = ((x - event.offsetX) / (this.width - LEFT)) * (to - from);
      this.zoomTo(from + shift, to + shift);
      return;
    }
    const ends = [this.at(x), this.at(event.offsetX)].sort((a, b) => a - b);
    if (Math.abs(event.offsetX - x) >= 3) this.onRange(kind, ends);
  }

  release(event) {
    const { drag } = this;
    this.drag = null;
    if (drag && drag.kind !== "pan" && Math.abs(event.offsetX - drag.x) < 3) this.onRange(drag.kind, null);
  }

  wheel(event) {
    if (!this.recording) return;
    event.preventDefault();
    if (Math.abs(event.deltaX) > Math.abs(event.deltaY)) this.pan((event.deltaX / this.width) * 1.5);
    else this.zoomBy(Math.exp(event.deltaY * 0.002), this.at(event.offsetX));
  }

  /** Makes the time that is shown longer or shorter, about a moment. */
  zoomBy(factor, about = (this.from + this.to) / 2) {
    this.zoomTo(about - (about - this.from) * factor, about + (this.to - about) * factor);
  }

  /** Moves by a part of the time that is shown. */
  pan(part) {
    const shift = (this.to - this.from) * part;
    this.zoomTo(this.from + shift, this.to + shift);
  }

  zoomTo(from, to) {
    const { from_ns: first, to_ns: last } = this.recording.time;
    const length = Math.min(Math.max(to - from, 1000), last - first);
    const begin = Math.round(Math.min(Math.max(from, first), last - length));
    const isAll = length >= last - first;
    this.onZoom(isAll ? null : [begin, Math.round(begin + length)]);
  }
}
