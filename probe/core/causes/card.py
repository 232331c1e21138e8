"""An analysis as the first card of a report shows it."""

from __future__ import annotations

from probe.core.causes.analysis import Analysis
from probe.core.causes.classes import Cause
from probe.core.causes.located import Located
from probe.core.naming import cell_name
from probe.core.report.diagnosis import MOST, Diagnosis, Mark


def card(analysis: Analysis) -> Diagnosis:
    """What a report says of the cause: the main story first, then the others in order of time."""
    if analysis.diagnosis is None:
        return Diagnosis("Nothing was found.", (), 0, " ".join(analysis.notes))
    told = [analysis.diagnosis, *analysis.others]
    pairs = [pair for diagnosis in told for pair in diagnosis.story.findings]
    text = "\n".join(diagnosis.text for diagnosis in told)
    return Diagnosis(text, [_mark(*pair) for pair in pairs[:MOST]], analysis.number, " ".join(analysis.notes))


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
