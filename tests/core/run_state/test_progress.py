"""Progress of a rank: what its mapped file shows to another process."""

from __future__ import annotations

import ctypes
import os
import signal
import struct
import subprocess
import sys
import textwrap
import threading
import time
from pathlib import Path

import pytest

from probe.core.process_identity import process_state
from probe.core.run_state.budget import stretches
from probe.core.run_state.progress import FOLDER, Progress, progress_folder
from probe.core.run_state.progress_file import (
    BUCKETS,
    ENDED,
    EXITING,
    PHASES,
    ROW,
    ROW_AT,
    RUNNING,
    SIZE,
    UNIT_BITS,
    ProgressReader,
    bucket_of,
    check,
    longest_in,
)
from probe.core.run_state.stack_signal import handles

ROOT = Path(__file__).parents[3]


@pytest.fixture
def progress(tmp_path: Path) -> Progress:
    made = Progress(tmp_path, 3, 8, "job")
    yield made
    made.close()


def run(code: str, folder: Path) -> subprocess.Popen[bytes]:
    return subprocess.Popen([sys.executable, "-c", textwrap.dedent(code), str(folder)], cwd=ROOT)


def test_a_reader_sees_who_writes(progress: Progress) -> None:
    """The header names the process so that a later one with the same id is not taken for it."""
    header = ProgressReader(progress.path).header
    assert (header.pid, header.rank, header.ranks, header.job) == (os.getpid(), 3, 8, "job")
    assert header.started == process_state(os.getpid()).started > 0
    assert header.thread == threading.get_native_id()


def test_steps_and_phases_are_seen(progress: Progress) -> None:
    """Each sign of progress changes the row: before the first step, within phases inside each other, and after."""
    reader = ProgressReader(progress.path)
    seen = [reader.row()]
    for act in (
        lambda: progress.enter("data"),
        progress.leave,
        lambda: progress.step(7),
        lambda: progress.enter("evaluation"),
        lambda: progress.enter("my own"),
        progress.leave,
        progress.leave,
        progress.leave,
        lambda: progress.step(8),
    ):
        act()
        seen.append(reader.row())
    phases = ["start", "data", "start", "step", "evaluation", "my own", "evaluation", "step", "step", "step"]
    assert [row.phase for row in seen] == phases
    assert [row.step for row in seen] == [-1, -1, -1, *[7] * 6, 8]
    times = [row.time for row in seen]
    assert times[:8] == sorted(set(times[:8]))
    assert abs(times[-1] - time.monotonic_ns()) < 5e9


def test_a_first_step_within_a_phase_ends_the_start(progress: Progress) -> None:
    """A phase that goes on over the first step is followed by steps, not by the start."""
    reader = ProgressReader(progress.path)
    with progress.phase("compile"):
        progress.step(0)
        assert reader.row().phase == "compile"
    assert reader.row().phase == "step"


def test_a_promise_lasts_until_the_next_step(progress: Progress) -> None:
    """Phases after a promise keep it, marked; the end of a step drops it."""
    reader = ProgressReader(progress.path)
    before = time.monotonic_ns()
    progress.promise(100)
    first = reader.row()
    assert before + 99e9 < first.until < time.monotonic_ns() + 101e9
    assert first.until % 2 == 0
    with progress.phase("data"):
        assert reader.row().until == first.until + 1
    progress.step(1)
    assert reader.row().until == 0


def test_a_promise_of_any_length_is_taken(progress: Progress) -> None:
    """Neither a negative promise, nor one of NaN, nor an endless one raises into training."""
    reader = ProgressReader(progress.path)
    for seconds in (-1, float("nan")):
        progress.promise(seconds)
        assert reader.row().until <= time.monotonic_ns()
    progress.promise(float("inf"))
    assert reader.row().until > time.monotonic_ns()


def test_the_end_is_seen(progress: Progress) -> None:
    """An orderly end is told apart from a process that is gone, and stays whatever comes after it."""
    reader = ProgressReader(progress.path)
    assert reader.row().way == RUNNING
    progress.ended()
    progress.step(4)
    assert reader.row()[3:] == ("step", ENDED)


def test_the_exit_of_python_is_seen(tmp_path: Path) -> None:
    """A program that comes to its end without stopping the monitor leaves a sign of it; a killed one does not."""
    code = """
        import os, signal, sys; from pathlib import Path
        from probe.core.run_state.progress import Progress
        Progress(Path(sys.argv[1]), {rank}, 2, "job").step(1)
        {last}
    """
    children = [run(code.format(rank=0, last=""), tmp_path)]
    children += [run(code.format(rank=1, last="os.kill(os.getpid(), signal.SIGKILL)"), tmp_path)]
    assert [child.wait(120) for child in children] == [0, -signal.SIGKILL]
    ways = {reader.header.rank: reader.row().way for reader in map(ProgressReader, tmp_path.glob("rank*.progress"))}
    assert ways == {0: EXITING, 1: RUNNING}


def test_a_forked_child_does_not_write(progress: Progress) -> None:
    """Steps, phases and the exit of a child leave the file as its parent wrote it."""
    progress.step(1)
    content = progress.path.read_bytes()
    child = os.fork()
    if not child:
        progress.step(99)
        progress.enter("data")
        progress.promise(5)
        progress.ended()
        progress._exit()
        os._exit(0)
    assert os.waitpid(child, 0)[1] == 0
    assert progress.path.read_bytes() == content
    progress.step(2)
    assert ProgressReader(progress.path).row().step == 2


def test_a_torn_row_is_never_returned(tmp_path: Path, progress: Progress) -> None:
    """Of a row that is written half, in any order of its parts, a reader returns the one before."""
    reader = ProgressReader(progress.path)
    progress.step(5)
    old = reader.row()
    parts = list(ROW.unpack(progress.path.read_bytes()[ROW_AT : ROW_AT + ROW.size]))
    step, now, until, state = 6, parts[1] + 12_345_678, parts[1] + 10**12, 3 * 4
    new = [step, now, until, state, check(step, now, until, state)]
    for mask in range(1, 2**5 - 1):
        mixed = [new[i] if mask >> i & 1 else parts[i] for i in range(5)]
        ROW.pack_into(progress._buffer, ROW_AT, *mixed)
        assert reader.row() == old, mask
    ROW.pack_into(progress._buffer, ROW_AT, *new)
    assert reader.row()[:3] == (step, now, until)


def test_rows_are_whole_while_another_process_writes(tmp_path: Path) -> None:
    """Many thousand rows read while a process rewrites them as fast as it can never mix two of them."""
    child = run(
        """
        import sys; from pathlib import Path
        from probe.core.run_state.progress import Progress
        progress = Progress(Path(sys.argv[1]), 0, 1, "job")
        for step in range(10**9):
            progress.step(step)
            progress.promise(step)
        """,
        tmp_path,
    )
    try:
        end = time.monotonic() + 120
        while not (found := list(tmp_path.glob("rank*.progress"))):
            assert time.monotonic() < end
        reader = ProgressReader(found[0])
        steps, whole = set(), 0
        while len(steps) < 2000:
            assert time.monotonic() < end
            if (row := reader.row()) is None:  # it was written at every one of the reader's attempts
                continue
            steps.add(row.step)
            whole += row.until == 0 or abs(row.until - row.time - row.step * 10**9) < 2
            assert row.until == 0 or abs(row.until - row.time - row.step * 10**9) < 2
        assert whole >= 2000
    finally:
        child.kill()
        child.wait()


def test_stretches_are_counted_by_phase(progress: Progress) -> None:
    """The time between two signs of progress belongs to the phase in between."""
    reader = ProgressReader(progress.path)
    progress._since -= 3_000_000_000
    progress.step(1)
    progress._since -= 100_000_000
    progress.step(2)
    progress.enter("checkpoint")
    progress._since -= 50_000_000_000
    progress.leave()
    longest = {phase: stretches(reader.counts(phase)).longest for phase in ("start", "step", "checkpoint")}
    assert longest == pytest.approx({"start": 3, "step": 0.1, "checkpoint": 50}, rel=0.25)
    assert all(found >= true for found, true in zip(longest.values(), (3, 0.1, 50), strict=True))
    assert stretches(reader.counts("step")).number == 2
    assert stretches(reader.counts("data")).number == 0


def test_buckets_hold_what_falls_into_them() -> None:
    """The end of a bucket is above every duration in it, by a quarter at most, up to twelve days."""
    for exponent in range(300):
        units = int(1.07**exponent)
        unit = (1 << UNIT_BITS) / 1e9
        if units >= 1 << 32:
            break
        end = longest_in(bucket_of(units))
        assert units * unit < end <= max(units * unit * 1.26, (units + 1) * unit)
    assert bucket_of(1 << 60) == BUCKETS - 1


def test_more_phases_than_there_is_room_for(progress: Progress) -> None:
    """Further names share one phase; none overwrites another, and long names are cut."""
    reader = ProgressReader(progress.path)
    for number in range(30):
        with progress.phase(f"{number}" + "é" * 100):
            row = reader.row()
    assert row.phase == "other"
    with progress.phase("0" + "é" * 100):
        assert reader.row().phase.startswith("0é")
    assert [reader.name(number) for number in range(len(PHASES))] == list(PHASES)
    progress.step(1)
    assert reader.row().phase == "step"


def test_two_launches_have_two_folders(tmp_path: Path) -> None:
    """The name of the job, its output and the launch each make a folder, the ranks of one launch share it."""

    def folder(job: str = "job", output: str = "a", ranks: int = 2, port: str = "1") -> Path:
        environ = {FOLDER: str(tmp_path / "chosen"), "MASTER_PORT": port}
        return progress_folder(job, tmp_path / output, ranks, environ)

    assert folder() == folder()
    assert len({folder(), folder(job="b"), folder(output="b"), folder(port="2"), folder(ranks=1)}) == 5
    assert folder().parent == tmp_path / "chosen"
    assert folder().stat().st_mode & 0o777 == 0o700


def test_a_folder_of_another_user_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither a directory of another user nor a link in its place is used."""
    environ = {FOLDER: str(tmp_path)}
    folder = progress_folder("job", tmp_path, 2, environ)
    folder.rmdir()
    folder.symlink_to(tmp_path)
    with pytest.raises(PermissionError, match="expected a directory of the user"):
        progress_folder("job", tmp_path, 2, environ)
    folder.unlink()
    folder.mkdir()
    monkeypatch.setattr(os, "getuid", lambda: 4242)
    with pytest.raises(PermissionError, match="4242"):
        progress_folder("job", tmp_path, 2, environ)


def test_files_of_another_layout_are_refused(tmp_path: Path) -> None:
    """A file of another version or length is an error, not misread."""
    path = tmp_path / "rank0.progress"
    for content in (b"", b"probe-progress-9\n".ljust(SIZE, b"\0"), b"probe-progress-1\n"):
        path.write_bytes(content)
        with pytest.raises(ValueError, match="expected a file of progress"):
            ProgressReader(path)


def test_the_signal_for_stacks_is_one_that_nobody_uses(tmp_path: Path) -> None:
    """A signal that C code handles or the program ignores is left alone, and one that was taken is given back."""
    first = Progress(tmp_path, 0, 1, "job")
    taken = ProgressReader(first.path).header.signal
    assert taken > signal.SIGRTMIN
    assert handles(os.getpid(), taken)
    first.close()
    assert not handles(os.getpid(), taken)
    before = signal.signal(taken, signal.SIG_IGN)
    ctypes.CDLL(None).signal(taken - 1, ctypes.cast(ctypes.CDLL(None).abs, ctypes.c_void_p))
    try:
        second = Progress(tmp_path, 0, 1, "job")
        assert ProgressReader(second.path).header.signal == taken - 2
        second.close()
    finally:
        signal.signal(taken, before)
        ctypes.CDLL(None).signal(taken - 1, None)


def test_stacks_are_written_while_the_interpreter_is_locked(tmp_path: Path) -> None:
    """The signal writes the stacks of a process of which one thread never releases the lock."""
    child = run(
        """
        import sys; from pathlib import Path
        from probe.core.run_state.progress import Progress
        Progress(Path(sys.argv[1]), 0, 1, "job").step(1)
        def hold(): sum(range(10**12))
        hold()
        """,
        tmp_path,
    )
    try:
        end = time.monotonic() + 120
        while (
            not (found := list(tmp_path.glob("rank*.progress"))) or (reader := ProgressReader(found[0])).row().step < 1
        ):
            assert time.monotonic() < end
        os.kill(child.pid, reader.header.signal)
        stacks = found[0].with_suffix(".stacks")
        while "hold" not in stacks.read_text():
            assert time.monotonic() < end
        assert child.poll() is None
    finally:
        child.kill()
        child.wait()


def test_the_layout_is_the_one_that_is_described() -> None:
    """A row fits between the header and the names, and takes no padding."""
    assert ROW.size == struct.calcsize("<qQQQQ") == 40
