// The rows around the place that a verdict names, ten steps around the first bad one: activations and gradients in the
// order of execution, the loss above them on the same axis.
import { Group, address } from "./api.js";
import { around, chosen, stacked } from "./bands.js";
import { columnOf, element, preferred } from "./dom.js";
import { Heatmap } from "./heatmap.js";
import { t } from "./words.js";

/** @typedef {import("./api.js").Binary} Binary */
/** @typedef {{ signal: string, op: string, row: string, rank: number, step: number, from: number, to: number }} Focus */

const MOST = 9; // rows of a signal
/** Signals of the forward, then of the backward, the preferred one first. */
const FORWARD = ["actv"];
const BACKWARD = ["grad_unreduced", "grad_reduced", "actv_grad"];
const COLUMNS = 64;

/** Name of the loss among the numbers of a run; empty if there is none. @param {string[]} names */
export const lossOf = (names) => ["loss", "loss_root"].find((name) => names.includes(name)) ?? names.find((name) => /_loss$/.test(name)) ?? "";

/** The first wanted signal that a run has, else `grad_reduced`, else its first. @type {(run: any, ...wanted: (string | undefined)[]) => any} */
export function signalOf({ signals }, ...wanted) {
  const name = preferred(signals.map((/** @type {any} */ one) => one.name), ...wanted, "grad_reduced");
  return signals.find((/** @type {any} */ one) => one.name === name) ?? null;
}

/** Steps and values of a number; what is not finite before what is.
 * @type {(answer: Binary | null) => [number, number][]} */
export function pointsOf(answer) {
  if (!answer) return [];
  const { header, arrays } = answer;
  return header.steps.map((/** @type {number} */ step, /** @type {number} */ n) => [step, arrays.nan[n] ? NaN : arrays.inf[n] ? Infinity : arrays.maximum[n]]);
}

export class Picture {
  /** @param {number} number of the run
   * @param {(place: { signal: string, op: string, row: string, rank: number, step: number }) => void} choose */
  constructor(number, choose) {
    this.number = number;
    this.choose = choose;
    this.map = new Heatmap({ choose: (place) => this.pick(place), read: (place) => this.read(place) }, "picture");
    this.title = element("h2");
    this.element = element("section", { className: "card", id: "around", hidden: true }, this.title, this.map.element);
    /** @type {{ signal: string, op: string }[]} of each line */
    this.owners = [];
    this.group = new Group(() => this.draw());
  }

  /** @type {(run: any, state: { scale: string }) => void} */
  show(run, { scale }) {
    const focus = /** @type {Focus | null} */ (run.focus);
    this.element.hidden = !focus;
    if (!focus) return;
    const names = run.signals.map((/** @type {any} */ one) => one.name);
    const first = (/** @type {string[]} */ wanted) => (wanted.includes(focus.signal) ? focus.signal : wanted.find((name) => names.includes(name)));
    const shown = [...new Set([FORWARD.includes(focus.signal) || BACKWARD.includes(focus.signal) ? undefined : focus.signal, first(FORWARD), first(BACKWARD)])].filter((name) => name !== undefined);
    this.parts = shown.map((signal) => ({ signal, op: preferred(run.signals.find((/** @type {any} */ { name }) => name === signal)?.ops ?? [], focus.op, "norm") }));
    Object.assign(this, { focus, scale, certain: run.verdict?.certainty !== "place unknown" && (run.verdict?.since ?? focus.step) >= focus.step });
    this.title.textContent = t("around.title", { step: focus.step });
    const { from, to } = focus;
    const loss = lossOf(run.numbers ?? []);
    const urls = this.parts.map(({ signal, op }) => address(`runs/${this.number}/heatmap`, { signal, op, from, to, columns: COLUMNS }));
    if (loss) urls.push(address(`runs/${this.number}/numbers`, { names: loss, from, to, points: COLUMNS }));
    this.group.want(urls);
  }

  /** @type {{ signal: string, op: string }[]} */
  parts = [];
  /** @type {Focus | null} */
  focus = null;
  scale = "";
  certain = true;

  draw() {
    const { focus } = this;
    const { answers } = this.group;
    if (!focus || this.parts.some((_, n) => answers[n] === undefined)) return;
    const bands = this.parts.flatMap(({ signal, op }, n) => {
      const answer = answers[n];
      if (!answer?.header.lines.length) return [];
      const order = around(answer.header.lines, focus.row, MOST);
      if (BACKWARD.includes(signal)) order.reverse();
      return [{ title: `${t(`signal.${signal}`)} (${t("curve.op", { op, signal })})`, answer: chosen(answer, order), signal, op }];
    });
    if (!bands.length) return void (this.element.hidden = true);
    const { answer, bands: places } = stacked(bands);
    this.owners = bands.flatMap(({ answer: { header }, signal, op }) => header.lines.map(() => ({ signal, op })));
    const line = this.owners.findIndex(({ signal }, n) => signal === focus.signal && answer.header.lines[n] === focus.row);
    const column = columnOf(answer.header.steps, focus.step);
    this.map.chosen = line >= 0 && column >= 0 ? { line, column } : null;
    const loss = answers[this.parts.length];
    this.map.show(answer, { scale: this.scale, bands: places, curve: loss ? { label: t("loss"), points: pointsOf(loss) } : null, arrow: this.map.chosen ? t(this.certain ? "around.begins" : "around.seen") : "" });
  }

  /** @param {import("./heatmap.js").Place} place */
  pick(place) {
    const { label: row, rank, step } = this.map.about(place);
    this.choose({ ...this.owners[place.line], row, rank: rank ?? this.focus?.rank ?? 0, step });
  }

  /** @param {import("./heatmap.js").Place} place */
  read(place) {
    return `${this.owners[place.line].signal} ${this.map.label(place.line)}, ${this.map.stepsText(place.column)} · ${this.map.valueText(place)}`;
  }
}
