// Elements and numbers as text. Names from data become text nodes alone, never markup.

/**
 * <tag ...properties>children</tag>; strings become text; null is left out.
 * @template {keyof HTMLElementTagNameMap} K
 * @param {K} tag
 * @param {Record<string, any>} [properties] properties of the element; `data`, `aria` and `on` are maps of their own
 * @param {...(Node | string | null)} children
 * @returns {HTMLElementTagNameMap[K]}
 */
export function element(tag, properties = {}, ...children) {
  const { data = {}, aria = {}, on = {}, ...own } = properties;
  const made = Object.assign(document.createElement(tag), own);
  for (const [name, value] of Object.entries(data)) made.dataset[name] = String(value);
  for (const [name, value] of Object.entries(aria)) made.setAttribute(name === "role" ? name : `aria-${name}`, String(value));
  for (const [name, listen] of Object.entries(on)) made.addEventListener(name, listen);
  made.append(...children.filter((child) => child !== null));
  return made;
}

/**
 * A button with a text.
 * @type {(text: string, act: () => void, properties?: Record<string, any>) => HTMLButtonElement}
 */
export const button = (text, act, properties = {}) =>
  element("button", { type: "button", textContent: text, on: { click: act }, ...properties });

/**
 * A labelled select.
 * @param {string} label
 * @param {string} id
 * @param {(value: string) => void} act
 */
export function choice(label, id, act) {
  const select = element("select", { id, on: { change: () => act(select.value) } });
  return { select, label: element("label", {}, element("span", { textContent: label }), select) };
}

/**
 * Options of a select, made again only if they differ.
 * @type {(select: HTMLSelectElement, options: [value: string, text: string][], value: string) => void}
 */
export function fill(select, options, value) {
  const key = JSON.stringify(options);
  if (select.dataset.options !== key) {
    select.dataset.options = key;
    select.replaceChildren(...options.map(([own, text]) => element("option", { value: own, textContent: text })));
  }
  select.value = value;
}

/**
 * A list of facts: pairs of a name and a value, without those whose value is null or empty.
 * @param {[name: string, value: Node | string | number | null | undefined, id?: string][]} facts
 */
export function factList(facts) {
  const list = element("dl", { className: "facts" });
  for (const [name, value, id] of facts) {
    if (value === null || value === undefined || value === "") continue;
    const place = element("dd", id ? { id } : {});
    place.append(typeof value === "number" ? String(value) : value);
    list.append(element("div", {}, element("dt", { textContent: name }), place));
  }
  return list;
}

/**
 * The end of a name says more than its beginning.
 * @param {string} name
 * @param {number} most characters
 */
export const short = (name, most) => (name.length > most ? `…${name.slice(1 - most)}` : name);

/**
 * A number of the interface: what is not finite comes as text.
 * @type {(value: number | string | null | undefined) => number | null}
 */
export const parsed = (value) => (value === null || value === undefined ? null : Number(String(value).replace(/^(-?)inf$/, "$1Infinity")));

/**
 * A number as text; NaN and Inf by name.
 * @type {(value: number | string | null | undefined, digits?: number) => string}
 */
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

/**
 * A number on an axis: with the digits that tell it from others at this distance.
 * @type {(value: number, distance: number) => string}
 */
export function axisText(value, distance) {
  const digits = value && distance > 0 ? Math.floor(Math.log10(Math.abs(value))) - Math.floor(Math.log10(distance)) + 1 : 3;
  return text(value, Math.min(12, Math.max(3, digits)));
}

/**
 * All digits of a number.
 * @param {number | string | null | undefined} value
 */
export function exact(value) {
  const number = parsed(value);
  return number !== null && Number.isFinite(number) ? String(number) : text(number);
}

/** @param {number[]} span */
export const spanText = ([first, last]) => (first === last ? String(first) : `${first}–${last}`);

/**
 * The column that has a step, -1 if there is none.
 * @param {number[][]} steps first and last of each column
 * @param {number | null} step
 */
export const columnOf = (steps, step) => steps.findIndex(([first, last]) => step !== null && first <= step && step <= last);

/**
 * The first of some names that is known, else the first known one; empty if there is none.
 * @type {(known: string[], ...wanted: (string | undefined)[]) => string}
 */
export const preferred = (known, ...wanted) => wanted.find((name) => known.includes(name ?? "")) ?? known[0] ?? "";

/**
 * The nearest number from `low` to `high`.
 * @type {(value: number, low: number, high: number) => number}
 */
export const clamp = (value, low, high) => Math.min(high, Math.max(low, value));

/**
 * The next of 1, 2, 5, 10, 20, ... on one side of a positive number.
 * @type {(value: number, up: boolean) => number}
 */
export function rounded(value, up) {
  const power = 10 ** Math.floor(Math.log10(value));
  const steps = [1, 2, 5, 10].map((n) => n * power);
  return (up ? steps.find((step) => step >= value * 0.999999) : steps.filter((step) => step <= value * 1.000001).at(-1)) ?? value;
}

/**
 * Seconds as a duration of one unit, by the browser's own words for the language.
 * @param {number} seconds before now
 * @param {string} language
 */
export function ago(seconds, language) {
  const units = /** @type {[Intl.RelativeTimeFormatUnit, number][]} */ ([["day", 86400], ["hour", 3600], ["minute", 60], ["second", 1]]);
  const [unit, size] = units.find(([, length]) => seconds >= length) ?? ["second", 1];
  return new Intl.RelativeTimeFormat(language, { numeric: "auto", style: "short" }).format(-Math.floor(Math.max(0, seconds) / size), unit);
}

/**
 * Ranks of spans such as `0-3,8`, at most `most` of them.
 * @type {(spans: string, most?: number) => number[]}
 */
export function ranksOf(spans, most = 4096) {
  const found = [];
  for (const part of spans.split(",")) {
    const match = /^\s*(\d+)(?:\s*[-–]\s*(\d+))?\s*$/.exec(part);
    if (!match) continue;
    for (let rank = Number(match[1]); rank <= Number(match[2] ?? match[1]) && found.length < most; rank++) found.push(rank);
  }
  return found;
}

/** @param {any} run */
export const stepsOf = (run) => (run.last_step === null || run.last_step === undefined || run.last_step < 0 ? "" : spanText([run.first_step ?? 0, run.last_step]));

/** @param {number | null | undefined} cost share of a step */
export const costText = (cost) => (cost === null || cost === undefined ? "" : `${text(cost * 100, 2)} %`);
