// Intervals of shares, as the reports of the client compute them.

/** The normal distribution holds 95 % within this many standard deviations. */
const Z = 1.959963984540054;

/** From this share of samples without a known place on, intervals include what these could change. */
export const NOTABLE = 0.02;

/** Into how many equal parts of the time samples are sorted to see whether they come in clusters, and how many tell. */
export const PARTS = 32;
const LEAST_PARTS = 8;

/** Wilson's score interval of a share of `n` independent samples. */
export function wilson(share, n) {
  if (n === 0) return [0, 1];
  const z2 = Z * Z;
  const center = share + z2 / (2 * n);
  const spread = Z * Math.sqrt((share * (1 - share)) / n + z2 / (4 * n * n));
  const scale = 1 + z2 / n;
  const low = (center - spread) / scale;
  const high = (center + spread) / scale;
  return [Math.min(Math.max(low, 0), share), Math.min(Math.max(high, share), 1)];
}

/** How many standard deviations contain 95 % if the deviation is estimated with `freedom` degrees of freedom. */
export function student(freedom) {
  const terms = [
    (Z ** 3 + Z) / 4,
    (5 * Z ** 5 + 16 * Z ** 3 + 3 * Z) / 96,
    (3 * Z ** 7 + 19 * Z ** 5 + 17 * Z ** 3 - 15 * Z) / 384,
  ];
  return terms.reduce((sum, term, at) => sum + term / freedom ** (at + 1), Z);
}

/** Samples that were due and whose place is not known, of the counters of each vCPU; `null` where they are too few to matter. */
export function unplaced(vcpus, mode, samples) {
  if (mode === "off-cpu") return null;
  const all = { missing: 0, dropped: 0, late: 0, aged: 0 };
  for (const counters of vcpus) {
    // What is missing of one kind of time is made up for by none of another.
    const blocked = mode === "wall" ? (counters.missing_blocked ?? 0) : 0;
    const waited = counters.blocked + counters.blocked_overflow + counters.blocked_aged;
    for (const [missing, came] of [[(counters.missing ?? 0) - blocked, counters.ticks], [blocked, waited]]) {
      if (missing > 2 * Math.sqrt(missing + came)) all.missing += missing;
    }
    all.dropped += counters.overflow + counters.lost + counters.masked;
    all.late += counters.late;
    all.aged += counters.aged;
  }
  const outside = all.missing + all.dropped;
  const count = outside + all.late + all.aged;
  return count > NOTABLE * (samples + outside) ? { ...all, outside, count } : null;
}

/**
 * The 95 % interval of `hits` of so many samples of this recording; `unknown` are the samples without a known place, of
 * which `inDoubt` are among the hits, and `hidden` those that may be hits because their broken or truncated stacks lack callers.
 */
export function interval(hits, samples, unknown, inDoubt, hidden = 0) {
  const share = Math.min(hits / samples, 1) || 0;
  const [low, high] = wilson(share, samples);
  const more = hidden > NOTABLE * samples ? hidden / samples : 0;
  if (!unknown) return [low, Math.min(high + more, 1)];
  const due = samples + unknown.outside;
  return [
    Math.min(Math.max((low * samples - inDoubt) / due, 0), share),
    Math.max(Math.min((high * samples + unknown.late + unknown.aged + unknown.outside) / due + more, 1), share),
  ];
}

/** The variance of a share between the parts of the time, or of independent samples where that is more. */
function variance({ parts, samples, samples2, hits, hits2, both }) {
  const share = hits / samples;
  const apart = Math.max(hits2 - 2 * share * both + share * share * samples2, 0);
  const between = (apart * (parts / (parts - 1))) / (samples * samples);
  return Math.max(between, (share * (1 - share)) / samples);
}

/** What of the parts of a range of time and the counts in them is needed for a change: their number, and sums over them. */
export function sumsOf(parts, counts) {
  const sums = { parts: parts.length, samples: 0, samples2: 0, hits: 0, hits2: 0, both: 0 };
  for (let at = 0; at < parts.length; at += 1) {
    sums.samples += parts[at];
    sums.samples2 += parts[at] ** 2;
    sums.hits += counts[at];
    sums.hits2 += counts[at] ** 2;
    sums.both += parts[at] * counts[at];
  }
  return sums;
}

/**
 * How a share changed from one range of time to another: the difference, its 95 % interval, and how likely chance makes
 * it as large. `null` for p and interval where a range has too few parts with samples.
 */
export function change(base, now) {
  const difference = now.hits / now.samples - base.hits / base.samples;
  if (Math.min(base.parts, now.parts) < LEAST_PARTS) return { difference, interval: null, p: null };
  const deviation = Math.sqrt(variance(base) + variance(now));
  const freedom = Math.min(base.parts, now.parts) - 1;
  const reach = student(freedom) * deviation;
  // The normal quantile that leaves as much as Student's t at this distance.
  const t = deviation > 0 ? Math.abs(difference) / deviation : 0;
  const z = t * (1 - 1 / (4 * freedom)) / Math.sqrt(1 + (t * t) / (2 * freedom));
  return { difference, interval: [difference - reach, difference + reach], p: 2 * (1 - normal(z)) };
}

/** The normal distribution (M. Abramowitz and I. A. Stegun, "Handbook of Mathematical Functions", 7.1.26). */
function normal(z) {
  const x = z / Math.SQRT2;
  const t = 1 / (1 + 0.3275911 * x);
  const sum = ((((1.061405429 * t - 1.453152027) * t + 1.421413741) * t - 0.284496736) * t + 0.254829592) * t;
  return (2 - sum * Math.exp(-x * x)) / 2;
}

/** Which of these p-values are significant at 5 %, with so many of them: Benjamini and Hochberg, 1995. */
export function significant(values) {
  const known = values.map((p, at) => [p, at]).filter(([p]) => p !== null);
  known.sort((a, b) => a[0] - b[0]);
  let last = -1;
  known.forEach(([p], rank) => {
    if (p <= (0.05 * (rank + 1)) / known.length) last = rank;
  });
  const found = values.map(() => false);
  for (const [, at] of known.slice(0, last + 1)) found[at] = true;
  return found;
}
