// Tables of the page, made of elements: text is never markup.
import { amount, byName, fixed, percent } from "./format.js";

/** An element with properties and children. */
export function element(tag, properties = {}, ...children) {
  const made = document.createElement(tag);
  for (const [name, value] of Object.entries(properties)) {
    if (name.startsWith("aria-") || name === "role" || name.startsWith("data-")) made.setAttribute(name, value);
    else made[name] = value;
  }
  made.append(...children);
  return made;
}

/**
 * An element with a name. If the name does not fit, its end stays, which is the function: as `elide` has it in graphs. On a narrow
 * screen it breaks behind each `::`.
 */
export function named(tag, { className = "", ...properties }, text) {
  return element(tag, { title: text, ...properties, className: `named ${className}` }, element("bdi", {}, ...text.split(/(?<=::)/).flatMap((part) => [part, element("wbr")])));
}

/** An entry of a legend: its colour by a class of the style sheet, or itself. */
export function legendEntry(kind, text, color = "") {
  const sample = element("i", { className: kind });
  sample.style.background = color;
  return element("span", {}, sample, text);
}

/** Shows lines beside the pointer, the first as their head; hides the tooltip if there are none. */
export function showTip(tip, lines, event) {
  tip.hidden = !lines;
  if (!lines) return;
  const [first, ...rest] = lines;
  tip.replaceChildren(element("b", { textContent: first }), ...rest.flatMap((line) => [line, element("br")]));
  tip.style.left = `${Math.max(4, Math.min(event.clientX + 14, innerWidth - tip.offsetWidth - 8))}px`;
  const y = event.clientY + 18;
  tip.style.top = `${y + tip.offsetHeight > innerHeight ? Math.max(4, event.clientY - tip.offsetHeight - 12) : y}px`;
}

/** By label, 1 if its name matches a regular expression; `null` for none, or if it is not one. */
export function matchesOf(query, labels) {
  if (query === "") return null;
  try {
    const regex = new RegExp(query, "u");
    return Uint8Array.from(labels, ({ name }) => Number(regex.test(name)));
  } catch {
    return null;
  }
}

/** Rows of functions with counts, in the order of a column. */
export function rowsOf(sums, labels, sort, base) {
  const rows = [];
  for (let label = 0; label < labels.length; label += 1) {
    const row = { label, own: sums.own[label], total: sums.total[label] };
    if (base) Object.assign(row, { baseOwn: base.own[label], baseTotal: base.total[label] });
    if (row.total > 0 || row.baseTotal > 0) rows.push(row);
  }
  const name = (row) => labels[row.label].name;
  const orders = {
    own: (a, b) => b.own - a.own || b.total - a.total,
    total: (a, b) => b.total - a.total || b.own - a.own,
    name: (a, b) => byName(name(a), name(b)),
    change: (a, b) => Math.abs(b.change ?? 0) - Math.abs(a.change ?? 0),
  };
  return { rows, order: orders[sort] ?? orders.own };
}

/** An interval as text. */
export function ends(interval) {
  if (!interval) return "";
  const [low, high] = interval.map((end) => fixed(end * 100, 1));
  return `${low} - ${high}`;
}

/** The text of a function's place in the source. */
export function placeOf({ file, line }) {
  return file === null ? "" : `${file}:${line}`;
}

/** Shows other rows; the keyboard stays at the one with the same key. */
export function replaceList(list, rows) {
  const key = list.contains(document.activeElement) ? document.activeElement.dataset.key : undefined;
  list.replaceChildren(...rows);
  if (key !== undefined) list.querySelector(`[data-key="${CSS.escape(key)}"]`)?.focus({ preventScroll: true });
}

/** A table of functions: a button over each column sorts by it. A row with a `text` stands for several functions. */
export function functionTable({ rows, recorded, unit, labels, sort, selected, compares, onSort, onChoose }) {
  const columns = [
    ["own", "self"], [null, "share"], [null, "95 % interval"], ["total", "total"], [null, "share"], [null, "95 % interval"],
    ...(compares ? [["change", "change of self"], [null, "95 % interval"], [null, "significant"]] : []),
    ["name", "function"],
  ];
  const body = rows.map((row) => {
    const label = labels[row.label];
    const change = compares
      ? [signed(row.change), row.changeInterval ? signedEnds(row.changeInterval) : "", row.isSignificant ? "yes" : "no"]
      : [];
    const cells = [
      amount(row.own, unit), percent(row.own / recorded), ends(row.ownInterval),
      amount(row.total, unit), percent(row.total / recorded), ends(row.totalInterval), ...change,
    ].map((text) => element("td", { textContent: text }));
    const properties = { type: "button", "data-key": `label ${row.label}`, title: [label.name, placeOf(label)].filter(Boolean).join("\n"), onclick: () => onChoose(row) };
    const name = row.text ? element("button", { ...properties, textContent: row.text }) : named("button", properties, label.name);
    return element("tr", { "data-label": row.label, ...(row.label === selected ? { "aria-current": "true" } : {}) }, ...cells, element("td", { className: "name" }, name));
  });
  const table = tableOf(columns, sort, onSort, body);
  table.classList.add("sampled");
  return table;
}

/** A table of these rows; a button over each column that has a key sorts by it. */
export function tableOf(columns, sort, onSort, rows) {
  const heads = columns.map(([key, text]) => {
    const head = element("th", { scope: "col" });
    if (key === null) head.append(text);
    else {
      head.append(element("button", { type: "button", "data-key": `sort ${key}`, textContent: text, onclick: () => onSort(key) }));
      head.setAttribute("aria-sort", sort === key ? (key === "name" ? "ascending" : "descending") : "none");
    }
    return head;
  });
  return element("table", { className: "functions" }, element("thead", {}, element("tr", {}, ...heads)), element("tbody", {}, ...rows));
}

/** A change of a share in points, with its sign. */
export function signed(share) {
  return `${share >= 0 ? "+" : "−"}${(Math.abs(share) * 100).toFixed(1)}`;
}

function signedEnds(interval) {
  return interval.map(signed).join(" to ");
}
