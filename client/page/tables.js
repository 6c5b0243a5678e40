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

/** A warning: one line, and all of it while it has the focus. */
export function warningLine(text) {
  return element("li", { tabIndex: 0, textContent: `warning: ${text}`, title: text });
}

/** Shows other rows; the keyboard stays at the one with the same key. */
export function replaceList(list, rows) {
  const key = list.contains(document.activeElement) ? document.activeElement.dataset.key : undefined;
  list.replaceChildren(...rows);
  if (key !== undefined) list.querySelector(`[data-key="${CSS.escape(key)}"]`)?.focus({ preventScroll: true });
}

/** A table of functions: a button over each column sorts by it. */
export function functionTable({ rows, recorded, unit, labels, sort, compares, onSort, onChoose }) {
  const columns = [
    ["own", "self"], [null, "share"], [null, "95 % interval"], ["total", "total"], [null, "share"], [null, "95 % interval"],
    ...(compares ? [["change", "change of self"], [null, "95 % interval"], [null, "significant"]] : []),
    ["name", "function"],
  ];
  const heads = columns.map(([key, text]) => {
    const head = element("th", { scope: "col" });
    if (key === null) head.append(text);
    else {
      head.append(element("button", { type: "button", "data-key": `sort ${key}`, textContent: text, onclick: () => onSort(key) }));
      head.setAttribute("aria-sort", sort === key ? (key === "name" ? "ascending" : "descending") : "none");
    }
    return head;
  });
  const body = rows.map((row) => {
    const label = labels[row.label];
    const change = compares
      ? [signed(row.change), row.changeInterval ? signedEnds(row.changeInterval) : "", row.isSignificant ? "yes" : "no"]
      : [];
    const cells = [
      amount(row.own, unit), percent(row.own / recorded), ends(row.ownInterval),
      amount(row.total, unit), percent(row.total / recorded), ends(row.totalInterval), ...change,
    ].map((text) => element("td", { textContent: text }));
    const name = element("button", { type: "button", "data-key": `label ${row.label}`, textContent: label.name, title: placeOf(label), onclick: () => onChoose(row.label) });
    return element("tr", { "data-label": row.label }, ...cells, element("td", { className: "name" }, name));
  });
  return element("table", { className: "functions" }, element("thead", {}, element("tr", {}, ...heads)), element("tbody", {}, ...body));
}

function signed(share) {
  return `${share >= 0 ? "+" : "−"}${(Math.abs(share) * 100).toFixed(1)}`;
}

function signedEnds(interval) {
  return interval.map(signed).join(" to ");
}

/** The heads of a call tree's columns. */
function callHead(compares) {
  const numbers = ["total", "share", "self", ...(compares ? ["base share", "change"] : [])];
  return element("div", { className: "call head" }, ...numbers.map((text) => element("span", { className: "number", textContent: text })), "function");
}

/** The nodes that are open at first: the way that most samples go. */
function heaviestWay(childrenOf, weights) {
  const open = new Set([0]);
  let [node] = childrenOf(0);
  while (node !== undefined) {
    open.add(node);
    const [next] = childrenOf(node);
    node = next !== undefined && weights(next) >= weights(node) / 2 ? next : undefined;
  }
  return open;
}

/**
 * A tree of calls whose rows open with a click or the arrow keys. `open` has the nodes that are open and 0; if it is null,
 * the way that most samples go is. Of each row's callees at most `most` are listed. `base` has the totals of another part of the time, `matches` says by label what is marked.
 */
export function callTree({ tree, own, total, recorded, unit, name, matches, base, most, open, onOpen, onChoose }) {
  const list = element("div", { className: "calls", role: "tree" });
  const shareOf = (node) => total[node] / recorded;
  const baseOf = (node) => (base ? base.total[node] / base.recorded : 0);
  const weights = (node) => shareOf(node) + baseOf(node);
  const childrenOf = (node) => {
    const found = [];
    for (let child = tree.first[node]; child !== 0; child = tree.next[child]) if (weights(child) > 0) found.push(child);
    return found.sort((a, b) => weights(b) - weights(a) || a - b);
  };
  const opened = open ?? heaviestWay(childrenOf, weights);
  const toggle = (node, wants) => {
    const next = new Set(opened);
    if (wants) next.add(node);
    else next.delete(node);
    onOpen(next);
  };
  const add = (node, depth, children) => {
    const isOpen = children.length > 0 && opened.has(node);
    const row = element("div", { className: "call", role: "treeitem", tabIndex: -1, "data-key": `node ${node}`, "aria-level": depth });
    if (children.length > 0) row.setAttribute("aria-expanded", String(isOpen));
    const cells = [
      amount(total[node], unit), percent(shareOf(node)), amount(own[node], unit),
      ...(base ? [percent(baseOf(node)), signed(shareOf(node) - baseOf(node))] : []),
    ].map((textContent) => element("span", { className: "number", textContent }));
    const isMatch = matches?.[tree.label[node]] === 1;
    const sign = element("span", { className: "toggle", textContent: children.length === 0 ? "" : isOpen ? "▾" : "▸" });
    const text = element("span", { className: "function" }, sign, element("span", { className: isMatch ? "match" : "", textContent: name(node) }));
    text.style.paddingLeft = `${Math.min(depth - 1, 60) * 14}px`;
    row.append(...cells, text);
    const near = (way) => {
      let next = row[way];
      while (next && !next.dataset.key) next = next[way];
      return next;
    };
    const caller = () => {
      let before = row.previousSibling;
      while (before && Number(before.getAttribute("aria-level")) >= depth) before = before.previousSibling;
      return before;
    };
    row.addEventListener("click", () => {
      row.focus();
      if (children.length > 0) toggle(node, !isOpen);
    });
    row.addEventListener("dblclick", () => onChoose(tree.label[node]));
    row.addEventListener("keydown", (event) => {
      if (event.key === "ArrowRight" && !isOpen && children.length > 0) toggle(node, true);
      else if (event.key === "ArrowLeft" && isOpen) toggle(node, false);
      else if (event.key === "ArrowLeft") caller()?.focus();
      else if (event.key === "Enter") onChoose(tree.label[node]);
      else if (event.key === "ArrowDown" || event.key === "ArrowRight") near("nextSibling")?.focus();
      else if (event.key === "ArrowUp") near("previousSibling")?.focus();
      else return;
      event.preventDefault();
      event.stopPropagation();
    });
    list.append(row);
    return isOpen;
  };
  const waiting = childrenOf(0).slice(0, most).reverse().map((node) => ({ node, depth: 1 }));
  while (waiting.length > 0) {
    const { node, depth, more } = waiting.pop();
    if (more) {
      list.append(element("div", { className: "call more", "aria-level": depth, textContent: `${more} smaller callees are not listed` }));
      continue;
    }
    const children = childrenOf(node);
    if (!add(node, depth, children)) continue;
    if (children.length > most) waiting.push({ depth: depth + 1, more: children.length - most });
    waiting.push(...children.slice(0, most).reverse().map((child) => ({ node: child, depth: depth + 1 })));
  }
  // One row is reached with Tab, the others with the arrow keys.
  const reach = (row) => {
    list.querySelector("[tabindex='0']")?.setAttribute("tabindex", "-1");
    row?.setAttribute("tabindex", "0");
  };
  reach(list.firstChild);
  list.addEventListener("focusin", (event) => reach(event.target));
  return [callHead(Boolean(base)), list];
}
