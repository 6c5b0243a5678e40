import assert from "node:assert/strict";
import test from "node:test";
import { amountWithUnit, duration, grouped, moduleOf, moment, percent, printable, printableDeep, seconds } from "../format.js";

test("a field shows at most microseconds, at least milliseconds", () => {
  assert.equal(seconds(29_998_765_432), "29.998765");
  assert.equal(seconds(1_500_000_000), "1.500");
});

test("counts, shares and durations read as in the reports", () => {
  assert.equal(grouped(0), "0");
  assert.equal(grouped(1234567), "1,234,567");
  assert.equal(percent(0.61), "61.0 %");
  assert.equal(percent(0), "0.0 %");
  assert.equal(percent(144 / 1280), "11.2 %", "a half goes to the even digit");
  assert.equal(percent(0.1175), "11.8 %");
  assert.equal(percent(0.0001), "<0.1 %");
  assert.equal(percent(null), "-");
  assert.equal(duration(0), "0 ns");
  assert.equal(duration(999), "999 ns");
  assert.equal(duration(1500), "1.5 µs");
  assert.equal(duration(999951), "1.0 ms");
  assert.equal(duration(59996e6), "1 min");
  assert.equal(duration(3184000000), "3.18 s");
  assert.equal(duration(90e9), "1 min 30 s");
  assert.equal(duration(3723e9), "1 h 02 min 03 s");
  assert.equal(duration(7200e9), "2 h");
  assert.equal(amountWithUnit(1, "samples"), "1 sample");
  assert.equal(amountWithUnit(2e6, "nanoseconds"), "2 ms");
  assert.equal(moment(1.25e9, 1e7), "1.25 s");
});

test("what cannot be seen is escaped, wherever it is", () => {
  assert.equal(printable("a\u202eb\u0000c"), "a\\u{202e}b\\u{0}c");
  assert.equal(printable("</script>"), "</script>");
  assert.deepEqual(printableDeep({ a: ["\u0007", 1, null] }), { a: ["\\u{7}", 1, null] });
});

test("a module is a crate, a namespace or a prefix", () => {
  assert.equal(moduleOf("core::fmt::write"), "core");
  assert.equal(moduleOf("<alloc::vec::Vec<T> as Drop>::drop"), "alloc");
  assert.equal(moduleOf("<dyn smoltcp::Device>::poll"), "smoltcp");
  assert.equal(moduleOf("<usize as core::slice::SliceIndex<[T]>>::index"), "core");
  assert.equal(moduleOf("<&mut serde_json::ser::Compound<W> as serde::Serializer>::end"), "serde_json");
  assert.equal(moduleOf("<[A] as core::slice::SlicePartialEq<B>>::equal"), "core");
  assert.equal(moduleOf("<str>::to_lowercase"), "str");
  assert.equal(moduleOf("<()>::f"), "<()>::f");
  assert.equal(moduleOf("camlStdlib__List__map_123"), "camlStdlib");
  assert.equal(moduleOf("_start"), "_start");
  assert.equal(moduleOf(""), "");
});
