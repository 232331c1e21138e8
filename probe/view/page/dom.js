// Elements and numbers as text. Names from data become text nodes alone, never markup.

/** <tag ...properties>children</tag>; strings become text; null is left out.
 * @template {keyof HTMLElementTagNameMap} K
 * @param {K} tag
 * @param {Record<string, any>} [properties] properties of the element; `data`, `aria` and `on` are maps of their own
 * @param {...(Node | string | number | null)} children
 * @returns {HTMLElementTagNameMap[K]} */
export function element(tag, properties = {}, ...children) {
  const { data = {}, aria = {}, on = {}, ...own } = properties;
  const made = Object.assign(document.createElement(tag), own);
  for (const [name, value] of Object.entries(data)) made.dataset[name] = String(value);
  for (const [name, value] of Object.entries(aria)) made.setAttribute(name === "role" ? name : `aria-${name}`, String(value));
  for (const [name, listen] of Object.entries(on)) made.addEventListener(name, listen);
  made.append(...children.filter((child) => child !== null).map((child) => (typeof child === "number" ? String(child) : child)));
  return made;
}

/** @type {(text: string, act: () => void, properties?: Record<string, any>) => HTMLButtonElement} */
export const button = (text, act, properties = {}) =>
  element("button", { type: "button", textContent: text, on: { click: act }, ...properties });

/** @type {(text: string, look?: string) => HTMLElement} */
export const paragraph = (text, look = "quiet") => element("p", { className: look, textContent: text });

/** @param {string} title @param {...Node} rest */
export const heading = (title, ...rest) => element("div", { className: "heading" }, element("h2", { textContent: title }), ...rest);

/** A labelled select. @param {string} label @param {string} id @param {(value: string) => void} act */
export function choice(label, id, act) {
  const select = element("select", { id, on: { change: () => act(select.value) } });
  return { select, label: element("label", {}, element("span", { textContent: label }), select) };
}

/** A labelled field for a text. @param {string} label @param {string} id @param {(value: string) => void} act */
export function field(label, id, act) {
  const on = { change: () => act(input.value.trim()) };
  const input = element("input", { id, type: "text", autocomplete: "off", spellcheck: false, on });
  return { input, label: element("label", {}, element("span", { textContent: label }), input) };
}

/**
 * Options of a select or of a list of proposals, made again only if they differ; a name may be its own text.
 * @type {(place: HTMLSelectElement | HTMLDataListElement, options: (string | [string, string])[], value?: string) => void}
 */
export function fill(place, options, value = "") {
  const key = JSON.stringify(options);
  if (place.dataset.options !== key) {
    place.dataset.options = key;
    const pairs = options.map((option) => (typeof option === "string" ? [option, option] : option));
    place.replaceChildren(...pairs.map(([own, text]) => element("option", { value: own, textContent: text })));
  }
  if (place instanceof HTMLSelectElement) place.value = value;
}

/** @typedef {Node | string | number | null | undefined} Content */

/** A list of facts, without those whose value is null or empty.
 * @param {[name: string, value: Content, id?: string][]} facts */
export function factList(facts) {
  const known = /** @type {[string, string | Node, string?][]} */ (facts.filter(([, value]) => (value ?? "") !== ""));
  const pairs = known.map(([name, value, id]) => [element("dt", { textContent: name }), element("dd", id ? { id } : {}, value)]);
  return element("dl", { className: "facts" }, ...pairs.map((pair) => element("div", {}, ...pair)));
}

/** A table of texts. @type {(header: string[], rows: (string | number | Node)[][]) => HTMLElement} */
export function table(header, rows) {
  const heads = header.map((name) => element("th", { scope: "col", textContent: name }));
  const lines = rows.map((row) => row.map((cell, n) => element("td", { data: { label: header[n] } }, cell)));
  const body = element("tbody", {}, ...lines.map((cells) => element("tr", {}, ...cells)));
  return element("div", { className: "scroll" }, element("table", {}, element("thead", {}, element("tr", {}, ...heads)), body));
}

/** Put the focus on a row of a table, or on its link. @type {(rows: HTMLElement, n: number) => void} */
export function focusRow(rows, n) {
  const all = /** @type {HTMLElement[]} */ ([...rows.children]);
  const to = all[clamp(n, 0, all.length - 1)];
  const link = to?.querySelector("a");
  if (!link) all.forEach((row) => (row.tabIndex = row === to ? 0 : -1));
  (link ?? to)?.focus();
}

/** Move from row to row of a table by keys. @type {(event: KeyboardEvent) => void} */
export function walk(event) {
  const row = /** @type {HTMLElement} */ (event.target).closest("tr");
  const n = [...(row?.parentElement?.children ?? [])].indexOf(/** @type {Element} */ (row));
  const keys = { ArrowDown: n + 1, ArrowUp: n - 1, PageDown: n + 10, PageUp: n - 10, Home: 0, End: Infinity };
  if (n < 0 || !(event.key in keys)) return;
  focusRow(/** @type {HTMLElement} */ (row?.parentElement), keys[/** @type {keyof typeof keys} */ (event.key)]);
  event.preventDefault();
}

/** The end of a name, which says more than its beginning. @param {string} name @param {number} most characters */
export const short = (name, most) => (name.length > most ? `…${name.slice(1 - most)}` : name);

/** @typedef {number | string | null | undefined} Value a number of the interface: what is not finite comes as text */

/** @type {(value: Value) => number | null} */
export const parsed = (value) => (value === null || value === undefined ? null : Number(String(value).replace(/^(-?)inf$/, "$1Infinity")));

/** A number as text; NaN and Inf by name. @type {(value: Value, digits?: number) => string} */
export function text(value, digits = 4) {
  const number = parsed(value);
  if (number === null) return "";
  if (Number.isNaN(number)) return "NaN";
  if (!Number.isFinite(number)) return number > 0 ? "Inf" : "-Inf";
  const size = Math.abs(number);
  if (number !== 0 && (size >= 10 ** Math.max(digits, 6) || size < 1e-4)) {
    const [mantissa, exponent] = number.toExponential(digits - 1).split("e");
    return `${Number(mantissa)}e${exponent.replace("+", "")}`;
  }
  return String(Number(number.toPrecision(digits)));
}

/** A number with the digits that tell it from others at a distance. @type {(value: number, distance: number) => string} */
export function axisText(value, distance) {
  const digits = value && distance > 0 ? Math.floor(Math.log10(Math.abs(value))) - Math.floor(Math.log10(distance)) + 1 : 3;
  return text(value, clamp(digits, 3, 12));
}

/** All digits of a number. @param {Value} value */
export const exact = (value) => (Number.isFinite(parsed(value) ?? NaN) ? String(parsed(value)) : text(value));

/** @param {number[]} span */
export const spanText = ([first, last]) => (first === last ? String(first) : `${first}–${last}`);

/** The column that has a step, -1 if there is none. @type {(steps: number[][], step: number | null) => number} */
export const columnOf = (steps, step) => steps.findIndex(([first, last]) => step !== null && first <= step && step <= last);

/** The first wanted name that is known, else the first known. @type {(known: string[], ...wanted: (string | undefined)[]) => string} */
export const preferred = (known, ...wanted) => wanted.find((name) => known.includes(name ?? "")) ?? known[0] ?? "";

/** The nearest number from `low` to `high`. @type {(value: number, low: number, high: number) => number} */
export const clamp = (value, low, high) => Math.min(high, Math.max(low, value));

/** The smallest and the largest of numbers, without NaN. @type {(numbers: Iterable<number>) => [number, number]} */
export function extremes(numbers) {
  let [low, high] = [Infinity, -Infinity];
  for (const number of numbers) {
    if (number < low) low = number;
    if (number > high) high = number;
  }
  return [low, high];
}

/** The next of 1, 2, 5, 10, 20, ... on one side of a positive number. @type {(value: number, up: boolean) => number} */
export function rounded(value, up) {
  const power = 10 ** Math.floor(Math.log10(value));
  const steps = [1, 2, 5, 10].map((n) => n * power);
  return (up ? steps.find((step) => step >= value * 0.999999) : steps.filter((step) => step <= value * 1.000001).at(-1)) ?? value;
}

/** Seconds before now as a duration of one unit. @param {number} seconds @param {string} language */
export function ago(seconds, language) {
  const units = /** @type {const} */ ([["day", 86400], ["hour", 3600], ["minute", 60], ["second", 1]]);
  const [unit, size] = units.find(([, length]) => seconds >= length) ?? units[3];
  const words = new Intl.RelativeTimeFormat(language, { numeric: "auto", style: "short" });
  return words.format(-Math.floor(Math.max(0, seconds) / size), unit);
}

/** Ranks of spans such as `0-3,8`, at most `most` of them. @type {(spans: string, most?: number) => number[]} */
export function ranksOf(spans, most = 4096) {
  const found = [];
  for (const [, first, last = first] of spans.matchAll(/(?<=^|,)\s*(\d+)(?:\s*[-–]\s*(\d+))?\s*(?=,|$)/g)) {
    for (let rank = Number(first); rank <= Number(last) && found.length < most; rank++) found.push(rank);
  }
  return found;
}

/** @param {any} run */
export const stepsOf = ({ first_step: first, last_step: last }) => ((last ?? -1) < 0 ? "" : spanText([first ?? 0, last]));

/** @param {number | null | undefined} cost share of a step */
export const costText = (cost) => (cost === null || cost === undefined ? "" : `${text(cost * 100, 2)} %`);
