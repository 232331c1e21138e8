// State of the page, all of it in the address: a pasted address shows the same.
import { COMPARISON, STATIC } from "./static.js";

const none = /** @type {number | null} */ (null);
/** What stands in for what an address lacks; texts and numbers, in the order in which an address has them. */
const NOTHING = {
  run: none, // number of the run, null for the list of runs
  against: none, // number of the run that it is compared with
  signal: "",
  op: "",
  row: "",
  rank: none,
  step: none,
  micro: none, // micro step
  from: none, // first step on the screen
  to: none, // last step on the screen
  only: none, // the one rank that the heatmap is about, null for all
  descending: none, // 1 or null
  lines: "", // lines of the heatmap on the screen, such as `4-19`
  axis: "", // lines of the heatmap: `rows` or `ranks`
  order: "", // order of the ranks on the heatmap
  scale: "", // colours of the heatmap: `all`, `least`, empty for each line's own history
  ranks: "", // ranks of the curves, such as `0-15`
  numbers: "", // numbers of the run that are shown, with commas
  rule: "", // rule that findings are filtered by
  sort: "", // column that runs are sorted by
  filter: "", // text that runs are filtered by
  lang: "", // language: `en`, `zh`, or empty for the browser's
};

/** @typedef {typeof NOTHING} State */

/** Nothing chosen in a run. */
const NO_CELL = { row: "", rank: null, step: null, micro: null };
/** Everything of the run on the screen. */
export const NO_ZOOM = { from: null, to: null, lines: "" };

/** The state of a query; what is no number where one is expected counts as absent. @type {(search: string) => State} */
function parse(search) {
  const query = new URLSearchParams(search);
  const found = Object.entries(NOTHING).map(([name, nothing]) => {
    const value = query.get(name) ?? "";
    return [name, nothing === "" ? value : /^\d{1,15}$/.test(value) ? Number(value) : null];
  });
  return { ...Object.fromEntries(found), ...(STATIC ? { run: 0, against: COMPARISON ? 1 : null } : {}) };
}

/** A state as the query of an address, without what is not set. @param {Partial<State>} state */
function format(state) {
  const names = /** @type {(keyof State)[]} */ (Object.keys(NOTHING));
  const text = new URLSearchParams(names.flatMap((name) => ((state[name] ?? "") === "" ? [] : [[name, String(state[name])]]))).toString();
  return STATIC ? `#${text}` : text ? `?${text}` : "/";
}

/** @type {(state: State) => void} */
let listener = () => {};

// A page from disk has its state in the fragment, the only part of its address that it may change.
const here = () => (STATIC ? location.hash || "#" : location.search || "/");

/** The state that the address has. */
export const current = () => parse(here().slice(1));

/** Change the state: a new entry of the browser's history, or the same one for what follows the pointer.
 * @type {(changes: Partial<State>, how?: { replace?: boolean }) => void} */
export function go(changes, { replace = false } = {}) {
  const address = format({ ...current(), ...changes });
  if (address === here()) return;
  history[replace ? "replaceState" : "pushState"](null, "", address);
  listener(current());
}

/** Address of another page, without the rest of the state; the language stays. @param {Partial<State>} state */
export const addressOf = (state) => format({ lang: current().lang, ...state });

/** @param {string} address */
export function visit(address) {
  if (address !== here()) history.pushState(null, "", address);
  listener(current());
}

/** Undo one level of a page about runs: the cell, the zoom, the page. */
export function leave() {
  const { row, step, from, to, lines } = current();
  if (row || step !== null) go(NO_CELL);
  else if (from !== null || to !== null || lines) go(NO_ZOOM);
  else visit(addressOf({}));
}

/** Actions of everything that is drawn over steps. */
export const ZOOMED = {
  zoom: (/** @type {number} */ from, /** @type {number} */ to) => go({ from, to }),
  reset: () => go(NO_ZOOM),
  leave,
};

/** Call `listen` with the state now and after every change, back and forward included. @param {(state: State) => void} listen */
export function follow(listen) {
  listener = listen;
  addEventListener("popstate", () => listen(current()));
  listen(current());
}
