"""Progress of one rank: a small mapped file that a watcher on the same node reads.

The training thread stores a few numbers in memory: no lock, no system call, no network.
"""

from __future__ import annotations

import atexit
import json
import mmap
import os
import struct
import sys
import threading
import weakref
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from time import monotonic_ns

from probe.core.launch import launch_names
from probe.core.messages import writable
from probe.core.process_identity import process_state
from probe.core.run_state.progress_file import (
    BUCKETS,
    ENDED,
    EXITING,
    HEADER_BYTES,
    HISTOGRAMS_AT,
    MAGIC,
    MOST_PHASES,
    NAME_BYTES,
    NAMES_AT,
    OTHER,
    PHASES,
    PROGRESS_SINCE,
    ROW,
    ROW_AT,
    RUNNING,
    SIZE,
    START,
    STEP,
    SUFFIX,
    TRIES,
    UNIT_BITS,
    WAYS,
    ProgressHeader,
    ProgressRow,
    bucket_of,
    check,
)
from probe.core.run_state.stack_signal import StackSignal
from probe.core.storage.mapped_parts import digest, mapped, private, shared_folder

FOLDER = "PROBE_PROGRESS_DIR"
"""Environment variable of the directory that replaces the usual one."""
REMEDY = f", or name another in {FOLDER}"
"""End of the sentence about a folder that is another user's."""

_store = ROW.pack_into
_live: weakref.WeakSet[Progress] = weakref.WeakSet()


def progress_folder(job: str, root: Path, ranks: int, environ: Mapping[str, str] = os.environ) -> Path:
    """Return the folder of the ranks on this node of one launch of ``job`` with the output directory ``root``, made if
    missing and open to this user alone. Two launches of the same name have two folders.

    Raises:
        OSError: if it cannot be made, or if it belongs to another user.
    """
    launch = [*launch_names(environ).values()] if ranks > 1 else [str(os.getpid())]
    return node_folder([job, str(root.resolve()), *launch], environ)


def node_folder(names: Sequence[str], environ: Mapping[str, str] = os.environ) -> Path:
    """Return the folder of this node for what has these names, made if missing and open to this user alone.

    Raises:
        OSError: if it cannot be made, or if it belongs to another user.
    """
    name = digest(names)
    folder = environ.get(FOLDER)
    if folder:
        Path(folder).mkdir(mode=0o700, parents=True, exist_ok=True)
        return private(Path(folder).resolve() / name, REMEDY)
    return private(shared_folder(REMEDY) / name, REMEDY)


class Progress:
    """Writer of the progress of this rank. Its methods are meant for the training thread and take about a microsecond;
    in a forked child they change nothing that the watcher reads.

    Args:
        folder: folder of the ranks of this node, see :func:`progress_folder`; None for progress that this process alone
            reads.
        rank: number of this rank.
        ranks: number of ranks of the job.
        job: name of the job.
        watched: whether a watcher removes the file of a rank that has ended; else the rank does.

    Raises:
        OSError: if the file cannot be made.
    """

    def __init__(self, folder: Path | None, rank: int, ranks: int, job: str, watched: bool = True) -> None:
        self.path = None if folder is None else folder / f"rank{rank}-{os.getpid()}{SUFFIX}"
        self._signal: StackSignal | None = None
        self._buffer: mmap.mmap | bytearray = bytearray(SIZE)
        if self.path is not None:
            self._signal = StackSignal(self.path.with_suffix(".stacks")) if watched else None
            self._header = _header(rank, ranks, job, self._signal.number if self._signal is not None else 0)
            self._buffer = _mapped(self.path, self._header)
        self._names = {name: number for number, name in enumerate(PHASES)}
        self._open: list[int] = []
        self._step, self._until, self._since = -1, 0, monotonic_ns()
        self._base, self._state = START, START * WAYS + RUNNING
        self._map_onto(self._buffer)
        self._write(self._since)
        _live.add(self)
        atexit.register(self._exit)

    def _map_onto(self, buffer: mmap.mmap | bytearray) -> None:
        whole = memoryview(buffer)
        self._buffer = buffer
        self._counts = whole[HISTOGRAMS_AT:SIZE].cast("I")

    def step(self, step: int) -> None:
        """Record the end of the training step ``step``; a promise ends with it."""
        now = monotonic_ns()
        units = now - self._since >> UNIT_BITS
        state = self._state
        self._counts[(state // WAYS) * BUCKETS + (bucket_of(units) if units > 3 else units)] += 1
        self._since, self._step, self._until = now, step, 0
        if self._base == START:
            self._base = STEP
            state = self._state = state if self._open else STEP * WAYS + state % WAYS
        _store(self._buffer, ROW_AT, step, now, 0, state, now * 3 + step * 5 + state * 7 & 0xFFFF_FFFF_FFFF_FFFF)

    def enter(self, phase: str) -> None:
        """Begin the phase ``phase``, which may lie inside another."""
        self._open.append(self._number(phase))
        self._turn(self._open[-1])

    def leave(self) -> None:
        """End the phase that began last; without one, do nothing."""
        if self._open:
            self._open.pop()
            self._turn(self._open[-1] if self._open else self._base)

    @contextmanager
    def phase(self, name: str) -> Iterator[None]:
        """Mark a stage of the program, such as ``evaluation`` or ``checkpoint``, which has a budget of its own."""
        self.enter(name)
        try:
            yield
        finally:
            self.leave()

    def promise(self, seconds: float) -> None:
        """Announce that the next sign of progress comes within ``seconds``: until the end of the next step this takes
        the place of the budget."""
        now = monotonic_ns()
        self._mark(now, self._state, (now + int(min(1e9, max(0.0, seconds)) * 1e9)) & ~PROGRESS_SINCE)

    def row(self) -> ProgressRow:
        """Return the progress at this moment, for this process itself."""
        name = next((name for name, number in [*self._names.items()] if number == self._state // WAYS), "other")
        return ProgressRow(self._step, self._since, self._until, name, self._state % WAYS)

    def counts(self, phase: str) -> Sequence[int]:
        """Return the histogram of the stretches of a phase, for this process itself."""
        at = self._names.get(phase, OTHER) * BUCKETS
        return [*self._counts[at : at + BUCKETS]]

    def renew(self) -> None:
        """Make the file again if it was removed, as login managers and cleaning jobs do in shared memory: a watcher
        that starts later finds it. For a thread that is not the training thread.

        Raises:
            OSError: if it cannot be made.
        """
        if self.path is None or self._state % WAYS != RUNNING or self.path.exists():
            return
        for folder in (self.path.parent.parent, self.path.parent):
            with suppress(FileExistsError):
                folder.mkdir(mode=0o700)
        if self._signal is not None:
            self._signal.renew()
        buffer = _mapped(self.path, self._header)
        buffer[NAMES_AT:SIZE] = self._buffer[NAMES_AT:SIZE]
        self._map_onto(buffer)
        for _ in range(TRIES):  # the training thread may store a row at the same moment
            self._write(self._since)
            step, time, until, state, written = ROW.unpack_from(buffer, ROW_AT)
            if check(step, time, until, state) == written:
                break

    def ended(self) -> None:
        """Record that training has ended on this rank in an orderly way: it is watched no longer."""
        self._finish(ENDED)

    def close(self) -> None:
        """Record the end of training and release what belongs to the process; a further call does nothing."""
        self.ended()
        atexit.unregister(self._exit)
        _live.discard(self)
        if self._signal is not None:
            self._signal.close()
        elif self.path is not None:
            with suppress(OSError):
                self.path.unlink()

    def _turn(self, phase: int) -> None:
        until = self._until
        self._mark(monotonic_ns(), phase * WAYS + self._state % WAYS, until | PROGRESS_SINCE if until else 0)

    def _mark(self, now: int, state: int, until: int) -> None:
        """Record a sign of progress that is no step."""
        units = now - self._since >> UNIT_BITS
        self._counts[self._state // WAYS * BUCKETS + (bucket_of(units) if units > 3 else units)] += 1
        self._since, self._state, self._until = now, state, until
        self._write(now)

    def _write(self, now: int) -> None:
        step, until, state = self._step, self._until, self._state
        _store(self._buffer, ROW_AT, step, now, until, state, check(step, now, until, state))

    def _finish(self, way: int) -> None:
        self._state = self._state // WAYS * WAYS + way
        self._write(monotonic_ns())

    def _exit(self) -> None:
        if self._state % WAYS == RUNNING:
            self._finish(EXITING)

    def _number(self, phase: str) -> int:
        number = self._names.get(phase)
        if number is None:
            number = min(len(self._names), OTHER)
            self._names[phase] = number
            name = writable(phase).encode("utf-8")[: NAME_BYTES - 1] if number < OTHER else b"other"
            at = NAMES_AT + number * NAME_BYTES
            self._buffer[at : at + NAME_BYTES] = name.ljust(NAME_BYTES, b"\0")
        return number

    def _forget(self) -> None:
        """Continue in memory of this process alone: the file is that of the parent."""
        atexit.unregister(self._exit)
        self._map_onto(bytearray(SIZE))


def _header(rank: int, ranks: int, job: str, number: int) -> ProgressHeader:
    return ProgressHeader(
        pid=os.getpid(),
        started=process_state("self").started,
        rank=rank,
        ranks=ranks,
        job=job[:200],
        thread=threading.get_native_id(),
        ident=threading.get_ident(),
        signal=number,
    )


def _mapped(path: Path, header: ProgressHeader) -> mmap.mmap:
    """Make the file and map it; readers see it whole or not at all."""
    text = json.dumps(header._asdict(), ensure_ascii=False).encode("utf-8", "replace")
    content = bytearray(SIZE)
    content[: len(MAGIC)] = MAGIC
    content[len(MAGIC) : len(MAGIC) + len(text)] = text
    assert len(MAGIC) + len(text) <= HEADER_BYTES
    for number, name in enumerate(PHASES):
        struct.pack_into(f"{NAME_BYTES}s", content, NAMES_AT + number * NAME_BYTES, name.encode())
    ROW.pack_into(content, ROW_AT, -1, now := monotonic_ns(), 0, 0, check(-1, now, 0, 0))
    hidden = path.with_name(f".{path.name}")
    hidden.unlink(missing_ok=True)
    view = mapped(hidden, SIZE, bytes(content))
    hidden.rename(path)
    return view


def renew_progress(folder: Path) -> None:
    """Make the files of this process in ``folder`` again if they were removed.

    Raises:
        OSError: if they cannot be made.
    """
    for progress in [*_live]:
        if progress.path is not None and progress.path.parent == folder:
            progress.renew()


def _after_fork() -> None:
    for progress in list(_live):
        progress._forget()
    _live.clear()


if sys.platform != "win32":
    os.register_at_fork(after_in_child=_after_fork)
assert len(PHASES) < MOST_PHASES
