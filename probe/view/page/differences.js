// Differences of two runs: over steps, by layer, the rows and modules in which they part.
import { Chart, line } from "./chart.js";
import { choice, element, fill, heading, parsed, preferred, table, text } from "./dom.js";
import { Heatmap } from "./heatmap.js";
import { colour, lineColour } from "./palette.js";
import { t } from "./words.js";

const titled = (/** @type {string} */ title, /** @type {string[]} */ header, /** @type {any[]} */ rows) =>
  rows.length ? [element("h3", { textContent: title }), table(header, rows)] : [];

export class Differences {
  /** @param {(place: { step: number, signal?: string, row?: string }) => void} choose */
  constructor(choose) {
    this.growth = new Chart(t("difference.growth"), 260, { pick: (_, point) => choose({ step: this.growth.spans[point][0] }) });
    this.signal = choice(t("signal"), "layers-signal", () => this.drawLayers());
    const place = (/** @type {import("./heatmap.js").Place} */ { line, column }) =>
      ({ step: this.own.steps[column], signal: this.signal.select.value, row: this.own.names[line] });
    this.layers = new Heatmap({ choose: (cell) => choose(place(cell)), read: (cell) => this.read(cell) });
    this.legend = element("div", { className: "chips" });
    this.tables = element("div");
    this.element = element("section", { className: "card", id: "differences", hidden: true },
      element("h2", { textContent: t("difference.growth") }), this.legend, this.growth.element,
      heading(t("difference.layers"), this.signal.label), this.layers.element, this.tables);
  }

  /** @type {any} */
  answer = null;

  /** @type {{ names: string[], steps: number[], differences: (number | string | null)[][] }} the signal that is shown */
  own = { names: [], steps: [], differences: [] };

  /** @param {any} answer */
  show(answer) {
    this.answer = answer;
    this.element.hidden = false;
    const { layers, first_difference: first, columns, rows, beyond, jumps, counts } = answer;
    const names = layers.map((/** @type {any} */ { signal }) => signal);
    fill(this.signal.select, names, preferred(names, first?.signal));
    this.drawGrowth();
    this.drawLayers();
    this.tables.replaceChildren(
      ...titled(t("difference.rows", { shown: rows.length, beyond }), columns, rows),
      ...titled(t("difference.modules"), "rank step signal module before after".split(" ").map((name) => t(`jump.${name}`)), jumps),
      ...titled(t("difference.signals"), "signal meaning rows beyond largest".split(" ").map((name) => t(`count.${name}`)), counts));
  }

  drawGrowth() {
    const { growth, tolerance } = this.answer;
    const steps = /** @type {number[]} */ ([...new Set(growth.flatMap((/** @type {any} */ one) => one.steps))].sort((a, b) => a - b));
    const lines = growth.map((/** @type {any} */ one, /** @type {number} */ n) => {
      const at = new Map(one.steps.map((/** @type {number} */ step, /** @type {number} */ k) => [step, parsed(one.differences[k])]));
      return line(one.signal, steps.map((step) => at.get(step) || NaN), { colour: lineColour(n) }); // no logarithm of zero
    });
    const chip = (/** @type {any} */ { label }, /** @type {number} */ n) => element("span", { className: `chip line-${n % 8}`, textContent: label });
    this.legend.replaceChildren(...lines.map(chip));
    const bound = line(t("difference.tolerance"), steps.map(() => tolerance), { colour: colour("bad"), width: 1, dash: [4, 4] });
    this.growth.show(steps.map((step) => [step, step]), [...lines, bound], null);
  }

  drawLayers() {
    const own = this.answer.layers.find((/** @type {any} */ one) => one.signal === this.signal.select.value);
    if (!own) return;
    this.own = own;
    const values = Float64Array.from(own.differences.flat(), (value) => parsed(value) ?? NaN);
    const steps = own.steps.map((/** @type {number} */ step, /** @type {number} */ n) => [step, (own.steps[n + 1] ?? step + 1) - 1]);
    const inf = Uint32Array.from(values, (value) => Number(value === Infinity));
    const arrays = { minimum: values, maximum: values, nan: new Uint32Array(values.length), inf };
    this.layers.show({ header: { lines: own.names, steps, findings: [] }, arrays }, { scale: "all" });
  }

  /** @param {import("./heatmap.js").Place} place */
  read({ line, column }) {
    const value = this.own.differences[line][column];
    return `${this.own.names[line]}, ${this.layers.stepsText(column)} · ${value === null ? t("nothing") : text(value, 3)}`;
  }
}
