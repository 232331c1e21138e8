"""Values of steps on their way from training to the thread that logs and writes them."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from numbers import Real
from typing import Any, NamedTuple

import numpy as np

from probe.core.backend.protocols import FrameworkAdapter, Shard, Tensor
from probe.core.faults import Faults
from probe.core.instrumentation.recorder import Pending, Recorder
from probe.core.moments import columns_for
from probe.core.records import Batch, Key
from probe.core.worker import Worker

VALUES = "run"
"""Signal of numbers of the run, each the mean of a tensor."""
WAITING = 1000
"""Most steps that wait for the thread; further ones are dropped and counted."""
Norms = Mapping[str, Sequence[tuple[Key, Tensor | Shard]]]
"""Tensors whose norms are computed, by signal."""


class StepNumbers(NamedTuple):
    """Numbers of a step, on the host."""

    step: int
    """Number of the step, from 1 and over all runs of the training."""
    time: float
    """Seconds since the epoch at its end."""
    seconds: float
    values: Mapping[str, tuple[float, ...]]
    """Numbers by name; several if a sequence was passed, one a micro batch."""
    batches: Sequence[Batch]
    """Rows of the tensors whose norms were asked for."""

    def value(self, name: str) -> float | None:
        """Return the mean of the numbers called ``name``; None if there are none."""
        found = self.values.get(name, ())
        return float(np.mean(found)) if found else None


class StepValues:
    """Queue of steps. Tensors are reduced where they are, and copied to the host once a step; only the queue's own
    thread waits for a device.

    Args:
        receive: called with each step, in their order, on the queue's thread.
    """

    def __init__(self, framework: FrameworkAdapter, faults: Faults, receive: Callable[[StepNumbers], None]) -> None:
        self._is_tensor, self._receive, self.faults = framework.tensors.is_tensor, receive, faults
        self._values, self._norms = (
            Recorder(framework.tensors, columns_for((op,)), 0.0, faults.note) for op in ("mean", "norm")
        )
        self._worker = Worker("probe-callbacks", "callbacks", faults, room=WAITING, inline=True)

    def submit(self, step: int, seconds: float, values: Mapping[str, Any], norms: Norms | None = None) -> None:
        """Hand a step over; values that are None are left out."""
        known: dict[str, tuple[float, ...]] = {}
        at = time.time()
        for name, value in values.items():
            several = value if isinstance(value, list | tuple) else [value]
            if any(map(self._is_tensor, several)):
                for number, each in enumerate(several):
                    self._values.record(VALUES, Key(name, micro_step=number), each)
            elif several and value is not None:
                known[name] = tuple(map(_number, several))
        for signal, rows in (norms or {}).items():
            self._norms.record_all(signal, [key for key, _ in rows], [tensor for _, tensor in rows])
        pending = [recorder.drain() for recorder in (self._values, self._norms) if len(recorder)]
        self._worker.submit(lambda: self._receive(_arrived(step, at, seconds, known, pending)))

    def run(self, work: Callable[[], None]) -> None:
        """Do ``work`` on the queue's thread, after the steps that were handed over."""
        self._worker.submit(work)

    def flush(self, timeout: float) -> bool:
        """Wait until every step is received; return False if that takes longer than ``timeout`` seconds."""
        return self._worker.flush(timeout)

    def close(self, timeout: float) -> None:
        """Wait as :meth:`flush` does, then end the thread."""
        self._worker.close(timeout)


def _number(value: Any) -> float:
    """Return a number, or the mean of an array."""
    return float(value) if isinstance(value, Real) else float(np.mean(np.asarray(value, dtype=np.float64)))


def _arrived(
    step: int, at: float, seconds: float, known: Mapping[str, tuple[float, ...]], pending: Sequence[Pending]
) -> StepNumbers:
    """Return a step with the numbers that were on their way; wait for the device."""
    batches = [batch for each in pending for batch in each.batches(step)]
    values = dict(known)
    for batch in batches:
        if batch.signal == VALUES:
            for key, value in zip(batch.keys, batch.op("mean").tolist(), strict=True):
                values[key.name] = (*values.get(key.name, ()), value)
    return StepNumbers(step, at, seconds, values, [batch for batch in batches if batch.signal != VALUES])
