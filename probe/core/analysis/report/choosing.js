"use strict";
// The heatmap and the details of its chosen cell. `chosen` is the page's state: signal, op, row and column by index.
const about = {};
const chosen = { signal: 0, op: 0, row: 0, column: 0 };
const byId = (id) => document.getElementById(id);
const signalOf = () => about.signals[chosen.signal];
const mapOf = (signal, op) =>
  Cells.get(`map/${signal}/${op}`, about.signals[signal].labels.length * about.columns.starts.length);

// Runs one task after the other: numbers are unpacked while more is clicked, and the last click must win.
let turn = Promise.resolve();
function inTurn(act) {
  turn = turn.then(act, act);
  return turn;
}

function fill(select, texts, value) {
  select.replaceChildren(...texts.map((text, n) => Page.element("option", { value: n, textContent: text })));
  select.value = value;
}

function fact(name, value, id) {
  return [Page.element("dt", {}, name), Page.element("dd", { id }, ...(Array.isArray(value) ? value : [String(value)]))];
}

function columnText(columns, n) {
  const first = columns.starts[n];
  const last = Math.min(first + columns.width - 1, about.last);
  return columns.width > 1 && last > first ? `steps ${first} to ${last}` : `step ${first}`;
}

// The index of the column that a step lies in.
function columnOf(columns, step) {
  const after = columns.starts.findIndex((start) => start > step);
  return Math.max(0, (after < 0 ? columns.starts.length : after) - 1);
}

async function drawHeatmap() {
  const { labels, ops } = signalOf();
  const numbers = (await mapOf(chosen.signal, chosen.op))[byId("shown").value];
  const columns = about.columns.starts.length;
  const trace = { ...Drawing.heatmap(numbers, columns, Drawing.span(numbers)), x: Drawing.middles(about.columns) };
  const plot = byId("heatmap");
  const axis = { ...Drawing.labels(labels, 0, labels.length), range: [labels.length - 0.5, -0.5] };
  const height = Math.min(680, Math.max(280, labels.length * 15 + 70));
  await Page.plot("heatmap", [trace], Page.layout({
    height, yaxis: { ...axis, showgrid: false, zeroline: false },
    xaxis: { title: { text: "step" }, showgrid: false, zeroline: false }, shapes: marker(),
  }));
  plot.removeAllListeners("plotly_click");
  plot.removeAllListeners("plotly_hover");
  Drawing.followZoom(plot, labels);
  plot.on("plotly_click", (event) => inTurn(() => choose(...event.points[0].pointIndex)));
  plot.on("plotly_hover", (event) => {
    const [row, column] = event.points[0].pointIndex;
    const text = Cells.text(numbers, row * columns + column) || "nothing written";
    byId("under-pointer").textContent = `${labels[row]}, ${columnText(about.columns, column)}: ${ops[chosen.op]} ${text}`;
  });
}

// A frame around the chosen cell.
function marker() {
  const { starts, width } = about.columns;
  const middles = Drawing.middles(about.columns);
  const before = chosen.column ? middles[chosen.column] - middles[chosen.column - 1] : width || 1;
  const after = chosen.column + 1 < starts.length ? middles[chosen.column + 1] - middles[chosen.column] : before;
  const frame = {
    type: "rect", x0: middles[chosen.column] - before / 2, x1: middles[chosen.column] + after / 2,
    y0: chosen.row - 0.5, y1: chosen.row + 0.5,
  };
  return [["ground", 5], ["text", 2]].map(([colour, width]) => ({ ...frame, line: { color: Page.colour(colour), width } }));
}

async function choose(row, column) {
  Object.assign(chosen, { row, column });
  byId("row").value = row;
  byId("step").value = about.columns.starts[column];
  if (byId("heatmap").layout) await Plotly.relayout("heatmap", { shapes: marker() });
  await Promise.all([drawCell(), drawCurve(), drawRanks()]);
}

// The file that has a row of a step (the last one that begins no later), and whether it is a database.
function fileOf(signal, directory, step) {
  const files = about.files[signal.files[directory]] ?? [];
  const [name, , isDatabase] = files.filter(([, first]) => first <= step).at(-1) ?? [signal.names, 0, false];
  return [name, isDatabase];
}

function filled(template, values) {
  return template.replace(/\{(\w+)\}/g, (whole, place) => values[place] ?? whole);
}

async function drawCell() {
  const signal = signalOf();
  const map = await mapOf(chosen.signal, chosen.op);
  const i = chosen.row * about.columns.starts.length + chosen.column;
  const text = Cells.text(map.value, i);
  const lines = [...fact("row", signal.labels[chosen.row], "cell-row")];
  if (!text) {
    const none = `nothing was written of it (${columnText(about.columns, chosen.column)})`;
    return byId("cell").replaceChildren(...lines, ...fact(signal.ops[chosen.op], none, "cell-value"));
  }
  const step = about.columns.starts[chosen.column] + map.step[i];
  const [directory, rank] = about.directories[map.directory[i]];
  const [stage, name] = signal.members[chosen.row][map.member[i]];
  const micro = signal.microStepped ? map.micro[i] : null;
  lines.push(...fact(`${signal.ops[chosen.op]} of ${signal.signal}`, text, "cell-value"));
  if (name !== signal.labels[chosen.row]) lines.push(...fact("name", name, "cell-name"));
  lines.push(...fact("step", step, "cell-step"), ...fact("rank", rank, "cell-rank"));
  if (micro !== null) lines.push(...fact("micro step", micro, "cell-micro"));
  const [fileName, isDatabase] = fileOf(signal, map.directory[i], step);
  const file = `${directory}/${fileName}`;
  lines.push(...fact("file", [Page.element("code", { id: "cell-file" }, file)]));
  const query = filled(signal.query, { name: name.replaceAll("'", "''"), step });
  const begins = filled(signal.line, { stage, name, step, micro });
  const line = (title, text) => lines.push(...fact(title, [Page.element("code", { id: "cell-line" }, text)]));
  if (isDatabase) line("its row", query);
  else line("its line begins", begins);
  if (map.bad[i]) lines.push(...fact("NaN or Inf", `${map.bad[i]} of the numbers in this cell`, "cell-bad"));
  byId("cell").replaceChildren(...lines);
}

async function drawCurve() {
  const signal = signalOf();
  const map = await mapOf(chosen.signal, chosen.op);
  const columns = about.columns.starts.length;
  const x = Drawing.middles(about.columns);
  const at = (n) => chosen.row * columns + n;
  const several = about.columns.width > 1 || about.lines.length > 1 || signal.members[chosen.row].length > 1;
  const traces = Drawing.curve(several ? "largest magnitude" : signal.ops[chosen.op], x, map.value, at, { color: Page.colour("accent"), width: 1.8 });
  if (several) traces.push(...Drawing.curve("smallest magnitude", x, map.least, at, { color: Page.colour("quiet"), width: 1, dash: "dot" }).slice(0, 1));
  byId("curve-heading").textContent = `${signal.ops[chosen.op]} of ${signal.signal}: ${signal.labels[chosen.row]}`;
  const line = { type: "line", x0: x[chosen.column], x1: x[chosen.column], yref: "paper", y0: 0, y1: 1, line: { color: Page.colour("line"), width: 2 }, layer: "below" };
  await Page.plot("curve", traces, Drawing.curves(traces, { shapes: [line], showlegend: several }));
}

