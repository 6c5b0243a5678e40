import assert from "node:assert/strict";
import test from "node:test";
import { WAYS, waysOf } from "../colors.js";

test("merged nodes have the way of most of their samples", () => {
  // Node 0 is the root; 1 and 2 are merged, 3 is alone.
  const ways = Uint8Array.from([0, 2, 5, 6]);
  assert.deepEqual([...waysOf(ways, [0, 10, 11, 1], [0, 1, 1, 2], 3)], [0, 5, 6]);
  assert.deepEqual([...waysOf(ways, [0, 12, 11, 1], [0, 1, 1, 2], 3)], [0, 2, 6]);
  assert.equal(new Set(WAYS.map(([color]) => color)).size, WAYS.length);
});
