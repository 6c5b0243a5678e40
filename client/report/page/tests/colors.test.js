import assert from "node:assert/strict";
import test from "node:test";
import { WAYS, changeColor, waysOf } from "../colors.js";

test("merged nodes have the way of most of their samples", () => {
  // Node 0 is the root; 1 and 2 are merged, 3 is alone.
  const ways = Uint8Array.from([0, 2, 5, 6]);
  assert.deepEqual([...waysOf(ways, [0, 10, 11, 1], [0, 1, 1, 2], 3)], [0, 5, 6]);
  assert.deepEqual([...waysOf(ways, [0, 12, 11, 1], [0, 1, 1, 2], 3)], [0, 2, 6]);
  assert.equal(new Set(WAYS.map(([color]) => color)).size, WAYS.length);
});

test("a change that may be chance is paler than any other", () => {
  const light = (color) => Number(/ (\d+(\.\d+)?)%\)$/.exec(color)[1]);
  for (const [base, now] of [[0.1, 0.2], [0.2, 0.1], [0, 0.1], [0.1, 0]]) {
    assert.ok(light(changeColor(base, now, false)) > light(changeColor(0.1, 0.103, true)) && light(changeColor(base, now, true)) < 80);
  }
});
