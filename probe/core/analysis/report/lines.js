"use strict";
// The chosen row, rank over step, for many ranks: lines of groups of ranks, and below them the ranks of some lines.
// `wanted` is a rank that a finding leads to, `span` the shown part of the order: [first, behind the last].
const MOST_FINE = 2000;
const Lines = {
  order: 0, span: null, rank: null, wanted: null,

  async load() {
    const { fine } = about;
    const whole = (name, length) => Cells.whole(Cells.packed[name], length);
    Lines.orders = await Promise.all(fine.orders.map((_, n) => whole(`order/${n}`, fine.lines)));
    Lines.ranks = await whole("rank/number", fine.ranks);
    Lines.attributes = await Promise.all(fine.attributes.map((_, n) => whole(`rank/${n}`, fine.ranks)));
    fill(byId("groups-order"), fine.orders.map((order) => order.title), 0);
    byId("groups-order").addEventListener("change", () => inTurn(() => {
      Object.assign(Lines, { order: Number(byId("groups-order").value), span: null, wanted: Lines.rank });
      return drawRanks();
    }));
    byId("groups-rank").addEventListener("change", () => inTurn(() => {
      Lines.wanted = Number(byId("groups-rank").value);
      return drawRanks();
    }));
  },

  // For each line its place among those that have a row, -1 for the others: a pipeline stage has its own rows.
  async places(n) {
    Lines.kept ??= new Map();
    if (!Lines.kept.has(n)) Lines.kept.set(n, await Cells.whole(Cells.packed[`places/${n}`], about.fine.lines));
    return Lines.kept.get(n);
  },

  // The ranks of a line of the second level.
  ranksOf(line) {
    const { ranksALine } = about.fine;
    return Lines.ranks.slice(line * ranksALine, (line + 1) * ranksALine);
  },

  ranksText: (ranks) => (ranks.length > 1 ? `ranks ${ranks[0]}-${ranks.at(-1)}` : `rank ${ranks[0]}`),

  // The names of what a line has in common with others: [title, name] of each attribute.
  common: (line) => about.fine.attributes.map(({ title, names }, n) => [title, names[Lines.attributes[n][line * about.fine.ranksALine]]]),

  // The row of a name on a rank: several pipeline stages may have the name. -1 if there is none.
  rowOf(signal, name, virtualStage, rank) {
    const at = Lines.ranks.indexOf(rank);
    const pipeline = about.fine.attributes.findIndex((one) => one.title === "pipeline stage");
    const stage = at < 0 ? null : Number(about.fine.attributes[pipeline].names[Lines.attributes[pipeline][at]]);
    const is = (members) => members.some(([own, text]) => text === name && own === virtualStage);
    const rows = about.signals[signal].members.flatMap((members, row) => (is(members) ? [row] : []));
    return rows.find((row) => about.fine.signals[signal].stages[row].includes(stage)) ?? rows[0] ?? -1;
  },

  // The place of a rank in the chosen order.
  placeOf(rank) {
    const at = Lines.ranks.indexOf(rank);
    return at < 0 ? -1 : Lines.orders[Lines.order].indexOf(Math.floor(at / about.fine.ranksALine));
  },

  // A line of the first level, by what its ranks have in common; else by their numbers.
  groupText(n) {
    const { linesALine, orders, lines } = about.fine;
    const order = Lines.orders[Lines.order];
    const [first, last] = [order[n * linesALine], order[Math.min((n + 1) * linesALine, lines) - 1]];
    const { title } = orders[Lines.order];
    const own = about.fine.attributes.findIndex((one) => one.title === title);
    if (own < 0) return Lines.ranksText([Lines.ranksOf(first)[0], Lines.ranksOf(last).at(-1)]);
    const [low, high] = [Lines.common(first)[own][1], Lines.common(last)[own][1]];
    return low === high ? `${title} ${low}: from ${Lines.ranksText(Lines.ranksOf(first))}` : `${title} ${low} to ${high}`;
  },

  // The rank that is looked for: that of a finding, else that of the chosen cell.
  async chooseRank() {
    const map = await mapOf(chosen.signal, chosen.op);
    const at = chosen.row * about.columns.starts.length + chosen.column;
    const there = Cells.special(map.value, at) !== MISSING;
    Lines.rank = Lines.wanted ?? (there ? about.directories[map.directory[at]][1] : Lines.rank);
    Lines.wanted = null;
    const place = Lines.placeOf(Lines.rank);
    if (place < 0) return;
    byId("groups-rank").value = Lines.rank;
    if (Lines.span && Lines.span[0] <= place && place < Lines.span[1]) return;
    Lines.showLines(Math.floor(place / about.fine.linesALine), Math.floor(place / about.fine.linesALine));
  },

  showLines(first, last) {
    const { lines, linesALine } = about.fine;
    Lines.span = [Math.max(0, first) * linesALine, Math.min(lines, (last + 1) * linesALine)];
  },
};

async function drawRanks() {
  if (!byId("groups-plot") || !signalOf().rankOps.length) return;
  if (!Lines.orders) await Lines.load();
  await Lines.chooseRank();
  await drawGroups();
  await drawFine();
}

async function drawGroups() {
  const signal = signalOf();
  const op = signal.rankOps.includes(Number(byId("rank-op").value)) ? Number(byId("rank-op").value) : signal.rankOps[0];
  const { orders, lines, linesALine } = about.fine;
  const [groups, steps] = [Math.ceil(lines / linesALine), about.rankColumns.starts.length];
  const name = `groups/${orders[Lines.order].store}/${chosen.signal}/${op}`;
  const all = await Cells.get(name, signal.labels.length * groups * steps);
  const own = Lines.part(all, [chosen.row * groups, (chosen.row + 1) * groups], steps);
  const labels = Array.from({ length: groups }, (_, n) => Lines.groupText(n));
  byId("groups-heading").textContent = `${signal.ops[op]} of ${signal.signal}: ${signal.labels[chosen.row]}`;
  const plot = byId("groups-plot");
  await Page.plot("groups-plot", [Lines.trace(own, about.rankColumns, labels)], Lines.layout(labels, Lines.frame()));
  plot.removeAllListeners("plotly_click");
  Drawing.followZoom(plot, labels);
  plot.on("plotly_click", (event) => inTurn(() => Lines.show(event.points[0].pointIndex[0], event.points[0].pointIndex[0])));
  plot.on("plotly_relayout", (change) => {
    const [low, high] = [change["yaxis.range[0]"], change["yaxis.range[1]"]];
    if (low !== undefined) inTurn(() => Lines.show(Math.ceil(Math.min(low, high)), Math.min(groups - 1, Math.floor(Math.max(low, high)))));
  });
}

Object.assign(Lines, {
  part(all, [first, end], steps) {
    const cut = (list) => list.slice(first * steps, end * steps);
    return { ...all, mantissa: cut(all.mantissa), exponent: cut(all.exponent), length: (end - first) * steps };
  },

  trace(own, columns, labels) {
    const [x, steps] = [Drawing.middles(columns), columns.starts.length];
    const text = labels.map((label, n) => x.map((_, m) =>
      Page.plain(`${label}, ${columnText(columns, m)}: ${Cells.text(own, n * steps + m) || "nothing written"}`)));
    return { ...Drawing.heatmap(own, steps, Drawing.span(own)), x, text, hoverinfo: "text" };
  },

  layout: (labels, shapes) => Page.layout({
    height: Math.min(640, Math.max(220, labels.length * 15 + 80)), shapes,
    yaxis: { ...Drawing.labels(labels, 0, labels.length), range: [labels.length - 0.5, -0.5], showgrid: false, zeroline: false },
    xaxis: { title: { text: "step" }, showgrid: false, zeroline: false },
  }),

  // A frame around the lines whose ranks are shown below.
  frame: () => (Lines.span ? Lines.around(Lines.span[0] / about.fine.linesALine, Math.ceil(Lines.span[1] / about.fine.linesALine)) : []),

  around: (first, end) => [["ground", 5], ["text", 2]].map(([colour, width]) => ({
    type: "rect", xref: "paper", x0: 0, x1: 1, y0: first - 0.5, y1: end - 0.5, line: { color: Page.colour(colour), width },
  })),

  async show(first, last) {
    if (last < first) return;
    Lines.showLines(first, last);
    await Plotly.relayout("groups-plot", { shapes: Lines.frame() });
    await drawFine();
  },
});

async function drawFine() {
  const { fine } = about;
  const own = fine.signals[chosen.signal];
  if (!Lines.span || !own.ops.length) return;
  const op = own.ops.includes(Number(byId("rank-op").value)) ? Number(byId("rank-op").value) : own.ops[0];
  const steps = fine.columns.starts.length;
  const places = await Lines.places(own.places[own.rowOf[chosen.row]]);
  const held = places.reduce((most, place) => Math.max(most, place), -1) + 1;
  const all = await Cells.get(`fine/${chosen.signal}/${op}/${own.rowOf[chosen.row]}`, held * steps);
  const shown = Lines.orders[Lines.order].slice(Lines.span[0], Math.min(Lines.span[1], Lines.span[0] + MOST_FINE));
  const numbers = { ...all, mantissa: new Int32Array(shown.length * steps), exponent: new Int32Array(shown.length * steps), length: shown.length * steps };
  shown.forEach((line, n) => {
    const at = places[line];
    if (at < 0) numbers.exponent.fill(SPECIAL, n * steps, (n + 1) * steps); // its stage has no such row
    else for (const part of ["mantissa", "exponent"]) numbers[part].set(all[part].subarray(at * steps, (at + 1) * steps), n * steps);
  });
  const labels = Array.from(shown, (line) => Lines.ranksText(Lines.ranksOf(line)));
  const signal = signalOf();
  const more = Lines.span[1] - Lines.span[0] - shown.length;
  byId("fine-heading").textContent = `${signal.ops[op]} of ${signal.signal}: ${own.labels[own.rowOf[chosen.row]]}, ${labels.length} lines by ${fine.orders[Lines.order].title}${more ? ` (${more} more: choose fewer)` : ""}`;
  const at = Lines.placeOf(Lines.rank) - Lines.span[0];
  const inside = at >= 0 && at < shown.length;
  await Page.plot("fine-plot", [Lines.trace(numbers, fine.columns, labels)], Lines.layout(labels, inside ? Lines.around(at, at + 1) : []));
  const plot = byId("fine-plot");
  plot.removeAllListeners("plotly_click");
  Drawing.followZoom(plot, labels);
  const facts = (n, column) => {
    const ranks = Lines.ranksOf(shown[n]);
    byId("fine-cell").replaceChildren(
      ...fact("rank", ranks.length > 1 ? `${ranks[0]}-${ranks.at(-1)}` : ranks[0], "fine-rank"),
      ...Lines.common(shown[n]).flatMap(([title, name]) => fact(title, name, `fine-${title.replaceAll(" ", "-")}`)),
      ...fact("step", columnText(fine.columns, column).replace(/^steps? /, ""), "fine-step"),
      ...fact(`${signal.ops[op]} of ${signal.signal}`, Cells.text(numbers, n * steps + column) || "nothing was written", "fine-value"),
    );
  };
  plot.on("plotly_click", (event) => inTurn(async () => {
    const [n, column] = event.points[0].pointIndex;
    Lines.rank = Lines.ranksOf(shown[n])[0];
    byId("groups-rank").value = Lines.rank;
    facts(n, column);
    await Plotly.relayout("fine-plot", { shapes: Lines.around(n, n + 1) });
  }));
  if (inside) facts(at, columnOf(fine.columns, about.columns.starts[chosen.column]));
  else byId("fine-cell").replaceChildren();
}

// A finding leads to its rank, which need not be that of the largest number in its cell, and to the row of its stage.
showFinding = async (n) => {
  const mark = Page.data("findings")[n];
  const signal = about.signals.findIndex((one) => one.signal === mark.signal);
  if (signal < 0) return false;
  if (!Lines.orders) await Lines.load();
  const row = Lines.rowOf(signal, mark.name, mark.vpp_stage, mark.rank);
  if (row < 0) return false;
  Lines.wanted = mark.rank;
  await showSignal(signal, Math.max(0, about.signals[signal].ops.indexOf(mark.op)), row, columnOf(about.columns, mark.step));
  return true;
};
