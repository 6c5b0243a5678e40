// The page of a comparison: both recordings in one graph, in the colours of what became of each function, and the table
// of `diff`. The client computes and words all figures; the page counts what its graph needs.
import { MATCH } from "./colors.js";
import { Flame, textOfFolded } from "./flame.js";
import { byName, percent } from "./format.js";
import { $, Shell, startPage } from "./shell.js";
import { element, legendEntry, matchesOf, named, replaceList, showTip, tableOf } from "./tables.js";
import { Tree } from "./tree.js";

const VIEWS_OF_DIFF = [["icicle", "Icicle"], ["flame", "Flame graph"], ["left", "Left heavy"]];
const MOST_FUNCTIONS = 2000;
const UNCHANGED = "#e6e4de";
export const VERDICTS = {
  slower: "hsl(8 85% 62%)",
  new: "hsl(8 85% 62%)",
  faster: "hsl(214 80% 62%)",
  gone: "hsl(214 80% 62%)",
  moved: "hsl(42 80% 62%)",
  maybe: "hsl(42 80% 62%)",
  either: "hsl(42 80% 62%)",
};
const COLUMNS_OF_DIFF = [["own", "base self"], [null, "new self"], ["change", "change"], ["total", "base total"], [null, "new total"],
  [null, "change"], [null, "found from"], [null, ""], ["name", "function"]];

/** Functions in the order of a column; `change` is the order of the client, what changed most first. */
export function ordered(functions, sort) {
  const of = (at) => functions[at];
  const orders = {
    own: (a, b) => of(b).own - of(a).own || a - b,
    total: (a, b) => of(b).total - of(a).total || a - b,
    name: (a, b) => byName(of(a).name, of(b).name) || a - b,
    change: (a, b) => a - b,
  };
  return functions.map((_, at) => at).sort(orders[sort] ?? orders.change);
}

/** By node, the mean of the shares of both recordings that go through it, and those shares. */
export function meanOf(tree, columns) {
  const sides = ["base_own", "new_own"].map((name) => {
    const own = new Float64Array(tree.length);
    own.set(columns[name], 1);
    const totals = tree.totals(own);
    return totals.map((total) => total / (totals[0] || 1));
  });
  return { sides, mean: sides[0].map((share, node) => (share + sides[1][node]) / 2) };
}

class DiffPage extends Shell {
  constructor({ head, columns }) {
    super("change");
    this.head = head;
    this.tree = Tree.fromDepths(columns.node_depth, columns.node_label);
    Object.assign(this, meanOf(this.tree, columns));
    this.read();
    this.graph = new Flame($("graph"), {
      onClick: (cell) => this.zoom(cell),
      onHover: (cell, event) => this.tip(cell, event),
    });
    $("said").append(...head.lines.flatMap(([name, text]) => [element("dt", { textContent: name }), element("dd", { textContent: text })]));
    this.showWarnings(head.warnings);
    const legend = [["more", "slower or new"], ["less", "faster or gone"], ["moved", "moved, or not sure"]];
    $("legend").append(...legend.map(([kind, text]) => legendEntry(kind, text)), legendEntry("", "no change beyond chance", UNCHANGED));
    this.addViews(VIEWS_OF_DIFF);
    this.listen();
    $("whole").onclick = () => this.set({ node: 0, unfold: false });
    document.title = "unikprof diff";
    this.update();
  }

  correct() {
    const { state, tree } = this;
    if (!VIEWS_OF_DIFF.some(([view]) => view === state.view)) state.view = "icicle";
    if (state.node >= tree.length) state.node = 0;
  }

  zoom(cell) {
    showTip($("tip"), null);
    this.set(cell.folded ? { unfold: true } : { node: cell.merged > 0 ? cell.parent : cell.node });
  }

  key(event) {
    if (event.altKey || event.ctrlKey || event.metaKey) return;
    if (event.key === "Escape") this.set(this.state.node !== 0 ? { node: 0 } : this.state.unfold ? { unfold: false } : { query: "" });
    else if (event.target.tagName === "INPUT") return;
    else if (event.target === $("graph") && event.key.startsWith("Arrow")) {
      event.preventDefault();
      const cell = this.graph.move(event.key);
      const box = $("graph").getBoundingClientRect();
      this.tip(cell, { clientX: box.left + cell.x, clientY: box.top + this.graph.y(cell.row) });
    } else if (event.target === $("graph") && event.key === "Enter" && this.graph.chosen) this.zoom(this.graph.chosen);
    else this.commonKey(event);
  }

  update() {
    const { state, tree, head } = this;
    this.showControls();
    $("whole").hidden = state.node === 0 && !state.unfold;
    this.search();
    this.graph.show({
      tree,
      total: this.mean,
      name: (node) => (node === 0 ? "all" : head.functions[tree.label[node]].name),
      color: (node) => (node === 0 ? UNCHANGED : VERDICTS[head.functions[tree.label[node]].verdict] ?? UNCHANGED),
      matches: this.matches,
      order: state.view === "left" ? "weight" : "name",
      root: state.node,
      folds: !state.unfold,
      upwards: state.view === "flame",
    });
    this.list();
    this.keepAddress();
    this.finish();
  }

  search() {
    const { query } = this.state;
    this.matches = matchesOf(query, this.head.functions);
    const matched = this.matches && this.sides.map((side) => percent(this.tree.matched(side, this.matches)));
    if (matched) $("matched").textContent = `matched ${matched[0]} of base, ${matched[1]} of new`;
    else $("matched").textContent = query === "" ? "" : "not a regular expression";
    $("matched").style.borderBottom = matched ? `3px solid ${MATCH}` : "";
  }

  list() {
    const { head, state, matches } = this;
    const shown = ordered(head.functions, state.sort).filter((at) => matches === null || matches[at] === 1);
    const rows = shown.slice(0, MOST_FUNCTIONS).map((at) => {
      const { name, verdict, cells } = head.functions[at];
      const texts = [...cells, verdict].map((textContent) => element("td", { textContent }));
      const find = () => this.set({ query: `^${name.replace(/[.*+?^${}()|[\]\\/]/g, "\\$&")}$`, node: 0 });
      return element("tr", {}, ...texts, element("td", { className: "name" }, named("button", { type: "button", "data-key": `function ${at}`, onclick: find }, name)));
    });
    const table = tableOf(COLUMNS_OF_DIFF, state.sort, (sort) => this.set({ sort }), rows);
    table.classList.add("compared");
    replaceList($("list"), [table]);
  }

  tip(cell, event) {
    if (!cell) {
      showTip($("tip"), null);
      return;
    }
    const { tree, head, sides } = this;
    if (cell.folded) {
      showTip($("tip"), [textOfFolded(cell.folded, (node) => head.functions[tree.label[node]].name), "click to unfold"], event);
      return;
    }
    const shares = `base ${percent(sides[0][cell.node])}, new ${percent(sides[1][cell.node])} of all time`;
    const found = cell.node === 0 || cell.merged > 0 ? null : head.functions[tree.label[cell.node]];
    const name = cell.merged > 0 ? `${cell.merged} merged cells` : found?.name ?? "all";
    const lines = cell.merged > 0 ? ["each narrower than a pixel"] : [`here: ${shares}`];
    if (found) lines.push(`self: ${found.cells[0]} to ${found.cells[1]}, ${found.cells[2]}`, `with callees: ${found.cells[3]} to ${found.cells[4]}, ${found.cells[5]}`);
    if (found?.verdict) lines.push(found.verdict);
    showTip($("tip"), [name, ...lines], event);
  }
}

if (typeof document !== "undefined") startPage((found) => new DiffPage(found));
