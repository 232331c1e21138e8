// A curve without axes: above a heatmap, and as one of the size of a word.
import { element, extremes, parsed } from "./dom.js";
import { colour, scale } from "./palette.js";

const [WIDTH, HEIGHT, TOP, MARK] = [110, 26, 8, 4]; // pixels; marks of what is not finite lie above `TOP`

/**
 * Draw values, those that are not finite as marks at the upper edge; return the smallest and the largest finite one.
 * @type {(context: CanvasRenderingContext2D, points: [number, number][], across: (step: number) => number, height: number) => number[]}
 */
export function drawCurve(context, points, across, height) {
  const [low, high] = extremes(points.map(([, value]) => value).filter(Number.isFinite));
  Object.assign(context, { strokeStyle: colour("accent"), lineWidth: 1.5 });
  context.beginPath();
  let pen = false;
  const { nan, inf } = scale();
  for (const [step, value] of points) {
    const x = across(step);
    context.fillStyle = Number.isNaN(value) ? nan : inf;
    if (!Number.isFinite(value)) context.fillRect(x - MARK / 2, 1, MARK, TOP - 3);
    else context[pen ? "lineTo" : "moveTo"](x, TOP + (height - TOP - 1) * (high > low ? (high - value) / (high - low) : 0.5));
    pen = Number.isFinite(value);
  }
  context.stroke();
  return [low, high];
}

/** @param {[number, number | string][]} points steps and values @param {string} label */
export function sparkline(points, label) {
  if (points.length < 2) return null;
  const canvas = element("canvas", { className: "sparkline", width: WIDTH * 2, height: HEIGHT * 2, aria: { role: "img", label } });
  const context = /** @type {CanvasRenderingContext2D} */ (canvas.getContext("2d"));
  context.scale(2, 2);
  const [first, last] = [points[0][0], points[points.length - 1][0]];
  drawCurve(context, points.map(([step, value]) => [step, parsed(value) ?? NaN]), (step) => 2 + ((step - first) / Math.max(1, last - first)) * (WIDTH - 4), HEIGHT);
  return canvas;
}
