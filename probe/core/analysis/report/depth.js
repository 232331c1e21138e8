"use strict";
// A signal from the first layer to the last, at one step.
async function drawDepth() {
  const n = Number(byId("depth-signal").value);
  const signal = about.signals[n];
  const op = Math.max(0, signal.ops.indexOf("norm"));
  const { value } = await mapOf(n, op);
  const columns = about.columns.starts.length;
  const column = Number(byId("depth-step").value);
  const at = (row, c) => Math.abs(Cells.number(value, row * columns + c) ?? NaN);
  const x = signal.labels.map((_, row) => row);
  const drawn = (v) => Number.isFinite(v) && v > 0; // on a logarithmic axis
  const [there, low, high] = [[], [], []];
  for (const row of x) {
    const sizes = about.columns.starts.map((_, c) => at(row, c)).filter(drawn);
    if (!sizes.length) continue; // a gap would tear the band
    there.push(row);
    low.push(Math.min(...sizes));
    high.push(Math.max(...sizes));
  }
  const curve = (c, look) => ({
    type: "scatter", name: columnText(about.columns, c), x, y: x.map((row) => at(row, c)).map((v) => (drawn(v) ? v : null)),
    text: x.map((row) => `${Page.plain(signal.labels[row])}: ${Cells.text(value, row * columns + c) || "nothing written"}`),
    hovertemplate: "%{text}<extra></extra>", ...look,
  });
  const band = { type: "scatter", mode: "lines", x: there, line: { width: 0, color: Page.colour("line") }, hoverinfo: "skip", showlegend: false };
  const chosenCurve = curve(column, { mode: "lines+markers", line: { color: Page.colour("accent") }, marker: { size: 5 } });
  const traces = [
    { ...band, y: low },
    { ...band, y: high, fill: "tonexty", fillcolor: Page.colour("line"), name: "all steps", showlegend: true },
    ...(column ? [curve(column - 1, { mode: "lines", line: { color: Page.colour("quiet"), width: 1, dash: "dot" } })] : []),
    chosenCurve,
  ];
  const bad = x.filter((row) => [NOT_A_NUMBER, INF, MINUS_INF].includes(Cells.special(value, row * columns + column)));
  traces.push({ type: "scatter", mode: "markers", x: bad, y: bad.map(() => 0.97), yaxis: "y2", name: "NaN or Inf", showlegend: bad.length > 0,
    text: bad.map((row) => chosenCurve.text[row]), hovertemplate: "%{text}<extra></extra>",
    marker: { symbol: "triangle-down", size: 10, color: Drawing.colours().nan } });
  byId("depth-label").textContent = columnText(about.columns, column);
  await Page.plot("depth", traces, Page.layout({
    height: 460, hovermode: "closest", legend: { orientation: "h", y: 1.12 },
    yaxis: { ...Drawing.valueAxis(traces), type: "log", title: { text: signal.ops[op] } },
    xaxis: { ...Drawing.labels(signal.labels, 0, x.length, 40), tickangle: 50 },
    yaxis2: { overlaying: "y", range: [0, 1], visible: false, fixedrange: true },
  }));
}

