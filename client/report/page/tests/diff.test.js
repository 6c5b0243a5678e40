import assert from "node:assert/strict";
import test from "node:test";
import { meanOf, ordered } from "../diff.js";
import { Tree } from "../tree.js";

const functions = [
  { name: "hash", own: 0.2, total: 0.2 },
  { name: "copy", own: 0.8, total: 0.8 },
  { name: "main", own: 0, total: 1 },
];

test("functions are ordered by a column, and by the client's order if by none", () => {
  assert.deepEqual(ordered(functions, "change"), [0, 1, 2]);
  assert.deepEqual(ordered(functions, "own"), [1, 0, 2]);
  assert.deepEqual(ordered(functions, "total"), [2, 1, 0]);
  assert.deepEqual(ordered(functions, "name"), [1, 0, 2]);
});

test("widths are the mean of both recordings' shares, however many samples each has", () => {
  // main calls hash and copy; hash is new.
  const tree = Tree.fromDepths([1, 2, 2], [2, 0, 1]);
  const { sides, mean } = meanOf(tree, { base_own: [0, 0, 10], new_own: [0, 300, 100] });
  assert.deepEqual([...sides[0]], [1, 1, 0, 1]);
  assert.deepEqual([...sides[1]], [1, 1, 0.75, 0.25]);
  assert.deepEqual([...mean], [1, 1, 0.375, 0.625]);
});
