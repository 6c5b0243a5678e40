// The page of a trace: the calls over time, the table of functions, and a function's durations.
import { Palette } from "./colors.js";
import { decode, inflate } from "./decode.js";
import { byName, duration, grouped, moment } from "./format.js";
import { CHOSEN, Lanes, MATCHED } from "./lanes.js";
import { fromFragment, toFragment } from "./state.js";
import { element, headsOf, matchesOf, replaceList, showTip, warningLine } from "./tables.js";
import { Traced } from "./traced.js";

const COLUMNS_OF_TRACE = [["calls", "calls"], ["total", "total"], ["own", "self"], ["blocked", "blocked"], ["p50", "p50"], ["p99", "p99"],
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

const its = (id) => document.getElementById(id);

/** Rows in the order of a column, those with most first. */
export function inOrder(rows, sort, labels) {
  const name = (row) => labels[row.label].name;
  if (sort === "name") return [...rows].sort((a, b) => byName(name(a), name(b)) || a.label - b.label);
  return [...rows].sort((a, b) => (b[sort] ?? -1) - (a[sort] ?? -1) || b.calls - a.calls || a.label - b.label);
}

class TracePage {
  constructor(trace) {
    this.trace = trace;
    const { head } = trace;
    this.palette = new Palette(trace.labels, "image");
    this.read();
    document.title = `${head.title} - unikprof`;
    its("title").textContent = head.title;
    its("about").textContent = head.facts.join(" · ");
    its("warnings").append(...head.report.warnings.map((text) => warningLine(text)),
      ...head.refused.map((text) => element("li", { tabIndex: 0, textContent: text, title: text })));
    its("accounting").hidden = its("warnings").childElementCount === 0;
    its("keys").append(...KEYS_OF_TRACE.flatMap(([key, what]) => [element("dt", { textContent: key }), element("dd", { textContent: what })]));
    its("page").hidden = false;
    its("tracks").hidden = trace.time === null;
    its("no-time").hidden = trace.time !== null;
    its("clear").disabled = trace.time === null;
    this.lanes = trace.time && new Lanes(its("track"), its("overlay"), {
      onRange: (_, window) => this.set({ window }),
      onZoom: (zoom) => this.set({ zoom }),
      onHover: (lines, event) => showTip(its("tip"), lines, event),
      onChoose: (label) => this.choose(label),
    });
    its("query").oninput = (event) => this.set({ query: event.target.value });
    its("clear").onclick = () => this.set({ window: null, zoom: null });
    its("forget").onclick = () => this.set({ chosen: null });
    its("theme").onclick = () => this.set({ theme: this.isDark() ? "light" : "dark" });
    its("help-button").onclick = () => its("help").showModal();
    document.addEventListener("keydown", (event) => this.key(event));
    window.addEventListener("resize", () => this.update());
    window.addEventListener("hashchange", () => {
      if (location.hash.replace(/^#/, "") === this.fragment()) return;
      this.read();
      this.update();
    });
    matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => this.update());
    this.update();
  }

  /** Takes the state from the address, but for what it names and the trace does not have. */
  read() {
    const { time, labels, head } = this.trace;
    this.state = fromFragment(location.hash);
    if (!/(^|[#&])sort=/.test(location.hash)) this.state.sort = head.sort;
    for (const key of ["window", "zoom"]) {
      const range = time && this.state[key]?.map((at) => Math.min(Math.max(at, time.from_ns), time.to_ns));
      this.state[key] = range && range[0] < range[1] ? range : null;
    }
    if (this.state.chosen >= labels.length) this.state.chosen = null;
  }

  /** The state as in the address, in which an order is missing if it is the client's. */
  fragment() {
    const { sort } = this.state;
    const isOwn = sort === "own" && this.trace.head.sort !== "own";
    const rest = toFragment({ ...this.state, sort: sort === this.trace.head.sort ? "own" : sort });
    return [rest, ...(isOwn ? ["sort=own"] : [])].filter(Boolean).join("&");
  }

  isDark() {
    return this.state.theme === null ? matchMedia("(prefers-color-scheme: dark)").matches : this.state.theme === "dark";
  }

  set(changes) {
    Object.assign(this.state, changes);
    this.update();
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
      document.documentElement.dataset.ready = String(Number(document.documentElement.dataset.ready ?? 0) + 1);
    });
  }

  draw() {
    const { state, trace } = this;
    const { labels } = trace;
    document.documentElement.classList.toggle("dark", this.isDark());
    document.documentElement.style.colorScheme = this.isDark() ? "dark" : "light";
    if (its("query").value !== state.query) its("query").value = state.query;
    const matches = matchesOf(state.query, labels);
    const rows = inOrder(trace.rows(state.window), state.sort, labels).filter((row) => matches === null || matches[row.label] === 1);
    const calls = grouped(rows.reduce((sum, row) => sum + row.calls, 0));
    its("matched").textContent = state.query === "" ? "" : matches === null ? "not a regular expression"
      : rows.length === 1 ? "1 function matches" : `${rows.length} functions match`;
    its("shown").textContent = state.window === null
      ? `${calls} calls${trace.head.is_part ? "" : ", as the agent counted them in the whole trace"}`
      : `${calls} calls that began from ${state.window.map((at) => moment(at, (state.window[1] - state.window[0]) / 1000)).join(" to ")}`;
    const highlights = Uint8Array.from(labels, (_, label) => (matches?.[label] === 1 ? MATCHED : label === state.chosen ? CHOSEN : 0));
    // Lanes stay where they are while a range is dragged.
    const shown = trace.rows(null).filter((row) => matches === null || matches[row.label] === 1);
    this.lanes?.show(trace, state, { labels: inOrder(shown, state.sort, labels).map((row) => row.label), highlights, palette: this.palette });
    this.list(rows);
    this.detail();
    const fragment = this.fragment();
    if (fragment !== location.hash.replace(/^#/, "")) history.replaceState(null, "", `#${fragment}`);
  }

  list(rows) {
    const { trace: { labels, head }, state } = this;
    const time = (ns) => (ns === null ? "-" : duration(ns));
    const body = rows.map((row) => {
      const cells = [grouped(row.calls), ...["total", "own", "blocked", "p50", "p99", "max"].map((key) => time(row[key]))];
      const ends = row.ends.flatMap((count, end) => (end > 0 && count > 0 ? [`${grouped(count)} ${head.ends[end]}`] : []));
      const { name } = labels[row.label];
      const button = element("button", { type: "button", "data-key": `function ${row.label}`, textContent: name, onclick: () => this.choose(row.label) });
      return element("tr", row.label === state.chosen ? { "aria-current": "true" } : {}, ...cells.map((textContent) => element("td", { textContent })),
        element("td", { className: "name" }, button, ends.length === 0 ? "" : ` (${ends.join(", ")})`));
    });
    replaceList(its("list"), [element("table", { className: "functions" },
      element("thead", {}, element("tr", {}, ...headsOf(COLUMNS_OF_TRACE, state.sort, (sort) => this.set({ sort })))), element("tbody", {}, ...body))]);
  }

  /** The chosen function: who called it, and how long its calls took. */
  detail() {
    const { trace, state: { chosen, window: range } } = this;
    its("detail").hidden = chosen === null;
    if (chosen === null) return;
    const lines = trace.histogram(chosen, range);
    const callers = trace.head.report.functions[trace.head.numbers.indexOf(chosen)]?.callers ?? [];
    its("chosen").textContent = trace.labels[chosen].name;
    its("called-from").textContent = callers.map(({ function: name, calls }) => `${grouped(calls)} calls from ${name}`).join(" · ");
    const returned = lines.reduce((sum, line) => sum + line.calls, 0);
    its("returned").textContent = `${grouped(returned)} calls that returned${range === null ? "" : ", of those that began in the selected range"}, by duration`;
    const most = lines.reduce((largest, line) => Math.max(largest, line.calls), 1);
    const body = lines.map(({ from, to, calls }) => {
      const bar = element("i");
      bar.style.width = `${(calls / most) * 100}%`;
      const texts = [`${duration(from)} - ${duration(to)}`, grouped(calls)].map((textContent) => element("td", { textContent }));
      return element("tr", {}, ...texts, element("td", { className: "name" }, bar));
    });
    its("histogram").replaceChildren(element("table", { className: "functions" },
      element("thead", {}, element("tr", {}, ...headsOf([[null, "duration"], [null, "calls"], [null, ""]], "", null))), element("tbody", {}, ...body)));
  }

  key(event) {
    if (event.altKey || ((event.ctrlKey || event.metaKey) && event.key !== "Escape")) return;
    if (event.key === "Escape") this.back();
    else if (event.target.tagName === "INPUT") return;
    else if (event.target === its("tracks") && this.lanes?.key(event)) event.preventDefault();
    else if (event.key === "d") its("theme").click();
    else if (event.key === "w") this.set({ window: null });
    else if (event.key === "?") its("help").showModal();
    else if (event.key === "/") {
      event.preventDefault();
      its("query").focus();
    }
  }

  /** Undoes one thing: the nearest first. */
  back() {
    const { state } = this;
    if (its("help").open) return;
    if (state.query !== "") this.set({ query: "" });
    else if (state.chosen !== null) this.set({ chosen: null });
    else if (state.window) this.set({ window: null });
    else if (state.zoom) this.set({ zoom: null });
  }
}

async function startTrace() {
  const data = its("data");
  const bytes = await inflate(data.textContent);
  data.remove();
  window.unikprof = new TracePage(new Traced(decode(bytes)));
}

function failTrace(error) {
  its("failure").hidden = false;
  its("failure").textContent = `The page's data cannot be shown: ${error.message}. The file may be incomplete, or the browser cannot inflate data: ` +
    "it takes Chrome 93, Firefox 113, Safari 16.4 or later. Write it again with unikprof-client report.";
}

if (typeof document !== "undefined") startTrace().catch(failTrace);
