// Colours of cells: fills that dark text is legible on, in both themes.
import { hashOf, moduleOf } from "./format.js";

const MARK = "#a9adb4";
const ADDRESS = "#cfd4db";
const AGENT = "#b39df2";

/** The text on every cell. */
export const INK = "#1b1a18";
/** Cells that the search matches. */
export const MATCH = "#ff7ae0";
/** Cells that are merged because they are narrower than a pixel. */
export const MERGED = "#c9c5bb";

/** How callers were found, by code: fill and meaning. */
export const WAYS = [
  ["#d8d4c9", "no caller: the outermost frame, or a mark"],
  ["#f2e9c9", "inlined, by the debug information"],
  ["#8fd19e", "row of the caller table"],
  ["#9cc3ee", "frame pointer, with a frame record there"],
  ["#c4b5e8", "frame pointer or row: no image or settings to tell by"],
  ["#f0b85a", "guessed from instructions or the frame pointer: no row"],
  ["#ef8f7d", "missing: no frame record there, or a broken stack"],
];

const OTHERS = [[MARK, "a mark"], [ADDRESS, "code without a name"], [AGENT, "the profiler's agent"], [MERGED, "folded or merged"]];

/** What fills mean, by what they are chosen by. */
export const LEGENDS = {
  module: [["hsl(30 78% 72%)", "the program, a hue for each module"], ["hsl(168 52% 72%)", "libraries"], ...OTHERS],
  image: [["hsl(36 60% 72%)", "a hue for each image"], ...OTHERS],
  kind: [["hsl(36 80% 72%)", "the program"], ["hsl(168 45% 68%)", "libraries"], ...OTHERS],
};

/** The way where the file does not tell how a recording found its callers. */
export const UNCHECKED = 4;

/** By group, the way that most samples have of the nodes that `groups` puts into it. */
export function waysOf(ways, total, groups, length) {
  const sums = new Float64Array(length * WAYS.length);
  for (let node = 1; node < ways.length; node += 1) sums[groups[node] * WAYS.length + ways[node]] += total[node];
  return Uint8Array.from({ length }, (_, group) => {
    let most = 0;
    for (let way = 1; way < WAYS.length; way += 1) if (sums[group * WAYS.length + way] > sums[group * WAYS.length + most]) most = way;
    return most;
  });
}

const unit = (hash) => (hash % 1000) / 999;

/** The colours of labels: by module, by image or by kind. */
export class Palette {
  constructor(labels, by) {
    const counts = new Map();
    for (const { image } of labels) if (image !== null) counts.set(image, (counts.get(image) ?? 0) + 1);
    const [program] = [...counts].sort((a, b) => b[1] - a[1])[0] ?? [null];
    this.labels = labels;
    this.by = by;
    this.program = program;
    this.known = new Array(labels.length);
  }

  color(label) {
    this.known[label] ??= this.find(this.labels[label]);
    return this.known[label];
  }

  find({ name, kind, image }) {
    if (kind === "agent" || name === "[unikprof agent]") return AGENT;
    if (kind === "special") return MARK;
    if (kind === "address") return ADDRESS;
    const isProgram = image === this.program;
    if (this.by === "kind") return isProgram ? "hsl(36 80% 72%)" : "hsl(168 45% 68%)";
    if (this.by === "image") return `hsl(${(hashOf(image ?? "") * 47) % 360} 60% 72%)`;
    const part = hashOf(moduleOf(name));
    // The program is warm, from red to yellow; its libraries are green to blue.
    const [from, to, least] = isProgram ? [8, 52, 68] : [130, 205, 42];
    const hue = from + (to - from) * unit(part);
    return `hsl(${hue.toFixed(1)} ${(least + 20 * unit(part >>> 10)).toFixed(1)}% ${(68 + 10 * unit(hashOf(name))).toFixed(1)}%)`;
  }
}

/** The colour of a change between two shares: red is more, blue is less; what may be chance is pale. */
export function changeColor(base, now, isCertain) {
  const whole = Math.max(base, now);
  if (whole === 0) return "#e6e4de";
  const part = (now - base) / whole;
  // Too little to be seen.
  if (Math.abs(part) < 0.02) return "#e6e4de";
  const light = isCertain ? 84 - 24 * Math.min(1, Math.abs(part)) : 93;
  return part >= 0 ? `hsl(8 85% ${light}%)` : `hsl(214 80% ${light}%)`;
}
