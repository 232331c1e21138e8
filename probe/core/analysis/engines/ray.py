"""Pieces on a Ray cluster, as tasks: those that are lost with a machine are done again, and slow ones twice at the end.

Ray's own retries are switched off, since it would repeat a piece that does not fit into memory, which is halved here.
"""

from __future__ import annotations

import logging
import os
import signal
import statistics
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from importlib import import_module
from typing import Any, Generic, NamedTuple, TypeVar

from probe import __version__
from probe.core.analysis.engines.workers import WorkersDiedError
from probe.core.analysis.pieces import Piece, halved, is_of_memory, with_threads
from probe.core.errors import missing
from probe.core.language import invalid

logger = logging.getLogger("probe.engine")

R = TypeVar("R")

AHEAD = 2
"""Tasks that are submitted, for each piece that is worked on at a time."""
LOST = 3
"""Times that a piece is lost with its machine until it is given up."""
DIED = 2
"""Times that a worker dies with a piece, while its machine lives, until the piece is halved."""
SLOW = 3.0
"""Multiple of the others' median time after which a piece is done twice."""
PATIENCE_SECONDS = 2.0
"""Time that no piece is too slow for."""
GROWTH_SECONDS = 5.0
"""Time after which the number of the cluster's CPUs is asked for again."""
QUIET_SECONDS = 60.0
"""Time without a result after which a warning is logged."""


class PieceLostError(RuntimeError):
    """The machine that worked on a piece was lost, several times."""


@contextmanager
def ray_engine(address: str | None, most: int | None) -> Iterator[RayEngine]:
    """Connect to a cluster, and leave it at the end; one that the program has connected to is used as it is.

    Args:
        address: of the cluster; None for one that runs on this machine, which is started if there is none.
        most: pieces at a time; None for the CPUs of the cluster.

    Raises:
        ValueError: if the cluster cannot be used.
        ImportError: if Ray is missing.
    """
    try:
        ray = import_module("ray")
    except ImportError as absent:
        raise ImportError(missing("--engine ray", "ray", "ray")) from absent
    if ray.is_initialized():
        yield RayEngine(ray, most)
        return
    _connect(ray, address, most)
    try:
        yield RayEngine(ray, most)
    finally:
        with _handlers_kept():
            ray.shutdown()


def _connect(ray: Any, address: str | None, most: int | None) -> None:
    quiet = {"log_to_driver": False, "logging_level": logging.ERROR}
    os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")  # else a warning about GPUs, which are not used
    with _handlers_kept():
        try:
            try:
                ray.init(address=address or "auto", **quiet)
            except ConnectionError:
                if address is not None:
                    raise
                os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
                ray.init(address="local", num_cpus=most, include_dashboard=False, **quiet)
        except (RuntimeError, ConnectionError, TimeoutError, ValueError, AssertionError) as error:
            where = address or "this machine"
            raise invalid(
                "--engine ray: the cluster of {where} cannot be used: {error}", where=where, error=error
            ) from error


@contextmanager
def _handlers_kept() -> Iterator[None]:
    """Put back the signal handlers that Ray replaces: its own for SIGTERM would stay (seen in 2.60)."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, signal.SIG_DFL if handler is None else handler)


class RayEngine:
    """Tasks of one CPU on a cluster.

    Args:
        ray: the module, connected.
        most: pieces at a time; None for the CPUs of the cluster.
        patience_seconds: time that no piece is too slow for.
    """

    def __init__(self, ray: Any, most: int | None, patience_seconds: float = PATIENCE_SECONDS) -> None:
        self.ray, self._most, self.patience_seconds = ray, most, patience_seconds

    @property
    def width(self) -> int:
        """Number of pieces at a time; it changes with the cluster."""
        return self._most or max(1, int(self.ray.cluster_resources().get("CPU", 0)))

    def each(self, function: Callable[[Piece], R], pieces: Iterable[Piece]) -> Iterator[tuple[Piece, R | Exception]]:
        """Yield results as they come.

        Raises:
            ValueError: if a worker has no probe, or another version of it.
        """
        yield from _Call(self, function, pieces).results()


class _Try(NamedTuple):
    """One task of a piece."""

    piece: Piece
    number: int
    """Number of the piece."""
    lost: int = 0
    died: int = 0
    began: float = 0.0


class _Outcome(NamedTuple):
    """Message of a worker after a task."""

    version: str
    seconds: float
    result: bytes
    """Pickled: the function's result, or the exception that it raised."""


class _Call(Generic[R]):
    """One call of a function for pieces."""

    def __init__(self, engine: RayEngine, function: Callable[[Piece], R], pieces: Iterable[Piece]) -> None:
        self._ray, self._engine, self._function = engine.ray, engine, function
        options = {"num_cpus": 1, "max_retries": 0, "scheduling_strategy": "SPREAD", "name": "probe"}
        self._task = self._ray.remote(**options)(_work)
        self._source = enumerate(pieces)
        self._again: deque[_Try] = deque()
        self._running: dict[Any, _Try] = {}
        self._exhausted = False
        self._next = -1
        self._seconds: deque[float] = deque(maxlen=100)
        self._width, self._asked = engine.width, time.monotonic()

    def results(self) -> Iterator[tuple[Piece, R | Exception]]:
        latest = time.monotonic()
        try:
            while True:
                self._submit_more()
                if not self._running:
                    return
                ready = self._ready()
                if ready:
                    latest = time.monotonic()
                elif time.monotonic() - latest > QUIET_SECONDS:
                    latest = time.monotonic()
                    self._complain()
                for ref in ready:
                    if ref in self._running:  # else its twin was faster
                        yield from self._settled(ref, self._running.pop(ref))
        finally:
            self._cancel(list(self._running))

    def _ready(self) -> list[Any]:
        ready, _ = self._ray.wait(list(self._running), num_returns=1, timeout=self._engine.patience_seconds / 2)
        if time.monotonic() - self._asked > GROWTH_SECONDS:
            self._width, self._asked = self._engine.width, time.monotonic()
        return list(ready)

    def _submit_more(self) -> None:
        while len(self._running) < self._width * AHEAD and (attempt := self._found()) is not None:
            self._submit(attempt)
        if self._exhausted and not self._again:
            for attempt in self._slow()[: max(self._width - len(self._running), 0)]:
                self._submit(attempt)

    def _found(self) -> _Try | None:
        """Return the next piece to do: those that were lost come first."""
        if self._again:
            return self._again.popleft()
        if self._exhausted:
            return None
        number, piece = next(self._source, (0, None))
        self._exhausted = piece is None
        return None if piece is None else _Try(piece, number)

    def _slow(self) -> list[_Try]:
        """Return the pieces that are late and have one task, the latest first."""
        limit = max(SLOW * statistics.median(self._seconds or [0.0]), self._engine.patience_seconds)
        now, tries = time.monotonic(), sorted(self._running.values(), key=lambda attempt: attempt.began)
        numbers = [attempt.number for attempt in tries]
        return [attempt for attempt in tries if now - attempt.began > limit and numbers.count(attempt.number) == 1]

    def _submit(self, attempt: _Try) -> None:
        ref = self._task.remote(__version__, self._function, attempt.piece)
        self._running[ref] = attempt._replace(began=time.monotonic())

    def _settled(self, ref: Any, attempt: _Try) -> Iterator[tuple[Piece, R | Exception]]:
        """Yield the result of a task, if the piece has one now."""
        kinds = self._ray.exceptions
        twins = [twin for twin, running in self._running.items() if running.number == attempt.number]
        try:
            outcome: _Outcome = self._ray.get(ref)
        except kinds.OutOfMemoryError:
            yield from self._after_memory(attempt, twins)
        except kinds.RayTaskError as error:
            raise invalid(
                "--engine ray: a worker cannot run probe {__version__}: {error}",
                __version__=__version__,
                error=_last_line(error),
            ) from error
        except kinds.WorkerCrashedError:
            yield from self._after_death(attempt, twins)
        except kinds.RayError as error:
            logger.warning("a piece was lost and is done again: %s: %s", attempt.piece, _last_line(error))
            lost = PieceLostError(f"it was lost {LOST} times with its machine: {_last_line(error)}")
            yield from self._after_loss(attempt, twins, lost)
        else:
            result = self._unpacked(outcome)
            if isinstance(result, Exception) and is_of_memory(result):
                yield from self._halved(attempt, twins, result)
                return
            self._seconds.append(outcome.seconds)
            self._drop(twins)
            yield attempt.piece, result

    def _unpacked(self, outcome: _Outcome) -> R | Exception:
        if outcome.version != __version__:
            has, expected = outcome.version, __version__
            raise invalid(
                "--engine ray: a worker has probe {has}; expected {expected}, as here: install it there",
                has=has,
                expected=expected,
            )
        result: R | Exception = self._ray.cloudpickle.loads(outcome.result)
        return result

    def _after_death(self, attempt: _Try, twins: list[Any]) -> Iterator[tuple[Piece, R | Exception]]:
        if twins:
            return
        if attempt.died + 1 < DIED:
            self._again.append(attempt._replace(died=attempt.died + 1))
        else:
            yield from self._halved(attempt, twins, WorkersDiedError())

    def _after_memory(self, attempt: _Try, twins: list[Any]) -> Iterator[tuple[Piece, R | Exception]]:
        """Halve a piece; do again one that cannot be halved, since others may have used the machine's memory."""
        error = MemoryError("its machine had too little memory")
        yield from (self._halved if attempt.piece.halves() else self._after_loss)(attempt, twins, error)

    def _after_loss(self, attempt: _Try, twins: list[Any], error: Exception) -> Iterator[tuple[Piece, R | Exception]]:
        if twins:
            return
        if attempt.lost + 1 < LOST:
            self._again.append(attempt._replace(lost=attempt.lost + 1))
        else:
            yield attempt.piece, error

    def _halved(self, attempt: _Try, twins: list[Any], error: Exception) -> Iterator[tuple[Piece, R | Exception]]:
        self._drop(twins)
        halves = halved(attempt.piece)
        for half in halves:
            self._next -= 1
            self._again.append(_Try(half, self._next))
        if not halves:
            yield attempt.piece, error

    def _drop(self, refs: list[Any]) -> None:
        for ref in refs:
            del self._running[ref]
        self._cancel(refs)

    def _cancel(self, refs: list[Any]) -> None:
        for ref in refs:
            self._ray.cancel(ref)  # not by force: what a worker has opened is closed

    def _complain(self) -> None:
        cpus = int(self._ray.cluster_resources().get("CPU", 0))
        logger.warning("no result for %d s: the cluster has %d CPUs; tasks=%d", QUIET_SECONDS, cpus, len(self._running))


def _work(version: str, function: Callable[[Piece], Any], piece: Piece) -> _Outcome:
    """Run in a worker: apply ``function``, and pack what it returns or raises."""
    if version != __version__:
        return _Outcome(__version__, 0.0, b"")
    start = time.monotonic()
    try:
        with with_threads(1):
            result = function(piece)
    except Exception as error:  # noqa: BLE001 - one piece's failure is not the others'
        result = error
    return _Outcome(__version__, time.monotonic() - start, _packed(result))


def _packed(result: object) -> bytes:
    pickle = import_module("ray.cloudpickle")
    try:
        packed: bytes = pickle.dumps(result)
        if isinstance(result, Exception):  # many are pickled, and then not unpickled
            pickle.loads(packed)
    except Exception as error:  # noqa: BLE001 - a class may raise anything
        text = f"{type(result).__name__}, which cannot be sent: {result if isinstance(result, Exception) else error}"
        packed = pickle.dumps(RuntimeError(text))
    return packed


def _last_line(error: Exception) -> str:
    return (str(error).strip().splitlines() or [type(error).__name__])[-1]
