// What a run is, in a few lines: for the head of its page and for the list of runs.
import { button, element, factList, spanText, text } from "./dom.js";
import { STATIC } from "./static.js";
import { t } from "./words.js";

/**
 * Whether a run is alive, as a mark and a word.
 * @param {any} run
 */
export function aliveness(run) {
  if (STATIC) return null;
  if (!run.known) return element("span", { className: "state unknown", textContent: t("run.unknown") });
  return element("span", { className: `state ${run.alive ? "alive" : "ended"}`, textContent: t(run.alive ? "run.alive" : "run.ended") });
}

/** @param {any} run */
export const stepsOf = (run) => (run.last_step === null || run.last_step === undefined ? "" : spanText([run.first_step ?? 0, run.last_step]));

/** @param {number | null | undefined} cost share of a step */
export const costText = (cost) => (cost === null || cost === undefined ? "" : `${text(cost * 100, 2)} %`);

/** @param {string[]} problems */
export const problemsOf = (problems) => t(problems.length === 1 ? "problems.one" : "problems", { count: problems.length });

/**
 * @param {any} run
 * @param {(cause: any) => void} show
 */
export function head(run, show) {
  const facts = factList([
    [t("runs.steps"), stepsOf(run), "run-steps"], [t("runs.ranks"), run.ranks === null ? "" : `${run.ranks}`, "run-ranks"],
    [t("run.missing"), run.missing_ranks], [t("runs.cost"), costText(run.cost)],
    ...Object.entries(run.facts ?? {}).map(([name, value]) => /** @type {[string, string]} */ ([name, String(value)])),
  ]);
  return element("div", {}, element("div", { className: "title" }, element("h1", { textContent: run.name }), aliveness(run), element("code", { className: "quiet", textContent: run.location }), facts),
    cause(run, show), notices(run.problems ?? []));
}

/**
 * @param {any} run
 * @param {(cause: any) => void} show
 */
function cause(run, show) {
  const failure = run.health === "failed" ? failed(run) : null;
  const { cause: first } = run;
  if (!first) return failure ?? without(run);
  const there = Boolean(first.row) && first.rank !== null && first.step !== null;
  const text = there ? t("cause.headline", first) : first.kind;
  const found = element("div", { className: "cause bad", id: "cause" },
    element("p", {}, element("strong", { textContent: `${t("cause")} ` }), text, " ", there ? button(t("cause.show"), () => show(first), { id: "show-cause" }) : null),
    element("details", {}, element("summary", { textContent: t("cause.evidence") }), element("p", { className: "lines", textContent: first.text ?? first.sentence })));
  return failure ? element("div", {}, found, failure) : found;
}

/**
 * What is known of a run without a first cause: only one that was judged, and has no finding, is green.
 * @param {any} run
 */
function without(run) {
  const verdict = run.verdict ? element("p", { className: "lines", textContent: run.verdict }) : null;
  if (run.health === "healthy") return element("div", { className: "cause good" }, verdict ?? element("p", { textContent: t("cause.none") }));
  const [name, kind] = { running: ["analysis.running", ""], unexplained: ["cause.unexplained", "warned"], incomplete: ["cause.incomplete", "warned"] }[/** @type {string} */ (run.health)] ?? ["cause.unknown", "warned"];
  return element("div", { className: `cause ${kind}`, id: "no-cause" }, element("p", { textContent: t(name, { count: run.recorded_findings ?? 0 }) }), verdict, kind ? advice(run) : null);
}

/** @param {any} run */
function failed(run) {
  return element("div", { className: "cause bad", id: "analysis-failed", aria: { role: "alert" } }, element("p", { textContent: t("analysis.failed") }),
    element("p", {}, element("code", { textContent: run.analysis_error })), advice(run));
}

/** @param {any} run */
const advice = (run) => element("p", {}, `${t("analysis.command")} `, element("code", { textContent: run.analysis_command }));

/** @param {string[]} problems */
function notices(problems) {
  if (!problems.length) return element("div", { className: "notices" });
  return element("details", { className: "notices" }, element("summary", { textContent: problemsOf(problems) }),
    element("ul", {}, ...problems.map((problem) => element("li", { textContent: problem }))));
}
