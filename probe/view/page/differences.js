// Differences of two runs: over steps, by layer, the rows and modules in which they part.
import { Chart, line } from "./chart.js";
import { table } from "./details.js";
import { choice, element, fill, parsed, preferred, text } from "./dom.js";
import { Heatmap } from "./heatmap.js";
import { colour, lineColour } from "./palette.js";
import { t } from "./words.js";

export class Differences {
  /** @param {(place: { step: number, signal?: string, row?: string }) => void} choose */
  constructor(choose) {
    this.growth = new Chart(t("difference.growth"), 260, { pick: (_, point) => choose({ step: this.growth.spans[point][0] }) });
    this.signal = choice(t("signal"), "layers-signal", () => this.drawLayers());
    this.layers = new Heatmap({ choose: ({ line, column }) => choose({ step: this.own.steps[column], signal: this.signal.select.value, row: this.own.names[line] }), read: (place) => this.read(place) });
    this.legend = element("div", { className: "chips" });
    this.tables = element("div");
    this.element = element("section", { className: "card", id: "differences", hidden: true }, element("h2", { textContent: t("difference.growth") }), this.legend, this.growth.element,
      element("div", { className: "heading" }, element("h2", { textContent: t("difference.layers") }), this.signal.label), this.layers.element, this.tables);
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
    fill(this.signal.select, names.map((/** @type {string} */ name) => [name, name]), preferred(names, first?.signal));
    this.drawGrowth();
    this.drawLayers();
    this.tables.replaceChildren(
      ...(rows.length ? [element("h3", { textContent: t("difference.rows", { shown: rows.length, beyond }) }), table(columns, rows)] : []),
      ...(jumps.length ? [element("h3", { textContent: t("difference.modules") }), table(["rank", "step", "signal", "module", "before", "after"].map((name) => t(`jump.${name}`)), jumps)] : []),
      element("h3", { textContent: t("difference.signals") }), table(["signal", "meaning", "rows", "beyond", "largest"].map((name) => t(`count.${name}`)), counts));
  }

  drawGrowth() {
    const { growth, tolerance } = this.answer;
    const steps = /** @type {number[]} */ ([...new Set(growth.flatMap((/** @type {any} */ one) => one.steps))].sort((a, b) => a - b));
    const lines = growth.map((/** @type {any} */ one, /** @type {number} */ n) => {
      const at = new Map(one.steps.map((/** @type {number} */ step, /** @type {number} */ k) => [step, parsed(one.differences[k])]));
      return line(one.signal, steps.map((step) => at.get(step) || NaN), { colour: lineColour(n) }); // no logarithm of zero
    });
    this.legend.replaceChildren(...lines.map((/** @type {any} */ { label }, /** @type {number} */ n) => element("span", { className: `chip line-${n % 8}`, textContent: label })));
    const bound = line(t("difference.tolerance"), steps.map(() => tolerance), { colour: colour("bad"), width: 1, dash: [4, 4] });
    this.growth.show(steps.map((step) => [step, step]), [...lines, bound], null);
  }

  drawLayers() {
    const own = this.answer.layers.find((/** @type {any} */ one) => one.signal === this.signal.select.value);
    if (!own) return;
    this.own = own;
    const values = Float64Array.from(own.differences.flat(), (value) => parsed(value) ?? NaN);
    const ends = own.steps.map((/** @type {number} */ step, /** @type {number} */ n) => [step, (own.steps[n + 1] ?? step + 1) - 1]);
    const counts = Uint32Array.from(values, (value) => Number(value === Infinity));
    this.layers.show({ header: { lines: own.names, steps: ends, findings: [] }, arrays: { minimum: values, maximum: values, nan: new Uint32Array(values.length), inf: counts } }, { scale: "all" });
  }

  /** @param {{ line: number, column: number }} place */
  read({ line, column }) {
    const value = this.own.differences[line][column];
    return `${this.own.names[line]}, ${this.layers.stepsText(column)} · ${value === null ? t("nothing") : text(value, 3)}`;
  }
}
