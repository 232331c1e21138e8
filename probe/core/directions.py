"""``mg_direction``: whether gradients point where the optimizer already goes."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from contextlib import contextmanager

from probe.core.framework import Optimizer, Shard, Tensor
from probe.core.records import Key
from probe.core.run import Run
from probe.core.selection import Watched

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
        gradient, moment = _held(gradient), _held(moment)
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

    run.before_update.append(before)
    yield


def _first_moment(state: Mapping[str, Tensor | Shard]) -> Tensor | Shard | None:
    return next((state[kind] for kind in FIRST_MOMENTS if kind in state), None)


def _held(given: Tensor | Shard) -> Tensor:
    return given.tensor if type(given) is Shard else given
