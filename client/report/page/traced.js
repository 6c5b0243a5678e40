// A trace: its calls, and what they add up to in a part of the time.
import { upper } from "./times.js";

const PARTS = ["start", "length", "self", "waited", "function", "vcpu", "lane", "row", "end", "outermost", "hole"];

export class Traced {
  constructor({ head, columns }) {
    this.head = head;
    this.time = head.time;
    // Each function has a colour of its own, as images have elsewhere.
    this.labels = head.names.map((name) => ({ name, kind: "function", image: name }));
    this.calls = Object.fromEntries(PARTS.map((part) => [part, columns[`call_${part}`] ?? []]));
    this.depths = (head.time?.lanes ?? []).map(() => 0);
    for (const [call, lane] of this.calls.lane.entries()) this.depths[lane] = Math.max(this.depths[lane], this.calls.row[call]);
  }

  /** The calls that begin in a range: the first of them, and the one after the last. */
  within([from, to]) {
    // Nothing is after the end.
    return [upper(this.calls.start, from, true), upper(this.calls.start, to, to < this.time.to_ns)];
  }

  /**
   * What the calls of each function add up to: as the report says it of the whole trace, or, for a range, of the calls that
   * begin in it. `ends` has how many ended in each way; quantiles are of those that returned.
   */
  rows(range) {
    if (range === null) return this.head.report.functions.map((found, at) => rowOfReport(found, this.head.numbers[at]));
    const { calls } = this;
    const rows = new Map();
    const [first, end] = this.within(range);
    for (let call = first; call < end; call += 1) {
      const label = calls.function[call];
      if (!rows.has(label)) rows.set(label, { label, calls: 0, total: 0, own: 0, waited: 0, ends: this.head.ends.map(() => 0), lengths: [] });
      const row = rows.get(label);
      row.calls += 1;
      row.ends[calls.end[call]] += 1;
      if (calls.outermost[call]) row.total += calls.length[call];
      row.own += calls.self[call];
      row.waited += calls.waited[call];
      if (calls.end[call] === 0) row.lengths.push(calls.length[call]);
    }
    for (const row of rows.values()) {
      const lengths = Float64Array.from(row.lengths).sort();
      const at = (permille) => lengths[Math.max(Math.ceil((lengths.length * permille) / 1000), 1) - 1] ?? null;
      Object.assign(row, { p50: at(500), p99: at(990), max: at(1000) });
    }
    return [...rows.values()];
  }

  /** The durations of a function's calls that returned, likewise: a line for each power of two, from the first to the last. */
  histogram(label, range) {
    const { head, time, calls: { length, end, function: labels } } = this;
    const lines = [];
    const count = (ns, calls) => {
      const power = powerOf(ns);
      lines[power] = (lines[power] ?? 0) + calls;
    };
    if (range === null && !head.is_part) {
      for (const { from_ns: from, calls } of head.report.functions[head.numbers.indexOf(label)]?.histogram ?? []) count(from, calls);
    } else {
      const [first, last] = this.within(range ?? [time.from_ns, time.to_ns]);
      for (let call = first; call < last; call += 1) if (labels[call] === label && end[call] === 0) count(length[call], 1);
    }
    const first = lines.findIndex((calls) => calls > 0);
    return first < 0 ? [] : Array.from({ length: lines.length - first }, (_, at) => {
      const power = first + at;
      return { from: power === 0 ? 0 : 2 ** power, to: 2 ** (power + 1) - 1, calls: lines[power] ?? 0 };
    });
  }

  /** By function: the calls that begin in each of `columns` equal parts of a range; none for a function without any. */
  overTime([from, to], columns) {
    const counts = this.labels.map(() => null);
    const [first, end] = this.within([from, to]);
    for (let call = first; call < end; call += 1) {
      const label = this.calls.function[call];
      counts[label] ??= new Float64Array(columns);
      counts[label][Math.min(Math.floor(((this.calls.start[call] - from) * columns) / (to - from)), columns - 1)] += 1;
    }
    return counts;
  }
}

function rowOfReport(found, label) {
  const { calls, total_ns: total, self_ns: own, waited_ns: waited, p50_ns: p50, p99_ns: p99, max_ns: max } = found;
  const ends = [found.returned, found.unwound, found.replaced, found.open, found.lost_ends];
  return { label, calls, total, own, waited, p50, p99, max, ends };
}

/** The largest power of two that a duration reaches, 0 for none. */
function powerOf(ns) {
  return ns < 2 ** 31 ? Math.max(31 - Math.clz32(ns), 0) : 31 + powerOf(ns / 2 ** 31);
}
