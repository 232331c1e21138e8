"""What Adam and its kin make of their moments: ``ur_distribution``."""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

from probe.core.backend.protocols import Adam, Optimizer, Shard, Tensor
from probe.core.histogram import HISTOGRAM
from probe.core.instrumentation.context import Run
from probe.core.instrumentation.recorder import Recorder
from probe.core.instrumentation.selection import Watched
from probe.core.moments import columns_for
from probe.core.records import Batch

SIGNALS = ("update", "ratio")
NEEDED = ("exp_avg", "exp_avg_sq")
"""The kinds of state that an update is made of."""
LARGEST = "max_exp_avg_sq"
"""What AMSGrad takes instead of the second of them."""
WITHOUT = "ur_distribution: the optimizer keeps no first and second moment with betas, eps and a number of steps"


_log = logging.getLogger("probe")


@contextmanager
def updates_and_ratios(run: Run) -> Iterator[None]:
    """``update`` and ``ratio`` of each parameter, as this step's update has used them: from the moments after it.

    What has no two moments gives no row, which is said once. One parameter after the other: the vectors are as large as
    the parameters, and none outlives its reduction.
    """
    hooks, tensors, told = run.framework.hooks, run.framework.tensors, set[int]()

    def record(parameter: Watched, first: Tensor | Shard, second: Tensor | Shard, about: Adam) -> None:
        first, coverage = _held(first)
        second, _ = _held(second)
        shape, _, known = tensors.describe(first)
        if not math.prod(shape):
            return
        whole = coverage or known
        for signal, vector in zip(SIGNALS, tensors.adam(first, second, about), strict=True):
            recorder.record(signal, parameter.key, Shard(vector, whole) if whole else vector)

    def after(optimizer: Optimizer, owned: list[Watched]) -> None:
        lookup = hooks.adam(optimizer)
        found = False
        for parameter in owned:
            try:
                state, about = hooks.state(optimizer, parameter.thing), lookup(parameter.thing)
                if about is None or not all(kind in state for kind in NEEDED):
                    continue
                record(parameter, state["exp_avg"], state.get(LARGEST, state["exp_avg_sq"]), about)
                found = True
            except Exception as error:  # noqa: BLE001 - one parameter's trouble is not the others'
                run.faults.note("ur_distribution", error)
        if owned and not found and id(optimizer) not in told:
            told.add(id(optimizer))
            _log.warning("%s: %s, and no rows are written of it", WITHOUT, type(optimizer).__name__)

    with _recorder(run) as recorder, run.after_update.added(after):
        yield


@contextmanager
def _recorder(run: Run) -> Iterator[Recorder]:
    """The run's own; or another, where these signals are to be shown as histograms and others are not."""
    settings, own = run.settings, run.recorder
    if "tensorboard" not in settings.formats or HISTOGRAM in settings.statistics:
        yield own
        return
    columns = columns_for((*own.columns, HISTOGRAM))
    distributions = Recorder(run.framework.tensors, columns, settings.eps, run.faults.note, lambda: len(own))
    with run.collectors.added(_Distributions(distributions)), run.step_ended.added(distributions.clear):
        yield distributions


class _Distributions:
    """Rows whose histograms are written though no op asks for them."""

    def __init__(self, recorder: Recorder) -> None:
        self._recorder = recorder

    def __len__(self) -> int:
        return len(self._recorder)

    def drain(self) -> Callable[[int], list[Batch]]:
        pending = self._recorder.drain()
        return lambda step: [replace(batch, distribution=True) for batch in pending.batches(step)]


def _held(given: Tensor | Shard) -> tuple[Tensor, Any]:
    return (given.tensor, given.coverage) if type(given) is Shard else (given, None)
