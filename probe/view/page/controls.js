// Controls of the heatmap and of the curve over ranks.
import { button, choice, element, fill } from "./dom.js";
import { NO_ZOOM, go } from "./state.js";
import { t } from "./words.js";

/** @typedef {import("./state.js").State} State */

/** @param {(changes: Partial<State>) => void} choose */
export function controls(choose) {
  const signal = choice(t("signal"), "signal", (value) => go({ signal: value, row: "", step: null, micro: null, lines: "" }));
  const op = choice(t("op"), "op", (value) => go({ op: value }));
  const axis = choice(t("axis"), "axis", (value) => choose({ axis: value === "rows" ? "" : value, lines: "" }));
  const order = choice(t("order"), "order", (value) => go({ order: value === "rank" ? "" : value, lines: "" }));
  const scale = choice(t("scale"), "scale", (value) => go({ scale: value === "row" ? "" : value }, { replace: true }));
  const only = field(t("only"), "only", (value) => go({ only: /^\d+$/.test(value) ? Number(value) : null }));
  const rank = field(t("rank"), "rank", (value) => choose({ rank: /^\d+$/.test(value) ? Number(value) : null, micro: null }));
  const row = field(t("find"), "find", (value) => value && go({ row: value }));
  const names = element("datalist", { id: "row-names" });
  row.input.setAttribute("list", "row-names");
  const whole = button(t("whole"), () => go(NO_ZOOM), { id: "whole" });
  const ranks = field(t("ranks"), "ranks", (value) => go({ ranks: value }, { replace: true }));
  const chips = element("span", { className: "chips" });
  ranks.label.append(chips);
  return {
    element: element("div", { className: "controls" }, signal.label, op.label, axis.label, order.label, scale.label, only.label, rank.label, row.label, names, whole),
    ranks,

    /**
     * @param {any} run
     * @param {any} own the signal
     * @param {string} chosen the op
     * @param {State} state
     */
    show(run, own, chosen, state) {
      fill(signal.select, run.signals.map((/** @type {any} */ one) => [one.name, `${one.name}: ${meaning(one)}`]), own?.name ?? "");
      fill(op.select, (own?.ops ?? []).map((/** @type {string} */ name) => [name, name]), chosen);
      fill(axis.select, [["rows", t("axis.rows")], ["ranks", t("axis.ranks")]], state.axis || "rows");
      axis.select.options[1].disabled = !state.row;
      const orders = /** @type {string[]} */ (run.orders ?? []);
      fill(order.select, orders.map((title) => [title, title]), state.order || "rank");
      order.label.hidden = orders.length < 2 || state.axis !== "ranks";
      fill(scale.select, [["row", t("scale.row")], ["all", t("scale.all")], ["least", t("scale.least")]], state.scale || "row");
      for (const { label } of [axis, rank, only]) label.hidden = run.ranks < 2;
      op.label.hidden = (own?.ops ?? []).length < 2;
      set(rank.input, state.rank === null ? "" : String(state.rank));
      set(only.input, state.only === null ? "" : String(state.only));
      set(row.input, state.row);
      set(ranks.input, state.ranks);
      ranks.input.placeholder = run.rank_list ?? "";
      whole.hidden = state.from === null && state.to === null && !state.lines;
      list(names, own?.rows ?? []);
    },

    /**
     * Ranks with a colour of their own, as buttons.
     * @type {(shown: number[], rank: number | null) => void}
     */
    chips(shown, rank) {
      chips.replaceChildren(...shown.map((own, n) => button(String(own), () => choose({ rank: own }), { className: `chip line-${n}`, aria: { pressed: own === rank, label: `${t("rank")} ${own}` } })));
    },
  };
}

/** @param {{ name: string, meaning: string }} signal */
const meaning = ({ name, meaning: english }) => (t(`signal.${name}`) === `signal.${name}` ? english : t(`signal.${name}`));

/**
 * A labelled field for a text.
 * @param {string} text
 * @param {string} id
 * @param {(value: string) => void} act
 */
function field(text, id, act) {
  const input = element("input", { id, type: "text", autocomplete: "off", spellcheck: false, on: { change: () => act(input.value.trim()) } });
  return { input, label: element("label", {}, element("span", { textContent: text }), input) };
}

/** @type {(input: HTMLInputElement, value: string) => void} */
function set(input, value) {
  if (document.activeElement !== input) input.value = value;
}

/** @type {(names: HTMLDataListElement, rows: string[]) => void} */
function list(names, rows) {
  const key = `${rows.length} ${rows[0]} ${rows.at(-1)}`;
  if (names.dataset.key === key) return;
  names.dataset.key = key;
  names.replaceChildren(...rows.map((value) => element("option", { value })));
}
