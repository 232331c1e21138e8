// Findings of a run as a list: one click or Enter leads to the cell and its row.
import { Source, address, json } from "./api.js";
import { button, choice, element, fill, focusRow, parsed, text, walk } from "./dom.js";
import { go } from "./state.js";
import { t } from "./words.js";

/** @typedef {{ rule: string, signal: string, row: string, op: string, rank: number, step: number, micro_step: number | null, value: number | string, message: string, cause: string, kind?: string }} Finding */
/** @typedef {import("./state.js").State} State */

const [PAGE, MOST] = [200, 1000]; // as many as the run's summary has, and at most

export class Findings {
  /** @param {(finding: Finding) => void} choose */
  constructor(choose) {
    this.choose = choose;
    this.limit = PAGE;
    this.rule = choice(t("finding.rule"), "rule", (rule) => go({ rule }, { replace: true }));
    this.total = element("span", { className: "count", id: "finding-total" });
    this.state = element("p", { className: "quiet", aria: { live: "polite" } });
    this.rows = element("tbody", { on: { keydown: walk } });
    this.more = button(t("more"), () => this.enlarge(), { hidden: true });
    const head = ["step", "row", "value"].map((name) =>
      element("th", { scope: "col", className: name === "value" ? "number" : "", textContent: t(`finding.${name}`) }));
    const list = element("table", {}, element("thead", {}, element("tr", {}, ...head)), this.rows);
    this.scroll = element("div", { className: "scroll" }, list, this.more);
    const title = element("h2", {}, t("findings"), " ", this.total);
    this.element = element("section", { className: "card findings", id: "findings" },
      element("div", { className: "heading" }, title, this.rule.label), this.scroll, this.state);
    const fail = (/** @type {Error} */ problem) => (this.state.textContent = problem.message);
    this.source = new Source(json, (answer) => this.draw(answer.findings, answer.total), fail);
  }

  enlarge() {
    this.limit += PAGE;
    if (this.run && this.shown) this.show(this.run, this.shown);
  }

  /** @type {any} */
  run = null;
  /** @type {State | null} */
  shown = null;

  /** @param {any} run summary of the run @param {State} state */
  show(run, state) {
    Object.assign(this, { run, shown: state });
    const known = run.finding_list.map((/** @type {Finding} */ one) => one.rule);
    const rules = [...new Set([...known, ...(state.rule ? [state.rule] : [])])].sort();
    fill(this.rule.select, [["", t("all")], ...rules], state.rule);
    this.rule.label.hidden = rules.length < 2;
    this.state.textContent = "";
    if (state.rule || this.limit > PAGE) {
      return this.source.show(address(`runs/${run.number}/findings`, { rule: state.rule, limit: this.limit }));
    }
    this.source.clear();
    this.draw(run.finding_list.slice(0, PAGE), run.finding_total);
  }

  /** @type {(findings: Finding[], total: number) => void} */
  draw(findings, total) {
    const focused = this.rows.contains(document.activeElement);
    this.total.textContent = String(total);
    this.more.hidden = findings.length >= total || this.limit >= MOST;
    this.element.hidden = !findings.length && !this.shown?.rule; // the verdict has the reason
    const chosen = findings.findIndex((finding) => this.isShown(finding));
    this.rows.replaceChildren(...findings.map((finding, n) => this.line(finding, n, n === chosen, n === Math.max(0, chosen))));
    if (chosen >= 0) this.reveal(/** @type {HTMLElement} */ (this.rows.children[chosen]));
    if (focused) focusRow(this.rows, Math.max(0, chosen));
  }

  /** Scroll the list, not the page, until a row is in it. @param {HTMLElement} row */
  reveal({ offsetTop: top, offsetHeight: height }) {
    const { scroll } = this;
    const head = 26;
    const below = top + height - scroll.clientHeight;
    if (top < scroll.scrollTop + head) scroll.scrollTop = top - head;
    else if (below > scroll.scrollTop) scroll.scrollTop = below;
  }

  /** @param {Finding} finding */
  isShown({ row, step, rank, signal }) {
    const own = this.shown;
    return row === own?.row && step === own.step && rank === own.rank && signal === (own.signal || signal);
  }

  /** @type {(finding: Finding, n: number, chosen: boolean, reachable: boolean) => HTMLElement} */
  line(finding, n, chosen, reachable) {
    const number = parsed(finding.value) ?? 0;
    const look = Number.isNaN(number) ? "nan" : Number.isFinite(number) ? "" : "inf";
    const choose = () => this.choose(finding);
    const keydown = (/** @type {KeyboardEvent} */ event) => {
      if (event.key !== "Enter" && event.key !== " ") return;
      choose();
      event.preventDefault();
    };
    const own = { data: { finding: n }, aria: { selected: chosen }, on: { click: choose, keydown } };
    const about = `${t("curve.op", { op: finding.op, signal: finding.signal })} · ${finding.rule || finding.kind}`;
    const tag = finding.cause === "initiating" ? element("span", { className: "tag", textContent: t("cause.initiating") }) : null;
    const name = element("div", {}, element("bdi", { textContent: finding.row }));
    return element("tr", { tabIndex: reachable ? 0 : -1, title: finding.message, className: finding.cause, ...own },
      element("td", { className: "when" }, finding.step, element("small", { textContent: `${t("rank")} ${finding.rank}` })),
      element("td", { className: "name" }, name, element("small", { textContent: about }), tag),
      element("td", { className: "number" }, element("span", { className: look, textContent: text(finding.value) })));
  }
}
