"""Context of a sink: facts about the run."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from probe.core.fields import Section

if TYPE_CHECKING:
    from probe.core.output.metrics.hub import MetricsHub


@dataclass(frozen=True)
class SinkContext:
    """Facts about the run for a sink."""

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
    """True if findings are also written to a file."""
    is_summed_up: bool = False
    """True if a verdict follows at the end of the run: findings of rows are logged as one line a step."""
    run: str = ""
    """The name of this run's and rank's directory, also where none is made; empty if unknown."""
    start: str = ""
    """Time at which the run began, such as ``2026-12-03T21:34:40+0800``."""
    first_step: int = 0
    """The number of its first step."""
    resumed_at: int | None = None
    """The first step that is done now, in a directory that another run has begun; None if it has none."""
    run_numbers: bool = False
    """True if the rows are numbers of the run, which another thread writes: they get files of their own."""
    options: Mapping[str, Section] = field(default_factory=dict)
    """Options of sinks, by the name of the sink."""
    metrics: MetricsHub | None = None
    """Ways out for metrics of this rank, which its sinks share; None without a running monitor."""
