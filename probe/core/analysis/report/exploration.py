"""The parts of a report that one can click at: heatmaps, curves, gradients over depth, ranks side by side."""

from __future__ import annotations

from probe.core.analysis.report.layout import Columns, Plan
from probe.core.analysis.report.page import Section


def sections(plan: Plan, ranks: int) -> list[Section]:
    """What ``report.js`` fills."""
    if not plan.signals:
        nothing = '<p class="quiet">There are no numbers to show.</p>'
        return [Section("layers", "Layers and steps", nothing)]
    return [_heatmap(plan), *([_ranks(plan)] if ranks > 1 else []), _depth()]


def _heatmap(plan: Plan) -> Section:
    html = (
        f'<p class="quiet">{_columns(plan.columns)} {_rows(plan)} Over all ranks and micro batches; what is not finite '
        "comes before every number. Click a cell to see where its number was written. "
        "Empty: nothing was written. Drag to zoom, double-click to go back.</p>"
        '<div class="controls">'
        '<label>signal <select id="signal"></select></label><label>op <select id="op"></select></label>'
        '<label>colour <select id="shown"><option value="value">the largest magnitude</option>'
        '<option value="least">the smallest magnitude</option></select></label></div>'
        '<div id="heatmap" class="plot"></div><p id="under-pointer" class="quiet" aria-live="off">&nbsp;</p>'
        '<div class="controls"><label>row <select id="row"></select></label>'
        '<label>step <input id="step" type="number"></label></div>'
        '<dl id="cell" class="facts" aria-live="polite"></dl>'
        '<h3 id="curve-heading"></h3><div id="curve" class="plot"></div>'
    )
    return Section("layers", "Layers and steps", html)


def _ranks(plan: Plan) -> Section:
    grouped = f" Each line stands for {plan.ranks_a_line} consecutive ranks." if plan.ranks_a_line > 1 else ""
    html = (
        f'<p class="quiet">The row that is chosen above, rank by rank. {_columns(plan.rank_columns)}{grouped} '
        "Four digits are kept here.</p>"
        '<div class="controls"><label>op <select id="rank-op"></select></label><label>as <select id="rank-form">'
        '<option value="lines">curves</option><option value="heatmap">heatmap</option></select></label></div>'
        '<h3 id="ranks-heading"></h3><div id="ranks-plot" class="plot"></div>'
    )
    return Section("by-rank", "Ranks side by side", html)


def _depth() -> Section:
    html = (
        '<p class="quiet">One signal from the first layer to the last, at one step; dotted, what came before; the band '
        "is what there was at all steps.</p>"
        '<div class="controls"><label>signal <select id="depth-signal"></select></label>'
        '<label>step <input id="depth-step" type="range" min="0" value="0"> <output id="depth-label"></output></label>'
        '</div><div id="depth" class="plot"></div>'
    )
    return Section("over-depth", "Gradient flow over depth", html)


def _columns(columns: Columns) -> str:
    if columns.width > 1:
        return f"Each column stands for {columns.width} steps and shows the largest magnitude among them."
    return "Each column is one step."


def _rows(plan: Plan) -> str:
    grouped = [signal.signal for signal in plan.signals if signal.most_members > 1]
    if not grouped:
        return "Each row is one tensor, in the order of the model."
    return (
        f"Names are grouped by layer in {', '.join(grouped)}: there are too many to show; each row shows its largest."
    )
