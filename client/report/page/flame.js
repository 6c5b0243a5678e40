// Flame graphs: cells of a tree by their counts.
import { elide, prepare } from "./canvas.js";
import { INK, MATCH, MERGED } from "./colors.js";

const ROW = 18;
const TEXT = 4;
/** Fewer rows than these are not worth a click. */
const LEAST_FOLDED = 4;
/** Frames that this part of the stacks have are folded with those that all have. */
const NEARLY_ALL = 0.99;

/**
 * The cells of a tree that are wide enough to be seen: place, width, row, node, and how many nodes are merged in it.
 * `order` is `name` or `weight`; `root` fills the width, and its callers are above it, but for the first `skip` of them. With
 * `folds`, callees that nearly all of the root's stacks have are one cell, up to a label in `keep`.
 */
export function layout(tree, total, { width, order, root, folds, keep, skip = 0 }) {
  const cells = [];
  const path = [];
  for (let at = root; at !== 0; at = tree.parent[at]) path.push(at);
  path.push(0);
  path.reverse().splice(0, skip);
  path.forEach((node, row) => cells.push({ x: 0, w: width, row, node, merged: 0 }));
  const scale = total[root] > 0 ? width / total[root] : 0;
  const folded = folds ? trunk(tree, total, root, keep) : [];
  if (folded.length > 0) cells.push({ x: 0, w: width, row: path.length, node: folded[folded.length - 1], merged: 0, folded });
  const open = [folded.length > 0 ? { node: folded[folded.length - 1], x: 0, row: path.length + 1 } : { node: root, x: 0, row: path.length }];
  while (open.length > 0) {
    const { node, x, row } = open.pop();
    const children = [];
    const small = { count: 0, nodes: 0, node: 0 };
    for (let child = tree.first[node]; child !== 0; child = tree.next[child]) {
      if (total[child] <= 0) continue;
      if (total[child] * scale >= 1) children.push(child);
      else {
        small.count += total[child];
        small.nodes += 1;
        small.node = child;
      }
    }
    if (order === "weight") children.sort((a, b) => total[b] - total[a] || a - b);
    let left = x;
    for (const child of children) {
      const w = total[child] * scale;
      cells.push({ x: left, w, row, node: child, merged: 0 });
      open.push({ node: child, x: left, row: row + 1 });
      left += w;
    }
    if (small.count * scale >= 0.5) {
      cells.push({ x: left, w: small.count * scale, row, node: small.node, merged: small.nodes, count: small.count, parent: node });
    }
  }
  return cells;
}

/** What stands for folded frames; its end is what narrow cells keep. */
export function textOfFolded(folded, name) {
  return `what nearly all stacks have, to ${name(folded[folded.length - 1])}: ${folded.length} frames`;
}

/**
 * The callees through which nearly all stacks of a node go, without the innermost of them and from a label in `keep` on; none
 * if they are few.
 */
export function trunk(tree, total, root, keep) {
  const found = [];
  let node = root;
  for (;;) {
    let next = 0;
    for (let child = tree.first[node]; child !== 0; child = tree.next[child]) if (total[child] > total[root] * NEARLY_ALL) next = child;
    if (next === 0) break;
    found.push(next);
    if (keep?.has(tree.label[next])) break;
    node = next;
  }
  return found.length > LEAST_FOLDED ? found.slice(0, -1) : [];
}

/** A graph on a canvas. */
export class Flame {
  constructor(canvas, { onClick, onHover, onMenu }) {
    this.canvas = canvas;
    this.cells = [];
    this.hovered = null;
    this.chosen = null;
    canvas.addEventListener("click", (event) => {
      const cell = this.at(event);
      if (cell) onClick(cell, event);
    });
    for (const kind of onMenu ? ["dblclick", "contextmenu"] : []) {
      canvas.addEventListener(kind, (event) => {
        const cell = this.at(event);
        if (!cell) return;
        event.preventDefault();
        onMenu(cell, event);
      });
    }
    canvas.addEventListener("mousemove", (event) => {
      const cell = this.at(event);
      if (cell !== this.hovered) {
        this.hovered = cell;
        this.draw();
      }
      onHover(cell, event);
    });
    canvas.addEventListener("mouseleave", () => {
      this.hovered = null;
      this.draw();
      onHover(null);
    });
  }

  /** Shows a tree: `name` and `color` of nodes, `matches` by label, whether the root is at the bottom. */
  show(shown) {
    // A number means another node in another tree.
    if (this.shown?.tree !== shown.tree) this.chosen = null;
    const isTurned = shown.upwards && !this.shown?.upwards;
    this.shown = shown;
    this.certain = null;
    const part = this.canvas.parentElement;
    part.classList.toggle("upwards", shown.upwards);
    this.resize();
    if (isTurned) this.showBase();
    this.keepInPlace(part);
  }

  /** Scrolls to the root, at the bottom, which is what is looked at first. */
  showBase() {
    const part = this.canvas.parentElement;
    part.scrollTop = part.scrollHeight;
    part.scrollIntoView({ block: "nearest" });
  }

  /** Has a node's cell come to this height on the screen where the graph changes. */
  pin(node, event) {
    this.pinned = { node, clientY: event.clientY };
  }

  keepInPlace(part) {
    const { pinned } = this;
    this.pinned = null;
    const cell = pinned && this.cells.find(({ node, merged }) => node === pinned.node && merged === 0);
    if (!cell) return;
    const below = this.canvas.getBoundingClientRect().top + this.y(cell.row) + ROW / 2 - pinned.clientY;
    const before = part.scrollTop;
    part.scrollTop += below;
    window.scrollBy(0, below - (part.scrollTop - before));
  }

  resize() {
    if (!this.shown) return;
    const width = this.canvas.parentElement.clientWidth;
    if (width === 0) return;
    this.width = width;
    this.cells = layout(this.shown.tree, this.shown.total, { width, ...this.shown });
    this.rows = this.cells.reduce((most, cell) => Math.max(most, cell.row + 1), 1);
    this.byRow = Array.from({ length: this.rows }, () => []);
    for (const cell of this.cells) this.byRow[cell.row].push(cell);
    for (const row of this.byRow) row.sort((a, b) => a.x - b.x);
    this.hovered = null;
    const { chosen } = this;
    this.chosen = chosen && (this.cells.find((cell) => cell.node === chosen.node && cell.merged === chosen.merged) ?? null);
    this.draw();
  }

  y(row) {
    return (this.shown.upwards ? this.rows - 1 - row : row) * ROW;
  }

  at(event) {
    if (!this.shown || !this.byRow) return null;
    const line = Math.floor(event.offsetY / ROW);
    const row = this.byRow[this.shown.upwards ? this.rows - 1 - line : line];
    return row?.find((cell) => event.offsetX >= cell.x && event.offsetX < cell.x + cell.w) ?? null;
  }

  draw() {
    if (!this.shown || !this.byRow) return;
    const { name, color, matches, selected, tree, root } = this.shown;
    const context = prepare(this.canvas, this.width, this.rows * ROW);
    context.font = "12px system-ui, sans-serif";
    context.textBaseline = "middle";
    for (const cell of this.cells) {
      const y = this.y(cell.row);
      const isMatch = (node) => node !== 0 && matches?.[tree.label[node]] === 1;
      if ((cell.folded ?? [cell.node]).some(isMatch) && cell.merged === 0) context.fillStyle = MATCH;
      else context.fillStyle = cell.merged > 0 || cell.folded ? MERGED : color(cell.node, this.certain?.has(cell.node) === true);
      // What is above the chosen root is only the way to it.
      context.globalAlpha = root !== 0 && cell.merged === 0 && cell.row < this.rowOf(root) ? 0.55 : 1;
      const w = Math.max(cell.w - (cell.w > 3 ? 0.75 : 0), 0.5);
      context.fillRect(cell.x, y, w, ROW - 1);
      context.globalAlpha = 1;
      const isSelected = cell === this.chosen || (cell.merged === 0 && !cell.folded && cell.node !== 0 && tree.label[cell.node] === selected);
      if (cell === this.hovered || isSelected) {
        context.strokeStyle = INK;
        context.lineWidth = isSelected ? 2 : 1;
        context.strokeRect(cell.x + 1, y + 1, Math.max(w - 2, 1), ROW - 3);
      }
      const text = cell.folded ? textOfFolded(cell.folded, name) : cell.merged > 0 ? `${cell.merged} merged cells` : name(cell.node);
      const fits = elide(context, text, cell.w - 2 * TEXT);
      if (fits !== "") {
        context.fillStyle = INK;
        context.fillText(fits, cell.x + TEXT, y + ROW / 2);
      }
    }
  }

  /** Shows which cells changed more than chance explains. */
  judge(nodes) {
    this.certain = nodes;
    this.draw();
  }

  rowOf(node) {
    let row = -(this.shown.skip ?? 0);
    for (let at = node; at !== 0; at = this.shown.tree.parent[at]) row += 1;
    return row;
  }

  /** Moves the choice with a key; gives the cell. */
  move(key) {
    const from = this.chosen;
    if (from === null) return this.choose(this.cells[0] ?? null);
    const out = this.shown.upwards ? "ArrowDown" : "ArrowUp";
    const row = this.byRow[from.row];
    const step = { ArrowLeft: -1, ArrowRight: 1 }[key];
    if (step !== undefined) return this.choose(row[row.indexOf(from) + step] ?? from);
    const nextRow = this.byRow[from.row + (key === out ? -1 : 1)] ?? [];
    const touching = nextRow.filter((cell) => cell.x < from.x + from.w && cell.x + cell.w > from.x);
    const widest = touching.reduce((best, cell) => (best === null || cell.w > best.w ? cell : best), null);
    return this.choose(widest ?? from);
  }

  choose(cell) {
    this.chosen = cell;
    this.draw();
    return cell;
  }
}
