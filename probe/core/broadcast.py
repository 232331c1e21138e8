"""Ranks that share no file system tell each other of changes through a store of their job.

No rank waits for another: what one says lies in the store, and a thread of every rank looks there. What was said holds
from a step on that lies far enough ahead for all to have seen it, as with files (:mod:`probe.core.control`).
"""

from __future__ import annotations

import json
import logging
import queue
import socket
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping
from contextlib import suppress
from functools import partial
from typing import Any

from probe.core.faults import Faults
from probe.core.framework import FrameworkAdapter
from probe.core.processes import Store
from probe.core.settings import Settings
from probe.core.settings_types import address_of

Address = tuple[str, int]
"""Host and port."""
POLL_SECONDS, LOOKS_A_SECOND = 0.1, 2000
"""Between a rank's looks into the store, at the shortest; and how many looks of all ranks the store gets at most."""
SEEN_LOOKS = 5
"""Looks after which, at the earliest, all are taken to have seen something."""
MEET_SECONDS = 300.0
"""How long a rank waits for the first one to begin."""
CLOSE_SECONDS = 2.0
"""How long the end of a run waits for the thread, which may be waiting for a host that is gone."""

_log = logging.getLogger("probe")


class StoreNotices:
    """Notices of one kind. Training reads and gives here; only the thread of :class:`Broadcast` uses the store.

    Args:
        name: of the kind.
        wake: called when there is something to carry into the store.
    """

    def __init__(self, name: str, wake: Callable[[], None]) -> None:
        self._name, self._wake = name, wake
        self._seen: deque[Mapping[str, Any]] = deque()
        self._given: deque[tuple[int, bytes]] = deque()
        self._read = self._fetched = 0

    def read(self) -> Mapping[str, Any] | None:
        """The next one, if the thread has seen it."""
        if not self._seen:
            return None
        self._read += 1
        return self._seen.popleft()

    def give(self, about: Mapping[str, Any]) -> None:
        """Has the thread carry it into the store, unless another rank has been first."""
        self._given.append((self._read, json.dumps(about).encode()))
        self._wake()

    def publish(self, store: Store) -> int:
        """Carries what was given into ``store``.

        Returns:
            How many notices are there now that were not.

        Raises:
            Exception: if the store cannot be used.
        """
        new = 0
        while self._given:
            number, payload = self._given.popleft()
            if store.add(f"{self._name}/{number}/claimed", 1) == 1:
                store.set(f"{self._name}/{number}", payload)
                store.add(f"{self._name}/there", 1)
                new += 1
        return new

    def fetch(self, store: Store) -> None:
        """Takes what is new in ``store``.

        Raises:
            Exception: if the store cannot be used.
        """
        there = store.add(f"{self._name}/there", 0)
        for number in range(self._fetched, there):
            self._seen.append(json.loads(store.get(f"{self._name}/{number}")))
        self._fetched = there


class Broadcast:
    """The thread that looks into the store, once there is a kind of notices.

    Args:
        connect: gives the store; called on the thread, where it may wait.
        address: where another process will keep the store; None if it is there already.
        ranks: how many look into it.
    """

    def __init__(self, connect: Callable[[], Store], address: Address | None, ranks: int, faults: Faults) -> None:
        self._connect, self._address, self._faults = connect, address, faults
        self._kinds: dict[str, StoreNotices] = {}
        self._pause = max(POLL_SECONDS, ranks / LOOKS_A_SECOND)
        self.seen_seconds = SEEN_LOOKS * self._pause
        """After which, at the earliest, all are taken to have seen something."""
        self._woken: queue.SimpleQueue[None] = queue.SimpleQueue()  # may be filled inside a signal handler
        self._closing = False
        self._thread: threading.Thread | None = None

    def notices(self, name: str) -> StoreNotices:
        """Those of the kind called ``name``."""
        if name not in self._kinds:
            self._kinds[name] = StoreNotices(name, self._wake)
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name="probe-broadcast", daemon=True)
            self._thread.start()
        return self._kinds[name]

    def close(self) -> None:
        """Carries what was given into the store, and ends the thread."""
        self._closing = True
        self._wake()
        if self._thread is not None:
            self._thread.join(CLOSE_SECONDS)

    def _wake(self) -> None:
        self._woken.put(None)

    def _wait(self) -> None:
        with suppress(queue.Empty):
            self._woken.get(timeout=self._pause)

    def _run(self) -> None:
        try:
            self._wait_for_store()
            store = self._connect()
            seen = None
            while True:
                last = self._closing  # before the look: what was given before closing still goes out
                kinds = list(self._kinds.values())
                new = sum(kind.publish(store) for kind in kinds)
                there = store.add("there", new), len(kinds)
                if there != seen:
                    seen = there
                    for kind in kinds:
                        kind.fetch(store)
                if last:
                    return
                self._wait()
        except Exception as error:  # noqa: BLE001 - a host may be gone; training goes on
            if not self._closing:
                self._faults.note("broadcast", error)
                _log.warning("this rank hears of no more changes from the others; training goes on")

    def _wait_for_store(self) -> None:
        """By looking, since nobody could end the wait of a client."""
        end = time.monotonic() + MEET_SECONDS
        while self._address is not None and not self._closing:
            with suppress(OSError), socket.create_connection(self._address, POLL_SECONDS):
                return
            if time.monotonic() > end:
                raise TimeoutError(f"nobody keeps a store at {self._address} after {MEET_SECONDS:g} s")
            self._wait()


def of_configuration(settings: Settings, run: int, framework: FrameworkAdapter, faults: Faults) -> Broadcast | None:
    """What ``dynamic_broadcast`` asks for; None with one rank, which has nobody to tell.

    Args:
        run: its number, the same on all ranks.

    Raises:
        ValueError: if it needs an address.
    """
    chosen, groups, parallel = settings.dynamic_broadcast, framework.groups, framework.parallel
    if not chosen or groups.world_size() == 1:
        return None
    address = None if chosen is True else address_of(chosen)
    if address is None and not parallel.has_store():
        raise ValueError(
            f"dynamic_broadcast: true: {framework.name} keeps no store for its processes to meet in; give the address "
            'of the first rank and a free port there, such as "10.0.0.1:29600"'
        )
    serves = groups.rank() == 0
    connect = partial(parallel.store, f"run {run} changes", address, serves)
    return Broadcast(connect, None if serves else address, groups.world_size(), faults)
