// Curves over steps, drawn by uPlot; marks at the upper edge where a number is NaN or Inf.
import { axisText, clamp, columnOf, element, extremes, rounded, short, spanText, text } from "./dom.js";
import { colour, scale } from "./palette.js";
import { Plot } from "./plot.js";
import { t } from "./words.js";

/** @typedef {object} Line
 * @property {string} label
 * @property {string} colour
 * @property {number} width CSS pixels
 * @property {number[]} [dash]
 * @property {ArrayLike<number>} low smallest number of each point, infinities included
 * @property {ArrayLike<number>} high largest number
 * @property {ArrayLike<number>} nan count of NaN
 * @property {ArrayLike<number>} inf count of Inf */
/** @typedef {object} Actions
 * @property {(line: number, point: number) => void} [pick]
 * @property {(from: number, to: number) => void} [zoom] first and last step
 * @property {() => void} [reset]
 * @property {() => void} [leave] Escape */

/** A curve of single numbers; NaN is none.
 * @type {(label: string, values: number[], look: { colour: string } & Partial<Line>) => Line} */
export function line(label, values, look) {
  const inf = values.map((value) => Number(Math.abs(value) === Infinity));
  return { label, width: 1.4, low: values, high: values, nan: values.map(() => 0), inf, ...look };
}

const MARK = 5;
const FONT = "11px system-ui, sans-serif";

export class Chart extends Plot {
  /** @param {string} label what the chart is about @param {number} height CSS pixels @param {Actions} actions */
  constructor(label, height, actions) {
    super({ className: "chart", aria: { role: "application", label } }, actions);
    this.actions = actions;
    this.height = height;
    this.element = element("div", { className: "chart-box" }, this.place, this.readout);
    /** @type {uPlot | null} */
    this.plot = null;
    /** @type {Line[]} */
    this.lines = [];
    /** @type {number[][]} first and last step of each point */
    this.spans = [];
    /** @type {number | null} */
    this.step = null;
    /** @type {string[] | null} names of the points, in place of steps */
    this.names = null;
    this.drawn = "";
    this.focus = 0;
  }

  leaveCursor = () => this.plot?.setCursor({ left: -10, top: -10 });

  /** @param {number[][]} spans first and last step of each point
   * @param {Line[]} lines
   * @param {number | null} step a vertical line */
  show(spans, lines, step) {
    Object.assign(this, { spans, lines, step });
    const data = this.data();
    const key = JSON.stringify([this.logarithmic(data), this.banded(), lines.map((line) => [line.label, line.colour, line.width]), this.names?.length]);
    if (this.plot && key === this.drawn) return this.plot.setData(data);
    this.drawn = key;
    this.redraw();
  }

  redraw() {
    this.plot?.destroy();
    this.plot = null;
    this.place.hidden = !this.spans.length;
    if (!this.place.clientWidth || !this.spans.length) return;
    const data = this.data();
    this.plot = new uPlot(this.options(this.logarithmic(data)), data, this.place);
    this.plot.over.addEventListener("click", () => this.chooseCursor());
  }

  resize() {
    if (!this.plot) this.redraw();
    else if (this.place.clientWidth && this.place.clientWidth !== this.plot.width) this.plot.setSize({ width: this.place.clientWidth, height: this.height });
  }

  /** Whether a point of a curve stands for several numbers. */
  banded = () => this.lines.some(({ low, high }) => Array.prototype.some.call(high, (value, n) => value !== low[n] && Number.isFinite(value - low[n])));

  /** @returns {uPlot.AlignedData} */
  data() {
    const finite = (/** @type {ArrayLike<number>} */ values) => Array.from(values, (value) => (value === undefined || Number.isFinite(value) ? value : null));
    const banded = this.banded();
    return [this.spans.map(([first]) => first), ...this.lines.flatMap(({ low, high }) => (banded ? [finite(high), finite(low)] : [finite(high)]))];
  }

  /** A logarithmic axis, if nothing is zero or negative and there is more than a decade.
   * @param {uPlot.AlignedData} data */
  logarithmic(data) {
    const [low, high] = extremes(data.slice(1).flatMap((values) => Array.from(values, (value) => value ?? NaN)));
    return low > 0 && high / low > 10;
  }

  /** @type {(logarithmic: boolean) => uPlot.Options} */
  options(logarithmic) {
    const decades = (/** @type {uPlot} */ _, /** @type {number[]} */ splits) => (splits.length > 24 ? splits.map((split) => (Math.log10(split) % 1 ? null : split)) : splits);
    const axis = { stroke: colour("quiet"), font: FONT, grid: { stroke: colour("grid"), width: 1, ...(logarithmic ? { filter: decades } : {}) }, ticks: { stroke: colour("line"), width: 1, size: 4 } };
    const shown = (/** @type {(number | null)[]} */ splits, /** @type {number} */ distance) => splits.map((split) => (split === null ? "" : axisText(split, distance)));
    const values = (/** @type {uPlot} */ _, /** @type {(number | null)[]} */ splits) => shown(splits, logarithmic ? 0 : Math.abs(Number(splits[1]) - Number(splits[0])));
    const across = (/** @type {uPlot} */ _, /** @type {(number | null)[]} */ splits) => (this.names ? splits.map((split) => short(this.names?.[split ?? -1] ?? "", 14)) : shown(splits, 1));
    const banded = this.banded();
    const series = this.lines.flatMap((line) => {
      const own = { label: line.label, stroke: line.colour, width: line.width, dash: line.dash };
      return banded ? [own, { ...own, points: { show: false } }] : [own];
    });
    return {
      width: this.place.clientWidth, height: this.height, legend: { show: false }, padding: [12, 10, 0, 0],
      scales: { x: { time: false }, y: logarithmic ? { distr: 3, range: (_, low, high) => [rounded(low, false), rounded(high, true)] } : {} },
      axes: [{ ...axis, size: 26, gap: 3, incrs: [1, 2, 5].flatMap((n) => [1, 10, 100, 1e3, 1e4, 1e5, 1e6, 1e7].map((p) => n * p)).sort((a, b) => a - b), values: across, ...(this.names ? { space: 110 } : {}) },
        { ...axis, size: 58, gap: 4, values }],
      series: [{}, ...series],
      bands: banded ? this.lines.map((line, n) => ({ series: /** @type {[number, number]} */ ([2 * n + 1, 2 * n + 2]), fill: `${line.colour.slice(0, 7)}40` })) : [],
      cursor: {
        drag: { x: Boolean(this.actions.zoom), y: false, setScale: false }, points: { size: 6 },
        bind: { dblclick: () => () => this.actions.reset?.() ?? null },
      },
      hooks: {
        setCursor: [(plot) => this.read(plot)], setSelect: [(plot) => this.select(plot)],
        drawClear: [(plot) => this.drawStep(plot)], draw: [(plot) => this.drawMarks(plot)],
      },
    };
  }

  // Drawing beside the curves

  /** @param {uPlot} plot */
  drawStep(plot) {
    if (this.step === null) return;
    const x = Math.round(plot.valToPos(this.step, "x", true));
    if (x < plot.bbox.left || x > plot.bbox.left + plot.bbox.width) return;
    plot.ctx.fillStyle = colour("chosen");
    plot.ctx.fillRect(x - devicePixelRatio, plot.bbox.top, 2 * devicePixelRatio, plot.bbox.height);
  }

  /** @param {uPlot} plot */
  drawMarks(plot) {
    const { nan, inf, infMark } = scale();
    const size = MARK * devicePixelRatio;
    const y = plot.bbox.top - size / 2;
    plot.ctx.lineWidth = devicePixelRatio;
    for (const line of this.lines) {
      for (let n = 0; n < this.spans.length; n++) {
        if (!line.nan[n] && !line.inf[n]) continue;
        const x = plot.valToPos(this.spans[n][0], "x", true);
        if (x < plot.bbox.left - 1 || x > plot.bbox.left + plot.bbox.width + 1) continue;
        plot.ctx.fillStyle = line.nan[n] ? nan : inf;
        plot.ctx.strokeStyle = line.nan[n] ? nan : infMark;
        plot.ctx.beginPath();
        // a triangle for NaN, a square on its corner for Inf
        const corners = line.nan[n] ? [[-1, -1], [1, -1], [0, 1]] : [[0, -1], [1, 0], [0, 1], [-1, 0]];
        corners.forEach(([dx, dy], k) => plot.ctx[k ? "lineTo" : "moveTo"](x + dx * size, y + dy * size));
        plot.ctx.closePath();
        plot.ctx.fill();
        plot.ctx.stroke();
      }
    }
  }

  // Pointer and keys

  /** @param {uPlot} plot */
  read(plot) {
    const { idx, top } = plot.cursor;
    if (idx === null || idx === undefined || top === undefined || top < 0) {
      this.readout.textContent = "";
      return;
    }
    if (!this.byKeys) this.focus = this.nearest(plot, idx, top);
    const line = this.lines[this.focus];
    const at = this.names ? this.names[idx] : t("at.step", { step: spanText(this.spans[idx]) });
    this.readout.textContent = line ? `${at}  ${line.label}: ${this.value(line, idx)}` : "";
  }

  byKeys = false;

  /** @type {(line: Line, n: number) => string} */
  value(line, n) {
    const [low, high] = [line.low[n], line.high[n]];
    const parts = [];
    if (high !== undefined && !Number.isNaN(high)) parts.push(low === high ? text(high, 6) : `${text(low, 6)} … ${text(high, 6)}`);
    if (line.nan[n]) parts.push("NaN");
    return parts.join(", ") || t("nothing");
  }

  /** The line whose point is the nearest one, those of what is not finite at the upper edge.
   * @type {(plot: uPlot, idx: number, top: number) => number} */
  nearest(plot, idx, top) {
    let [best, least] = [0, Infinity];
    this.lines.forEach((line, n) => {
      const value = line.high[idx];
      const place = line.nan[idx] || line.inf[idx] ? 0 : Number.isFinite(value) ? plot.valToPos(value, "y") : NaN;
      if (Math.abs(place - top) < least) [best, least] = [n, Math.abs(place - top)];
    });
    return best;
  }

  chooseCursor() {
    const idx = this.plot?.cursor.idx;
    if (idx !== null && idx !== undefined) this.actions.pick?.(this.focus, idx);
  }

  /** @param {uPlot} plot */
  select(plot) {
    const { left, width } = plot.select;
    if (width < MARK) return;
    plot.setSelect({ left: 0, width: 0, top: 0, height: 0 }, false);
    const [from, to] = [plot.posToVal(left, "x"), plot.posToVal(left + width, "x")];
    this.actions.zoom?.(Math.max(0, Math.ceil(from)), Math.max(Math.ceil(from), Math.floor(to)));
  }

  /** @type {(lines: number, columns: number) => void} */
  moveCursor(lines, columns) {
    const { plot } = this;
    if (!plot) return;
    const at = columnOf(this.spans, this.step);
    const now = plot.cursor.idx ?? null;
    const point = clamp((now ?? Math.max(0, at)) + (now === null ? 0 : columns), 0, this.spans.length - 1);
    this.focus = clamp(this.focus + lines, 0, this.lines.length - 1);
    const value = this.lines[this.focus]?.high[point];
    this.byKeys = true;
    plot.setCursor({ left: plot.valToPos(this.spans[point][0], "x"), top: Number.isFinite(value) ? plot.valToPos(value, "y") : 0 });
    this.byKeys = false;
  }
}
