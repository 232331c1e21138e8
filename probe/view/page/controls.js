// Controls of the heatmap and of the curve over ranks.
import { button, choice, element, field, fill } from "./dom.js";
import { NO_ZOOM, go } from "./state.js";
import { t } from "./words.js";

/** @typedef {import("./state.js").State} State */

/** @param {(changes: Partial<State>) => void} choose */
export function controls(choose) {
  const number = (/** @type {string} */ value) => (/^\d+$/.test(value) ? Number(value) : null);
  const signal = choice(t("signal"), "signal", (value) => go({ signal: value, row: "", step: null, micro: null, lines: "" }));
  const op = choice(t("op"), "op", (value) => go({ op: value }));
  const axis = choice(t("axis"), "axis", (value) => choose({ axis: value === "rows" ? "" : value, lines: "" }));
  const order = choice(t("order"), "order", (value) => go({ order: value === "rank" ? "" : value, lines: "" }));
  const scale = choice(t("scale"), "scale", (value) => go({ scale: value === "row" ? "" : value }, { replace: true }));
  const only = field(t("only"), "only", (value) => go({ only: number(value) }));
  const rank = field(t("rank"), "rank", (value) => choose({ rank: number(value), micro: null }));
  const row = field(t("find"), "find", (value) => value && go({ row: value }));
  const names = element("datalist", { id: "row-names" });
  row.input.setAttribute("list", "row-names");
  const whole = button(t("whole"), () => go(NO_ZOOM), { id: "whole" });
  const ranks = field(t("ranks"), "ranks", (value) => go({ ranks: value }, { replace: true }));
  const chips = element("span", { className: "chips" });
  ranks.label.append(chips);
  const labels = [signal, op, axis, order, scale, only, rank, row].map(({ label }) => label);
  return {
    element: element("div", { className: "controls" }, ...labels, names, whole),
    ranks,

    /** @param {any} run @param {any} own the signal @param {string} chosen the op @param {State} state */
    show(run, own, chosen, state) {
      fill(signal.select, run.signals.map((/** @type {any} */ one) => [one.name, `${one.name}: ${meaning(one)}`]), own?.name);
      fill(op.select, own?.ops ?? [], chosen);
      fill(axis.select, [["rows", t("axis.rows")], ["ranks", t("axis.ranks")]], state.axis || "rows");
      axis.select.options[1].disabled = !state.row;
      const orders = /** @type {string[]} */ (run.orders ?? []);
      fill(order.select, orders, state.order || "rank");
      order.label.hidden = orders.length < 2 || state.axis !== "ranks";
      fill(scale.select, [["row", t("scale.row")], ["all", t("scale.all")], ["least", t("scale.least")]], state.scale || "row");
      for (const { label } of [axis, rank, only]) label.hidden = run.ranks < 2;
      op.label.hidden = (own?.ops ?? []).length < 2;
      const values = /** @type {const} */ ([[rank, state.rank], [only, state.only], [row, state.row], [ranks, state.ranks]]);
      for (const [{ input }, value] of values) if (document.activeElement !== input) input.value = String(value ?? "");
      ranks.input.placeholder = run.rank_list ?? "";
      whole.hidden = state.from === null && state.to === null && !state.lines;
      fill(names, own?.rows ?? []);
    },

    /** Ranks with a colour of their own, as buttons. @type {(shown: number[], rank: number | null) => void} */
    chips(shown, rank) {
      const look = (/** @type {number} */ own, /** @type {number} */ n) =>
        ({ className: `chip line-${n}`, aria: { pressed: own === rank, label: `${t("rank")} ${own}` } });
      chips.replaceChildren(...shown.map((own, n) => button(String(own), () => choose({ rank: own }), look(own, n))));
    },
  };
}

/** @param {{ name: string, meaning: string }} signal */
const meaning = ({ name, meaning: english }) => (t(`signal.${name}`) === `signal.${name}` ? english : t(`signal.${name}`));
