"""Files of a run that is killed without warning."""

from __future__ import annotations

import csv
import io
import json
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

pytestmark = pytest.mark.slow

ROWS = 200

WRITER = """
import sys
from pathlib import Path
from probe.core.output.sinks import SINKS
from tests.core.output.sink_data import batch, context, finding, snapshot
sink = SINKS[sys.argv[1]](context(Path(sys.argv[2]), steps_per_file=10**6, dump=True))
sink.open()
for step in range(int(sys.argv[3])):
    sink.write(snapshot(step, batch("actv", step, {"min": [step] * 200}), findings=[finding(step)]))
    print(step, flush=True)
sys.stdin.read()
"""

MANY = 10**6
"""Steps that no process gets to before it is killed."""
FEW = 100
"""Steps that a reader slower than the writer can still catch up with."""


def csv_steps(root: Path) -> list[int]:
    """Steps of which every row is whole; all lines but an unfinished last one must be."""
    text = (root / "run" / "actv_0-999999.csv").read_text()
    rows = list(csv.DictReader(io.StringIO(text[: text.rindex("\n") + 1]), strict=True))
    steps = [int(row["step"]) for row in rows if row["dtype"] == "torch.float32" and row["min"] == f"{row['step']}"]
    assert len(steps) == len(rows)
    return [step for step in range(len(rows) // ROWS) if steps[step * ROWS : (step + 1) * ROWS] == [step] * ROWS]


def tensorboard_steps(root: Path) -> list[int]:
    module = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
    events = module.EventAccumulator(str(root / "run"), size_guidance={"scalars": 0})
    events.Reload()
    return [event.step for event in events.Scalars(f"0:p{ROWS - 1}/rank0/actv_min") if event.value == event.step]


def anomaly_steps(root: Path) -> list[int]:
    text = (root / "anomaly_detected" / "rank0" / "anomaly.json").read_text()
    return [entry["step"] for entry in json.loads(text).values()]


@contextmanager
def writing(sink: str, root: Path, steps: int) -> Iterator[subprocess.Popen[str]]:
    """A process that writes step after step and prints each when it is written; killed (SIGKILL) at the end."""
    command = [sys.executable, "-c", WRITER, sink, str(root), str(steps)]
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    try:
        yield process
    finally:
        process.kill()
        process.wait()


def announced(process: subprocess.Popen[str], lines: int) -> int:
    """Step that the process has printed as written, after ``lines`` more lines."""
    assert process.stdout is not None
    return [int(process.stdout.readline()) for _ in range(lines)][-1]


@pytest.mark.parametrize("live", [csv_steps, tensorboard_steps])
def test_a_reader_beside_the_writer_finds_every_step_written_so_far(
    tmp_path: Path, live: Callable[[Path], list[int]]
) -> None:
    """While the process goes on writing, the files can be read, up to the last step it has announced."""
    if live is tensorboard_steps:
        pytest.importorskip("tensorboardX")
    with writing(live.__name__.removesuffix("_steps"), tmp_path, FEW) as process:
        for _ in range(3):
            last = announced(process, 5)
            assert live(tmp_path)[: last + 1] == list(range(last + 1))


@pytest.mark.parametrize("left", [csv_steps, tensorboard_steps, anomaly_steps])
def test_a_killed_process_leaves_every_step_it_announced(tmp_path: Path, left: Callable[[Path], list[int]]) -> None:
    """After SIGKILL in the middle of writing, the files are readable up to their last flush."""
    if left is tensorboard_steps:
        pytest.importorskip("tensorboardX")
    with writing(left.__name__.removesuffix("_steps"), tmp_path, MANY) as process:
        last = announced(process, 20)
    assert left(tmp_path)[: last + 1] == list(range(last + 1))
