// What a run is, in a few lines: for the head of its page and for the list of runs.
import { button, element, factList, spanText, text } from "./dom.js";
import { t } from "./words.js";

/**
 * Whether a run is alive, as a mark and a word.
 * @param {any} run
 */
export function aliveness(run) {
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
  const { cause: first } = run;
  if (!first) {
    if (run.finding_total || run.analysis === "running") return element("p", { className: "cause", textContent: t(run.analysis === "running" ? "analysis.running" : "cause.unknown") });
    return element("p", { className: "cause good", textContent: t("cause.none") });
  }
  const there = Boolean(first.row) && first.rank !== null && first.step !== null;
  const text = there ? t("cause.headline", first) : first.kind;
  return element("div", { className: "cause bad", id: "cause" },
    element("p", {}, element("strong", { textContent: `${t("cause")} ` }), text, " ", there ? button(t("cause.show"), () => show(first), { id: "show-cause" }) : null),
    element("details", {}, element("summary", { textContent: t("cause.evidence") }), element("p", { textContent: first.text ?? first.sentence })));
}

/** @param {string[]} problems */
function notices(problems) {
  if (!problems.length) return element("div", { className: "notices" });
  return element("details", { className: "notices" }, element("summary", { textContent: problemsOf(problems) }),
    element("ul", {}, ...problems.map((problem) => element("li", { textContent: problem }))));
}
