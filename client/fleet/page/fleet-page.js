// The page of a fleet: a row for each guest, drawn again whenever the server is asked.
import { FLEET_SORTS, cellsOf, chosenGuests, fileNameOf, sparkline, summaryOf } from "./fleet.js";
import { printable } from "../../report/page/format.js";

const SVG = "http://www.w3.org/2000/svg";
const LINE = { width: 96, height: 18 };

const element = (id) => document.getElementById(id);

/** Sets a text that has changed: what has not is not laid out again. */
function write(node, text) {
  if (node.textContent !== text) node.textContent = text;
}

function hint(node, text) {
  if (node.title !== text) node.title = text;
}

function make(name, kind, parent) {
  const made = document.createElement(name);
  if (kind) made.className = kind;
  parent.append(made);
  return made;
}

/** A guest's row, and what was recorded of it from this page. */
class Row {
  constructor(name, page) {
    this.name = name;
    this.isBusy = false;
    this.row = document.createElement("tr");
    const cell = (kind) => make("td", kind, this.row);
    const first = cell("name");
    this.title = make("b", "", first);
    this.labels = make("span", "dim", first);
    this.state = cell("state");
    this.rate = cell("number");
    const busy = cell("busy");
    const svg = document.createElementNS(SVG, "svg");
    svg.setAttribute("viewBox", `0 0 ${LINE.width} ${LINE.height}`);
    svg.setAttribute("aria-hidden", "true");
    this.line = document.createElementNS(SVG, "path");
    svg.append(this.line);
    busy.append(svg);
    this.busy = make("span", "", busy);
    this.stolen = cell("number");
    const hottest = cell("hottest");
    this.hottest = make("span", "function", hottest);
    this.source = make("span", "dim", hottest);
    const actions = cell("actions");
    this.record = this.button(actions, "record", "Record", () => page.record(this));
    this.recent = this.button(actions, "recent", "Last minutes", () => page.recent(this));
    this.told = make("span", "told", actions);
    this.link = make("a", "result", actions);
    this.link.target = "_blank";
    this.link.rel = "noopener";
    this.link.hidden = true;
    this.file = make("a", "file", actions);
    this.file.textContent = "save";
    this.file.hidden = true;
  }

  button(parent, kind, text, action) {
    const button = make("button", kind, parent);
    button.type = "button";
    button.textContent = text;
    button.setAttribute("aria-label", `${text}: ${printable(this.name)}`);
    button.onclick = action;
    return button;
  }

  show(guest, { history_length: places }) {
    const cells = cellsOf(guest);
    write(this.title, cells.name);
    write(this.labels, cells.labels);
    write(this.state, cells.state);
    hint(this.state, cells.about);
    this.state.classList.toggle("down", guest.up === false);
    write(this.rate, cells.rate);
    hint(this.rate, cells.recordings || "no recording in the guest");
    const path = sparkline(guest.history, LINE.width, LINE.height, places);
    if (this.line.getAttribute("d") !== path) this.line.setAttribute("d", path);
    write(this.busy, cells.busy);
    write(this.stolen, cells.stolen);
    write(this.hottest, cells.hottest);
    hint(this.hottest, cells.hottest);
    write(this.source, cells.source);
    hint(this.source, cells.source);
    this.record.disabled = this.isBusy;
    this.recent.disabled = this.isBusy || guest.recent === null;
    const why = guest.recent === null ? "no recording without an end and a ring in the guest" : `copies it from recording ${printable(guest.recent)}`;
    hint(this.recent, why);
  }

  /** Offers a page that has arrived. */
  offer(blob, text) {
    if (this.url) URL.revokeObjectURL(this.url);
    this.url = URL.createObjectURL(blob);
    this.link.textContent = text;
    this.link.href = this.url;
    this.file.href = this.url;
    this.file.download = fileNameOf(this.name);
    this.link.hidden = false;
    this.file.hidden = false;
  }

  forget() {
    if (this.url) URL.revokeObjectURL(this.url);
    this.row.remove();
  }
}

class FleetPage {
  constructor() {
    this.rows = new Map();
    this.answer = { guests: [] };
    this.sort = { by: "name", reversed: false };
    this.isAsking = false;
    this.drawn = 0;
    const theme = matchMedia("(prefers-color-scheme: dark)");
    const setTheme = (isDark) => document.documentElement.classList.toggle("dark", isDark);
    setTheme(theme.matches);
    theme.onchange = () => setTheme(theme.matches);
    element("theme").onclick = () => document.documentElement.classList.toggle("dark");
    element("query").oninput = () => this.draw();
    for (const by of Object.keys(FLEET_SORTS)) element(`by-${by}`).onclick = () => this.order(by);
    document.addEventListener("keydown", (event) => this.press(event));
    document.addEventListener("visibilitychange", () => this.refresh());
    this.refresh();
  }

  order(by) {
    this.sort = { by, reversed: this.sort.by === by && !this.sort.reversed };
    this.draw();
  }

  /** Asks the server, with what a proxy in front has the browser send. */
  async ask(path, options = {}) {
    const answer = await fetch(path, { ...options, cache: "no-store" });
    if (answer.ok) return answer;
    throw new Error((await answer.text()).trim() || `the server answered ${answer.status}`);
  }

  async refresh() {
    if (this.isAsking || document.hidden) return;
    this.isAsking = true;
    clearTimeout(this.timer);
    try {
      this.answer = await (await this.ask("/guests")).json();
      this.fail("");
      this.draw();
      this.drawn += 1;
      document.documentElement.dataset.drawn = this.drawn;
    } catch (error) {
      this.fail(error.message);
    }
    this.isAsking = false;
    document.documentElement.dataset.ready = "fleet";
    this.timer = setTimeout(() => this.refresh(), 1000 * Math.min(5, Math.max(1, this.answer.every_seconds ?? 5)));
  }

  fail(text) {
    write(element("failure"), printable(text));
    element("failure").hidden = text === "";
  }

  draw() {
    const { guests } = this.answer;
    const chosen = chosenGuests(guests, element("query").value, this.sort);
    const names = new Set(guests.map((guest) => guest.name));
    for (const [name, row] of this.rows) {
      if (names.has(name)) continue;
      row.forget();
      this.rows.delete(name);
    }
    const rows = chosen.map((guest) => {
      if (!this.rows.has(guest.name)) this.rows.set(guest.name, new Row(guest.name, this));
      const row = this.rows.get(guest.name);
      row.show(guest, this.answer);
      return row.row;
    });
    const body = element("guests");
    const isSame = body.children.length === rows.length && rows.every((row, at) => body.children[at] === row);
    if (!isSame) {
      const focused = document.activeElement;
      body.replaceChildren(...rows);
      if (focused?.isConnected && focused !== document.body) focused.focus({ preventScroll: true });
    }
    for (const by of Object.keys(FLEET_SORTS)) {
      const isBy = this.sort.by === by;
      const isRising = (by === "name" || by === "state") !== this.sort.reversed;
      element(`by-${by}`).parentElement.setAttribute("aria-sort", isBy ? (isRising ? "ascending" : "descending") : "none");
    }
    write(element("about"), summaryOf(guests, chosen.length));
    element("seconds").max = this.answer.longest_seconds ?? 60;
    element("fleet").hidden = false;
  }

  record(row) {
    const most = this.answer.longest_seconds ?? 60;
    const seconds = Math.min(most, Math.max(1, Math.round(Number(element("seconds").value)) || 10));
    return this.fetchPage(row, `record?seconds=${seconds}`, { method: "POST" }, `recording for ${seconds} s`, `recording of ${seconds} s`);
  }

  recent(row) {
    const minutes = Math.min(60, Math.max(1, Math.round(Number(element("minutes").value)) || 5));
    return this.fetchPage(row, `recent?seconds=${minutes * 60}`, {}, "copying", `last ${minutes} min`);
  }

  /** Asks for a page of a guest's recording, and opens it if the browser permits; its link stays in the row. */
  async fetchPage(row, path, options, doing, done) {
    if (row.isBusy) return;
    row.isBusy = true;
    row.record.disabled = true;
    row.recent.disabled = true;
    row.told.textContent = `${doing} ...`;
    row.told.classList.remove("failed");
    this.say(`${row.name}: ${doing}`);
    try {
      const answer = await this.ask(`/guests/${encodeURIComponent(row.name)}/${path}`, options);
      row.offer(new Blob([await answer.arrayBuffer()], { type: "text/html" }), `${done}, ${new Date().toLocaleTimeString()}`);
      row.told.textContent = "";
      this.say(`${row.name}: ${done} is here`);
      row.link.click();
    } catch (error) {
      row.told.textContent = printable(error.message);
      row.told.classList.add("failed");
      this.say(`${row.name}: ${error.message}`);
    }
    row.isBusy = false;
    this.draw();
    await this.refresh();
  }

  say(text) {
    element("said").textContent = printable(text);
  }

  press(event) {
    const { target } = event;
    if (event.ctrlKey || event.altKey || event.metaKey) return;
    if (event.key === "Escape" && target === element("query")) {
      target.value = "";
      this.draw();
      return;
    }
    if (target instanceof HTMLInputElement) return;
    if (event.key === "/") {
      event.preventDefault();
      element("query").focus();
    } else if (event.key === "d") {
      element("theme").click();
    } else if (event.key === "ArrowDown" || event.key === "ArrowUp") {
      const row = target.closest?.("tbody tr");
      const next = event.key === "ArrowDown" ? row?.nextElementSibling : row?.previousElementSibling;
      const kind = target.className || "record";
      const to = next?.querySelector(`.${CSS.escape(kind)}`) ?? (row ? null : element("guests").querySelector("button"));
      if (to) {
        event.preventDefault();
        to.focus();
      }
    }
  }
}

new FleetPage();
