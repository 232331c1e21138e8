"""Data sets that the program reads: whether they are shuffled, and beginnings of those that are not."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from typing import Any
from weakref import WeakSet

from mindspore.dataset.engine import iterators

from probe.core.backend.patch import Shared, Undo
from probe.core.backend.protocols import Remove
from probe.core.door import FaultCounter, attempt, replace

_begun: WeakSet[Any] = WeakSet()
"""Data sets that have begun to be read since something has listened."""


class _Habits:
    """Listener to habits."""

    def __init__(self, noted: Callable[[str, Any], None], faults: FaultCounter) -> None:
        self.noted, self.faults = noted, faults


def in_order() -> bool:
    """Return whether all data sets that the program reads give their samples in their order."""
    running = (refers() for refers in iterators.ITERATORS_LIST)  # those that have begun before something has listened
    data_sets = {*_begun, *(getattr(each, "_Iterator__ori_dataset", None) for each in running)} - {None}
    return bool(data_sets) and not any(data_set.is_shuffled() for data_set in data_sets)


def on_habit(noted: Callable[[str, Any], None], faults: FaultCounter) -> Remove:
    """Call ``noted`` with ``begins again`` where a data set is begun that is not shuffled, and that nothing has read to
    its end."""
    return _habits.listen(_Habits(noted, faults))


def _listen_to_data() -> Iterator[Undo]:
    original = iterators.Iterator.__init__

    def begin(self: Any, dataset: Any, *args: Any, **kwargs: Any) -> None:
        original(self, dataset, *args, **kwargs)
        for listener in _habits:
            attempt(listener.faults, "data", _note, listener.noted, dataset)

    yield replace(iterators.Iterator, "__init__", functools.wraps(original)(begin))


_habits: Shared[_Habits] = Shared(_listen_to_data, weak=True)


def _note(noted: Callable[[str, Any], None], data_set: Any) -> None:
    _begun.add(data_set)
    if data_set.dataset_size is None and not data_set.is_shuffled():
        noted("begins again", None)
