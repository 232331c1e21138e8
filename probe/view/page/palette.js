// Colours of the page, for canvases. Blue and orange differ to every kind of colour vision; NaN and Inf have colours and
// patterns that no number has.

/** @typedef {{ positive: string[], negative: string[], zero: string, inf: string, infMark: string, nan: string, nanMark: string }} Scale */

const dark = matchMedia("(prefers-color-scheme: dark)");

/** @type {Set<() => void>} */
const drawings = new Set();
dark.addEventListener("change", () => drawings.forEach((draw) => draw()));

/**
 * Draw again when the colours change.
 * @param {() => void} draw
 */
export const whenColoured = (draw) => drawings.add(draw);

/** Leave the drawings of a page that is no longer shown. */
export const forgetDrawings = () => drawings.clear();

/**
 * A colour of page.css, such as `text`, `quiet`, `line`, `ground`, `accent`.
 * @param {string} name
 */
export const colour = (name) => getComputedStyle(document.documentElement).getPropertyValue(`--${name}`).trim();

/** @returns {Scale} */
export function scale() {
  const special = { inf: "#f7d038", infMark: "#3a2f00", nan: "#e6007e", nanMark: "#ffffff" };
  return dark.matches
    ? { positive: ["#15233a", "#27548c", "#5fa3de", "#e3f2ff"], negative: ["#33220f", "#8f5415", "#e79b3f", "#ffedcf"], zero: "#5d6673", ...special }
    : { positive: ["#e9f1f9", "#a3c8e8", "#4285c4", "#0b2c60"], negative: ["#fbeedd", "#edb774", "#bf6a17", "#5a2a00"], zero: "#b5bbc4", ...special };
}

/**
 * Colours of curves by their number, distinct to every kind of colour vision (M. Okabe and K. Ito, 2008).
 * @param {number} n
 */
export function lineColour(n) {
  const light = ["#0068a8", "#d55e00", "#007a5a", "#b0508a", "#3c9ad6", "#b57f00", "#5b5b5b", "#7a3fb0"];
  const night = ["#56b4e9", "#ff8f4a", "#2fc79a", "#e79bc6", "#9ad2f5", "#e6b422", "#b8b8b8", "#b892e6"];
  return (dark.matches ? night : light)[n % 8];
}

export const LINE_COLOURS = 8;

/**
 * A colour as the number that an ImageData has of it (little-endian RGBA).
 * @param {string} hex
 */
export function packed(hex) {
  const number = parseInt(hex.slice(1), 16);
  return ((255 << 24) | ((number & 255) << 16) | (number & 0xff00) | (number >> 16)) >>> 0;
}

/**
 * A colour between those of a ramp.
 * @param {string[]} ramp
 * @param {number} place 0 to 1
 */
export function between(ramp, place) {
  const at = Math.min(Math.max(place, 0), 1) * (ramp.length - 1);
  const first = Math.min(Math.floor(at), ramp.length - 2);
  const [a, b] = [ramp[first], ramp[first + 1]].map((hex) => parseInt(hex.slice(1), 16));
  const part = at - first;
  const mixed = [16, 8, 0].map((shift) => Math.round(((a >> shift) & 255) * (1 - part) + ((b >> shift) & 255) * part));
  return `#${mixed.map((value) => value.toString(16).padStart(2, "0")).join("")}`;
}
