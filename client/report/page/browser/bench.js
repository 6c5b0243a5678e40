// Measures a page by hand: how long it takes until the first graph is drawn, and how many frames a second a dragged range
// has, with 1,000,000 samples of one hour over 100,000 stacks.
//
//   npm run bench -- /path/run.html          any page that `unikprof-client report` wrote: its program is what is measured
//   npm run bench -- /path/run.html 349200   with so many samples
//   npm run bench -- /path/run.html 1000000 view=table   what the page shows, as in its address
import { readFileSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import process from "node:process";
import { gunzipSync, gzipSync } from "node:zlib";
import { chromium } from "playwright-core";

const SAMPLES = Number(process.argv[3] ?? 1e6);
const STACKS = 1e5;
const HOUR = 3.6e12;
const FUNCTIONS = 5000;

let seed = 1;
function random(below) {
  seed = (Math.imul(seed, 1664525) + 1013904223) >>> 0;
  return Math.floor((seed / 2 ** 32) * below);
}

function leb128(values) {
  const bytes = [];
  for (let value of values) {
    while (value >= 128) {
      bytes.push((value % 128) | 128);
      value = Math.floor(value / 128);
    }
    bytes.push(value);
  }
  return Buffer.from(bytes);
}

/** A tree in which so many stacks end, about 20 frames deep, and the nodes at which they do. */
function stacks() {
  const nodes = [];
  const leaves = [];
  let depth = 0;
  while (leaves.length < STACKS) {
    depth = Math.min(depth, 1 + random(20));
    const deepest = 12 + random(16);
    while (depth < deepest) {
      depth += 1;
      nodes.push([depth, random(depth < 6 ? 8 : FUNCTIONS)]);
    }
    leaves.push(nodes.length);
  }
  return { nodes, leaves };
}

function data(head) {
  const { nodes, leaves } = stacks();
  const ticks = Array.from({ length: SAMPLES }, () => leaves[Math.min(random(STACKS), random(STACKS), random(STACKS))]);
  const counts = new Map();
  for (const node of ticks) counts.set(node, (counts.get(node) ?? 0) + 1);
  const same = (value, count = SAMPLES) => new Array(count).fill(value);
  const columns = {
    node_depth: nodes.map(([depth]) => depth),
    node_label: nodes.map(([, label]) => label),
    count_node: [...counts.keys()],
    count_vcpu: same(0, counts.size),
    count_span: same(0, counts.size),
    count_value: [...counts.values()],
    // Steps of either sign are doubled.
    tick_at: ticks.map(() => 2 * (1 + random((2 * HOUR) / SAMPLES))),
    tick_vcpu: ticks.map(() => random(4)),
    tick_outcome: same(0),
    tick_node: ticks,
    tick_entered: same(0),
  };
  for (const [name] of head.columns) columns[name] ??= [];
  const labels = Array.from({ length: FUNCTIONS }, (_, at) => [`crate_${at % 50}::module_${at % 300}::function_${at}`, "function", 0, 0, 0]);
  const vcpus = [0, 1, 2, 3];
  const rings = vcpus.map((vcpu) => ({ vcpu, held_since_ns: 0, evicted: 0, gaps: [], told: 0, tells_states: false }));
  const own = { name: "bench", mode: "cpu", unit: "samples", period_ns: 1e7, from_ns: 0, to_ns: HOUR, ticks: SAMPLES };
  const time = { from_ns: 0, to_ns: HOUR, unix_ns: null, rings, recordings: [own] };
  const report = { ...head.report, vcpus: vcpus.map((vcpu) => ({ ...head.report.vcpus[0], vcpu })) };
  const lengths = Object.entries(columns).map(([name, values]) => [name, values.length]);
  const text = Buffer.from(JSON.stringify({ ...head, report, labels, names: [], vcpus, time, columns: lengths }));
  const length = Buffer.alloc(4);
  length.writeUInt32LE(text.length);
  return { bytes: Buffer.concat([length, text, ...Object.values(columns).map(leb128)]), nodes: nodes.length };
}

const DATA = /(octet-stream">)([^<]*)/;
const written = readFileSync(process.argv[2], "utf8");
const old = gunzipSync(Buffer.from(DATA.exec(written)[2], "base64"));
const head = JSON.parse(old.subarray(4, 4 + old.readUInt32LE(0)).toString());
const made = data(head);
const page = written.replace(DATA, (_, before) => before + gzipSync(made.bytes).toString("base64"));
const path = join(tmpdir(), "unikprof-bench.html");
writeFileSync(path, page);
const browser = await chromium.launch({ executablePath: process.env.CHROMIUM ?? "/usr/bin/chromium" });
const tab = await browser.newPage({ viewport: { width: 1400, height: 1000 } });
tab.on("pageerror", (error) => process.stderr.write(`${error.message}\n`));
await tab.goto(`file://${path}#${process.argv[4] ?? ""}`);
await tab.waitForSelector("html[data-ready]", { state: "attached", timeout: 120000 });
const first = await tab.evaluate(() => performance.getEntriesByName("drawn")[0].startTime);
const frames = await tab.evaluate(async (hour) => {
  const { page } = window.unikprof;
  const times = [];
  for (let at = 0; at < 60; at += 1) {
    // A range that grows to half of the hour.
    page.set({ window: [0.2 * hour, Math.round((0.21 + at * 0.0083) * hour)] });
    await new Promise((resolve) => requestAnimationFrame(resolve));
    times.push(performance.now());
  }
  const steps = times.slice(1).map((time, at) => time - times[at]);
  return steps.sort((a, b) => a - b);
}, HOUR);
await browser.close();
const middle = frames[Math.floor(frames.length / 2)];
process.stdout.write(`file ${(page.length / 1e6).toFixed(1)} MB, ${made.nodes} nodes\n`);
process.stdout.write(`first graph after ${(first / 1000).toFixed(2)} s\n`);
process.stdout.write(`a frame of a dragged range: median ${middle.toFixed(1)} ms, longest ${frames[frames.length - 1].toFixed(1)} ms\n`);
