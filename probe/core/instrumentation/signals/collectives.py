"""The signal ``other``: tensors that ranks send each other, one row for each call site, operation, group and direction.

A framework's adapter reports every call; this module selects the calls that have rows. Listening begins when the
monitor is constructed, because there are collectives before there is a model; they count as part of the first step.
"""

from __future__ import annotations

import logging
import math
import threading
import time
import weakref
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from types import FrameType
from typing import NamedTuple

import numpy as np

from probe.core.backend.call_stack import LinePatterns, Sites, Stack, stack, text
from probe.core.backend.protocols import FrameworkAdapter, Remove, Tensor
from probe.core.config.schema import Settings
from probe.core.errors import TrainingStopped
from probe.core.faults import Faults
from probe.core.histogram import HISTOGRAM, QUANTILES
from probe.core.instrumentation.context import Run
from probe.core.instrumentation.overhead import Begun
from probe.core.instrumentation.recorder import Pending, Recorder
from probe.core.messages import plural
from probe.core.moments import EMPTY, columns_for, merge
from probe.core.records import Batch, Key
from probe.core.rules import about
from probe.core.storage.layout import group_label

INPUT, OUTPUT = "pre", "post"
EARLY = 2000
"""Number of calls before ``set_monitor`` whose tensors are kept; further ones are counted as lost."""

LOST_EARLY = "collectives: calls before set_monitor that were too many to keep"
LOST_OUTPUTS = "collectives: calls whose outputs nobody waited for, so that they were not read"

_log = logging.getLogger("probe.collectives")


class Listening:
    """The listener of collectives of one monitor, see :class:`probe.core.backend.protocols.CollectiveListener`: active
    from :meth:`start` to :meth:`stop`, if ``cc_distribution`` is enabled, and again from each :meth:`attach` on.

    Adapters may report calls on any thread.
    """

    def __init__(self, settings: Settings, framework: FrameworkAdapter, faults: Faults) -> None:
        self._framework = framework
        self._known_run: Callable[[], Run | None] = lambda: None
        self._lock = threading.RLock()
        self._remove: Remove | None = None
        self._configure(settings, faults)

    def _configure(self, settings: Settings, faults: Faults) -> None:
        judged = any("collective inputs" in about(rule.rule_name).collects for rule in settings.alert.rules)
        self._settings, self._faults = settings.cc_distribution, faults
        self._started = False
        """True from :meth:`start` to :meth:`stop`."""
        self._inputs = self._settings.cc_pre_hook or judged
        self._lowest = min(settings.module_ranks, default=0)
        ops = [op for op in settings.statistics if op not in (HISTOGRAM, *QUANTILES)] or ["norm"]
        ops += ["nans", "infs"] if judged else []
        ops += ["mean"] if "std" in ops else []  # without means it cannot be merged
        self._recorder = Recorder(self._framework.tensors, columns_for(ops), settings.eps, faults.note)
        self._lines, self._sites = LinePatterns(self._settings.cc_codeline), Sites()
        self._calls_log: CallLog | None = CallLog()
        self._step = CollectiveStep()
        self._first = self._early = 0

    def start(self) -> None:
        """Begin listening, if that is enabled."""
        self._started = self._settings.enable
        if self._started and self._framework.collectives is not None and self._remove is None:
            self._remove = self._framework.collectives.listen(self)

    def attach(self, run: Run, takes_part: bool) -> None:
        """Collect for ``run``, whose first step begins; count the calls reported so far as part of that step."""
        if not self._started:  # stopped, and attached again
            if not run.settings.cc_distribution.enable:
                return
            self._configure(run.settings, run.faults)
            self.start()
        self._leave()
        self._known_run, self._first = weakref.ref(run), run.clock.step  # adapters hold this, and must hold no model
        run.every_update.add(self.before_update)
        run.collectors.add(self)
        run.waited.add(self.waited)
        if self._faults is not run.faults:
            for where, count in self._faults.counts.items():
                run.faults.lost(where, count)
            self._faults = run.faults
        if not takes_part:
            self._calls_log = None
            self._end()
        elif not run.clock.sampled:
            self.drain()
        if takes_part and self._framework.collectives is None:
            _log.warning("cc_distribution: collectives of %s cannot be listened to", self._framework.name)

    def stop(self) -> None:
        """Stop listening until another run is attached, and restore the framework. A further call does nothing."""
        if not self._started:
            return
        if self._run is not None:
            self._write_log()
        self._end()
        self._leave()
        self.drain()
        self._started = False  # last: an interrupted call may be repeated

    def stop_unattached(self) -> None:
        """Stop listening if no run is attached: the end of a run that is attached does so itself."""
        if self._run is None:
            self.stop()

    def _leave(self) -> None:
        """Detach from the run, if attached to one."""
        if (run := self._run) is not None:
            run.every_update.remove(self.before_update)
            run.collectors.remove(self)
            run.waited.remove(self.waited)
        self._known_run = lambda: None

    def _end(self) -> None:
        if self._remove is not None:
            self._remove()
            self._remove = None

    # Called by adapters.

    @property
    def listening(self) -> bool:
        """True if adapters have to report calls now."""
        return self._calls_log is not None or self._run is None or self._run.clock.sampled

    def began(
        self, operation: str, ranks: Sequence[int], inputs: Sequence[Tensor], site: FrameType, again: bool = False
    ) -> CollectiveCall | None:
        """Note a call that is about to be made; return None if its end needs no report."""
        begun = self._begin()
        try:
            with self._lock:
                return self._began(operation, tuple(ranks), inputs, site, again)
        except Exception as error:  # noqa: BLE001 - nothing of ours may raise into training
            self._faults.note("collective", error)
            return None
        finally:
            self._spent(begun)

    def ended(self, call: CollectiveCall, outputs: Sequence[Tensor]) -> None:
        """Note that the call is complete and its outputs can be read."""
        begun = self._begin()
        try:
            call.finish()
            with self._lock:
                self._record(call, OUTPUT, outputs)
        except Exception as error:  # noqa: BLE001
            self._faults.note("collective", error)
        finally:
            self._spent(begun)

    def abandoned(self, call: CollectiveCall, outputs: int) -> None:
        """Note that no code can wait for the call any more, which would have had so many outputs."""
        try:
            with self._lock:
                if outputs and self._collects:
                    self._faults.lost(LOST_OUTPUTS, 1)
                self._record(call, OUTPUT, ())
        except Exception as error:  # noqa: BLE001
            self._faults.note("collective", error)

    @property
    def faults(self) -> Faults:
        """The counter of failures."""
        return self._faults

    # Called by the session.

    def before_update(self, step: int) -> None:
        """Log the calls in the second step, before an optimizer updates. Call in every step, sampled or not, on every
        rank.
        Raises:
            TrainingStopped: before the first update of the second step, with ``cc_log_only``.
        """
        if self._run is None or step <= self._first:
            return
        self._write_log()
        if self._settings.cc_log_only:
            self._first = step  # raise once, even if training catches it and goes on
            reason = "cc_distribution.cc_log_only: the collectives are logged, and training is stopped as configured"
            _log.warning("%s", reason)
            raise TrainingStopped(reason)

    def __len__(self) -> int:
        return len(self._step.rows)

    def waited(self) -> float | None:
        """Return the seconds from call to completion, summed over the step so far; None if there are no calls, or if
        one is not complete."""
        with self._lock:
            tallies = [tally for (_, direction), tally in self._step.rows.items() if direction == OUTPUT]
            calls = [call for tally in tallies for call in tally.calls]
        times = [call.finished - call.began for call in calls if call.finished is not None]
        return sum(times) if times and len(times) == len(calls) else None

    def drain(self) -> PendingCollectives:
        """Return the step and begin another."""
        with self._lock:
            pending, done = self._recorder.drain(), self._step
            self._step = CollectiveStep()
        return PendingCollectives(pending, done)

    # Within.

    @property
    def _run(self) -> Run | None:
        return self._known_run()

    @property
    def _collects(self) -> bool:
        """True if calls have rows now."""
        if self._settings.cc_log_only or self._remove is None:
            return False
        return self._run is None or self._run.clock.sampled

    def _began(
        self, operation: str, ranks: tuple[int, ...], inputs: Sequence[Tensor], site: FrameType, again: bool
    ) -> CollectiveCall | None:
        calling = stack(site) if self._lines or self._calls_log is not None else ()
        if self._calls_log is not None:
            dtypes = [str(self._framework.tensors.describe(tensor)[1]) for tensor in inputs]
            self._calls_log.add(operation, ranks, dtypes, calling, again)
        if not self._collects or (self._lines and not self._lines.choose(calling)) or self._too_early():
            return None
        name = f"{operation}.{group_label(ranks)}.{self._sites.name(site.f_code.co_filename, site.f_lineno)}"
        call = CollectiveCall(name, again)
        if self._inputs and inputs:
            self._record(call, INPUT, inputs)
        call.began = time.perf_counter()
        return call

    def _too_early(self) -> bool:
        if self._run is not None:
            return False
        self._early += 1
        if self._early <= EARLY:
            return False
        self._faults.lost(LOST_EARLY, 1)
        return True

    def _record(self, call: CollectiveCall, direction: str, tensors: Sequence[Tensor]) -> None:
        if not self._collects or self._framework.collectives is None:
            return
        step, adapter = self._step, self._framework.collectives
        tally = step.rows.get((call.name, direction))
        if tally is None:
            tally = step.rows[call.name, direction] = Tally(self._order())
        tally.calls.append(call)
        for tensor in tensors:
            tally.bytes += adapter.bytes_of(tensor)
            self._recorder.record(SIGNAL, Key(call.name, direction, call=len(step.orders)), tensor)
            tally.readings.append(len(step.orders))
            step.orders.append(self._order())

    def _order(self) -> int:
        """Return the next call id, in one ascending sequence with the run's recorder."""
        return len(self._step.orders) + (len(self._run.recorder) if self._run is not None else 0)

    def _write_log(self) -> None:
        with self._lock:
            log, self._calls_log = self._calls_log, None
        if log is not None:
            rank = self._framework.groups.rank()
            log.write(rank, logging.WARNING if rank == self._lowest else logging.INFO)

    def _begin(self) -> Begun | None:
        return self._run.cost.begin() if self._run is not None else None

    def _spent(self, begun: Begun | None) -> None:
        if self._run is not None and begun is not None:
            self._run.cost.end(begun)


SIGNAL = "other"


class CollectiveCall:
    """A collective in progress."""

    __slots__ = ("again", "began", "finished", "name")

    def __init__(self, name: str, again: bool) -> None:
        self.name, self.again = name, again
        self.began = time.perf_counter()
        self.finished: float | None = None

    def finish(self) -> None:
        """Note the time of completion, once. Callable on any thread."""
        if self.finished is None:
            self.finished = time.perf_counter()


@dataclass
class Tally:
    """The calls of one row in one step."""

    order: int
    calls: list[CollectiveCall] = field(default_factory=list)
    readings: list[int] = field(default_factory=list)
    bytes: int = 0


@dataclass
class CollectiveStep:
    """The calls of one step so far."""

    rows: dict[tuple[str, str], Tally] = field(default_factory=dict)
    orders: list[int] = field(default_factory=list)
    """The call id of each reading."""


class PendingCollectives(NamedTuple):
    """Collectives of a step, whose moments may not have arrived on the host yet."""

    moments: Pending
    collected: CollectiveStep

    def batches(self, step: int) -> list[Batch]:
        """Return one row for each tally, with the merged moments of all its readings; wait for the device."""
        if not self.collected.rows:
            return []
        read = next(iter(self.moments.batches(step)), None)
        rows = {key.call: row for row, key in enumerate(read.keys)} if read is not None else {}
        nothing = {name: EMPTY[name] for name in self.moments.columns}
        columns: dict[str, list[float]] = {name: [] for name in (*self.moments.columns, "count", "bytes", "seconds")}
        shapes, dtypes, order = [], [], []
        for tally in self.collected.rows.values():
            present = [reading for reading in tally.readings if reading in rows]  # others could not be reduced
            parts = [read.shapes[rows[reading]] for reading in present] if read is not None else []
            readings = [_reading(read, rows[reading]) for reading in present] if read is not None else []
            row = merge([nothing, *readings], [0, *map(math.prod, parts)])
            calls = sum(not call.again for call in tally.calls)
            row |= {"count": calls, "bytes": tally.bytes, "seconds": _seconds(tally.calls)}
            for name, values in columns.items():
                values.append(row[name])
            shapes.append(_together(parts))
            dtypes.append(
                "+".join(dict.fromkeys(read.dtypes[rows[reading]] for reading in present)) if read is not None else ""
            )
            order.append(_decisive(tally, readings, [self.collected.orders[reading] for reading in present]))
        return [
            Batch(
                signal=SIGNAL,
                step=step,
                keys=tuple(Key(name, direction) for name, direction in self.collected.rows),
                shapes=tuple(shapes),
                dtypes=tuple(dtypes),
                order=np.array(order, dtype=np.int64),
                columns={name: np.array(values, dtype=np.float64) for name, values in columns.items()},
            )
        ]


def _reading(read: Batch, row: int) -> dict[str, float]:
    return {name: float(values[row]) for name, values in read.columns.items()}


def _seconds(calls: Sequence[CollectiveCall]) -> float:
    """Return the time from call to completion, summed over all completed calls; NaN if there are none."""
    times = [call.finished - call.began for call in calls if call.finished is not None]
    return sum(times) if times else math.nan


def _together(shapes: Sequence[tuple[int, ...]]) -> tuple[int, ...]:
    """Return the shape of all tensors of a row as one: stacked if their shapes are equal, else end to end."""
    if len(shapes) == 1:
        return shapes[0]
    if shapes and len(set(shapes)) == 1:
        return (len(shapes), *shapes[0])
    return (sum(map(math.prod, shapes)),)


def _decisive(tally: Tally, readings: Sequence[dict[str, float]], orders: Sequence[int]) -> int:
    """Return the call id of the first reading that is not finite (rules order causes by it), else of the first."""
    for reading, order in zip(readings, orders, strict=True):
        if reading.get("nans") or reading.get("infs"):
            return order
    return tally.order


DISTINCT = 1000
"""Number of distinct calls that are kept; further ones are only counted."""


class CallLog:
    """Number of calls of each distinct (operation, group, dtypes, stack)."""

    def __init__(self) -> None:
        self._calls: Counter[tuple[str, tuple[int, ...], str, Stack]] = Counter()
        self._more = 0

    def add(
        self, operation: str, ranks: tuple[int, ...], dtypes: Sequence[str], calling: Stack, again: bool = False
    ) -> None:
        """Count a call; with ``again``, a further transfer of the call before."""
        entry = operation, ranks, ",".join(dict.fromkeys(dtypes)), calling
        if len(self._calls) < DISTINCT or entry in self._calls:
            self._calls[entry] += not again
        else:
            self._more += not again

    def lines(self) -> Iterator[str]:
        """Yield a line for each distinct call."""
        for (operation, ranks, dtypes, calling), count in self._calls.items():
            where = "; ".join(text(line) for line in calling)
            yield f"collective {operation} group={list(ranks)} dtype={dtypes or 'none'} calls={count} stack: {where}"
        if self._more:
            yield f"collectives: {self._more} more {plural(self._more, 'call')} of other kinds"

    def write(self, rank: int, level: int) -> None:
        """Log all calls."""
        lines = list(self.lines())
        _log.log(level, "collectives seen on rank %d before the second training step's update: %d", rank, len(lines))
        for line in lines:
            _log.log(level, "%s", line)
