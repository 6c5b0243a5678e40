// What a part of the time, of the vCPUs and of the guest's spans comes to.
import { PARTS } from "./statistics.js";
import { Times, partsOf, upper } from "./times.js";
import { Tree } from "./tree.js";

/** Outcomes of ticks, by their codes. */
export const OUTCOMES = ["recorded", "late", "aged", "overflow", "lost", "masked", "idle", "blocked"];
const LATE = 1;
const AGED = 2;
const BLOCKED = 7;

const COUNTERS = ["ticks", "recorded", "aged", "overflow", "lost", "masked", "idle", "early", "late", "truncated",
  "broken", "by_table", "by_bytes", "by_frame_pointer", "mixed", "blocks", "blocked", "blocked_overflow", "blocked_aged"];

function noCounters() {
  return { missing: null, ...Object.fromEntries(COUNTERS.map((name) => [name, 0])) };
}

/** Counters of several vCPUs together. */
export function sumOf(all) {
  const sum = noCounters();
  for (const counters of all) {
    for (const name of COUNTERS) sum[name] += counters[name];
    if (counters.missing !== null) sum.missing = (sum.missing ?? 0) + counters.missing;
  }
  return sum;
}

/** A recording: its stacks, its counts and its time. */
export class Recording {
  constructor({ head, columns }) {
    this.head = head;
    this.columns = columns;
    this.report = head.report;
    this.mode = head.report.recording.mode;
    this.unit = head.report.recording.unit;
    this.period = head.report.recording.period_ns;
    this.time = head.time;
    this.vcpus = head.vcpus;
    this.labels = head.labels.map(([name, kind, image, file, line]) => ({
      name,
      kind,
      image: image === 0 ? null : head.images[image - 1],
      file: file === 0 ? null : head.files[file - 1],
      line,
    }));
    this.tree = Tree.fromDepths(columns.node_depth, columns.node_label);
    this.marks = this.findMarks();
    this.hasMarks = this.marks.some((mark) => mark !== 0);
    if (this.time) {
      this.splitWaits();
      this.times = this.readTimes();
      this.spans = this.readSpans();
      this.events = this.readEvents();
    }
  }

  label(name) {
    return this.labels.findIndex((label) => label.kind === "special" && label.name === name);
  }

  /** By node: 1 below `[truncated]`, 2 below `[broken]`, as the outermost frame. */
  findMarks() {
    const marks = new Uint8Array(this.tree.length);
    const [truncated, broken] = [this.label("[truncated]"), this.label("[broken]")];
    for (let node = 1; node < this.tree.length; node += 1) {
      const parent = this.tree.parent[node];
      if (parent !== 0) marks[node] = marks[parent];
      else if (this.tree.label[node] === truncated && truncated >= 0) marks[node] = 1;
      else if (this.tree.label[node] === broken && broken >= 0) marks[node] = 2;
    }
    return marks;
  }

  /** Ticks and waits apart. A tick's vCPU is its place among all: the numbers of vCPUs may be any. */
  splitWaits() {
    const { tick_at: at, tick_vcpu: vcpu, tick_outcome: outcome, tick_node: node, wait_ns: ns, wait_stack: stack } = this.columns;
    this.placeOf = new Map();
    for (const number of [...this.vcpus, ...vcpu]) if (!this.placeOf.has(number)) this.placeOf.set(number, this.placeOf.size);
    const length = at.length - ns.length;
    this.ticks = {
      at: ns.length === 0 ? at : new Float64Array(length),
      place: new Uint16Array(length),
      outcome: new Uint8Array(length),
      node: ns.length === 0 ? node : new Uint32Array(length),
    };
    this.waits = [];
    let next = 0;
    for (let index = 0; index < at.length; index += 1) {
      if (outcome[index] === BLOCKED) {
        const which = this.waits.length;
        const from = at[index];
        this.waits.push({ from, to: from + ns[which], vcpu: vcpu[index], node: node[index], hasStack: stack[which] === 1 });
        continue;
      }
      this.ticks.at[next] = at[index];
      this.ticks.place[next] = this.placeOf.get(vcpu[index]);
      this.ticks.outcome[next] = outcome[index];
      this.ticks.node[next] = node[index];
      next += 1;
    }
  }

  readTimes() {
    const { told_at: at, told_running: running, told_runnable: runnable, told_blocked: blocked, told_offline: offline } = this.columns;
    const times = new Map();
    let begin = 0;
    for (const ring of this.time.rings) {
      const end = begin + ring.told;
      const part = (values) => values.subarray(begin, end);
      times.set(ring.vcpu, new Times(part(at), [running, runnable, blocked, offline].map(part), ring.tells_stolen));
      begin = end;
    }
    return times;
  }

  readSpans() {
    const { span_name: name, span_vcpu: vcpu, span_from: from, span_length: length, span_moved: moved } = this.columns;
    return Array.from(name, (id, at) => ({
      name: id,
      vcpu: vcpu[at],
      from: from[at],
      to: length[at] === 0 ? null : from[at] + length[at] - 1,
      moved: moved[at] === 1,
    }));
  }

  readEvents() {
    const { event_at: at, event_kind: kind, event_vcpu: vcpu, event_name: name, event_value: value } = this.columns;
    const kinds = ["mark", "counter", "began", "ended", "resumed"];
    return Array.from(at, (moment, index) => ({
      at: moment,
      kind: kinds[kind[index]],
      vcpu: vcpu[index],
      name: name[index],
      value: value[index],
    }));
  }

  /** How a vCPU's time was spent; it is not known inside spans. */
  timesOf(vcpu) {
    const inside = this.report.window?.inside ?? null;
    return (inside === null && this.times.get(vcpu)) || new Times([], [], false);
  }

  /** The names of spans, by their ids. */
  spanNames() {
    const names = [...new Set((this.spans ?? []).map((span) => span.name))];
    return names.map((id) => [id, this.head.names[id]]);
  }

  /** When a span of this name was open on each vCPU: windows in order and apart. */
  windowsOf(name) {
    const windows = new Map(this.time.rings.map((ring) => [ring.vcpu, []]));
    for (const span of this.spans) {
      if (span.name !== name || span.moved) continue;
      const to = span.to ?? Infinity;
      const known = windows.get(span.vcpu);
      if (known === undefined || to <= span.from) continue;
      const last = known[known.length - 1];
      if (last && span.from <= last[1]) last[1] = Math.max(last[1], to);
      else known.push([span.from, to]);
    }
    return windows;
  }

  /**
   * The counts of a part: `window` is a pair of moments, or `null` for the whole recording; `vcpus` a set, or `null`
   * for all; `span` a name's id, or `null`.
   */
  select({ window, vcpus, span }) {
    const own = new Float64Array(this.tree.length);
    const isIn = (vcpu) => vcpus === null || vcpus.has(vcpu);
    const shown = this.vcpus.filter(isIn);
    if (window === null && span === null) {
      const { count_node: node, count_vcpu: vcpu, count_value: value } = this.columns;
      let recorded = 0;
      for (let at = 0; at < node.length; at += 1) {
        if (!isIn(vcpu[at])) continue;
        own[node[at]] += value[at];
        recorded += value[at];
      }
      const counters = this.report.vcpus.filter((each) => isIn(each.vcpu)).map((each) => each.counters);
      return this.selection({ own, recorded, counters, shown, window: null, isWhole: true });
    }
    const [from, to] = window ?? [this.time.from_ns, this.time.to_ns];
    const allowed = span === null ? null : this.windowsOf(span);
    const byVcpu = new Map(shown.map((vcpu) => [vcpu, { ...noCounters(), blockedNs: 0 }]));
    const recorded = this.countTicks(from, to, byVcpu, allowed, own) + this.countWaits(from, to, byVcpu, allowed, own);
    for (const [vcpu, counters] of byVcpu) counters.missing = span === null ? this.missing(vcpu, from, to, counters) : null;
    this.countMarks(own, byVcpu);
    return this.selection({ own, recorded, counters: [...byVcpu.values()], shown, window: [from, to], allowed, isWhole: false });
  }

  /** Adds what tells how the part's samples lie in time. */
  selection(part) {
    const [from, to] = part.window ?? (this.time ? [this.time.from_ns, this.time.to_ns] : [0, 0]);
    return { ...part, from, to, counters: part.counters, sum: sumOf(part.counters) };
  }

  /** Adds the ticks of a range to the counters and to the counts of nodes; gives how many have a stack. */
  countTicks(from, to, byVcpu, allowed, own) {
    const { at, place, outcome, node } = this.ticks;
    const end = upper(at, to, true);
    let recorded = 0;
    // A counter for each vCPU and outcome, looked up once.
    const width = OUTCOMES.length;
    const sums = new Float64Array(this.placeOf.size * width);
    const isIn = new Uint8Array(this.placeOf.size);
    const windows = [];
    for (const vcpu of byVcpu.keys()) {
      isIn[this.placeOf.get(vcpu)] = 1;
      windows[this.placeOf.get(vcpu)] = allowed?.get(vcpu);
    }
    for (let index = upper(at, from, true); index < end; index += 1) {
      const on = place[index];
      if (isIn[on] === 0 || (allowed !== null && !holds(windows[on], at[index]))) continue;
      const kind = outcome[index];
      sums[on * width + kind] += 1;
      if (kind <= AGED) {
        recorded += 1;
        own[node[index]] += 1;
      }
    }
    for (const [vcpu, counters] of byVcpu) {
      OUTCOMES.forEach((name, kind) => {
        const ticks = sums[this.placeOf.get(vcpu) * width + kind];
        counters.ticks += ticks;
        counters[name] += ticks;
        if (kind === LATE) counters.recorded += ticks;
      });
    }
    return recorded;
  }

  /** The same for waits. */
  countWaits(from, to, byVcpu, allowed, own) {
    let recorded = 0;
    for (const wait of this.waits) {
      const counters = byVcpu.get(wait.vcpu);
      const [first, last] = [Math.max(wait.from, from), Math.min(wait.to, to)];
      if (counters === undefined || last <= first) continue;
      const ns = allowed === null ? last - first : lengthWithin(allowed.get(wait.vcpu) ?? [], first, last);
      if (ns === 0) continue;
      const before = counters.blockedNs;
      counters.blockedNs += ns;
      // One sample for each period, whichever waits it is made of.
      const periods = (time) => Math.floor(time / this.period);
      const amount = this.mode === "wall" ? periods(counters.blockedNs) - periods(before) : ns;
      counters.blocks += 1;
      if (!wait.hasStack) {
        counters.blocked_overflow += amount;
        continue;
      }
      counters.blocked += amount;
      recorded += amount;
      own[wait.node] += amount;
    }
    return recorded;
  }

  missing(vcpu, from, to, counters) {
    const ring = this.time.rings.find((each) => each.vcpu === vcpu);
    if (ring === undefined || this.mode === "off-cpu" || !(this.period > 0)) return null;
    const since = Math.max(from, ring.held_since_ns);
    const time = this.timesOf(vcpu).ofWindow(since, Math.max(to, since));
    if (time === null) return null;
    const blocked = counters.blocked + counters.blocked_overflow + counters.blocked_aged;
    const [due, came] = this.mode === "wall" ? [time[0] + time[2], counters.ticks + blocked] : [time[0], counters.ticks];
    return Math.floor(due / this.period) - came;
  }

  /** Stacks that are cut or end badly; they are not known by vCPU. */
  countMarks(own, byVcpu) {
    const [first] = byVcpu.values();
    if (first === undefined || !this.hasMarks) return;
    for (let node = 1; node < own.length; node += 1) {
      if (this.marks[node] === 1) first.truncated += own[node];
      if (this.marks[node] === 2) first.broken += own[node];
    }
  }

  /**
   * The samples of each part of the time that has any, and what `each` makes of the counts of every part's nodes; `null`
   * where there is no time, or all samples lie in one part.
   */
  byParts(selection, each) {
    if (!this.time || this.unit === "nanoseconds") return null;
    const { from, to, allowed = null } = selection;
    const { step, count } = partsOf(from, to, PARTS);
    const own = new Float64Array(this.tree.length);
    const vcpus = new Map(selection.shown.map((vcpu) => [vcpu, { ...noCounters(), blockedNs: 0 }]));
    const [parts, results] = [[], []];
    for (let part = 0; part < count; part += 1) {
      const first = from + part * step;
      const last = part === count - 1 ? to : Math.min(first + step, to);
      own.fill(0);
      const samples = this.countTicks(first, last, vcpus, allowed, own) + this.countWaits(first, last, vcpus, allowed, own);
      if (samples === 0) continue;
      parts.push(samples);
      results.push(each(own));
    }
    return parts.length < 2 ? null : { parts, results };
  }
}

function holds(windows = [], at) {
  const after = upperOf(windows, at);
  return after > 0 && at < windows[after - 1][1];
}

/** The first of these windows that begins after a moment. */
function upperOf(windows, at) {
  let low = 0;
  let high = windows.length;
  while (low < high) {
    const middle = (low + high) >> 1;
    if (windows[middle][0] <= at) low = middle + 1;
    else high = middle;
  }
  return low;
}

function lengthWithin(windows, from, to) {
  let sum = 0;
  for (let index = Math.max(upperOf(windows, from) - 1, 0); index < windows.length && windows[index][0] < to; index += 1) {
    sum += Math.max(0, Math.min(windows[index][1], to) - Math.max(windows[index][0], from));
  }
  return sum;
}
