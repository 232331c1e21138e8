"""Numbers of an update that only a device knows."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, cast

import numpy as np

from probe.core.backend.protocols import Tensors
from probe.core.sentinel.device_numbers import DeviceNumbers, value_of


class Device:
    """Tensors of one number, whose moments are blocks that have to be copied."""

    def __init__(self) -> None:
        self.copies = 0

    def moments(self, tensors: Sequence[Any], columns: Sequence[str], eps: float, scale: Any) -> Any:
        assert tuple(columns) == ("sum", "sumsq")
        return np.array([[float(tensor), float(tensor) ** 2] for tensor in tensors])

    def to_host(self, blocks: Sequence[Any]) -> Callable[[], Any]:
        self.copies += 1
        rows = np.concatenate(blocks)
        return lambda: rows


def numbers_on(device: Device) -> DeviceNumbers:
    return DeviceNumbers(cast(Tensors, device))


def test_numbers_are_those_of_the_moment_and_are_copied_together() -> None:
    """What becomes of a tensor later does not matter."""
    device = Device()
    numbers, steps, total = numbers_on(device), np.array(7.0), np.array(4.0)
    waits = numbers.add(steps), numbers.factor(total, lambda norm: min(1.0, 1.0 / norm))
    steps += 1
    total *= 10
    numbers.send()
    numbers.send()
    assert ([wait() for wait in waits], device.copies) == ([7.0, 0.25], 1)
    assert (value_of(waits[1]), value_of(0.5)) == (0.25, 0.5)


def test_numbers_that_come_with_others_need_no_copy() -> None:
    """Rows of gradients bring them."""
    device = Device()
    numbers = numbers_on(device)
    wait = numbers.add(np.array(3.0))
    numbers.arrive(lambda: np.concatenate(numbers.blocks))
    numbers.send()
    assert (wait(), device.copies) == (3.0, 0)


def test_without_numbers_nothing_is_copied() -> None:
    """As on the host."""
    device = Device()
    numbers_on(device).send()
    assert device.copies == 0
