// Texts of the page in the reader's language: messages.en.json and messages.zh.json, with the same names.
import { json } from "./api.js";
import { WRITTEN } from "./static.js";

export const LANGUAGES = /** @type {const} */ (["en", "zh"]);

/** @type {Record<string, string>} */
let table = {};
let language = "en";

/** The language of a page: that of its address, else that in which its file was written, else the browser's, else English.
 * @param {string} wanted
 * @returns {"en" | "zh"} */
export function chosen(wanted) {
  const own = wanted || WRITTEN || navigator.language || "";
  return own.toLowerCase().startsWith("zh") ? "zh" : "en";
}

/** @param {"en" | "zh"} wanted */
export async function load(wanted) {
  const [english, own] = await Promise.all(["en", wanted].map((name) => json(`page/messages.${name}.json`)));
  table = { ...english, ...own };
  language = wanted;
  document.documentElement.lang = wanted === "zh" ? "zh-CN" : "en";
}

export const spoken = () => language;

/** A text with its places filled; a name without a text stands for itself.
 * @type {(name: string, values?: Record<string, string | number>) => string} */
export function t(name, values = {}) {
  return (table[name] ?? name).replace(/\{(\w+)\}/g, (whole, place) => String(values[place] ?? whole));
}
