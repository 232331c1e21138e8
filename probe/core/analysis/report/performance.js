"use strict";
// Throughput over the run: the first healthy stretch as a line, drops as marked spans.
const Throughput = {
  draw() {
    if (!document.getElementById("throughput")) return;
    const { unit, steps, speeds, healthy, drops } = Page.data("performance");
    const bad = Page.colour("bad");
    const spans = drops.map(([first, last]) => ({
      type: "rect", xref: "x", yref: "paper", x0: first, x1: last, y0: 0, y1: 1, fillcolor: `${bad}33`, line: { width: 0 },
    }));
    const level = healthy === null ? [] : [{
      type: "line", xref: "paper", yref: "y", x0: 0, x1: 1, y0: healthy, y1: healthy,
      line: { color: Page.colour("quiet"), width: 1, dash: "dot" },
    }];
    const labels = drops.map(([first, last, factor]) => ({
      x: (first + last) / 2, y: 1, xref: "x", yref: "paper", yanchor: "top", showarrow: false,
      text: `÷ ${factor.toFixed(2)}`, font: { color: bad },
    }));
    Page.plot("throughput", [{
      x: steps, y: speeds, type: "scatter", mode: steps.length > 1 ? "lines" : "markers",
      line: { color: Page.colour("accent"), width: 1.5 }, showlegend: false,
      hovertemplate: `step %{x}: %{y:.4g} ${Page.plain(unit)} a second<extra></extra>`,
    }], Page.layout({
      height: 220, margin: { l: 60, r: 20, t: 10, b: 30 }, shapes: [...spans, ...level], annotations: labels,
      yaxis: { rangemode: "tozero" },
    }));
  },
};
Page.whenColoured(Throughput.draw);
