// One row of the files: its numbers, and the file and line that it stands in.
import { Source, address, json } from "./api.js";
import { button, choice, element, exact, factList, fill, paragraph } from "./dom.js";
import { STATIC } from "./static.js";
import { t } from "./words.js";

/** @typedef {{ run: number, signal: string, op: string, row: string, rank: number | null, step: number | null, micro: number | null }} Wanted */

export class RowCard {
  /** @param {string} id @param {string} title @param {(changes: { step?: number, micro?: number | null }) => void} move */
  constructor(id, title, move) {
    this.move = move;
    this.id = id;
    this.body = element("div", { id });
    this.element = element("section", { className: "card row-card" }, element("h2", { textContent: title }), this.body);
    this.op = "";
    const fail = (/** @type {Error} */ problem) => this.body.replaceChildren(paragraph(problem.message, "failed"));
    this.source = new Source(json, (answer) => this.draw(answer), fail);
  }

  /** @param {Wanted} wanted */
  show({ run, signal, op, row, rank, step, micro }) {
    this.op = op;
    if (row && rank !== null && step !== null) {
      const place = { signal, row, rank, step, micro_step: micro, op: STATIC ? op : null };
      return this.source.show(address(`runs/${run}/row`, place));
    }
    this.source.clear();
    this.body.replaceChildren(paragraph(t("row.none")));
  }

  /** @param {any} answer */
  draw(answer) {
    const where = (answer.line ?? null) === null ? answer.file : `${answer.file}:${answer.line}`;
    const code = (/** @type {string} */ name, /** @type {string} */ text) => element("code", { id: `${this.id}-${name}`, textContent: text });
    const values = Object.entries(answer.values).map(([name, value]) => element("tr", { className: name === this.op ? "own" : "" },
      element("th", { scope: "row", textContent: name }),
      element("td", { className: "number", textContent: exact(value), data: { op: name } })));
    this.body.replaceChildren(
      factList([
        [t("row.row"), answer.row, `${this.id}-row`],
        [t("row.name"), answer.name === answer.row ? "" : answer.name, `${this.id}-name`],
        [t("signal"), answer.signal, `${this.id}-signal`],
        [t("step"), this.steps(answer), `${this.id}-step`],
        [t("rank"), answer.rank, `${this.id}-rank`],
        [t("row.micro"), answer.micro_steps?.length > 1 ? this.microSteps(answer) : answer.micro_step, `${this.id}-micro`],
        ...Object.entries(answer.attributes ?? {}).map(([title, value]) => /** @type {[string, string]} */ ([title, String(value)])),
        [t("row.file"), where && element("span", {}, code("file", where), " ", this.copying(where))],
        [t("row.search"), answer.search && code("search", answer.search)],
        [t("row.rounded"), answer.rounded && t("row.digits", { digits: answer.rounded })],
        [t("row.shape"), [answer.shape, answer.dtype].filter(Boolean).join(" ")],
        [t("row.coverage"), answer.coverage],
      ]),
      element("table", { className: "values" }, element("tbody", {}, ...values)),
    );
  }

  /** @param {any} answer */
  steps(answer) {
    const to = (/** @type {any} */ step, /** @type {string} */ sign, /** @type {string} */ label) =>
      button(sign, () => this.move({ step }), { className: "small", disabled: (step ?? null) === null, aria: { label } });
    const { previous_step: before, step, next_step: after } = answer;
    return element("span", {}, to(before, "‹", t("row.before")), ` ${step} `, to(after, "›", t("row.after")));
  }

  /** @param {any} answer */
  microSteps(answer) {
    const { select } = choice("", "", (value) => this.move({ micro: Number(value) }));
    select.setAttribute("aria-label", t("row.micro"));
    fill(select, answer.micro_steps.map(String), String(answer.micro_step));
    return select;
  }

  /** @param {string} where */
  copying(where) {
    const copy = () => navigator.clipboard.writeText(where).then(() => (made.textContent = t("copied")));
    const made = button(t("copy"), copy, { className: "small" });
    return made;
  }
}
