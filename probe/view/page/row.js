// One row of the files: its numbers, and the file and line that it stands in.
import { Source, address, json } from "./api.js";
import { button, element, exact, factList } from "./dom.js";
import { STATIC } from "./static.js";
import { t } from "./words.js";

/** @typedef {{ run: number, signal: string, op: string, row: string, rank: number | null, step: number | null, micro: number | null }} Wanted */

export class RowCard {
  /**
   * @param {string} id
   * @param {string} title
   * @param {(changes: { step?: number, micro?: number | null }) => void} move
   */
  constructor(id, title, move) {
    this.move = move;
    this.id = id;
    this.heading = element("h2", { textContent: title });
    this.body = element("div", { id });
    this.element = element("section", { className: "card row-card" }, this.heading, this.body);
    /** @type {Wanted | null} */
    this.wanted = null;
    this.source = new Source(json, (answer) => this.draw(answer), (problem) => this.body.replaceChildren(element("p", { className: "failed", textContent: problem.message })));
  }

  /** @param {Wanted} wanted */
  show(wanted) {
    this.wanted = wanted;
    if (!wanted.row || wanted.rank === null || wanted.step === null) {
      this.source.clear();
      this.body.replaceChildren(element("p", { className: "quiet", textContent: t("row.none") }));
      return;
    }
    const { run, signal, row, rank, step, micro } = wanted;
    const url = address(`runs/${run}/row`, { signal, row, rank, step, micro_step: micro, op: STATIC ? wanted.op : null });
    this.source.show(url);
  }

  /** @param {any} answer */
  draw(answer) {
    const op = this.wanted?.op ?? "";
    const where = answer.line === null || answer.line === undefined ? answer.file : `${answer.file}:${answer.line}`;
    const file = element("span", {}, element("code", { id: `${this.id}-file`, textContent: where }), " ", this.copying(where));
    this.body.replaceChildren(
      factList([
        [t("row.row"), answer.row, `${this.id}-row`],
        [t("row.name"), answer.name === answer.row ? "" : answer.name, `${this.id}-name`],
        [t("signal"), answer.signal, `${this.id}-signal`],
        [t("step"), this.steps(answer), `${this.id}-step`],
        [t("rank"), answer.rank, `${this.id}-rank`],
        [t("row.micro"), answer.micro_steps?.length > 1 ? this.microSteps(answer) : answer.micro_step, `${this.id}-micro`],
        ...Object.entries(answer.attributes ?? {}).map(([title, value]) => /** @type {[string, string]} */ ([title, String(value)])),
        [t("row.file"), where && file],
        [t("row.search"), answer.search && element("code", { id: `${this.id}-search`, textContent: answer.search })],
        [t("row.rounded"), answer.rounded && t("row.digits", { digits: answer.rounded })],
        [t("row.shape"), [answer.shape, answer.dtype].filter(Boolean).join(" ")],
        [t("row.coverage"), answer.coverage],
      ]),
      element("table", { className: "values" }, element("tbody", {}, ...Object.entries(answer.values).map(([name, value]) =>
        element("tr", { className: name === op ? "own" : "" }, element("th", { scope: "row", textContent: name }), element("td", { className: "number", textContent: exact(value), data: { op: name } }))))),
    );
  }

  /** @param {any} answer */
  steps(answer) {
    const to = (/** @type {number | null} */ step, /** @type {string} */ text, /** @type {string} */ label) =>
      button(text, () => this.move({ step: /** @type {number} */ (step) }), { className: "small", disabled: step === null || step === undefined, aria: { label } });
    return element("span", {}, to(answer.previous_step, "‹", t("row.before")), ` ${answer.step} `, to(answer.next_step, "›", t("row.after")));
  }

  /** @param {any} answer */
  microSteps(answer) {
    const select = element("select", { aria: { label: t("row.micro") }, on: { change: () => this.move({ micro: Number(select.value) }) } },
      ...answer.micro_steps.map((/** @type {number} */ n) => element("option", { value: String(n), textContent: String(n) })));
    select.value = String(answer.micro_step);
    return select;
  }

  /** @param {string} where */
  copying(where) {
    const made = button(t("copy"), async () => {
      await navigator.clipboard.writeText(where);
      made.textContent = t("copied");
    }, { className: "small" });
    return made;
  }
}
