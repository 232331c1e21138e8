// Lines of a heatmap in bands: weights apart from biases, and signals under each other in the order of execution.

import { short } from "./dom.js";

const LINE = 18; // CSS pixels of a line, where there is room
/** CSS pixels of the title of a band. */
export const BAND = 17;

/** @typedef {import("./api.js").Binary} Binary */
/** @typedef {{ first: number, end: number, y: number, height: number, title: string }} Segment lines of a band on the screen */
/** @typedef {{ title: string, first: number, end: number }} Band first and end of its lines */

/** An array for cells without numbers, of the kind of another one.
 * @type {(name: string, own: any, size: number) => any} */
const without = (name, own, size) => new own.constructor(size).fill(name === "rank" ? -1 : own instanceof Float64Array ? NaN : 0);

/** An answer with other lines and columns: those at `order`, in this order (-1 is one without numbers), and `columns`.
 * @type {(answer: Binary, order: number[], columns?: number[]) => Binary} */
export function chosen({ header, arrays }, order, columns = [...header.steps.keys()]) {
  const width = header.steps.length;
  const whole = columns.length === width;
  const [line, column] = [order, columns].map((own) => new Map(own.map((from, to) => [from, to])));
  const findings = (header.findings ?? []).flatMap((/** @type {number[]} */ [a, b]) => (line.has(a) && column.has(b) ? [[line.get(a), column.get(b)]] : []));
  const moved = Object.entries(arrays).map(([name, own]) => {
    const made = without(name, own, order.length * columns.length);
    order.forEach((from, to) => {
      const line = own.subarray(Math.max(from, 0) * width, (from + 1) * width); // empty for -1
      made.set(whole ? line : columns.slice(0, line.length).map((n) => line[n]), to * columns.length);
    });
    return [name, made];
  });
  return { header: { ...header, lines: order.map((n) => header.lines[n]), steps: columns.map((n) => header.steps[n]), findings }, arrays: Object.fromEntries(moved) };
}

/** Weights first, then biases, if a signal has both.
 * @type {(answer: Binary, titles: [string, string]) => { answer: Binary, bands: Band[] }} */
export function weightsAndBiases(answer, titles) {
  const { lines } = answer.header;
  const every = /** @type {number[]} */ (lines.map((/** @type {any} */ _, /** @type {number} */ n) => n));
  const bias = (/** @type {number} */ n) => /(^|[._])bias$/i.test(String(lines[n]));
  const [weights, biases] = [every.filter((n) => !bias(n)), every.filter(bias)];
  if (!weights.length || !biases.length) return { answer, bands: [] };
  return { answer: chosen(answer, [...weights, ...biases]), bands: [{ title: titles[0], first: 0, end: weights.length }, { title: titles[1], first: weights.length, end: lines.length }] };
}

/** Several answers under each other, on the steps of all.
 * @type {(parts: { title: string, answer: Binary }[]) => { answer: Binary, bands: Band[] }} */
export function stacked(parts) {
  const steps = [...new Map(parts.flatMap(({ answer }) => answer.header.steps.map((/** @type {number[]} */ span) => [span[0], span]))).values()].sort((a, b) => a[0] - b[0]);
  const column = new Map(steps.map(([first], n) => [first, n]));
  const lines = parts.flatMap(({ answer }) => answer.header.lines);
  const common = Object.entries(parts[0].answer.arrays).filter(([name]) => parts.every(({ answer }) => name in answer.arrays));
  const empty = common.map(([name, own]) => [name, without(name, own, lines.length * steps.length)]);
  const arrays = /** @type {Binary["arrays"]} */ (Object.fromEntries(empty));
  /** @type {Band[]} */
  const bands = [];
  for (const { title, answer } of parts) {
    const first = bands.at(-1)?.end ?? 0;
    bands.push({ title, first, end: first + answer.header.lines.length });
    answer.header.lines.forEach((/** @type {any} */ _, /** @type {number} */ line) => answer.header.steps.forEach((/** @type {number[]} */ [step], /** @type {number} */ n) => {
      const [from, to] = [line * answer.header.steps.length + n, (first + line) * steps.length + Number(column.get(step))];
      for (const name of Object.keys(arrays)) arrays[name][to] = answer.arrays[name][from];
    }));
  }
  return { answer: { header: { lines, steps, findings: [] }, arrays }, bands };
}

/** Lines around the module of a row, at most `most`: of activations the outputs alone.
 * @type {(lines: string[], row: string, most: number) => number[]} */
export function around(lines, row, most) {
  const outputs = lines.some((name) => name.includes(".output"));
  const shown = lines.flatMap((name, n) => (!outputs || name.includes(".output") || name === row ? [n] : []));
  let at = shown.findIndex((n) => lines[n] === row);
  for (let part = row; at < 0 && part; part = part.slice(0, Math.max(0, part.lastIndexOf(".")))) {
    at = shown.findIndex((n) => lines[n] === part || lines[n].startsWith(`${part}.`) || lines[n].startsWith(`${part}:`));
  }
  const first = Math.max(0, Math.min(shown.length - most, Math.max(at, 0) - Math.floor(most / 2)));
  return shown.slice(first, first + most);
}

/** Bands of the lines that are shown, from `y` on under each other, of at most so many pixels.
 * @type {(bands: Band[], lines: [number, number], y: number, most: number) => Segment[]} */
export function segmentsOf(bands, [first, end], y, most) {
  const shown = (bands.length ? bands : [{ title: "", first, end }]).map((band) => ({ ...band, first: Math.max(first, band.first), end: Math.min(end, band.end) })).filter((band) => band.first < band.end);
  if (!shown.length) return [{ title: "", first, end: Math.max(end, first + 1), y, height: 72 }];
  const line = Math.min(LINE, most / (end - first));
  return shown.map(({ title, first: from, end: to }) => {
    const height = Math.max(shown.length > 1 ? LINE : 72, Math.round((to - from) * line));
    const segment = { title, first: from, end: to, y: y + (title ? BAND : 0), height };
    y = segment.y + height;
    return segment;
  });
}

/** The end of a name that has room.
 * @type {(context: CanvasRenderingContext2D, name: string, width: number) => string} */
export function fitted(context, name, width) {
  let most = name.length;
  while (most > 4 && context.measureText(short(name, most)).width > width) most -= 1;
  return short(name, most);
}
