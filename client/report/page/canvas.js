// Drawing on canvases.

/** Gives a canvas the size that it has on the page, in pixels of the screen. */
export function prepare(canvas, width, height) {
  const scale = Math.min(window.devicePixelRatio || 1, 2);
  const [w, h] = [Math.max(1, Math.round(width * scale)), Math.max(1, Math.round(height * scale))];
  if (canvas.width !== w || canvas.height !== h) {
    canvas.width = w;
    canvas.height = h;
    canvas.style.height = `${height}px`;
  }
  const context = canvas.getContext("2d");
  context.setTransform(scale, 0, 0, scale, 0, 0);
  context.clearRect(0, 0, width, height);
  return context;
}

const widths = new Map();

/** The width of one character; kerning is too little to matter. */
function widthOf(context, character) {
  let width = widths.get(character);
  if (width === undefined) {
    width = context.measureText(character).width;
    widths.set(character, width);
  }
  return width;
}

/**
 * The text with its beginning left out, so that it fits: the end of a path is the function. Empty if nothing fits. All
 * text that is elided has one font.
 */
export function elide(context, text, width) {
  if (width < 14) return "";
  const room = width - widthOf(context, "…");
  let used = 0;
  let at = text.length;
  let kept = at;
  while (at > 0) {
    used += widthOf(context, text[at - 1]);
    if (used > width) break;
    at -= 1;
    if (used <= room) kept = at;
  }
  if (at === 0) return text;
  return kept < text.length - 1 ? `…${text.slice(kept)}` : "";
}

/** Round steps between marks on an axis, at most `most` over a length. */
export function tickStep(length, most) {
  const least = length / Math.max(1, most);
  const power = 10 ** Math.floor(Math.log10(least));
  const factor = [1, 2, 5, 10].find((step) => step * power >= least);
  return factor * power;
}

/** The value of a custom property of the style sheet. */
export function css(name) {
  return getComputedStyle(document.documentElement).getPropertyValue(name).trim();
}
