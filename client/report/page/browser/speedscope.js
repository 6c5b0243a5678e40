// For tests: checks a file against speedscope's schema, opens it in speedscope's own page in headless Chromium, and
// prints what the page shows of its first profile: {"title", "rows"}, a row for each function with the texts of its
// cells. Ends with 1 if the file is not valid, or the page reports an error or asks for anything but files.
//
//   node browser/speedscope.js /path/run.speedscope.json
import { readFileSync, rmSync, writeFileSync } from "node:fs";
import { createRequire } from "node:module";
import { tmpdir } from "node:os";
import { basename, dirname, join } from "node:path";
import process from "node:process";
import Ajv from "ajv";
import { chromium } from "playwright-core";

// Long enough for a busy machine.
const SOON = 180000;

const path = process.argv[2];
const released = join(dirname(createRequire(import.meta.url).resolve("speedscope/package.json")), "dist", "release");
const bytes = readFileSync(path);
const isValid = new Ajv().compile(JSON.parse(readFileSync(join(released, "file-format-schema.json"))));
if (!isValid(JSON.parse(bytes))) {
  process.stderr.write(`${path} is not valid: ${JSON.stringify(isValid.errors)}\n`);
  process.exit(1);
}

// How the page takes a file from disk: as a program beside it.
const loader = join(tmpdir(), `${basename(path)}-${process.pid}.js`);
const name = JSON.stringify(basename(path));

const browser = await chromium.launch({
  executablePath: process.env.CHROMIUM ?? "/usr/bin/chromium",
  timeout: SOON,
  // It draws with WebGL.
  args: ["--enable-unsafe-swiftshader", "--allow-file-access-from-files"],
});
const errors = [];
try {
  writeFileSync(loader, `speedscope.loadFileFromBase64(${name}, "${bytes.toString("base64")}");\n`);
  const page = await browser.newPage({ viewport: { width: 1600, height: 4000 } });
  page.setDefaultTimeout(SOON);
  page.on("pageerror", (error) => errors.push(error.message));
  page.on("request", (request) => /^(file|data|blob):/.test(request.url()) || errors.push(`request for ${request.url()}`));
  await page.goto(`file://${join(released, "index.html")}#localProfilePath=${loader.slice(1)}&view=sandwich`);
  // The profiles have a table before the functions have theirs.
  await page.waitForFunction(() => [...document.querySelectorAll("table")].at(-1)?.querySelector("tr td")?.closest("table")
    ?.querySelectorAll("tr").length > 4);
  const shown = await page.evaluate(() => ({
    title: document.title,
    rows: [...document.querySelectorAll("table tr")]
      .map((row) => [...row.querySelectorAll("td")].map((cell) => cell.textContent))
      .filter((row) => row.length > 0),
  }));
  process.stdout.write(JSON.stringify(shown));
} finally {
  rmSync(loader, { force: true });
  await browser.close();
}
if (errors.length > 0) {
  process.stderr.write(`${errors.join("\n")}\n`);
  process.exitCode = 1;
}
