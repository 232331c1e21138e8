"""Common part of both callbacks: steps, the queue of their values, the end of the process."""

from __future__ import annotations

import time
import weakref
from collections.abc import Callable, Iterable, Mapping, Sequence
from numbers import Real
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from probe.core.backend.protocols import FrameworkAdapter, Shard, Tensor
from probe.core.door import succeeds
from probe.core.faults import Faults
from probe.core.instrumentation.recorder import Pending, Recorder
from probe.core.messages import complain
from probe.core.moments import columns_for
from probe.core.monitor.legacy import NEVER_BEGUN
from probe.core.monitor.process_exit import Endings
from probe.core.records import Batch, Key
from probe.core.transformers.configuration import TransformersConfigError, checked
from probe.core.transformers.event_writer import EventWriter, Scalar, event_writer
from probe.core.transformers.log_lines import STYLES, Position, logger, state_line
from probe.core.transformers.schema import TensorboardSection
from probe.core.transformers.text_page import SIZE, texts
from probe.core.worker import Worker

FLUSH_SECONDS = 30.0
"""Longest time that the end of training waits for the last steps."""
VALUES = "run"
"""Signal of numbers of the run, each the mean of a tensor."""
WAITING = 1000
"""Most steps that wait for the thread; further ones are dropped and counted."""
Norms = Mapping[str, Sequence[tuple[Key, Tensor | Shard]]]
"""Tensors whose norms are computed, by signal."""


class Presentation(NamedTuple):
    """Choice of how numbers are shown."""

    log_style: str = "1.9"
    """Release of the tool whose log lines are written: `1.6` or `1.9`."""
    samples_suffix: str = "_vs_samples"
    """End of the tags of curves against samples: `_vs_samples` as in the tool's event files, where its ` vs samples`
    arrives so; `-vs-samples` as its documentation has it."""


class StepCounter:
    """Numbers of steps, from 1 and over all runs of the training, and their durations.

    Args:
        epochs: number of epochs.
        steps: number of steps in an epoch; 0: unknown.
        initial: number of steps that were done before this run.
    """

    def __init__(self, epochs: int | None, steps: int | None, initial: int) -> None:
        self.epochs, self.steps, self.initial = epochs or 1, steps or 0, initial
        self.step = initial
        """Number of the step that ended last."""
        self._began = time.perf_counter()

    def begin(self) -> None:
        """Begin a step, if that is known; else each begins where the one before ends."""
        self._began = time.perf_counter()

    def end(self, step: int | None, several: int = 1) -> float:
        """End the step with this number, else the next; return its duration in seconds.

        Args:
            several: number of steps that have ended, as where a dataset is sunk to a device.
        """
        now = time.perf_counter()
        seconds, self._began = now - self._began, now
        self.step = self.step + 1 if step is None else step
        return seconds / several

    def position(self, step: int) -> Position:
        """Return the position of ``step`` in training."""
        return Position.of(step, self.epochs, self.steps)


class CallbackCore:
    """Callback that takes the values of each step from training, and logs and writes them on a thread of its own.

    After training has begun no fault here raises into it: faults are counted in :attr:`faults`.
    """

    framework: FrameworkAdapter
    size_follows = False
    """True if the size of the dataset is known only when training begins."""
    _unsized = False

    def __init__(self, presentation: Presentation, tensorboard: TensorboardSection | Mapping[str, Any] | None) -> None:
        if presentation.log_style not in STYLES:
            raise ValueError(f"log_style: expected one of {', '.join(STYLES)}, got {presentation.log_style!r}")
        self.presentation = presentation
        section = tensorboard
        if isinstance(section, Mapping):
            section = checked(TensorboardSection, section, "tensorboard")
        self.tensorboard = section if section is not None and section.tensorboard_dir else None
        self._noted = Faults()
        self._writer: EventWriter | None = None
        if self.tensorboard is not None:
            folder = Path(str(self.tensorboard.tensorboard_dir)).expanduser() / folder_name(self.framework)
            self._writer = _writer(folder, self.tensorboard.tensorboard_queue_size)
        self.lines = logger()
        """Logger of the lines."""
        self._values: StepValues | None = None
        self._never_begun = weakref.finalize(self, complain, NEVER_BEGUN, "warning")
        self._endings: Endings | None = None

    @property
    def faults(self) -> dict[str, int]:
        """Number of faults inside the callback, by place."""
        return self._noted.counts

    @property
    def devices(self) -> int:
        """Number of processes."""
        return self.framework.groups.world_size()

    def hand_over(self, step: int, seconds: float, values: Mapping[str, Any], norms: Norms | None = None) -> None:
        """Send the values of a step to the thread; begin it at the first step."""
        if self._values is None:
            self._never_begun.detach()
            self._values = StepValues(self.framework, self._noted, self._receive)
            self._endings = Endings(self._ended, self.flush)
        self._values.submit(step, seconds, values, norms)

    def _receive(self, numbers: StepNumbers) -> None:
        """Log and write the numbers of a step, on the thread."""
        raise NotImplementedError

    def write(self, scalars: list[Scalar]) -> None:
        """Write ``scalars`` to the event file, if there is one."""
        if self._writer is not None and scalars:
            self._writer.add(scalars)

    def write_texts(self, texts: Iterable[tuple[str, str]]) -> None:
        """Write texts to the event file, if there is one."""
        if self._writer is not None:
            self._writer.add_texts(texts, time.time())

    def write_page(self, values: Mapping[str, Any]) -> None:
        """Write the TEXT page of a configuration; the size of the dataset may follow."""
        self._unsized = self.size_follows and values.get(SIZE) is None
        self.write_texts(pair for pair in texts(values) if not self._unsized or pair[0] != SIZE)

    def write_size(self, size: int) -> None:
        """Write the size of the dataset to the TEXT page, unless it is there."""
        if self._unsized:
            self.write_texts([(SIZE, str(size))])
        self._unsized = False

    def log_state(self, position: Position, tag: str, value: float) -> None:
        """Log one number of the training state."""
        self.lines.info("%s", state_line(position, tag, value, self.presentation.log_style))

    def attempt(self, where: str, work: Callable[[], object]) -> bool:
        """Do ``work`` and return true if it succeeds; count its failure."""
        return succeeds(self._noted, where, work)

    def flush(self, timeout: float = FLUSH_SECONDS) -> bool:
        """Wait until every finished step is written; return False if that takes longer than ``timeout`` seconds."""
        arrived = self._values is None or self._values.flush(timeout)
        if self._writer is not None:
            self.attempt("event file", self._writer.flush)
        return arrived

    def close(self) -> None:
        """Write what is left and end the thread. A further call does nothing; a further step begins another thread."""
        values, self._values = self._values, None
        endings, self._endings = self._endings, None
        if values is not None:
            self.attempt("end of the run", lambda: values.close(FLUSH_SECONDS))
        if self._writer is not None:
            self.attempt("event file", self._writer.flush)
        if endings is not None:
            self.attempt("end of the run", endings.remove)

    def _ended(self, *_: object) -> None:
        self.close()


def _writer(folder: Path, queue_size: int) -> EventWriter:
    try:
        return event_writer(folder, queue_size)
    except OSError as error:
        expected = f"expected a folder that can be made and written to, got {folder}: {error.strerror or error}"
        raise TransformersConfigError("tensorboard", [f"tensorboard_dir: {expected}; name another"]) from error


def folder_name(framework: FrameworkAdapter) -> str:
    """Return the name of the folder of this rank's event files, such as ``rank_0``."""
    return f"rank_{framework.groups.rank()}"


class StepNumbers(NamedTuple):
    """Numbers of a step, on the host."""

    step: int
    """Number of the step, from 1 and over all runs of the training."""
    time: float
    """Seconds since the epoch at its end."""
    seconds: float
    values: Mapping[str, tuple[float, ...]]
    """Numbers by name; several if a sequence was passed, one a micro batch."""
    batches: Sequence[Batch]
    """Rows of the tensors whose norms were asked for."""

    def value(self, name: str) -> float | None:
        """Return the mean of the numbers called ``name``; None if there are none."""
        found = self.values.get(name, ())
        return float(np.mean(found)) if found else None


class StepValues:
    """Queue of steps. Tensors are reduced where they are, and copied to the host once a step; only the queue's own
    thread waits for a device.

    Args:
        receive: called with each step, in their order, on the queue's thread.
    """

    def __init__(self, framework: FrameworkAdapter, faults: Faults, receive: Callable[[StepNumbers], None]) -> None:
        self._is_tensor, self._receive, self.faults = framework.tensors.is_tensor, receive, faults
        self._values, self._norms = (
            Recorder(framework.tensors, columns_for((op,)), 0.0, faults.note) for op in ("mean", "norm")
        )
        self._worker = Worker("probe-callbacks", "callbacks", faults, room=WAITING, inline=True)

    def submit(self, step: int, seconds: float, values: Mapping[str, Any], norms: Norms | None = None) -> None:
        """Hand a step over; values that are None are left out."""
        known: dict[str, tuple[float, ...]] = {}
        at = time.time()
        for name, value in values.items():
            several = value if isinstance(value, list | tuple) else [value]
            if any(map(self._is_tensor, several)):
                for number, each in enumerate(several):
                    self._values.record(VALUES, Key(name, micro_step=number), each)
            elif several and value is not None:
                known[name] = tuple(map(_number, several))
        for signal, rows in (norms or {}).items():
            self._norms.record_all(signal, [key for key, _ in rows], [tensor for _, tensor in rows])
        pending = [recorder.drain() for recorder in (self._values, self._norms) if len(recorder)]
        self._worker.submit(lambda: self._receive(_arrived(step, at, seconds, known, pending)))

    def run(self, work: Callable[[], None]) -> None:
        """Do ``work`` on the queue's thread, after the steps that were handed over."""
        self._worker.submit(work)

    def flush(self, timeout: float) -> bool:
        """Wait until every step is received; return False if that takes longer than ``timeout`` seconds."""
        return self._worker.flush(timeout)

    def close(self, timeout: float) -> None:
        """Wait as :meth:`flush` does, then end the thread."""
        self._worker.close(timeout)


def _number(value: Any) -> float:
    """Return a number, or the mean of an array."""
    return float(value) if isinstance(value, Real) else float(np.mean(np.asarray(value, dtype=np.float64)))


def _arrived(
    step: int, at: float, seconds: float, known: Mapping[str, tuple[float, ...]], pending: Sequence[Pending]
) -> StepNumbers:
    """Return a step with the numbers that were on their way; wait for the device."""
    batches = [batch for each in pending for batch in each.batches(step)]
    values = dict(known)
    for batch in batches:
        if batch.signal == VALUES:
            for key, value in zip(batch.keys, batch.op("mean").tolist(), strict=True):
                values[key.name] = (*values.get(key.name, ()), value)
    return StepNumbers(step, at, seconds, values, [batch for batch in batches if batch.signal != VALUES])
