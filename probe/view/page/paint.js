// Pixels and legend of a heatmap. NaN and Inf are striped and dotted in colours of their own, and are never smaller than MARK.
import { INFINITE, MISSING, NEGATIVE, NOT_A_NUMBER, POSITIVE, SHADES, ZERO, share, worstOf } from "./cells.js";
import { element, text } from "./dom.js";
import { between, packed, scale } from "./palette.js";
import { t } from "./words.js";

const MARK = 4;
/** Pixels of the second colour: stripes in a tile of 5 pixels for NaN, dots in one of 4 for Inf. */
const [STRIPES, DOTS] = [[[0, 0], [1, 4], [2, 3], [3, 2], [4, 1]], [[1, 1]]];

/** @typedef {import("./cells.js").Cells} Cells */
/** @typedef {import("./cells.js").Axis} Axis */
/** @typedef {import("./cells.js").Part} Part */

/** Colours of all levels but the patterned ones, as an ImageData has them. */
function levelColours() {
  const own = scale();
  const colours = new Uint32Array(256);
  colours[ZERO] = packed(own.zero);
  for (let n = 0; n < SHADES; n++) {
    colours[POSITIVE + n] = packed(between(own.positive, n / (SHADES - 1)));
    colours[NEGATIVE + n] = packed(between(own.negative, n / (SHADES - 1)));
  }
  return colours;
}

/** The level of every place of a grid that has at most one place a pixel across, and `down` lines.
 * @type {(cells: Cells, lines: Part, axis: Axis, down: number) => Uint8Array} */
function gridOf(cells, [first, end], axis, down) {
  const across = axis.first.length;
  const grid = new Uint8Array(across * down);
  for (let row = 0; row < down; row++) {
    const [a, b] = share(row, down, end - first);
    for (let x = 0; x < across; x++) {
      if (axis.end[x] <= axis.first[x]) continue;
      const same = x && axis.first[x] === axis.first[x - 1] && axis.end[x] === axis.end[x - 1];
      grid[row * across + x] = same ? grid[row * across + x - 1] : cells.level[worstOf(cells, [first + a, first + b], [axis.first[x], axis.end[x]])];
    }
  }
  return grid;
}

/** @typedef {{ x: number, y: number, width: number, height: number, ratio: number }} Box CSS pixels; pixels of the screen for each */

/** @type {(context: CanvasRenderingContext2D, cells: Cells, lines: Part, axis: Axis, box: Box) => void} */
export function paint(context, cells, lines, axis, box) {
  const [width, height] = [Math.round(box.width * box.ratio), Math.round(box.height * box.ratio)];
  if (width < 1 || height < 1 || !cells.columns || lines[1] <= lines[0]) return;
  const [across, down] = [axis.first.length, Math.max(1, Math.min(lines[1] - lines[0], Math.floor(box.height)))];
  const grid = gridOf(cells, lines, axis, down);
  const colours = levelColours();
  const image = new ImageData(across, down);
  new Uint32Array(image.data.buffer).set(Uint32Array.from(grid, (level) => colours[level]));
  const small = element("canvas", { width: across, height: down });
  small.getContext("2d")?.putImageData(image, 0, 0);
  const [x, y] = [Math.round(box.x * box.ratio), Math.round(box.y * box.ratio)];
  context.imageSmoothingEnabled = false;
  context.drawImage(small, x, y, width, height);
  context.save();
  context.translate(x, y);
  context.beginPath();
  context.rect(0, 0, width, height);
  context.clip();
  const { nan, nanMark, inf, infMark } = scale();
  const unit = Math.max(1, Math.round(box.ratio));
  context.fillStyle = pattern(context, [inf, infMark], DOTS, 4, unit);
  fill(context, grid, INFINITE, [across, down], [width, height], MARK * box.ratio);
  context.fillStyle = pattern(context, [nan, nanMark], STRIPES, 5, unit);
  fill(context, grid, NOT_A_NUMBER, [across, down], [width, height], MARK * box.ratio);
  context.restore();
}

/**
 * A ground with marks, in tiles of `size` times `unit` pixels of the screen.
 * @type {(context: CanvasRenderingContext2D, colours: string[], marks: number[][], size: number, unit: number) => CanvasPattern}
 */
function pattern(context, [ground, mark], marks, size, unit) {
  const tile = element("canvas", { width: size * unit, height: size * unit });
  const pen = /** @type {CanvasRenderingContext2D} */ (tile.getContext("2d"));
  pen.scale(unit, unit);
  pen.fillStyle = ground;
  pen.fillRect(0, 0, size, size);
  pen.fillStyle = mark;
  for (const [x, y] of marks) pen.fillRect(x, y, 1, 1);
  return /** @type {CanvasPattern} */ (context.createPattern(tile, "repeat"));
}

/**
 * Fill the places of a level, those that stand alone in no less than a square of `least` pixels.
 * @type {(context: CanvasRenderingContext2D, grid: Uint8Array, wanted: number, places: Part, size: Part, least: number) => void}
 */
function fill(context, grid, wanted, [across, down], [width, height], least) {
  const [w, h] = [width / across, height / down];
  for (let at = grid.indexOf(wanted), end = at; at >= 0; at = grid.indexOf(wanted, end)) {
    const stop = at - (at % across) + across;
    for (end = at; end < stop && grid[end] === wanted; ) end += 1;
    const [long, high] = [Math.max(end === at + 1 ? least : 0, (end - at) * w), Math.max(least, h)];
    const [left, top] = [((at % across) + (end - at) / 2) * w - long / 2, (Math.floor(at / across) + 0.5) * h - high / 2];
    const [from, to] = [Math.round(left), Math.round(top)];
    context.fillRect(from, to, Math.round(left + long) - from, Math.round(top + high) - to);
  }
}

/** The colours that cells have, and the mark of findings if there are any. @param {Cells} cells @param {boolean} findings */
export function legendOf(cells, findings) {
  const own = scale();
  const ramp = (/** @type {string[]} */ colours, /** @type {boolean} */ reversed) => {
    const strip = element("canvas", { width: 90, height: 10 });
    const context = /** @type {CanvasRenderingContext2D} */ (strip.getContext("2d"));
    for (let n = 0; n < 90; n++) {
      context.fillStyle = between(colours, (reversed ? 89 - n : n) / 89);
      context.fillRect(n, 0, 1, 10);
    }
    return strip;
  };
  const end = (/** @type {number} */ power, sign = "") => `${sign}${cells.relative ? "×" : ""}${text(10 ** power, 2)}`;
  const parts = [];
  if (cells.kinds.has(NEGATIVE)) parts.push(end(cells.relative ? cells.low : cells.high, cells.relative ? "" : "−"), ramp(own.negative, true));
  if (!cells.relative) parts.push(end(cells.low));
  parts.push(ramp(own.positive, false), end(cells.high));
  const swatch = (/** @type {string} */ name, /** @type {number} */ kind) =>
    cells.kinds.has(kind) ? element("span", { className: `swatch ${name}`, textContent: t(`legend.${name}`) }) : null;
  return [element("span", { className: "ramp" }, ...parts), swatch("nan", NOT_A_NUMBER), swatch("inf", INFINITE), swatch("zero", ZERO),
    swatch("missing", MISSING), findings ? element("span", { className: "swatch finding", textContent: t("legend.finding") }) : null]
    .filter((part) => part !== null);
}
