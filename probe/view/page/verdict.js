// Verdict about a run, the first thing on its page: the same as the card in the terminal.
import { button, costText, element, factList, stepsOf, text } from "./dom.js";
import { spoken, t } from "./words.js";

/** @typedef {{ signal: string, row: string, op: string, rank: number, step: number }} Place */

/** An answer with its texts in the language of the page, where it has them. */
export const own = (/** @type {any} */ answer) => ({ ...answer, ...(spoken() === "zh" ? answer.zh : {}) });

/**
 * State of a run in a word or two, with its colour.
 * @type {(run: any) => [look: string, text: string]}
 */
export function badgeOf(run) {
  if (!run.known) return ["", t("run.unknown")];
  const { kind, since, grade } = run.verdict ? own(run.verdict) : { kind: "", since: null, grade: "" };
  if (run.analysis === "failed") return ["bad", t("analysis.failed.short")];
  if (kind) return [grade === "critical" ? "bad" : "warned", t("badge.found", { kind, step: since })];
  if (!run.alive && !run.ended) return ["warned", t("badge.still")];
  if (run.health === "healthy") return ["good", t("badge.healthy")];
  if (run.health === "running" || !run.verdict) return ["", t(run.analysis === "none" ? "badge.waiting" : "badge.running")];
  return ["warned", t(run.findings ? "badge.findings" : "badge.incomplete")];
}

/** @param {any} run */
export function badge(run) {
  const [look, word] = badgeOf(run);
  return element("span", { className: `badge ${look}`, textContent: word });
}

/** @type {(run: any, show: (place: Place) => void) => HTMLElement} */
export function verdictCard(run, show) {
  const failure = run.health === "failed" ? failed(run) : null;
  const place = placeOf(run);
  if (run.verdict?.kind) return card(run.verdict.grade === "critical" ? "bad" : "warned", "cause", ...found(run, own(run.verdict), place, show));
  if (run.cause) return element("div", {}, failure, card(failure ? "warned" : "bad", "cause", ...preliminary(run, place, show)));
  if (failure) return failure;
  return run.health === "healthy" ? card("good", "healthy", ...healthy(run)) : card(run.health === "running" ? "" : "warned", "no-cause", ...without(run));
}

/**
 * Place that the page selects; null if none is named.
 * @type {(run: any) => Place | null}
 */
export function placeOf(run) {
  const { cause, focus } = run;
  return focus ?? (cause?.row && cause.rank !== null && cause.step !== null ? cause : null);
}

const card = (/** @type {string} */ look, /** @type {string} */ id, /** @type {(Node | null)[]} */ ...parts) => element("section", { className: `cause ${look}`, id }, ...parts);
const line = (/** @type {string} */ content, look = "quiet") => element("p", { className: look, textContent: content });
const headline = (/** @type {string} */ word, /** @type {(Node | null)[]} */ ...facts) => element("div", { className: "headline" }, element("strong", { className: "kind", textContent: word }), ...facts);
const fact = (/** @type {string} */ content) => element("span", { className: "fact", textContent: content });
/**
 * A headline with the place that it is about.
 * @param {string} word
 * @param {{ where: string, step: number, ranks: string } | null} place
 * @param {...(Node | null)} more
 */
export const placed = (word, place, ...more) => headline(word, place?.where ? element("code", { className: "place", textContent: place.where }) : null,
  place && fact(t("at.step", { step: place.step })), place?.ranks ? fact(`${t("rank")} ${place.ranks}`) : null, ...more);
const showing = (/** @type {Place | null} */ place, /** @type {(place: Place) => void} */ show) => (place ? button(t("cause.show"), () => show(place), { id: "show-cause" }) : null);

/** @type {(run: any, verdict: any, place: Place | null, show: (place: Place) => void) => (Node | null)[]} */
function found(run, verdict, place, show) {
  const { kind, where, since, ranks, certainty, after, next_steps: next, more, before, text: why, onset, looked, paragraph = run.cause?.text ?? run.cause?.sentence } = verdict;
  const limits = [certainty === "place unknown" ? t("verdict.unplaced") : "", after === null ? "" : t("verdict.after", { step: after })].filter(Boolean);
  const named = where.slice(0, 3).join(", ") + (where.length > 3 ? ", …" : "");
  return [
    placed(kind, { where: named, step: since, ranks: ranks.length > 4 ? `${ranks.slice(0, 3).join(", ")}, … ${ranks.at(-1)}` : ranks.join(", ") }, showing(place, show)),
    strip(run),
    ...limits.map((limit) => line(limit, "limit")),
    next.length ? line(t("verdict.next"), "") : null,
    element("ul", { className: "next" }, ...next.map((/** @type {string} */ step) => element("li", { textContent: step })), command(run)),
    element("details", {}, element("summary", { textContent: t("verdict.why") }), line(why, "lines"), ...before.map((/** @type {string} */ one) => line(t("verdict.before", { text: one }))),
      onset?.where ? line(t("verdict.onset", { row: onset.where, signal: onset.signal, step: onset.step })) : null,
      more ? line(t("verdict.more", { count: more })) : null, looked.at.length ? line(t("verdict.looked", { what: looked.at.join(", ") })) : null, paragraph ? line(paragraph, "lines") : null),
  ];
}

/** @param {any} run */
const command = (run) => element("li", {}, `${t("verdict.command")} `, element("code", { textContent: run.analysis_command }));

/**
 * The values of the named row before and at the first bad step, and those of the loss.
 * @param {any} run
 */
function strip({ focus, loss = [], verdict }) {
  const rows = /** @type {[string, [number, any][]][]} */ ([]);
  if (focus?.values.length) rows.push([t("curve.op", { op: focus.op, signal: focus.signal }), focus.values]);
  const at = loss.findIndex((/** @type {[number, any]} */ [step]) => step >= verdict.since);
  if (at > 0) rows.push([t("loss"), loss.slice(Math.max(0, at - 2), at + 1)]);
  return element("dl", { className: "strip" }, ...rows.map(([label, values]) => element("div", {}, element("dt", { textContent: label }),
    ...values.map(([step, value], n) => element("dd", { className: n === values.length - 1 ? "last" : "" }, element("b", { textContent: text(value) }), element("small", { textContent: t("at.step", { step }) }))))));
}

/**
 * Findings that the run itself has dumped, before an analysis.
 * @type {(run: any, place: Place | null, show: (place: Place) => void) => (Node | null)[]}
 */
function preliminary({ cause, analysis }, place, show) {
  const { kind, row, step, rank } = cause;
  return [placed(kind, place && { where: row, step, ranks: String(rank) }, showing(place, show)),
    analysis === "running" ? line(t("analysis.running")) : null,
    element("details", {}, element("summary", { textContent: t("verdict.why") }), line(cause.text ?? cause.sentence, "lines"))];
}

/** @param {any} run */
function healthy(run) {
  const { loss = [], verdict, cost, summary } = run;
  const ends = loss.length > 1 ? [loss[0], loss[loss.length - 1]].map(([, value]) => text(value)).join(" → ") : "";
  const looked = verdict ? own(verdict).looked.at.join(", ") : "";
  return [headline(t("badge.healthy")), factList([[t("runs.steps"), stepsOf(run)], [t("loss"), ends], [t("verdict.holds"), looked], [t("runs.cost"), costText(cost)]]),
    looked || !summary ? null : line(summary, "lines")];
}

/** @param {any} run */
function without(run) {
  const running = run.health === "running";
  const [name] = { running: ["analysis.running"], unexplained: ["cause.unexplained"], incomplete: ["cause.incomplete"] }[/** @type {string} */ (run.health)] ?? ["cause.unknown"];
  return [headline(t(running ? "badge.running" : "badge.incomplete")), line(t(name, { count: run.recorded_findings ?? 0 }), ""),
    running ? element("progress") : null, running && run.progress ? line(run.progress) : null, run.summary ? line(run.summary, "lines") : null, running ? null : element("ul", { className: "next" }, command(run))];
}

/** @param {any} run */
const failed = (run) => element("section", { className: "cause bad", id: "analysis-failed", aria: { role: "alert" } }, headline(t("analysis.failed.short")), line(t("analysis.failed"), ""),
  element("p", {}, element("code", { textContent: run.analysis_error })), element("ul", { className: "next" }, command(run)));
