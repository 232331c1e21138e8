// Page of two runs: their first difference, and curves of both laid over each other.
import { Group, Source, address, json } from "./api.js";
import { Chart } from "./chart.js";
import { Differences } from "./differences.js";
import { button, choice, element, fill, paragraph, preferred, ranksOf, stepsOf, text } from "./dom.js";
import { Numbers, together } from "./numbers.js";
import { lineColour } from "./palette.js";
import { signalOf } from "./picture.js";
import { RowCard } from "./row.js";
import { STATIC, absent } from "./static.js";
import { NO_ZOOM, ZOOMED, addressOf, go, leave } from "./state.js";

import { aliveness, own, placed } from "./verdict.js";
import { t } from "./words.js";

/** @typedef {import("./state.js").State} State */

const AGAIN = 1000; // milliseconds until a comparison under way is asked for again
const POINTS = 1000;
const DASH = [6, 3];

export class Two {
  /** @param {State} state */
  constructor(state) {
    this.state = state;
    this.numbersOf = [/** @type {number} */ (state.run), /** @type {number} */ (state.against)];
    /** @type {any[]} */
    this.runs = [null, null];
    /** @type {any} */
    this.difference = null;
    this.top = element("div", { className: "run-head" });
    this.verdict = element("div", { id: "verdict", className: "cause", aria: { live: "polite" } });
    this.title = element("h2", { id: "curve-title" });
    this.curve = new Chart(t("curve"), 260, { ...ZOOMED, pick: (_, point) => go({ step: this.curve.spans[point][0] }) });
    this.signal = choice(t("signal"), "signal", (signal) => go({ signal, row: "" }));
    this.op = choice(t("op"), "op", (op) => go({ op }));
    this.row = choice(t("row.row"), "row-choice", (row) => go({ row }));
    this.rank = choice(t("rank"), "rank-choice", (rank) => go({ rank: Number(rank) }));
    this.whole = button(t("whole"), () => go(NO_ZOOM), { id: "whole" });
    this.cards = ["left", "right"].map((side, n) => new RowCard(side, "AB"[n], (changes) => go(changes)));
    this.numbers = new Numbers(ZOOMED);
    this.differences = new Differences((changes) => go(changes));
    this.absent = element("p", { className: "quiet", id: "absent" });
    const labels = [this.signal, this.op, this.row, this.rank].map(({ label }) => label);
    this.over = element("section", { className: "card", id: "over" }, element("div", { className: "heading" }, this.title),
      element("div", { className: "controls" }, ...labels, this.whole), this.curve.element);
    const pair = element("div", { className: "pair" }, ...this.cards.map((card) => card.element));
    this.runParts = element("div", { className: "two" }, this.over, pair, this.numbers.element);
    this.element = element("div", { className: "two" }, this.top, this.verdict, this.absent, this.runParts, this.differences.element);
    const fail = (/** @type {Error} */ problem) => this.fail(problem.message);
    this.summaries = [0, 1].map((n) => new Source(json, (run) => this.receive(n, run), fail));
    this.curves = new Group(() => this.draw());
    this.comparison = new Source(json, (answer) => this.judge(answer), fail);
    this.summaries.forEach((source, n) => source.want(address(`runs/${this.numbersOf[n]}`)));
    this.comparison.want(address("compare", { run: this.numbersOf[0], against: this.numbersOf[1] }));
  }

  watched = () => this.numbersOf;
  leave = leave;

  /** @param {State} state */
  update(state) {
    this.state = state;
    if (this.runs.every(Boolean)) this.show();
  }

  /** @param {import("./live.js").Changes} changes */
  changed(changes) {
    const grown = this.numbersOf.map((number) => changes.runs.some((run) => run.number === number));
    for (const sources of [this.summaries, this.curves.sources]) grown.forEach((own, n) => own && sources[n]?.renew());
    if (grown.some(Boolean)) this.numbers.renew();
  }

  /** @type {(n: number, run: any) => void} */
  receive(n, run) {
    this.runs[n] = run;
    if (!this.runs.every(Boolean)) return;
    document.title = `${this.runs[0].name} ↔ ${this.runs[1].name} – probe`;
    this.show();
  }

  /** @param {any} found */
  judge(found) {
    const answer = own(found);
    if (answer.state === "running") {
      const [value, max] = answer.progress.split("/").map(Number); // parts that are done, of how many
      this.verdict.replaceChildren(paragraph(t("compare.running"), ""), element("progress", max ? { max, value } : {}));
      setTimeout(() => this.comparison.renew(), AGAIN);
      return;
    }
    if (answer.state === "failed") return this.fail(answer.error);
    this.difference = answer.first_difference;
    this.differences.show(answer);
    this.verdict.className = `cause ${answer.agrees ? "good" : "bad"}`;
    this.verdict.replaceChildren(...this.sentences(answer));
    if (this.runs.every(Boolean)) this.show();
  }

  /** @param {string} problem */
  fail(problem) {
    this.verdict.className = "cause bad";
    this.verdict.replaceChildren(paragraph(problem, "failed"));
  }

  /** @param {any} answer */
  sentences(answer) {
    const { first_difference: first, jumps, agrees, same, verdict, about = [], problems = [] } = answer;
    const word = agrees ? t(same ? "compare.same" : "compare.within") : first ? t("compare.differ") : "";
    const parts = [placed(word, first && { where: first.row, step: first.step, ranks: String(first.rank) })];
    if (jumps.length) {
      const [rank, step, signal, module, before, after] = jumps[0];
      parts.push(paragraph(t("compare.jump", { rank, step, signal, module, before, after }), "jump"));
    }
    if (first) {
      parts.push(element("p", { id: "difference" }, element("span", { className: "number", textContent: `A ${text(first.left, 8)}   B ${text(first.right, 8)} ` }),
        STATIC ? null : button(t("cause.show"), () => this.showFirst(first), { id: "show-difference" })));
    }
    return [...parts, ...[verdict, ...about, ...problems].map((sentence) => paragraph(sentence))];
  }

  /** @param {any} first */
  showFirst({ signal, row, op, rank, step, micro_step: micro = null }) {
    const inRows = this.runs[0]?.signals.some((/** @type {any} */ one) => one.name === signal);
    if (inRows) return go({ ...NO_ZOOM, signal, row, op, rank, step, micro });
    go({ ...NO_ZOOM, step }); // a number of the run
    this.numbers.element.scrollIntoView();
  }

  /** Choices, with those of the first difference in place of what the address lacks. */
  choices() {
    const { state, difference } = this;
    const [a] = this.runs;
    const own = signalOf(a, state.signal, difference?.signal);
    const name = own?.name ?? "";
    const same = difference?.signal === name ? difference : null;
    const op = preferred(own?.ops ?? [], state.op, same?.op, "norm");
    const row = preferred(own?.rows ?? [], state.row, same?.row);
    const first = Number(/^\d+/.exec(a.rank_list ?? "")?.[0] ?? 0);
    const rank = state.rank ?? (same?.row === row ? same.rank : null) ?? first;
    const step = state.step ?? (same?.row === row ? same.step : null);
    return { name, own, op, row, other: same?.row === row ? same.row_b ?? row : row, rank, step, micro: state.micro ?? null };
  }

  show() {
    const [a, b] = this.runs;
    this.top.replaceChildren(...this.runs.map((run, n) => this.head(run, n)));
    this.runParts.hidden = STATIC; // a file has the comparison, not the runs
    if (STATIC) return void (this.absent.textContent = absent());
    const { name, own, op, row, other, rank, step, micro } = this.choices();
    fill(this.signal.select, a.signals.map((/** @type {any} */ one) => one.name), name);
    fill(this.op.select, own?.ops ?? [], op);
    fill(this.row.select, own?.rows ?? [], row);
    fill(this.rank.select, ranksOf(a.rank_list ?? "0").map(String), String(rank));
    this.whole.hidden = this.state.from === null && this.state.to === null;
    this.title.textContent = t("curve.of.two", { op, signal: name, row, rank });
    this.step = step;
    const { from, to } = this.state;
    const labels = [row, other];
    labels.forEach((label, n) => this.cards[n].show({ run: this.numbersOf[n], signal: name, op, row: label, rank, step, micro }));
    this.curves.want(labels.map((label, n) => address(`runs/${this.numbersOf[n]}/curve`, { signal: name, op, row: label, from, to, ranks: rank, points: POINTS })));
    const known = a.numbers.filter((/** @type {string} */ each) => b.numbers.includes(each));
    this.numbers.show(this.looks(), known, this.state);
  }

  /** @type {number | null} */
  step = null;

  looks = () => this.numbersOf.map((number, n) => ({ number, label: "AB"[n], colour: lineColour(n), dash: n ? DASH : undefined }));

  /** @type {(run: any, n: number) => HTMLElement} */
  head(run, n) {
    return element("div", { className: "title" }, element("span", { className: `chip line-${n}`, textContent: "AB"[n] }),
      element("a", { href: addressOf({ run: run.number }), textContent: run.name }), aliveness(run), element("span", { className: "quiet", textContent: stepsOf(run) && `${t("runs.steps")} ${stepsOf(run)}` }),
      element("code", { className: "quiet", textContent: run.location }));
  }

  draw() {
    const { answers } = this.curves;
    const { spans, place } = together(answers);
    const lines = this.looks().flatMap((look, n) => (answers[n]?.header.ranks.length ? [{ ...look, width: 1.8, ...place(n, 0) }] : []));
    this.curve.show(spans, lines, this.step);
  }
}
