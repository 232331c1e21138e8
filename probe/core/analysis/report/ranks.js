"use strict";
// The chosen row, rank by rank.
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

