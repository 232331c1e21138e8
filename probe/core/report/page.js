"use strict";
// What scripts of a page share: `Page.data(name)`, `Page.layout(changes)`, `Page.options` and `Page.element(...)`.
const Page = {
  // What the page was given under this name.
  data: (name) => JSON.parse(document.getElementById(`data-${name}`).textContent),

  // One of the page's colours, such as `text`, `quiet`, `line`, `ground`, `accent`, `bad`.
  colour: (name) => getComputedStyle(document.documentElement).getPropertyValue(`--${name}`).trim(),

  // A plotly layout in the page's colours, with `changes` put over it; axes get lines and text of theirs.
  layout(changes = {}) {
    const axis = {
      gridcolor: Page.colour("line"), zerolinecolor: Page.colour("line"), linecolor: Page.colour("line"),
      automargin: true,
    };
    const layout = {
      paper_bgcolor: "rgba(0,0,0,0)", plot_bgcolor: "rgba(0,0,0,0)",
      font: { color: Page.colour("text"), family: "system-ui, sans-serif", size: 12 },
      margin: { l: 60, r: 20, t: 10, b: 40 },
      hoverlabel: { bgcolor: Page.colour("panel"), bordercolor: Page.colour("line"), font: { color: Page.colour("text") } },
      legend: { orientation: "h", y: -0.2 },
      ...changes,
    };
    layout.xaxis = { ...axis, ...changes.xaxis };
    layout.yaxis = { ...axis, ...changes.yaxis };
    return layout;
  },

  // What every plot is drawn with.
  options: { responsive: true, displaylogo: false, modeBarButtonsToRemove: ["select2d", "lasso2d", "toImage"] },

  // Plotly reads a little HTML in its texts; names are not meant as such.
  plain: (text) => String(text).replace(/&/g, "&amp;").replace(/</g, "&lt;").replace(/>/g, "&gt;"),

  // <tag ...properties>children</tag>; strings become text, never markup.
  element(tag, properties = {}, ...children) {
    const made = Object.assign(document.createElement(tag), properties);
    made.append(...children);
    return made;
  },

  // Calls `draw` now, and again when the colours change.
  whenColoured(draw) {
    draw();
    matchMedia("(prefers-color-scheme: dark)").addEventListener("change", draw);
  },
};
