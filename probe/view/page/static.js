// Answers of a page that was written into a file: those that stand in it, and those made of its packed cells.

import { unpacked } from "./binary.js";

/** @typedef {import("./binary.js").Binary} Binary */

const UNPACKED = 64; // packed parts that are kept unpacked
const place = document.getElementById("answers");
/** Whether the page has its answers inside. */
export const STATIC = place !== null;
/** @type {Record<string, any>} */
const answers = place ? await parsed(place.textContent ?? "") : {};
/** Whether the file is about a comparison of two runs. */
export const COMPARISON = "/api/compare?run=0&against=1" in answers;
/** Language of the command that wrote the file; empty for the browser's. */
export const WRITTEN = answers["/api/language"] ?? "";
/** @type {{ about: string, cells: Record<string, string> } | null} */
const packed = JSON.parse(document.getElementById("cells")?.textContent ?? "null");
/** @type {any} names of rows, columns, directories and files */
let about = null;
/** @type {Map<string, any>} */
const kept = new Map();

/** @param {string} base64 compressed JSON */
async function parsed(base64) {
  return JSON.parse(new TextDecoder().decode(await inflated(base64)));
}

/** @param {string} base64 zlib */
async function inflated(base64) {
  const bytes = Uint8Array.from(atob(base64), (character) => character.charCodeAt(0));
  const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("deflate"));
  return new Uint8Array(await new Response(stream).arrayBuffer());
}

/**
 * The arrays of a packed part by its name; null if there is none.
 * @param {string} name
 */
async function part(name) {
  const own = packed?.cells[name];
  if (!own) return null;
  if (!kept.has(name)) {
    if (kept.size > UNPACKED) kept.delete(kept.keys().next().value ?? "");
    kept.set(name, unpacked(/** @type {ArrayBuffer} */ ((await inflated(own)).buffer)).arrays);
  }
  return kept.get(name);
}

/**
 * @param {any} source
 * @param {number} i
 */
const isMissing = (source, i) => Number.isNaN(source.value[i]) && !source.nan?.[i];

/**
 * First and last step of each column.
 * @param {{ starts: number[], width: number }} columns
 */
const spansOf = ({ starts, width }) => starts.map((first) => [first, Math.min(first + Math.max(width, 1) - 1, Math.max(about.last, first))]);

/**
 * Columns that lie within the steps of a query.
 * @param {number[][]} spans
 * @param {URLSearchParams} query
 */
function within(spans, query) {
  const [from, to] = [Number(query.get("from") ?? 0), Number(query.get("to") ?? Infinity)];
  return spans.flatMap(([first, last], n) => (last >= from && first <= to ? [n] : []));
}

/**
 * An answer with cells; `pick` returns the index in `source` of a line and column, -1 for none.
 * @param {any} header
 * @param {number} lines
 * @param {number[]} columns
 * @param {number[][]} spans
 * @param {(line: number) => { source: any, at: number, rank: (i: number) => number } | null} pick
 * @returns {Binary}
 */
function cellsAnswer(header, lines, columns, spans, pick) {
  const size = lines * columns.length;
  const real = () => new Float64Array(size).fill(NaN);
  /** @type {any} */
  const arrays = { minimum: real(), maximum: real(), least: real(), nan: new Uint32Array(size), inf: new Uint32Array(size), rank: new Int32Array(size).fill(-1), step: new Int32Array(size), micro: new Int32Array(size) };
  for (let line = 0; line < lines; line++) {
    const own = pick(line);
    if (!own) continue;
    columns.forEach((column, n) => put(arrays, line * columns.length + n, own, own.at + column, spans[column][0]));
  }
  const steps = columns.map((n) => spans[n]);
  return { header: { ...header, steps, spans: steps, exact: steps.every(([a, b]) => a === b) }, arrays };
}

/**
 * @param {any} arrays
 * @param {number} to
 * @param {{ source: any, rank: (i: number) => number }} own
 * @param {number} i
 * @param {number} first step of the column
 */
function put(arrays, to, { source, rank }, i, first) {
  if (isMissing(source, i)) return;
  const value = source.value[i];
  if (!Number.isNaN(value)) arrays.minimum[to] = arrays.maximum[to] = value;
  arrays.least[to] = source.least ? source.least[i] : Number.isFinite(value) ? Math.abs(value) : NaN;
  arrays.nan[to] = source.nan?.[i] ?? 0;
  arrays.inf[to] = source.inf ? source.inf[i] : Number(Math.abs(value) === Infinity);
  arrays.rank[to] = rank(i);
  arrays.step[to] = first + (source.step ? source.step[i] : 0);
  arrays.micro[to] = source.micro ? source.micro[i] : 0;
}

/** @param {URLSearchParams} query */
function signalOf(query) {
  const n = about.signals.findIndex((/** @type {any} */ one) => one.signal === query.get("signal"));
  const signal = about.signals[n];
  return { n, signal, op: signal?.ops.indexOf(query.get("op")) ?? -1, row: signal?.labels.indexOf(query.get("row")) ?? -1 };
}

/**
 * Cells of the ranks for a row of the page, with the place of each line among them; null if the file has none.
 * @param {number} n signal
 * @param {number} op
 * @param {number} row
 */
async function ranksOf(n, op, row) {
  const { ranks } = about;
  const own = ranks?.signals[n];
  if (!own || row < 0 || !own.ops.includes(op)) return null;
  const { [`places/${own.places[own.rowOf[row]]}`]: places } = await part("ranks");
  return { source: await part(`ranks/${n}/${op}/${own.rowOf[row]}`), places };
}

/** @param {URLSearchParams} query */
async function heatmap(query) {
  const { n, signal, op } = signalOf(query);
  if (query.get("axis") === "ranks") return ranksHeatmap(query);
  const only = query.get("rank");
  if (only !== null && about.ranks) return rankHeatmap(query, n, signal, op, Number(only));
  const spans = spansOf(about.columns);
  const source = await part(`map/${n}/${op}`);
  if (!source) return null;
  const columns = within(spans, query);
  const header = { lines: signal.labels, findings: marks(query, signal.labels, columns.map((k) => spans[k]), (one) => one.row) };
  return cellsAnswer(header, signal.labels.length, columns, spans, (line) => ({ source, at: line * spans.length, rank: (i) => about.directories[source.directory[i]][1] }));
}

/**
 * Cells of a row, a line for each rank that has it.
 * @param {URLSearchParams} query
 * @param {number[][]} lines lines of the ranks, and the ranks
 * @param {(ranks: number[], spans: number[][]) => any} header
 */
async function ofRanks(query, lines, header) {
  const { n, op, row } = signalOf(query);
  const found = await ranksOf(n, op, row);
  if (!found) return null;
  const spans = spansOf(about.ranks.columns);
  const columns = within(spans, query);
  const own = lines.filter(([line]) => found.places[line] >= 0);
  return cellsAnswer(header(own.map(([, rank]) => rank), columns.map((k) => spans[k])), own.length, columns, spans,
    (k) => ({ source: found.source, at: found.places[own[k][0]] * spans.length, rank: () => own[k][1] }));
}

/**
 * Ranks that have a row, in the order that is asked for.
 * @param {URLSearchParams} query
 */
async function ranksHeatmap(query) {
  if (!about.ranks) return null;
  const { rank, [`order/${Math.max(0, about.ranks.orders.indexOf(query.get("order") ?? ""))}`]: order } = await part("ranks");
  const lines = Array.from(order, (line) => [line, rank[line * about.ranks.ranksALine]]);
  return ofRanks(query, lines, (ranks, spans) => ({ lines: ranks, findings: marks(query, ranks, spans, (one) => (one.row === query.get("row") ? one.rank : null)) }));
}

/**
 * Rows of one rank.
 * @param {URLSearchParams} query
 * @param {number} n
 * @param {any} signal
 * @param {number} op
 * @param {number} rank
 */
async function rankHeatmap(query, n, signal, op, rank) {
  const spans = spansOf(about.ranks.columns);
  const line = await lineOf(rank);
  /** @type {any[]} */
  const rows = [];
  for (let row = 0; row < signal.labels.length; row++) rows.push(await ranksOf(n, op, row));
  if (!rows[0]) return null;
  const columns = within(spans, query);
  const header = { lines: signal.labels, findings: marks(query, signal.labels, columns.map((k) => spans[k]), (one) => (one.rank === rank ? one.row : null)) };
  return cellsAnswer(header, rows.length, columns, spans, (row) => {
    const { source, places } = rows[row];
    return places[line] < 0 ? null : { source, at: places[line] * spans.length, rank: () => rank };
  });
}

/** @param {number} rank */
async function lineOf(rank) {
  const at = (await part("ranks")).rank.indexOf(rank);
  return at < 0 ? -1 : Math.floor(at / about.ranks.ranksALine);
}

/**
 * Places of findings among cells: line and column.
 * @param {URLSearchParams} query
 * @param {any[]} lines
 * @param {number[][]} spans
 * @param {(finding: any) => any} line
 */
function marks(query, lines, spans, line) {
  const at = new Map(lines.map((each, n) => [each, n]));
  return answers["/api/runs/0"].finding_list.filter((/** @type {any} */ one) => one.signal === query.get("signal")).flatMap((/** @type {any} */ one) => {
    const column = spans.findIndex(([first, last]) => first <= one.step && one.step <= last);
    const own = at.get(line(one));
    return own === undefined || column < 0 ? [] : [[own, column]];
  });
}

/** @param {URLSearchParams} query */
async function curve(query) {
  const { n, op, row } = signalOf(query);
  if (!about.ranks) {
    const spans = spansOf(about.columns);
    const source = await part(`map/${n}/${op}`);
    const rank = about.directories[0][1];
    return source && row >= 0 ? cellsAnswer({ ranks: [rank] }, 1, within(spans, query), spans, () => ({ source, at: row * spans.length, rank: () => rank })) : null;
  }
  const wanted = (query.get("ranks") ?? "").split(",").filter(Boolean).flatMap((text) => {
    const [first, last] = text.split("-").map(Number);
    return Array.from({ length: Math.min(64, (last ?? first) - first + 1) }, (_, k) => first + k);
  });
  const { rank: numbers } = await part("ranks");
  const ranks = (wanted.length ? wanted : [...numbers.slice(0, 64)]).filter((rank) => numbers.includes(rank));
  const lines = await Promise.all(ranks.map(async (rank) => [await lineOf(rank), rank]));
  return ofRanks(query, lines, (own) => ({ ranks: own }));
}

/**
 * The row of a cell: numbers of the ops whose extreme it is, as they stand in the file.
 * @param {URLSearchParams} query
 */
async function located(query) {
  const { n, signal, op: wanted, row } = signalOf(query);
  const [step, rank] = [Number(query.get("step")), Number(query.get("rank"))];
  const spans = spansOf(about.columns);
  const column = spans.findIndex(([first, last]) => first <= step && step <= last);
  if (row < 0 || column < 0) return null;
  const i = row * spans.length + column;
  /** @type {Record<string, number>} */
  const values = {};
  /** @type {any} */
  let own = null;
  const micro = query.get("micro_step");
  const ops = /** @type {number[]} */ (signal.ops.map((/** @type {string} */ _, /** @type {number} */ op) => op));
  for (const op of ops.sort((a, b) => Number(b === wanted) - Number(a === wanted))) {
    const map = await part(`map/${n}/${op}`);
    const here = map && !isMissing(map, i) && spans[column][0] + map.step[i] === step && about.directories[map.directory[i]][1] === rank;
    if (!here || (micro !== null && signal.microStepped && Number(micro) !== map.micro[i]) || (own && (own.micro !== map.micro[i] || own.member !== map.member[i]))) continue;
    own ??= { micro: map.micro[i], member: map.member[i], directory: map.directory[i] };
    values[signal.ops[op]] = map.value[i];
  }
  return { ...(await neighbour(query, n, signal, row, values)), ...(own ? fileOf(signal, row, own, step) : { file: "" }), values,
    signal: signal.signal, row: signal.labels[row], rank, step, previous_step: spans[column - 1]?.[0] ?? null, next_step: spans[column + 1]?.[0] ?? null,
    micro_step: own && signal.microStepped ? own.micro : null, attributes: await attributes(rank) };
}

/**
 * Where no op has its extreme, the numbers of the rank, to the digits that the file has of them.
 * @param {URLSearchParams} query
 * @param {number} n
 * @param {any} signal
 * @param {number} row
 * @param {Record<string, number>} values
 */
async function neighbour(query, n, signal, row, values) {
  if (Object.keys(values).length || !about.ranks) return {};
  const [line, step] = [await lineOf(Number(query.get("rank"))), Number(query.get("step"))];
  const spans = spansOf(about.ranks.columns);
  const column = spans.findIndex(([first, last]) => first <= step && step <= last);
  for (let op = 0; op < signal.ops.length; op++) {
    const found = await ranksOf(n, op, row);
    const i = found && line >= 0 ? found.places[line] * spans.length + column : -1;
    if (found && i >= 0 && column >= 0 && !isMissing(found.source, i)) values[signal.ops[op]] = found.source.value[i];
  }
  return { rounded: about.ranks.digits };
}

/**
 * The file that has a row of a step, which is the last one that begins no later, and what to search in it.
 * @param {any} signal
 * @param {number} row
 * @param {{ micro: number, member: number, directory: number }} own
 * @param {number} step
 */
function fileOf(signal, row, { micro, member, directory }, step) {
  const files = about.files[signal.files[directory]] ?? [];
  const [file, , isDatabase] = files.filter((/** @type {any[]} */ [, first]) => first <= step).at(-1) ?? [signal.names, 0, false];
  const [stage, name] = signal.members[row][member];
  const values = /** @type {Record<string, string | number>} */ (isDatabase ? { name: name.replaceAll("'", "''"), step } : { stage, name, step, micro });
  const search = (isDatabase ? signal.query : signal.line).replace(/\{(\w+)\}/g, (/** @type {string} */ whole, /** @type {string} */ key) => values[key] ?? whole);
  return { file: `${about.directories[directory][0]}/${file}`, name, search };
}

/** @param {number} rank */
async function attributes(rank) {
  if (!about.ranks) return {};
  const table = await part("ranks");
  const at = table.rank.indexOf(rank);
  const pairs = about.ranks.attributes.map((/** @type {any} */ { title, names }, /** @type {number} */ n) => [title, names[table[`attribute/${n}`][at]]]);
  return Object.fromEntries(pairs.filter((/** @type {any} */ _, /** @type {number} */ n) => at >= 0 && about.ranks.attributes[n].names.length > 1));
}

/** @param {URLSearchParams} query */
async function numbers(query) {
  const all = await part("numbers");
  if (!all) return null;
  const { names: known, spans } = about.numbers;
  const names = (query.get("names") ?? "").split(",").filter((name) => known.includes(name));
  const columns = within(spans, query);
  const steps = columns.map((k) => spans[k]);
  const at = names.flatMap((name) => columns.map((k) => known.indexOf(name) * spans.length + k));
  const arrays = Object.fromEntries(Object.entries(all).map(([kind, own]) => [kind, own.constructor.from(at, (/** @type {number} */ i) => own[i])]));
  return { header: { names, steps: steps.map(([first]) => first), spans: steps }, arrays };
}

/** @param {URLSearchParams} query */
function findings(query) {
  const found = answers["/api/runs/0"].finding_list.filter((/** @type {any} */ one) => !query.get("rule") || one.rule === query.get("rule"));
  return { total: found.length, findings: found.slice(0, Number(query.get("limit") ?? 200)) };
}

const MADE = /** @type {Record<string, ((query: URLSearchParams) => any) | undefined>} */ ({ heatmap, curve, row: located, numbers, findings });

/**
 * The answer to an address; an error with what to do if the file has none.
 * @param {string} url
 */
export async function embedded(url) {
  if (url in answers && answers[url] !== null) return answers[url];
  if (packed && !about) about = await parsed(packed.about);
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
