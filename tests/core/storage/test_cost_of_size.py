"""Work grows with the size of a run, not with its square: counted at one size and at twice that."""

from __future__ import annotations

import sys
import tracemalloc
from collections.abc import Callable
from contextlib import closing
from itertools import islice
from pathlib import Path
from types import FrameType
from typing import Any

import pytest

import probe
from probe.core.analysis.performance.step_table import StepTable
from probe.core.analysis.pictures.cells import Span
from probe.core.naming import RUN
from probe.core.storage.batches import steps
from probe.core.storage.csv_reader import PlainRows
from probe.core.storage.directories import RankDirectory, RecordedRun, last_run
from probe.core.storage.duckdb_reader import Rows
from probe.core.storage.manifest import Manifest
from probe.core.storage.packed.pack import pack
from probe.core.storage.problems import Problems
from probe.core.storage.run_directory import write_manifest
from probe.view.heatmap import RankChoice, row_curves
from probe.view.run_files import GrowingFiles, RunListing
from probe.view.run_reader import RunReader
from tests.core.storage.run_files import write_run
from tests.required import require

require("duckdb")

FOLDER = str(Path(probe.__file__).parent)


def lines_run(work: Callable[[], object]) -> int:
    """Lines of the package that ``work`` runs, each as often as it runs."""
    number = 0

    def count(frame: FrameType, *_: Any) -> Any:
        nonlocal number
        if not frame.f_code.co_filename.startswith(FOLDER):
            return None
        number += 1
        return count

    before = sys.gettrace()
    sys.settrace(count)
    try:
        work()
    finally:
        sys.settrace(before)
    return number


def assert_linear(work_of: Callable[[int], Callable[[], object]], size: int) -> None:
    """Twice the size is at most a bit more than twice the work."""
    work_of(size)()  # what is done once a process
    one, two = (lines_run(work_of(n)) for n in (size, 2 * size))
    assert two < 2.4 * one


def directories_of(number: int) -> tuple[RankDirectory, ...]:
    """Directories of ranks that have ended."""
    return tuple(RankDirectory(Path(f"/r{n}"), n, "", 0.0, Manifest(end_time="now"), 0) for n in range(number))


def test_all_ranks_are_read_one_after_the_other() -> None:
    """The directories of a rank are not sought among those of all."""

    def work_of(number: int) -> Callable[[], object]:
        empty = type("Empty", (), {})()
        empty.directories, empty.problems = directories_of(number), Problems()
        empty.files = {f"s{n}": [] for n in range(4)}
        empty.files_of = lambda *_: []
        return lambda: [list(steps(empty, rank)) for rank in range(number)]

    assert_linear(work_of, 100)


def test_a_page_sees_whether_all_ranks_have_ended() -> None:
    """At each look at the files."""

    def work_of(number: int) -> Callable[[], object]:
        listing = RunListing(RecordedRun(directories_of(number), ()), {}, {}, Problems(), False)
        return lambda: listing.ended

    assert_linear(work_of, 200)


def written_numbers(root: Path, files: int) -> Path:
    """Numbers of the run on two ranks, with a file a step."""
    for rank in range(2):
        directory = root / f"Dec03_21-34-40-rank{rank}-{rank:08x}"
        directory.mkdir(parents=True)
        for step in range(files):
            text = f"vpp_stage,name,step,value,shape,dtype\n0,step_seconds,{step},1.0,[],float64\n"
            (directory / f"run_{step}-{step}.csv").write_text(text, encoding="utf-8")
        write_manifest(directory, {"rank": rank, "world_size": 2, "start_time": "2026-11-03T21:34:40+0800"})
    return root


def test_the_step_table_of_a_packed_run(tmp_path: Path) -> None:
    """The files of the first and the last rank are listed once."""

    def work_of(number: int) -> Callable[[], object]:
        packed = tmp_path / f"packed{number}"
        if not packed.exists():
            pack(written_numbers(tmp_path / f"run{number}", number), packed)

        def work() -> None:
            with Rows(last_run(packed, Problems()).directories, Problems()) as rows:
                assert RUN in rows.signals
                StepTable(rows).close()

        return work

    assert_linear(work_of, 40)


def test_the_files_of_a_rank_are_kept_by_rank(tmp_path: Path) -> None:
    """For the reader without DuckDB, too."""

    def work_of(number: int) -> Callable[[], object]:
        root = tmp_path / f"plain{number}"
        if not root.exists():
            for rank in range(number):
                write_run(root, rank, range(1))
        rows = PlainRows(last_run(root, Problems()).directories, Problems())
        return lambda: [rows.files_of("actv", n)[0] for n in range(number)]

    assert_linear(work_of, 20)


def test_the_numbers_of_ranks_that_an_address_asks_for_cost_nothing(tmp_path: Path) -> None:
    """Each rank of the run is looked for once; a span of a million ranks takes no room."""
    for rank in range(3):
        write_run(tmp_path, rank, range(2))

    class Counted:
        number = 0

        def __contains__(self, rank: object) -> bool:
            self.number += 1
            return rank != 1

    counted = Counted()
    with closing(RunReader(GrowingFiles(str(tmp_path)))) as reader:
        found = row_curves(reader, "actv", "max", "fc.input", Span(0, 9), counted, 10)
    assert (found.lines, counted.number) == ([0, 2], 3)
    tracemalloc.start()
    try:
        choice = RankChoice(",".join(["0-1000000", "7", "2000000-3000000:2"] * 1000))
        assert tracemalloc.get_traced_memory()[1] < 1 << 20
    finally:
        tracemalloc.stop()
    asked = (7, 1_000_000, 2_000_002, 1_000_001, 2_000_001)
    assert [rank in choice for rank in asked] == [True, True, True, False, False]
    assert [*islice(RankChoice("5,900000-1000000,2-4,3"), 6)] == [2, 3, 4, 5, 900_000, 900_001]


@pytest.mark.parametrize("text", ["a", "3-", "1-2-3", ",".join(f"{n}-{n}" for n in range(1000))])
def test_other_texts_are_no_ranks(text: str) -> None:
    """Nor are more spans than curves are drawn."""
    with pytest.raises(ValueError, match=r"expected|invalid"):
        RankChoice(text)
