// Numbers and names as text.

/** A count with its thousands apart, as in `1,234,567`. */
export function grouped(count) {
  return Math.round(count).toString().replace(/\B(?=(\d{3})+$)/g, ",");
}

/** A number with so many decimal places; halves are rounded to an even digit, as the reports of the client do. */
export function fixed(number, digits) {
  const isHalf = Number.isInteger(number * 2 ** (digits + 1)) && !Number.isInteger(number * 2 ** digits);
  const scale = 10 ** digits;
  return (isHalf ? (2 * Math.round((number * scale) / 2)) / scale : number).toFixed(digits);
}

/** A share between 0 and 1 in percent, with one decimal place. */
export function percent(share) {
  if (share === null || share === undefined || !Number.isFinite(share)) return "-";
  if (share > 0 && share < 0.0005) return "<0.1 %";
  return `${fixed(share * 100, 1)} %`;
}

// What would be rounded to 1000 of a unit is in the next one.
const UNITS = [
  [999.5, 1, 0, "ns"],
  [999950, 1e3, 1, "µs"],
  [999950e3, 1e6, 1, "ms"],
  [59995e6, 1e9, 2, "s"],
];

/** A duration in ns, as the reports write it: `1.2 ms`, `3.18 s`, `1 h 02 min 03 s`. */
export function duration(ns) {
  for (const [below, length, digits, unit] of UNITS) {
    if (ns < below) return `${fixed(ns / length, ns % length === 0 ? 0 : digits)} ${unit}`;
  }
  const all = Math.floor(Math.max(ns, 6e10) / 1e9);
  const [hours, minutes, seconds] = [Math.floor(all / 3600), Math.floor(all / 60) % 60, all % 60];
  const two = (number) => String(number).padStart(2, "0");
  const parts = hours > 0 ? [`${grouped(hours)} h`] : [];
  if (hours === 0) parts.push(`${minutes} min`);
  else if (minutes > 0 || seconds > 0) parts.push(`${two(minutes)} min`);
  if (seconds > 0) parts.push(`${two(seconds)} s`);
  return parts.join(" ");
}

/** A moment in ns since the recording began, in seconds; `step` is the distance that is to be told. */
export function moment(ns, step) {
  const digits = Math.min(9, Math.max(0, Math.ceil(-Math.log10((step || 1e6) / 1e9))));
  return `${(ns / 1e9).toFixed(digits)} s`;
}

/** A moment in ns since the recording began, for a field: in seconds, to the microsecond. */
export function seconds(ns) {
  return (ns / 1e9).toFixed(6).replace(/0{1,3}$/, "");
}

/** A moment as a date (UTC), if the guest knows the date. */
export function clock(unixNs) {
  if (unixNs === null || unixNs === undefined) return "";
  const date = new Date(unixNs / 1e6);
  return Number.isNaN(date.getTime()) ? "" : date.toISOString().slice(11, 23);
}

/** Bytes in the largest unit that leaves a digit before the point. */
export function size(bytes) {
  let left = bytes;
  let at = 0;
  while (left >= (at === 0 ? 1023.5 : 1023.95) && at < 6) {
    left /= 1024;
    at += 1;
  }
  return at === 0 ? `${Math.round(left)} B` : `${fixed(left, Number.isInteger(left) ? 0 : 1)} ${["KiB", "MiB", "GiB", "TiB", "PiB", "EiB"][at - 1]}`;
}

/** A count in the unit of the recording: samples, nanoseconds, bytes or objects. */
export function amount(count, unit) {
  if (unit === "bytes") return size(count);
  return unit === "nanoseconds" ? duration(count) : grouped(count);
}

/** The same with the unit's name. */
export function amountWithUnit(count, unit) {
  if (unit === "nanoseconds" || unit === "bytes") return amount(count, unit);
  const one = unit === "objects" ? "object" : "sample";
  return Math.round(count) === 1 ? `1 ${one}` : `${grouped(count)} ${one}s`;
}

// Control characters, and those that turn the direction of text.
const HIDDEN = /[\p{Cc}\u200e\u200f\u2028-\u202e\u2066-\u2069\ufffe\uffff]/gu;

/** Text of the guest with what cannot be seen escaped. */
export function printable(text) {
  return text.replace(HIDDEN, (character) => `\\u{${character.codePointAt(0).toString(16)}}`);
}

/** The same for every text in a value of JSON. */
export function printableDeep(value) {
  if (typeof value === "string") return printable(value);
  if (Array.isArray(value)) return value.map(printableDeep);
  if (value === null || typeof value !== "object") return value;
  return Object.fromEntries(Object.entries(value).map(([key, part]) => [key, printableDeep(part)]));
}

/** The crate, namespace or prefix that a function belongs to. */
export function moduleOf(name) {
  if (name.startsWith("<")) return crateOf(name);
  const end = name.indexOf("::");
  return end < 0 ? name.replace(/(?!^)[_(<.].*/, "") : name.slice(0, end);
}

/** That of Rust's `<Type>::f` and `<Type as Trait>::f`: the type's, or the trait's if the type has none. */
function crateOf(name) {
  const type = name.replace(/^(?:[<&*([]|dyn |mut |const )+/, "");
  const path = /^(\w+)::/.exec(type) ?? / as (?:dyn )?(\w+)::/.exec(type) ?? /^(\w+)/.exec(type);
  return path ? path[1] : name;
}

/** FNV-1a of a text's UTF-16 units. */
export function hashOf(text) {
  let hash = 0x811c9dc5;
  for (let at = 0; at < text.length; at += 1) {
    hash = Math.imul(hash ^ text.charCodeAt(at), 0x01000193);
  }
  return (hash ^ (hash >>> 15)) >>> 0;
}

/** Compares names as people expect them in a list. */
export function byName(a, b) {
  return a < b ? -1 : Number(a > b);
}
