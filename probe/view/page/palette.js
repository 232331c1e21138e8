// Colours of page.css, for canvases. Blue and orange differ to every kind of colour vision; NaN and Inf have colours and
// patterns that no number has.

/** @typedef {{ positive: string[], negative: string[], zero: string, inf: string, infMark: string, nan: string, nanMark: string }} Scale */

/** @type {Set<() => void>} */
const drawings = new Set();
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => drawings.forEach((draw) => draw()));

/** Draw again when the colours change. @param {() => void} draw */
export const whenColoured = (draw) => drawings.add(draw);

/** Leave the drawings of a page that is no longer shown. */
export const forgetDrawings = () => drawings.clear();

/** A colour of page.css, such as `text`, `quiet`, `line`, `ground`, `accent`. @param {string} name */
export const colour = (name) => getComputedStyle(document.documentElement).getPropertyValue(`--${name}`).trim();

/** @returns {Scale} */
export function scale() {
  const ramp = (/** @type {string} */ name) => colour(name).split(", ");
  return { positive: ramp("positive"), negative: ramp("negative"), zero: colour("zero"), inf: colour("inf"), infMark: colour("inf-mark"), nan: colour("nan"), nanMark: colour("nan-mark") };
}

/** Colours of curves by their number. @param {number} n */
export const lineColour = (n) => colour(`curve-${n % LINE_COLOURS}`);

export const LINE_COLOURS = 8;

/** A colour as the number that an ImageData has of it (little-endian RGBA). @param {string} hex */
export function packed(hex) {
  const number = parseInt(hex.slice(1), 16);
  return ((255 << 24) | ((number & 255) << 16) | (number & 0xff00) | (number >> 16)) >>> 0;
}

/** A colour between those of a ramp. @param {string[]} ramp @param {number} place 0 to 1 */
export function between(ramp, place) {
  const at = Math.min(Math.max(place, 0), 1) * (ramp.length - 1);
  const first = Math.min(Math.floor(at), ramp.length - 2);
  const [a, b] = [ramp[first], ramp[first + 1]].map((hex) => parseInt(hex.slice(1), 16));
  const part = at - first;
  const mixed = [16, 8, 0].map((shift) => Math.round(((a >> shift) & 255) * (1 - part) + ((b >> shift) & 255) * part));
  return `#${mixed.map((value) => value.toString(16).padStart(2, "0")).join("")}`;
}
