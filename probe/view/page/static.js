// Answers of a page that was written into a file: those that stand in it, and those made of its packed cells.

import { chosen, stacked } from "./bands.js";
import { unpacked } from "./binary.js";
import { columnOf, ranksOf, spanText } from "./dom.js";

/** @typedef {import("./binary.js").Binary} Binary */

const [UNPACKED, MOST_RANKS] = [64, 64]; // packed parts that are kept unpacked; curves, unless ranks are asked for
const place = document.getElementById("answers");
/** Whether the page has its answers inside. */
export const STATIC = place !== null;
/** @type {Record<string, any>} */
const answers = place ? await inflated(place.textContent ?? "").json() : {};
/** Whether the file is about a comparison of two runs. */
export const COMPARISON = "/api/compare?run=0&against=1" in answers;
/** Language of the command that wrote the file; empty for the browser's. */
export const WRITTEN = answers["/api/language"] ?? "";
/** @type {{ about: string, cells: Record<string, string> } | null} */
const packed = JSON.parse(document.getElementById("cells")?.textContent ?? "null");
/** @type {any} steps, directories, files and names of rows */
let about = null;
/** @type {any} the answer about the run */
const run = answers["/api/runs/0"];
/** @type {Map<string, any>} */
const kept = new Map();

/** The arrays of a packed part by its name; null if there is none. @type {(name: string) => Promise<any>} */
async function part(name) {
  const own = packed?.cells[name];
  if (!own) return null;
  if (!kept.has(name)) {
    if (kept.size > UNPACKED) kept.delete(kept.keys().next().value ?? "");
    kept.set(name, unpacked(await inflated(own).arrayBuffer()).arrays);
  }
  return kept.get(name);
}

/**
 * Packed cells as the server answers them; null if the file has none. Cells that do not name directories have ranks as lines.
 * @type {(name: string, lines: ArrayLike<any>, steps: number[][]) => Promise<any>}
 */
async function cells(name, lines, steps) {
  const arrays = await part(name);
  if (!arrays) return null;
  const { value, directory, nan, step } = arrays;
  if (!arrays.rank) {
    const rankAt = (/** @type {number} */ i) => (directory ? about.directories[directory[i]][1] : lines[Math.floor(i / steps.length)]);
    const size = (/** @type {number} */ number) => (Number.isFinite(number) ? Math.abs(number) : NaN);
    arrays.minimum = arrays.maximum = value;
    arrays.least ??= value.map(size);
    arrays.nan ??= new Uint32Array(value.length);
    arrays.inf ??= Uint32Array.from(value, (number) => Number(Math.abs(number) === Infinity));
    arrays.rank = Int32Array.from(value, (number, i) => (Number.isNaN(number) && !nan?.[i] ? -1 : rankAt(i)));
    arrays.step = Int32Array.from(value, (_, i) => steps[i % steps.length][0] + (step?.[i] ?? 0));
  }
  return { header: { lines, steps }, arrays };
}

/** @typedef {{ n: number, signal: any, op: number, row: number }} Named numbers of a signal, its op and its row */

/** @type {(query: URLSearchParams) => Named} */
function named(query) {
  const n = run.signals.findIndex((/** @type {any} */ { name }) => name === query.get("signal"));
  const signal = run.signals[n] ?? { ops: [], rows: [] };
  return { n, signal, op: signal.ops.indexOf(query.get("op")), row: signal.rows.indexOf(query.get("row")) };
}

/** Cells of all ranks together, a line a row. */
const rowCells = (/** @type {Named} */ { n, signal, op }) => cells(`rows/${n}/${op}`, signal.rows, about.steps);

/** Cells of a row, a line for each rank that may have it. @param {Named} own */
async function rankCells({ n, op, row }) {
  const own = about.ranks?.signals[n];
  if (!own || row < 0) return null;
  const { [`lines/${own.lines[own.rowOf[row]]}`]: lines } = await part("ranks");
  return cells(`ranks/${n}/${op}/${own.rowOf[row]}`, lines, about.ranks.steps);
}

/** The rank that names the line of a rank, the first of those that it stands for.
 * @type {(ranks: Int32Array, rank: number) => number | undefined} */
const leader = (ranks, rank) => ranks[Math.floor(ranks.indexOf(rank) / about.ranks.ranksALine) * about.ranks.ranksALine];

/** Rows of one rank. @type {(own: Named, rank: number) => Promise<Binary | null>} */
async function cellsOfRank(own, rank) {
  const line = leader((await part("ranks")).rank, rank);
  const rows = await Promise.all(own.signal.rows.map((/** @type {string} */ _, /** @type {number} */ row) => rankCells({ ...own, row })));
  if (!rows[0]) return null;
  const { answer } = stacked(rows.map((cells) => ({ title: "", answer: chosen(cells, [cells.header.lines.indexOf(line)]) })));
  const { header, arrays } = answer;
  return { header: { ...header, lines: own.signal.rows }, arrays: { ...arrays, rank: arrays.rank.map((one) => (one < 0 ? one : rank)) } };
}

/** The lines of these names, and the columns within the steps of a query.
 * @type {(answer: any, names: Iterable<any>, query: URLSearchParams) => Binary} */
function cut(answer, names, query) {
  const [from, to] = [Number(query.get("from") ?? 0), Number(query.get("to") ?? Infinity)];
  const at = new Map(Array.from(answer.header.lines, (name, n) => [name, n]));
  const columns = answer.header.steps.flatMap((/** @type {number[]} */ [first, last], /** @type {number} */ n) => (last >= from && first <= to ? [n] : []));
  return chosen(answer, [...names].flatMap((name) => at.get(name) ?? []), columns);
}

/** @param {URLSearchParams} query */
async function heatmap(query) {
  const own = named(query);
  const byRank = query.get("axis") === "ranks";
  const only = about.ranks && !byRank ? query.get("rank") : null;
  const found = await (byRank ? rankCells(own) : only === null ? rowCells(own) : cellsOfRank(own, Number(only)));
  if (!found) return null;
  const order = Math.max(0, run.orders.indexOf(query.get("order")));
  const { header, arrays } = cut(found, byRank ? (await part("ranks"))[`order/${order}`] : own.signal.rows, query);
  const at = new Map(header.lines.map((/** @type {any} */ line, /** @type {number} */ n) => [line, n]));
  const findings = run.finding_list.flatMap((/** @type {any} */ { signal, row, rank, step }) => {
    const [line, column] = [at.get(byRank ? rank : row), columnOf(header.steps, step)];
    const shown = signal === own.signal.name && (!byRank || row === query.get("row")) && (only === null || rank === Number(only));
    return shown && line !== undefined && column >= 0 ? [[line, column]] : [];
  });
  return { header: { ...header, findings }, arrays };
}

/** An answer with curves. @param {Binary} answer @param {Record<string, any>} names names of the lines */
const curves = ({ header, arrays }, names) => ({ header: { ...names, spans: header.steps, steps: header.steps.map((/** @type {number[]} */ [first]) => first) }, arrays });

/** @param {URLSearchParams} query */
async function curve(query) {
  const own = named(query);
  const found = await (about.ranks ? rankCells(own) : rowCells(own));
  if (!found || own.row < 0) return null;
  if (!about.ranks) return curves(cut(found, [query.get("row")], query), { ranks: [about.directories[0][1]] });
  const { rank: all } = await part("ranks");
  const lines = new Set(found.header.lines);
  const wanted = ranksOf(query.get("ranks") ?? "");
  const ranks = (wanted.length ? wanted : [...all.slice(0, MOST_RANKS)]).filter((rank) => lines.has(leader(all, rank)));
  return curves(cut(found, ranks.map((rank) => leader(all, rank)), query), { ranks });
}

/** The row of a cell: numbers of the ops whose extreme it is, as they stand in the file.
 * @param {URLSearchParams} query */
async function located(query) {
  const own = named(query);
  const { n, signal, row } = own;
  const [step, rank] = [Number(query.get("step")), Number(query.get("rank"))];
  const column = columnOf(about.steps, step);
  if (row < 0 || column < 0) return null;
  const i = row * about.steps.length + column;
  /** @type {Record<string, number>} */
  const values = {};
  /** @type {any} */
  let place = null;
  const micro = signal.micro_stepped ? query.get("micro_step") : null;
  for (const op of new Set([own.op, ...signal.ops.keys()])) {
    const { arrays } = (await rowCells({ ...own, op })) ?? {};
    if (arrays?.rank[i] !== rank || arrays.step[i] !== step) continue;
    const here = { micro: arrays.micro?.[i] ?? 0, member: arrays.member?.[i] ?? 0, directory: arrays.directory[i] };
    if ((micro !== null && Number(micro) !== here.micro) || (place && (place.micro !== here.micro || place.member !== here.member))) continue;
    place ??= here;
    values[signal.ops[op]] = arrays.maximum[i];
  }
  const [before, after] = [column - 1, column + 1].map((other) => about.steps[other]?.[0] ?? null);
  return { ...(place ? fileOf(about.signals[n], row, place, step) : { file: "", ...(await rounded(own, rank, step, values)) }), values,
    signal: signal.name, row: signal.rows[row], rank, step, previous_step: before, next_step: after,
    micro_step: place && signal.micro_stepped ? place.micro : null, attributes: await attributes(rank) };
}

/** Where no op has its extreme, the numbers of the rank, to the digits that the file has of them.
 * @type {(own: Named, rank: number, step: number, values: Record<string, number>) => Promise<{ rounded?: number }>} */
async function rounded(own, rank, step, values) {
  if (!about.ranks) return {};
  const [line, column] = [leader((await part("ranks")).rank, rank), columnOf(about.ranks.steps, step)];
  for (const op of own.signal.ops.keys()) {
    const found = await rankCells({ ...own, op });
    const i = found ? found.header.lines.indexOf(line) * about.ranks.steps.length + column : -1;
    if (i >= 0 && column >= 0 && found?.arrays.rank[i] >= 0) values[own.signal.ops[op]] = found?.arrays.maximum[i];
  }
  return { rounded: about.ranks.digits };
}

/** The file that has a row of a step, which is the last one that begins no later, and what to search in it.
 * @type {(signal: any, row: number, own: { micro: number, member: number, directory: number }, step: number) => any} */
function fileOf(signal, row, { micro, member, directory }, step) {
  const files = about.files[signal.files[directory]] ?? [];
  const [file, , isDatabase] = files.filter((/** @type {any[]} */ [, first]) => first <= step).at(-1) ?? [signal.names, 0, false];
  const [stage, name] = signal.members[row][member];
  const values = /** @type {Record<string, string | number>} */ (isDatabase ? { name: name.replaceAll("'", "''"), step } : { stage, name, step, micro });
  const search = (isDatabase ? signal.query : signal.line).replace(/\{(\w+)\}/g, (/** @type {string} */ whole, /** @type {string} */ key) => values[key] ?? whole);
  const [first, others] = about.digits;
  return { file: `${about.directories[directory][0]}/${file}`, name, search, rounded: first && spanText([others, first]) };
}

/** @param {number} rank */
async function attributes(rank) {
  if (!about.ranks) return {};
  const table = await part("ranks");
  const at = table.rank.indexOf(rank);
  const attribute = (/** @type {any} */ { title, names }, /** @type {number} */ n) => [title, names[table[`attribute/${n}`][at]]];
  return at < 0 ? {} : Object.fromEntries(about.ranks.attributes.map(attribute));
}

/** @param {URLSearchParams} query */
async function numbers(query) {
  const arrays = await part("numbers");
  if (!arrays) return null;
  const answer = cut({ header: { lines: run.numbers, steps: about.numbers }, arrays }, (query.get("names") ?? "").split(","), query);
  return curves(answer, { names: answer.header.lines });
}

/** @param {URLSearchParams} query */
function findings(query) {
  const found = run.finding_list.filter((/** @type {any} */ one) => !query.get("rule") || one.rule === query.get("rule"));
  return { total: found.length, findings: found.slice(0, Number(query.get("limit") ?? 200)) };
}

const MADE = /** @type {Record<string, ((query: URLSearchParams) => any) | undefined>} */ ({ heatmap, curve, row: located, numbers, findings });

/** The answer to an address; an error with what to do if the file has none. @param {string} url */
export async function embedded(url) {
  if (url in answers && answers[url] !== null) return answers[url];
  if (packed && !about) about = await inflated(packed.about).json();
  const [path, search] = url.split("?");
  const make = MADE[/^\/api\/runs\/0\/(\w+)$/.exec(path)?.[1] ?? ""];
  const answer = make && packed ? await make(new URLSearchParams(search)) : null;
  if (answer === null) throw new Error(absent());
  return answer;
}

/** What to do for an answer that the file has not, in the language of the page. */
export function absent() {
  const texts = answers[`page/messages.${document.documentElement.lang === "zh-CN" ? "zh" : "en"}.json`];
  return texts["static.absent"].replace("{command}", answers["/api/command"]);
}
