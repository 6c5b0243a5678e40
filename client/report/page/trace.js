// The page of a trace: the calls over time, the table of functions, and a function's durations.
import { MATCH, MERGED, Palette } from "./colors.js";
import { byName, duration, grouped, moment } from "./format.js";
import { CHOSEN, Lanes, MATCHED } from "./lanes.js";
import { $, Shell, startPage } from "./shell.js";
import { element, legendEntry, matchesOf, named, replaceList, showTip, tableOf } from "./tables.js";
import { Traced } from "./traced.js";

const COLUMNS_OF_TRACE = [["calls", "calls"], ["total", "total"], ["own", "self"], ["waited", "waited"], ["p50", "p50"], ["p99", "p99"],
  ["max", "max"], ["name", "function"]];
const KEYS_OF_TRACE = [
  ["/", "search"],
  ["d", "light or dark"],
  ["w", "the whole trace"],
  ["Esc", "back: search, chosen function, range, zoom"],
  ["arrows, +, -", "in the lanes: move, zoom"],
  ["Shift+arrows", "in the lanes: move the selected range"],
  ["Enter", "in the lanes: select what is shown"],
  ["drag, Shift+drag", "in the lanes: select a range, move"],
  ["click", "a call or a function: choose the function; a double click in the lanes: show all"],
];

/** Rows in the order of a column, those with most first. */
export function inOrder(rows, sort, labels) {
  const name = (row) => labels[row.label].name;
  if (sort === "name") return [...rows].sort((a, b) => byName(name(a), name(b)) || a.label - b.label);
  return [...rows].sort((a, b) => (b[sort] ?? -1) - (a[sort] ?? -1) || b.calls - a.calls || a.label - b.label);
}

class TracePage extends Shell {
  constructor(trace) {
    super(trace.head.sort);
    this.trace = trace;
    const { head } = trace;
    this.palette = new Palette(trace.labels, "image");
    this.read();
    document.title = `${head.title} - unikprof`;
    $("title").textContent = head.title;
    $("about").textContent = head.facts.join(" · ");
    this.showWarnings([...head.report.warnings, ...head.refused]);
    $("accounting").hidden = $("cautions").hidden;
    const legend = [["hsl(36 60% 72%)", "a call, a hue for each function"], [MERGED, "calls narrower than a pixel"], [MATCH, "found by the search"]];
    $("legend").append(...legend.map(([color, text]) => legendEntry("", text, color)));
    this.explainKeys(KEYS_OF_TRACE);
    // Lanes are as wide as the page.
    $("page").hidden = false;
    $("tracks").hidden = trace.time === null;
    $("no-time").hidden = trace.time !== null;
    $("clear").disabled = trace.time === null;
    this.lanes = trace.time && new Lanes($("track"), $("overlay"), {
      onRange: (_, window) => this.set({ window }),
      onZoom: (zoom) => this.set({ zoom }),
      onHover: (lines, event) => showTip($("tip"), lines, event),
      onChoose: (label) => this.choose(label),
    });
    $("clear").onclick = () => this.set({ window: null, zoom: null });
    $("forget").onclick = () => this.set({ chosen: null });
    this.listen();
    this.update();
  }

  /** Leaves out what the address names and the trace does not have. */
  correct() {
    this.keepRanges(this.trace.time, ["window", "zoom"]);
    if (this.state.chosen >= this.trace.labels.length) this.state.chosen = null;
  }

  choose(label) {
    this.set({ chosen: this.state.chosen === label ? null : label });
  }

  /** Draws in the next frame, however often it is asked for. */
  update() {
    document.documentElement.dataset.draws = "";
    this.waiting ??= requestAnimationFrame(() => {
      this.waiting = null;
      this.draw();
      delete document.documentElement.dataset.draws;
      this.finish();
    });
  }

  draw() {
    const { state, trace } = this;
    const { labels } = trace;
    this.showControls();
    const matches = matchesOf(state.query, labels);
    const rows = inOrder(trace.rows(state.window), state.sort, labels).filter((row) => matches === null || matches[row.label] === 1);
    const calls = grouped(rows.reduce((sum, row) => sum + row.calls, 0));
    $("matched").textContent = state.query === "" ? "" : matches === null ? "not a regular expression"
      : rows.length === 1 ? "1 function matches" : `${rows.length} functions match`;
    $("shown").textContent = state.window === null
      ? `${calls} calls${trace.head.is_part ? "" : ", as the agent counted them in the whole trace"}`
      : `${calls} calls that began from ${state.window.map((at) => moment(at, (state.window[1] - state.window[0]) / 1000)).join(" to ")}`;
    const highlights = Uint8Array.from(labels, (_, label) => (matches?.[label] === 1 ? MATCHED : label === state.chosen ? CHOSEN : 0));
    // Lanes stay where they are while a range is dragged.
    const shown = trace.rows(null).filter((row) => matches === null || matches[row.label] === 1);
    this.lanes?.show(trace, state, { labels: inOrder(shown, state.sort, labels).map((row) => row.label), highlights, palette: this.palette });
    this.list(rows);
    this.detail();
    this.keepAddress();
  }

  list(rows) {
    const { trace: { labels, head }, state } = this;
    const time = (ns) => (ns === null ? "-" : duration(ns));
    const body = rows.map((row) => {
      const cells = [grouped(row.calls), ...["total", "own", "waited", "p50", "p99", "max"].map((key) => time(row[key]))];
      const ends = row.ends.flatMap((count, end) => (end > 0 && count > 0 ? [`${grouped(count)} ${head.ends[end]}`] : []));
      const { name } = labels[row.label];
      const button = named("button", { type: "button", "data-key": `function ${row.label}`, onclick: () => this.choose(row.label) }, name);
      return element("tr", row.label === state.chosen ? { "aria-current": "true" } : {}, ...cells.map((textContent) => element("td", { textContent })),
        element("td", { className: "name" }, button, ends.length === 0 ? "" : ` (${ends.join(", ")})`));
    });
    replaceList($("list"), [tableOf(COLUMNS_OF_TRACE, state.sort, (sort) => this.set({ sort }), body)]);
  }

  /** The chosen function: who called it, and how long its calls took. */
  detail() {
    const { trace, state: { chosen, window: range } } = this;
    $("detail").hidden = chosen === null;
    if (chosen === null) return;
    const lines = trace.histogram(chosen, range);
    const callers = trace.head.report.functions[trace.head.numbers.indexOf(chosen)]?.callers ?? [];
    $("chosen").textContent = trace.labels[chosen].name;
    $("called-from").textContent = callers.map(({ function: name, calls }) => `${grouped(calls)} calls from ${name}`).join(" · ");
    const returned = lines.reduce((sum, line) => sum + line.calls, 0);
    $("returned").textContent = `${grouped(returned)} calls that returned${range === null ? "" : ", of those that began in the selected range"}, by duration`;
    const most = lines.reduce((largest, line) => Math.max(largest, line.calls), 1);
    const body = lines.map(({ from, to, calls }) => {
      const bar = element("i");
      bar.style.width = `${(calls / most) * 100}%`;
      const texts = [`${duration(from)} - ${duration(to)}`, grouped(calls)].map((textContent) => element("td", { textContent }));
      return element("tr", {}, ...texts, element("td", { className: "name" }, bar));
    });
    $("histogram").replaceChildren(tableOf([[null, "duration"], [null, "calls"], [null, ""]], "", null, body));
  }

  key(event) {
    if (event.altKey || ((event.ctrlKey || event.metaKey) && event.key !== "Escape")) return;
    if (event.key === "Escape") this.back();
    else if (event.target.tagName === "INPUT") return;
    else if (event.target === $("tracks") && this.lanes?.key(event)) event.preventDefault();
    else if (event.key === "w") this.set({ window: null });
    else this.commonKey(event);
  }

  /** Undoes one thing: the nearest first. */
  back() {
    const { state } = this;
    if ($("help").open) return;
    if (state.query !== "") this.set({ query: "" });
    else if (state.chosen !== null) this.set({ chosen: null });
    else if (state.window) this.set({ window: null });
    else if (state.zoom) this.set({ zoom: null });
  }
}

if (typeof document !== "undefined") startPage((found) => new TracePage(new Traced(found)));
