"""Signals of an optimizer's moments: its updates (``ur_distribution``), and the agreement of gradients with the first
moment in sign (``mg_direction``)."""

from __future__ import annotations

import logging
import math
import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager

from probe.core.backend.protocols import Adam, Optimizer, Shard, Tensor, Tensors
from probe.core.histogram import HISTOGRAM
from probe.core.instrumentation.context import Run
from probe.core.instrumentation.recorder import Recorder
from probe.core.instrumentation.selection import Watched
from probe.core.moments import columns_for
from probe.core.records import Coverage

SIGNALS = ("update", "ratio")
NEEDED = ("exp_avg", "exp_avg_sq")
"""The kinds of state from which an update is computed."""
LARGEST = "max_exp_avg_sq"
"""The kind that AMSGrad uses instead of ``exp_avg_sq``."""
WITHOUT = "ur_distribution: the optimizer keeps no first and second moment with betas, eps and a number of steps"
_STRETCH = re.compile(r"(\d+):(\d+)")
FIRST_MOMENTS = ("exp_avg", "momentum_buffer")
"""The kinds of state that are a running mean or sum of gradients; the first that exists is used."""

_log = logging.getLogger("probe")


@contextmanager
def updates_and_ratios(run: Run) -> Iterator[None]:
    """Record ``update`` and ``ratio`` of each parameter as used by this step's update: from the moments after it.

    A parameter without two moments has no row; an optimizer without any is logged once. Parameters are reduced one
    after the other, since the vectors are as large as the parameters.
    """
    hooks, tensors, warned = run.framework.hooks, run.framework.tensors, set[int]()

    def record(parameter: Watched, first: Tensor | Shard, second: Tensor | Shard, adam: Adam) -> None:
        first, coverage = unwrapped(first)
        second, _ = unwrapped(second)
        shape, _, described = tensors.describe(first)
        if not math.prod(shape):
            return
        whole = coverage or described
        for signal, vector in zip(SIGNALS, tensors.adam(first, second, adam), strict=True):
            recorder.record(signal, parameter.key, Shard(vector, whole) if whole else vector)

    def after(optimizer: Optimizer, owned: list[Watched]) -> None:
        lookup = hooks.adam(optimizer)

        def read(parameter: Watched) -> bool | None:
            state, adam = hooks.state(optimizer, parameter.thing), lookup(parameter.thing)
            if adam is None or not all(kind in state for kind in NEEDED):
                return None
            record(parameter, state["exp_avg"], state.get(LARGEST, state["exp_avg_sq"]), adam)
            return True

        if not run.read_each(owned, read, "ur_distribution") and owned and id(optimizer) not in warned:
            warned.add(id(optimizer))
            _log.warning("%s: %s, and no rows are written of it", WITHOUT, type(optimizer).__name__)

    with _recorder(run) as recorder, run.after_update.added(after):
        yield


@contextmanager
def _recorder(run: Run) -> Iterator[Recorder]:
    """Return the run's recorder, or another one if these signals have histograms and others do not."""
    settings, main = run.settings, run.recorder
    if "tensorboard" not in settings.formats or HISTOGRAM in settings.statistics:
        yield main
        return
    columns = columns_for((*main.columns, HISTOGRAM))
    distributions = Recorder(
        run.framework.tensors, columns, settings.eps, run.faults.note, lambda: len(main), distribution=True
    )
    with run.collectors.added(distributions), run.step_ended.added(distributions.clear):
        yield distributions


@contextmanager
def momentum_directions(run: Run) -> Iterator[None]:
    """Record ``mg_direction`` before the update: the part of elements whose gradient and first moment agree in sign.

    A parameter without one of the two has no row. If a parameter is sharded, the row is about this rank's shard. The
    rows are those of 0-d tensors, so that ``min``, ``max``, ``mean`` and ``norm`` all are that part.
    """
    hooks, tensors = run.framework.hooks, run.framework.tensors

    def direction(gradient: Tensor | Shard | None, moment: Tensor | Shard | None) -> Tensor | None:
        if gradient is None or moment is None:
            return None
        gradient, moment = _alike(tensors, gradient, moment)
        return tensors.agreement(gradient, moment) if math.prod(tensors.describe(gradient)[0]) else None

    def before(optimizer: Optimizer, owned: list[Watched], _: Tensor | None) -> None:
        gradient_of = hooks.gradients_of(optimizer, run.main_grad)
        directions = run.read_each(
            owned,
            lambda watched: direction(gradient_of(watched.thing), _first_moment(hooks.state(optimizer, watched.thing))),
            "mg_direction",
        )
        run.recorder.record_all("mg_direction", [key for key, _ in directions], [value for _, value in directions])

    expected = f"an optimizer with a first moment ({' or '.join(FIRST_MOMENTS)})"
    missing = missing_state(run, "mg_direction", lambda state: _first_moment(state) is not None, expected)
    with run.before_update.added(before), missing:
        yield


def _first_moment(state: Mapping[str, Tensor | Shard]) -> Tensor | Shard | None:
    return next((state[kind] for kind in FIRST_MOMENTS if kind in state), None)


def _alike(tensors: Tensors, gradient: Tensor | Shard, moment: Tensor | Shard) -> tuple[Tensor, Tensor]:
    """Return the elements that both have: DeepSpeed's ZeRO keeps moments of a stretch of the flattened parameter, but
    the gradient in the parameter's shape, and a rank may hold all of it."""
    (first, _), (second, _) = unwrapped(gradient), unwrapped(moment)
    shape, _, part = tensors.describe(first)
    if type(moment) is not Shard or part is not None or shape == tensors.describe(second)[0]:
        return first, second
    if type(gradient) is Shard and gradient.coverage == moment.coverage:
        return first.reshape(-1), second
    if type(gradient) is Shard or moment.coverage is None or moment.coverage.shape != shape:
        return first, second
    if (stretch := _STRETCH.fullmatch(moment.coverage.part)) is None:
        return first, second
    return first.reshape(-1)[int(stretch[1]) : int(stretch[2])], second


def unwrapped(value: Tensor | Shard) -> tuple[Tensor, Coverage | None]:
    """Return the tensor of a shard and its coverage; any other tensor as it is, with None."""
    return value if type(value) is Shard else (value, None)


@contextmanager
def missing_state(
    run: Run, key: str, has: Callable[[Mapping[str, Tensor | Shard]], bool], expected: str
) -> Iterator[None]:
    """Warn once for each optimizer that keeps no such state.

    Check after an update that was applied to a gradient: some optimizers make their state in the first one.

    Args:
        key: key of the configuration.
        has: returns true if the state of a parameter has something to collect.
        expected: the state that ``has`` checks for.
    """
    updating: set[int] = set()
    seen: set[int] = set()
    hooks = run.framework.hooks

    def before(optimizer: Optimizer, owned: list[Watched], _: Tensor | None) -> None:
        if id(optimizer) in seen:
            return
        gradient_of = hooks.gradients_of(optimizer, run.main_grad)
        if any(gradient_of(parameter.thing) is not None for parameter in owned):
            updating.add(id(optimizer))

    def after(optimizer: Optimizer, owned: list[Watched]) -> None:
        if id(optimizer) not in updating:
            return
        updating.discard(id(optimizer))
        if run.clock.outcome != "applied":
            return
        seen.add(id(optimizer))
        if not any(has(hooks.state(optimizer, parameter.thing)) for parameter in owned):
            _log.log(
                logging.WARNING if run.framework.groups.rank() == 0 else logging.INFO,
                "%s has no effect: expected %s, %s keeps none for the parameters watched; leave %s out",
                key,
                expected,
                type(optimizer).__name__,
                key,
            )

    with run.before_update.added(before), run.after_update.added(after):
        yield
