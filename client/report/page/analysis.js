// What rules found about the guest: the page's first pane.
import { moment } from "./format.js";
import { element, named } from "./tables.js";

/** The most buttons of one finding. */
const MOST = 6;

/** The least room of a name, in characters. */
const LEAST_NAME = 18;

/** Text with a link for each name of a function; a line that is too short keeps the ends of names, and shares. */
function linked(text, labels, onName) {
  return text.split(/`([^`]*)`/).flatMap((part, at) => {
    if (at % 2 === 0) return part.split(/(\d[\d.]* %)/).map((textContent, each) => element("span", { className: each % 2 === 0 ? "" : "share", textContent }));
    const label = labels.findIndex(({ name }) => name === part);
    if (label < 0 || !onName) return element("span", { textContent: `\`${part}\`` });
    const onclick = (event) => {
      event.preventDefault();
      onName(label);
    };
    const name = named("a", { href: "#", className: "name", title: `select ${part}`, onclick }, part);
    name.style.minWidth = `${Math.min(part.length, LEAST_NAME)}ch`;
    return name;
  });
}

/** A finding: a line with its score, below it the evidence, the next step, and buttons that show when and where. */
function entry(found, labels, { onWindow, onName }) {
  const line = (className, text) => element("p", { className }, ...linked(text, labels, onName));
  const button = (textContent, onclick) => element("button", { type: "button", textContent, onclick });
  const windows = onWindow ? found.windows.slice(0, MOST) : [];
  const buttons = windows.map(({ from_ns: from, to_ns: to }) => button(`show ${moment(from)} to ${moment(to)}`, () => onWindow([from, to])));
  return element("details", { "data-rule": found.rule },
    element("summary", {}, element("span", { className: "line" },
      element("i", { className: found.score < 75 ? "score" : "score severe", textContent: String(found.score), title: "25 is notable, 75 severe" }),
      element("b", { textContent: `${found.rule} ` }), ...linked(found.finding, labels, onName))),
    ...found.evidence.map((text) => line("evidence", text)),
    line("next", `Next: ${found.next}`),
    element("p", { className: "buttons" }, ...buttons));
}

/** What the pane holds: the findings, or that there are none, and what could not be checked. */
export function analysisPane({ most, findings, quiet, unchecked }, labels, on) {
  const checked = quiet.length + new Set(findings.map(({ rule }) => rule)).size;
  const none = checked === 0 ? "no rule could be checked" : `none of ${checked} rules found anything`;
  const head = findings.length === 0 ? none : `${findings.length} found by ${checked} rules`;
  return [
    element("h2", {}, "Analysis of the guest: ", element("span", { id: "found", textContent: head }),
      element("span", { id: "found-in", hidden: true, textContent: ", in the whole recording" })),
    ...(most ? [element("p", {}, ...linked(most, labels, on.onName))] : []),
    ...findings.map((found) => entry(found, labels, on)),
    ...(unchecked.length === 0 ? [] : [element("details", { className: "unchecked" },
      element("summary", { textContent: unchecked.length === 1 ? "1 rule not checked" : `${unchecked.length} rules not checked` }),
      ...[...new Set(unchecked.map(({ why }) => why))].map((reason) => {
        const rules = unchecked.filter(({ why }) => why === reason).map(({ rule }) => rule);
        return element("p", { className: "unchecked", textContent: `not checked: ${rules.join(", ")}: ${reason}` });
      }))]),
  ];
}
