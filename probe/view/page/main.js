// Beginning of the page: which of its pages the address asks for, language, changes of runs.
import { Source } from "./api.js";
import { element } from "./dom.js";
import { Jobs } from "./jobs.js";
import { Live } from "./live.js";
import { One } from "./one.js";
import { forgetDrawings } from "./palette.js";
import { Runs } from "./runs.js";
import { STATIC } from "./static.js";
import { addressOf, current, follow, go, visit } from "./state.js";
import { Two } from "./two.js";
import { LANGUAGES, chosen, load, spoken, t } from "./words.js";

/** @typedef {import("./state.js").State} State */
/**
 * @typedef {object} Shown a page
 * @property {HTMLElement} element
 * @property {(state: State) => void} update
 * @property {(changes: import("./live.js").Changes) => void} changed
 * @property {() => number[]} watched numbers of the runs on the screen
 * @property {() => void} leave Escape
 * @property {() => void} [close] end what is under way beside requests
 */

const main = /** @type {HTMLElement} */ (document.getElementById("main"));
const header = /** @type {HTMLElement} */ (document.getElementById("top"));
/** Whether a server of heartbeats shows the page. */
const JOBS = Boolean(document.body.dataset.jobs);
const mark = element("span", { id: "live", className: "live", hidden: STATIC || JOBS, aria: { role: "status" } });

/** @type {Shown | null} */
let page = null;
let key = "";

/**
 * Which page a state asks for; within one of them only `update` is called.
 * @param {State} state
 */
const keyOf = (state) => [state.run === null ? "runs" : state.against === null ? "one" : "two", state.run, state.run === null ? null : state.against, spoken()].join(" ");

/** @type {(state: State) => Shown} */
function made(state) {
  if (JOBS) return new Jobs();
  if (state.run === null) return new Runs(state);
  return state.against === null ? new One(state) : new Two(state);
}

/** @param {State} state */
async function show(state) {
  const wanted = chosen(state.lang);
  if (wanted !== spoken()) await load(wanted);
  if (keyOf(state) === key) page?.update(state);
  else open(state);
}

/** @param {State} state */
function open(state) {
  page?.close?.();
  Source.forget();
  forgetDrawings();
  key = keyOf(state);
  drawTop(state);
  page = made(state);
  main.replaceChildren(page.element);
  page.update(state);
  live?.watch(page.watched());
}

/** @param {State} state */
function drawTop(state) {
  const languages = LANGUAGES.map((name) => element("button", {
    type: "button", lang: name, textContent: { en: "English", zh: "中文" }[name], aria: { pressed: name === spoken() }, data: { lang: name }, on: { click: () => go({ lang: name }, { replace: true }) },
  }));
  const here = state.run === null || STATIC ? [] : [element("a", { href: addressOf({}), textContent: t("runs"), id: "home" })];
  header.replaceChildren(element("a", { className: "brand", href: addressOf({}), textContent: "probe" }), element("nav", {}, ...here), mark, element("span", { className: "languages" }, ...languages));
}

const live = STATIC || JOBS ? null : new Live((changes) => page?.changed(changes), (state) => {
  mark.className = `live ${state}`;
  mark.textContent = t(`live.${state}`);
});

// Links of this application change the state in place of loading it anew.
document.addEventListener("click", (event) => {
  const link = /** @type {HTMLElement} */ (event.target).closest("a");
  if (!link || event.defaultPrevented || event.button !== 0 || event.ctrlKey || event.metaKey || event.shiftKey || link.origin !== location.origin || link.pathname !== location.pathname) return;
  event.preventDefault();
  visit(STATIC ? link.hash || "#" : link.search || "/");
});
document.addEventListener("keydown", (event) => {
  const typing = /** @type {HTMLElement} */ (event.target).closest?.("input, select, textarea");
  if (event.key === "Escape") {
    if (typing && typing.id !== "filter") /** @type {HTMLElement} */ (typing).blur();
    else page?.leave();
  } else if (event.key === "/" && !typing) {
    const field = /** @type {HTMLElement | null} */ (document.querySelector("#filter, #find"));
    field?.focus();
    if (field) event.preventDefault();
  }
});

await load(chosen(current().lang));
follow(show);
