// Facts about a run, for the head of its page.
import { costText, element, factList, stepsOf } from "./dom.js";
import { STATIC } from "./static.js";
import { spoken, t } from "./words.js";

/**
 * Whether a run is alive, as a mark and a word.
 * @param {any} run
 */
export function aliveness(run) {
  if (STATIC || !run.known) return null;
  return element("span", { className: `state ${run.alive ? "alive" : "ended"}`, textContent: t(run.alive ? "run.alive" : run.ended ? "run.ended" : "badge.still") });
}

/** @param {string[]} problems */
export const problemsOf = (problems) => t(problems.length === 1 ? "problems.one" : "problems", { count: problems.length });

/** @param {any} run */
export function head(run) {
  const { framework, "its version": version, began, ended, ...rest } = run.facts ?? {};
  const facts = factList([
    [t("runs.steps"), stepsOf(run), "run-steps"], [t("runs.ranks"), run.ranks === null ? "" : `${run.ranks}`, "run-ranks"],
    [t("run.missing"), run.missing_ranks], [t("runs.cost"), costText(run.cost)], [t("fact.framework"), [framework, version].filter(Boolean).join(" ")],
    ...Object.entries(rest).map(([name, value]) => /** @type {[string, string]} */ ([t(`fact.${name}`), String(value)])),
    [t("fact.began"), moment(began)], [t("run.ended"), moment(ended)],
  ]);
  return element("div", { className: "title" }, element("h1", { textContent: run.name }), aliveness(run), element("code", { className: "quiet", textContent: run.location }), facts);
}

/** @param {string | undefined} stamp */
function moment(stamp) {
  const time = new Date((stamp ?? "").replace(/([+-]\d\d)(\d\d)$/, "$1:$2"));
  return Number.isNaN(time.valueOf()) ? stamp : time.toLocaleString(spoken(), { dateStyle: "medium", timeStyle: "short" });
}

/** @param {string[]} problems */
export function notices(problems) {
  if (!problems.length) return null;
  return element("details", { className: "notices" }, element("summary", { textContent: problemsOf(problems) }),
    element("ul", {}, ...problems.map((problem) => element("li", { textContent: problem }))));
}
