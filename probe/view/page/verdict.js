// Verdict about a run and the facts of it, the first things on its page: the same as the card in the terminal.
import { button, costText, element, factList, paragraph, stepsOf, text } from "./dom.js";
import { STATIC } from "./static.js";
import { spoken, t } from "./words.js";

/** @typedef {{ signal: string, row: string, op: string, rank: number, step: number }} Place */
/** @typedef {(place: Place) => void} Show */

/** An answer with its texts in the language of the page, where it has them. */
export const own = (/** @type {any} */ answer) => ({ ...answer, ...(spoken() === "zh" ? answer.zh : {}) });

/** State of a run in a word or two, with its colour. @type {(run: any) => [look: string, text: string]} */
function badgeOf(run) {
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
  const [look, textContent] = badgeOf(run);
  return element("span", { className: `badge ${look}`, textContent });
}

/** Whether a run is alive, as a mark and a word. @param {any} run */
export function aliveness({ known, alive, ended }) {
  if (STATIC || !known) return null;
  const textContent = t(alive ? "run.alive" : ended ? "run.ended" : "badge.still");
  return element("span", { className: `state ${alive ? "alive" : "ended"}`, textContent });
}

/** @param {string[]} problems */
export const problemsOf = (problems) => t(problems.length === 1 ? "problems.one" : "problems", { count: problems.length });

/** @param {any} run */
export function head(run) {
  const { framework, "its version": version, began, ended, ...rest } = run.facts ?? {};
  const facts = factList([
    [t("runs.steps"), stepsOf(run), "run-steps"], [t("runs.ranks"), run.ranks === null ? "" : `${run.ranks}`, "run-ranks"],
    [t("run.missing"), run.missing_ranks], [t("runs.cost"), costText(run.cost)],
    [t("fact.framework"), [framework, version].filter(Boolean).join(" ")],
    ...Object.entries(rest).map(([name, value]) => /** @type {[string, string]} */ ([t(`fact.${name}`), String(value)])),
    [t("fact.began"), moment(began)], [t("run.ended"), moment(ended)],
  ]);
  const place = element("code", { className: "quiet", textContent: run.location });
  return element("div", { className: "title" }, element("h1", { textContent: run.name }), aliveness(run), place, facts);
}

/** @param {string | undefined} stamp */
function moment(stamp) {
  const time = new Date((stamp ?? "").replace(/([+-]\d\d)(\d\d)$/, "$1:$2"));
  return Number.isNaN(time.valueOf()) ? stamp : time.toLocaleString(spoken(), { dateStyle: "medium", timeStyle: "short" });
}

const items = (/** @type {string} */ look, /** @type {(string | Node)[]} */ texts) =>
  element("ul", { className: look }, ...texts.map((one) => (one instanceof Node ? one : element("li", { textContent: one }))));
const folded = (/** @type {string} */ title, /** @type {(Node | null)[]} */ ...parts) =>
  element("details", {}, element("summary", { textContent: title }), ...parts);

/** @param {string[]} problems */
export const notices = (problems) =>
  problems.length ? element("div", { className: "notices" }, folded(problemsOf(problems), items("", problems))) : null;

/** @type {(run: any, show: Show) => HTMLElement} */
export function verdictCard(run, show) {
  const failure = run.health === "failed" ? failed(run) : null;
  const place = placeOf(run);
  if (run.verdict?.kind) {
    return card(run.verdict.grade === "critical" ? "bad" : "warned", "cause", ...found(run, own(run.verdict), place, show));
  }
  if (run.cause) return element("div", {}, failure, card(failure ? "warned" : "bad", "cause", ...preliminary(run, place, show)));
  if (failure) return failure;
  if (run.health === "healthy") return card("good", "healthy", ...healthy(run));
  return card(run.health === "running" ? "" : "warned", "no-cause", ...without(run));
}

/** Place that the page selects; null if none is named. @type {(run: any) => Place | null} */
export function placeOf({ cause, focus }) {
  return focus ?? (cause?.row && cause.rank !== null && cause.step !== null ? cause : null);
}

const card = (/** @type {string} */ look, /** @type {string} */ id, /** @type {(Node | null)[]} */ ...parts) =>
  element("section", { className: `cause ${look}`, id }, ...parts);
const headline = (/** @type {string} */ word, /** @type {(Node | null)[]} */ ...facts) =>
  element("div", { className: "headline" }, element("strong", { className: "kind", textContent: word }), ...facts);
const fact = (/** @type {string} */ content) => element("span", { className: "fact", textContent: content });

/**
 * A headline with the place that it is about.
 * @type {(word: string, place: { where: string, step: number, ranks: string } | null, ...more: (Node | null)[]) => HTMLElement}
 */
export const placed = (word, place, ...more) => headline(word,
  place?.where ? element("code", { className: "place", textContent: place.where }) : null,
  place && fact(t("at.step", { step: place.step })), place?.ranks ? fact(`${t("rank")} ${place.ranks}`) : null, ...more);
const showing = (/** @type {Place | null} */ place, /** @type {Show} */ show) =>
  place ? button(t("cause.show"), () => show(place), { id: "show-cause" }) : null;

/** @type {(run: any, verdict: any, place: Place | null, show: Show) => (Node | null)[]} */
function found(run, verdict, place, show) {
  const { kind, where, since, ranks, certainty, after, next_steps: next, more, before, text: why, onset, looked } = verdict;
  const { paragraph: told = run.cause?.text ?? run.cause?.sentence } = verdict;
  const named = where.slice(0, 3).join(", ") + (where.length > 3 ? ", …" : "");
  const all = ranks.length > 4 ? `${ranks.slice(0, 3).join(", ")}, … ${ranks.at(-1)}` : ranks.join(", ");
  const reasons = [
    ...before.map((/** @type {string} */ one) => t("verdict.before", { text: one })),
    onset?.where && t("verdict.onset", { row: onset.where, signal: onset.signal, step: onset.step }),
    more && t("verdict.more", { count: more }), looked.at.length && t("verdict.looked", { what: looked.at.join(", ") }),
  ].filter(Boolean);
  return [
    placed(kind, { where: named, step: since, ranks: all }, showing(place, show)),
    strip(run),
    certainty === "place unknown" ? paragraph(t("verdict.unplaced"), "limit") : null,
    after === null ? null : paragraph(t("verdict.after", { step: after }), "limit"),
    next.length ? paragraph(t("verdict.next"), "") : null,
    items("next", [...next, command(run)]),
    folded(t("verdict.why"), paragraph(why, "lines"), ...reasons.map((reason) => paragraph(reason)), told ? paragraph(told, "lines") : null),
  ];
}

/** @param {any} run */
const command = (run) => element("li", {}, `${t("verdict.command")} `, element("code", { textContent: run.analysis_command }));

/** The values of the named row before and at the first bad step, and those of the loss. @param {any} run */
function strip({ focus, loss = [], verdict }) {
  const rows = /** @type {[string, [number, any][]][]} */ ([]);
  if (focus?.values.length) rows.push([t("curve.op", { op: focus.op, signal: focus.signal }), focus.values]);
  const at = loss.findIndex((/** @type {[number, any]} */ [step]) => step >= verdict.since);
  if (at > 0) rows.push([t("loss"), loss.slice(Math.max(0, at - 2), at + 1)]);
  const cell = (/** @type {[number, any]} */ [step, value], /** @type {boolean} */ last) => element("dd", { className: last ? "last" : "" },
    element("b", { textContent: text(value) }), element("small", { textContent: t("at.step", { step }) }));
  return element("dl", { className: "strip" }, ...rows.map(([label, values]) =>
    element("div", {}, element("dt", { textContent: label }), ...values.map((value, n) => cell(value, n === values.length - 1)))));
}

/** Findings that the run itself has dumped, before an analysis. @type {(run: any, place: Place | null, show: Show) => (Node | null)[]} */
function preliminary({ cause: { kind, row, step, rank, text, sentence }, analysis }, place, show) {
  return [
    placed(kind, place && { where: row, step, ranks: String(rank) }, showing(place, show)),
    analysis === "running" ? paragraph(t("analysis.running")) : null,
    folded(t("verdict.why"), paragraph(text ?? sentence, "lines")),
  ];
}

/** @param {any} run */
function healthy(run) {
  const { loss = [], verdict, cost, summary } = run;
  const ends = loss.length > 1 ? [loss[0], loss[loss.length - 1]].map(([, value]) => text(value)).join(" → ") : "";
  const looked = verdict ? own(verdict).looked.at.join(", ") : "";
  const facts = factList([[t("runs.steps"), stepsOf(run)], [t("loss"), ends], [t("verdict.holds"), looked], [t("runs.cost"), costText(cost)]]);
  return [headline(t("badge.healthy")), facts, looked || !summary ? null : paragraph(summary, "lines")];
}

/** @param {any} run */
function without(run) {
  const names = { running: "analysis.running", unexplained: "cause.unexplained", incomplete: "cause.incomplete" };
  const name = names[/** @type {keyof typeof names} */ (run.health)] ?? "cause.unknown";
  const running = run.health === "running";
  const progress = running ? [element("progress"), run.progress ? paragraph(run.progress) : null] : [];
  return [
    headline(t(running ? "badge.running" : "badge.incomplete")), paragraph(t(name, { count: run.recorded_findings ?? 0 }), ""),
    ...progress, run.summary ? paragraph(run.summary, "lines") : null, running ? null : items("next", [command(run)]),
  ];
}

/** @param {any} run */
function failed(run) {
  const reason = element("p", {}, element("code", { textContent: run.analysis_error }));
  const made = card("bad", "analysis-failed", headline(t("analysis.failed.short")), paragraph(t("analysis.failed"), ""), reason);
  made.role = "alert";
  made.append(items("next", [command(run)]));
  return made;
}
