import assert from "node:assert/strict";
import test from "node:test";
import { layout } from "../flame.js";
import { Tree, callees, callers, carry, carryPart, derive } from "../tree.js";

// main(0) calls poll(1), which calls itself and parse(2); main also calls parse.
const [MAIN, POLL, PARSE] = [0, 1, 2];
const tree = Tree.fromDepths([1, 2, 3, 4, 3, 2], [MAIN, POLL, POLL, PARSE, PARSE, PARSE]);
const own = Float64Array.from([0, 1, 2, 4, 8, 16, 32]);
const total = tree.totals(own);

const paths = (of, counts) => Object.fromEntries([...counts.keys()].filter((node) => node > 0 && counts[node] > 0)
  .map((node) => [of.path(node).join(";"), counts[node]]));

test("totals add up, and a function counts once in a stack", () => {
  assert.deepEqual([...total], [63, 63, 30, 12, 8, 16, 32]);
  const sums = tree.functions(own, total, 3);
  assert.deepEqual([...sums.own], [1, 6, 56]);
  assert.deepEqual([...sums.total], [63, 30, 56]);
  assert.equal(tree.matched(total, [0, 1, 1]), 62, "one below the other counts once");
});

test("stacks that are not shown are in no total", () => {
  const filtered = Float64Array.from(own);
  filtered[0] = 100;
  assert.equal(tree.totals(filtered)[0], 63);
});

test("recursion collapses, and hidden functions give their samples to their callers", () => {
  const collapsed = derive(tree, [0, 1, 2], true, 3, 4);
  assert.deepEqual(paths(collapsed.tree, carry(own, collapsed.to, collapsed.tree.length)),
    { 0: 1, "0;1": 6, "0;1;2": 24, "0;2": 32 });
  const hidden = derive(tree, [0, -1, 2], false, 3, 4);
  assert.deepEqual(paths(hidden.tree, carry(own, hidden.to, hidden.tree.length)), { 0: 7, "0;2": 56 });
  const all = derive(tree, [-1, -1, 2], false, 3, 4);
  assert.deepEqual(paths(all.tree, carry(own, all.to, all.tree.length)), { 3: 7, 2: 56 });
});

test("callers count the innermost call of a stack, callees the outermost", () => {
  const above = callers(tree, POLL, 3);
  const counted = carryPart(own, above);
  assert.deepEqual(paths(above.tree, above.tree.totals(counted)), { 1: 30, "1;1": 12, "1;1;0": 12, "1;0": 18 });
  const below = callees(tree, POLL, 3);
  assert.deepEqual(paths(below.tree, carryPart(own, below)), { 1: 2, "1;1": 4, "1;1;2": 8, "1;2": 16 });
  assert.deepEqual([...above.to].map((node) => above.tree.path(node).join(";")), ["", "", "1;0", "1;1;0", "1;1;0", "1;0", ""]);
  assert.deepEqual([...below.to].map((node) => below.tree.path(node).join(";")), ["", "", "1", "1;1", "1;1;2", "1;2", ""]);
  assert.equal(callers(tree, 9, 10).tree.length, 1, "a function without calls");
  // Another part of the time has the stack `0;1` alone.
  const other = own.map((count, node) => (tree.path(node).join() === "0,1" ? count : 0));
  assert.deepEqual(paths(above.tree, carryPart(other, above)), { "1;0": 2 });
  assert.deepEqual(carryPart(other, below), Float64Array.from([0, 2, 0, 0, 0]));
});

test("what calls a function is one cell from where all stacks are the same", () => {
  // main(0) and start(1) are in all stacks; a(2) and b(3) call what is looked at (4).
  const deep = Tree.fromDepths([1, 2, 3, 4, 3, 4], [0, 1, 2, 4, 3, 4]);
  const above = callers(deep, 4, 5, [1, 2]);
  const counts = Float64Array.from([0, 0, 0, 0, 7, 0, 3]);
  assert.deepEqual(paths(above.tree, above.tree.totals(carryPart(counts, above))), { 4: 10, "4;2": 7, "4;2;5": 7, "4;3": 3, "4;3;5": 3 });
});

test("cells narrower than a pixel become one that says how many they are", () => {
  const wide = Tree.fromDepths([1, ...new Array(200).fill(2)], [0, ...new Array(200).keys()].map((label) => label));
  const counts = new Float64Array(202).fill(1);
  counts[1] = 0;
  counts[2] = 100;
  const cells = layout(wide, wide.totals(counts), { width: 150, order: "name", root: 0 });
  const merged = cells.filter((cell) => cell.merged > 0);
  assert.equal(merged.length, 1);
  assert.equal(merged[0].merged, 199);
  const row = cells.filter((cell) => cell.row === 2);
  assert.equal(Math.round(row.reduce((sum, cell) => sum + cell.w, 0)), 150, "nothing is left out");
});

test("frames that all stacks have are one cell, but for the innermost", () => {
  // Six frames, one in the other, then two that share the stacks.
  const deep = Tree.fromDepths([1, 2, 3, 4, 5, 6, 7, 7], [0, 1, 2, 3, 4, 5, 6, 7]);
  const counts = deep.totals(Float64Array.from([9, 0, 0, 0, 0, 0, 0, 1, 2]));
  const cellsOf = (root, folds) => layout(deep, counts, { width: 300, order: "name", root, folds });
  assert.deepEqual(cellsOf(0, true).map(({ row, node, folded }) => [row, node, folded?.length]),
    [[0, 0, undefined], [1, 5, 5], [2, 6, undefined], [3, 7, undefined], [3, 8, undefined]]);
  assert.equal(cellsOf(0, false).length, 9);
  assert.equal(cellsOf(3, true).filter((cell) => cell.folded).length, 0, "three are not worth it");
  // One stack in 200 goes elsewhere.
  const nearly = Tree.fromDepths([1, 2, 3, 4, 5, 6, 7, 7, 3], [0, 1, 2, 3, 4, 5, 6, 7, 8]);
  const some = nearly.totals(Float64Array.from([0, 0, 0, 0, 0, 0, 0, 99, 100, 1]));
  assert.equal(layout(nearly, some, { width: 300, order: "name", root: 0, folds: true })[1].folded?.length, 5);
  assert.equal(layout(nearly, some, { width: 300, order: "name", root: 0, folds: true, keep: new Set([4]) })[1].folded?.length, 4, "what is kept is not in it");
  counts[1] -= 1;
  assert.equal(cellsOf(0, true).filter((cell) => cell.folded).length, 0, "one stack does not have them");
});

test("a part of a tree is shown without a row for all", () => {
  const rows = (skip) => layout(tree, total, { width: 630, order: "weight", root: 1, skip }).slice(0, 2).map(({ node, row }) => [node, row]);
  assert.deepEqual([rows(0), rows(1), rows(2)], [[[0, 0], [1, 1]], [[1, 0], [6, 1]], [[6, 0], [2, 0]]]);
});

test("left heavy puts the widest first", () => {
  const cells = layout(tree, total, { width: 630, order: "weight", root: 0 });
  assert.deepEqual(cells.filter((cell) => cell.row === 2).map((cell) => [cell.node, cell.x]), [[6, 0], [2, 320]]);
});

test("a tree of 100,000 frames in one stack is walked", () => {
  const deep = Tree.fromDepths(Uint32Array.from({ length: 100000 }, (_, at) => at + 1), new Uint32Array(100000));
  assert.equal(deep.outermost.reduce((sum, flag) => sum + flag, 0), 1);
});
