"use strict";
// When what was found, and the way from a finding to its numbers.
function drawTimeline() {
  const findings = Page.data("findings");
  if (!findings.length) return;
  const groups = new Map();
  for (const mark of findings) {
    const key = JSON.stringify([mark.kind, mark.step, mark.cause]);
    const group = groups.get(key) ?? { kind: mark.kind, step: mark.step, cause: mark.cause, marks: [] };
    group.marks.push(mark);
    groups.set(key, group);
  }
  const looks = [["", "accent", "circle"], ["teardown", "quiet", "x"], ["cascade", "warn", "circle"], ["initiating", "bad", "star"]];
  const traces = looks.map(([cause, colour, symbol]) => {
    const own = [...groups.values()].filter((group) => group.cause === cause);
    return {
      type: "scatter", mode: "markers", name: cause || "not judged", x: own.map((g) => g.step), y: own.map((g) => g.kind),
      marker: { color: Page.colour(colour), symbol, size: own.map((g) => (symbol === "star" ? 18 : 9) + 5 * Math.log10(g.marks.length)), line: { width: 1, color: Page.colour("ground") } },
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

