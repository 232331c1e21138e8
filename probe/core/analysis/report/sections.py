"""Sections of a report that are text and tables: cause, findings, configuration, cost, problems."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from html import escape
from typing import Any

from probe.core.analysis.report.findings import Diagnosis, Mark
from probe.core.analysis.report.layout import Columns, FinePlan, ReportPlan
from probe.core.analysis.report.page import PageSection
from probe.core.messages import plural
from probe.core.naming import signal_of
from probe.core.storage.directories import RankDirectory, RecordedRun, listed
from probe.core.storage.manifest import FACTS
from probe.core.storage.problems import Problems

MOST_PROBLEMS = 100
MOST_COSTS = 256
"""Most directories whose cost is listed."""
MOST_NAMED = 64
"""Most missing ranks that are listed one by one; more are listed as spans."""

DIFFERENT = 8
"""Most different values of ranks that are shown."""


def table(header: Sequence[str], rows: Iterable[Sequence[object]], numeric: Sequence[int] = ()) -> str:
    """HTML table of texts and numbers; the columns ``numeric`` are aligned to the right."""

    def cell(tag: str, n: int, value: object) -> str:
        kind = ' class="number"' if n in numeric else ""
        return f"<{tag}{kind}>{escape(str(value))}</{tag}>"

    def line(tag: str, values: Sequence[object]) -> str:
        return f"<tr>{''.join(cell(tag, n, value) for n, value in enumerate(values))}</tr>"

    body = "\n".join(line("td", row) for row in rows)
    return f"<table><thead>{line('th', header)}</thead><tbody>\n{body}\n</tbody></table>"


def facts(pairs: Iterable[tuple[str, object]]) -> str:
    """HTML list of names and values."""
    items = "".join(f"<dt>{escape(name)}</dt><dd>{escape(str(value))}</dd>" for name, value in pairs)
    return f'<dl class="facts">{items}</dl>'


def first_cause(diagnosis: Diagnosis) -> PageSection:
    """Card at the top."""
    first = diagnosis.findings[0] if diagnosis.findings else None
    paragraphs = "".join(f"<p>{escape(text)}</p>" for text in diagnosis.paragraph.split("\n") if text.strip())
    look = "bad" if first else "good" if diagnosis.clear else "unknown"
    card = f'<div class="card {look}" id="cause">{paragraphs}'
    if first and diagnosis.is_placed:
        card += facts(_about(first)) + '<button type="button" data-finding="0">Show it in the heatmap</button>'
    note = f'<p class="quiet">{escape(diagnosis.note)}</p>' if diagnosis.note else ""
    return PageSection("first-cause", "First cause", f"{card}</div>{note}")


def _about(mark: Mark) -> Iterator[tuple[str, object]]:
    yield "where", mark.name
    yield "what", f"{mark.op} of {mark.signal} ({signal_of(mark.signal).meaning})"
    if mark.value is not None:
        yield "value", f"{mark.value:.6g}"
    micro = "" if mark.micro_step is None else f", micro step {mark.micro_step}"
    yield "when", f"step {mark.step}{micro}"
    yield "rank", mark.rank
    if mark.rule:
        yield "rule", mark.rule


def timeline(diagnosis: Diagnosis) -> PageSection:
    """Timeline and table of the findings."""
    if not diagnosis.findings:
        return PageSection("findings", "Findings", '<p class="quiet">None.</p>')
    listed = len(diagnosis.findings)
    findings = plural(listed, "finding")
    more = f" The first {listed:,} of {diagnosis.total:,} are shown." if diagnosis.total > listed else ""
    html = (
        '<p class="quiet">Each dot stands for the findings of one kind at one step; larger dots for '
        f"more findings.{more} "
        "A click on a row of the table shows its cell in the heatmap.</p>"
        f'<div id="timeline" class="plot"></div><details><summary>Table of {listed:,} {findings}</summary>'
        '<div class="scroll" id="findings-table"></div></details>'
    )
    return PageSection("findings", f"Findings ({diagnosis.total:,})", html)


def configuration(run: RecordedRun) -> PageSection:
    """Fields of the manifests and the configuration of the monitor."""
    manifests = [directory.manifest for directory in run.directories]
    pairs: list[tuple[str, object]] = [("directories", len(run.directories)), ("ranks", len(run.ranks))]
    pairs += [("missing ranks", _spans(run.missing))] if run.missing else []
    pairs += [(title, _agreed(manifests, key)) for key, title in FACTS.items() if any(key in m for m in manifests)]
    flat = [dict(_flat(manifest.config)) for manifest in manifests if manifest.config]
    rows = [(key, _agreed(flat, key)) for key in dict.fromkeys(key for config in flat for key in config)]
    keys = f'<details><summary>Every key</summary><div class="scroll">{table(("key", "value"), rows)}</div></details>'
    return PageSection("configuration", "Run configuration", facts(pairs) + (keys if rows else ""))


def _spans(ranks: Sequence[int]) -> str:
    """Ranks as text; many as spans."""
    return ", ".join(map(str, ranks)) if len(ranks) <= MOST_NAMED else listed(ranks)


def _agreed(manifests: Sequence[Mapping[str, Any]], key: str) -> str:
    """Value under ``key``; the different ones if manifests differ."""
    values = list(dict.fromkeys(_text(manifest[key]) for manifest in manifests if key in manifest))
    shown = " | ".join(values[:DIFFERENT])
    return f"{shown} | and {len(values) - DIFFERENT} more" if len(values) > DIFFERENT else shown


def _text(value: object) -> str:
    return ", ".join(map(str, value)) if isinstance(value, list) else str(value)


def _flat(config: Mapping[str, Any], before: str = "") -> Iterator[tuple[str, Any]]:
    for key, value in config.items():
        if isinstance(value, dict) and value:
            yield from _flat(value, f"{before}{key}.")
        else:
            yield f"{before}{key}", value


def cost(run: RecordedRun) -> PageSection:
    """Time that the monitor took on each rank, and faults inside it."""
    ended = [directory for directory in run.directories if directory.manifest.cost_seconds]
    silent = len(run.directories) - len(ended)
    text = "Training waits for hooks and drain; delivery runs in a thread of its own."
    if silent:
        have = plural(silent, "has", "have")
        text += f" {silent} of {len(run.directories)} directories {have} no cost: the run did not end there."
    header = (
        "rank",
        "steps",
        "hooks (s)",
        "drain (s)",
        "ms a step",
        "delivery (s)",
        "findings",
        "faults inside the monitor",
    )
    if len(ended) > MOST_COSTS:
        ended = sorted(ended, key=_seconds_a_step, reverse=True)[:MOST_COSTS]
        text += f" The {MOST_COSTS} directories with most time a step on the training thread are listed."
    shown = table(header, map(_cost, ended), numeric=range(7)) if ended else ""
    return PageSection(
        "cost", "The monitor's own cost", f'<p class="quiet">{escape(text)}</p><div class="scroll">{shown}</div>'
    )


def _seconds_a_step(directory: RankDirectory) -> float:
    hooks, drain, _, steps = _cost_seconds(directory)
    return (hooks + drain) / steps if steps else 0.0


def _cost_seconds(directory: RankDirectory) -> tuple[float, ...]:
    """Seconds of hooks, drain and delivery, and the number of steps."""
    seconds = directory.manifest.cost_seconds
    cells = (seconds.get(key) for key in ("hooks", "drain", "delivery", "steps"))
    return tuple(float(cell) if isinstance(cell, (int, float)) else 0.0 for cell in cells)


def _cost(directory: RankDirectory) -> tuple[object, ...]:
    hooks, drain, delivery, steps = _cost_seconds(directory)
    failed = ", ".join(f"{place}: {number}" for place, number in directory.manifest.faults.items())
    each = f"{1000 * (hooks + drain) / steps:.2f}" if steps else ""
    return (
        directory.rank,
        f"{steps:.0f}",
        f"{hooks:.2f}",
        f"{drain:.2f}",
        each,
        f"{delivery:.2f}",
        "" if directory.manifest.findings is None else directory.manifest.findings,
        failed or "none",
    )


def reading(problems: Problems) -> PageSection:
    """Data that could not be read."""
    kept = sorted(problems.kept, key=lambda problem: (str(problem.path), problem.line or 0, problem.what))
    lines = replace(problems, kept=kept).lines(MOST_PROBLEMS)  # pieces of a run find them in another order
    if not lines:
        return PageSection("reading", "Problems in reading", '<p class="quiet">None: everything was read.</p>')
    items = "".join(f"<li>{escape(line)}</li>" for line in lines)
    what = "Data were left out because of these:" if problems.skipped else "No data were left out, but:"
    return PageSection("reading", "Problems in reading", f"<p>{what}</p><ul>{items}</ul>")


def interactive(plan: ReportPlan, ranks: int) -> list[PageSection]:
    """Sections that ``report.js`` fills."""
    if not plan.signals:
        nothing = '<p class="quiet">There are no numbers to show.</p>'
        return [PageSection("layers", "Layers and steps", nothing)]
    by_rank = [_fine(plan, plan.fine)] if plan.fine else [_ranks(plan)] if ranks > 1 else []
    return [_heatmap(plan), *by_rank, _depth()]


def _heatmap(plan: ReportPlan) -> PageSection:
    html = (
        f'<p class="quiet">{_columns(plan.columns)} {_rows(plan)} Over all ranks and micro batches; NaN and Inf '
        "take precedence over every number. Click a cell to see where its number was written. "
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
    return PageSection("layers", "Layers and steps", html)


def _ranks(plan: ReportPlan) -> PageSection:
    grouped = f" Each line stands for {plan.ranks_a_line} consecutive ranks." if plan.ranks_a_line > 1 else ""
    html = (
        f'<p class="quiet">The row chosen above, rank by rank. {_columns(plan.rank_columns)}{grouped} '
        "Four digits are kept here.</p>"
        '<div class="controls"><label>op <select id="rank-op"></select></label><label>as <select id="rank-form">'
        '<option value="lines">curves</option><option value="heatmap">heatmap</option></select></label></div>'
        '<h3 id="ranks-heading"></h3><div id="ranks-plot" class="plot"></div>'
    )
    return PageSection("by-rank", "Ranks side by side", html)


def _fine(plan: ReportPlan, fine: FinePlan) -> PageSection:
    several = f"{fine.ranks_a_line} consecutive ranks" if fine.ranks_a_line > 1 else "one rank"
    html = (
        '<p class="quiet">The row chosen above, rank over step. Each line of the first heatmap stands for '
        f"{plan.ranks_a_line} ranks that are neighbours in the order; {_columns(plan.rank_columns)} Click a line, or "
        "drag over some, to see its ranks below. A cell shows the largest magnitude; NaN and Inf take precedence.</p>"
        '<div class="controls"><label>op <select id="rank-op"></select></label>'
        '<label>order by <select id="groups-order"></select></label>'
        '<label>rank <input id="groups-rank" type="number" min="0"></label></div>'
        '<h3 id="groups-heading"></h3><div id="groups-plot" class="plot"></div>'
        '<h3 id="fine-heading"></h3>'
        f'<p class="quiet">Each line is {several}; {_columns(fine.columns)} Two digits are kept here. '
        'Click a cell to see its rank.</p><div id="fine-plot" class="plot"></div>'
        '<dl id="fine-cell" class="facts" aria-live="polite"></dl>'
    )
    return PageSection("by-rank", "Ranks over steps", html)


def _depth() -> PageSection:
    html = (
        '<p class="quiet">One signal from the first layer to the last, at one step; dotted: the step before; the band '
        "spans all steps.</p>"
        '<div class="controls"><label>signal <select id="depth-signal"></select></label>'
        '<label>step <input id="depth-step" type="range" min="0" value="0"> <output id="depth-label"></output></label>'
        '</div><div id="depth" class="plot"></div>'
    )
    return PageSection("over-depth", "Gradient flow over depth", html)


def _columns(columns: Columns) -> str:
    if columns.width > 1:
        return f"Each column stands for {columns.width} steps and shows the largest magnitude among them."
    return "Each column is one step."


def _rows(plan: ReportPlan) -> str:
    grouped = [signal.signal for signal in plan.signals if signal.most_members > 1]
    if not grouped:
        return "Each row is one tensor, in the order of the model."
    return (
        f"Names are grouped by layer in {', '.join(grouped)}: there are too many to show; each row shows its largest."
    )
