"""Announcements: small messages that all ranks read in the same order, in a folder or in a store of the job.

The first writer of a place in the order wins. No rank waits for another: a message lies in the folder or store, and
every rank looks there, for a store on a thread. A change is announced for a step far enough ahead for all ranks to have
seen the message (:mod:`probe.core.control.config_follower`).

Messages in a store are signed with a secret that the ranks share (:mod:`probe.core.distributed.secret`); any other is
ignored: see ``docs/explanation/decisions/0012-dynamic.md``.
"""

from __future__ import annotations

import json
import logging
import os
import time
from collections import deque
from collections.abc import Callable, Mapping
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any, Protocol

from probe.core.backend.protocols import FrameworkAdapter, Store
from probe.core.config.errors import ConfigError
from probe.core.config.load import dynamic
from probe.core.config.schema import Settings
from probe.core.distributed import address_store
from probe.core.distributed.secret import Seal, SecretError, secret_in
from probe.core.faults import Faults
from probe.core.fields import address_of
from probe.core.worker import Worker


class Notices(Protocol):
    """Log of announcements as one rank sees it: the same messages in the same order on every rank."""

    def read(self) -> Mapping[str, Any] | None:
        """Read the next message, if it has been written and can be seen here.

        Raises:
            OSError: if it cannot be read.
            ValueError: if it is no JSON object.
        """

    def give(self, about: Mapping[str, Any]) -> None:
        """Append ``about`` to the log, after the messages that were read here; the first writer of a place wins.

        Raises:
            OSError: if it cannot be written.
        """


class FolderNotices:
    """Log in files ``0.json``, ``1.json``, ... in a folder that all ranks see.

    Files that exist when this begins belong to an earlier run, and are skipped.
    """

    def __init__(self, folder: Path, rank: int) -> None:
        self._folder, self._rank = folder, rank
        self._next = 1 + max((int(path.stem) for path in folder.glob("[0-9]*.json")), default=-1)

    def read(self) -> Mapping[str, Any] | None:
        """Read the next message, if it is there."""
        path = self._folder / f"{self._next}.json"
        if not path.exists():
            return None
        message = json.loads(path.read_text(encoding="utf-8"))
        self._next += 1
        if not isinstance(message, dict):
            raise ValueError(f"{path}: expected a JSON object; there is {type(message).__name__}")
        return message

    def exists(self) -> bool:
        """Return true if the folder is there."""
        return self._folder.is_dir()

    def begin(self) -> None:
        """Make the folder, and try whether messages can be written there.

        Raises:
            OSError: if they cannot.
        """
        trial = self._folder / f".{self._rank}.{os.getpid()}.trial"
        self._put({}, trial)
        trial.unlink()

    def give(self, about: Mapping[str, Any]) -> None:
        """Write the next message as a whole, unless it is there."""
        self._put(about, self._folder / f"{self._next}.json")

    def _put(self, about: Mapping[str, Any], path: Path) -> None:
        self._folder.mkdir(parents=True, exist_ok=True)
        temporary = self._folder / f".{self._rank}.{os.getpid()}.tmp"
        temporary.write_text(json.dumps(about) + "\n", encoding="utf-8")
        try:
            with suppress(FileExistsError):
                os.link(temporary, path)
        finally:
            temporary.unlink()


POLL_SECONDS, LOOKS_A_SECOND = 0.1, 2000
"""Shortest time between two looks of a rank into the store, and most looks of all ranks together a second."""
SEEN_LOOKS = 5
"""Number of looks after which all ranks are assumed to have seen a message."""
MEET_SECONDS = 300.0
"""Longest time that a rank waits for the first rank's store."""
MOST_AT_ONCE = 100
"""Most places of a kind that one look reads: a stranger can fill many."""
CLOSE_SECONDS = 2.0
"""Longest time that the end of a run waits for the thread, which may be waiting for a host that is gone."""

WHERE = "broadcast"
"""Place under which failures are counted."""

_log = logging.getLogger("probe")


class StoreNotices:
    """Log of one kind of messages. Training reads and writes here; only the thread of :class:`Broadcast` uses the
    store.

    Messages lie under ``<name>/0``, ``<name>/1``, ...: the first at a place stays there. All ranks skip a place with a
    message that no rank has signed.

    Args:
        name: name of the kind.
        wake: called when there is a message to write to the store.
        seal: signs messages, and checks those that are read.
    """

    def __init__(self, name: str, wake: Callable[[], object], seal: Seal, faults: Faults) -> None:
        self._name, self._wake, self._seal, self._faults = name, wake, seal, faults
        self._seen: deque[Mapping[str, Any]] = deque()
        self._given: deque[tuple[int, bytes]] = deque()
        self._read = self._valid = self._place = 0
        """Number of messages that training has read; number of valid ones so far; the next place in the store."""

    def read(self) -> Mapping[str, Any] | None:
        """Read the next message, if the thread has seen it."""
        if not self._seen:
            return None
        self._read += 1
        return self._seen.popleft()

    def give(self, about: Mapping[str, Any]) -> None:
        """Queue a message, which the thread writes to the store unless another rank has been first."""
        self._given.append((self._read, json.dumps(about).encode()))
        self._wake()

    def publish(self, store: Store) -> None:
        """Write queued messages to ``store``.

        Raises:
            Exception: if the store cannot be used.
        """
        last = self._place + MOST_AT_ONCE
        while self._given and self._place < last:
            number, payload = self._given[0]
            if number < self._valid:  # another rank has been first, or this one has
                self._given.popleft()
            else:
                self._take(store.claim(self._key, self._seal.closed(self._key, payload)))

    def fetch(self, store: Store) -> None:
        """Read new messages from ``store``.

        Raises:
            Exception: if the store cannot be used.
        """
        last = self._place + MOST_AT_ONCE
        while self._place < last and (kept := store.get(self._key)) is not None:
            self._take(kept)

    @property
    def _key(self) -> str:
        return f"{self._name}/{self._place}"

    def _take(self, kept: bytes) -> None:
        """Take the message at the next place."""
        key, self._place = self._key, self._place + 1
        try:
            about = json.loads(self._seal.opened(key, kept))
        except PermissionError as error:
            self._faults.note(WHERE, error)
            return
        self._valid += 1
        self._seen.append(about)


class Broadcast:
    """Thread that looks into the store, once there is a kind of messages.

    Args:
        connect: returns the store, or raises OSError while there is none; called on the thread, where it may wait.
        seal: signs and checks messages.
        ranks: number of ranks that look into the store.
    """

    def __init__(self, connect: Callable[[], Store], seal: Seal, ranks: int, faults: Faults) -> None:
        self._connect, self._seal, self._faults = connect, seal, faults
        self._kinds: dict[str, StoreNotices] = {}
        self._pause = max(POLL_SECONDS, ranks / LOOKS_A_SECOND)
        self.seen_seconds = SEEN_LOOKS * self._pause
        """Time after which all ranks are assumed to have seen a message."""
        self._store: Store | None = None
        self._meets_until = time.monotonic() + MEET_SECONDS
        self._closing = self._broken = False
        self._worker: Worker | None = None

    def notices(self, name: str) -> StoreNotices:
        """Log of the kind called ``name``."""
        worker = self._worker = self._worker or Worker("probe-broadcast", WHERE, self._faults, look=self._look, due=0.0)
        if name not in self._kinds:
            self._kinds[name] = StoreNotices(name, worker.wake, self._seal, self._faults)
        return self._kinds[name]

    def close(self) -> None:
        """Write queued messages to the store, and end the thread."""
        self._closing = True
        if self._worker is not None:
            self._worker.end(self._end)
            self._worker.join(CLOSE_SECONDS)

    def _look(self) -> float | None:
        """Read and write the messages of all kinds; return the seconds until that is due again."""
        try:
            if self._store is None and not self._broken:
                self._store = self._met()
            if self._store is not None:
                self._exchange(self._store)
        except Exception:
            self._broken = True
            self._leave()
            if self._closing:  # the host of the store may have ended first
                return None
            _log.warning("this rank receives no more changes from the others; training goes on")
            raise
        return None if self._broken else self._pause

    def _exchange(self, store: Store) -> None:
        for kind in list(self._kinds.values()):
            kind.fetch(store)
            kind.publish(store)

    def _end(self) -> None:
        self._look()
        self._leave()

    def _leave(self) -> None:
        store, self._store = self._store, None
        if store is not None:
            store.close()

    def _met(self) -> Store | None:
        """Connect to the store; None while there is none. A waiting client could not be interrupted."""
        try:
            return self._connect()
        except PermissionError:
            raise
        except OSError as error:
            if time.monotonic() > self._meets_until:
                raise TimeoutError(f"there is no store after {MEET_SECONDS:g} s: {error}") from error
            return None


def of_configuration(settings: Settings, run: int, framework: FrameworkAdapter, faults: Faults) -> Broadcast | None:
    """Broadcast as ``dynamic_broadcast`` configures it; None with one rank.

    Args:
        run: number of the run, the same on all ranks.

    Raises:
        ConfigError: if an address or a secret is missing, if nothing can listen at the address, or if the configuration
            to be sent ends training.
    """
    chosen, groups, parallel = settings.dynamic_broadcast, framework.groups, framework.parallel
    if not chosen or groups.world_size() == 1:
        return None
    if chosen is True and not parallel.has_store():
        raise _wrong(
            chosen,
            f"{framework.name} keeps no store for its processes to meet in; give the address of the first rank and a "
            'free port there, such as "10.0.0.1:29600"',
        )
    if dynamic(os.environ) and (keys := settings.ends_training):
        raise _wrong(chosen, f"{keys[0]} ends training, and is never sent to other ranks; leave one of the two out")
    try:
        secret = secret_in(os.environ)
    except SecretError as error:
        raise _wrong(chosen, str(error)) from None
    where = f"run {run} changes"
    if chosen is True:
        connect: Callable[[], Store] = partial(parallel.store, where)
    else:
        address = address_of(chosen)
        if groups.rank() == 0:
            _serve(chosen, address, secret, faults)
        connect = partial(address_store.Client, address, secret, where)
    return Broadcast(connect, Seal(secret, where), groups.world_size(), faults)


def _serve(chosen: str, address: address_store.Address, secret: bytes, faults: Faults) -> None:
    try:
        address_store.serve(address, secret, faults)
    except OSError as error:
        expected = "expected an address of the first rank's host, and a port that is free there"
        raise _wrong(chosen, f"nothing can listen at this address: {error}; {expected}") from error


def _wrong(chosen: object, problem: str) -> ConfigError:
    shown = "true" if chosen is True else chosen
    return ConfigError("configuration", [f"dynamic_broadcast: {shown}: {problem}"])
