// The page: what is chosen, and what follows from it.
import { analysisPane } from "./analysis.js";
import { callTree } from "./calls.js";
import { LEGENDS, MATCH, MERGED, Palette, UNCHECKED, WAYS, changeColor, waysOf } from "./colors.js";
import { Flame, textOfFolded, trunk } from "./flame.js";
import { amount, amountWithUnit, duration, grouped, moduleOf, moment, percent, seconds, size } from "./format.js";
import { Recording } from "./selection.js";
import { $, Shell, startPage } from "./shell.js";
import { COLORS, MERGES, VIEWS } from "./state.js";
import { NOTABLE, change, interval, significant, sumsOf, unplaced } from "./statistics.js";
import { element, ends, functionTable, legendEntry, matchesOf, placeOf, replaceList, rowsOf, showTip } from "./tables.js";
import { Tracks } from "./tracks.js";
import { callees, callers, carry, carryPart, derive } from "./tree.js";

/** The most rows of the table: at rest, and while a range is dragged. */
const MOST_ROWS = 2000;
const ROWS_MOVING = 60;
/** The most callees of one row of the call tree, likewise. */
const MOST_CALLS = 200;
const CALLS_MOVING = 20;
/** The most names in a tooltip. */
const MOST_NAMES = 12;
/** Of shorter ranges it is not known how many ticks are missing, in ns. */
const SHORT_RANGE = 5e9;
const TOO_SHORT = "not known of so short a range, as running time is told once a second";
/** How long a choice must rest before intervals are computed, in ms. */
const REST = 120;

/** How long the spans of a report's window took, in words. */
function lengths({ longer_ns: longer = null, shorter_ns: shorter = null }) {
  return [["at least", longer], ["less than", shorter]].map(([words, ns]) => (ns === null ? "" : ` of ${words} ${duration(ns)}`)).join("");
}

const VIEW_NAMES = {
  icicle: "Icicle",
  flame: "Flame graph",
  left: "Left heavy",
  tree: "Call tree",
  sandwich: "Sandwich",
  table: "Table",
};

const KEYS = [
  ["1 to 6", "the views"],
  ["/", "search"],
  ["r", "collapse recursion"],
  ["d", "light or dark"],
  ["w", "the whole recording"],
  ["Esc", "back: menu, search, zoom, unfolded frames, hidden functions, range"],
  ["arrows, Enter", "in a graph: move, zoom"],
  ["s, f, h, z", "the chosen cell: sandwich, focus, hide, zoom"],
  ["arrows, +, -", "in the time tracks: move, zoom"],
  ["Shift+arrows", "in the time tracks: move the selected range"],
  ["Enter, b", "in the time tracks: select what is shown, or select it as the base of a comparison"],
  ["drag, Ctrl+drag, Shift+drag", "in the time tracks: select a range, select the base of a comparison, move"],
  ["click, right click", "a cell: zoom or unfold, its menu; a double click in the time tracks: show all"],
  ["arrows, Enter", "in the call tree: move, open and close; callers and callees"],
];

/** What refers to nodes of the shown tree, where another one is shown. */
const OTHER_TREE = { node: 0, open: null };

class Page extends Shell {
  constructor(recording) {
    super("total");
    this.recording = recording;
    const found = recording.head.report.analysis.findings.flatMap(({ functions }) => functions);
    this.found = found.map((name) => recording.labels.findIndex((each) => each.name === name)).filter((label) => label >= 0);
    this.read();
    this.trees = new Map();
    this.selections = new Map();
    const on = (part) => ({
      onClick: (cell, event) => {
        // The function that is chosen in a sandwich is in its middle.
        this.graph.pin(this.state.view === "sandwich" ? 1 : cell.node, event);
        this.zoom(cell, part());
      },
      onHover: (cell, event) => this.tipOfCell(cell, event, part()),
      onMenu: (cell, event) => this.openMenu(cell, event, part()),
    });
    this.graph = new Flame($("graph"), on(() => this.shownGraph));
    this.callersGraph = new Flame($("callers"), on(() => this.shownCallers));
    this.describe();
    this.listen();
    this.update();
  }

  /** Leaves out what the address names and the recording does not have. */
  correct() {
    const { state, recording } = this;
    this.keepRanges(recording.time, ["window", "base", "zoom"]);
    if (!recording.time || !recording.spanNames().some(([id]) => id === state.span)) state.span = null;
    if (!(recording.time?.recordings[state.recording])) state.recording = null;
    if (state.vcpus && !recording.vcpus.some((vcpu) => state.vcpus.has(vcpu))) state.vcpus = null;
    const isLabel = (label) => label < recording.labels.length;
    state.hide = state.hide.filter(isLabel);
    for (const key of ["chosen", "focus"]) if (state[key] !== null && !isLabel(state[key])) state[key] = null;
  }

  /** What does not change with a choice. */
  describe() {
    const { report, started } = this.recording.head;
    const info = report.recording;
    const title = [info.guest_name || "guest", info.name].filter(Boolean).join(": ");
    $("title").textContent = title;
    document.title = `${title} - unikprof`;
    const rate = info.mode === "off-cpu" ? "measured"
      : info.interval_bytes ? `every ${size(info.interval_bytes)}`
      : info.rate_hz === null ? "unknown rate" : `${info.rate_hz.toFixed(0)} Hz`;
    const filters = [
      report.filter.focus === null ? "" : `only stacks that match ${report.filter.focus}`,
      report.filter.ignore === null ? "" : `without stacks that match ${report.filter.ignore}`,
      report.window?.inside ? `inside spans ${report.window.inside}${lengths(report.window)}` : "",
      report.merged ? `${report.merged.files} files, ${report.merged.gaps.length} gaps` : "",
    ];
    $("about").textContent = [
      `mode ${info.mode}`, rate, `${duration(info.elapsed_ns)} from ${started ?? "an unknown date"}`,
      info.architecture, `agent ${info.agent_version || "of unknown version"}`, ...filters,
    ].filter(Boolean).join(" · ");
    const isNews = (text) => !report.analysis.findings.some(({ finding }) => text.startsWith(finding));
    this.showWarnings(report.warnings.filter(isNews));
    $("analysis").append(...analysisPane(report.analysis, this.recording.labels, {
      onWindow: this.recording.time && ((window) => this.set({ window, base: null, zoom: null })),
      onName: (label) => this.select(label),
    }));
    this.addViews(VIEWS.map((view) => [view, VIEW_NAMES[view]]));
    const options = (id, pairs) => $(id).append(...pairs.map(([value, textContent]) => element("option", { value, textContent })));
    $("vcpu-list").append(...this.recording.vcpus.map((vcpu) =>
      element("label", {}, element("input", { type: "checkbox", value: String(vcpu) }), ` ${vcpu}`)));
    options("span", [["", "all"], ...(this.recording.spans ? this.recording.spanNames() : [])]);
    const recordings = this.recording.time?.recordings ?? [];
    $("recordings").hidden = recordings.length < 2;
    options("recording", recordings.map(({ name, mode, period_ns: period, from_ns: from, to_ns: to, ticks }, at) => [at === 0 ? "" : at, at === 0
      ? `${recordings.some((other) => other.ticks === null) ? "all" : name} (the file's)`
      : `${name}, ${moment(from)} to ${moment(to)}${ticks === null || !mode ? "" : `, ${mode}, ${(1e9 / period).toFixed(0)} Hz`}`]));
    options("merge", MERGES.map((merge) => [merge, merge]));
    options("color", COLORS.map((color) => [color, color]));
    this.explainKeys(KEYS);
    const isTimed = this.recording.time !== null && this.recording.time.to_ns > this.recording.time.from_ns;
    if (isTimed) {
      this.tracks = new Tracks($("track"), $("overlay"), {
        onRange: (kind, range) => this.set({ [kind]: range }),
        onZoom: (zoom) => this.set({ zoom }),
        onHover: (lines, event) => showTip($("tip"), lines, event),
      });
    } else {
      $("tracks").hidden = true;
      $("no-time").hidden = false;
      $("no-time").textContent = this.recording.head.report.recording.interval_bytes
        ? "A recording of allocations has no times, and so no time tracks and ranges."
        : "The recording has counts without times: the agent had no ring, or nothing was recorded in it. " +
          "Give the agent memory for a ring to see time tracks and to select ranges.";
      for (const id of ["span", "from", "to", "clear"]) $(id).disabled = true;
    }
  }

  listen() {
    super.listen();
    $("vcpu-list").onchange = () => {
      const chosen = this.vcpuBoxes().filter((box) => box.checked).map((box) => Number(box.value));
      // None is no choice.
      this.set({ vcpus: chosen.length === 0 ? null : new Set(chosen) });
    };
    $("span").onchange = (event) => this.set({ span: event.target.value === "" ? null : Number(event.target.value) });
    $("recording").onchange = (event) => this.set({ recording: event.target.value === "" ? null : Number(event.target.value) });
    $("merge").onchange = (event) => this.set({ merge: event.target.value, ...OTHER_TREE });
    $("color").onchange = (event) => this.set({ color: event.target.value });
    $("collapse").onchange = (event) => this.set({ collapse: event.target.checked, ...OTHER_TREE });
    $("clear").onclick = () => this.set({ window: null, base: null });
    for (const id of ["from", "to"]) $(id).onchange = () => this.enterRange();
    document.addEventListener("click", (event) => {
      if (!$("menu").contains(event.target)) $("menu").hidden = true;
      if (!$("vcpus").contains(event.target)) $("vcpus").open = false;
    });
    window.addEventListener("beforeprint", () => this.print(true));
    window.addEventListener("afterprint", () => this.print(false));
  }

  print(isPrinting) {
    this.isPrinting = isPrinting;
    this.draw();
  }

  /** Draws in the next frame, however often it is asked for. */
  update() {
    document.documentElement.dataset.draws = "";
    if (this.waiting) return;
    this.waiting = requestAnimationFrame(() => {
      this.waiting = null;
      this.draw();
      clearTimeout(this.resting);
      this.resting = setTimeout(() => this.rest(), REST);
    });
  }

  /** What is done once a choice rests: the address, and what takes longer. */
  rest() {
    if (this.tracks?.drag) {
      // A pause of the hand is not the end.
      this.resting = setTimeout(() => this.rest(), REST);
      return;
    }
    this.keepAddress();
    this.drawList(true);
    this.judgeGraphs();
    if (this.showsSelected) for (const part of [$("profile"), $("list").querySelector("[aria-current]")]) part?.scrollIntoView({ block: "nearest" });
    this.showsSelected = false;
    if (!this.waiting) delete document.documentElement.dataset.draws;
    this.finish();
  }

  /** The chosen range of time, or the whole recording. */
  shownRange() {
    const { from_ns: from, to_ns: to } = this.recording.time;
    return this.state.window ?? [from, to];
  }

  enterRange() {
    const { from_ns: first, to_ns: last } = this.recording.time;
    const [from, to] = this.shownRange();
    // The field shows a rounded time: the exact one is kept until another is entered.
    const read = (id, shown, otherwise) => {
      if ($(id).value === seconds(shown)) return shown;
      const entered = Number.parseFloat($(id).value);
      return Number.isFinite(entered) ? Math.round(entered * 1e9) : otherwise;
    };
    const clamp = (at) => Math.min(Math.max(at, first), last);
    const range = [clamp(read("from", from, first)), clamp(read("to", to, last))];
    this.set({ window: range[0] < range[1] ? range : null });
  }

  /** The tree with the chosen changes, and the way to it from the recording's. */
  derived() {
    const { hide, collapse, merge } = this.state;
    const key = `${hide}|${collapse}|${merge}`;
    if (!this.trees.has(key)) {
      if (this.trees.size > 4) this.trees.clear();
      this.trees.set(key, this.derive());
    }
    return this.trees.get(key);
  }

  derive() {
    const { hide, collapse, merge } = this.state;
    const { tree, labels } = this.recording;
    if (hide.length === 0 && !collapse && merge === "function") return { tree, to: null, labels };
    const all = merge === "function" ? [...labels] : [];
    const known = new Map();
    const rename = labels.map((label, at) => {
      if (hide.includes(at)) return -1;
      if (merge === "function") return at;
      const isMarked = label.kind === "special";
      const name = isMarked ? label.name : merge === "image" ? (label.image ?? "[no image]") : moduleOf(label.name);
      if (!known.has(name)) {
        known.set(name, all.length);
        all.push({ name, kind: label.kind, image: label.image, file: null, line: 0 });
      }
      return known.get(name);
    });
    const hidden = all.length;
    all.push({ name: "[hidden]", kind: "special", image: null, file: null, line: 0 });
    // Frames of one module that call each other are one.
    const made = derive(tree, rename, collapse || merge !== "function", hidden, all.length);
    return { ...made, labels: all };
  }

  selection(window) {
    const { vcpus, span, recording } = this.state;
    const key = `${window}|${vcpus && [...vcpus]}|${span}|${recording}`;
    const found = this.selections.get(key) ?? this.recording.select({ window: this.recording.within(window), vcpus, span });
    // The oldest go first. A base stays while a range is dragged.
    this.selections.delete(key);
    this.selections.set(key, found);
    if (this.selections.size > 4) this.selections.delete(this.selections.keys().next().value);
    return found;
  }

  /** Counts of a selection on the shown tree. */
  counts(selection, model) {
    if (model.to === null && !model.focused) return { own: selection.own, total: this.recording.totals(selection) };
    return this.nodeCounts(selection.own, model);
  }

  nodeCounts(base, model) {
    let own = model.to === null ? base : carry(base, model.to, model.tree.length);
    if (model.focused) {
      own = own.slice();
      for (let node = 0; node < own.length; node += 1) if (model.focused[node] === 0) own[node] = 0;
    }
    return { own, total: model.tree.totals(own) };
  }

  model() {
    const derived = this.derived();
    const focus = this.state.focus;
    if (focus === null || this.state.merge !== "function") return { ...derived, focused: null };
    return { ...derived, focused: derived.tree.below(focus) };
  }

  draw() {
    const { state, recording } = this;
    this.showControls();
    recording.choose(state.recording);
    this.shown = this.selection(state.window);
    this.baseShown = state.base ? this.selection(state.base) : null;
    this.shownModel = this.model();
    if (this.tracks) this.tracks.show(recording, state);
    this.drawControls();
    this.drawAccounting();
    this.drawProfile();
    performance.mark("drawn");
  }

  drawControls() {
    const { state, recording } = this;
    for (const box of this.vcpuBoxes()) box.checked = state.vcpus?.has(Number(box.value)) ?? false;
    $("vcpus-shown").textContent = state.vcpus === null ? "all" : [...state.vcpus].sort((a, b) => a - b).join(", ");
    $("span").value = state.span === null ? "" : String(state.span);
    $("recording").value = state.recording ?? "";
    $("merge").value = state.merge;
    $("color").value = state.color;
    $("color").disabled = state.base !== null;
    $("collapse").checked = state.collapse;
    if (recording.time) {
      const [from, to] = this.shownRange();
      for (const [id, at] of [["from", from], ["to", to]]) if (document.activeElement !== $(id)) $(id).value = seconds(at);
    }
    const undo = (text, changes) => element("button", { type: "button", textContent: `${text} ×`, onclick: () => this.set(changes) });
    const name = (label) => recording.labels[label].name.slice(-40);
    $("changes").replaceChildren(
      ...state.hide.map((label) => undo(`hidden: ${name(label)}`, { hide: state.hide.filter((each) => each !== label), ...OTHER_TREE })),
      ...(state.focus === null ? [] : [undo(`focus: ${name(state.focus)}`, { focus: null, node: 0 })]),
      ...(state.base === null ? [] : [undo(`base: ${moment(state.base[0])} to ${moment(state.base[1])}`, { base: null })]),
      ...(state.chosen === null ? [] : [undo(`selected: ${name(state.chosen)}`, { chosen: null })]),
      ...(state.node === 0 ? [] : [undo("zoom", { node: 0 })]),
      ...(state.unfold ? [undo("unfolded", { unfold: false })] : []),
    );
    const isGraph = !["tree", "table"].includes(state.view) && !state.base;
    const colors = isGraph ? (LEGENDS[state.color] ?? WAYS) : [];
    $("ways").replaceChildren(...colors.map(([color, text]) => legendEntry("", text, color)));
    const legend = [["run", "on CPU"], ["stolen", "stolen"], ["blocked", "blocked"], ["masked", "masked"], ["lost", "lost or overflow"]];
    if (!recording.time) legend.length = 0;
    if (state.base) legend.push(["more", "more than base"], ["less", "less than base (pale: may be chance)"]);
    $("legend").replaceChildren(...legend.map(([kind, text]) => legendEntry(kind, text)));
  }

  vcpuBoxes() {
    return [...$("vcpu-list").querySelectorAll("input")];
  }

  /** How the time of the shown vCPUs was spent, in ns: running, runnable, blocked, offline. */
  timeSpent() {
    const { isWhole, shown, from, to, window } = this.shown;
    const parts = isWhole
      ? this.recording.report.vcpus.filter(({ vcpu }) => shown.includes(vcpu)).map(({ runstate: r }) =>
          r.running_ns === null ? null : [r.running_ns, r.runnable_ns, r.blocked_ns, r.offline_ns])
      : this.state.span !== null || window === null ? [] : shown.map((vcpu) => this.recording.timesOf(vcpu).ofWindow(from, to));
    const known = parts.filter((part) => part !== null);
    if (known.length === 0) return null;
    return [0, 1, 2, 3].map((at) => (known.some((part) => part[at] === null) ? null : known.reduce((sum, part) => sum + part[at], 0)));
  }

  drawAccounting() {
    const { sum, recorded, isWhole, shown } = this.shown;
    const { unit } = this.recording;
    const time = this.timeSpent();
    const names = ["running", "stolen", "blocked", "offline"];
    $("bar").replaceChildren();
    if (time === null) {
      $("bar").append(element("span", { textContent: "How the vCPUs' time was spent is not known here." }));
    } else {
      const whole = time.reduce((all, ns) => all + (ns ?? 0), 0) || 1;
      time.forEach((ns, at) => {
        if (ns === null) return;
        const part = element("span", { className: names[at], textContent: `${names[at]} ${percent(ns / whole)}`, title: `${names[at]} ${duration(ns)}` });
        part.classList.toggle("narrow", ns < whole / 25);
        part.style.flex = `${ns / whole} 0 0`;
        if (ns > 0) $("bar").append(part);
      });
      if (time[1] === null) $("bar").append(element("span", { textContent: "stolen unknown" }));
    }
    const isAll = isWhole && shown.length === this.recording.report.vcpus.length;
    this.sumUpWarnings(isAll ? "" : " about the whole recording");
    $("found-in").hidden = isAll;
    $("bar").setAttribute("aria-label", $("bar").textContent);
    const ticks = ["recorded", "aged", "overflow", "lost", "masked", "idle"].filter((name) => sum[name] > 0 || name === "recorded");
    const isHeap = Boolean(this.recording.head.report.recording.interval_bytes);
    const isSampled = this.recording.mode !== "off-cpu";
    const facts = [
      ...(!isSampled ? [] : [[isHeap ? "samples" : "ticks", `${grouped(sum.ticks)} = ${ticks.map((name) => `${name} ${grouped(sum[name])}`).join(" + ")}`]]),
      ...(isHeap || !isSampled ? [] : [["missing", this.missingWords(sum.missing, isWhole)]]),
      ["shares are of", amountWithUnit(recorded, unit)],
    ];
    const of = sum.recorded + sum.aged;
    const part = (count) => `${grouped(count)} (${percent(count / (of || 1))})`;
    for (const name of ["late", "truncated", "broken"]) if (sum[name] > 0) facts.push([name, unit === "samples" ? part(sum[name]) : amount(sum[name], unit)]);
    if (sum.blocks > 0) facts.push(["waits", `${grouped(sum.blocks)}, blocked ${amount(sum.blocked, unit)}`]);
    if (isWhole && of > 0) {
      const ways = [["table", sum.by_table], ["instructions", sum.by_bytes], ["frame pointer", sum.by_frame_pointer]];
      if (ways.some(([, count]) => count > 0)) facts.push(["callers by", ways.map(([name, count]) => `${name} ${percent(count / of)}`).join(", ")]);
      const { cost_share: cost, vcpus: stats } = this.recording.report;
      const isEstimated = stats.some((vcpu) => vcpu.cost?.deliveries > 0 && vcpu.cost.delivery_ns !== null);
      const how = isEstimated ? ", with an estimate of the timer's delivery and arming" : "";
      if (cost !== null) facts.push(["sampling overhead", `${percent(cost)} of running time${how}`]);
    }
    const where = this.where();
    $("account").textContent = `${where && `${where.trim()}: `}${facts.slice(0, 2).map(([name, text]) => `${name} ${text}`).join("; ")}`;
    $("facts").replaceChildren(...facts.map(([name, text]) =>
      element("div", { "data-fact": name }, element("dt", { textContent: name }), element("dd", { textContent: text }))));
  }

  /** Running time is told about once a second, so that it is not known how much a short range lacks. */
  missingWords(missing, isWhole) {
    const [from, to] = this.recording.time ? this.shownRange() : [0, 0];
    if (!isWhole && to - from < SHORT_RANGE) return TOO_SHORT;
    return missing === null ? "-" : grouped(missing);
  }

  /** Which part of the recording is shown, in words. */
  where() {
    const { state: { window, vcpus, span, recording: chosen }, recording: { head, time } } = this;
    return [
      window ? ` from ${moment(window[0])} to ${moment(window[1])} (${duration(window[1] - window[0])})` : "",
      vcpus === null ? "" : ` on vCPU ${$("vcpus-shown").textContent}`,
      span === null ? "" : ` inside ${head.names[span]}`,
      chosen === null ? "" : ` of ${time.recordings[chosen].name}`,
    ].join("");
  }

  /** The function that is selected, if there are functions. */
  selected() {
    return this.state.merge === "function" ? this.state.chosen : null;
  }

  /** Labels that are never folded: what findings are about, and what is selected. */
  kept() {
    return this.state.merge === "function" ? new Set([...this.found, this.state.chosen]) : new Set();
  }

  drawProfile() {
    const { state, recording } = this;
    const model = this.shownModel;
    const now = this.counts(this.shown, model);
    this.now = now;
    this.certain = null;
    this.matches = matchesOf(state.query, model.labels);
    const shown = now.total[0];
    const { recorded } = this.shown;
    const { unit } = recording;
    const status = $("shown");
    status.replaceChildren(element("b", { id: "count", textContent: amountWithUnit(shown, unit) }));
    if (shown !== recorded) status.append(` of ${amountWithUnit(recorded, unit)} (${percent(shown / (recorded || 1))})`);
    status.append(this.where());
    if (!this.shown.isWhole) status.append("; from the ring");
    if (state.base) {
      status.append(`, compared with base ${moment(state.base[0])} to ${moment(state.base[1])} (${amountWithUnit(this.baseShown.recorded, unit)}): ` +
        "shares of the two ranges are compared; widths are the mean of both");
    }
    const isEmpty = shown === 0 && !(this.baseShown && this.baseShown.recorded > 0);
    if (isEmpty) status.append(recorded === 0 ? ": nothing was recorded here" : ": the filters leave nothing out of what was recorded");
    this.drawMatched(now, model);
    const { view } = state;
    const selected = this.selected();
    if (selected !== null && view !== "sandwich") {
      const count = model.tree.matched(now.total, Uint8Array.from(model.labels, (_, label) => Number(label === selected)));
      status.append(`; selected ${model.labels[selected].name}: ${amount(count, unit)} (${percent(count / (recorded || 1))})`);
    }
    const isGraph = !isEmpty && ["icicle", "flame", "left", "sandwich"].includes(view);
    $("graph-part").hidden = !isGraph;
    $("callers-part").hidden = !(isGraph && view === "sandwich");
    $("list").hidden = isGraph || isEmpty;
    if (isEmpty) return;
    if (view === "sandwich") this.drawSandwich(model, now);
    else if (isGraph) this.drawGraph(model, now);
    this.drawList(false);
  }

  drawMatched(now, model) {
    const { query } = this.state;
    if (query === "") $("matched").textContent = "";
    else if (this.matches === null) $("matched").textContent = "not a regular expression";
    else {
      const matched = model.tree.matched(now.total, this.matches);
      $("matched").textContent = `matched ${amount(matched, this.recording.unit)}, ${percent(matched / (this.shown.recorded || 1))}`;
      $("matched").style.borderBottom = `3px solid ${MATCH}`;
    }
  }

  drawGraph(model, now) {
    const { state } = this;
    const base = this.baseShown ? this.counts(this.baseShown, model) : null;
    const drawn = base ? this.mean(now, base) : now;
    if (state.node >= model.tree.length || !(drawn.total[state.node] > 0)) state.node = 0;
    this.shownGraph = { ...model, ...now, base };
    this.graph.show(this.look(model, drawn, {
      order: state.view === "left" ? "weight" : "name", root: state.node, upwards: state.view === "flame", folds: !state.unfold, keep: this.kept(),
    }, now, base));
  }

  /** Widths where two ranges are compared: the mean of the shares, so that what is gone is seen too. */
  mean(now, base) {
    const [a, b] = [this.shown.recorded || 1, this.baseShown.recorded || 1];
    const total = new Float64Array(now.total.length);
    for (let node = 0; node < total.length; node += 1) total[node] = now.total[node] / a / 2 + base.total[node] / b / 2;
    return { total };
  }

  /** How the caller of a node was found in most samples of the recording; of a function in most of its calls. */
  wayOf(model) {
    const { recording, state } = this;
    // The ways are those of the file's own recording; another one may have been made otherwise.
    if (state.recording !== null) return () => UNCHECKED;
    if (model.to === null) return (node) => recording.ways[node];
    const { tree, labels, to } = this.shownModel;
    const byLabel = model.to === undefined;
    if (this.waysFor !== tree || this.waysByLabel !== byLabel) {
      const total = recording.tree.totals(recording.select({ window: null, vcpus: null, span: null }).own);
      const shown = to ?? Int32Array.from(tree.label, (_, node) => node);
      const groups = byLabel ? shown.map((node) => tree.label[node]) : shown;
      Object.assign(this, { waysFor: tree, waysByLabel: byLabel, ways: waysOf(recording.ways, total, groups, byLabel ? labels.length : tree.length) });
    }
    return byLabel ? (node) => this.ways[model.tree.label[node]] : (node) => this.ways[node];
  }

  look(model, drawn, options, now, base) {
    const { state } = this;
    const { labels, tree } = model;
    const key = `${state.color}|${state.merge}|${labels.length}`;
    if (this.paletteKey !== key) {
      this.palette = new Palette(labels, state.color);
      this.paletteKey = key;
    }
    const { palette } = this;
    const wayOf = state.color === "caller" ? this.wayOf(model) : null;
    const [a, b] = [this.baseShown?.recorded || 1, this.shown.recorded || 1];
    const color = (node, isCertain) => {
      if (base) return changeColor(base.total[node] / a, now.total[node] / b, isCertain);
      if (node === 0) return "#ddd8cc";
      if (labels[tree.label[node]].kind === "folded") return MERGED;
      return wayOf ? WAYS[wayOf(node)][0] : palette.color(tree.label[node]);
    };
    const name = (node) => (node === 0 ? "all" : labels[tree.label[node]].name);
    return { tree, total: drawn.total, color, name, matches: this.matches, selected: this.selected(), ...options };
  }

  drawSandwich(model, now) {
    const { labels, tree } = model;
    let label = this.state.merge === "function" ? this.state.chosen : null;
    if (label === null) {
      // That of the first finding, or the one with most time of its own in what is shown first: another range does not
      // show another function.
      if (this.firstChosen?.of !== tree) {
        const first = this.state.merge === "function" ? this.found[0] : undefined;
        const sums = first === undefined ? tree.functions(now.own, now.total, labels.length) : null;
        const order = (label) => [labels[label].kind !== "special", sums.own[label]];
        const isMore = ([a, b], [c, d]) => (a === c ? b > d : a);
        const most = () => sums.own.reduce((best, _, at) => (isMore(order(at), order(best)) ? at : best), 0);
        this.firstChosen = { of: tree, label: first ?? most() };
      }
      ({ label } = this.firstChosen);
    }
    const base = this.baseShown ? this.counts(this.baseShown, model) : null;
    const folded = this.state.unfold ? [] : trunk(tree, now.total, 0, new Set([label]));
    // But for what is folded, the trees do not depend on what is counted.
    if (this.sandwich?.of !== tree || this.sandwich.label !== label || String(this.sandwich.folded) !== String(folded)) {
      this.sandwich = { of: tree, label, folded, trees: [callers, callees].map((make) => make(tree, label, labels.length, folded)) };
    }
    const folds = { name: folded.length > 0 && textOfFolded(folded, (node) => labels[tree.label[node]].name), kind: "folded", image: null, file: null, line: 0 };
    const [above, below] = this.sandwich.trees.map((made) => {
      const [shown, before] = (base ? [now, base] : [now]).map((counts) => {
        const own = carryPart(counts.own, made);
        return { own, total: made.tree.totals(own) };
      });
      return { tree: made.tree, to: undefined, cells: made, labels: [...labels, folds], ...shown, base: before ?? null };
    });
    Object.assign(this, { shownCallers: above, shownGraph: below });
    // It may take another line, above the graphs.
    const sum = this.shownGraph.total[0];
    $("shown").append(`; callers of ${labels[label].name} above, callees below: ${amount(sum, this.recording.unit)} (${percent(sum / (this.shown.recorded || 1))})`);
    if (base) $("shown").append(`; in the base ${percent(this.shownGraph.base.total[0] / (this.baseShown.recorded || 1))}`);
    const show = (graph, shown, upwards) => {
      const options = { order: "weight", root: shown.tree.first[0], upwards, skip: upwards ? 2 : 1 };
      const drawn = base ? this.mean(shown, shown.base) : shown;
      graph.show(this.look(shown, drawn, options, shown, shown.base));
    };
    const isPinned = Boolean(this.graph.pinned);
    $("callers-part").hidden = above.tree.length < 3;
    show(this.callersGraph, above, true);
    // What calls it is at the bottom.
    if (this.scrolledTo !== label) $("callers-part").scrollTop = $("callers-part").scrollHeight;
    show(this.graph, below, false);
    if (this.scrolledTo !== label && !isPinned) this.callersGraph.showBase();
    this.scrolledTo = label;
  }

  /** The table and the call tree; intervals once a choice rests. */
  drawList(withIntervals) {
    const { view } = this.state;
    if ($("list").hidden || !this.now) return;
    if (view === "tree") this.drawTree(withIntervals);
    if (view === "table") this.drawTable(withIntervals);
  }

  drawTree(withAll) {
    const { labels, tree } = this.shownModel;
    const base = this.baseShown && { ...this.counts(this.baseShown, this.shownModel), recorded: this.baseShown.recorded || 1 };
    replaceList($("list"), callTree({
      tree, ...this.now, recorded: this.shown.recorded || 1, unit: this.recording.unit,
      name: (node) => labels[tree.label[node]].name,
      matches: this.matches,
      selected: this.selected(),
      base,
      most: withAll ? MOST_CALLS : CALLS_MOVING,
      open: this.state.open,
      folded: this.state.unfold ? [] : trunk(tree, this.now.total, 0, this.kept()),
      onUnfold: () => this.set({ unfold: true, open: null }),
      onOpen: (open) => this.set({ open }),
      onChoose: (label) => this.choose(label),
    }));
  }

  drawTable(withIntervals) {
    const { labels, tree } = this.shownModel;
    const { unit } = this.recording;
    const recorded = this.shown.recorded || 1;
    const sums = tree.functions(this.now.own, this.now.total, labels.length);
    const base = this.baseShown ? this.counts(this.baseShown, this.shownModel) : null;
    const baseSums = base ? tree.functions(base.own, base.total, labels.length) : null;
    const { rows: found, order } = rowsOf(sums, labels, this.state.sort, baseSums);
    let rows = this.matches ? found.filter((row) => this.matches[row.label]) : found;
    if (baseSums) {
      for (const row of rows) row.change = row.own / recorded - row.baseOwn / (this.baseShown.recorded || 1);
      if (withIntervals) this.judge(rows);
    }
    rows.sort(order);
    const shared = base || this.matches ? [] : this.sharedRows(rows);
    rows = rows.filter((row) => !shared.includes(row));
    const all = rows.length;
    rows = rows.slice(0, withIntervals ? MOST_ROWS : ROWS_MOVING);
    if (shared.length > 0) rows.unshift({ ...shared[0], text: `[${shared.length} functions that nearly all samples share]` });
    if (withIntervals && unit === "samples") this.addIntervals(rows);
    const table = functionTable({
      rows, recorded, unit, labels, sort: this.state.sort, selected: this.selected(), compares: base !== null,
      onSort: (sort) => this.set({ sort }),
      onChoose: ({ text, label }) => (text ? this.set({ unfold: true }) : this.choose(label)),
    });
    const rest = all > rows.length ? [element("p", { textContent: `${grouped(all - rows.length)} more functions; search to see them` })] : [];
    replaceList($("list"), [table, ...rest, ...this.longRun()]);
  }

  /** The rows that are one, as in the text, the outermost function first. */
  sharedRows(rows) {
    if (this.state.unfold || this.state.merge !== "function") return [];
    const { shared } = this.recording.head;
    const found = rows.filter(({ label }) => shared.includes(label) && label !== this.state.chosen);
    return found.length < 2 ? [] : found.sort((a, b) => shared.indexOf(a.label) - shared.indexOf(b.label));
  }

  /** How far another recording may differ, if by more than the intervals of this one. */
  longRun() {
    const { long_run: found } = this.recording.head.report;
    if (!found || !this.shown.isWhole) return [];
    const [low, high] = found.interval.map((share) => (share * 100).toFixed(1));
    const what = `${found.function}${found.of === "total" ? " with what it calls" : ""}`;
    return [element("p", { textContent: `another recording may differ by more: in the long run ${what} has ${low} to ${high} %` })];
  }

  /** The counts of labels in each part of the time. */
  partsOf(selection) {
    const { tree, labels } = this.shownModel;
    return this.recording.byParts(selection, (base) => {
      const { own, total } = this.nodeCounts(base, this.shownModel);
      return tree.functions(own, total, labels.length);
    });
  }

  addIntervals(rows) {
    const { recorded, unknown, late, whole, cut } = this.certainty();
    const { total: inWhole } = this.shownModel.tree.functions(whole.own, whole.total, late.length);
    for (const row of rows) {
      row.ownInterval = interval(row.own, recorded, unknown, 0);
      row.totalInterval = interval(row.total, recorded, unknown, late[row.label], cut - row.total + inWhole[row.label]);
    }
  }

  /**
   * What intervals of the shown part are computed with: samples without a known place, the mark of late ones, these by label,
   * the counts of whole stacks, and how many samples are of others. Kept until another part is shown: each move of the pointer asks.
   */
  certainty() {
    if (this.certain) return this.certain;
    const { tree, labels } = this.shownModel;
    const { counters, recorded } = this.shown;
    const unknown = unplaced(counters, this.recording.mode, recorded);
    const late = new Float64Array(labels.length);
    const mark = labels.findIndex((label) => label.kind === "special" && label.name === "[sample arrived late]");
    if (unknown && mark >= 0) {
      for (let node = 1; node < tree.length; node += 1) {
        if (tree.label[node] !== mark || this.now.own[node] === 0) continue;
        for (const label of new Set(tree.path(node))) late[label] += this.now.own[node];
      }
    }
    const whole = this.nodeCounts(this.recording.whole(this.shown.own), this.shownModel);
    return (this.certain = { recorded, unknown, mark, late, whole, cut: this.now.total[0] - whole.total[0] });
  }

  /** Which changes of self are more than chance explains. */
  judge(rows) {
    if (this.recording.unit !== "samples") return;
    const [now, base] = [this.partsOf(this.shown), this.partsOf(this.baseShown)];
    if (!now || !base) return;
    const counts = (of, label) => sumsOf(of.parts, of.results.map((result) => result.own[label]));
    // Only what has samples of its own can have changed.
    const tested = rows.filter((row) => row.own + row.baseOwn > 0);
    const found = tested.map((row) => change(counts(base, row.label), counts(now, row.label)));
    const isSignificant = significant(found.map(({ p }) => p));
    tested.forEach((row, at) => Object.assign(row, { changeInterval: found[at].interval, isSignificant: isSignificant[at] }));
  }

  /** Shows in the graphs which cells have another share than in the base, beyond chance. */
  judgeGraphs() {
    if (!this.baseShown || $("graph-part").hidden) return;
    const graphs = [[this.graph, this.shownGraph]];
    if (this.state.view === "sandwich") graphs.push([this.callersGraph, this.shownCallers]);
    for (const [graph, part] of graphs) {
      const nodes = graph.cells.filter((cell) => cell.node !== 0 && cell.merged === 0 && !cell.folded).map((cell) => cell.node);
      const cells = this.cellsAround(nodes, part);
      const [base, now] = [this.baseShown, this.shown].map((selection) => this.recording.sumsByCell(selection, cells));
      if (base === null || now === null) continue;
      const isCertain = significant(nodes.map((node) => change(base(cells.at[node]), now(cells.at[node])).p));
      graph.judge(new Set(nodes.filter((_, at) => isCertain[at])));
    }
  }

  /** Numbers these nodes of a part's tree as cells: where stacks that end in a node are counted, and what is around a cell. */
  cellsAround(nodes, part) {
    const isCell = new Uint8Array(part.tree.length);
    for (const node of nodes) isCell[node] = 1;
    const at = new Int32Array(part.tree.length);
    const parent = [0];
    for (let node = 1; node < at.length; node += 1) {
      at[node] = at[part.tree.parent[node]];
      if (isCell[node] === 0) continue;
      parent.push(at[node]);
      at[node] = parent.length - 1;
    }
    return { at, parent, to: this.cellsOf((shown) => at[part.cells ? part.cells.to[shown] : shown]) };
  }

  isFold(cell, part) {
    return Boolean(cell.folded) || part.labels[part.tree.label[cell.node]]?.kind === "folded";
  }

  zoom(cell, part) {
    if (this.isFold(cell, part)) this.set({ unfold: true });
    else if (this.state.view !== "sandwich") this.set({ node: cell.merged > 0 ? cell.parent : cell.node });
    else if (cell.merged === 0) this.choose(part.tree.label[cell.node]);
  }

  /** Selects a function in the view that is shown, and shows where it is. */
  select(label) {
    const { state } = this;
    Object.assign(state, { merge: "function", chosen: label, ...OTHER_TREE, hide: state.hide.filter((each) => each !== label) });
    this.showsSelected = state.view !== "sandwich";
    if (state.view === "tree") state.open = this.wayTo(label);
    this.update();
  }

  /** The nodes that are open where the call of a function that has most samples is seen. */
  wayTo(label) {
    const model = this.model();
    const { tree } = model;
    const { total } = this.counts(this.shown, model);
    const most = tree.label.reduce((best, of, node) => (of === label && total[node] > (total[best] ?? 0) ? node : best), -1);
    const open = new Set([0]);
    for (let at = tree.parent[most]; at > 0; at = tree.parent[at]) open.add(at);
    return open;
  }

  choose(label) {
    if (this.state.merge !== "function" || label === undefined || label < 0) return;
    this.set({ view: "sandwich", chosen: label });
  }

  actions(cell, part) {
    const label = cell.node === 0 || cell.merged > 0 || cell.folded ? -1 : part.tree.label[cell.node];
    const zoom = [this.isFold(cell, part) ? "Unfold (z)" : "Zoom (z)", "z", () => this.zoom(cell, part)];
    if (label < 0 || this.state.merge !== "function" || label >= this.recording.labels.length) return [zoom];
    return [
      zoom,
      ["Callers and callees (s)", "s", () => this.choose(label)],
      ["Focus: only stacks with it (f)", "f", () => this.set({ focus: label, node: 0 })],
      ["Hide it (h)", "h", () => this.set({ hide: [...new Set([...this.state.hide, label])], ...OTHER_TREE })],
    ];
  }

  openMenu(cell, event, part) {
    const menu = $("menu");
    menu.replaceChildren(...this.actions(cell, part).map(([textContent, , act]) => element("button", {
      type: "button", role: "menuitem", textContent, onclick: () => {
        menu.hidden = true;
        act();
      },
    })));
    menu.hidden = false;
    showTip($("tip"), null);
    menu.style.left = `${Math.min(event.clientX, innerWidth - 240)}px`;
    menu.style.top = `${Math.min(event.clientY, innerHeight - 140)}px`;
    menu.firstChild.focus();
  }

  tipOfCell(cell, event, part) {
    showTip($("tip"), cell && this.linesOf(cell, part), event);
  }

  /** What a cell stands for, in words. */
  linesOf(cell, part) {
    const { unit } = this.recording;
    const recorded = this.shown.recorded || 1;
    const { tree, labels } = part;
    if (cell.merged > 0) {
      const count = this.baseShown ? "" : `: ${amountWithUnit(cell.count, unit)}, ${percent(cell.count / recorded)}`;
      return [`${cell.merged} merged cells`, `each narrower than a pixel${count}`];
    }
    const total = part.total[cell.node];
    if (this.isFold(cell, part)) {
      const { tree: all, labels: named } = this.shownModel;
      const names = (cell.folded ?? this.sandwich.folded).map((node) => named[all.label[node]].name);
      return [`${names.length} frames that nearly all stacks have: click to unfold`, `total ${amountWithUnit(total, unit)}, ${percent(total / recorded)}`,
        ...names.slice(0, MOST_NAMES), ...(names.length > MOST_NAMES ? [`and ${names.length - MOST_NAMES} more`] : [])];
    }
    const lines = [cell.node === 0 ? "all" : labels[tree.label[cell.node]].name];
    const range = this.cellInterval(cell.node, total, part);
    lines.push(`total ${amountWithUnit(total, unit)}, ${percent(total / recorded)}${range ? `, 95 % interval ${ends(range)} %` : ""}`);
    if (cell.node !== 0) {
      // A caller's own samples are not those of stacks through the function.
      if (part !== this.shownCallers) lines.push(`self ${amount(part.own[cell.node], unit)}, ${percent(part.own[cell.node] / recorded)}`);
      const label = labels[tree.label[cell.node]];
      const place = placeOf(label);
      if (place) lines.push(`mostly at ${place}`);
      if (label.image) lines.push(label.image);
      if (this.state.color === "caller") lines.push(`caller, mostly: ${WAYS[this.wayOf(part)(cell.node)][1]}`);
    }
    if (part.base) lines.push(...this.cellChange(cell.node, total, part));
    return lines;
  }

  /** Whether the stacks that end in a node of the shown tree go through a cell of a part. */
  throughCell(node, part) {
    const inside = part.tree.inside(node);
    return (at) => inside[part.cells ? part.cells.to[at] : at] === 1;
  }

  /** By node of the recording, what `cellOf` gives for the node of the shown tree; 0 for stacks that are not shown. */
  cellsOf(cellOf) {
    const { to, focused } = this.shownModel;
    return Int32Array.from({ length: this.recording.tree.length }, (_, at) => {
      const shown = to === null ? at : to[at];
      return at === 0 || focused?.[shown] === 0 ? 0 : cellOf(shown);
    });
  }

  /** The counts of a cell in each part of the time; `null` where these are not known. */
  cellParts(node, part, selection) {
    if (this.recording.unit !== "samples" || node === 0) return null;
    const key = `${part === this.shownCallers}|${this.fragment()}|${selection.from}|${selection.to}|${node}`;
    if (this.cellKey !== key) {
      const goesThrough = this.throughCell(node, part);
      const to = this.cellsOf((at) => Number(goesThrough(at)));
      const found = this.recording.byParts(selection, (counts) => counts[1], { to, length: 2 });
      this.cellKey = key;
      this.cellFound = found && { parts: found.parts, counts: found.results };
    }
    return this.cellFound;
  }

  /** The interval of a cell's share. */
  cellInterval(node, total, part) {
    if (this.recording.unit !== "samples" || node === 0) return null;
    const { recorded, unknown, mark, whole, cut } = this.certainty();
    let [late, inWhole] = [0, 0];
    const { length, label } = this.shownModel.tree;
    if (unknown || cut > NOTABLE * recorded) {
      const goesThrough = this.throughCell(node, part);
      for (let at = 1; at < length; at += 1) {
        if (!goesThrough(at)) continue;
        inWhole += whole.own[at];
        if (label[at] === mark) late += this.now.own[at];
      }
    }
    // A cell of the whole tree that lies below a mark is nowhere else.
    return interval(total, recorded, unknown, late, part.cells || inWhole ? cut - total + inWhole : 0);
  }

  /** How the share of a cell changed from the base, in words. */
  cellChange(node, total, part) {
    const recorded = this.shown.recorded || 1;
    const base = part.base.total[node];
    const share = base / (this.baseShown.recorded || 1);
    const points = `${((total / recorded - share) * 100).toFixed(1)} points`;
    const now = this.cellParts(node, part, this.shown);
    const before = this.cellParts(node, part, this.baseShown);
    const sums = [before, now].map((found) => found && sumsOf(found.parts, found.counts));
    const found = now && before ? change(...sums) : null;
    const certain = !found?.interval ? "" : `, 95 % interval ${found.interval.map((end) => (end * 100).toFixed(1)).join(" to ")}`;
    const graph = part === this.shownCallers ? this.callersGraph : this.graph;
    const verdict = graph.certain?.has(node) ? "beyond chance" : "may be chance";
    return [`base ${amountWithUnit(base, this.recording.unit)}, ${percent(share)}`, `change ${points}${certain}`, verdict];
  }

  key(event) {
    if (event.altKey || ((event.ctrlKey || event.metaKey) && event.key !== "Escape")) return;
    const isTyping = ["INPUT", "SELECT"].includes(event.target.tagName) && event.target.type !== "checkbox";
    if (event.key === "Escape") this.back();
    else if (isTyping) return;
    else if (event.target === $("tracks") && this.tracks?.key(event)) event.preventDefault();
    else if (event.target === $("graph") && this.graphKey(event, this.graph, this.shownGraph)) event.preventDefault();
    else if (event.target === $("callers") && this.graphKey(event, this.callersGraph, this.shownCallers)) event.preventDefault();
    else if (event.key === "r") this.set({ collapse: !this.state.collapse, ...OTHER_TREE });
    else if (event.key === "w") this.set({ window: null, base: null });
    else this.commonKey(event);
  }

  /** Undoes one thing: the nearest first. */
  back() {
    const { state } = this;
    if (!$("menu").hidden) $("menu").hidden = true;
    else if ($("vcpus").open) $("vcpus").open = false;
    else if (document.activeElement === $("query") && state.query !== "") this.set({ query: "" });
    else if (state.node !== 0) this.set({ node: 0 });
    else if (state.focus !== null) this.set({ focus: null });
    else if (state.hide.length > 0) this.set({ hide: state.hide.slice(0, -1), ...OTHER_TREE });
    else if (state.unfold) this.set({ unfold: false });
    else if (state.base) this.set({ base: null });
    else if (state.window) this.set({ window: null });
    else if (state.zoom) this.set({ zoom: null });
    else if (state.chosen !== null) this.set({ chosen: null });
  }

  graphKey(event, graph, part) {
    if (event.key.startsWith("Arrow")) {
      const cell = graph.move(event.key);
      const box = event.target.getBoundingClientRect();
      this.tipOfCell(cell, { clientX: box.left + cell.x, clientY: box.top + graph.y(cell.row) }, part);
      return true;
    }
    const cell = graph.chosen;
    if (!cell) return false;
    const key = event.key === "Enter" ? "z" : event.key;
    const action = this.actions(cell, part).find(([, name]) => name === key);
    if (!action) return false;
    showTip($("tip"), null);
    action[2]();
    return true;
  }
}

if (typeof document !== "undefined") startPage((found) => new Page(new Recording(found)));
