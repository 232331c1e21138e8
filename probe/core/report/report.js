"use strict";
// What is shown and what happens on a click. `chosen` is the whole state: signal, op, row and column by index.
const about = {};
const chosen = { signal: 0, op: 0, row: 0, column: 0 };
const byId = (id) => document.getElementById(id);
const signalOf = () => about.signals[chosen.signal];
const mapOf = (signal, op) =>
  Cells.get(`map/${signal}/${op}`, about.signals[signal].labels.length * about.columns.starts.length);

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

// ---- heatmap

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
  plot.on("plotly_click", (event) => choose(...event.points[0].pointIndex));
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

// Which file a row of a step is in: the last one that begins no later.
function fileOf(signal, directory, step) {
  const names = about.files[signal.files[directory]] ?? [];
  const first = (name) => Number(/_(\d+)-\d+(?:_part_\d+)?\.\w+$/.exec(name)?.[1] ?? Infinity);
  return names.filter((name) => first(name) <= step).at(-1) ?? `${signal.signal}_*`;
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
  const file = `${directory}/${fileOf(signal, map.directory[i], step)}`;
  lines.push(...fact("file", [Page.element("code", { id: "cell-file" }, file)]));
  const begins = [stage, name, step, ...(micro === null ? [] : [micro]), ""].join(",");
  lines.push(...fact("its line begins", [Page.element("code", { id: "cell-line" }, begins)]));
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

// ---- ranks side by side

async function drawRanks() {
  if (!byId("ranks-plot")) return;
  const signal = signalOf();
  if (!signal.rankOps.length) return;
  const op = signal.rankOps.includes(Number(byId("rank-op").value)) ? Number(byId("rank-op").value) : signal.rankOps[0];
  const [ranks, steps] = [about.lines.length, about.rankColumns.starts.length];
  const all = await Cells.get(`ranks/${chosen.signal}/${op}`, signal.labels.length * ranks * steps);
  const x = Drawing.middles(about.rankColumns);
  const start = chosen.row * ranks * steps;
  byId("ranks-heading").textContent = `${signal.ops[op]} of ${signal.signal}: ${signal.labels[chosen.row]}`;
  if (byId("rank-form").value === "heatmap") {
    const part = (list) => list.slice(start, start + ranks * steps);
    const own = { ...all, mantissa: part(all.mantissa), exponent: part(all.exponent), length: ranks * steps };
    const trace = { ...Drawing.heatmap(own, steps, Drawing.span(own)), x, hoverinfo: "text" };
    trace.text = about.lines.map((line, n) => x.map((_, m) => `${line}, ${columnText(about.rankColumns, m)}: ${Cells.text(own, n * steps + m)}`));
    const axis = { ...Drawing.labels(about.lines, 0, ranks), range: [ranks - 0.5, -0.5], showgrid: false };
    return Page.plot("ranks-plot", [trace], Page.layout({
      height: Math.min(600, Math.max(220, ranks * 15 + 80)), yaxis: axis, xaxis: { title: { text: "step" }, showgrid: false },
    }));
  }
  const traces = about.lines.flatMap((line, n) =>
    Drawing.curve(line, x, all, (m) => start + n * steps + m, { color: rankColour(n, ranks), width: 1.4 }));
  return Page.plot("ranks-plot", traces, Drawing.curves(traces, { height: 320, showlegend: ranks <= 16 }));
}

// Neighbours differ in hue, and every one in lightness too.
function rankColour(n, ranks) {
  const lightness = (Drawing.dark() ? 45 : 25) + (30 * n) / Math.max(1, ranks - 1);
  return `hsl(${(210 + n * 137.5) % 360} 65% ${lightness}%)`;
}

// ---- over depth

async function drawDepth() {
  const n = Number(byId("depth-signal").value);
  const signal = about.signals[n];
  const op = Math.max(0, signal.ops.indexOf("norm"));
  const { value } = await mapOf(n, op);
  const columns = about.columns.starts.length;
  const column = Number(byId("depth-step").value);
  const at = (row, c) => Math.abs(Cells.number(value, row * columns + c) ?? NaN);
  const x = signal.labels.map((_, row) => row);
  const [low, high] = [[], []];
  for (const row of x) {
    const sizes = about.columns.starts.map((_, c) => at(row, c)).filter((v) => Number.isFinite(v) && v > 0);
    low.push(sizes.length ? Math.min(...sizes) : null);
    high.push(sizes.length ? Math.max(...sizes) : null);
  }
  const band = { type: "scatter", mode: "lines", x, line: { width: 0, color: Page.colour("line") }, hoverinfo: "skip", showlegend: false };
  const texts = x.map((row) => `${Page.plain(signal.labels[row])}: ${Cells.text(value, row * columns + column) || "nothing written"}`);
  const traces = [
    { ...band, y: low },
    { ...band, y: high, fill: "tonexty", fillcolor: Page.colour("line"), name: "all steps", showlegend: true },
    { type: "scatter", mode: "lines+markers", x, y: x.map((row) => at(row, column)).map((v) => (Number.isFinite(v) && v > 0 ? v : null)),
      name: columnText(about.columns, column), text: texts, hovertemplate: "%{text}<extra></extra>",
      line: { color: Page.colour("accent") }, marker: { size: 5 } },
  ];
  const bad = x.filter((row) => [NOT_A_NUMBER, INF, MINUS_INF].includes(Cells.special(value, row * columns + column)));
  traces.push({ type: "scatter", mode: "markers", x: bad, y: bad.map(() => 0.97), yaxis: "y2", name: "NaN or Inf", showlegend: bad.length > 0,
    text: bad.map((row) => texts[row]), hovertemplate: "%{text}<extra></extra>",
    marker: { symbol: "triangle-down", size: 10, color: Drawing.colours().nan } });
  byId("depth-label").textContent = columnText(about.columns, column);
  await Page.plot("depth", traces, Page.layout({
    height: 460, hovermode: "closest", legend: { orientation: "h", y: 1.12 },
    yaxis: { type: "log", exponentformat: "e", title: { text: signal.ops[op] } },
    xaxis: { ...Drawing.labels(signal.labels, 0, x.length, 40), tickangle: 50 },
    yaxis2: { overlaying: "y", range: [0, 1], visible: false, fixedrange: true },
  }));
}

// ---- findings

function drawTimeline() {
  const findings = Page.data("findings");
  if (!findings.length) return;
  const groups = new Map();
  for (const mark of findings) {
    const kind = mark.text === "nan" ? "NaN" : mark.text.endsWith("inf") ? "Inf" : mark.rule.replace("Anomaly", "") || "finding";
    const key = JSON.stringify([kind, mark.step, mark.cause]);
    const group = groups.get(key) ?? { kind, step: mark.step, cause: mark.cause, marks: [] };
    group.marks.push(mark);
    groups.set(key, group);
  }
  const colours = { initiating: Page.colour("bad"), cascade: Page.colour("warn"), teardown: Page.colour("quiet"), "": Page.colour("accent") };
  const traces = Object.entries(colours).map(([cause, color]) => {
    const own = [...groups.values()].filter((group) => group.cause === cause);
    return {
      type: "scatter", mode: "markers", name: cause || "not judged", x: own.map((g) => g.step), y: own.map((g) => g.kind),
      marker: { color, size: own.map((g) => 9 + 5 * Math.log10(g.marks.length)), line: { width: 1, color: Page.colour("ground") } },
      text: own.map((g) => `step ${g.step}, ${g.kind}: ${g.marks.length}<br>${g.marks.slice(0, 5).map((m) => Page.plain(`${m.signal} ${m.op} of ${m.name}, rank ${m.rank}`)).join("<br>")}${g.marks.length > 5 ? "<br>…" : ""}`),
      hovertemplate: "%{text}<extra></extra>",
    };
  }).filter((trace) => trace.x.length);
  const kinds = new Set([...groups.values()].map((g) => g.kind)).size;
  const { starts } = about.columns;
  Page.plot("timeline", traces, Page.layout({
    height: 110 + 34 * kinds, showlegend: traces.length > 1, hovermode: "closest",
    xaxis: { title: { text: "step" }, range: [starts[0] - 1, Math.max(about.last, ...findings.map((f) => f.step)) + 1] }, yaxis: { type: "category" },
  }));
}

function listFindings() {
  const findings = Page.data("findings");
  const place = byId("findings-table");
  if (!place) return;
  const names = ["step", "micro_step", "rank", "signal", "name", "op", "text", "rule", "cause"];
  const heads = ["step", "micro step", "rank", "signal", "name", "op", "value", "rule", "cause"];
  const head = Page.element("tr", {}, ...heads.map((text) => Page.element("th", {}, text)));
  const rows = findings.map((mark, n) => {
    const row = Page.element("tr", { title: mark.message }, ...names.map((name) => Page.element("td", {}, String(mark[name] ?? ""))));
    row.dataset.finding = n;
    return row;
  });
  place.append(Page.element("table", {}, Page.element("thead", {}, head), Page.element("tbody", {}, ...rows)));
}

// Shows the cell that a finding is in; false if it is in none.
async function showFinding(n) {
  const mark = Page.data("findings")[n];
  const signal = about.signals.findIndex((one) => one.signal === mark.signal);
  const is = ([stage, name]) => name === mark.name && stage === mark.vpp_stage;
  const row = signal < 0 ? -1 : about.signals[signal].members.findIndex((members) => members.some(is));
  if (row < 0) return false;
  const op = Math.max(0, about.signals[signal].ops.indexOf(mark.op));
  await showSignal(signal, op, row, columnOf(about.columns, mark.step));
  return true;
}

async function showSignal(signal, op, row, column) {
  Object.assign(chosen, { signal, op, row, column });
  const own = signalOf();
  byId("signal").value = signal;
  fill(byId("op"), own.ops, op);
  fill(byId("row"), own.labels, row);
  if (byId("rank-op")) {
    byId("rank-op").replaceChildren(...own.rankOps.map((n) => Page.element("option", { value: n, textContent: own.ops[n] })));
    byId("rank-op").value = own.rankOps.includes(op) ? op : own.rankOps[0];
  }
  await drawHeatmap();
  await choose(row, column);
}

async function begin() {
  Object.assign(about, await Cells.about());
  listFindings();
  if (about.signals.length) {
    const titles = about.signals.map((one) => `${one.signal}: ${one.meaning}`);
    fill(byId("signal"), titles, 0);
    const wanted = ["grad_reduced", "grad_unreduced", "actv_grad", "actv"].map((name) => about.signals.findIndex((one) => one.signal === name));
    const flow = Math.max(0, wanted.find((n) => n >= 0) ?? 0);
    fill(byId("depth-signal"), titles, flow);
    byId("depth-step").max = about.columns.starts.length - 1;
    listen();
    const [first] = Page.data("findings");
    const column = first ? columnOf(about.columns, first.step) : about.columns.starts.length - 1;
    byId("depth-step").value = column;
    if (about.lines.length > 12 && byId("rank-form")) byId("rank-form").value = "heatmap";
    const shown = first && (await showFinding(0));
    if (!shown) await showSignal(flow, Math.max(0, about.signals[flow].ops.indexOf("norm")), 0, column);
  }
  Page.whenColoured(async () => {
    drawTimeline();
    if (about.signals.length) await Promise.all([drawHeatmap(), drawDepth(), drawCurve(), drawRanks()]);
    document.body.dataset.ready = "yes";
  });
}

function listen() {
  const on = (id, type, act) => byId(id)?.addEventListener(type, () => act(Number(byId(id).value)));
  on("signal", "change", (n) => {
    const op = about.signals[n].ops.indexOf(signalOf().ops[chosen.op]);
    const row = about.signals[n].labels.indexOf(signalOf().labels[chosen.row]);
    showSignal(n, Math.max(0, op), Math.max(0, row), chosen.column);
  });
  on("op", "change", (n) => showSignal(chosen.signal, n, chosen.row, chosen.column));
  on("shown", "change", drawHeatmap);
  on("row", "change", (n) => choose(n, chosen.column));
  on("step", "change", (step) => choose(chosen.row, columnOf(about.columns, step)));
  on("rank-op", "change", drawRanks);
  on("rank-form", "change", drawRanks);
  on("depth-signal", "change", drawDepth);
  on("depth-step", "input", drawDepth);
  document.body.addEventListener("click", (event) => {
    const target = event.target.closest("[data-finding]");
    if (target) showFinding(Number(target.dataset.finding)).then(() => byId("signal").closest("section").scrollIntoView());
  });
}

begin();
