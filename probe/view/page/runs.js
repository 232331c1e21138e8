// List of runs: filter, sort, open one, choose two.
import { Source, address, json } from "./api.js";
import { ago, button, costText, element, stepsOf, walk } from "./dom.js";
import { sparkline } from "./sparkline.js";
import { addressOf, go, visit } from "./state.js";
import { aliveness, badge, problemsOf } from "./verdict.js";
import { spoken, t } from "./words.js";

/** @typedef {import("./state.js").State} State */

const [PAGE, MOST] = [200, 1000]; // runs that are asked for at first, and at most
const COSTLY = 0.2; // share of a step from which on the cost is marked
const PAUSE = 150; // milliseconds without a key after which the filter is sent
const COLUMNS = ["name", "cause", "loss", "steps", "ranks", "findings", "cost", "changed"];
const NUMBERS = COLUMNS.slice(3); // columns whose first click puts the largest first
const SORTED = ["name", ...NUMBERS];

export class Runs {
  /** @param {State} state */
  constructor(state) {
    document.title = t("runs.title");
    this.state = state;
    this.limit = PAGE;
    /** @type {Set<number>} */
    this.picked = new Set();
    const label = t("runs.filter");
    const look = { type: "search", id: "filter", placeholder: label, autocomplete: "off", spellcheck: false, aria: { label } };
    this.filter = element("input", { ...look, value: state.filter, on: { input: () => this.typed() } });
    this.compare = button(t("runs.compare"), () => this.two(), { id: "compare", disabled: true });
    this.count = element("span", { className: "quiet", id: "count", aria: { role: "status" } });
    this.heads = element("tr");
    this.rows = element("tbody", { id: "runs", aria: { busy: true }, on: { keydown: walk } });
    this.more = button(t("more"), () => this.enlarge(), { hidden: true });
    this.problem = element("p", { className: "failed" });
    const head = element("div", { className: "heading" }, element("h1", { textContent: t("runs") }), this.filter, this.count, this.compare);
    const list = element("table", {}, element("thead", {}, this.heads), this.rows);
    this.element = element("div", { className: "runs" }, head, this.problem, element("div", { className: "card table" }, list, this.more));
    this.source = new Source(json, (answer) => this.draw(answer), (problem) => (this.problem.textContent = problem.message));
  }

  watched = () => [];
  close = () => clearTimeout(this.timer);
  changed = () => this.source.renew();
  timer = 0;

  /** @param {State} state */
  update(state) {
    this.state = state;
    if (document.activeElement !== this.filter) this.filter.value = state.filter;
    const { filter } = state;
    const sort = state.sort || "changed";
    const pick = element("th", { className: "pick", aria: { label: t("runs.pick") } });
    this.heads.replaceChildren(pick, ...COLUMNS.map((column) => this.head(column)));
    const turned = sort === "changed" ? !this.falls() : this.falls(); // the server puts the newest first by itself
    this.source.want(address("runs", { sort, descending: turned ? 1 : null, filter, limit: this.limit }));
  }

  /** Whether the largest is first. */
  falls = () => !this.state.sort || Boolean(this.state.descending);

  enlarge() {
    this.limit += PAGE;
    this.update(this.state);
  }

  typed() {
    clearTimeout(this.timer);
    this.timer = setTimeout(() => go({ filter: this.filter.value.trim() }, { replace: true }), PAUSE);
  }

  /** @param {string} name */
  head(name) {
    const label = t(`runs.${name}`);
    if (!SORTED.includes(name)) return element("th", { scope: "col", textContent: label });
    const own = (this.state.sort || "changed") === name;
    const descending = (own ? !this.falls() : NUMBERS.includes(name)) ? 1 : null;
    const made = button(label, () => go({ sort: name, descending }, { replace: true }), { data: { sort: name } });
    const aria = own ? { sort: this.falls() ? "descending" : "ascending" } : {};
    return element("th", { scope: "col", className: NUMBERS.includes(name) ? "number" : "", aria }, made);
  }

  /** @param {{ runs: any[], total: number, known: number, problem: string }} answer */
  draw({ runs, total, problem }) {
    this.problem.textContent = problem ? t("runs.problem", { problem }) : "";
    this.rows.removeAttribute("aria-busy");
    const at = /** @type {HTMLElement | null} */ (document.activeElement)?.closest("tr")?.dataset.run;
    this.count.textContent = t(total === 1 ? "runs.count.one" : "runs.count", { count: total });
    this.more.hidden = runs.length >= total || this.limit >= MOST; // the filter finds the others
    const { filter } = this.state;
    const none = { colSpan: 9, className: "quiet", textContent: t(filter ? "runs.none.filter" : "runs.none") };
    const hint = filter ? null : element("pre", { textContent: "probe run train.py" });
    this.rows.replaceChildren(...(runs.length ? runs.map((run) => this.line(run)) : [element("tr", {}, element("td", none, hint))]));
    if (at !== undefined) /** @type {HTMLElement | null} */ (this.rows.querySelector(`tr[data-run="${at}"] a`))?.focus();
  }

  /** @param {any} run */
  line(run) {
    const label = t("runs.pick.one", { name: run.name });
    const change = () => this.pick(run.number, pick.checked);
    const pick = element("input", { type: "checkbox", checked: this.picked.has(run.number), aria: { label }, on: { change } });
    const link = element("a", { href: addressOf({ run: run.number }), textContent: run.name });
    const number = (/** @type {string} */ name, /** @type {string | number | null} */ value, look = "") =>
      element("td", { className: `number ${name} ${look}`, textContent: value ?? "", data: { label: t(`runs.${name}`) } });
    const folder = run.location.endsWith(`/${run.name}`) ? run.location.slice(0, -run.name.length) : run.location;
    const click = (/** @type {MouseEvent} */ event) => this.click(event, run.number);
    return element("tr", { data: { run: run.number }, on: { click } },
      element("td", { className: "pick" }, pick),
      element("td", { className: "name" }, link, " ", aliveness(run), element("small", { className: "quiet", textContent: folder })),
      element("td", { className: "why" }, badge(run), " ", ...this.why(run)),
      element("td", { className: "loss" }, sparkline(run.loss ?? [], t("loss"))),
      number("steps", stepsOf(run)), number("ranks", run.ranks), number("findings", run.findings, run.findings ? "bad" : ""),
      number("cost", costText(run.cost), run.cost > COSTLY ? "warn" : ""),
      number("changed", run.changed ? ago(Date.now() / 1000 - run.changed, spoken()) : ""));
  }

  /** @param {any} run */
  why(run) {
    const place = run.verdict ? run.verdict.where.slice(0, 2).join(", ") : run.first_cause ?? "";
    const small = (/** @type {any} */ on, /** @type {string} */ look, /** @type {() => string} */ words) =>
      on ? element("small", { className: look, textContent: words() }) : null;
    return [element("code", { textContent: place }), small(run.analysis === "failed", "bad", () => run.analysis_error),
      small(run.problems?.length, "warn", () => problemsOf(run.problems))];
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
    for (const box of /** @type {NodeListOf<HTMLInputElement>} */ (this.rows.querySelectorAll("tr[data-run] input"))) {
      box.checked = this.picked.has(Number(box.closest("tr")?.dataset.run));
    }
    this.compare.disabled = this.picked.size !== 2;
  }

  two() {
    const [run, against] = [...this.picked].sort((a, b) => a - b);
    visit(addressOf({ run, against }));
  }

  leave() {
    if (!this.state.filter) return;
    this.filter.value = "";
    go({ filter: "" }, { replace: true });
  }
}
