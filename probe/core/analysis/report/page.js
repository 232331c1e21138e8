"use strict";
// Functions that scripts of a page share: `Page.data(name)`, `Page.layout(changes)`, `Page.plot(id, traces, layout)`,
// `Page.element(...)`, `Page.plain(text)`, `Page.whenColoured(draw)`, `Page.inflated(base64)`; and `Plotly` if it was asked for.
const Page = {
  // The data of the page under this name.
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

  // Options of every plot: drag to zoom, double-click to go back.
  options: { responsive: true, displayModeBar: false },

  // Plotly reads a little HTML in its texts; names are not meant as such.
  plain: (text) => String(text).replace(/&/g, "&amp;").replace(/</g, "&lt;").replace(/>/g, "&gt;"),

  // <tag ...properties>children</tag>; strings become text, never markup.
  element(tag, properties = {}, ...children) {
    const made = Object.assign(document.createElement(tag), properties);
    made.append(...children);
    return made;
  },

  // Draws a plot into the element with this id, or again what has changed of it.
  plot(id, traces, layout) {
    const place = document.getElementById(id);
    place.style.height = `${layout.height}px`;
    return Plotly.react(place, traces, layout, Page.options);
  },

  // Calls `draw` now, and again when the colours change.
  whenColoured(draw) {
    draw();
    matchMedia("(prefers-color-scheme: dark)").addEventListener("change", draw);
  },

  // The bytes that were compressed (zlib) and written in base 64.
  async inflated(base64) {
    const bytes = Uint8Array.from(atob(base64), (character) => character.charCodeAt(0));
    const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("deflate"));
    return new Uint8Array(await new Response(stream).arrayBuffer());
  },

  text: (bytes) => new TextDecoder().decode(bytes),

  run(script) {
    document.body.append(Page.element("script", { textContent: script }));
  },

  async start() {
    if (typeof DecompressionStream === "undefined") {
      const what = "This page needs a newer browser: Chrome or Edge 80, Firefox 113, Safari 16.4, or later.";
      document.querySelector("main").prepend(Page.element("p", { className: "failed" }, what));
      return;
    }
    const plotly = document.getElementById("compressed-plotly");
    if (plotly) Page.run(Page.text(await Page.inflated(plotly.textContent)));
    for (const script of document.querySelectorAll("script.after")) Page.run(script.textContent);
  },
};
Page.start();
