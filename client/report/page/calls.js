// The call tree of the page.
import { textOfFolded } from "./flame.js";
import { amount, percent } from "./format.js";
import { element, named, signed } from "./tables.js";

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
 * the way that most samples go is. The `folded` nodes are one row, which `onUnfold` opens. Of each row's callees at most `most` are
 * listed. `base` has the totals of another part of the time, `matches` says by label what is marked.
 */
export function callTree({ tree, own, total, recorded, unit, name, matches, selected, base, most, open, folded, onOpen, onUnfold, onChoose }) {
  const list = element("div", { className: "calls", role: "tree" });
  const shareOf = (node) => total[node] / recorded;
  const baseOf = (node) => (base ? base.total[node] / base.recorded : 0);
  const innermost = folded[folded.length - 1];
  const weights = (node) => shareOf(node) + baseOf(node);
  const childrenOf = (node) => {
    const found = [];
    for (let child = tree.first[node]; child !== 0; child = tree.next[child]) if (weights(child) > 0) found.push(child === folded[0] ? innermost : child);
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
    const isFold = node === innermost;
    const row = element("div", { className: "call", role: "treeitem", tabIndex: -1, "data-key": `node ${node}`, "aria-level": depth });
    if (children.length > 0) row.setAttribute("aria-expanded", String(isOpen));
    const cells = [
      amount(total[node], unit), percent(shareOf(node)), amount((isFold ? folded : [node]).reduce((sum, each) => sum + own[each], 0), unit),
      ...(base ? [percent(baseOf(node)), signed(shareOf(node) - baseOf(node))] : []),
    ].map((textContent) => element("span", { className: "number", textContent }));
    const isMatch = (isFold ? folded : [node]).some((each) => matches?.[tree.label[each]] === 1);
    if (!isFold && tree.label[node] === selected) row.setAttribute("aria-current", "true");
    const sign = element("span", { className: "toggle", textContent: children.length === 0 ? "" : isOpen ? "▾" : "▸" });
    const text = element("span", { className: "function" }, sign, named("span", { className: isMatch ? "match" : "" }, isFold ? textOfFolded(folded, name) : name(node)));
    // Deep calls keep room for their names.
    text.style.paddingLeft = `min(${depth - 1} * var(--step), 30%)`;
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
      if (isFold) onUnfold();
      else if (children.length > 0) toggle(node, !isOpen);
    });
    row.addEventListener("dblclick", () => isFold || onChoose(tree.label[node]));
    row.addEventListener("keydown", (event) => {
      if (event.key === "ArrowRight" && !isOpen && children.length > 0) toggle(node, true);
      else if (event.key === "ArrowLeft" && isOpen) toggle(node, false);
      else if (event.key === "ArrowLeft") caller()?.focus();
      else if (event.key === "Enter" && isFold) onUnfold();
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
