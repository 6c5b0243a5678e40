// The data of the page: base64 of a gzip stream of a JSON head and columns of numbers.
import { printableDeep } from "./format.js";

/** Inflates base64 text to bytes. */
export async function inflate(base64) {
  const text = atob(base64);
  const packed = new Uint8Array(text.length);
  for (let at = 0; at < text.length; at += 1) packed[at] = text.charCodeAt(at);
  const stream = new Blob([packed]).stream().pipeThrough(new DecompressionStream("gzip"));
  return new Uint8Array(await new Response(stream).arrayBuffer());
}

/** Numbers that fit 32 bits; all others are kept as floating-point numbers. */
const WIDE = new Set(["base_own", "new_own", "count_value", "tick_at", "wait_ns", "wait_count", "span_from", "span_length", "event_at", "event_value", "event_name",
  "told_at", "told_running", "told_runnable", "told_blocked", "told_offline",
  "call_start", "call_length", "call_self", "call_waited"]);
const SIGNED = new Set(["event_value"]);
/** Signed differences. */
const CHANGES = new Set(["call_start", "tick_at", "event_at", "span_from", "told_at", "told_running", "told_runnable", "told_blocked", "told_offline"]);

/** Reads the head and the columns. */
export function decode(bytes) {
  const view = new DataView(bytes.buffer, bytes.byteOffset);
  const length = view.getUint32(0, true);
  const head = printableDeep(JSON.parse(new TextDecoder().decode(bytes.subarray(4, 4 + length))));
  const columns = {};
  let at = 4 + length;
  for (const [name, count] of head.columns) {
    const values = WIDE.has(name) ? new Float64Array(count) : new Uint32Array(count);
    const sums = CHANGES.has(name);
    const signed = SIGNED.has(name) || sums;
    let before = 0;
    for (let index = 0; index < count; index += 1) {
      let byte = bytes[at];
      at += 1;
      let value = byte & 0x7f;
      let scale = 128;
      while (byte > 0x7f) {
        byte = bytes[at];
        at += 1;
        value += (byte & 0x7f) * scale;
        scale *= 128;
      }
      if (signed) value = value % 2 === 0 ? value / 2 : -(value + 1) / 2;
      if (sums) {
        value += before;
        before = value;
      }
      values[index] = value;
    }
    columns[name] = values;
  }
  if (at !== bytes.length || at > bytes.length) {
    throw new Error(`the data has ${bytes.length} bytes, but its columns end at ${at}`);
  }
  return { head, columns };
}
