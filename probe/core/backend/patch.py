"""Changes of a framework that offers no hook, in effect while there are listeners."""

from __future__ import annotations

import os
import threading
import weakref
from collections.abc import Callable, Iterable, Iterator, MutableMapping
from typing import Any, ClassVar, Generic, TypeVar

from probe.core.backend.protocols import Remove

Listener = TypeVar("Listener")
Undo = Callable[[], object]
"""Function that undoes one change; returns False if that is impossible now."""
Install = Callable[[], Iterable[Undo]]
"""Function that makes changes and yields an undo for each."""


class Shared(Generic[Listener]):
    """Changes of a framework that several listeners share: made for the first, undone after the last.

    Iterating yields the listeners in the order of their registration; listeners may be added and removed meanwhile.

    Args:
        install: makes the changes and yields an undo for each. If it raises, the changes already made are undone. If
            it yields none, it is called again for the next listener. :meth:`listen` may be passed another.
        weak: True if only its ``Remove`` keeps a listener alive.
    """

    _lock: ClassVar[Any] = threading.RLock()

    def __init__(self, install: Install = tuple, weak: bool = False) -> None:
        self._install, self._undos = install, list[Undo]()
        self._listeners: MutableMapping[object, Listener] = weakref.WeakValueDictionary() if weak else {}

    def __iter__(self) -> Iterator[Listener]:
        return iter(tuple(self._listeners.values()))

    def __len__(self) -> int:
        return len(self._listeners)

    @property
    def installed(self) -> bool:
        """True if the changes are in effect."""
        return bool(self._undos)

    def listen(self, listener: Listener, install: Install | None = None) -> Remove:
        """Add ``listener``; return a function that removes it, and may be called any number of times.

        Args:
            install: makes the changes from now on, for an object that lies below the modules that change things.
        """
        token = object()
        with self._lock:
            self.settle()
            self._install = install or self._install
            if not self._undos:
                self._undos = self._installed()
            self._listeners[token] = listener

        def remove(_: Listener = listener) -> None:  # the default keeps a weak listener alive
            with self._lock:
                self._listeners.pop(token, None)
                self.settle()

        return remove

    def settle(self) -> None:
        """If there are no listeners, undo the changes in reverse order, up to one that cannot be undone now."""
        with self._lock:
            while self._undos and not self._listeners:
                if self._undos[-1]() is False:
                    return
                self._undos.pop()  # only now: an undo that was interrupted is called again

    def _installed(self) -> list[Undo]:
        undos: list[Undo] = []
        try:
            for undo in self._install():
                undos.append(undo)
        except BaseException:
            for undo in reversed(undos):
                undo()
            raise
        return undos


def _renew_lock() -> None:
    """Make a new lock: another thread, which does not exist in the child, may have held the old one at the fork."""
    Shared._lock = threading.RLock()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_renew_lock)
