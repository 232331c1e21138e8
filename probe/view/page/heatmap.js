// A heatmap on a canvas: lines over steps, a cell under the pointer or the keys, a part of it by dragging.
import { INFINITE, MISSING, NEGATIVE, NOT_A_NUMBER, ZERO, cellsOf, share, worstOf } from "./cells.js";
import { element, short, spanText, text } from "./dom.js";
import { paint } from "./paint.js";
import { between, colour, scale, whenColoured } from "./palette.js";
import { t } from "./words.js";

const LINE = 18; // CSS pixels of a line, where there is room
const [AXIS, RIGHT, MOST_LABEL] = [22, 10, 250];
const DRAGGED = 5; // pixels from which on a press is a drag
const [MOST_MARKS, MARK_SPACE] = [500, 9]; // circles of findings, and pixels to the next one
const FONT = "11.5px system-ui, sans-serif";

/** @typedef {{ line: number, column: number }} Place */
/**
 * @typedef {object} Actions
 * @property {(place: Place) => void} choose
 * @property {(part: { columns: [number, number], lines: [number, number] }) => void} zoom first and last of each
 * @property {() => void} reset show everything
 * @property {() => void} leave Escape
 * @property {(place: Place) => string} read a cell in words
 */

export class Heatmap {
  /** @param {Actions} actions */
  constructor(actions) {
    this.actions = actions;
    this.base = element("canvas");
    this.over = element("canvas", { className: "over" });
    this.plot = element("div", { className: "heatmap", tabIndex: 0, id: "heatmap", aria: { role: "application", label: t("heatmap.label"), describedby: "heatmap-keys" } }, this.base, this.over);
    this.readout = element("output", { className: "readout", id: "readout", aria: { live: "polite" } });
    this.legend = element("div", { className: "legend" });
    this.element = element("figure", {}, this.plot, element("figcaption", {}, this.readout, this.legend));
    /** @type {import("./api.js").Binary | null} */
    this.data = null;
    /** @type {import("./cells.js").Cells | null} */
    this.cells = null;
    /** @type {[number, number]} lines on the screen: first and end */
    this.lines = [0, 0];
    /** @type {Place | null} */
    this.cursor = null;
    /** @type {{ line: number, column: number } | null} */
    this.chosen = null;
    /** @type {{ x: number, y: number, x1: number, y1: number } | null} */
    this.drag = null;
    this.box = { x: 0, y: 0, width: 0, height: 0, ratio: 1 };
    this.listen();
  }

  listen() {
    const { over, plot } = this;
    over.addEventListener("pointerdown", (event) => this.press(event));
    over.addEventListener("pointermove", (event) => this.move(event));
    over.addEventListener("pointerup", (event) => this.release(event));
    over.addEventListener("pointercancel", () => this.point(null));
    over.addEventListener("pointerleave", () => this.drag || document.activeElement === plot || this.point(null));
    over.addEventListener("dblclick", () => this.actions.reset());
    plot.addEventListener("keydown", (event) => this.key(event));
    plot.addEventListener("blur", () => this.point(null));
    new ResizeObserver(() => this.draw()).observe(plot);
    whenColoured(() => this.draw());
  }

  /**
   * @param {import("./api.js").Binary} data
   * @param {string} scale colours: `all`, `row` or `least`
   * @param {[number, number] | null} lines first and end of those to show
   */
  show(data, scale, lines) {
    this.data = data;
    this.cells = cellsOf(data, scale);
    const count = this.cells.lines;
    this.lines = lines && lines[0] < count && lines[0] < lines[1] ? [lines[0], Math.min(lines[1], count)] : [0, count];
    if (this.cursor && (this.cursor.line >= count || this.cursor.column >= this.cells.columns)) this.cursor = null;
    this.draw();
    this.drawLegend();
  }

  /** @param {Place | null} place */
  choose(place) {
    this.chosen = place;
    this.drawOver();
  }

  /** @param {number} n */
  label = (n) => String(this.data?.header.lines[n] ?? "");

  // Geometry

  layout() {
    const context = /** @type {CanvasRenderingContext2D} */ (this.base.getContext("2d"));
    context.font = FONT;
    const [first, end] = this.lines;
    const most = Math.min(MOST_LABEL, this.plot.clientWidth * 0.3);
    let left = 20;
    for (let n = first; n < Math.min(end, first + 400); n++) left = Math.max(left, context.measureText(short(this.label(n), 40)).width);
    const x = Math.min(most, left) + 10;
    const highest = Math.min(620, Math.max(300, innerHeight * 0.5));
    const height = Math.round(Math.min(highest, Math.max(72, (end - first) * LINE)));
    this.box = { x, y: 2, width: Math.max(10, this.plot.clientWidth - x - RIGHT), height, ratio: devicePixelRatio };
    for (const canvas of [this.base, this.over]) {
      canvas.width = Math.round(this.plot.clientWidth * devicePixelRatio);
      canvas.height = Math.round((height + AXIS + 2) * devicePixelRatio);
      canvas.style.height = `${height + AXIS + 2}px`;
    }
    this.plot.style.height = `${height + AXIS + 2}px`;
  }

  /**
   * Where cells lie, in CSS pixels.
   * @param {number} line
   * @param {number} column
   */
  rectangle(line, column) {
    const { x, y, width, height } = this.box;
    const [count, columns] = [this.lines[1] - this.lines[0], this.cells?.columns ?? 1];
    const [w, h] = [width / columns, height / count];
    return { x: x + column * w, y: y + (line - this.lines[0]) * h, width: w, height: h };
  }

  /**
   * The cell at a position: the worst one of those that share its pixel; null outside.
   * @param {{ offsetX: number, offsetY: number }} event
   * @returns {Place | null}
   */
  placeAt({ offsetX, offsetY }) {
    const { cells, box } = this;
    if (!cells?.columns || offsetX < box.x || offsetX >= box.x + box.width || offsetY < box.y || offsetY >= box.y + box.height) return null;
    const count = this.lines[1] - this.lines[0];
    const [across, down] = [Math.min(cells.columns, Math.floor(box.width)), Math.min(count, Math.floor(box.height))];
    const row = Math.floor(((offsetY - box.y) / box.height) * down);
    const [a, b] = share(row, down, count);
    const place = Math.floor(((offsetX - box.x) / box.width) * across);
    const worst = worstOf(cells, [this.lines[0] + a, this.lines[0] + b], share(place, across, cells.columns));
    return { line: Math.floor(worst / cells.columns), column: worst % cells.columns };
  }

  // Drawing

  draw() {
    if (!this.cells || !this.data || !this.plot.clientWidth) return;
    this.layout();
    const context = /** @type {CanvasRenderingContext2D} */ (this.base.getContext("2d"));
    paint(context, this.cells, this.lines, this.box);
    context.setTransform(this.box.ratio, 0, 0, this.box.ratio, 0, 0);
    this.drawAxes(context);
    this.drawMarks(context);
    this.drawOver();
  }

  /** @param {CanvasRenderingContext2D} context */
  drawAxes(context) {
    const { x, y, width, height } = this.box;
    const [first, end] = this.lines;
    context.font = FONT;
    context.fillStyle = colour("quiet");
    context.textBaseline = "middle";
    context.textAlign = "right";
    const every = Math.max(1, Math.ceil(((end - first) * 13) / height));
    for (let n = first + Math.floor(every / 2); n < end; n += every) {
      const place = this.rectangle(n, 0);
      context.fillText(short(this.label(n), 40), x - 7, place.y + place.height / 2, x - 8);
    }
    context.strokeStyle = colour("line");
    context.strokeRect(x - 0.5, y - 0.5, width + 1, height + 1);
    context.textAlign = "center";
    context.textBaseline = "top";
    for (const [column, step] of this.ticks()) {
      const place = this.rectangle(first, column);
      const middle = place.x + (place.width > 14 ? place.width / 2 : 0);
      context.fillRect(Math.round(middle), y + height + 1, 1, 4);
      context.fillText(String(step), Math.min(middle, x + width - 8), y + height + 7);
    }
  }

  /** Columns with a round step in them, about one for each 90 pixels. */
  ticks() {
    /** @type {[number, number][]} */
    const steps = this.data?.header.steps ?? [];
    if (!steps.length) return [];
    const span = steps[steps.length - 1][1] - steps[0][0] + 1;
    const rough = Math.max(1, span / Math.max(2, this.box.width / 90));
    const power = 10 ** Math.floor(Math.log10(rough));
    const every = Math.max(1, power * ([1, 2, 5, 10].find((n) => n * power >= rough) ?? 10));
    /** @type {[number, number][]} */
    const found = [];
    steps.forEach(([first, last], column) => {
      const step = Math.ceil(first / every) * every;
      if (step <= last && step !== found.at(-1)?.[1]) found.push([column, step]);
    });
    return found.length ? found : [/** @type {[number, number]} */ ([0, steps[0][0]])];
  }

  /** @param {CanvasRenderingContext2D} context */
  drawMarks(context) {
    const marks = (this.data?.header.findings ?? []).filter((/** @type {number[]} */ [line]) => line >= this.lines[0] && line < this.lines[1]);
    const taken = new Set();
    for (const [line, column] of marks) {
      const place = this.rectangle(line, column);
      const spot = `${Math.floor(place.x / MARK_SPACE)} ${Math.floor(place.y / MARK_SPACE)}`;
      if (taken.has(spot) || taken.size >= MOST_MARKS) continue;
      taken.add(spot);
      const size = Math.max(3.5, Math.min(7, place.width * 0.7, place.height * 0.7));
      const [x, y] = [place.x + place.width / 2, place.y + place.height / 2];
      context.beginPath();
      context.arc(x, y, size / 2, 0, 2 * Math.PI);
      context.fillStyle = colour("ground");
      context.fill();
      context.lineWidth = 1.3;
      context.strokeStyle = colour("text");
      context.stroke();
    }
  }

  drawOver() {
    const context = /** @type {CanvasRenderingContext2D} */ (this.over.getContext("2d"));
    context.setTransform(this.box.ratio, 0, 0, this.box.ratio, 0, 0);
    context.clearRect(0, 0, this.over.width, this.over.height);
    if (!this.cells) return;
    if (this.chosen) this.frame(context, this.chosen, 2.5, "text");
    if (this.cursor) this.frame(context, this.cursor, 1.5, "accent");
    if (!this.drag) return;
    const { x, y, x1, y1 } = this.selection();
    context.fillStyle = colour("accent");
    context.globalAlpha = 0.18;
    context.fillRect(x, y, x1 - x, y1 - y);
    context.globalAlpha = 1;
    context.strokeStyle = colour("accent");
    context.lineWidth = 1;
    context.strokeRect(x + 0.5, y + 0.5, x1 - x - 1, y1 - y - 1);
  }

  /**
   * A frame around a cell, with an edge in the colour of the ground so that it shows on every colour.
   * @param {CanvasRenderingContext2D} context
   * @param {Place} place
   * @param {number} width
   * @param {string} name
   */
  frame(context, { line, column }, width, name) {
    if (line < this.lines[0] || line >= this.lines[1]) return;
    const place = this.rectangle(line, column);
    const [w, h] = [Math.max(place.width, 5), Math.max(place.height, 5)];
    const [x, y] = [place.x + (place.width - w) / 2, place.y + (place.height - h) / 2];
    for (const [own, ink] of /** @type {[number, string][]} */ ([[width + 2.5, "ground"], [width, name]])) {
      context.lineWidth = own;
      context.strokeStyle = colour(ink);
      context.strokeRect(x - 1, y - 1, w + 2, h + 2);
    }
  }

  drawLegend() {
    const { cells } = this;
    if (!cells) return;
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
    this.legend.replaceChildren(...[element("span", { className: "ramp" }, ...parts), swatch("nan", NOT_A_NUMBER), swatch("inf", INFINITE), swatch("zero", ZERO),
      swatch("missing", MISSING), this.data?.header.findings?.length ? element("span", { className: "swatch finding", textContent: t("legend.finding") }) : null]
      .filter((part) => part !== null));
  }

  // Pointer

  /** @param {PointerEvent} event */
  press(event) {
    if (event.button !== 0 || !this.placeAt(event)) return;
    this.over.setPointerCapture(event.pointerId);
    this.drag = { x: event.offsetX, y: event.offsetY, x1: event.offsetX, y1: event.offsetY };
  }

  /** @param {PointerEvent} event */
  move(event) {
    if (!this.drag) return this.point(this.placeAt(event));
    Object.assign(this.drag, { x1: event.offsetX, y1: event.offsetY });
    this.drawOver();
  }

  /** @param {PointerEvent} event */
  release(event) {
    const { drag } = this;
    if (!drag) return;
    const far = Math.hypot(drag.x1 - drag.x, drag.y1 - drag.y) > DRAGGED;
    const part = far ? this.selection() : null;
    this.drag = null;
    const place = this.placeAt(event);
    if (part) this.zoomTo(part);
    else if (place) this.actions.choose(place);
    this.drawOver();
  }

  /** The rectangle dragged over: all lines if it is flat, all steps if it is narrow. */
  selection() {
    const { x, y, width, height } = this.box;
    const drag = this.drag ?? { x, y, x1: x, y1: y };
    const inside = (/** @type {number} */ value, /** @type {number} */ low, /** @type {number} */ length) => Math.min(low + length, Math.max(low, value));
    const [left, right] = [drag.x, drag.x1].map((value) => inside(value, x, width)).sort((a, b) => a - b);
    const [top, bottom] = [drag.y, drag.y1].map((value) => inside(value, y, height)).sort((a, b) => a - b);
    const line = height / (this.lines[1] - this.lines[0]);
    const flat = bottom - top < Math.max(24, 1.5 * line);
    const narrow = !flat && right - left < 12;
    return { x: narrow ? x : left, x1: narrow ? x + width : right, y: flat ? y : top, y1: flat ? y + height : bottom };
  }

  /** @param {{ x: number, y: number, x1: number, y1: number }} part */
  zoomTo(part) {
    const { box } = this;
    const columns = this.cells?.columns ?? 1;
    const count = this.lines[1] - this.lines[0];
    const at = (/** @type {number} */ share, /** @type {number} */ of) => Math.min(of - 1, Math.max(0, Math.floor(share * of)));
    this.actions.zoom({
      columns: [at((part.x - box.x) / box.width, columns), at((part.x1 - 0.01 - box.x) / box.width, columns)],
      lines: [this.lines[0] + at((part.y - box.y) / box.height, count), this.lines[0] + at((part.y1 - 0.01 - box.y) / box.height, count)],
    });
  }

  /** @param {Place | null} place */
  point(place) {
    this.cursor = place;
    this.readout.textContent = place ? this.actions.read(place) : "";
    this.drawOver();
  }

  // Keys

  /** @param {KeyboardEvent} event */
  key(event) {
    if (!this.cells?.columns || event.altKey || event.ctrlKey || event.metaKey) return;
    const far = event.shiftKey ? 10 : 1;
    const moves = /** @type {Record<string, [number, number]>} */ ({
      ArrowUp: [-far, 0], ArrowDown: [far, 0], ArrowLeft: [0, -far], ArrowRight: [0, far],
      PageUp: [-10, 0], PageDown: [10, 0], Home: [0, -Infinity], End: [0, Infinity],
    });
    if (event.key in moves) this.step(...moves[event.key]);
    else if (event.key === "Enter" || event.key === " ") this.actions.choose(this.cursor ?? this.start());
    else if (event.key === "Escape") this.actions.leave();
    else if (event.key === "+" || event.key === "=") this.closer();
    else if (event.key === "0") this.actions.reset();
    else return;
    event.preventDefault();
    event.stopPropagation();
  }

  /** @returns {Place} */
  start() {
    const chosen = this.chosen;
    const visible = chosen && chosen.line >= this.lines[0] && chosen.line < this.lines[1];
    return visible ? { ...chosen } : { line: this.lines[0], column: 0 };
  }

  /**
   * @param {number} lines
   * @param {number} columns
   */
  step(lines, columns) {
    const clamp = (/** @type {number} */ value, /** @type {number} */ low, /** @type {number} */ high) => Math.min(high, Math.max(low, value));
    const from = this.cursor ?? this.start();
    const moved = this.cursor || this.chosen ? { line: from.line + lines, column: from.column + columns } : from;
    this.point({
      line: clamp(moved.line, this.lines[0], this.lines[1] - 1),
      column: clamp(moved.column, 0, (this.cells?.columns ?? 1) - 1),
    });
  }

  /** Show half of the steps, those around the cursor. */
  closer() {
    const { column } = this.cursor ?? this.start();
    const columns = this.cells?.columns ?? 1;
    const quarter = Math.max(1, Math.floor(columns / 4));
    this.actions.zoom({ columns: [Math.max(0, column - quarter), Math.min(columns - 1, column + quarter)], lines: [this.lines[0], this.lines[1] - 1] });
  }

  /**
   * Steps of a column in words.
   * @param {number} column
   */
  stepsText(column) {
    const steps = this.data?.header.steps[column] ?? [0, 0];
    return t(steps[0] === steps[1] ? "step.one" : "step.several", { steps: spanText(steps) });
  }
}
