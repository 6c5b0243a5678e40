import assert from "node:assert/strict";
import test from "node:test";
import { analysisPane } from "../analysis.js";

// As much of a document as the pane uses.
class Node {
  constructor(tag) {
    Object.assign(this, { tag, children: [], attributes: {}, style: {} });
  }

  setAttribute(name, value) {
    this.attributes[name] = value;
  }

  append(...children) {
    this.children.push(...children);
  }

  get text() {
    return (this.textContent ?? "") + this.children.map((child) => child.text ?? child).join("");
  }

  all(tag) {
    return [...(this.tag === tag ? [this] : []), ...this.children.flatMap((child) => child.all?.(tag) ?? [])];
  }
}

globalThis.document = { createElement: (tag) => new Node(tag) };

const finding = {
  rule: "burst",
  score: 76,
  finding: "`</b>compact` and `compact` ran with `gone`",
  evidence: ["one", "two"],
  next: "look",
  windows: [{ from_ns: 1e9, to_ns: 2e9 }],
  functions: ["compact", "gone"],
};

test("a finding's button shows its time, and its names select functions that are in the page", () => {
  const done = [];
  const on = { onWindow: (range) => done.push(range), onName: (label) => done.push(label) };
  const pane = analysisPane({ findings: [finding], quiet: ["memory"], unchecked: [] }, [{ name: "</b>compact" }, { name: "compact" }], on);
  const [button, ...others] = pane.flatMap((node) => node.all("button"));
  assert.equal(others.length, 0);
  button.onclick();
  for (const name of pane.flatMap((node) => node.all("a"))) name.onclick({ preventDefault() {} });
  assert.deepEqual(done, [[1e9, 2e9], 0, 1]);
  const text = pane.map((node) => node.text).join("\n");
  assert.match(text, /1 found by 2 rules/);
  assert.match(text, /<\/b>compact/, "text is never markup");
  assert.equal(pane.flatMap((node) => node.all("i")).find((node) => node.className === "score severe").textContent, "76");
});

test("without time there is no button for it, and what was not checked is said", () => {
  const unchecked = [{ rule: "slow span", why: "no times" }];
  const pane = analysisPane({ findings: [finding], quiet: [], unchecked }, [], {});
  assert.equal(pane.flatMap((node) => node.all("button")).length, 0);
  unchecked.push({ rule: "idle", why: "empty" }, { rule: "burst", why: "no times" });
  const empty = analysisPane({ most: "most is in `main`: 40 %", findings: [], quiet: ["a", "b"], unchecked }, [], {});
  assert.deepEqual(empty.map((node) => node.text), [
    "Analysis of the guest: none of 2 rules found anything, in the whole recording",
    "most is in `main`: 40 %",
    "3 rules not checkednot checked: slow span, burst: no timesnot checked: idle: empty",
  ]);
  const unknown = analysisPane({ findings: [], quiet: [], unchecked }, [], {});
  assert.equal(unknown[0].text, "Analysis of the guest: no rule could be checked, in the whole recording");
});
