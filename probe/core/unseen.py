"""What is said where hooks are placed and none runs."""

from __future__ import annotations

import logging

from probe.core.run import Run

_log = logging.getLogger("probe")


def note_unseen(run: Run, what: str) -> None:
    """Counts a sampled step in which no module was seen to run that ``what`` is about; the first is logged."""
    where = f"{what}: steps in which no watched module was seen to run"
    if where not in run.faults.counts:
        _log.warning(
            "%s: no watched module was seen to run: compiled (torch.compile), or in evaluation mode?%s",
            what,
            ' compiled: "record" listens inside of what is compiled later' if run.settings.compiled == "skip" else "",
        )
    run.faults.lost(where, 1)
