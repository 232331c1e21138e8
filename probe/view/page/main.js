// Beginning of the page: which of its pages the address asks for, language, changes of runs.
import { Source } from "./api.js";
import { button, element } from "./dom.js";
import { Jobs } from "./jobs.js";
import { live } from "./live.js";
import { One } from "./one.js";
import { forgetDrawings } from "./palette.js";
import { Runs } from "./runs.js";
import { STATIC } from "./static.js";
import { addressOf, current, follow, go, visit } from "./state.js";
import { Two } from "./two.js";
import { LANGUAGES, chosen, load, spoken, t } from "./words.js";

/** @typedef {import("./state.js").State} State */

const main = /** @type {HTMLElement} */ (document.getElementById("main"));
const header = /** @type {HTMLElement} */ (document.getElementById("top"));
/** Whether a server of heartbeats shows the page. */
const JOBS = Boolean(document.body.dataset.jobs);
const mark = element("span", { id: "live", className: "live", hidden: STATIC || JOBS, aria: { role: "status" } });

/** @type {Jobs | Runs | One | Two | null} */
let page = null;
let key = "";

/** @param {State} state */
async function show(state) {
  const wanted = chosen(state.lang);
  if (wanted !== spoken()) await load(wanted);
  const { run, against } = state;
  const own = [run, run === null ? null : against, spoken()].join(" "); // within one page only `update` is called
  if (own !== key) open(state);
  else page?.update(state);
  key = own;
}

/** @param {State} state */
function open(state) {
  if (page && "close" in page) page.close();
  Source.forget();
  forgetDrawings();
  drawTop(state);
  page = JOBS ? new Jobs() : state.run === null ? new Runs(state) : state.against === null ? new One(state) : new Two(state);
  main.replaceChildren(page.element);
  page.update(state);
  watch?.(page.watched());
}

/** @param {State} state */
function drawTop(state) {
  const names = { en: "English", zh: "中文" };
  const languages = LANGUAGES.map((lang) =>
    button(names[lang], () => go({ lang }, { replace: true }), { lang, aria: { pressed: lang === spoken() }, data: { lang } }));
  const link = (/** @type {any} */ look) => element("a", { href: addressOf({}), ...look });
  const home = state.run === null || STATIC ? null : link({ textContent: t("runs"), id: "home" });
  header.replaceChildren(link({ className: "brand", textContent: "probe" }), element("nav", {}, home), mark,
    element("span", { className: "languages" }, ...languages));
}

const watch = STATIC || JOBS ? null : live((changes) => page?.changed(changes), (state) => {
  mark.className = `live ${state}`;
  mark.textContent = t(`live.${state}`);
});

// Links of this application change the state in place of loading it anew.
document.addEventListener("click", (event) => {
  const link = /** @type {HTMLElement} */ (event.target).closest("a");
  const elsewhere = event.button !== 0 || event.ctrlKey || event.metaKey || event.shiftKey;
  if (!link || event.defaultPrevented || elsewhere || link.origin !== location.origin || link.pathname !== location.pathname) return;
  event.preventDefault();
  visit(STATIC ? link.hash || "#" : link.search || "/");
});
document.addEventListener("keydown", (event) => {
  const typing = /** @type {HTMLElement | null} */ (/** @type {HTMLElement} */ (event.target).closest?.("input, select, textarea"));
  if (event.key === "Escape" && typing && typing.id !== "filter") typing.blur();
  else if (event.key === "Escape") page?.leave();
  else if (event.key === "/" && !typing) {
    const field = /** @type {HTMLElement | null} */ (document.querySelector("#filter, #find"));
    field?.focus();
    if (field) event.preventDefault();
  }
});

await load(chosen(current().lang));
follow(show);
