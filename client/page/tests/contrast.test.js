import assert from "node:assert/strict";
import { readFileSync } from "node:fs";
import test from "node:test";

const style = readFileSync(new URL("../page.css", import.meta.url), "utf8");

function luminance(color) {
  const parts = [1, 3, 5].map((at) => Number.parseInt(color.slice(at, at + 2), 16) / 255);
  const [r, g, b] = parts.map((part) => (part <= 0.03928 ? part / 12.92 : ((part + 0.055) / 1.055) ** 2.4));
  return 0.2126 * r + 0.7152 * g + 0.0722 * b;
}

/** As WCAG 2.1 has it. */
function contrast(a, b) {
  const [light, dark] = [luminance(a), luminance(b)].sort((x, y) => y - x);
  return (light + 0.05) / (dark + 0.05);
}

test("text has a contrast of 4.5 and what is drawn of 3, light and dark", () => {
  const themes = style.match(/:root[^}]*}/g);
  assert.equal(themes.length, 2);
  for (const theme of themes) {
    const colors = Object.fromEntries([...theme.matchAll(/--([\w-]+): (#[\da-f]{6})/g)].map(([, name, color]) => [name, color]));
    const expect = (name, on, least) => {
      const found = contrast(colors[name], colors[on]);
      assert.ok(found >= least, `${name} on ${on}: ${found.toFixed(2)}`);
    };
    for (const on of ["paper", "panel", "track"]) for (const name of ["ink", "dim"]) expect(name, on, 4.5);
    expect("accent", "panel", 4.5);
    expect("base", "panel", 4.5);
    expect("warn", "warn-paper", 4.5);
    for (const name of ["run", "stolen", "blocked", "masked", "lost", "span", "mark", "counter"]) expect(name, "track", 3);
  }
});
