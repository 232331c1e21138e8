// Findings of a run as a list: one click or Enter leads to the cell and its row.
import { Source, address, json } from "./api.js";
import { button, choice, clamp, element, fill, parsed, text } from "./dom.js";
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
    /** @type {Finding[]} */
    this.findings = [];
    this.rule = choice(t("finding.rule"), "rule", (rule) => go({ rule }, { replace: true }));
    this.total = element("span", { className: "count", id: "finding-total" });
    this.state = element("p", { className: "quiet", aria: { live: "polite" } });
    this.rows = element("tbody", { on: { keydown: (/** @type {KeyboardEvent} */ event) => this.key(event) } });
    this.more = button(t("more"), () => this.enlarge(), { hidden: true });
    const head = element("tr", {}, ...["step", "row", "value"].map((name) => element("th", { scope: "col", className: name === "value" ? "number" : "", textContent: t(`finding.${name}`) })));
    this.scroll = element("div", { className: "scroll" }, element("table", {}, element("thead", {}, head), this.rows), this.more);
    this.element = element("section", { className: "card findings", id: "findings" },
      element("div", { className: "heading" }, element("h2", {}, t("findings"), " ", this.total), this.rule.label),
      this.scroll, this.state);
    this.source = new Source(json, (answer) => this.draw(answer.findings, answer.total), (problem) => (this.state.textContent = problem.message));
  }

  enlarge() {
    this.limit += PAGE;
    if (this.run && this.shown) this.show(this.run, this.shown);
  }

  /** @type {any} */
  run = null;
  /** @type {State | null} */
  shown = null;

  /**
   * @param {any} run summary of the run
   * @param {State} state
   */
  show(run, state) {
    Object.assign(this, { run, shown: state });
    const rules = [...new Set([...run.finding_list.map((/** @type {Finding} */ one) => one.rule), ...(state.rule ? [state.rule] : [])])].sort();
    fill(this.rule.select, [["", t("all")], ...rules.map((rule) => /** @type {[string, string]} */ ([rule, rule]))], state.rule);
    this.rule.label.hidden = rules.length < 2;
    this.state.textContent = "";
    if (!state.rule && this.limit <= PAGE) {
      this.source.clear();
      this.draw(run.finding_list.slice(0, PAGE), run.finding_total);
      return;
    }
    this.source.show(address(`runs/${run.number}/findings`, { rule: state.rule, limit: this.limit }));
  }

  /** @type {(findings: Finding[], total: number) => void} */
  draw(findings, total) {
    const focused = this.rows.contains(document.activeElement);
    this.findings = findings;
    this.total.textContent = String(total);
    this.more.hidden = findings.length >= total || this.limit >= MOST;
    this.element.hidden = !findings.length && !this.shown?.rule; // the verdict has the reason
    const chosen = findings.findIndex((finding) => this.isShown(finding));
    const current = Math.max(0, chosen);
    this.rows.replaceChildren(...findings.map((finding, n) => this.line(finding, n, n === chosen, n === current)));
    if (chosen >= 0) this.reveal(/** @type {HTMLElement} */ (this.rows.children[chosen]));
    if (focused) this.focus(current);
  }

  /**
   * Scroll the list, not the page, until a row is in it.
   * @param {HTMLElement} row
   */
  reveal(row) {
    const { scroll } = this;
    const [top, head] = [row.offsetTop, 26];
    if (top < scroll.scrollTop + head) scroll.scrollTop = top - head;
    else if (top + row.offsetHeight > scroll.scrollTop + scroll.clientHeight) scroll.scrollTop = top + row.offsetHeight - scroll.clientHeight;
  }

  /** @param {Finding} finding */
  isShown(finding) {
    const state = this.shown;
    return Boolean(state) && finding.row === state?.row && finding.step === state?.step && finding.rank === state?.rank && finding.signal === (state?.signal || finding.signal);
  }

  /**
   * @param {Finding} finding
   * @param {number} n
   * @param {boolean} chosen
   * @param {boolean} reachable by the tab key
   */
  line(finding, n, chosen, reachable) {
    const number = parsed(finding.value) ?? 0;
    const look = Number.isNaN(number) ? "nan" : Number.isFinite(number) ? "" : "inf";
    return element("tr", { tabIndex: reachable ? 0 : -1, title: finding.message, data: { finding: n }, aria: { selected: chosen }, className: finding.cause,
      on: { click: () => this.choose(finding) } },
    element("td", { className: "when", textContent: String(finding.step) }, element("small", { textContent: `${t("rank")} ${finding.rank}` })),
    element("td", { className: "name" }, element("div", {}, element("bdi", { textContent: finding.row })),
      element("small", { textContent: `${t("curve.op", { op: finding.op, signal: finding.signal })} · ${finding.rule || finding.kind}` }), finding.cause === "initiating" ? element("span", { className: "tag", textContent: t("cause.initiating") }) : null),
    element("td", { className: "number" }, element("span", { className: look, textContent: text(finding.value) })));
  }

  /** @param {number} n */
  focus(n) {
    const rows = /** @type {HTMLElement[]} */ ([...this.rows.children]);
    rows.forEach((row, k) => (row.tabIndex = k === n ? 0 : -1));
    rows[n]?.focus();
  }

  /** @param {KeyboardEvent} event */
  key(event) {
    const row = /** @type {HTMLElement | null} */ (/** @type {HTMLElement} */ (event.target).closest("tr"));
    if (!row) return;
    const n = Number(row.dataset.finding);
    const last = this.findings.length - 1;
    const to = /** @type {Record<string, number>} */ ({ ArrowDown: n + 1, ArrowUp: n - 1, PageDown: n + 10, PageUp: n - 10, Home: 0, End: last })[event.key];
    if (to !== undefined) this.focus(clamp(to, 0, last));
    else if (event.key === "Enter" || event.key === " ") this.choose(this.findings[n]);
    else return;
    event.preventDefault();
  }
}
