// Legend of a heatmap: the colours that it has.
import { INFINITE, MISSING, NEGATIVE, NOT_A_NUMBER, ZERO } from "./cells.js";
import { element, text } from "./dom.js";
import { between, scale } from "./palette.js";
import { t } from "./words.js";

/**
 * @param {import("./cells.js").Cells} cells
 * @param {boolean} findings whether there are marks of findings
 */
export function legendOf(cells, findings) {
  const own = scale();
  const ramp = (/** @type {string[]} */ colours, /** @type {boolean} */ reversed) => {
    const strip = element("canvas", { width: 90, height: 10 });
    const context = /** @type {CanvasRenderingContext2D} */ (strip.getContext("2d"));
    for (let n = 0; n < 90; n++) {
      context.fillStyle = between(colours, (reversed ? 89 - n : n) / 89);
      context.fillRect(n, 0, 1, 10);
    }
    return strip;
  };
  const end = (/** @type {number} */ power, sign = "") => `${sign}${cells.relative ? "×" : ""}${text(10 ** power, 2)}`;
  const parts = [];
  if (cells.kinds.has(NEGATIVE)) parts.push(end(cells.relative ? cells.low : cells.high, cells.relative ? "" : "−"), ramp(own.negative, true));
  if (!cells.relative) parts.push(end(cells.low));
  parts.push(ramp(own.positive, false), end(cells.high));
  const swatch = (/** @type {string} */ name, /** @type {number} */ kind) =>
    cells.kinds.has(kind) ? element("span", { className: `swatch ${name}`, textContent: t(`legend.${name}`) }) : null;
  return [element("span", { className: "ramp" }, ...parts), swatch("nan", NOT_A_NUMBER), swatch("inf", INFINITE), swatch("zero", ZERO),
    swatch("missing", MISSING), findings ? element("span", { className: "swatch finding", textContent: t("legend.finding") }) : null]
    .filter((part) => part !== null);
}
