"""Numbers of the step in progress, as the program logs them: kept without a wait for any device."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import numpy as np

from probe.core.backend.protocols import Block, Tensors
from probe.core.faults import Faults
from probe.core.messages import writable

MOST_NAMES = 1000
"""Names of numbers in a run at most: each is a curve of its own."""
_COLUMNS = ("sum",)
"""The moment that is the number itself, for a tensor of one element."""


class LoggedNumbers(NamedTuple):
    """Numbers of a step that has ended, some of which may still be on their way to the host."""

    on_host: Mapping[str, float]
    moved: tuple[str, ...]
    wait: Callable[[], Any] | None
    """Function that waits for the copy of the tensors called ``moved``; None if there is none."""

    def values(self) -> dict[str, float]:
        """Return every number; wait for the device."""
        values = dict(self.on_host)
        if self.wait is not None:
            values |= zip(self.moved, self.wait()[:, 0].tolist(), strict=True)
        return values


class NumberLog:
    """Collector of the numbers of a step. Used on the training thread alone; never waits for a device."""

    def __init__(self, tensors: Tensors, faults: Faults, names: dict[str, str] | None = None) -> None:
        self._tensors, self._faults = tensors, faults
        self._names: dict[str, str] = {} if names is None else names
        """Names in this run, each as it is written."""
        self._clear()

    def beside(self) -> NumberLog:
        """Return another log of the same run."""
        return NumberLog(self._tensors, self._faults, self._names)

    def _clear(self) -> None:
        self._known: dict[str, float] = {}
        self._blocks: dict[str, Block] = {}

    def put(self, values: Mapping[str, object]) -> None:
        """Keep ``values``: numbers, or tensors of one element. The last one of a name counts; None is left out.

        A value that is no number is counted as a fault.
        """
        for name, value in values.items():
            try:
                if value is not None and (written := self._written(name)) is not None:
                    self._put(written, value)
            except (TypeError, ValueError) as error:  # the program's value: where in probe is of no use
                self._faults.note(f"log {name}", error.with_traceback(None))
            except Exception as error:  # noqa: BLE001 - nothing of ours may raise into training
                self._faults.note(f"log {name}", error)

    def suggest(self, values: Mapping[str, object]) -> None:
        """Keep those of ``values`` that the program has not logged in this step."""
        logged = self._known.keys() | self._blocks.keys()
        self.put({name: value for name, value in values.items() if name not in logged})

    def _written(self, name: str) -> str | None:
        """Return ``name`` as it is written; None if there are too many names."""
        written_name = self._names.get(name)
        if written_name is None:
            if len(self._names) >= MOST_NAMES:
                self._faults.lost(f"log: numbers of more than {MOST_NAMES} names", 1)
                return None
            written_name = self._names[name] = writable(name)
        return written_name

    def _put(self, name: str, value: Any) -> None:
        if isinstance(value, (float, int)):
            self._drop(name)
            self._known[name] = float(value)
        elif self._tensors.is_tensor(value):
            self._put_tensor(name, value)
        else:
            number = _number(value)
            self._drop(name)
            self._known[name] = number

    def _put_tensor(self, name: str, tensor: Any) -> None:
        shape, _, _ = self._tensors.describe(tensor)
        if any(size != 1 for size in shape):
            raise ValueError(
                f"expected a number or a tensor of one element, got one of shape {list(shape)}; log its mean, say"
            )
        number = self._tensors.number(tensor)
        block = self._tensors.moments([tensor], _COLUMNS, 0.0, None) if number is None else None
        self._drop(name)
        if number is not None:
            self._known[name] = number
        else:
            self._blocks[name] = block

    def _drop(self, name: str) -> None:
        self._known.pop(name, None)
        self._blocks.pop(name, None)

    def take(self) -> LoggedNumbers:
        """Return the numbers of the step and begin another; start one copy of those on a device."""
        numbers, blocks = self._known, self._blocks
        self._clear()
        wait = self._tensors.to_host([*blocks.values()]) if blocks else None
        return LoggedNumbers(numbers, tuple(blocks), wait)


def _number(value: Any) -> float:
    """Return a value as a number.

    Raises:
        TypeError: if it is none.
    """
    try:
        return float(value.item() if isinstance(value, (np.ndarray, np.generic)) else value)
    except (TypeError, ValueError):
        text = f"expected a number or a tensor of one element, got {value!r:.80}; log the number itself"
        raise TypeError(text) from None
