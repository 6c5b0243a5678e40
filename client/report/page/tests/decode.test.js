import assert from "node:assert/strict";
import { gzipSync } from "node:zlib";
import test from "node:test";
import { decode, inflate } from "../decode.js";

function data(head, columns) {
  const text = Buffer.from(JSON.stringify(head));
  const length = Buffer.alloc(4);
  length.writeUInt32LE(text.length);
  return Buffer.concat([length, text, Buffer.from(columns)]);
}

test("columns are numbers, and sums of steps of either sign", async () => {
  const head = { report: { guest: "a\u0007" }, columns: [["node_depth", 2], ["tick_at", 3], ["told_at", 2], ["event_value", 1]] };
  const bytes = data(head, [1, 0x80, 0x01, 10, 0, 0x80, 0x80, 0x02, 3, 2, 4]);
  const found = decode(await inflate(gzipSync(bytes).toString("base64")));
  assert.equal(found.head.report.guest, "a\\u{7}");
  assert.deepEqual([...found.columns.node_depth], [1, 128]);
  assert.deepEqual([...found.columns.tick_at], [5, 5, 16389]);
  assert.deepEqual([...found.columns.told_at], [-2, -1]);
  assert.deepEqual([...found.columns.event_value], [2]);
});

test("a file that is cut is no recording", async () => {
  assert.throws(() => decode(data({ columns: [["node_depth", 3]] }, [1, 2])), /columns end/);
  assert.throws(() => decode(data({ columns: [] }, [1])), /columns end/);
  const whole = gzipSync(data({ columns: [] }, []));
  await assert.rejects(inflate(whole.subarray(0, whole.length - 9).toString("base64")));
});
