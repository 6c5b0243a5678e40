// What the pages of files share: their state in the address, light and dark, common keys, and how they start.
import { decode, inflate } from "./decode.js";
import { fromFragment, toFragment } from "./state.js";
import { element } from "./tables.js";

/** The element with an id. */
export const $ = (id) => document.getElementById(id);

/** A page; one that extends it draws in `update`, and takes keys in `key`. */
export class Shell {
  /** `sort` is the order of functions where the address names none. */
  constructor(sort = "own") {
    this.firstSort = sort;
  }

  /** Takes the state from the address; `correct` leaves out what the file does not have. */
  read() {
    this.state = fromFragment(location.hash);
    if (!/(^|[#&])sort=/.test(location.hash)) this.state.sort = this.firstSort;
    this.correct();
  }

  /** Keeps ranges within a time; without one there are none. */
  keepRanges(time, keys) {
    for (const key of keys) {
      const range = time && this.state[key]?.map((at) => Math.min(Math.max(at, time.from_ns), time.to_ns));
      this.state[key] = range && range[0] < range[1] ? range : null;
    }
  }

  listen() {
    $("query").oninput = (event) => this.set({ query: event.target.value });
    $("theme").onclick = () => this.toggleTheme();
    if ($("help")) $("help-button").onclick = () => $("help").showModal();
    document.addEventListener("keydown", (event) => this.key(event));
    window.addEventListener("resize", () => this.update());
    window.addEventListener("hashchange", () => {
      if (location.hash.replace(/^#/, "") === this.fragment()) return;
      this.read();
      this.update();
    });
    window.addEventListener("beforeprint", () => {
      for (const details of document.querySelectorAll("#analysis details, #accounts, #cautions")) details.open = true;
    });
    matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => this.update());
  }

  /** Buttons for views, pairs of an id and a name. */
  addViews(views) {
    this.views = views;
    $("views").append(...views.map(([view, textContent]) => element("button", {
      type: "button", role: "tab", id: `view-${view}`, textContent, onclick: () => this.set({ view }),
    })));
  }

  /** The warnings as one line until it is opened. */
  showWarnings(texts) {
    this.warnings = texts;
    $("cautions").hidden = texts.length === 0;
    $("warnings").append(...texts.map((text) => element("li", { tabIndex: 0, textContent: text, title: text })));
    this.sumUpWarnings();
  }

  /** `about` tells what they are about, if that is not what is shown. */
  sumUpWarnings(about = "") {
    const { length } = this.warnings;
    $("caution").textContent = `${length === 1 ? "1 warning" : `${length} warnings`}${about}: ${this.warnings[0]}`;
  }

  explainKeys(keys) {
    $("keys").append(...keys.flatMap(([key, what]) => [element("dt", { textContent: key }), element("dd", { textContent: what })]));
  }

  set(changes) {
    Object.assign(this.state, changes);
    this.update();
  }

  isDark() {
    if (this.isPrinting) return false;
    return this.state.theme === null ? matchMedia("(prefers-color-scheme: dark)").matches : this.state.theme === "dark";
  }

  toggleTheme() {
    this.set({ theme: this.isDark() ? "light" : "dark" });
  }

  /** Shows what of the state is outside of graphs and tables. */
  showControls() {
    const { state } = this;
    document.documentElement.classList.toggle("dark", this.isDark());
    document.documentElement.style.colorScheme = this.isDark() ? "dark" : "light";
    $("page").hidden = false;
    for (const [view] of this.views ?? []) $(`view-${view}`).setAttribute("aria-selected", String(view === state.view));
    if ($("query").value !== state.query) $("query").value = state.query;
  }

  /** The state as in the address, in which an order is missing if it is the first. */
  fragment() {
    const { sort } = this.state;
    const isOwn = sort === "own" && this.firstSort !== "own";
    const rest = toFragment({ ...this.state, sort: sort === this.firstSort ? "own" : sort });
    return [rest, ...(isOwn ? ["sort=own"] : [])].filter(Boolean).join("&");
  }

  keepAddress() {
    const fragment = this.fragment();
    if (fragment !== location.hash.replace(/^#/, "")) history.replaceState(null, "", `#${fragment}`);
  }

  /** Says that all is drawn. */
  finish() {
    document.documentElement.dataset.ready = String(Number(document.documentElement.dataset.ready ?? 0) + 1);
  }

  /** Takes the keys that all pages have. */
  commonKey(event) {
    if (/^[1-9]$/.test(event.key) && this.views?.[event.key - 1]) this.set({ view: this.views[event.key - 1][0] });
    else if (event.key === "d") this.toggleTheme();
    else if (event.key === "?") $("help")?.showModal();
    else if (event.key === "/") {
      event.preventDefault();
      $("query").focus();
    }
  }
}

/** Starts the page that `make` makes of the file's head and columns, or says why there is none. */
export async function startPage(make) {
  try {
    const data = $("data");
    const bytes = await inflate(data.textContent);
    data.remove();
    // For tests and for the browser's console.
    window.unikprof = { page: make(decode(bytes)) };
  } catch (error) {
    $("failure").hidden = false;
    $("failure").textContent = typeof DecompressionStream === "undefined"
      ? "This page needs a browser that can inflate data (DecompressionStream): Chrome 93, Firefox 113, Safari 16.4 or later."
      : `The page's data cannot be shown: ${error.message}. The file may be incomplete; write it again with unikprof-client.`;
  }
}
