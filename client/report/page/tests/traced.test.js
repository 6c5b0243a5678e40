import assert from "node:assert/strict";
import test from "node:test";
import { CHOSEN, cellsOf } from "../lanes.js";
import { inOrder } from "../trace.js";
import { Traced } from "../traced.js";

const ENDS = ["", "unwound", "replaced", "still open", "end lost"];

/** Calls as `[function, start, length, self, row, end, outermost]`, of one stack. */
function traced(all, names = ["outer", "inner"]) {
  const column = (at) => Float64Array.from(all, (call) => call[at]);
  const zeros = new Float64Array(all.length);
  return new Traced({
    head: { names, numbers: [1, 0], ends: ENDS, is_part: false, time: { from_ns: 0, to_ns: 100, lanes: ["stack 1"], holes: [] }, report: { functions: [
      { calls: 2, total_ns: 7, self_ns: 7, waited_ns: 1, p50_ns: 3, p99_ns: 4, max_ns: 4, returned: 1, unwound: 1, replaced: 0, open: 0, lost_ends: 0,
        histogram: [{ from_ns: 0, to_ns: 0, calls: 1 }, { from_ns: 1, to_ns: 1, calls: 2 }, { from_ns: 5, to_ns: 5, calls: 3 }] },
      { calls: 1, total_ns: 90, self_ns: 83, waited_ns: 0, p50_ns: null, p99_ns: null, max_ns: null, returned: 0, unwound: 0, replaced: 0, open: 1, lost_ends: 0, histogram: [] },
    ] } },
    columns: { call_function: column(0), call_start: column(1), call_length: column(2), call_self: column(3), call_row: column(4), call_end: column(5),
      call_outermost: column(6), call_waited: zeros, call_vcpu: zeros, call_lane: zeros, call_hole: zeros },
  });
}

// `outer` is open at the end; it called `inner`, which called itself, and twice more.
const TREE = [[0, 10, 90, 75, 1, 3, 1], [1, 20, 8, 5, 2, 0, 1], [1, 22, 3, 3, 3, 0, 0], [1, 50, 3, 3, 2, 0, 1], [1, 100, 4, 4, 2, 1, 1]];

test("the whole trace is as in the report", () => {
  const [inner, outer] = traced(TREE).rows(null);
  assert.deepEqual(inner, { label: 1, calls: 2, total: 7, own: 7, waited: 1, p50: 3, p99: 4, max: 4, ends: [1, 1, 0, 0, 0] });
  assert.deepEqual([outer.label, outer.p50, outer.ends[3]], [0, null, 1]);
});

test("a range has the calls that begin in it, and time of recursion counts once", () => {
  const all = traced(TREE).rows([0, 100]);
  const [outer, inner] = all;
  assert.deepEqual([outer.label, outer.calls, outer.total, outer.own, outer.p50, outer.max], [0, 1, 90, 75, null, null]);
  // That at the end belongs to it: nothing is after the end.
  assert.deepEqual([inner.calls, inner.total, inner.own, inner.ends], [4, 8 + 3 + 4, 5 + 3 + 3 + 4, [3, 1, 0, 0, 0]]);
  assert.deepEqual([inner.p50, inner.p99, inner.max], [3, 8, 8], "of those that returned");
  const halves = [[0, 50], [50, 100]].map((range) => traced(TREE).rows(range).find((row) => row.label === 1));
  assert.deepEqual(halves.map((row) => row.calls), [2, 2]);
});

test("rows are in the order of a column", () => {
  const { labels } = traced(TREE);
  const rows = traced(TREE).rows([0, 100]);
  const order = (sort) => inOrder(rows, sort, labels).map((row) => row.label);
  assert.deepEqual([order("calls"), order("total"), order("max"), order("name")], [[1, 0], [0, 1], [1, 0], [1, 0]]);
});

test("a histogram has a line for each power of two", () => {
  const trace = traced(TREE);
  assert.deepEqual(trace.histogram(1, null), [{ from: 0, to: 1, calls: 3 }, { from: 2, to: 3, calls: 0 }, { from: 4, to: 7, calls: 3 }]);
  assert.deepEqual(trace.histogram(1, [0, 50]), [{ from: 2, to: 3, calls: 1 }, { from: 4, to: 7, calls: 0 }, { from: 8, to: 15, calls: 1 }]);
  assert.deepEqual(trace.histogram(0, null), [], "none has returned");
  // More than 32 bits.
  const long = [2 ** 40 - 1, 2 ** 40].map((length) => [0, 0, length, length, 1, 0, 1]);
  assert.deepEqual(traced(long).histogram(0, [0, 100]).map(({ from, calls }) => [from, calls]), [[2 ** 39, 1], [2 ** 40, 1]]);
});

test("calls over time are counted where they begin, and the last part has its end", () => {
  const counts = traced(TREE).overTime([0, 100], 4);
  assert.deepEqual([[...counts[0]], [...counts[1]]], [[1, 0, 0, 0], [2, 0, 1, 1]]);
  const part = traced(TREE, ["outer", "inner", "never"]).overTime([20, 24], 2);
  assert.deepEqual([part[0], [...part[1]], part[2]], [null, [1, 1], null]);
});

const cells = (all, from, to, pixels, highlights = [0, 0]) => cellsOf(traced(all).calls, { from, to, pixels, lanes: 1, highlights })[0];

test("calls that are narrower than a pixel are one cell for each pixel in which they begin", () => {
  const many = Array.from({ length: 40 }, (_, at) => [at === 33 ? 1 : 0, at, 1, 1, 1, 0, 1]);
  const [line] = cells(many, 0, 100, 10);
  assert.deepEqual(line.map(({ x, w, calls }) => [x, w, calls]), [[0, 1, 10], [1, 1, 10], [2, 1, 10], [3, 1, 10]]);
  assert.equal(cells(many, 0, 40, 400)[0].length, 40, "none is left out where there is room");
  const [found] = cells(many, 0, 100, 10, [0, CHOSEN]);
  assert.deepEqual(found.map((cell) => cell.call), [0, 10, 20, 33], "the highlighted one stands for the others");
});

test("a call is cut at the ends of what is shown, in the row of its depth", () => {
  const [outer, inner] = cells(TREE, 22, 42, 200);
  assert.deepEqual(outer.map(({ x, w }) => [x, w]), [[0, 200]]);
  assert.deepEqual(inner.map(({ x, w, call }) => [x, w, call]), [[0, 60, 1]]);
  // A row of 0 is not drawn; other lanes are not looked at.
  assert.deepEqual(cells([[0, 0, 10, 10, 0, 0, 1]], 0, 100, 100), []);
});
