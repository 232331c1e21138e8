"""Ways out for the numbers of one rank: boards, the mapped file, and senders on threads of their own."""

from __future__ import annotations

import os
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, TypeVar

from probe.core.door import attempt
from probe.core.faults import Faults
from probe.core.output.metrics.board import Counts, MetricBoard
from probe.core.output.metrics.catalogue import Series
from probe.core.output.metrics.mapped_file import SUFFIX, MetricsFile, MetricsHeader, Values, sweep
from probe.core.process_identity import process_state
from probe.core.worker import Worker

if TYPE_CHECKING:
    from probe.core.verdict import Verdict

WHERE = "metrics"
"""Place under which failures are counted."""
PATIENCE = 10.0
"""Default of the longest time in seconds for which the end of a process waits for a client that begins."""
LEAST_SECONDS = 0.05
"""Time for the end of an outlet after others have used up what there was."""


class RankName(NamedTuple):
    """Names of this rank."""

    job: str
    rank: int
    ranks: int
    host: str


class MetricsWriter(Protocol):
    """Way out for series."""

    def send(self, series: Sequence[Series], values: Values, seconds: float) -> None:
        """Send the current series; give up after ``seconds``. May raise."""

    def end(self, seconds: float) -> None:
        """Remove what would be wrong once the run is over; give up after ``seconds``. May raise."""


class HubOutlet(Protocol):
    """Ways out of one format."""

    def ending(self) -> None:
        """Begin the end without waiting for it, if there is a thread that can."""

    def close(self, seconds: float) -> None:
        """Send once more and end, within ``seconds``."""


Kind = TypeVar("Kind", bound=HubOutlet)


class MetricsSender:
    """Thread that hands the series of a board to a writer again and again.

    Args:
        every: seconds from the end of one sending to the next; at first fewer, so that short runs are seen.
    """

    SECONDS = 5.0
    """Longest time of one sending."""
    FIRST_SECONDS = 1.0
    """Seconds until the first sending, which double from each one to the next."""

    def __init__(
        self,
        writer: MetricsWriter,
        read: Callable[[], tuple[Sequence[Series], Values]],
        every: float,
        faults: Faults,
    ) -> None:
        self._writer, self._read, self._every, self._faults = writer, read, every, faults
        self._pause = min(self.FIRST_SECONDS, every)
        self._worker = Worker("probe-metrics", WHERE, faults, look=self._look, due=self._pause)

    def _look(self) -> float:
        attempt(self._faults, WHERE, self._send, self.SECONDS)  # the next sending may succeed
        self._pause = min(2 * self._pause, self._every)
        return self._pause

    def _send(self, seconds: float) -> None:
        self._writer.send(*self._read(), seconds)

    def close(self, seconds: float) -> None:
        """Send once more and end, within ``seconds``; with 0 seconds, only end."""
        last = partial(self._finish, time.monotonic() + seconds) if seconds > 0 else None
        self._worker.end(last)
        if not self._worker.join(seconds) and seconds > 0:
            self._faults.note(WHERE, TimeoutError(f"not sent within {seconds:g} s at the end"))

    def _finish(self, deadline: float) -> None:
        half = max(0.1, (deadline - time.monotonic()) / 2)
        attempt(self._faults, WHERE, self._send, half)
        self._writer.end(half)


class MetricsOutlet:
    """Board of one format with its ways out.

    Args:
        counts: returns the counts of the monitor itself.
    """

    def __init__(
        self,
        board: MetricBoard,
        counts: Callable[[], Counts],
        file: MetricsFile | None = None,
    ) -> None:
        self.board, self._counts, self._file = board, counts, file
        self._senders: list[MetricsSender] = []

    def read(self) -> tuple[Sequence[Series], Values]:
        """Return the current series and their values."""
        return self.board.series(self._counts())

    def add(self, writer: MetricsWriter, every: float, faults: Faults) -> None:
        """Send the series by ``writer`` from now on."""
        self._senders.append(MetricsSender(writer, self.read, every, faults))

    def publish(self) -> None:
        """Store the current series in the mapped file."""
        if self._file is not None:
            self._file.store(*self.read())

    def ending(self) -> None:
        """Begin nothing: what is sent last is sent in :meth:`close`."""

    def close(self, seconds: float) -> None:
        """Send once more and end, within ``seconds``."""
        deadline = time.monotonic() + seconds
        while self._senders:  # one whose end is interrupted stays
            self._senders[0].close(max(0.0, deadline - time.monotonic()))
            del self._senders[:1]
        if self._file is not None:
            self._file.close()
            self._file = None


class MetricsHub:
    """Outlets of one run on one rank, by format. Sinks of rows about tensors and of numbers of the run share them.

    Args:
        folder: returns the folder of the mapped file, made if missing.
        rules: names of the rules that judge.
    """

    def __init__(
        self,
        name: RankName,
        folder: Callable[[], Path],
        rules: Iterable[str],
        faults: Faults,
        patience: float = PATIENCE,
    ) -> None:
        self.name, self.faults, self.patience = name, faults, patience
        self._folder = folder
        self._found: Counter[str] = Counter(dict.fromkeys(rules, 0))
        self._outlets: dict[str, HubOutlet] = {}
        self.receivers: list[Callable[[Sequence[Any]], None]] = []
        """Functions that get the findings about numbers of the run."""
        self.verdict: Callable[[], Verdict | None] = lambda: None
        """Function that returns the verdict about the run so far."""
        self.client_began: Callable[[], None] = lambda: None
        """Function that is called when a client has begun, which may end by itself at the exit of the process."""
        self._lock = threading.Lock()
        self._closed = False

    def outlet(self, name: str, kind: type[Kind], make: Callable[[MetricsHub], Kind]) -> Kind:
        """Return the outlet of a format, made at the first call.

        Args:
            kind: its class.

        Raises:
            Exception: if it cannot be made.
            RuntimeError: if the run has ended.
        """
        with self._lock:
            if self._closed:
                raise RuntimeError("the run has ended")
            present = self._outlets.get(name)
            if not isinstance(present, kind):
                present = self._outlets[name] = make(self)
            return present

    def mapped_file(self, most: int) -> MetricsFile:
        """Return a new mapped file with room for ``most`` series.

        Raises:
            OSError: if it cannot be made.
        """
        name, started = self.name, process_state("self").started
        header = MetricsHeader(
            os.getpid(), started, name.job[:200], name.rank, name.ranks, name.host[:200], gpu_uuids(), most
        )
        folder = self._folder()
        sweep(folder)
        return MetricsFile(folder / f"rank{name.rank}-{os.getpid()}{SUFFIX}", header)

    def began(self) -> None:
        """Note that a client has begun."""
        self.client_began()

    def found(self, rules: Iterable[str]) -> None:
        """Count findings of ``rules``, one each."""
        self._found.update(rules)

    def run_found(self, findings: Sequence[Any]) -> None:
        """Count findings about numbers of the run, and pass them on."""
        self.found(finding.rule for finding in findings if not finding.resolved)
        for receive in self.receivers:
            receive(findings)

    def counts(self) -> Counts:
        """Return the counts of the monitor itself."""
        return Counts(dict(self._found), sum(self.faults.counts.values()))

    def ending(self) -> dict[str, HubOutlet]:
        """Have every outlet end, without waiting for it; return them by name."""
        with self._lock:
            self._closed = True
            outlets = dict(self._outlets)
        for outlet in outlets.values():
            outlet.ending()
        return outlets

    def close(self, seconds: float) -> None:
        """Send once more and end, within ``seconds``. Outlets end side by side: one that hangs costs no other its last
        rows."""
        deadline = time.monotonic() + seconds
        for name, outlet in self.ending().items():
            outlet.close(max(LEAST_SECONDS, deadline - time.monotonic()) if seconds > 0 else 0.0)
            self._outlets.pop(name, None)  # only now: a call after an interrupted one closes the others


def gpu_uuids() -> tuple[str, ...]:
    """Return the devices that this process may use, if its environment names them by UUID."""
    names = os.environ.get("CUDA_VISIBLE_DEVICES", "").split(",")
    return tuple(name.strip() for name in names if name.strip().startswith("GPU-"))[:16]
