"""The description of a run in its manifest, as the run begins."""

from __future__ import annotations

import time
from collections.abc import Sequence
from itertools import chain

from probe import __version__
from probe.core.instrumentation.context import Run
from probe.core.naming import Name
from probe.core.storage import run_directory
from probe.core.storage.manifest import DATA, PIPELINE, RunDescription


def described(run: Run, number: int, first: int, mates: Sequence[int]) -> dict[str, object]:
    """Everything that is known before the first step.

    Args:
        number: of the run, the same on all ranks.
        first: number of the first step.
        mates: ranks of the pipeline that this rank is a stage of.
    """
    now, hooks, rank = time.localtime(), run.framework.hooks, run.framework.groups.rank()
    known = RunDescription(
        probe=__version__,
        framework=run.framework.name,
        framework_version=run.framework.version,
        rank=rank,
        world_size=run.framework.groups.world_size(),
        groups=_groups(run, mates),
        run=number,
        first_step=first,
        pp_stage=pipeline_stage(rank, mates),
        model=[type(model).__name__ for _, model in run.chunks],
        optimizer=[type(optimizer).__name__ for optimizer in run.optimizers],
        optimizer_state_names=[dict(hooks.state_names(optimizer)) for optimizer in run.optimizers],
        raw_names=_raw_names(run),
        start_time=run_directory.time_text(now),
        time_zone=time.strftime("%Z", now),
        directory_time_zone=str(run_directory.ZONE),
        config=run.settings.model_dump(mode="json"),
    )
    return dict(known)


def pipeline_stage(rank: int, mates: Sequence[int]) -> int:
    """Which stage of the pipeline of ``mates`` this rank is."""
    return mates.index(rank) if rank in mates else 0


def _groups(run: Run, mates: Sequence[int]) -> dict[str, list[int]]:
    """The groups that this rank is in: those that the framework has a name for, and those that the user gave."""
    groups = {name: list(ranks) for name, ranks in run.framework.parallel.named().items()}
    if len(mates) > 1:
        groups.setdefault(PIPELINE, list(mates))
    if len(run.replicas) > 1:
        groups.setdefault(DATA, list(run.replicas))
    return groups


def _raw_names(run: Run) -> dict[str, str]:
    """What the framework calls those modules and parameters that go by another name here."""
    hooks = run.framework.hooks
    named = chain.from_iterable(chain(hooks.modules(model), hooks.parameters(model)) for _, model in run.chunks)
    return {name: name.raw for name, _ in named if isinstance(name, Name)}
