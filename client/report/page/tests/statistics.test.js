import assert from "node:assert/strict";
import test from "node:test";
import { Recording } from "../selection.js";
import { change, interval, significant, student, sumsOf, unplaced, wilson } from "../statistics.js";

const near = (found, expected, most = 5e-5) => assert.ok(Math.abs(found - expected) < most, `${found}, expected ${expected}`);

// R. G. Newcombe, 1998, table I, method 3.
test("the published intervals come out", () => {
  for (const [hits, n, low, high] of [[81, 263, 0.2553, 0.3662], [15, 148, 0.0624, 0.1605], [0, 20, 0, 0.1611], [1, 29, 0.0061, 0.1718]]) {
    const found = wilson(hits / n, n);
    near(found[0], low);
    near(found[1], high);
  }
  assert.deepEqual(wilson(0, 0), [0, 1]);
});

test("unplaced samples widen an interval by their worst case", () => {
  const counters = { missing: 300, ticks: 1000, blocked: 0, blocked_overflow: 0, blocked_aged: 0, overflow: 60, lost: 30, masked: 10, late: 50, aged: 0 };
  const unknown = unplaced([counters], "cpu", 1000);
  assert.deepEqual([unknown.missing, unknown.outside, unknown.count], [300, 400, 450]);
  const [low, high] = wilson(0.2, 1000);
  const found = interval(200, 1000, unknown, 50);
  near(found[0], (low * 1000 - 50) / 1400, 1e-12);
  near(found[1], (high * 1000 + 450) / 1400, 1e-12);
  assert.equal(unplaced([{ ...counters, missing: 3, overflow: 0, lost: 0, masked: 0, late: 0 }], "cpu", 1000), null, "too few to matter");
  assert.equal(unplaced([counters], "off-cpu", 1000), null);
  // 40 of 60 ticks are missing, and chance explains as many of 1,000 samples of both kinds.
  const wall = { ...counters, missing: 35, missing_blocked: -5, ticks: 20, blocked: 940, overflow: 0, lost: 0, masked: 0, late: 0 };
  assert.equal(unplaced([wall], "wall", 960).missing, 40);
});

test("a function may be among the callers that broken stacks lack", () => {
  const [main, leaf, other, broken] = [0, 1, 2, 3];
  const labels = ["main", "leaf", "other", "[broken]"].map((name, at) => [name, at === broken ? "special" : "function", 0, 0, 0]);
  const columns = { node_depth: [1, 2, 1, 1, 2], node_label: [main, leaf, other, broken, leaf], node_way: [0, 0, 0, 0, 0] };
  const head = { report: { recording: { mode: "cpu", unit: "samples", period_ns: 1 }, vcpus: [] }, vcpus: [0], labels, images: [], files: [], time: null };
  const recording = new Recording({ head, columns });
  const { tree } = recording;
  const totals = (own) => tree.functions(own, tree.totals(own), labels.length).total;
  const high = (own) => {
    const whole = recording.whole(own);
    const [total, inWhole] = [own, whole].map(totals);
    const samples = tree.totals(own)[0];
    const cut = samples - tree.totals(whole)[0];
    return [main, leaf, broken].map((label) => {
      const range = interval(total[label], samples, null, 0);
      const found = interval(total[label], samples, null, 0, cut - total[label] + inWhole[label]);
      assert.equal(found[0], range[0]);
      return Math.round((found[1] - range[1]) * 1000);
    });
  };
  // The caller may be in all of the broken stacks; the leaf is, and the mark is they.
  assert.deepEqual(high([0, 0, 700, 100, 0, 200]), [200, 0, 0]);
  assert.deepEqual(high([0, 0, 880, 100, 0, 20]), [0, 0, 0], "too few to matter");
});

test("Benjamini and Hochberg's example keeps four of fifteen", () => {
  // Y. Benjamini and Y. Hochberg, 1995, section 2.2.
  const values = [0.0001, 0.0004, 0.0019, 0.0095, 0.0201, 0.0278, 0.0298, 0.0344, 0.0459, 0.324, 0.4262, 0.5719, 0.6528, 0.759, 1];
  assert.deepEqual(significant(values).map(Number).reduce((a, b) => a + b), 4);
  assert.deepEqual(significant([null, 0.01, null]), [false, true, false]);
  assert.deepEqual(significant([]), []);
});

test("a change is told from chance by the scatter between parts", () => {
  const parts = new Array(32).fill(100);
  // A function whose share swings between 0 and 40 % of a part.
  const swinging = parts.map((_, at) => (at % 2) * 40);
  const shifted = parts.map((_, at) => (at % 2) * 40 + 4);
  const steady = (count) => sumsOf(parts, parts.map((_, at) => count + (at % 3) - 1));
  const noise = change(sumsOf(parts, swinging), sumsOf(parts, shifted));
  near(noise.difference, 0.04, 1e-9);
  assert.ok(noise.p > 0.05 && noise.interval[0] < 0 && noise.interval[1] > 0, JSON.stringify(noise));
  const real = change(steady(20), steady(24));
  near(real.difference, 0.04, 1e-9);
  assert.ok(real.p < 0.001 && real.interval[0] > 0, JSON.stringify(real));
  const few = sumsOf(parts.slice(0, 7), swinging.slice(0, 7));
  near(student(31), 2.0395, 1e-3);
  assert.equal(change(few, few).p, null, "fewer than 8 parts show nothing");
});
