"""What is said where hooks are placed and none runs."""

from __future__ import annotations

import logging

from probe.core.instrumentation.context import CAPTURED, Run

REMEDIES = {
    "skip": (
        "compiled (torch.compile, mindspore.jit), or in evaluation mode? Inside what torch.compile compiles, "
        'compiled: "record" listens'
    ),
    "record": (
        "compiled by torch.compile and run before set_monitor, or in evaluation mode? Call set_monitor before the "
        "first forward"
    ),
}
"""What to do, by the setting ``compiled``."""

_log = logging.getLogger("probe")


def note_unseen(run: Run, what: str) -> None:
    """Counts a sampled step in which no module was seen to run that ``what`` is about; the first is logged."""
    if CAPTURED in run.faults.counts:
        return  # which says it
    where = f"{what}: steps in which no watched module was seen to run"
    if where not in run.faults.counts:
        _log.warning("%s: no watched module was seen to run: %s", what, REMEDIES[run.settings.compiled])
    run.faults.lost(where, 1)
