import assert from "node:assert/strict";
import test from "node:test";

import { ago, cellsOf, chosenGuests, fileNameOf, sparkline, summaryOf } from "../../../fleet/page/fleet.js";

function guest(name, more = {}) {
  return {
    name,
    labels: {},
    up: true,
    failure: null,
    last_contact_seconds_ago: 3,
    vcpus: 2,
    rate_hz: 97,
    recordings: [],
    running_vcpus: null,
    stolen_share: null,
    history: [],
    hottest: null,
    recent: null,
    ...more,
  };
}

const names = (guests) => guests.map(({ name }) => name);

test("a row says where its hottest function is from, and how old that is", () => {
  const hottest = { function: "parse", share: 0.25, mode: "cpu", seconds: 10, seconds_ago: 130, recording: null };
  const cells = cellsOf(guest("web", { hottest, running_vcpus: 1.5, stolen_share: 0.125 }));
  assert.equal(cells.hottest, "25.0 % parse");
  assert.equal(cells.source, "cpu, 10 s recorded here 2 min ago");
  assert.equal(cells.busy, "1.50 of 2");
  assert.equal(cells.stolen, "12.5 %");
  const copied = cellsOf(guest("web", { hottest: { ...hottest, recording: "flight", seconds: 300 } }));
  assert.equal(copied.source, "cpu, 300 s copied from recording flight 2 min ago");
  assert.equal(cellsOf(guest("web")).source, "nothing was recorded here yet");
});

test("text of a guest cannot turn the direction of a row", () => {
  const cells = cellsOf(guest("a\u202eb", { up: false, failure: "x\u0007" }));
  assert.equal(cells.name, "a\\u{202e}b");
  assert.equal(cells.about, "x\\u{7}; last answer: 3 s ago");
  assert.equal(cells.state, "down");
  assert.equal(cellsOf(guest("new", { up: null })).state, "not asked yet");
});

test("guests of which nothing is known are last in both orders", () => {
  const guests = [guest("none"), guest("low", { stolen_share: 0.1 }), guest("high", { stolen_share: 0.4 })];
  assert.deepEqual(names(chosenGuests(guests, "", { by: "stolen", reversed: false })), ["high", "low", "none"]);
  assert.deepEqual(names(chosenGuests(guests, "", { by: "stolen", reversed: true })), ["low", "high", "none"]);
  assert.deepEqual(names(chosenGuests(guests, "", { by: "name", reversed: true })), ["none", "low", "high"]);
});

test("every word of a filter has to be in the row", () => {
  const guests = [guest("web-1", { labels: { zone: "a" } }), guest("web-2", { labels: { zone: "b" } }), guest("db", { labels: { zone: "a" } })];
  const order = { by: "name", reversed: false };
  assert.deepEqual(names(chosenGuests(guests, "WEB zone=a", order)), ["web-1"]);
  assert.deepEqual(names(chosenGuests(guests, "zone", order)), ["db", "web-1", "web-2"]);
});

test("a line has gaps where nothing is known, and its newest value at the right", () => {
  assert.equal(sparkline([0, 1], 100, 18, 5), "M75.0 17.0h0L100.0 1.0");
  assert.equal(sparkline([0, null, 2], 100, 18, 3), "M0.0 17.0h0M100.0 1.0h0");
  assert.equal(sparkline([], 100, 18, 3), "");
});

test("names become file names that lead nowhere else", () => {
  assert.equal(fileNameOf("../../etc/passwd"), "__.._etc_passwd.html");
  assert.equal(fileNameOf("10.0.0.5:7777"), "10.0.0.5_7777.html");
});

test("ages have one unit", () => {
  assert.deepEqual([0, 119, 120, 7200, 172800].map(ago), ["0 s ago", "119 s ago", "2 min ago", "2 h ago", "2 days ago"]);
  assert.equal(ago(null), "-");
});

test("guests that do not answer are counted", () => {
  const guests = [guest("a"), guest("b", { up: false })];
  assert.equal(summaryOf(guests, 2), "2 guests, 1 of them without an answer");
  assert.equal(summaryOf(guests, 1), "1 of 2 guests, 1 of them without an answer");
});
