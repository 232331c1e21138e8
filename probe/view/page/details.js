// What is known of a run beside its layers: performance, configuration, cost, ranks far from their replicas. Each part is
// asked for when it is opened.
import { Source, address, json } from "./api.js";
import { Chart, line } from "./chart.js";
import { button, element, factList } from "./dom.js";
import { colour } from "./palette.js";
import { own } from "./verdict.js";
import { t } from "./words.js";

/** @typedef {{ signal: string, op: string, row: string, rank: number, step: number | null }} Far */

/**
 * A table of texts.
 * @type {(header: string[], rows: (string | number | Node)[][]) => HTMLElement}
 */
export const table = (header, rows) => element("div", { className: "scroll" }, element("table", {}, element("thead", {}, element("tr", {}, ...header.map((name) => element("th", { scope: "col", textContent: name })))),
  element("tbody", {}, ...rows.map((row) => element("tr", {}, ...row.map((cell, n) => element("td", { data: { label: header[n] } }, typeof cell === "number" ? String(cell) : cell)))))));

export class Details {
  /**
   * @param {number} number of the run
   * @param {(far: Far) => void} choose
   */
  constructor(number, choose) {
    this.choose = choose;
    this.number = number;
    this.parts = [this.part("performance", (answer) => this.performance(own(answer))), this.part("farthest", (answer) => this.farthest(answer)), this.part("details", (answer) => this.manifest(answer))];
    this.element = element("section", { className: "card", id: "about" }, ...this.parts.map((part) => part.element));
  }

  /**
   * @param {string} name
   * @param {(answer: any) => Node[]} draw
   */
  part(name, draw) {
    const body = element("div");
    const source = new Source(json, (answer) => body.replaceChildren(...draw(answer)), (problem) => body.replaceChildren(element("p", { className: "failed", textContent: problem.message })));
    const shown = element("details", { id: name, on: { toggle: () => shown.open && source.want(address(`runs/${this.number}/${name}`)) } }, element("summary", { textContent: t(`about.${name}`) }), body);
    return { name, source, element: shown };
  }

  /** @param {any} run */
  show(run) {
    for (const part of this.parts) part.element.hidden = part.name in run && !run[part.name];
  }

  renew() {
    for (const part of this.parts) part.source.renew();
  }

  /** @param {any} answer */
  performance({ lines, tables, unit, steps, speeds, healthy, drops }) {
    const chart = new Chart(t("about.speed"), 170, {});
    const slow = speeds.map((/** @type {number} */ speed, /** @type {number} */ n) => (drops.some((/** @type {number[]} */ [first, last]) => first <= steps[n] && steps[n] <= last) ? speed : NaN));
    const level = healthy === null ? [] : [line(t("about.healthy"), steps.map(() => healthy), { colour: colour("quiet"), dash: [4, 4] })];
    requestAnimationFrame(() => chart.show(steps.map((/** @type {number} */ step) => [step, step]), [...level, line(unit, speeds.map((/** @type {any} */ speed) => speed ?? NaN), { colour: colour("accent") }), line(t("about.drop"), slow, { colour: colour("bad"), width: 2.4 })], null));
    return [...lines.map((/** @type {string} */ text) => element("p", { textContent: text })), element("h3", { textContent: t("about.unit", { unit }) }), chart.element,
      ...tables.flatMap((/** @type {any} */ { title, header, rows }) => [element("h3", { textContent: title }), table(header, rows)])];
  }

  /** @param {any[]} kinds */
  farthest(kinds) {
    const header = ["rank", "factor", "value", "median", "step", "layer"].map((name) => t(`far.${name}`));
    return [element("p", { className: "quiet", textContent: t("far.note") }), ...kinds.flatMap(({ signal, op, ranks }) => [
      element("h3", { textContent: signal ? t("curve.op", { signal, op }) : op }),
      table(header, ranks.map((/** @type {any} */ far) => [button(String(far.rank), () => this.choose({ ...far, signal, op }), { data: { far: far.rank } }), far.factor, far.value, far.median, far.step ?? "", far.name])),
    ])];
  }

  /** @param {{ facts: [string, string][], configuration: any[], directories: number, ended: number, costs: any[] }} answer */
  manifest({ facts, configuration, directories, ended, costs }) {
    const header = ["rank", "steps", "hooks", "drain", "step", "delivery", "findings", "faults"].map((name) => t(`cost.${name}`));
    return [factList(facts.map(([name, value]) => /** @type {[string, string]} */ ([t(`fact.${name}`), value]))), element("h3", { textContent: t("cost") }), element("p", { className: "quiet", textContent: t("cost.note", { ended, directories }) }),
      ...(costs.length ? [table(header, costs)] : []), element("h3", { textContent: t("configuration") }), table([t("configuration.key"), t("configuration.value")], configuration)];
  }
}
