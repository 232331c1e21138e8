"use strict";
// How numbers become colours and curves.
// A cell's z is the position of its magnitude on a logarithmic scale: 0 to 1, below 0 if the number is negative;
// beyond 1 stand the colours of what has no logarithm.
const PLACES = { zero: 1.1, inf: 1.2, nan: 1.3 };
const MOST_LABELS = 32;

const Drawing = {
  dark: () => matchMedia("(prefers-color-scheme: dark)").matches,

  colours() {
    const dark = Drawing.dark();
    return {
      positive: dark ? ["#17263f", "#2c5f9e", "#6fb1ea", "#e3f2ff"] : ["#e8f0f9", "#9cc3e6", "#3b7dbd", "#0a2a5e"],
      negative: dark ? ["#33220f", "#9a5a14", "#e79b3f", "#ffedcf"] : ["#fbeedd", "#edb774", "#bf6a17", "#5a2a00"],
      zero: dark ? "#5d6673" : "#b5bbc4", inf: "#ffd21f", nan: "#e6007e",
    };
  },

  // The logarithms between which the colours lie, and which signs there are.
  span(numbers) {
    const span = { low: Infinity, high: -Infinity, negative: false, nan: false, inf: false, zero: false, missing: false };
    for (let i = 0; i < numbers.length; i++) {
      const special = Cells.special(numbers, i);
      if (special === MISSING) span.missing = true;
      else if (special === NOT_A_NUMBER) span.nan = true;
      else if (special !== null) span.inf = true;
      else if (numbers.mantissa[i] === 0) span.zero = true;
      else {
        const size = Cells.logarithm(numbers, i);
        span.low = Math.min(span.low, size);
        span.high = Math.max(span.high, size);
        span.negative ||= numbers.mantissa[i] < 0;
      }
    }
    if (span.low > span.high) [span.low, span.high] = [0, 0];
    const lacking = Math.max(0, 1 - (span.high - span.low)) / 2;
    return { ...span, low: span.low - lacking, high: span.high + lacking };
  },

  // Rows of z.
  matrix(numbers, columns, span) {
    const rows = [];
    for (let start = 0; start < numbers.length; start += columns) {
      rows.push(Array.from({ length: columns }, (_, at) => Drawing.z(numbers, start + at, span)));
    }
    return rows;
  },

  z(numbers, i, span) {
    const special = Cells.special(numbers, i);
    if (special !== null) return [null, PLACES.nan, PLACES.inf, PLACES.inf][special];
    if (numbers.mantissa[i] === 0) return PLACES.zero;
    const size = (Cells.logarithm(numbers, i) - span.low) / (span.high - span.low);
    return numbers.mantissa[i] < 0 ? -Math.max(size, 1e-6) : size;
  },

  // The heatmap's trace but for its x and y, with the scale that belongs to it.
  heatmap(numbers, columns, span) {
    const [bottom, top] = [span.negative ? -1 : 0, 1.35];
    const colours = Drawing.colours();
    const at = (z) => (z - bottom) / (top - bottom);
    const scale = [];
    const ramp = (list, from, to) => list.forEach((c, n) => scale.push([at(from + ((to - from) * n) / (list.length - 1)), c]));
    if (span.negative) ramp([...colours.negative].reverse(), -1, 0);
    ramp(colours.positive, 0, 1);
    const edges = [1.05, 1.15, 1.25, 1.35].map(at);
    scale.push([edges[0], colours.positive.at(-1)]);
    ["zero", "inf", "nan"].forEach((name, n) => scale.push([edges[n], colours[name]], [edges[n + 1], colours[name]]));
    return {
      type: "heatmap", z: Drawing.matrix(numbers, columns, span), zmin: bottom, zmax: top, zsmooth: false,
      colorscale: scale, hoverinfo: "none", hoverongaps: true, colorbar: Drawing.bar(span),
    };
  },

  bar(span) {
    const [values, texts] = [[], []];
    const every = Math.max(1, Math.ceil((span.high - span.low) / (span.negative ? 4 : 8)));
    for (let power = Math.ceil(span.low); power <= span.high; power += every) {
      const z = (power - span.low) / (span.high - span.low);
      values.push(z);
      texts.push(`1e${power}`);
      if (span.negative && z > 0.05) {
        values.push(-z);
        texts.push(`−1e${power}`);
      }
    }
    for (const [name, text] of [["zero", "0"], ["inf", "Inf"], ["nan", "NaN"]]) {
      values.push(PLACES[name]);
      texts.push(text);
    }
    return { tickvals: values, ticktext: texts, thickness: 14, outlinewidth: 0, len: 1.02 };
  },

  // Labels of an axis whose positions are 0, 1, ...: as many of those between `low` and `high` as there is room for.
  labels(names, low, high, most = MOST_LABELS) {
    const first = Math.max(0, Math.ceil(Math.min(low, high)));
    const last = Math.min(names.length - 1, Math.floor(Math.max(low, high)));
    const every = Math.max(1, Math.ceil((last - first + 1) / most));
    const values = [];
    for (let at = first; at <= last; at += every) values.push(at);
    return { tickmode: "array", tickvals: values, ticktext: values.map((at) => Page.plain(Drawing.short(names[at]))) };
  },

  // The end of a name says more than its beginning.
  short: (name, most = 38) => (name.length > most ? `…${name.slice(1 - most)}` : name),

  // Relabels the y axis of `plot` when it is zoomed.
  followZoom(plot, names) {
    plot.removeAllListeners?.("plotly_relayout");
    plot.on("plotly_relayout", (change) => {
      if (!Object.keys(change).some((key) => key.startsWith("yaxis.range") || key === "yaxis.autorange")) return;
      const [low, high] = plot.layout.yaxis.range ?? [0, names.length - 1];
      const ticks = Drawing.labels(names, low, high);
      Plotly.relayout(plot, { "yaxis.tickvals": ticks.tickvals, "yaxis.ticktext": ticks.ticktext });
    });
  },

  // The middle of each column on the axis of steps.
  middles: (columns) => columns.starts.map((start) => start + Math.max(0, columns.width - 1) / 2),

  // A curve over `x`, and marks at the edge of the plot where there is no finite number. `at(n)` is its n-th index.
  curve(name, x, numbers, at, line) {
    const values = x.map((_, n) => Cells.number(numbers, at(n)));
    const texts = x.map((_, n) => Cells.text(numbers, at(n)));
    const lone = values.map((value, n) => Number.isFinite(value) && !Number.isFinite(values[n - 1] ?? NaN)
      && !Number.isFinite(values[n + 1] ?? NaN));
    const traces = [{
      type: "scatter", mode: x.length <= 60 || lone.some(Boolean) ? "lines+markers" : "lines", name, x, line,
      y: values.map((value) => (Number.isFinite(value) ? value : null)), text: texts, marker: { size: 4 },
      hovertemplate: `step %{x}: %{text}<extra>${Page.plain(name)}</extra>`,
    }];
    const bad = x.map((_, n) => n).filter((n) => values[n] !== null && !Number.isFinite(values[n]));
    if (bad.length) {
      const colours = Drawing.colours();
      traces.push({
        type: "scatter", mode: "markers", name: `${name}: NaN or Inf`, x: bad.map((n) => x[n]), y: bad.map(() => 0.97),
        yaxis: "y2", text: bad.map((n) => texts[n]), showlegend: false,
        marker: { symbol: "triangle-down", size: 10, color: bad.map((n) => (Number.isNaN(values[n]) ? colours.nan : colours.inf)) },
        hovertemplate: `step %{x}: %{text}<extra>${Page.plain(name)}</extra>`,
      });
    }
    return traces;
  },

  // An axis for what the traces hold: logarithmic if nothing is negative and it spans more than a decade.
  valueAxis(traces) {
    const values = traces.filter((t) => t.yaxis !== "y2").flatMap((t) => t.y).filter((v) => v !== null);
    const sizes = values.filter((v) => v > 0);
    const decades = sizes.length
      ? Math.log10(sizes.reduce((a, b) => Math.max(a, b)) / sizes.reduce((a, b) => Math.min(a, b))) : 0;
    const logarithmic = values.every((v) => v >= 0) && decades > 1;
    const ticks = logarithmic ? { dtick: Math.ceil(decades / 10) } : {};
    return { type: logarithmic ? "log" : "linear", exponentformat: "e", ...ticks };
  },

  // A layout for curves: `y2` is where marks of what is not finite stand.
  curves(traces, changes = {}) {
    return Page.layout({
      height: 260, yaxis: Drawing.valueAxis(traces), xaxis: { title: { text: "step" } }, hovermode: "closest",
      yaxis2: { overlaying: "y", range: [0, 1], visible: false, fixedrange: true },
      ...changes,
    });
  },
};
