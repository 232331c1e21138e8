"""Lines of a rank: what another process reads of them."""

from __future__ import annotations

import os
import subprocess
import time
from pathlib import Path

import numpy as np
import pytest

from probe.core.sentinel.rank_lines import MOST_BYTES, MOST_LINES, MOST_PARAMETERS, LinesReader, RankLine, RankLines
from tests.forks import ROOT
from tests.quick_python import quick_python
from tests.user_scripts import COMMANDS

NAMES = ["embedding.weight", "head.weight", "head.bias"]


def table(step: int, rows: int = len(NAMES)) -> np.ndarray:
    return np.arange(2.0 * rows).reshape(rows, 2) + step


def test_lines_are_read_as_they_were_written(tmp_path: Path) -> None:
    """Header, steps, losses and tables, each line once."""
    writer = RankLines(tmp_path, 3, NAMES, (2, 3), (3, 7), (True, False, False), "out")
    reader = LinesReader(writer.path)
    header = reader.header
    assert (header.rank, header.pid, header.names, header.root) == (3, os.getpid(), tuple(NAMES), "out")
    assert (header.replicas, header.tensor_parallel, header.split) == ((2, 3), (3, 7), (True, False, False))
    writer.write(RankLine(5, 0, 0.5, table(5)))
    writer.write(RankLine(5, 1, float("nan"), table(6), table(7)))
    first, second = reader.news()
    assert (first.step, first.optimizer, first.loss, first.unreduced) == (5, 0, 0.5, None)
    assert (second.step, second.optimizer) == (5, 1)
    assert np.isnan(second.loss)
    np.testing.assert_array_equal(first.reduced, table(5))
    np.testing.assert_array_equal(second.reduced, table(6))
    np.testing.assert_array_equal(second.unreduced, table(7))
    assert reader.news() == []


def test_the_latest_lines_stay_and_the_missed_ones_are_counted(tmp_path: Path) -> None:
    """A ring of bounded size."""
    writer = RankLines(tmp_path, 0, NAMES)
    reader = LinesReader(writer.path)
    for step in range(MOST_LINES + 10):
        writer.write(RankLine(step, 0, 0.5, table(step)))
    assert [line.step for line in reader.news()] == [*range(10, MOST_LINES + 10)]
    assert reader.missed == 10


@pytest.mark.parametrize("parameters", [1, 150, 3000, MOST_PARAMETERS + 5])
def test_the_file_is_bounded(tmp_path: Path, parameters: int) -> None:
    """For any number of parameters; those without room are counted."""
    writer = RankLines(tmp_path, 0, [str(number) for number in range(parameters)])
    header = LinesReader(writer.path).header
    assert header.left_out == max(0, parameters - MOST_PARAMETERS)
    assert writer.path.stat().st_size < MOST_BYTES + 4096 + 9 * parameters
    writer.write(RankLine(1, 0, 0.5, *(table(number, parameters) for number in (1, 2, 3))))
    (line,) = LinesReader(writer.path).news()
    np.testing.assert_array_equal(line.reduced, table(1, parameters)[:MOST_PARAMETERS])


def test_no_torn_line_is_read(tmp_path: Path) -> None:
    """While another process writes as fast as it can, each line that is read is whole."""
    script = (
        "import sys, numpy as np\nfrom pathlib import Path\n"
        "from probe.core.sentinel.rank_lines import RankLine, RankLines\n"
        "writer = RankLines(Path(sys.argv[1]), 0, [str(n) for n in range(500)])\nprint(writer.path, flush=True)\n"
        "step = 0\nwhile True:\n    table = np.full((500, 2), float(step))\n"
        "    writer.write(RankLine(step, 0, 0.5, table))\n    step += 1\n"
    )
    process = subprocess.Popen(
        [quick_python(*COMMANDS), "-c", script, str(tmp_path)], cwd=ROOT, stdout=subprocess.PIPE, text=True
    )
    try:
        assert process.stdout is not None
        reader = LinesReader(Path(process.stdout.readline().strip()))
        lines = []
        while len(lines) < 2000:
            lines += reader.news()
    finally:
        process.kill()
        process.wait()
    assert all((line.reduced == line.step).all() for line in lines)
    assert [line.step for line in lines] == sorted({line.step for line in lines})


def test_a_line_takes_less_than_20_microseconds(tmp_path: Path) -> None:
    """For 150 parameters, once on a busy machine."""
    writer = RankLines(tmp_path, 0, [f"blocks.{number}.weight" for number in range(150)])
    numbers = table(0, 150)

    def seconds() -> float:
        begun = time.perf_counter()
        for step in range(100):
            writer.write(RankLine(step, 0, 0.5, numbers, numbers, numbers))
        return (time.perf_counter() - begun) / 100

    assert min(seconds() for _ in range(50)) < 20e-6


def test_a_forked_child_writes_no_line(tmp_path: Path) -> None:
    """The lines are its parent's."""
    writer = RankLines(tmp_path, 0, NAMES)
    if not (child := os.fork()):
        writer.write(RankLine(1, 0, 0.5, table(1)))
        os._exit(0)
    os.waitpid(child, 0)
    assert LinesReader(writer.path).news() == []


def test_a_file_of_another_kind_is_refused(tmp_path: Path) -> None:
    """With the expected version."""
    (tmp_path / "a.lines").write_bytes(b"something else" * 10)
    with pytest.raises(ValueError, match="expected a file of lines, version probe-lines-2"):
        LinesReader(tmp_path / "a.lines")
