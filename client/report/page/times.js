// How a vCPU's time was spent, from the moments at which the ring tells of it.

/** So far apart two moments about a window's ends may be, in ns. */
const APART_NS = 2500000000;

/** The first index in a rising array whose value is above `at`, or with `orEqual` not below it. */
export function upper(values, at, orEqual = false) {
  let low = 0;
  let high = values.length;
  while (low < high) {
    const middle = (low + high) >> 1;
    if (orEqual ? values[middle] < at : values[middle] <= at) low = middle + 1;
    else high = middle;
  }
  return low;
}

/** The moments of one vCPU: `at`, and the running, runnable, blocked and offline time until then in `sums`. */
export class Times {
  constructor(at, sums, tellsStates) {
    this.at = at;
    this.sums = sums;
    this.tellsStates = tellsStates;
  }

  /** The time of a window in ns: running, runnable, blocked, offline; `null` where it is not known. */
  ofWindow(from, to) {
    if (this.at.length === 0) return null;
    const reachedFrom = Math.max(from, this.at[0]);
    const reachedTo = Math.max(Math.min(to, this.at[this.at.length - 1]), reachedFrom);
    const covered = reachedTo - reachedFrom;
    const whole = to - from;
    if (covered === 0 || covered < Math.floor(whole / 2)) return null;
    const allowed = Math.max(whole, APART_NS);
    if (this.gap(reachedFrom) > allowed || this.gap(reachedTo) > allowed) return null;
    const part = (which) => {
      const grown = this.sum(which, reachedTo) - this.sum(which, reachedFrom);
      return grown <= 0n ? 0 : Number((grown * BigInt(whole)) / BigInt(covered));
    };
    const other = (which) => (this.tellsStates ? part(which) : null);
    return [part(0), other(1), other(2), other(3)];
  }

  /** The same as shares of the window's length, for drawing; together at most 1, also where a host measured more. */
  shares(from, to) {
    const time = this.ofWindow(from, to);
    const all = time?.reduce((sum, ns) => sum + ns, 0);
    return time?.map((ns) => ns / Math.max(all, to - from)) ?? null;
  }

  gap(at) {
    const after = upper(this.at, at);
    if (after === 0 || after === this.at.length || this.at[after - 1] === at) return 0;
    return this.at[after] - this.at[after - 1];
  }

  /** Exact: products of times do not fit a floating-point number. */
  sum(which, at) {
    const after = upper(this.at, at);
    const values = this.sums[which];
    const before = BigInt(values[after - 1]);
    if (after === this.at.length) return before;
    const step = BigInt(Math.max(this.at[after] - this.at[after - 1], 1));
    const grown = BigInt(values[after]) - before;
    return grown <= 0n ? before : before + (grown * BigInt(at - this.at[after - 1])) / step;
  }
}

/** The windows of equal parts of a window, as the reports divide it: the step and how many there are. */
export function partsOf(from, to, parts) {
  const length = to - from;
  const step = Math.max(Math.ceil(length / parts), 1);
  const whole = Math.floor(length / step);
  const rest = length % step;
  const isCrumb = whole > 0 && rest < Math.floor(step / 10);
  return { step, count: isCrumb ? whole : Math.ceil(length / step) };
}
