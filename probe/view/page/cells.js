// Cells of a heatmap: which colour each has, and which of several is shown where there are fewer pixels than cells.

import { clamp, extremes } from "./dom.js";

export const MISSING = 0;
export const ZERO = 1;
export const NOT_A_NUMBER = 2;
export const INFINITE = 3;
/** Levels from here on are colours of the ramp for positive numbers; those of negative ones follow. */
export const POSITIVE = 4;
export const SHADES = 126;
export const NEGATIVE = POSITIVE + SHADES;

const DECADES = 2; // colours of a row against its own history reach from a hundredth to a hundredfold

const [JUMP, FOLLOWED, CREPT] = [0.7, 0.25, 0.02]; // decades of a jump; shares of a change that the usual size takes over

/** @typedef {ReturnType<typeof cellsOf>} Cells */
/** @typedef {import("./api.js").Binary["arrays"]} Arrays */

/** The number that a cell shows: of the smallest and the largest the one of the larger magnitude; NaN if there is none.
 * @type {(arrays: Arrays, i: number) => number} */
export function shownOf(arrays, i) {
  const [low, high] = [arrays.minimum[i], arrays.maximum[i]];
  return Math.abs(low) > Math.abs(high) ? low : high;
}

/** Colours by magnitude (`all`), by the smallest magnitude where the answer has it (`least`), else against each line's own
 * history.
 * @param {import("./api.js").Binary} binary @param {string} scale */
export function cellsOf({ header, arrays: all }, scale) {
  const relative = scale !== "all" && scale !== "least";
  const arrays = scale === "least" && all.least ? leastOf(all) : all;
  const [lines, columns] = [header.lines.length, header.steps.length];
  const level = new Uint8Array(lines * columns); // colour of each cell, line by line
  const severity = new Float32Array(lines * columns).fill(-Infinity); // the largest is shown where several share a pixel
  const sizes = new Float32Array(lines * columns).fill(NaN); // logarithms (base 10) of magnitudes
  const kinds = new Set(relative ? [NEGATIVE] : []); // which of the special levels there are; NEGATIVE too
  for (let i = 0; i < level.length; i++) {
    level[i] = kindOf(arrays, i);
    if (level[i] <= POSITIVE || level[i] === NEGATIVE) kinds.add(level[i]);
    severity[i] = [-Infinity, -1e9, 2e9, 1e9][level[i]] ?? 0;
    if (level[i] >= POSITIVE) sizes[i] = Math.log10(Math.abs(shownOf(arrays, i)));
  }
  if (relative) for (let line = 0; line < lines; line++) againstHistory(level, sizes, line * columns, (line + 1) * columns);
  const [low, high] = relative ? [-DECADES, DECADES] : rangeOf(sizes);
  for (let i = 0; i < level.length; i++) {
    if (level[i] < POSITIVE) continue;
    const place = relative ? (Math.abs(sizes[i]) / high) ** 1.5 : (sizes[i] - low) / (high - low);
    severity[i] = relative ? Math.abs(sizes[i]) : sizes[i];
    level[i] += Math.round(clamp(place, 0, 1) * (SHADES - 1));
  }
  return { lines, columns, level, severity, low, high, relative, kinds };
}

/** The smallest magnitude of each cell, and what is not finite only where nothing else is there. @param {Arrays} arrays */
function leastOf({ least, nan, inf }) {
  const alone = (/** @type {ArrayLike<number>} */ counts) => Uint32Array.from(counts, (count, i) => (Number.isNaN(least[i]) ? count : 0));
  return { minimum: least, maximum: least, nan: alone(nan), inf: alone(inf) };
}

/** @type {(arrays: Arrays, i: number) => number} */
function kindOf(arrays, i) {
  if (arrays.nan[i]) return NOT_A_NUMBER;
  if (arrays.inf[i]) return INFINITE;
  const value = shownOf(arrays, i);
  if (Number.isNaN(value)) return MISSING;
  if (value === 0) return ZERO;
  return value > 0 ? POSITIVE : NEGATIVE;
}

/** @param {Float32Array} sizes */
function rangeOf(sizes) {
  const [low, high] = extremes(sizes);
  if (low > high) return [0, 1];
  const lacking = Math.max(0, 1 - (high - low)) / 2; // less than a decade is not stretched over all colours
  return [low - lacking, high + lacking];
}

/**
 * Make sizes of a line differences from what it had shown before, and the sign the side of it. What is usual follows a slow
 * change, and hardly a jump, so that a fault that lasts does not become its own measure.
 * @type {(level: Uint8Array, sizes: Float32Array, first: number, end: number) => void}
 */
function againstHistory(level, sizes, first, end) {
  let usual = NaN;
  for (let i = first; i < end; i++) {
    if (level[i] < POSITIVE) continue;
    if (Number.isNaN(usual)) usual = sizes[i];
    sizes[i] -= usual;
    usual += sizes[i] * (Math.abs(sizes[i]) < JUMP ? FOLLOWED : CREPT);
    level[i] = sizes[i] < 0 ? NEGATIVE : POSITIVE;
  }
}

/** @typedef {[number, number]} Part first and end */

/** Index of the most severe cell of a block. @type {(cells: Cells, lines: Part, columns: Part) => number} */
export function worstOf(cells, [firstLine, endLine], [firstColumn, endColumn]) {
  let worst = firstLine * cells.columns + firstColumn;
  for (let line = firstLine; line < endLine; line++) {
    for (let i = line * cells.columns + firstColumn; i < line * cells.columns + endColumn; i++) {
      if (cells.severity[i] > cells.severity[worst]) worst = i;
    }
  }
  return worst;
}

/** The part of `count` things that the n-th of `places` places stands for.
 * @type {(n: number, places: number, count: number) => [number, number]} */
export const share = (n, places, count) => [Math.floor((n * count) / places), Math.max(Math.floor(((n + 1) * count) / places), Math.floor((n * count) / places) + 1)];

/** @typedef {ReturnType<typeof axisOf>} Axis */

/** Columns true to their steps: what was not recorded is a gap.
 * @param {number[][]} spans first and last step of each column
 * @param {number} width pixels */
export function axisOf(spans, width) {
  const between = spans.slice(1).map(([first], n) => first - spans[n][0]).sort((a, b) => a - b);
  const step = between[Math.floor(between.length / 2)] ?? 1; // usual distance of columns
  const start = spans[0]?.[0] ?? 0;
  const last = spans.at(-1) ?? [0, 0];
  const scale = width / Math.max(last[1] + 1 - start, last[0] + step - start, 1);
  const at = (/** @type {number} */ own) => (own - start) * scale;
  const ends = (/** @type {number} */ column) => {
    const [from, to] = spans[column];
    const next = spans[column + 1]?.[0] ?? Infinity;
    return /** @type {[number, number]} */ ([at(from), at(Math.max(to + 1, Math.min(next, from + step)))]);
  };
  const first = new Int32Array(Math.max(0, Math.floor(width))); // of each pixel; where there is no column, `end` is no larger
  const end = new Int32Array(first.length);
  spans.forEach((_, column) => {
    const [left, right] = ends(column);
    const from = Math.min(Math.floor(left + 1e-6), first.length - 1);
    for (let x = from; x < Math.max(from + 1, Math.floor(right + 1e-6)) && x < first.length; x++) {
      if (end[x] <= first[x]) first[x] = column;
      end[x] = column + 1;
    }
  });
  return { at, ends, first, end, step };
}
