// Draws the differences of two runs over steps and by layer. Powers of ten: `ends[0]` is 0, `ends[1]` is infinite.
(() => {
  const [smallest, infinite] = Page.data("ends");
  const tolerance = Page.data("tolerance");
  const ticks = [];
  for (let power = smallest; power <= infinite; power += 2) ticks.push(power);
  const texts = ticks.map((power) => (power === smallest ? "0" : power === infinite ? "Inf" : `1e${power}`));

  const growth = Page.data("growth");
  const drawGrowth = () => {
    const lines = growth.map((each) => ({
      name: each.signal, x: each.steps, y: each.powers, text: each.texts, mode: "lines+markers", marker: { size: 4 },
      hovertemplate: "step %{x}: %{text}",
    }));
    const bound = {
      type: "line", xref: "paper", x0: 0, x1: 1, y0: tolerance, y1: tolerance,
      line: { color: Page.colour("bad"), width: 1, dash: "dash" },
    };
    const layout = Page.layout({
      height: 420, shapes: [bound],
      xaxis: { title: { text: "step of A" } },
      yaxis: { title: { text: "largest relative difference" }, tickvals: ticks, ticktext: texts, range: [smallest - 0.2, infinite + 0.2] },
    });
    Plotly.react("growth-plot", lines, layout, Page.options);
  };

  const layers = Page.data("layers");
  const chooser = document.getElementById("layers-signal");
  const drawLayers = () => {
    const each = layers[chooser.value];
    if (!each) return;
    const span = infinite - smallest;
    const at = (tolerance - smallest) / span;
    const cells = {
      type: "heatmap", x: each.steps, y: each.names.map(Page.plain), z: each.powers, zmin: smallest, zmax: infinite,
      colorscale: [[0, Page.colour("panel")], [at, Page.colour("accent")], [Math.min(at + 1e-6, 1), Page.colour("warn")], [1, Page.colour("bad")]],
      colorbar: { tickvals: ticks, ticktext: texts },
      hovertemplate: "%{y}<br>from step %{x}: 1e%{z:.2f}<extra></extra>",
    };
    const layout = Page.layout({
      height: 140 + 16 * Math.max(each.names.length, 4),
      xaxis: { title: { text: "step of A" } },
      yaxis: { autorange: "reversed", type: "category", tickmode: each.names.length > 80 ? "auto" : "linear" },
    });
    Plotly.react("layers-plot", [cells], layout, Page.options);
  };
  chooser.addEventListener("change", drawLayers);
  Page.whenColoured(drawGrowth);
  Page.whenColoured(drawLayers);
  document.body.dataset.ready = "yes";
})();
