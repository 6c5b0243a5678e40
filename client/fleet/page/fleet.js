// What is known of the guests of a fleet, as text, in an order, and as lines.
import { byName, fixed, percent, printable } from "../../report/page/format.js";

/** How long ago something was, in one unit. */
export function ago(seconds) {
  if (seconds === null || seconds === undefined || !Number.isFinite(seconds)) return "-";
  if (seconds < 120) return `${Math.max(0, Math.round(seconds))} s ago`;
  if (seconds < 7200) return `${Math.round(seconds / 60)} min ago`;
  if (seconds < 172800) return `${Math.round(seconds / 3600)} h ago`;
  return `${Math.round(seconds / 86400)} days ago`;
}

/** A rate in samples a second. */
function rate(hz) {
  return hz >= 100 ? fixed(hz, 0) : String(Number(hz.toPrecision(3)));
}

const labelsOf = (guest) => Object.entries(guest.labels).map(([key, value]) => `${key}=${value}`).join(" ");

function stateOf(guest) {
  if (guest.up === null) return "not asked yet";
  return guest.up ? "up" : "down";
}

/** Where a guest's hottest function comes from, and how old that is. */
function sourceOf(hottest) {
  if (hottest === null) return "nothing was recorded here yet";
  const source = hottest.recording === null ? "recorded here" : `copied from recording ${hottest.recording}`;
  return `${hottest.mode}, ${rate(hottest.seconds)} s ${source} ${ago(hottest.seconds_ago)}`;
}

/** What a guest's row says. */
export function cellsOf(guest) {
  const { hottest } = guest;
  const cells = {
    name: guest.name,
    labels: labelsOf(guest),
    state: stateOf(guest),
    about: guest.up ? `asked ${ago(guest.last_contact_seconds_ago)}` : `${guest.failure ?? ""}; last answer: ${ago(guest.last_contact_seconds_ago)}`,
    rate: `${rate(guest.rate_hz)} Hz`,
    recordings: guest.recordings.map(({ name, state, sampling }) => `${name} (${state}, ${sampling})`).join(", "),
    busy: guest.running_vcpus === null ? "-" : `${fixed(guest.running_vcpus, 2)} of ${guest.vcpus}`,
    stolen: percent(guest.stolen_share),
    hottest: hottest === null ? "-" : `${percent(hottest.share)} ${hottest.function}`,
    source: sourceOf(hottest),
  };
  return Object.fromEntries(Object.entries(cells).map(([key, text]) => [key, printable(text)]));
}

/** The columns that rows can be ordered by, and by what; the largest are first where a number is. */
export const FLEET_SORTS = {
  name: (guest) => guest.name,
  state: (guest) => stateOf(guest),
  rate: (guest) => guest.rate_hz,
  busy: (guest) => guest.running_vcpus,
  stolen: (guest) => guest.stolen_share,
  hottest: (guest) => guest.hottest?.share ?? null,
};

function compare(a, b) {
  return typeof a === "string" ? byName(a, b) : b - a;
}

/** The guests whose rows contain every word of the query, ordered; those of which nothing is known are last. */
export function chosenGuests(guests, query, { by, reversed }) {
  const words = query.toLowerCase().split(/\s+/).filter(Boolean);
  const matches = ({ text }) => words.every((word) => text.includes(word));
  const value = FLEET_SORTS[by];
  const rows = guests.map((guest) => ({ guest, value: value(guest), text: words.length === 0 ? "" : textOf(guest) }));
  const order = (a, b) => {
    if (a.value === null || b.value === null) return Number(a.value === null) - Number(b.value === null);
    return reversed ? compare(b.value, a.value) : compare(a.value, b.value);
  };
  const sorted = rows.filter(matches).sort((a, b) => order(a, b) || byName(a.guest.name, b.guest.name));
  return sorted.map(({ guest }) => guest);
}

function textOf(guest) {
  const { name, labels, state, recordings, hottest } = cellsOf(guest);
  return [name, labels, state, recordings, hottest].join(" ").toLowerCase();
}

/** The line of a history of shares from 0 to 1, the newest at the right, as an SVG path; unknown ones are gaps. */
export function sparkline(shares, width, height, places) {
  let path = "";
  let isOpen = false;
  const first = places - shares.length;
  shares.forEach((share, at) => {
    if (share === null) {
      isOpen = false;
      return;
    }
    const x = ((first + at) * width) / Math.max(1, places - 1);
    const y = (1 - Math.min(1, Math.max(0, share))) * (height - 2) + 1;
    // A line without length is drawn as a point by its round ends.
    path += `${isOpen ? "L" : "M"}${x.toFixed(1)} ${y.toFixed(1)}${isOpen ? "" : "h0"}`;
    isOpen = true;
  });
  return path;
}

/** A name for a file of a guest's recording. */
export function fileNameOf(name) {
  return `${name.replace(/[^A-Za-z0-9._-]/g, "_").replace(/^[.-]+/, "_").slice(0, 100) || "guest"}.html`;
}

/** How many guests there are, and how many of them do not answer. */
export function summaryOf(guests, chosen) {
  const down = guests.filter((guest) => !guest.up).length;
  const all = `${guests.length} guest${guests.length === 1 ? "" : "s"}, ${down} of them without an answer`;
  return chosen === guests.length ? all : `${chosen} of ${all}`;
}
