"""An analysis as the first card of a report shows it."""

from __future__ import annotations

from probe.core.analysis.diagnosis.analyse import Analysis
from probe.core.analysis.diagnosis.causality import Cause
from probe.core.analysis.diagnosis.extent import counted, nothing_judged, run_found
from probe.core.analysis.diagnosis.located_finding import Located
from probe.core.analysis.report.findings import MOST, Diagnosis, Mark
from probe.core.naming import cell_name
from probe.core.printable import printable


def card(analysis: Analysis) -> Diagnosis:
    """What a report says of the cause: the main story first, then the others in order of time."""
    told = [analysis.diagnosis, *analysis.others] if analysis.diagnosis else []
    pairs = [pair for diagnosis in told for pair in diagnosis.story.findings]
    text = "\n".join([*summary(analysis), *(printable(diagnosis.text) for diagnosis in told)])
    clear = bool(analysis.extent.rows) and not analysis.unexplained
    marks, note = [_mark(*pair) for pair in pairs[:MOST]], " ".join(analysis.notes)
    return Diagnosis(text, marks, analysis.number, note, clear)


def summary(analysis: Analysis) -> list[str]:
    """What is to be known before any diagnosis: what was judged if nothing was found, and what the run itself found
    where its rows cannot say it."""
    if not analysis.extent.rows:
        found = list(run_found(analysis.run))
        if any(counted(analysis.run).values()) and not analysis.diagnosis:
            found.append('No file says which: "alert": {"dump": true} would have.')
        return [f"{_sentence(nothing_judged(analysis.run))}.", " ".join(found)]
    if analysis.unexplained:
        found = list(run_found(analysis.run))
        return [f"Nothing was found in what was judged ({analysis.extent.text}). But: {' '.join(found)}"]
    if analysis.diagnosis is None:
        return [f"Nothing was found in what was judged: {analysis.extent.text}."]
    return []


def _sentence(text: str) -> str:
    return text[:1].upper() + text[1:]


def _mark(located: Located, cause: Cause) -> Mark:
    finding = located.finding
    return Mark(
        rule=finding.rule,
        signal=finding.signal,
        name=cell_name(finding.key),
        op=finding.op,
        value=finding.value,
        step=finding.step,
        rank=finding.rank,
        micro_step=located.micro_step,
        cause=cause.value,
        message=finding.message,
        vpp_stage=finding.key.stage,
        order=finding.order,
    )
