"""What a sink is told when it is made."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class SinkContext:
    """The run, as far as a sink needs to know it."""

    directory: Path
    """This run's and rank's own output directory."""
    root: Path
    """``MONITOR_OUTPUT_DIR``: shared by runs and ranks."""
    rank: int
    ndigits: int | None = None
    """Decimal places of a CSV value; None for six significant digits."""
    steps_per_file: int = 1
    pp_stage: int = 0
    """Pipeline stage of this rank."""
    group_mates: tuple[int, ...] = (0,)
    """Ranks of this rank's pipeline group, itself included."""
    dump: bool = False
    """Whether findings are also written to a file."""
    resumed_at: int | None = None
    """The first step that is done now, in a directory that another run has begun; None if it has none."""
