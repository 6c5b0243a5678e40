// Drives a page in headless Chromium for tests: reads a list of steps as JSON from standard input, prints what the
// steps have read. Ends with 1 if the page reports an error or asks for anything but files and its own data.
//
//   {"open": "/path/run.html#view=table"}     waits until it is drawn
//   {"drag": "#overlay", "from": [0.2, 0.5], "to": [0.4, 0.5], "key": "Control"}   parts of the element's size
//   {"click": "#view-table", "count": 2, "at": [0.5, 0.1]}   {"hover": "#graph", "at": [0.5, 0.1]}
//   "still": true beside an action that changes nothing of the page's state
//   {"type": "#query", "text": "main"}   {"press": "Escape", "on": "#tracks"}   {"choose": "#span", "value": "0"}
//   {"wheel": "#overlay", "at": [0.5, 0.5], "by": -500}   {"media": "print"}   {"visible": "#legend"}
//   {"scrolled": "#graph-part"}   the pixels above and below what is seen of it, and of that those below the window
//   {"seen": ".name"}   whether the ends of each, of its first and last line, are on the screen, and nothing is above
//   them; with "end": true only the last one
//   {"read": "#shown"}   {"rows": ".functions tbody tr"}   {"hash": true}   {"fails": "/path"}
// The page of a fleet:
//   {"open": "http://127.0.0.1:7780/"}        from then on it may ask this server
//   {"until": ".told", "says": "failed"}      waits until an element's text has this in it
//   {"answer": "/guests"}                     a JSON answer that the page got, and the rows that it has drawn of it
//   {"tab": 1}                                the browser's second page, once it is drawn
//   {"screenshot": "/path.png", "of": "/another.svg"}   {"scheme": "dark"}   {"size": [1200, 800]}
import { text } from "node:stream/consumers";
import process from "node:process";
import { chromium } from "playwright-core";

// Long enough for a busy machine.
const SOON = 180000;
const RESTS = 400;
const KINDS = ["open", "fails", "read", "rows", "hash", "screenshot", "scheme", "size", "hover", "click", "type", "press", "drag", "choose", "wheel", "media", "visible", "seen", "scrolled", "until", "answer", "tab"];

const steps = JSON.parse(await text(process.stdin));
// Without the browser's sandbox, which needs a user that is not root; the pages are our own.
const browser = await chromium.launch({ executablePath: process.env.CHROMIUM ?? "/usr/bin/chromium", timeout: SOON });
const context = await browser.newContext({ viewport: { width: 1400, height: 1000 } });
context.setDefaultTimeout(SOON);
const errors = [];
const results = [];
const answers = [];
let server = null;
let page = null;
// A page that opens another one does not wait for us.
const watched = new WeakSet();
try {
  watch(await context.newPage());
  const first = page;
  for (const step of steps) {
    if (Object.hasOwn(step, "tab")) await show(first, step.tab);
    results.push(await take(page, step));
  }
} catch (error) {
  const shown = await page?.evaluate(() => document.body.innerText).catch(() => "");
  errors.push(`step ${results.length}: ${error.message}; the page shows:\n${shown}`);
}
await browser.close();
process.stdout.write(JSON.stringify(results));
if (errors.length > 0) {
  process.stderr.write(`${errors.join("\n")}\n`);
  process.exitCode = 1;
}

/** Takes the next steps on this page. */
function watch(next) {
  page = next;
  if (watched.has(next)) return;
  watched.add(next);
  const mayAsk = (url) => url.startsWith("file:") || (server !== null && (url.startsWith(server) || url.startsWith(`blob:${server}`)));
  // A server that asks for a token is not an error of the page.
  const isError = (message) => message.type() === "error" && !/status of 40[13]/.test(message.text());
  next.on("pageerror", (error) => errors.push(error.message));
  next.on("console", (message) => isError(message) && errors.push(message.text()));
  next.on("request", (request) => mayAsk(request.url()) || errors.push(`request for ${request.url()}`));
  next.on("response", (response) => {
    if (!response.url().endsWith("/guests") || !response.ok()) return;
    const answer = response.json();
    // The last one may be under way when the browser is closed.
    answer.catch(() => null);
    answers.push(answer);
  });
}

/** Shows the first page, or the one that was opened so many pages later. */
async function show(first, number) {
  const opened = () => context.pages().filter((each) => each === first || each.url().startsWith("blob:"));
  const end = Date.now() + SOON;
  while (opened().length <= number) {
    if (Date.now() > end) throw new Error(`no page ${number} was opened`);
    await new Promise((resolve) => setTimeout(resolve, 20));
  }
  const pages = opened();
  pages.sort((a, b) => Number(b === first) - Number(a === first));
  watch(pages[number]);
  await page.bringToFront();
  await page.waitForSelector("html[data-ready]", { state: "attached" });
}

async function take(page, step) {
  const kind = KINDS.find((each) => Object.hasOwn(step, each));
  const value = step[kind];
  switch (kind) {
    case "open":
      // A change of the fragment alone would not load it again.
      await page.goto("about:blank");
      if (value.startsWith("http:")) server = new URL(value).origin;
      await page.goto(value.startsWith("http:") ? value : `file://${value}`);
      await page.waitForSelector("html[data-ready]", { state: "attached" });
      return null;
    case "fails":
      await page.goto(`file://${value}`);
      await page.waitForSelector("#failure");
      return page.$eval("#failure", (found) => found.textContent);
    case "tab":
      return null;
    case "until": {
      const says = ([selector, text]) => [...document.querySelectorAll(selector)].some((found) => found.textContent.includes(text));
      // A page behind another one draws nothing, and is not looked at by frames.
      await page.waitForFunction(says, [value, step.says], { polling: 100 });
      return null;
    }
    case "answer": {
      await page.waitForSelector("html[data-drawn]", { state: "attached" });
      const [drawn, rows] = await page.evaluate(() => [
        Number(document.documentElement.dataset.drawn),
        [...document.querySelectorAll("#guests tr")].map((row) => [...row.children].map((cell) => [...cell.children].map((part) => part.textContent).join("|") || cell.textContent)),
      ]);
      return { answer: await answers[drawn - 1], rows };
    }
    case "read":
      return page.$$eval(value, (found) => found.map((each) => each.textContent));
    case "rows":
      return page.$$eval(value, (found) => found.map((row) => [...row.children].map((cell) => cell.textContent)));
    case "scrolled":
      return page.$eval(value, (part) => [part.scrollTop, part.scrollHeight - part.clientHeight - part.scrollTop, part.getBoundingClientRect().bottom - innerHeight]);
    case "visible":
      return page.$$eval(value, (found) => found.map((each) => each.getClientRects().length > 0));
    case "seen":
      return page.$$eval(value, (found, end) => found.map((each) => {
        const lines = [...each.getClientRects()];
        const [first, last] = [lines[0], lines[lines.length - 1]];
        const isSeen = (x, { top, bottom }) => document.elementFromPoint(x, (top + bottom) / 2) === each;
        return (end || isSeen(first.left + 2, first)) && isSeen(last.right - 2, last);
      }), step.end);
    case "media":
      await page.emulateMedia({ media: value });
      await page.evaluate(() => dispatchEvent(new Event("beforeprint")));
      return null;
    case "hash":
      return page.evaluate(() => location.hash);
    case "screenshot":
      if (step.of) await page.goto(`file://${step.of}`);
      await page.screenshot({ path: value });
      return null;
    case "scheme":
      return settled(page, () => page.emulateMedia({ colorScheme: value }));
    case "size":
      return settled(page, () => page.setViewportSize({ width: value[0], height: value[1] }));
    case "hover": {
      const [x, y] = await place(page, value, step.at);
      await page.mouse.move(x, y);
      return page.$eval("#tip", (tip) => (tip.hidden ? null : tip.innerText));
    }
    default:
      if (step.still) return act(page, kind, step);
      return settled(page, () => act(page, kind, step));
  }
}

async function act(page, kind, step) {
  if (kind === "click") {
    const [x, y] = await place(page, step.click, step.at ?? [0.5, 0.5]);
    await page.mouse.click(x, y, { clickCount: step.count ?? 1 });
  } else if (kind === "type") {
    await page.focus(step.type);
    await page.keyboard.type(step.text);
  } else if (kind === "press") {
    if (step.on) await page.focus(step.on);
    if (step.key) await page.keyboard.down(step.key);
    await page.keyboard.press(step.press);
    if (step.key) await page.keyboard.up(step.key);
  } else if (kind === "drag") {
    const from = await place(page, step.drag, step.from);
    const to = await place(page, step.drag, step.to);
    if (step.key) await page.keyboard.down(step.key);
    await page.mouse.move(...from);
    await page.mouse.down();
    // A hand rests on its way, for longer than the page waits before it draws all.
    await page.mouse.move((from[0] + to[0]) / 2, (from[1] + to[1]) / 2, { steps: 3 });
    await new Promise((resolve) => setTimeout(resolve, RESTS));
    await page.mouse.move(...to, { steps: 3 });
    await page.mouse.up();
    if (step.key) await page.keyboard.up(step.key);
  } else if (kind === "wheel") {
    const [x, y] = await place(page, step.wheel, step.at);
    await page.mouse.move(x, y);
    await page.mouse.wheel(0, step.by);
  } else if (kind === "choose") await page.selectOption(step.choose, step.value);
  else throw new Error(`unknown step ${kind}`);
}

/** The point of an element at these parts of its width and height. */
async function place(page, selector, [x, y]) {
  const element = await page.$(selector);
  if (element === null) throw new Error(`the page has no ${selector}`);
  await element.evaluate((found) => found.scrollIntoView({ block: "nearest" }));
  // An element may be taller than the window.
  await element.evaluate((found, part) => {
    const box = found.getBoundingClientRect();
    const at = box.top + box.height * part;
    if (at < 0 || at >= innerHeight) scrollBy(0, at - innerHeight / 2);
  }, y);
  const box = await element.boundingBox();
  return [box.x + box.width * x, box.y + box.height * y];
}

/** Acts, and waits until the page has drawn what follows, to the end. */
async function settled(page, action) {
  const ready = () => document.documentElement.dataset.ready;
  const before = await page.evaluate(ready);
  await action();
  const isDone = (old) => document.documentElement.dataset.ready !== old && !("draws" in document.documentElement.dataset);
  await page.waitForFunction(isDone, before);
  return null;
}
