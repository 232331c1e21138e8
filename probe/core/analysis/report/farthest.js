"use strict";
// The ranks farthest from their replicas, and the way from there to the rank.
const Farthest = {
  kinds: byId("far-table") ? Page.data("far") : [],

  begin() {
    if (!Farthest.kinds.length) return;
    fill(byId("far-kind"), Farthest.kinds.map((kind) => kind.title), 0);
    byId("far-kind").addEventListener("change", Farthest.list);
    byId("far-table").addEventListener("click", (event) => {
      const row = event.target.closest("[data-far]");
      if (row) inTurn(() => Farthest.show(Number(row.dataset.far))).then(() => byId("groups-plot").closest("section").scrollIntoView());
    });
    Farthest.list();
  },

  kind: () => Farthest.kinds[Number(byId("far-kind").value)],

  list() {
    const names = ["rank", "factor", "value", "median", "step", "label"];
    const heads = ["rank", "factor", "value", "median of the replicas", "step", "name"];
    const head = Page.element("tr", {}, ...heads.map((text) => Page.element("th", {}, text)));
    const rows = Farthest.kind().ranks.map((far, n) => {
      const row = Page.element("tr", {}, ...names.map((name) => Page.element("td", {}, String(far[name] ?? ""))));
      row.dataset.far = n;
      return row;
    });
    byId("far-table").replaceChildren(Page.element("table", {}, Page.element("thead", {}, head), Page.element("tbody", {}, ...rows)));
  },

  // Shows the rank, and the cell of its number if it is one of a tensor.
  async show(n) {
    const { signal, op, ranks } = Farthest.kind();
    const far = ranks[n];
    Lines.wanted = far.rank;
    if (signal < 0) return drawRanks();
    const row = Lines.rowOf(signal, far.name, far.stage, far.rank);
    return showSignal(signal, op, Math.max(0, row), columnOf(about.columns, far.step));
  },
};
Farthest.begin();
