// What is known of a run beside its layers: performance, configuration, cost, ranks far from their replicas. Each part is
// asked for when it is opened.
import { Source, address, json } from "./api.js";
import { Chart, line } from "./chart.js";
import { button, element, factList, paragraph, table } from "./dom.js";
import { colour } from "./palette.js";
import { own } from "./verdict.js";
import { t } from "./words.js";

/** @typedef {{ signal: string, op: string, row: string, rank: number, step: number | null }} Far */

const title = (/** @type {string} */ text) => element("h3", { textContent: text });

export class Details {
  /** @param {number} number of the run @param {(far: Far) => void} choose */
  constructor(number, choose) {
    this.choose = choose;
    this.number = number;
    this.parts = [
      this.part("performance", (answer) => this.performance(own(answer))),
      this.part("farthest", (answer) => this.farthest(answer)),
      this.part("details", (answer) => this.manifest(answer)),
    ];
    this.element = element("section", { className: "card", id: "about" }, ...this.parts.map((part) => part.element));
  }

  /** @param {string} name @param {(answer: any) => Node[]} draw */
  part(name, draw) {
    const body = element("div");
    const fail = (/** @type {Error} */ problem) => body.replaceChildren(paragraph(problem.message, "failed"));
    const source = new Source(json, (answer) => body.replaceChildren(...draw(answer)), fail);
    const toggle = () => shown.open && source.want(address(`runs/${this.number}/${name}`));
    const shown = element("details", { id: name, on: { toggle } }, element("summary", { textContent: t(`about.${name}`) }), body);
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
    const dropped = (/** @type {number} */ step) => drops.some((/** @type {number[]} */ [first, last]) => first <= step && step <= last);
    const known = speeds.map((/** @type {number | null} */ speed) => speed ?? NaN);
    const slow = known.map((/** @type {number} */ speed, /** @type {number} */ n) => (dropped(steps[n]) ? speed : NaN));
    const level = healthy === null ? [] : [line(t("about.healthy"), steps.map(() => healthy), { colour: colour("quiet"), dash: [4, 4] })];
    const curves = [...level, line(unit, known, { colour: colour("accent") }), line(t("about.drop"), slow, { colour: colour("bad"), width: 2.4 })];
    requestAnimationFrame(() => chart.show(steps.map((/** @type {number} */ step) => [step, step]), curves, null));
    return [
      ...lines.map((/** @type {string} */ text) => paragraph(text, "")), title(t("about.unit", { unit })), chart.element,
      ...tables.flatMap((/** @type {any} */ one) => [title(one.title), table(one.header, one.rows)]),
    ];
  }

  /** @param {any[]} kinds */
  farthest(kinds) {
    const header = ["rank", "factor", "value", "median", "step", "layer"].map((name) => t(`far.${name}`));
    return [paragraph(t("far.note")), ...kinds.flatMap(({ signal, op, ranks }) => [
      title(signal ? t("curve.op", { signal, op }) : op),
      table(header, ranks.map((/** @type {any} */ far) => [
        button(String(far.rank), () => this.choose({ ...far, signal, op }), { data: { far: far.rank } }),
        far.factor, far.value, far.median, far.step ?? "", far.name,
      ])),
    ])];
  }

  /** @param {{ facts: [string, string][], configuration: any[], directories: number, ended: number, costs: any[] }} answer */
  manifest({ facts, configuration, directories, ended, costs }) {
    const header = ["rank", "steps", "hooks", "drain", "step", "delivery", "findings", "faults"].map((name) => t(`cost.${name}`));
    return [
      factList(facts.map(([name, value]) => [t(`fact.${name}`), value])),
      title(t("cost")), paragraph(t("cost.note", { ended, directories })), ...(costs.length ? [table(header, costs)] : []),
      title(t("configuration")), table([t("configuration.key"), t("configuration.value")], configuration),
    ];
  }
}
