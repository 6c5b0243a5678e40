import assert from "node:assert/strict";
import { readFileSync } from "node:fs";
import test from "node:test";
import { INK, MATCH, MERGED, Palette, WAYS, changeColor } from "../colors.js";
import { VERDICTS } from "../diff.js";

const style = readFileSync(new URL("../page.css", import.meta.url), "utf8");

function luminance(color) {
  const parts = [1, 3, 5].map((at) => Number.parseInt(color.slice(at, at + 2), 16) / 255);
  const [r, g, b] = parts.map((part) => (part <= 0.03928 ? part / 12.92 : ((part + 0.055) / 1.055) ** 2.4));
  return 0.2126 * r + 0.7152 * g + 0.0722 * b;
}

/** `hsl(8 85% 62%)` as `#rrggbb`; other colours as they are. */
function hex(color) {
  const found = /^hsl\(([\d.]+) ([\d.]+)% ([\d.]+)%\)$/.exec(color);
  if (!found) return color;
  const [hue, saturation, light] = [Number(found[1]), found[2] / 100, found[3] / 100];
  const part = (offset) => {
    const at = (offset + hue / 30) % 12;
    const value = light - saturation * Math.min(light, 1 - light) * Math.max(-1, Math.min(at - 3, 9 - at, 1));
    return Math.round(value * 255).toString(16).padStart(2, "0");
  };
  return `#${part(0)}${part(8)}${part(4)}`;
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
    expect("accent", "track", 3);
    expect("base", "panel", 4.5);
    expect("warn", "warn-paper", 4.5);
    for (const name of ["run", "stolen", "blocked", "masked", "lost", "span", "mark", "counter"]) expect(name, "track", 3);
  }
});

test("names are legible on every cell and part of the bar", () => {
  assert.equal(hex("hsl(0 100% 50%)"), "#ff0000");
  const shares = [0, 0.01, 0.02, 0.1, 0.3];
  const changes = shares.flatMap((base) => shares.flatMap((now) => [true, false].map((isCertain) => changeColor(base, now, isCertain))));
  const labels = Array.from({ length: 500 }, (_, at) => ({ name: `m${at % 50}::f${at}`, kind: "function", image: `image ${at % 20}` }));
  labels.push(...["agent", "special", "address"].map((kind) => ({ name: kind, kind, image: null })));
  const palettes = ["module", "image", "kind"].map((by) => new Palette(labels, by));
  const modules = palettes.flatMap((palette) => labels.map((_, label) => palette.color(label)));
  const cells = [MATCH, MERGED, "#ddd8cc", ...WAYS.map(([color]) => color), ...Object.values(VERDICTS), ...changes, ...modules];
  for (const color of new Set(cells)) assert.ok(contrast(INK, hex(color)) >= 4.5, `${color}: ${contrast(INK, hex(color)).toFixed(2)}`);
  const parts = [...style.matchAll(/#bar \.(\w+) { background: (#[\da-f]{6}); }/g)];
  assert.equal(parts.length, 4);
  for (const [, name, color] of parts) assert.ok(contrast("#ffffff", color) >= 4.5, `${name}: ${contrast("#ffffff", color).toFixed(2)}`);
});
