// A heatmap on a canvas: lines over steps, a cell under the pointer or the keys, a part of it by dragging.
import { BAND, fitted, segmentsOf } from "./bands.js";
import { axisOf, cellsOf, share, shownOf, worstOf } from "./cells.js";
import { axisText, clamp, columnOf, element, rounded, short, spanText, text } from "./dom.js";
import { legendOf, paint } from "./paint.js";
import { colour } from "./palette.js";
import { Plot } from "./plot.js";
import { drawCurve } from "./sparkline.js";
import { t } from "./words.js";

const [AXIS, RIGHT, MOST_LABEL] = [22, 10, 250];
const [CURVE, ARROW] = [46, 16]; // pixels of the curve above, and of an arrow
const DRAGGED = 5; // pixels from which on a press is a drag
const [MOST_MARKS, MARK_SPACE] = [500, 9]; // circles of findings, and pixels to the next one
const FONT = "11.5px system-ui, sans-serif";
const BOLD = `600 ${FONT}`;

/** @typedef {{ line: number, column: number }} Place */
/** @typedef {{ label: string, points: [number, number][] }} Curve steps and values above the cells */
/** @typedef {{ scale: string, lines?: [number, number] | null, bands?: import("./bands.js").Band[], curve?: Curve | null, arrow?: string }} Look colours: `all`, `least`, else by history; first and end of the lines to show; text at the chosen cell */
/** @typedef {object} Actions
 * @property {(place: Place) => void} choose
 * @property {(place: Place) => string} read a cell in words
 * @property {(part: { columns: [number, number], lines: [number, number] }) => void} [zoom] first and last of each
 * @property {() => void} [reset] show everything
 * @property {() => void} [leave] Escape */

export class Heatmap extends Plot {
  /** @param {Actions} actions @param {string} [id] */
  constructor(actions, id = "heatmap") {
    const aria = { role: "application", label: t("heatmap.label"), describedby: "heatmap-keys" };
    super({ className: "heatmap", id, aria }, actions);
    this.actions = actions;
    this.base = element("canvas");
    this.over = element("canvas", { className: "over" });
    this.over.addEventListener("pointerdown", (event) => this.grasp(event));
    this.over.addEventListener("pointermove", (event) => this.move(event));
    this.over.addEventListener("pointerup", (event) => this.release(event));
    this.over.addEventListener("pointercancel", () => this.leaveCursor());
    this.over.addEventListener("pointerleave", () => this.drag || document.activeElement === this.place || this.leaveCursor());
    this.over.addEventListener("dblclick", () => actions.reset?.());
    this.place.append(this.base, this.over);
    this.readout.id = id === "heatmap" ? "readout" : `${id}-readout`;
    this.legend = element("div", { className: "legend" });
    this.element = element("figure", {}, this.place, element("figcaption", {}, this.readout, this.legend));
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
    /** @type {import("./bands.js").Segment[]} */
    this.segments = [];
    /** @type {Look} */
    this.look = { scale: "" };
    this.axis = axisOf([], 0);
  }

  resize = () => this.redraw();
  leaveCursor = () => this.point(null);

  /** @type {(data: import("./api.js").Binary, look: Look) => void} */
  show(data, look) {
    this.data = data;
    this.look = look;
    this.cells = cellsOf(data, look.scale);
    const { lines } = look;
    const count = this.cells.lines;
    this.lines = lines && lines[0] < count && lines[0] < lines[1] ? [lines[0], Math.min(lines[1], count)] : [0, count];
    const inside = (/** @type {Place | null} */ place) => (place && place.line < count && place.column < data.header.steps.length ? place : null);
    this.cursor = inside(this.cursor);
    this.chosen = inside(this.chosen);
    this.redraw();
    this.legend.replaceChildren(...legendOf(this.cells, Boolean(data.header.findings?.length)));
  }

  /** Put the frame around the cell of a line and a step.
   * @type {(label: string | number | null, step: number | null) => void} */
  choose(label, step) {
    const { lines, steps } = this.data?.header ?? { lines: [], steps: [] };
    const [line, column] = [lines.indexOf(label), columnOf(steps, step)];
    this.chosen = line >= 0 && column >= 0 ? { line, column } : null;
    this.drawOver();
  }

  /** What a cell is about: line, rank (null if none has a number), step and micro step of the number that it shows.
   * @param {Place} place */
  about({ line, column }) {
    const { header, arrays } = /** @type {import("./api.js").Binary} */ (this.data);
    const i = line * header.steps.length + column;
    const rank = arrays.rank?.[i] >= 0 ? arrays.rank[i] : null;
    return { label: header.lines[line], rank, step: (rank !== null && arrays.step?.[i]) || header.steps[column][0], micro: arrays.micro?.[i] ?? null };
  }

  /** @param {number} n */
  label = (n) => String(this.data?.header.lines[n] ?? "");

  // Geometry

  layout() {
    const context = /** @type {CanvasRenderingContext2D} */ (this.base.getContext("2d"));
    const [first, end] = this.lines;
    const { curve, arrow = "", bands = [] } = this.look;
    context.font = arrow ? BOLD : FONT;
    const wide = this.place.clientWidth;
    let left = 20;
    for (let n = first; n < Math.min(end, first + 400); n++) left = Math.max(left, context.measureText(short(this.label(n), 40)).width);
    const x = Math.min(MOST_LABEL, wide * 0.34, left) + 10;
    context.font = BOLD;
    const right = arrow ? context.measureText(arrow).width + ARROW + 10 : RIGHT;
    const y = 2 + (curve ? CURVE + 8 : 0);
    this.segments = segmentsOf(bands, this.lines, y, Math.min(620, Math.max(300, innerHeight * 0.7)));
    const last = this.segments[this.segments.length - 1];
    const height = last.y + last.height - y;
    this.box = { x, y, width: Math.max(10, wide - x - right), height, ratio: devicePixelRatio };
    this.axis = axisOf(this.data?.header.steps ?? [], this.box.width);
    const all = y + height + AXIS;
    for (const canvas of [this.base, this.over]) {
      canvas.width = Math.round(wide * devicePixelRatio);
      canvas.height = Math.round(all * devicePixelRatio);
      canvas.style.height = `${all}px`;
    }
    this.place.style.height = `${all}px`;
  }

  /** Where cells lie, in CSS pixels.
   * @type {(line: number, column: number) => { x: number, y: number, width: number, height: number }} */
  rectangle(line, column) {
    const own = this.segments.find(({ first, end }) => first <= line && line < end) ?? this.segments[0];
    const [left, right] = this.axis.ends(column);
    const height = own.height / (own.end - own.first);
    return { x: this.box.x + left, y: own.y + (line - own.first) * height, width: right - left, height };
  }

  /** The cell at a position: the worst one of those that share its pixel; null outside.
   * @type {(event: { offsetX: number, offsetY: number }) => Place | null} */
  placeAt({ offsetX, offsetY }) {
    const { cells, axis } = this;
    const own = this.segments.find(({ y, height }) => offsetY >= y && offsetY < y + height);
    const x = Math.floor(offsetX - this.box.x);
    if (!own || !cells || x < 0 || !(axis.end[x] > axis.first[x])) return null;
    const count = own.end - own.first;
    const down = Math.max(1, Math.min(count, Math.floor(own.height)));
    const [a, b] = share(Math.floor(((offsetY - own.y) / own.height) * down), down, count);
    const worst = worstOf(cells, [own.first + a, own.first + b], [axis.first[x], axis.end[x]]);
    return { line: Math.floor(worst / cells.columns), column: worst % cells.columns };
  }

  // Drawing

  redraw() {
    if (!this.cells || !this.data || !this.place.clientWidth) return;
    this.layout();
    const context = /** @type {CanvasRenderingContext2D} */ (this.base.getContext("2d"));
    for (const { first, end, y, height } of this.segments) paint(context, this.cells, [first, end], this.axis, { ...this.box, y, height });
    context.setTransform(this.box.ratio, 0, 0, this.box.ratio, 0, 0);
    this.segments.forEach((segment) => this.drawLines(context, segment));
    this.drawTicks(context);
    if (this.look.curve) this.drawCurve(context, this.look.curve);
    this.drawMarks(context);
    this.drawOver();
  }

  /** @type {(context: CanvasRenderingContext2D, segment: import("./bands.js").Segment) => void} */
  drawLines(context, { first, end, y, height, title }) {
    const { x, width } = this.box;
    Object.assign(context, { font: FONT, fillStyle: colour("quiet"), textBaseline: "middle", textAlign: "right", strokeStyle: colour("line") });
    const every = Math.max(1, Math.ceil(((end - first) * 13) / height));
    for (let n = first + Math.floor(every / 2); n < end; n += every) {
      const place = this.rectangle(n, 0);
      const marked = this.look.arrow && n === this.chosen?.line;
      context.font = marked ? BOLD : FONT;
      context.fillStyle = colour(marked ? "text" : "quiet");
      context.fillText(fitted(context, this.label(n), x - 9), x - 7, place.y + place.height / 2);
    }
    context.strokeRect(x - 0.5, y - 0.5, width + 1, height + 1);
    Object.assign(context, { font: BOLD, fillStyle: colour("text"), textAlign: "left" });
    const [long, brief] = [title, title.replace(/ \(.*/, "")];
    if (title) context.fillText(context.measureText(long).width > width ? brief : long, x, y - BAND / 2);
  }

  /** @param {CanvasRenderingContext2D} context */
  drawTicks(context) {
    const { x, y, width, height } = this.box;
    Object.assign(context, { font: FONT, fillStyle: colour("quiet"), textBaseline: "top", textAlign: "center" });
    for (const step of this.ticks()) {
      const [left, right] = [this.axis.at(step), this.axis.at(step + 1)];
      const middle = x + (right - left > 14 ? (left + right) / 2 : left);
      context.fillRect(Math.round(middle), y + height + 1, 1, 4);
      context.fillText(String(step), Math.min(middle, x + width - 8), y + height + 7);
    }
  }

  /** Round steps, about one for each 60 pixels. */
  ticks() {
    /** @type {[number, number][]} */
    const steps = this.data?.header.steps ?? [];
    if (!steps.length) return [];
    const [first, last] = [steps[0][0], steps[steps.length - 1][1]];
    const every = rounded(Math.max(1, (last - first + 1) / Math.max(2, this.box.width / 60)), true);
    const found = [];
    for (let step = Math.ceil(first / every) * every; step <= last; step += every) found.push(step);
    return found.length ? found : [first];
  }

  /** @type {(context: CanvasRenderingContext2D, curve: Curve) => void} */
  drawCurve(context, { label, points }) {
    const { x } = this.box;
    const [low, high] = drawCurve(context, points, (step) => x + this.axis.at(step + this.axis.step / 2), CURVE);
    Object.assign(context, { font: FONT, fillStyle: colour("quiet"), textBaseline: "middle", textAlign: "right" });
    context.fillText(label, x - 7, CURVE / 2 + 4);
    if (!(high >= low)) return;
    context.fillText(axisText(high, high - low), x - 7, 8);
    if (high > low) context.fillText(axisText(low, high - low), x - 7, CURVE);
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
    if (this.chosen && this.look.arrow) this.drawArrow(context, this.chosen, this.look.arrow);
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

  /** An arrow from a text at the right edge to a cell.
   * @type {(context: CanvasRenderingContext2D, place: Place, label: string) => void} */
  drawArrow(context, { line, column }, label) {
    const place = this.rectangle(line, column);
    const [from, to, y] = [this.box.x + this.box.width + ARROW, place.x + place.width + 3, place.y + place.height / 2];
    for (const [width, ink] of /** @type {[number, string][]} */ ([[5, "ground"], [2, "text"]])) {
      Object.assign(context, { lineWidth: width, strokeStyle: colour(ink) });
      context.beginPath();
      for (const [x, dy] of [[from, 0], [to, 0], [to + 6, -5], [to, 0], [to + 6, 5]]) context[x === from ? "moveTo" : "lineTo"](x, y + dy);
      context.stroke();
    }
    Object.assign(context, { font: BOLD, fillStyle: colour("text"), textAlign: "left", textBaseline: "middle" });
    context.fillText(label, from + 4, y);
  }

  /** A frame around a cell, with an edge in the colour of the ground so that it shows on every colour.
   * @type {(context: CanvasRenderingContext2D, place: Place, width: number, name: string) => void} */
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

  // Pointer

  /** @param {PointerEvent} event */
  grasp(event) {
    if (event.button !== 0 || event.offsetX < this.box.x || event.offsetX >= this.box.x + this.box.width) return;
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
    const [left, right] = [drag.x, drag.x1].map((value) => clamp(value, x, x + width)).sort((a, b) => a - b);
    const [top, bottom] = [drag.y, drag.y1].map((value) => clamp(value, y, y + height)).sort((a, b) => a - b);
    const line = this.rectangle(this.lines[0], 0).height;
    const flat = bottom - top < Math.max(24, 1.5 * line);
    const narrow = !flat && right - left < 12;
    return { x: narrow ? x : left, x1: narrow ? x + width : right, y: flat ? y : top, y1: flat ? y + height : bottom };
  }

  /** @param {{ x: number, y: number, x1: number, y1: number }} part */
  zoomTo(part) {
    const count = this.cells?.columns ?? 1;
    const inside = (/** @type {number} */ column) => {
      const [left, right] = this.axis.ends(column);
      return left + this.box.x < part.x1 - 0.01 && right + this.box.x > part.x + 0.01;
    };
    const columns = Array.from({ length: count }, (_, n) => n).filter(inside);
    if (!columns.length) return;
    this.actions.zoom?.({ columns: [columns[0], columns[columns.length - 1]], lines: [this.lineAt(part.y), this.lineAt(part.y1 - 0.01)] });
  }

  /** The line at a height, or the nearest one. @param {number} y */
  lineAt(y) {
    const own = this.segments.find((segment) => y < segment.y + segment.height) ?? this.segments[this.segments.length - 1];
    const line = own.first + Math.floor(((y - own.y) / own.height) * (own.end - own.first));
    return clamp(line, own.first, own.end - 1);
  }

  /** @param {Place | null} place */
  point(place) {
    this.cursor = place;
    this.readout.textContent = place ? this.actions.read(place) : "";
    this.drawOver();
  }

  // Keys

  chooseCursor = () => this.cells?.columns && this.actions.choose(this.cursor ?? this.start());

  /** @returns {Place} */
  start() {
    const chosen = this.chosen;
    const visible = chosen && chosen.line >= this.lines[0] && chosen.line < this.lines[1];
    return visible ? { ...chosen } : { line: this.lines[0], column: 0 };
  }

  /** @type {(lines: number, columns: number) => void} */
  moveCursor(lines, columns) {
    if (!this.cells?.columns) return;
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
    this.actions.zoom?.({ columns: [Math.max(0, column - quarter), Math.min(columns - 1, column + quarter)], lines: [this.lines[0], this.lines[1] - 1] });
  }

  /** Numbers of a cell in words. @param {Place} place */
  valueText({ line, column }) {
    const { header, arrays } = /** @type {import("./api.js").Binary} */ (this.data);
    const i = line * header.steps.length + column;
    const [low, high] = [arrays.minimum[i], arrays.maximum[i]];
    const parts = [arrays.nan[i] && t("cell.nan", { count: arrays.nan[i] }), arrays.inf[i] && t("cell.inf", { count: arrays.inf[i] })].filter(Boolean);
    if (!Number.isNaN(high)) parts.push(low === high ? text(shownOf(arrays, i), 6) : `${text(low, 5)} … ${text(high, 5)}`);
    return parts.join(" · ") || t("nothing");
  }

  /** Steps of a column in words. @param {number} column */
  stepsText(column) {
    const steps = this.data?.header.steps[column] ?? [0, 0];
    return t(steps[0] === steps[1] ? "step.one" : "step.several", { steps: spanText(steps) });
  }
}
