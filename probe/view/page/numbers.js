// Numbers of the run (loss, gradient norm, ...): a small chart each, of one run or of two laid over each other.
import { Group, address } from "./api.js";
import { Chart } from "./chart.js";
import { button, element, heading } from "./dom.js";
import { go } from "./state.js";
import { t } from "./words.js";

/** @typedef {{ number: number, label: string, colour: string, dash?: number[] }} Curve a run and how it is drawn */
/** @typedef {import("./api.js").Binary} Binary */

const FIRST = 6; // charts that are open from the beginning
const POINTS = 600;

export class Numbers {
  /** @param {import("./chart.js").Actions} actions */
  constructor(actions) {
    this.actions = actions;
    this.names = element("div", { className: "chips", aria: { role: "group", label: t("numbers") } });
    this.charts = element("div", { className: "charts" });
    this.element = element("section", { className: "card", id: "numbers" }, heading(t("numbers"), this.names), this.charts);
    /** @type {Map<string, Chart>} */
    this.open = new Map();
    this.group = new Group(() => this.draw());
    /** @type {Curve[]} */
    this.curves = [];
    this.visible = false;
    new IntersectionObserver(([entry]) => this.see(entry.isIntersecting), { rootMargin: "80px" }).observe(this.element);
  }

  /** @param {boolean} visible */
  see(visible) {
    this.visible = visible;
    if (visible) this.load();
  }

  /** @param {Curve[]} curves @param {string[]} known names that there are @param {import("./state.js").State} state */
  show(curves, known, state) {
    const names = state.numbers ? state.numbers.split(",").filter((name) => known.includes(name)) : known.slice(0, FIRST);
    this.element.hidden = !known.length;
    Object.assign(this, { curves, wanted: names, state });
    this.names.replaceChildren(...known.map((name) => this.chip(name, names)));
    for (const [name, chart] of this.open) {
      if (names.includes(name)) continue;
      chart.element.parentElement?.remove();
      this.open.delete(name);
    }
    for (const name of names) if (!this.open.has(name)) this.add(name);
    if (this.visible) this.load();
  }

  /** @type {string[]} */
  wanted = [];
  /** @type {import("./state.js").State | null} */
  state = null;

  /** @type {(name: string, shown: string[]) => HTMLElement} */
  chip(name, shown) {
    const on = shown.includes(name);
    const changed = on ? shown.filter((other) => other !== name) : [...shown, name];
    return button(name, () => go({ numbers: changed.join(",") || "-" }, { replace: true }), { className: "chip", aria: { pressed: on } });
  }

  /** @param {string} name */
  add(name) {
    const chart = new Chart(name, 130, this.actions);
    chart.readout.dataset.number = name;
    this.open.set(name, chart);
    this.charts.append(element("figure", {}, element("figcaption", { textContent: name }), chart.element));
  }

  load() {
    if (!this.wanted.length || !this.state) return;
    const { from, to } = this.state;
    this.group.want(this.curves.map(({ number }) => address(`runs/${number}/numbers`, { names: this.wanted.join(","), from, to, points: POINTS })));
  }

  renew() {
    for (const source of this.group.sources) this.visible ? source.renew() : source.clear();
  }

  draw() {
    const { answers } = this.group;
    const { spans, place } = together(answers);
    for (const [name, chart] of this.open) {
      const lines = this.curves.flatMap((curve, n) => {
        const answer = answers[n];
        const at = answer ? answer.header.names.indexOf(name) : -1;
        return answer && at >= 0 ? [{ label: curve.label || name, colour: curve.colour, width: 1.4, dash: curve.dash, ...place(n, at) }] : [];
      });
      chart.show(spans, lines, this.state?.step ?? null);
    }
  }
}

/** Bring the points of several answers onto one axis of steps; a point that an answer lacks is undefined, which no curve
 * is interrupted by.
 * @param {(Binary | null)[]} answers */
export function together(answers) {
  /** @type {Map<number, number[]>} */
  const found = new Map();
  for (const answer of answers) for (const span of answer?.header.spans ?? []) if (!found.has(span[0])) found.set(span[0], span);
  const spans = [...found.values()].sort((a, b) => a[0] - b[0]);
  const places = new Map(spans.map(([first], n) => [first, n]));
  const place = (/** @type {number} */ n, /** @type {number} */ line) => {
    const { header, arrays } = /** @type {Binary} */ (answers[n]);
    const count = header.steps.length;
    const put = (/** @type {ArrayLike<number>} */ values, /** @type {number | undefined} */ nothing) => {
      const own = new Array(spans.length).fill(nothing);
      for (let k = 0; k < count; k++) own[/** @type {number} */ (places.get(header.spans[k][0]))] = values[line * count + k];
      return own;
    };
    return { low: put(arrays.minimum, undefined), high: put(arrays.maximum, undefined), nan: put(arrays.nan, 0), inf: put(arrays.inf, 0) };
  };
  return { spans, place };
}
