// A signal from the first layer to the last at one step, the step before, and all steps behind it.
import { shownOf } from "./cells.js";
import { Chart, line } from "./chart.js";
import { columnOf, element } from "./dom.js";
import { colour } from "./palette.js";
import { t } from "./words.js";

export class Depth {
  /** @param {(row: string, step: number) => void} choose */
  constructor(choose) {
    /** @type {import("./api.js").Binary | null} */
    this.answer = null;
    this.column = 0;
    this.chart = new Chart(t("depth"), 240, { pick: (_, point) => this.answer && choose(this.answer.header.lines[point], this.answer.header.steps[this.column][0]) });
    this.title = element("h2", { id: "depth-title" });
    this.element = element("section", { className: "card", id: "depth", hidden: true }, this.title, this.chart.element);
  }

  /** @param {import("./api.js").Binary} answer cells of rows
   * @param {string} title
   * @param {number | null} step null for the last one */
  show(answer, title, step) {
    this.answer = answer;
    const { header, arrays } = answer;
    const [names, steps] = [/** @type {string[]} */ (header.lines), /** @type {number[][]} */ (header.steps)];
    const found = columnOf(steps, step);
    this.column = found < 0 ? steps.length - 1 : found;
    this.element.hidden = names.length < 2 || !steps.length;
    this.title.textContent = t("depth.of", { title, step: steps[this.column]?.[0] ?? "" });
    const size = (/** @type {number} */ line, /** @type {number} */ column) => Math.abs(shownOf(arrays, line * steps.length + column)) || NaN; // no logarithm of zero
    const all = names.map((_, line) => steps.map((_, column) => size(line, column)).filter(Number.isFinite));
    const of = (/** @type {string} */ label, /** @type {number} */ column, /** @type {any} */ look) => {
      const counts = (/** @type {string} */ kind) => names.map((_, line) => arrays[kind][line * steps.length + column]);
      return line(label, names.map((_, line) => size(line, column)), { nan: counts("nan"), inf: counts("inf"), ...look });
    };
    this.chart.names = names;
    this.chart.show(names.map((_, line) => [line, line]), [
      { ...line(t("depth.all"), all.map((own) => Math.max(...own)), { colour: colour("faint"), width: 0.5, low: all.map((own) => Math.min(...own)) }), inf: names.map(() => 0) },
      ...(this.column ? [of(t("depth.before"), this.column - 1, { colour: colour("quiet"), width: 1, dash: [2, 3] })] : []),
      of(t("at.step", { step: steps[this.column]?.[0] ?? "" }), this.column, { colour: colour("accent"), width: 1.8 }),
    ], null);
  }
}
