"""What the features of a step are made of, on its way to the host, and the rows that come of it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import NamedTuple

import numpy as np

from probe.core.backend.protocols import Block, FrameworkAdapter, Tensor
from probe.core.records import Array, Batch, Key

Finish = Callable[[Array], Mapping[str, float] | None]
"""Makes the columns of a row, on the host, of what was computed where the tensors are; None if there is nothing to say
and no row."""


class Reading(NamedTuple):
    """A row to be."""

    shape: tuple[int, ...]
    dtype: object
    order: int
    finish: Finish
    rows: int
    """Of its block."""


class Collected:
    """One step's features. Used on the training thread alone; waits for no device."""

    def __init__(self, framework: FrameworkAdapter, recorded: Callable[[], int]) -> None:
        self._tensors, self._recorded = framework.tensors, recorded
        self.clear()

    def clear(self) -> None:
        """Forgets the step."""
        self._readings: dict[str, dict[Key, Reading]] = {}
        self._blocks: list[Block] = []

    def __len__(self) -> int:
        return len(self._blocks)

    def add(self, signal: str, key: Key, tensor: Tensor, block: Block, finish: Finish) -> None:
        """A row of ``signal``, about ``tensor``; a key that comes again is another call."""
        rows = self._readings.setdefault(signal, {})
        while key in rows:
            key = key._replace(call=key.call + 1)
        shape, dtype, _ = self._tensors.describe(tensor)
        rows[key] = Reading(shape, dtype, self._recorded() + len(self._blocks), finish, len(block))
        self._blocks.append(block)

    def drain(self) -> Callable[[int], list[Batch]]:
        """Hands the step over and begins another; what is returned waits for the device and gives the rows."""
        if not self._blocks:
            return lambda _: []
        readings, wait = self._readings, self._tensors.to_host(self._blocks)
        places = _places(readings, self._blocks)
        self.clear()

        def batches(step: int) -> list[Batch]:
            values = wait()[:, 0]
            made = (_batch(signal, rows, places, values, step) for signal, rows in readings.items())
            return [batch for batch in made if batch is not None]

        return batches


def _places(readings: Mapping[str, Mapping[Key, Reading]], blocks: list[Block]) -> dict[int, int]:
    """Where each reading's numbers begin, by its order."""
    inorder = sorted((each.order, each.rows) for rows in readings.values() for each in rows.values())
    ends = np.cumsum([rows for _, rows in inorder]).tolist()
    assert len(inorder) == len(blocks)
    return {order: end - rows for (order, rows), end in zip(inorder, ends, strict=True)}


def _batch(
    signal: str, rows: Mapping[Key, Reading], places: Mapping[int, int], values: Array, step: int
) -> Batch | None:
    """None if no row has anything to say."""
    made = {key: each.finish(values[(at := places[each.order]) : at + each.rows]) for key, each in rows.items()}
    rows = {key: each for key, each in rows.items() if made[key] is not None}
    found = [row for row in made.values() if row is not None]
    if not found:
        return None
    return Batch(
        signal=signal,
        step=step,
        keys=tuple(rows),
        shapes=tuple(each.shape for each in rows.values()),
        dtypes=tuple(str(each.dtype) for each in rows.values()),
        order=np.array([each.order for each in rows.values()], dtype=np.int64),
        columns={name: np.array([row[name] for row in found], dtype=np.float64) for name in found[0]},
        micro_stepped=signal in MICRO_STEPPED,
    )


MICRO_STEPPED = frozenset({"attention_hook", "moe_router_logit_hook"})
"""Signals with a row for each micro batch; the others are about weights, which stay the same until the update."""
