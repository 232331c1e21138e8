// Pixels of a heatmap. NaN and Inf are striped and dotted in colours of their own, and are never smaller than MARK.
import { INFINITE, MISSING, NEGATIVE, NOT_A_NUMBER, POSITIVE, SHADES, ZERO, share, worstOf } from "./cells.js";
import { between, packed, scale } from "./palette.js";

const MARK = 4;

/** @typedef {import("./cells.js").Cells} Cells */

/** Colours of all levels, as an ImageData has them. */
export function levelColours() {
  const own = scale();
  const colours = new Uint32Array(256);
  colours[MISSING] = 0;
  colours[ZERO] = packed(own.zero);
  colours[NOT_A_NUMBER] = packed(own.nan);
  colours[INFINITE] = packed(own.inf);
  for (let n = 0; n < SHADES; n++) {
    colours[POSITIVE + n] = packed(between(own.positive, n / (SHADES - 1)));
    colours[NEGATIVE + n] = packed(between(own.negative, n / (SHADES - 1)));
  }
  return { colours, marks: { [NOT_A_NUMBER]: packed(own.nanMark), [INFINITE]: packed(own.infMark) } };
}

/**
 * The level of every place of a grid that has at most one place a pixel.
 * @param {Cells} cells
 * @param {[number, number]} lines first and end of those on the screen
 * @param {import("./cells.js").Axis} axis
 * @param {number} down places
 */
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

/**
 * @param {CanvasRenderingContext2D} context
 * @param {Cells} cells
 * @param {[number, number]} lines first and end of those on the screen
 * @param {import("./cells.js").Axis} axis
 * @param {{ x: number, y: number, width: number, height: number, ratio: number }} box in CSS pixels; pixels of the screen for each
 */
export function paint(context, cells, lines, axis, box) {
  const [width, height] = [Math.round(box.width * box.ratio), Math.round(box.height * box.ratio)];
  if (width < 1 || height < 1 || !cells.columns || lines[1] <= lines[0]) return;
  const [across, down] = [axis.first.length, Math.max(1, Math.min(lines[1] - lines[0], Math.floor(box.height)))];
  const grid = gridOf(cells, lines, axis, down);
  const image = context.createImageData(width, height);
  const pixels = new Uint32Array(image.data.buffer);
  const pen = new Pen(pixels, width, height, box.ratio);
  const columns = Int32Array.from({ length: width }, (_, x) => Math.min(across - 1, Math.floor((x * across) / width)));
  for (let y = 0; y < height; y++) {
    const start = Math.floor((y * down) / height) * across;
    for (let x = 0; x < width; x++) pixels[y * width + x] = pen.colour(grid[start + columns[x]], x, y);
  }
  enlarge(pen, grid, across, down, MARK * box.ratio);
  context.putImageData(image, Math.round(box.x * box.ratio), Math.round(box.y * box.ratio));
}

/**
 * Draw NaN and Inf that lie in few pixels once more, as squares; NaN after Inf.
 * @param {Pen} pen
 * @param {Uint8Array} grid
 * @param {number} across
 * @param {number} down
 * @param {number} size
 */
function enlarge(pen, grid, across, down, size) {
  const [w, h] = [pen.width / across, pen.height / down];
  for (const wanted of [INFINITE, NOT_A_NUMBER]) {
    for (let at = grid.indexOf(wanted); at >= 0; at = grid.indexOf(wanted, at + 1)) {
      const alone = grid[at - 1] !== wanted && grid[at + 1] !== wanted;
      if (h < size || (alone && w < size)) pen.square(wanted, ((at % across) + 0.5) * w, (Math.floor(at / across) + 0.5) * h, Math.max(alone ? size : 0, w), Math.max(size, h));
    }
  }
}

class Pen {
  /**
   * @param {Uint32Array} pixels
   * @param {number} width
   * @param {number} height
   * @param {number} ratio
   */
  constructor(pixels, width, height, ratio) {
    const { colours, marks } = levelColours();
    this.pixels = pixels;
    this.width = width;
    this.height = height;
    this.colours = colours;
    this.nanMark = marks[NOT_A_NUMBER];
    this.infMark = marks[INFINITE];
    this.unit = Math.max(1, Math.round(ratio));
  }

  /**
   * Colour of a pixel: stripes for NaN, dots for Inf.
   * @param {number} level
   * @param {number} x
   * @param {number} y
   */
  colour(level, x, y) {
    if (level === NOT_A_NUMBER && Math.floor((x + y) / this.unit) % 5 === 0) return this.nanMark;
    if (level === INFINITE && Math.floor(x / this.unit) % 4 === 1 && Math.floor(y / this.unit) % 4 === 1) return this.infMark;
    return this.colours[level];
  }

  /**
   * @param {number} level
   * @param {number} x middle
   * @param {number} y middle
   * @param {number} width
   * @param {number} height
   */
  square(level, x, y, width, height) {
    const [left, top] = [Math.max(0, Math.round(x - width / 2)), Math.max(0, Math.round(y - height / 2))];
    const [right, bottom] = [Math.min(this.width, Math.round(x + width / 2)), Math.min(this.height, Math.round(y + height / 2))];
    for (let py = top; py < bottom; py++) {
      for (let px = left; px < right; px++) this.pixels[py * this.width + px] = this.colour(level, px, py);
    }
  }
}
