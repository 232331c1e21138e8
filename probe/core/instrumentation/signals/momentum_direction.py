"""``mg_direction``: whether gradients point where the optimizer already goes."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager

from probe.core.backend.protocols import Optimizer, Shard, Tensor, Tensors
from probe.core.instrumentation.context import Run
from probe.core.instrumentation.selection import Watched
from probe.core.instrumentation.signals.missing_state import missing_state
from probe.core.records import Key

_STRETCH = re.compile(r"(\d+):(\d+)")
FIRST_MOMENTS = ("exp_avg", "momentum_buffer")
"""The kinds of state that are a running mean or sum of gradients; the first that is there is taken."""


@contextmanager
def momentum_directions(run: Run) -> Iterator[None]:
    """``mg_direction`` before the update: the fraction of elements whose gradient and first moment agree in sign.

    A parameter without one of the two gives no row. Where ranks share a parameter out, the row is about this rank's
    part. The rows are those of 0-d tensors, so that ``min``, ``max``, ``mean`` and ``norm`` all are the fraction.
    """
    hooks, tensors = run.framework.hooks, run.framework.tensors

    def direction(optimizer: Optimizer, parameter: Watched) -> Tensor | None:
        gradient = hooks.gradient(optimizer, parameter.thing, run.main_grad)
        moment = _first_moment(hooks.state(optimizer, parameter.thing))
        if gradient is None or moment is None:
            return None
        gradient, moment = _alike(tensors, gradient, moment)
        return tensors.agreement(gradient, moment) if math.prod(tensors.describe(gradient)[0]) else None

    def before(optimizer: Optimizer, owned: list[Watched], _: Tensor | None) -> None:
        found: list[tuple[Key, Tensor]] = []
        for parameter in owned:
            try:
                if (value := direction(optimizer, parameter)) is not None:
                    found.append((parameter.key, value))
            except Exception as error:  # noqa: BLE001 - one parameter's trouble is not the others'
                run.faults.note("mg_direction", error)
        run.recorder.record_all("mg_direction", [key for key, _ in found], [value for _, value in found])

    wanted = f"an optimizer with a first moment ({' or '.join(FIRST_MOMENTS)})"
    missing = missing_state(run, "mg_direction", lambda state: _first_moment(state) is not None, wanted)
    with run.before_update.added(before), missing:
        yield


def _first_moment(state: Mapping[str, Tensor | Shard]) -> Tensor | Shard | None:
    return next((state[kind] for kind in FIRST_MOMENTS if kind in state), None)


def _alike(tensors: Tensors, gradient: Tensor | Shard, moment: Tensor | Shard) -> tuple[Tensor, Tensor]:
    """The elements that both are about: DeepSpeed's ZeRO keeps moments of a stretch of the flattened parameter, and the
    gradient in its own shape, of which a rank may hold all."""
    first, second = _held(gradient), _held(moment)
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


def _held(given: Tensor | Shard) -> Tensor:
    return given.tensor if type(given) is Shard else given
