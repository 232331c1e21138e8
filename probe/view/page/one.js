// Page of one run: findings, heatmap, curve over ranks, row, numbers of the run.
import { Source, address, binary, json } from "./api.js";
import { Chart } from "./chart.js";
import { weightsAndBiases } from "./bands.js";
import { controls } from "./controls.js";
import { Depth } from "./depth.js";
import { Details } from "./details.js";
import { element, heading, paragraph, preferred, ranksOf } from "./dom.js";
import { Findings } from "./findings.js";
import { Heatmap } from "./heatmap.js";
import { Numbers, together } from "./numbers.js";
import { LINE_COLOURS, colour, lineColour } from "./palette.js";
import { Picture, lossOf, pointsOf, signalOf } from "./picture.js";
import { RowCard } from "./row.js";
import { NO_ZOOM, ZOOMED, current, go, leave } from "./state.js";

import { head, notices, placeOf, verdictCard } from "./verdict.js";
import { t } from "./words.js";

/** @typedef {import("./state.js").State} State */
/** @typedef {import("./api.js").Binary} Binary */

const [MOST_COLUMNS, POINTS, RANKS] = [800, 1000, 16];

export class One {
  /** @param {State} state */
  constructor(state) {
    this.state = state;
    this.number = /** @type {number} */ (state.run);
    /** @type {any} */
    this.run = null;
    this.top = element("div", { className: "run-head" }, paragraph(t("reading")), element("progress"));
    this.picture = new Picture(this.number, (place) => this.chooseFinding(place));
    this.findings = new Findings((finding) => this.chooseFinding(finding));
    const actions = { zoom: (/** @type {any} */ part) => this.zoom(part), reset: ZOOMED.reset, leave };
    this.heatmap = new Heatmap({ ...actions, choose: (place) => this.chooseCell(place), read: (place) => this.read(place) });
    this.controls = controls((changes) => this.choose(changes));
    this.problem = element("p", { className: "failed", id: "heatmap-problem" });
    this.curve = new Chart(t("curve"), 230, { ...ZOOMED, pick: (line, point) => this.pick(line, point) });
    this.curveTitle = element("h2", { id: "curve-title" });
    this.rank = this.controls.ranks;
    this.card = new RowCard("row", t("row.title"), (changes) => this.choose(changes));
    this.numbers = new Numbers({ ...ZOOMED, pick: (_, point) => this.pickStep(point) });
    this.depth = new Depth((row, step) => go({ row, step, micro: null }));
    this.details = new Details(this.number, (far) => this.chooseFar(far));
    this.overRanks = element("section", { className: "card", id: "over-ranks" });
    this.parts = element("div", { className: "columns", hidden: true });
    this.element = this.arranged();
    this.summary = new Source(json, (run) => this.receive(run), (problem) => this.refuse(problem));
    this.cells = new Source(binary, (answer) => this.drawCells(answer), ({ message }) => {
      this.problem.textContent = message;
      this.heatmap.element.classList.remove("waiting");
    });
    this.curves = new Source(binary, (answer) => this.drawCurve(answer), ({ message }) => {
      this.curve.show([], [], null);
      this.curve.readout.textContent = message;
    });
    this.losses = new Source(binary, () => this.cells.show(this.cells.url), () => {});
    this.summary.want(address(`runs/${this.number}`));
  }

  arranged() {
    const map = element("section", { className: "card", id: "layers" }, heading(t("layers.title")), this.controls.element,
      this.problem, this.heatmap.element, element("p", { className: "quiet keys", id: "heatmap-keys", textContent: t("heatmap.keys") }));
    this.overRanks.append(element("div", { className: "heading" }, this.curveTitle, this.rank.label), this.curve.element);
    const wide = [this.picture, { element: map }, { element: this.overRanks }, this.depth, this.numbers, this.details];
    const column = (/** @type {string} */ className, /** @type {{ element: HTMLElement }[]} */ parts) =>
      element("div", { className }, ...parts.map((part) => part.element));
    this.parts.append(column("wide", wide), column("narrow", [this.card, this.findings]));
    return element("div", { className: "one" }, this.top, this.parts);
  }

  watched = () => [this.number];
  leave = leave;

  /** @param {State} state */
  update(state) {
    this.state = this.placed(state);
    if (this.run) this.show();
  }

  /** A state with the place of the verdict, if the address chooses nothing. @param {State} state */
  placed(state) {
    const named = this.run && placeOf(this.run);
    const place = this.run?.signals.some((/** @type {any} */ { name }) => name === named?.signal) ? named : null;
    const { signal, row, step, rank, axis } = state;
    if (!place || signal || row || axis || step !== null || rank !== null) return state;
    return { ...state, signal: place.signal, op: state.op || place.op, row: place.row, rank: place.rank, step: place.step };
  }

  /** Change a part of what is chosen, which the address may lack. @param {Partial<State>} changes */
  choose(changes) {
    const { signal, op, row, rank, step, micro } = this.state;
    go({ signal, op, row, rank, step, micro, ...changes });
  }

  /** @param {import("./live.js").Changes} changes */
  changed(changes) {
    if (changes.runs.some(({ number }) => number === this.number)) this.summary.renew();
  }

  /** @param {any} run */
  receive(run) {
    const before = this.run;
    this.run = run;
    document.title = `${run.name} – probe`;
    this.parts.hidden = false;
    this.update(current());
    if (before && (before.last_step !== run.last_step || before.finding_total !== run.finding_total || before.analysis !== run.analysis)) this.renew(before);
  }

  /** Ask again for what has grown: a part of the run that lies before is what it was. @param {any} before */
  renew(before) {
    this.findings.source.renew();
    this.details.renew();
    const { to } = this.state;
    if (to !== null && to < before.last_step && before.finding_total === this.run.finding_total) return;
    for (const source of [this.cells, this.losses, this.curves, this.numbers]) source.renew();
  }

  /** @param {Error} problem */
  refuse(problem) {
    if (this.run) this.problem.textContent = problem.message;
    else this.element.replaceChildren(paragraph(problem.message, "failed"));
  }

  // Choices with what stands in for those that the address lacks

  signal = () => signalOf(this.run, this.state.signal, this.run.cause?.signal);
  op = () => preferred(this.signal()?.ops ?? [], this.state.op, "norm");

  ranks() {
    if (this.state.ranks) return this.state.ranks;
    const { rank } = this.state;
    return [...new Set([...ranksOf(this.run.rank_list ?? "").slice(0, RANKS), ...(rank === null ? [] : [rank])])].join(",");
  }

  // Drawing

  show() {
    const { run, state } = this;
    const signal = this.signal();
    this.top.replaceChildren(...[head(run), verdictCard(run, (place) => this.chooseFinding(place)), notices(run.problems ?? [])].filter((part) => part !== null));
    this.picture.show(run, state);
    this.findings.show(run, state);
    this.details.show(run);
    this.controls.show(run, signal, this.op(), state);
    this.card.show({ run: this.number, signal: signal?.name ?? "", op: this.op(), row: state.row, rank: state.rank, step: state.step, micro: state.micro });
    if (signal) this.askCells(signal.name);
    else this.problem.textContent = t("heatmap.none");
    this.parts.classList.toggle("bare", !signal);
    const { from, to } = state;
    const loss = lossOf(run.numbers ?? []);
    if (loss) this.losses.want(address(`runs/${this.number}/numbers`, { names: loss, from, to, points: POINTS }));
    this.card.element.hidden = !state.row;
    this.askCurve(signal?.name ?? "");
    this.numbers.show([{ number: this.number, label: "", colour: lineColour(0) }], run.numbers ?? [], state);
    this.heatmap.choose(this.byRank() ? state.rank : state.row, state.step);
  }

  /** @param {string} signal */
  askCells(signal) {
    const { from, to, order, only, row } = this.state;
    const width = this.heatmap.place.clientWidth || MOST_COLUMNS;
    const columns = Math.min(MOST_COLUMNS, Math.max(100, Math.ceil((width - 180) / 100) * 100));
    const byRank = this.byRank();
    const url = address(`runs/${this.number}/heatmap`, { signal, op: this.op(), axis: byRank ? "ranks" : "rows", order: byRank ? order : null, row: byRank ? row : null, rank: byRank ? null : only, from, to, columns });
    this.cells.show(url);
    this.heatmap.element.classList.toggle("waiting", !this.heatmap.data);
    if (!this.heatmap.data) this.heatmap.readout.textContent = t("reading.files", { count: this.run.files ?? "" });
  }

  /** @param {string} signal */
  askCurve(signal) {
    const { row, from, to } = this.state;
    this.overRanks.hidden = !row;
    this.curveTitle.textContent = row ? t("curve.of", { op: this.op(), signal, row }) : t("curve");
    if (!row) {
      this.curves.clear();
      return this.curve.show([], [], null);
    }
    const url = address(`runs/${this.number}/curve`, { signal, op: this.op(), row, from, to, ranks: this.ranks(), points: POINTS });
    this.curves.show(url);
  }

  /** @param {Binary} answer */
  drawCells(answer) {
    this.problem.textContent = "";
    const lines = /^(\d+)-(\d+)$/.exec(this.state.lines);
    const { row, rank, step, scale } = this.state;
    const byRank = this.byRank();
    const { answer: shown, bands } = byRank ? { answer, bands: [] } : weightsAndBiases(answer, [t("band.weights"), t("band.biases")]);
    if (!this.heatmap.data) this.heatmap.readout.textContent = "";
    this.heatmap.element.classList.remove("waiting");
    this.heatmap.show(shown, { scale, bands, lines: lines ? [Number(lines[1]), Number(lines[2]) + 1] : null, curve: this.losses.answer ? { label: t("loss"), points: pointsOf(this.losses.answer) } : null });
    this.heatmap.choose(byRank ? rank : row, step);
    if (!byRank) this.depth.show(answer, t("curve.op", { op: this.op(), signal: this.signal()?.name ?? "" }), step);
  }

  /** @param {Binary} answer */
  drawCurve(answer) {
    const { header } = answer;
    const { spans, place } = together([answer]);
    const few = header.ranks.length <= LINE_COLOURS;
    const some = header.ranks.includes(this.state.rank); // the others step back
    const places = /** @type {number[]} */ (header.ranks.map((/** @type {number} */ _, /** @type {number} */ n) => n));
    this.order = places.sort((a, b) => Number(header.ranks[a] === this.state.rank) - Number(header.ranks[b] === this.state.rank) || a - b);
    const lines = this.order.map((n) => {
      const rank = header.ranks[n];
      const own = rank === this.state.rank;
      return { label: `${t("rank")} ${rank}`, colour: few ? `${lineColour(n)}${own || !some ? "" : "59"}` : own ? colour("accent") : colour("faint"), width: own ? 2 : 1.1, ...place(0, n) };
    });
    this.curve.show(spans, lines, this.state.step);
    this.controls.chips(few ? header.ranks : [], this.state.rank);
  }

  /** @type {number[]} places of the curves in the answer, in the order of drawing: the chosen rank is on top */
  order = [];

  // Actions

  /** @param {import("./heatmap.js").Place} place */
  read(place) {
    const { label, rank } = this.heatmap.about(place);
    return [`${this.byRank() ? `${t("rank")} ` : ""}${label}, ${this.heatmap.stepsText(place.column)}`, this.heatmap.valueText(place), ...(rank === null ? [] : [`${t("rank")} ${rank}`])].join(" · ");
  }

  /** @param {import("./heatmap.js").Place} place */
  chooseCell(place) {
    const { label, rank, step, micro } = this.heatmap.about(place);
    const cell = this.byRank() ? { row: this.state.row, rank: label } : { row: label, rank: rank ?? this.state.rank };
    go({ signal: this.signal()?.name ?? "", op: this.op(), ...cell, step, micro: this.signal()?.micro_stepped ? micro : null });
  }

  byRank = () => Boolean(this.state.axis === "ranks" && this.state.row);

  /** @param {{ signal: string, row: string, op?: string, rank: number, step: number, micro_step?: number | null }} finding */
  chooseFinding({ signal, row, op = "", rank, step, micro_step: micro = null }) {
    const { from, to } = this.state;
    const outside = (from !== null && step < from) || (to !== null && step > to);
    go({ signal, row, op: op || this.state.op, rank, step, micro, ...(outside ? NO_ZOOM : { lines: "" }) });
  }

  /** @param {import("./details.js").Far} far */
  chooseFar({ signal, op, row, rank, step }) {
    if (!signal) return this.choose({ rank, axis: this.state.row ? "ranks" : "" });
    go({ ...NO_ZOOM, signal, op, row, rank, step, micro: null, axis: "ranks" });
  }

  /** @param {{ columns: [number, number], lines: [number, number] }} part */
  zoom({ columns, lines }) {
    const steps = this.heatmap.data?.header.steps ?? [];
    const all = lines[0] === 0 && lines[1] === (this.heatmap.cells?.lines ?? 0) - 1;
    go({ from: steps[columns[0]][0], to: steps[columns[1]][1], lines: all ? "" : lines.join("-") });
  }

  /** @type {(line: number, point: number) => void} */
  pick(line, point) {
    const { header } = /** @type {Binary} */ (this.curves.answer);
    this.choose({ rank: header.ranks[this.order[line]], step: header.steps[point], micro: null });
  }

  /** @param {number} point */
  pickStep(point) {
    const chart = [...this.numbers.open.values()][0];
    if (chart) this.choose({ step: chart.spans[point][0], micro: null });
  }
}
