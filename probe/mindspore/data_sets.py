"""Data sets that the program reads: whether they are shuffled, and beginnings of those that are not."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Iterator
from typing import Any
from weakref import WeakValueDictionary

from mindspore.dataset.engine import iterators

from probe.core.backend.patch import Shared, Undo
from probe.core.backend.protocols import Remove
from probe.core.door import FaultCounter, attempt, replace

_begun: WeakValueDictionary[int, Any] = WeakValueDictionary()
"""Data sets that have begun to be read since something has listened, by identity. Another thread looks at them."""


class _Habits:
    """Listener to habits."""

    def __init__(self, noted: Callable[[str, Any], None], faults: FaultCounter) -> None:
        self.noted, self.faults = noted, faults


def in_order() -> bool:
    """Return whether all data sets that the program reads give their samples in their order."""
    running = (refers() for refers in iterators.ITERATORS_LIST)  # those that have begun before something has listened
    begun = (refers() for refers in _begun.valuerefs())
    data_sets: set[Any] = {*begun, *(getattr(each, "_Iterator__ori_dataset", None) for each in running)} - {None}
    return bool(data_sets) and not any(data_set.is_shuffled() for data_set in data_sets)


def on_habit(noted: Callable[[str, Any], None], faults: FaultCounter) -> Remove:
    """Call ``noted`` with ``begins again`` where a data set is begun that is not shuffled, has several batches, and was
    never read to its end."""
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
    _begun[id(data_set)] = data_set
    if data_set.dataset_size is None and not data_set.is_shuffled() and _has_several(data_set):
        noted("begins again", None)


def _has_several(data_set: Any) -> bool:
    """Return whether the source has more samples than a batch; false for a generator, whose length is -1 and whose
    first batch may be another one each time."""
    size = 1
    while data_set.children:
        size, data_set = size * getattr(data_set, "batch_size", 1), data_set.children[0]
    return bool(size < getattr(data_set, "source_len", math.inf))
