// State of the page, all of it in the address: a pasted address shows the same.
import { COMPARISON, STATIC } from "./static.js";

/**
 * @typedef {object} State
 * @property {number | null} run number of the run, null for the list of runs
 * @property {number | null} against number of the run that it is compared with
 * @property {string} signal
 * @property {string} op
 * @property {string} row
 * @property {number | null} rank
 * @property {number | null} step
 * @property {number | null} micro micro step
 * @property {number | null} from first step on the screen
 * @property {number | null} to last step on the screen
 * @property {string} lines lines of the heatmap on the screen, such as `4-19`
 * @property {string} axis lines of the heatmap: `rows` or `ranks`
 * @property {number | null} only the one rank that the heatmap is about, null for all
 * @property {string} order order of the ranks on the heatmap
 * @property {string} scale colours of the heatmap: `all`, `least`, empty for each line's own history
 * @property {string} ranks ranks of the curves, such as `0-15`
 * @property {string} numbers numbers of the run that are shown, with commas
 * @property {string} rule rule that findings are filtered by
 * @property {string} sort column that runs are sorted by
 * @property {number | null} descending 1 or null
 * @property {string} filter text that runs are filtered by
 * @property {string} lang language: `en`, `zh`, or empty for the browser's
 */

const NUMBERS = ["run", "against", "rank", "step", "micro", "from", "to", "only", "descending"];
const TEXTS = ["signal", "op", "row", "lines", "axis", "order", "scale", "ranks", "numbers", "rule", "sort", "filter", "lang"];

/** Nothing chosen in a run. */
export const NO_CELL = { row: "", rank: null, step: null, micro: null };
/** Everything of the run on the screen. */
export const NO_ZOOM = { from: null, to: null, lines: "" };

/**
 * Parse the query of an address; what is no number where one is expected counts as absent.
 * @type {(search: string) => State}
 */
export function parse(search) {
  const query = new URLSearchParams(search);
  /** @type {Record<string, string | number | null>} */
  const found = {};
  for (const name of NUMBERS) found[name] = /^\d{1,15}$/.test(query.get(name) ?? "") ? Number(query.get(name)) : null;
  for (const name of TEXTS) found[name] = query.get(name) ?? "";
  if (STATIC) Object.assign(found, { run: 0, against: COMPARISON ? 1 : null });
  return /** @type {State} */ (/** @type {unknown} */ (found));
}

/**
 * Write a state as the query of an address, without what is not set.
 * @param {Partial<State>} state
 */
export function format(state) {
  const values = /** @type {Record<string, string | number | null | undefined>} */ (state);
  const query = new URLSearchParams();
  for (const name of ["run", "against", ...TEXTS.slice(0, 3), ...NUMBERS.slice(2), ...TEXTS.slice(3)]) {
    const value = values[name];
    if (value !== null && value !== undefined && value !== "") query.set(name, String(value));
  }
  const text = query.toString();
  return STATIC ? `#${text}` : text ? `?${text}` : "/";
}

/** @type {(state: State, before: State | null) => void} */
let listener = () => {};
/** @type {State | null} */
let shown = null;

// A page from disk has its state in the fragment, the only part of its address that it may change.
const here = () => (STATIC ? location.hash || "#" : location.search || "/");

/** The state that the address has. */
export const current = () => parse(here().slice(1));

/**
 * Change the state: a new entry of the browser's history, or the same one for what follows the pointer.
 * @type {(changes: Partial<State>, how?: { replace?: boolean }) => void}
 */
export function go(changes, { replace = false } = {}) {
  const address = format({ ...current(), ...changes });
  if (address === here()) return;
  if (replace) history.replaceState(null, "", address);
  else history.pushState(null, "", address);
  announce();
}

/**
 * Show another page of this application, without the rest of the state; the language stays.
 * @param {Partial<State>} state
 */
export const addressOf = (state) => format({ lang: current().lang, ...state });

/** @param {string} address */
export function visit(address) {
  if (address !== here()) history.pushState(null, "", address);
  announce();
}

/** Undo one level of a page about runs: the cell, the zoom, the page. */
export function leave() {
  const { row, step, from, to, lines } = current();
  if (row || step !== null) go(NO_CELL);
  else if (from !== null || to !== null || lines) go(NO_ZOOM);
  else visit(addressOf({}));
}

/** Actions of everything that is drawn over steps. */
export const ZOOMED = { zoom: (/** @type {number} */ from, /** @type {number} */ to) => go({ from, to }), reset: () => go(NO_ZOOM), leave };

function announce() {
  const before = shown;
  shown = current();
  listener(shown, before);
}

/**
 * Call `listen` with the state now and after every change of it, the browser's back and forward included.
 * @param {(state: State, before: State | null) => void} listen
 */
export function follow(listen) {
  listener = listen;
  addEventListener("popstate", announce);
  announce();
}
