import assert from "node:assert/strict";
import test from "node:test";
import { Tracks } from "../tracks.js";

function tracksOf(recording) {
  const tracks = new Tracks({ parentElement: { clientWidth: 800 } }, { addEventListener() {} }, {});
  Object.assign(tracks, { recording, state: { vcpus: null }, from: 0, to: 1e9 });
  return tracks;
}

test("what has no lane is told", () => {
  const names = Array.from({ length: 40 }, (_, at) => [at, `span ${at}`]);
  const events = names.map(([name]) => ({ kind: "counter", name, at: 0, value: 1 }));
  const recording = { time: { rings: [] }, mode: "cpu", spanNames: () => names, events, head: { names: names.map(([, name]) => name) } };
  const rows = tracksOf(recording).findRows();
  for (const kind of ["span", "counter"]) assert.equal(rows.filter((row) => row.kind === kind).length, 24);
  assert.deepEqual(rows.filter((row) => row.kind === "more").map((row) => row.name), ["and 16 more", "and 16 more"]);
});

test("time that the guest measured hangs from the top, samples stand before it", () => {
  const tracks = tracksOf({ mode: "cpu", period: 10 });
  // Of a column of 100 ns: four samples on CPU, one masked.
  tracks.grids = { bars: { cells: [4, 1, 0], columns: 1, columnNs: 100, parts: 3 } };
  const parts = tracks.stacked({ kind: "bars", which: 0 }, 0, [0.4, 0.25, 0.25, 0]);
  assert.deepEqual(parts.map(([from, part, color]) => [from.toFixed(2), part.toFixed(2), color]),
    [["0.75", "0.25", "--blocked"], ["0.50", "0.25", "--stolen"], ["0.00", "0.40", "--run"], ["0.40", "0.10", "--masked"]]);
});
