"use strict";
// Curves of the run's numbers: one small plot each.
const RunCurves = {
  traces(curve) {
    const band = { x: curve.steps, type: "scatter", mode: "lines", line: { width: 0 }, connectgaps: true, hoverinfo: "skip", showlegend: false };
    const steps = curve.width > 1 ? `steps %{x} to %{x} + ${curve.width - 1}` : "step %{x}";
    return [
      { ...band, y: curve.low },
      { ...band, y: curve.high, fill: "tonexty", fillcolor: `${Page.colour("accent")}33` },
      {
        x: curve.steps, y: curve.mean, type: "scatter", mode: curve.steps.length > 1 ? "lines" : "markers",
        line: { color: Page.colour("accent"), width: 1.5 }, hovertemplate: `${steps}: %{y:.6g}<extra></extra>`, showlegend: false,
      },
      {
        x: curve.bad, y: curve.bad.map(() => 0), yaxis: "y2", type: "scatter", mode: "markers", showlegend: false,
        marker: { color: Page.colour("bad"), symbol: "x", size: 7 }, hovertemplate: "step %{x}: not finite<extra></extra>",
      },
    ];
  },

  draw() {
    const curves = Page.data("run");
    const place = document.getElementById("run-curves");
    if (!place) return;
    curves.forEach((curve, n) => {
      const id = `run-curve-${n}`;
      if (!document.getElementById(id)) {
        const title = Page.element("figcaption", {}, curve.name);
        place.append(Page.element("figure", {}, title, Page.element("div", { id, className: "plot" })));
      }
      Page.plot(id, RunCurves.traces(curve), Page.layout({
        height: 180, margin: { l: 50, r: 10, t: 5, b: 25 },
        yaxis2: { overlaying: "y", range: [0, 1], visible: false, fixedrange: true },
      }));
    });
  },
};
Page.whenColoured(RunCurves.draw);
