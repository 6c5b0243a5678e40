import assert from "node:assert/strict";
import test from "node:test";
import { fromFragment, initialState, toFragment } from "../state.js";

test("an address restores the whole state", () => {
  const state = {
    ...initialState(), view: "table", window: [5, 900], base: [1000, 2000], zoom: [0, 5000], vcpus: new Set([0, 63]), span: 0, recording: 2,
    query: "a&b=#\u202e(", chosen: 3, focus: 4, hide: [1, 2], collapse: true, merge: "module", color: "image", sort: "name", node: 9,
    open: new Set([0, 12]), unfold: true, theme: "dark",
  };
  assert.deepEqual(fromFragment(`#${toFragment(state)}`), state);
  assert.equal(toFragment(initialState()), "");
});

test("what an address says badly is as at first", () => {
  for (const bad of ["#view=x", "#window=9-5", "#window=a-b", "#vcpus=-1", "#node=1e9", "#query=%E0%A4%A", "#__proto__=1", "#toString=1", "#=", "#collapse=0"]) {
    assert.deepEqual(fromFragment(bad), initialState(), bad);
  }
});
