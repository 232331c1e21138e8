// List of runs: filter, sort, open one, choose two.
import { Source, address, json } from "./api.js";
import { ago, button, costText, element, stepsOf } from "./dom.js";
import { sparkline } from "./sparkline.js";
import { addressOf, go, visit } from "./state.js";
import { aliveness, problemsOf } from "./summary.js";
import { badge } from "./verdict.js";
import { spoken, t } from "./words.js";

/** @typedef {import("./state.js").State} State */

const [PAGE, MOST] = [200, 1000]; // runs that are asked for at first, and at most
const COSTLY = 0.2; // share of a step from which on the cost is marked
const PAUSE = 150; // milliseconds without a key after which the filter is sent
/** @type {[name: string, sort: string, number: boolean][]} */
const COLUMNS = [["name", "name", false], ["cause", "", false], ["loss", "", false], ["steps", "steps", true], ["ranks", "ranks", true], ["findings", "findings", true], ["cost", "cost", true], ["changed", "changed", true]];
const FALLING = ["changed", "findings", "steps", "ranks", "cost"]; // columns whose first click puts the largest first

export class Runs {
  /** @param {State} state */
  constructor(state) {
    document.title = t("runs.title");
    this.state = state;
    this.limit = PAGE;
    /** @type {any[]} */
    this.runs = [];
    /** @type {Set<number>} */
    this.picked = new Set();
    this.filter = element("input", { type: "search", id: "filter", placeholder: t("runs.filter"), autocomplete: "off", spellcheck: false, value: state.filter, aria: { label: t("runs.filter") }, on: { input: () => this.typed() } });
    this.compare = button(t("runs.compare"), () => this.two(), { id: "compare", disabled: true });
    this.count = element("span", { className: "quiet", id: "count", aria: { role: "status" } });
    this.heads = element("tr");
    this.rows = element("tbody", { id: "runs", aria: { busy: true }, on: { keydown: (/** @type {KeyboardEvent} */ event) => this.key(event) } });
    this.more = button(t("more"), () => this.enlarge(), { hidden: true });
    this.problem = element("p", { className: "failed" });
    this.element = element("div", { className: "runs" }, element("div", { className: "heading" }, element("h1", { textContent: t("runs") }), this.filter, this.count, this.compare),
      this.problem, element("div", { className: "card table" }, element("table", {}, element("thead", {}, this.heads), this.rows), this.more));
    this.source = new Source(json, (answer) => this.draw(answer), (problem) => (this.problem.textContent = problem.message));
    this.update(state);
  }

  watched = () => [];

  close = () => clearTimeout(this.timer);

  /** @param {State} state */
  update(state) {
    this.state = state;
    if (document.activeElement !== this.filter) this.filter.value = state.filter;
    const { filter } = state;
    const sort = state.sort || "changed";
    this.heads.replaceChildren(element("th", { className: "pick", aria: { label: t("runs.pick") } }), ...COLUMNS.map((column) => this.head(...column)));
    const turned = sort === "changed" ? !this.falls() : this.falls(); // the server puts the newest first by itself
    this.source.want(address("runs", { sort, descending: turned ? 1 : null, filter, limit: this.limit }));
  }

  /** Whether the largest is first. */
  falls = () => !this.state.sort || Boolean(this.state.descending);

  changed = () => this.source.renew();

  enlarge() {
    this.limit += PAGE;
    this.update(this.state);
  }

  timer = 0;

  typed() {
    clearTimeout(this.timer);
    this.timer = setTimeout(() => go({ filter: this.filter.value.trim() }, { replace: true }), PAUSE);
  }

  /** @type {(name: string, sort: string, number: boolean) => HTMLElement} */
  head(name, sort, number) {
    const label = t(`runs.${name}`);
    if (!sort) return element("th", { scope: "col", textContent: label });
    const own = (this.state.sort || "changed") === sort;
    const falls = this.falls();
    const next = own ? (falls ? null : 1) : FALLING.includes(sort) ? 1 : null;
    const made = button(label, () => go({ sort, descending: next }, { replace: true }), { data: { sort } });
    return element("th", { scope: "col", className: number ? "number" : "", aria: own ? { sort: falls ? "descending" : "ascending" } : {} }, made);
  }

  /** @param {{ runs: any[], total: number, known: number, problem: string }} answer */
  draw({ runs, total, problem }) {
    this.problem.textContent = problem ? t("runs.problem", { problem }) : "";
    this.runs = runs;
    this.rows.removeAttribute("aria-busy");
    const at = /** @type {HTMLElement | null} */ (document.activeElement)?.closest("tr")?.dataset.run;
    this.count.textContent = t(total === 1 ? "runs.count.one" : "runs.count", { count: total });
    this.more.hidden = runs.length >= total || this.limit >= MOST; // the filter finds the others
    this.rows.replaceChildren(...runs.map((run) => this.line(run)));
    if (!runs.length) this.rows.append(element("tr", {}, element("td", { colSpan: 9, className: "quiet", textContent: t(this.state.filter ? "runs.none.filter" : "runs.none") }, this.state.filter ? null : element("pre", { textContent: "probe run train.py" }))));
    if (at !== undefined) /** @type {HTMLElement | null} */ (this.rows.querySelector(`tr[data-run="${at}"] a`))?.focus();
  }

  /** @param {any} run */
  line(run) {
    const pick = element("input", { type: "checkbox", checked: this.picked.has(run.number), aria: { label: t("runs.pick.one", { name: run.name }) }, on: { change: () => this.pick(run.number, pick.checked) } });
    const link = element("a", { href: addressOf({ run: run.number }), textContent: run.name });
    const number = (/** @type {string} */ name, /** @type {string | number | null} */ value, look = "") => element("td", { className: `number ${name} ${look}`, textContent: value ?? "", data: { label: t(`runs.${name}`) } });
    const folder = run.location.endsWith(`/${run.name}`) ? run.location.slice(0, -run.name.length) : run.location;
    return element("tr", { data: { run: run.number }, on: { click: (/** @type {MouseEvent} */ event) => this.click(event, run.number) } },
      element("td", { className: "pick" }, pick), element("td", { className: "name" }, link, " ", aliveness(run), element("small", { className: "quiet", textContent: folder })),
      element("td", { className: "why" }, badge(run), " ", ...this.why(run)), element("td", { className: "loss" }, sparkline(run.loss ?? [], t("loss"))),
      number("steps", stepsOf(run)), number("ranks", run.ranks), number("findings", run.findings, run.findings ? "bad" : ""),
      number("cost", costText(run.cost), run.cost > COSTLY ? "warn" : ""), number("changed", run.changed ? ago(Date.now() / 1000 - run.changed, spoken()) : ""));
  }

  /** @param {any} run */
  why(run) {
    const place = run.verdict ? run.verdict.where.slice(0, 2).join(", ") : run.first_cause ?? "";
    return [element("code", { textContent: place }), run.analysis === "failed" ? element("small", { className: "bad", textContent: run.analysis_error }) : null,
      run.problems?.length ? element("small", { className: "warn", textContent: problemsOf(run.problems) }) : null];
  }

  /** @type {(event: MouseEvent, number: number) => void} */
  click(event, number) {
    if (/** @type {HTMLElement} */ (event.target).closest("a, input, button") || getSelection()?.toString()) return;
    visit(addressOf({ run: number }));
  }

  /** @type {(number: number, on: boolean) => void} */
  pick(number, on) {
    if (on) this.picked.add(number);
    else this.picked.delete(number);
    for (const first of this.picked) if (this.picked.size > 2) this.picked.delete(first);
    for (const row of /** @type {NodeListOf<HTMLElement>} */ (this.rows.querySelectorAll("tr[data-run]"))) {
      /** @type {HTMLInputElement} */ (row.querySelector("input")).checked = this.picked.has(Number(row.dataset.run));
    }
    this.compare.disabled = this.picked.size !== 2;
  }

  two() {
    const [run, against] = [...this.picked].sort((a, b) => a - b);
    visit(addressOf({ run, against }));
  }

  /** @param {KeyboardEvent} event */
  key(event) {
    const row = /** @type {HTMLElement} */ (event.target).closest("tr");
    const move = /** @type {Record<string, "nextElementSibling" | "previousElementSibling">} */ ({ ArrowDown: "nextElementSibling", ArrowUp: "previousElementSibling" })[event.key];
    if (!row || !move) return;
    /** @type {HTMLElement | null | undefined} */ (row[move]?.querySelector("a"))?.focus();
    event.preventDefault();
  }

  leave() {
    if (this.state.filter) {
      this.filter.value = "";
      go({ filter: "" }, { replace: true });
    }
  }
}
