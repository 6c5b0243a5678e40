import assert from "node:assert/strict";
import test from "node:test";
import { Times, partsOf, upper } from "../times.js";

const S = 1e9;

test("time goes on evenly between two moments that the ring tells of", () => {
  const times = new Times([0, 2 * S, 4 * S], [[0, S, 3 * S], [0, S, S], [0, 0, 0], [0, 0, 0]], true);
  assert.deepEqual(times.ofWindow(S, 3 * S), [1.5 * S, 0.5 * S, 0, 0]);
  assert.deepEqual(times.ofWindow(0, 4 * S), [3 * S, S, 0, 0]);
  assert.equal(times.ofWindow(5 * S, 6 * S), null, "behind all that is told");
  assert.equal(times.ofWindow(0, 10 * S), null, "less than half is told");
  const unmeasured = new Times([0, 2 * S], [[0, S], [0, 0], [0, 0], [0, 0]], false);
  assert.deepEqual(unmeasured.ofWindow(0, 2 * S), [S, null, null, null]);
  assert.equal(new Times([0, 9 * S], [[0, S], [0, 0], [0, 0], [0, 0]], true).ofWindow(S, 2 * S), null, "too far apart");
});

test("shares are at most all of the time together", () => {
  const times = new Times([0, S], [[0, S / 2], [0, 1.5 * S], [0, 0], [0, 0]], true);
  assert.deepEqual(times.shares(0, S), [0.25, 0.75, 0, 0]);
  assert.deepEqual(new Times([0, S], [[0, S / 2], [0, 0], [0, 0], [0, 0]], false).shares(0, S), [0.5, 0, 0, 0]);
  assert.equal(times.shares(S, 2 * S), null);
});

test("a crumb at the end belongs to the part before it", () => {
  assert.deepEqual(partsOf(0, 3200, 32), { step: 100, count: 32 });
  assert.deepEqual(partsOf(0, 3201, 32), { step: 101, count: 32 });
  assert.deepEqual(partsOf(0, 1, 32), { step: 1, count: 1 });
  assert.equal(partsOf(0, 1001, 10).count, 10);
});

test("moments are found in order", () => {
  assert.deepEqual([0, 5, 6].map((at) => upper([1, 5, 5, 9], at)), [0, 3, 3]);
  assert.equal(upper([1, 5, 5, 9], 5, true), 1);
});
