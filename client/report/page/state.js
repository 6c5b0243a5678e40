// What the page shows, as the fragment of its address.

export const VIEWS = ["icicle", "flame", "left", "tree", "sandwich", "table"];
export const MERGES = ["function", "module", "image"];
export const COLORS = ["module", "image", "kind", "caller"];
export const SORTS = ["own", "total", "name", "change", "calls", "waited", "p50", "p99", "max"];

/** What is shown at first: everything. Times are in ns since the recording began. */
export function initialState() {
  return {
    view: "icicle",
    window: null,
    base: null,
    zoom: null,
    vcpus: null,
    recording: null,
    span: null,
    query: "",
    chosen: null,
    focus: null,
    hide: [],
    collapse: false,
    merge: "function",
    color: "module",
    sort: "own",
    node: 0,
    open: null,
    unfold: false,
    theme: null,
  };
}

const range = {
  write: (value) => value.map(Math.round).join("-"),
  read: (text) => {
    const match = /^(\d+)-(\d+)$/.exec(text);
    const [from, to] = match ? [Number(match[1]), Number(match[2])] : [0, 0];
    return from < to ? [from, to] : undefined;
  },
};
const number = {
  write: String,
  read: (text) => (/^\d{1,15}$/.test(text) ? Number(text) : undefined),
};
const numbers = {
  write: (value) => [...value].join("."),
  read: (text) => (/^\d{1,9}(\.\d{1,9})*$/.test(text) ? text.split(".").map(Number) : undefined),
};
const set = {
  write: numbers.write,
  read: (text) => {
    const found = numbers.read(text);
    return found && new Set(found);
  },
};
const text = { write: String, read: (value) => value };
const flag = { write: () => "1", read: (value) => value === "1" || undefined };
const oneOf = (words) => ({ write: String, read: (value) => (words.includes(value) ? value : undefined) });

const FIELDS = {
  view: oneOf(VIEWS),
  window: range,
  base: range,
  zoom: range,
  vcpus: set,
  recording: number,
  span: number,
  query: text,
  chosen: number,
  focus: number,
  hide: numbers,
  collapse: flag,
  merge: oneOf(MERGES),
  color: oneOf(COLORS),
  sort: oneOf(SORTS),
  node: number,
  open: set,
  unfold: flag,
  theme: oneOf(["light", "dark"]),
};

/** The fragment for a state: what differs from the initial one. */
export function toFragment(state) {
  const initial = initialState();
  const parts = Object.entries(FIELDS).flatMap(([key, { write }]) => {
    const value = state[key];
    const isInitial = value === null || value === initial[key] || (Array.isArray(value) && value.length === 0);
    return isInitial ? [] : [`${key}=${encodeURIComponent(write(value))}`];
  });
  return parts.join("&");
}

/** The state of a fragment. What it does not say, or says badly, is as at first. */
export function fromFragment(fragment) {
  const state = initialState();
  for (const part of fragment.replace(/^#/, "").split("&")) {
    const at = part.indexOf("=");
    const key = part.slice(0, at);
    if (at < 0 || !Object.hasOwn(FIELDS, key)) continue;
    let value;
    try {
      value = FIELDS[key].read(decodeURIComponent(part.slice(at + 1)));
    } catch {
      // Not a URI component.
    }
    if (value !== undefined) state[key] = value;
  }
  return state;
}
