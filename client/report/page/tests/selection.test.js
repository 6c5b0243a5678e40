import assert from "node:assert/strict";
import test from "node:test";
import { Recording } from "../selection.js";
import { change, sumsOf } from "../statistics.js";

/**
 * Two recordings: the second has the last ticks of the columns, and its mode is not known. Ticks from `later` on may be in
 * node 5 as well.
 */
function recording(later = 0) {
  let seed = 1;
  const random = (below) => (seed = (seed * 48271) % 2147483647) % below;
  const [ticks, others] = [4000, 100];
  const columns = {
    node_depth: [1, 2, 3, 2, 1], node_label: [0, 1, 0, 2, 1], node_way: [0, 3, 2, 3, 0],
    count_node: [1], count_vcpu: [0], count_span: [0], count_value: [7],
    tick_at: [...Array.from({ length: ticks }, (_, at) => at * 10), ...Array.from({ length: others }, (_, at) => 1000 + at * 100)],
    tick_vcpu: Array.from({ length: ticks + others }, () => random(2)),
    tick_outcome: Array.from({ length: ticks + others }, () => random(7)),
    tick_node: Array.from({ length: ticks + others }, (_, at) => random(at < later ? 5 : 6)),
    tick_entered: new Array(ticks + others).fill(0), wait_ns: [], wait_count: [], wait_flags: [],
  };
  for (const name of ["told_at", "told_running", "told_runnable", "told_blocked", "told_offline", "span_name", "span_vcpu", "span_from",
    "span_length", "span_nested", "event_at", "event_kind", "event_vcpu", "event_name", "event_value"]) columns[name] = [];
  const rings = [0, 1].map((vcpu) => ({ vcpu, held_since_ns: 0, evicted: 0, gaps: [], told: 0, tells_states: false }));
  const recordings = [
    { name: "a", mode: "cpu", unit: "samples", period_ns: 10, from_ns: 0, to_ns: 40000, ticks },
    { name: "b", mode: null, unit: "samples", period_ns: 0, from_ns: 1000, to_ns: 11000, ticks: others },
  ];
  return new Recording({
    head: {
      report: { recording: recordings[0], vcpus: [] }, vcpus: [0, 1], labels: [], names: [], images: [], files: [],
      time: { from_ns: 0, to_ns: 40000, unix_ns: null, rings, recordings },
    },
    columns: Object.fromEntries(Object.entries(columns).map(([name, values]) => [name, Float64Array.from(values)])),
  });
}

test("a range counts the same, whichever range was counted before", () => {
  const one = recording();
  for (const vcpus of [null, new Set([1])]) {
    for (const window of [[5000, 20000], [5000, 21000], [5500, 21000], [5500, 20000], [5400, 20500], [5600, 20400], [30000, 31000], [100, 39000]]) {
      const [found, anew] = [one, recording()].map((each) => {
        const selection = each.select({ window, vcpus, span: null });
        return { own: [...selection.own], total: [...each.totals(selection)], recorded: selection.recorded, sum: selection.sum };
      });
      assert.deepEqual(found, anew, `${window}`);
      assert.ok(found.recorded > 0);
    }
  }
});

test("more than was due came beyond chance, or nothing is missing", () => {
  const found = recording();
  const missing = (each) => {
    found.report.vcpus = [{ vcpu: 0, counters: { ticks: 100, missing: each } }, { vcpu: 1, counters: { ticks: 0, missing: null } }];
    return found.select({ window: null, vcpus: null, span: null }).sum.missing;
  };
  assert.deepEqual([-20, -21, 7, null].map(missing), [0, -21, 7, null]);
});

test("another recording has its own ticks, within its own time", () => {
  const found = recording();
  found.choose(1);
  assert.equal(found.mode, "cpu");
  assert.deepEqual(found.within(null), [1000, 11000]);
  assert.deepEqual(found.within([0, 2000]), [1000, 2000]);
  assert.deepEqual(found.within([20000, 30000]), [11000, 11000]);
  assert.equal(found.select({ window: found.within(null), vcpus: null, span: null }).sum.ticks, 100);
  found.choose(null);
  assert.equal(found.within(null), null);
  assert.equal(found.select({ window: [0, 40000], vcpus: null, span: null }).sum.ticks, 4000);
});

test("each cell's change between two ranges is what its counts say, and told from chance", () => {
  const found = recording(2000);
  const part = (window) => found.select({ window, vcpus: null, span: null });
  // All nodes but the third are cells.
  const cells = { to: [0, 1, 2, 2, 3, 4], parent: [0, 0, 1, 1, 0] };
  const sums = (window) => found.sumsByCell(part(window), cells);
  const [first, second, third] = [[0, 10000], [10000, 20000], [20000, 30000]].map(sums);
  const { parts, results } = found.byParts(part([0, 10000]), (own) => found.tree.totals(own)[2]);
  assert.deepEqual(first(2), sumsOf(parts, results));
  assert.ok(change(first(1), second(1)).p > 0.05, "nothing changed");
  for (const cell of [1, 4]) assert.ok(change(second(cell), third(cell)).p < 0.001, `cell ${cell} changed`);
});

/** A recording of waits on vCPU 0: `[from, length, count, flags, entered]`; its spans are `[from, length plus one]`, and its ring has gaps. */
function waiting(mode, waits, { gaps = [], spans = [] } = {}) {
  const columns = {
    node_depth: [1], node_label: [0], node_way: [0], count_node: [1], count_vcpu: [0], count_span: [0], count_value: [7],
    tick_at: waits.map(([from]) => from), tick_vcpu: waits.map(() => 0), tick_outcome: waits.map(() => 7), tick_node: waits.map(() => 1), tick_entered: waits.map(([, , , , entered = 0]) => entered),
    wait_ns: waits.map(([, length]) => length), wait_count: waits.map(([, , count]) => count), wait_flags: waits.map(([, , , flags]) => flags),
    span_name: spans.map(() => 0), span_vcpu: spans.map(() => 0), span_from: spans.map(([from]) => from),
    span_length: spans.map(([, length]) => length), span_nested: spans.map(() => 1),
  };
  for (const name of ["told_at", "told_running", "told_runnable", "told_blocked", "told_offline", "event_at", "event_kind", "event_vcpu",
    "event_name", "event_value"]) columns[name] = [];
  const recordings = [{ name: "a", mode, unit: "samples", period_ns: 10, from_ns: 0, to_ns: 1000, ticks: waits.length }];
  return new Recording({
    head: {
      report: { recording: recordings[0], vcpus: [] }, vcpus: [0], labels: [], names: ["s"], images: [], files: [],
      time: { from_ns: 0, to_ns: 1000, unix_ns: null, rings: [{ vcpu: 0, held_since_ns: 0, evicted: 0, gaps, told: 0, tells_states: false }], recordings },
    },
    columns: Object.fromEntries(Object.entries(columns).map(([name, values]) => [name, Float64Array.from(values)])),
  });
}

test("ranges that part the time sum to what was counted for its waits", () => {
  for (const mode of ["wall", "off-cpu"]) {
    // Of the second wait the vCPU had no CPU for the most, and the third has no stack.
    const found = waiting(mode, [[10, 333, 7, 3], [400, 300, 1, 3], [700, 10, 5, 2], [710, 90, 3, 1]]);
    const sum = (window) => found.select({ window, vcpus: null, span: null }).sum;
    const whole = sum([0, 1000]);
    assert.deepEqual([whole.blocks, whole.blocked, whole.blocked_overflow], [3, 11, 5]);
    for (const step of [7, 100, 333]) {
      const parts = Array.from({ length: Math.ceil(1000 / step) }, (_, at) => sum([at * step, Math.min((at + 1) * step, 1000)]));
      for (const name of ["blocks", "blocked", "blocked_overflow"]) assert.equal(parts.reduce((all, part) => all + part[name], 0), whole[name], `${name} by ${step}`);
    }
  }
});

test("a span whose end may lie in a gap is known up to the gap", () => {
  const found = waiting("off-cpu", [[0, 100, 100, 3], [500, 100, 100, 3]], { gaps: [[200, 300]], spans: [[0, 0]] });
  assert.deepEqual([...found.windowsOf(0).values()], [[[0, 200]]]);
  assert.equal(found.select({ window: null, vcpus: null, span: 0 }).sum.blocked, 100);
});

test("a span has what ran for it, wherever it lies", () => {
  const found = waiting("off-cpu", [[0, 100, 100, 3, 1], [500, 100, 40, 3], [700, 100, 7, 3, 2]], { spans: [[500, 51]] });
  assert.equal(found.select({ window: null, vcpus: null, span: 0 }).sum.blocked, 100 + 20);
});
