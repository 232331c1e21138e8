"use strict";
// How the page begins, and what its controls do.
async function showSignal(signal, op, row, column) {
  Object.assign(chosen, { signal, op, row, column });
  const own = signalOf();
  byId("signal").value = signal;
  fill(byId("op"), own.ops, op);
  fill(byId("row"), own.labels, row);
  if (byId("rank-op")) {
    byId("rank-op").replaceChildren(...own.rankOps.map((n) => Page.element("option", { value: n, textContent: own.ops[n] })));
    byId("rank-op").value = own.rankOps.includes(op) ? op : own.rankOps[0];
  }
  await drawHeatmap();
  await choose(row, column);
}

async function begin() {
  Object.assign(about, await Cells.about());
  listFindings();
  if (about.signals.length) {
    const titles = about.signals.map((one) => `${one.signal}: ${one.meaning}`);
    fill(byId("signal"), titles, 0);
    const wanted = ["grad_reduced", "grad_unreduced", "actv_grad", "actv"].map((name) => about.signals.findIndex((one) => one.signal === name));
    const flow = Math.max(0, wanted.find((n) => n >= 0) ?? 0);
    fill(byId("depth-signal"), titles, flow);
    byId("depth-step").max = about.columns.starts.length - 1;
    listen();
    const [first] = Page.data("findings");
    const column = first ? columnOf(about.columns, first.step) : about.columns.starts.length - 1;
    byId("depth-step").value = column;
    if (about.lines.length > 12 && byId("rank-form")) byId("rank-form").value = "heatmap";
    const shown = first && (await showFinding(0));
    if (!shown) await showSignal(flow, Math.max(0, about.signals[flow].ops.indexOf("norm")), 0, column);
  }
  drawTimeline();
  if (about.signals.length) await drawDepth();
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => {
    drawTimeline();
    if (about.signals.length) inTurn(() => Promise.all([drawHeatmap(), drawDepth(), drawCurve(), drawRanks()]));
  });
  document.body.dataset.ready = "yes";
}

function listen() {
  const on = (id, type, act) => byId(id)?.addEventListener(type, () => {
    const value = Number(byId(id).value);
    inTurn(() => act(value));
  });
  on("signal", "change", (n) => {
    const op = about.signals[n].ops.indexOf(signalOf().ops[chosen.op]);
    const row = about.signals[n].labels.indexOf(signalOf().labels[chosen.row]);
    return showSignal(n, Math.max(0, op), Math.max(0, row), chosen.column);
  });
  on("op", "change", (n) => showSignal(chosen.signal, n, chosen.row, chosen.column));
  on("shown", "change", drawHeatmap);
  on("row", "change", (n) => choose(n, chosen.column));
  on("step", "change", (step) => choose(chosen.row, columnOf(about.columns, step)));
  on("rank-op", "change", drawRanks);
  on("rank-form", "change", drawRanks);
  on("depth-signal", "change", drawDepth);
  on("depth-step", "input", drawDepth);
  document.body.addEventListener("click", (event) => {
    const target = event.target.closest("[data-finding]");
    if (!target) return;
    inTurn(() => showFinding(Number(target.dataset.finding))).then(() => byId("signal").closest("section").scrollIntoView());
  });
}

begin();
