"""Packed runs read as the run was: files, rows, steps and problems; and what is wrong with a packed run is named."""

from __future__ import annotations

import gzip
import json
import os
import sys
from pathlib import Path
from types import FrameType
from typing import Any

import pytest

from probe.core.output.sinks import SINKS
from probe.core.records import Update
from probe.core.storage.batches import steps
from probe.core.storage.chunks import files_in
from probe.core.storage.directories import find, last_run
from probe.core.storage.layout import COSTS, cost_line
from probe.core.storage.packed.pack import pack
from probe.core.storage.packed.run import INDEX, is_packed, packed_index
from probe.core.storage.problems import Problems
from probe.core.storage.run_directory import write_manifest
from probe.core.storage.side_files import PACKED_COSTS, StepUpdates
from tests.core.output.sink_data import context, snapshot
from tests.core.storage.run_files import write_run
from tests.core.storage.test_sqlite_reader import plain, step_of
from tests.required import require

require("duckdb")

from probe.core.storage.duckdb_reader import Rows  # noqa: E402 - needs DuckDB

SMALL = 1500


def write(root: Path, rank: int, numbers: range, sinks: tuple[str, ...], time: str = "Dec03_21-34-40") -> Path:
    """The directory of a rank with NaN, infinities, calls, stages, and other columns at every third step."""
    directory = root / f"{time}-rank{rank}-{rank:08x}"
    for sink in sinks:
        writer = SINKS[sink](context(root, directory=directory, rank=rank, steps_per_file=4))
        writer.open()
        for step in numbers:
            first, *rest = step_of(step)
            writer.write(snapshot(step, first, *rest, ops=("min", "max") if step % 3 else ("max",)))
        writer.close()
    groups = {"data_parallel": [0, 1, 2], "tensor_parallel": [rank]}
    write_manifest(directory, {"rank": rank, "world_size": 3, "groups": groups, "first_step": numbers[0]})
    return directory


def described(root: Path) -> dict[str, Any]:
    """Everything that readers ask of a run."""
    problems = Problems()
    run = last_run(root, problems)
    about = [(d.path.name, d.rank, d.time, d.began, dict(d.manifest), d.first_step, d.until) for d in run.directories]
    with Rows(run.directories, problems) as rows:
        views = {
            signal: (
                rows.numbers(signal),
                [repr(row) for row in rows.connection.execute(
                    f"SELECT * FROM {rows.view(signal)} ORDER BY ALL").fetchall()],
                [repr(row) for row in rows.connection.execute(
                    f"SELECT * FROM {rows.between(signal, 3, 6)} ORDER BY ALL").fetchall()],
                [(n, rows.original(f).name, f.first, f.last, f.part) for n, f in rows.files[signal]
                 if f.format != "sqlite"],
                [[(f.first, f.last) for f in rows.files_of(signal, n)] for n in range(len(run.directories))],
            )
            for signal in rows.signals
        }  # fmt: skip
        batches = {rank: plain(list(steps(rows, rank))) for rank in run.ranks}
        some = {rank: plain(list(steps(rows, rank, 3, 5))) for rank in run.ranks}
    told = [str(problem).replace(str(root), "") for problem in problems.kept]
    return {
        "run": (about, run.missing, run.name),
        "views": views,
        "signals": list(views),
        "steps": batches,
        "some": some,
        "problems": told,
    }


@pytest.mark.parametrize(
    ("sinks", "size"),
    [
        (("csv",), SMALL),
        (("parquet",), SMALL),
        (("sqlite",), SMALL),
        (("csv", "parquet"), SMALL),
        (("csv", "sqlite"), SMALL),
        (("csv",), 1 << 28),  # what is put into one file has been read alike, whoever wrote it
    ],
)
def test_all_is_as_in_the_run_itself(tmp_path: Path, sinks: tuple[str, ...], size: int) -> None:
    """Rows, columns, batches in their order, files by name, manifests, problems: whatever wrote the files."""
    for rank in range(3):
        write(tmp_path / "run", rank, range(10), sinks)
    pack(tmp_path / "run", tmp_path / "out", block_bytes=size)
    there, packed = described(tmp_path / "run"), described(tmp_path / "out")
    if "sqlite" in sinks:  # files are copies of rows there, under names of their own
        for each in (there, packed):
            each["views"] = {signal: view[:3] for signal, view in each["views"].items()}
    assert packed == there
    assert len(there["steps"][0]) >= 10


def test_ranks_of_different_formats_and_lengths(tmp_path: Path) -> None:
    """One rank resumed, one missing, one that wrote nothing, one with other columns, one with another signal."""
    root = tmp_path / "run"
    write(root, 0, range(10), ("csv",))
    write(root, 0, range(7, 12), ("csv",), time="Dec03_22-34-40")
    write(root, 1, range(8), ("parquet",))
    empty = root / "Dec03_21-34-40-rank3-00000003"
    empty.mkdir()
    write_manifest(empty, {"rank": 3, "world_size": 5, "config": {"history": 2}})
    (root / "Dec03_21-34-40-rank1-00000001" / "alone_0-3.csv").write_text("vpp_stage,name,step,size\n0,a,1,2.5\n")
    pack(root, tmp_path / "out", block_bytes=SMALL)
    there, packed = described(root), described(tmp_path / "out")
    assert packed == there
    assert there["run"][1] == (2, 3, 4)
    assert len(there["problems"]) >= 2


def test_steps_that_do_not_ascend_keep_their_order(tmp_path: Path) -> None:
    """As a run that was started again in its directory leaves them; also with a second part of a file."""
    directory = tmp_path / "run" / "Dec03_21-34-40-rank0-00000000"
    directory.mkdir(parents=True)
    head = "vpp_stage,name,step,norm\n"
    (directory / "actv_0-9.csv").write_text(
        head + "".join(f"0,b{n},{n % 5},{n}\n0,a{n},{n % 5},{n}\n" for n in range(9))
    )
    (directory / "actv_3-9_part_1.csv").write_text(head + "0,z,3,1\n0,y,2,1\n")
    pack(tmp_path / "run", tmp_path / "out")
    there, packed = described(tmp_path / "run"), described(tmp_path / "out")
    assert packed == there
    assert any("is followed by step" in line for line in there["problems"])


def test_problems_come_when_a_reader_would_find_them(tmp_path: Path) -> None:
    """Those with files as they are opened, in the order of directories; those with lines at the end."""
    root = tmp_path / "run"
    for rank in range(2):
        directory = write_run(root, rank, range(6), steps_per_file=3)
        path = directory / "actv_0-2.csv"
        lines = path.read_text().splitlines(keepends=True)
        path.write_text("".join([*lines[:2], "0,x,two,0,1,2,,\n" * 5, *lines[2:]]))
        (directory / "actv_3-5.csv").open("a").write("0,torn")
        (directory / "grad_reduced_0-2.parquet").write_text("PAR1")
        (directory / "other.csv").write_text("")
    pack(root, tmp_path / "out", block_bytes=SMALL)
    there, packed = described(root), described(tmp_path / "out")
    assert packed == there
    assert len(there["problems"]) >= 10


def opened(actions: Any) -> list[str]:
    """Paths that Python opens or lists during ``actions``."""
    seen: list[str] = []
    recording = True

    def hook(event: str, arguments: tuple[Any, ...]) -> None:
        twice = event == "open" and arguments[1] is None  # os.open, by which ``open`` opens with an opener
        if recording and event in ("open", "os.listdir", "os.scandir") and not twice:
            seen.append(str(arguments[0]))

    sys.addaudithook(hook)
    actions()
    recording = False
    return seen


def test_opening_reads_the_index_alone(tmp_path: Path) -> None:
    """No directory is listed, and no file of a rank looked for."""
    for rank in range(4):
        write_run(tmp_path / "run", rank, range(4))
    pack(tmp_path / "run", tmp_path / "packed")
    (tmp_path / "packed").rename(tmp_path / "out")  # the index of this path was not read before

    def read() -> None:
        problems = Problems()
        with Rows(last_run(tmp_path / "out", problems).directories, problems) as rows:
            assert rows.signals == ("actv", "grad_reduced")

    assert [path for path in opened(read) if str(tmp_path) in path] == [str(tmp_path / "out" / INDEX)]


def test_files_known_in_advance_are_read_alone(tmp_path: Path) -> None:
    """Of some ranks and steps, in a run and in a packed run: the same rows, without a look at the directories."""
    for rank in range(3):
        write_run(tmp_path / "run", rank, range(8), steps_per_file=2)
    pack(tmp_path / "run", tmp_path / "out", block_bytes=SMALL)
    taken = []
    for root in (tmp_path / "run", tmp_path / "out"):
        run = last_run(root, Problems())
        with Rows(run.directories, Problems()) as rows:
            files = {s: [(n, f) for n, f in own if f.first < 4] for s, own in rows.blocks.items()}
        own = run.directories[1:]
        some = {s: [(max(n - 1, 0), f) for n, f in each if f.ranks or n >= 1] for s, each in files.items()}
        with Rows(own, Problems(), files=some) as rows:
            query = f"SELECT * FROM {rows.view('actv')} WHERE step < 4 ORDER BY ALL"
            taken.append([rows.connection.execute(query).fetchall(), plain(list(steps(rows, 2, 0, 3)))])
    assert taken[0] == taken[1]
    assert {row[0] for row in taken[0][0]} == {1, 2}


def test_the_files_of_a_rank_have_their_sizes_and_times(tmp_path: Path) -> None:
    """As conversions record them."""
    for rank in range(2):
        write_run(tmp_path / "run", rank, range(6), steps_per_file=2)
    pack(tmp_path / "run", tmp_path / "out")
    directory = last_run(tmp_path / "out", Problems()).directories[1]
    files = files_in(directory, Problems())
    assert len(files) == 6
    for file in files:
        found = (tmp_path / "run" / file.path.relative_to(tmp_path / "out")).stat()
        assert (file.bytes, file.modified_ns) == (found.st_size, found.st_mtime_ns)
        assert file.rows == 2 * (4 if file.signal == "actv" else 2)


def test_times_and_patterns_choose_directories(tmp_path: Path) -> None:
    """As among the directories themselves."""
    write_run(tmp_path / "run", 0, range(4))
    pack(tmp_path / "run", tmp_path / "out")
    assert len(find(tmp_path / "out", Problems(), "Dec03_21-34-40", "Dec03_21-34-40")) == 1
    with pytest.raises(ValueError, match="no directory from Dec04"):
        find(tmp_path / "out", Problems(), "Dec04_00-00-00")


@pytest.fixture
def packed(tmp_path: Path) -> Path:
    for rank in range(2):
        write_run(tmp_path / "run", rank, range(8), steps_per_file=2)
    pack(tmp_path / "run", tmp_path / "out", block_bytes=SMALL)
    return tmp_path / "out"


@pytest.mark.parametrize("damage", ["missing", "short"])
def test_a_packed_file_that_is_not_there_as_a_whole_is_named(packed: Path, damage: str) -> None:
    """Its rows are left out, the others are read."""
    path = sorted((packed / "actv").glob("*/*.parquet"))[0]
    size = path.stat().st_size
    if damage == "missing":
        path.unlink()
    else:
        path.write_bytes(path.read_bytes()[:-10])
    problems = Problems()
    with Rows(last_run(packed, problems).directories, problems) as rows:
        left = rows.connection.execute(f"SELECT DISTINCT step FROM {rows.view('actv')} ORDER BY 1").fetchall()
        assert [step.step for step in steps(rows, 0, signals=["actv"])] == [step for (step,) in left]
        assert len(rows.files["actv"]) == 2 * (8 - (8 - len(left))) // 2
    there = "there is none" if damage == "missing" else f"there are {size - 10}"
    assert [str(problem) for problem in problems.kept] == [
        f"{path}: expected {size} bytes, as the index says; {there}: left out"
    ]
    assert problems.skipped
    assert 0 < len(left) < 8


def test_a_packed_file_with_other_bytes_is_named(packed: Path) -> None:
    """DuckDB ends the query, and the file is the error's subject."""
    path = sorted((packed / "actv").glob("*/*.parquet"))[0]
    size = path.stat().st_size
    path.write_bytes(b"PAR1" + b"\xff" * (size - 8) + b"PAR1")
    run = last_run(packed, Problems())
    with pytest.raises(ValueError, match="it is damaged: pack") as raised, Rows(run.directories, Problems()) as rows:
        rows.connection.execute(f"SELECT sum(hash(COLUMNS(*))) FROM {rows.view('actv')}").fetchall()
    assert str(path) in str(raised.value)


@pytest.mark.parametrize("damage", ["text", "short", "list", "newer", "field"])
def test_an_index_that_cannot_be_read_is_named(packed: Path, damage: str) -> None:
    """With what was expected."""
    path = packed / INDEX
    fields = json.loads(gzip.decompress(path.read_bytes()))
    texts: dict[str, bytes] = {
        "text": b"{}",
        "short": path.read_bytes()[:-20],
        "list": gzip.compress(b"[]"),
        "newer": gzip.compress(json.dumps({**fields, "schema": 99}).encode()),
        "field": gzip.compress(json.dumps({"schema": 1}).encode()),
    }
    path.write_bytes(texts[damage])
    with pytest.raises(ValueError, match="expected the index of a packed run") as raised:
        last_run(packed, Problems())
    assert str(path) in str(raised.value)


def test_an_unfinished_pack_is_no_packed_run(packed: Path) -> None:
    """Nor is it taken for the output of a run."""
    (packed / INDEX).unlink()
    assert not is_packed(packed)
    with pytest.raises(ValueError, match="expected directories such as"):
        last_run(packed, Problems())


def pack_many(folder: Path, number: int) -> Path:
    """A packed run of so many ranks, of one row each."""
    root, out = folder / f"run{number}", folder / f"out{number}"
    for rank in range(number):
        directory = root / f"Dec03_21-34-40-rank{rank}-{rank:08x}"
        directory.mkdir(parents=True)
        (directory / "actv_0-0.csv").write_text("vpp_stage,name,step,norm\n0,a,0,1\n")
        groups = {"data_parallel": list(range(number)), "tensor_parallel": [rank]}
        write_manifest(directory, {"rank": rank, "world_size": number, "groups": groups})
    pack(root, out)
    return out


def asked(root: Path) -> tuple[list[str], int]:
    """Names of files that are opened, and calls of ``stat``, while a packed run is opened."""
    opened, stats = [], 0

    def observe(_: FrameType, event: str, function: Any) -> None:
        nonlocal stats
        stats += event == "c_call" and function is os.stat

    hooked = [True]

    def hook(event: str, about: tuple[Any, ...]) -> None:
        if hooked and event == "open" and about[1] is not None:  # of the two of ``open`` with an opener, the first
            opened.append(str(about[0]))

    sys.addaudithook(hook)
    sys.setprofile(observe)
    try:
        run = last_run(root, Problems())
        with Rows(run.directories, Problems()):
            hooked.clear()
    finally:
        sys.setprofile(None)
        hooked.clear()
    return [path for path in opened if path.startswith(str(root))], stats


def test_opening_reads_the_index_once_and_asks_as_often_for_any_number_of_ranks(tmp_path: Path) -> None:
    """The file system is asked about the run, its index and its packed files, not about directories of ranks."""
    moved = [pack_many(tmp_path, number).rename(tmp_path / f"moved{number}") for number in (20, 40)]  # not read yet
    (of_20, stats_of_20), (of_40, stats_of_40) = map(asked, moved)
    assert [of_20, of_40] == [[str(root / INDEX)] for root in moved]
    assert 0 < stats_of_20 == stats_of_40


def test_groups_of_many_ranks_are_in_the_index_once(tmp_path: Path) -> None:
    """Its size does not grow with the square of the ranks."""
    sizes = []
    for number in (20, 40):
        pack_many(tmp_path, number)
        sizes.append(len(gzip.decompress((tmp_path / f"out{number}" / INDEX).read_bytes())))
        run = last_run(tmp_path / f"out{number}", Problems())
        assert run.directories[7].manifest.groups == {"data_parallel": tuple(range(number)), "tensor_parallel": (7,)}
        assert len(packed_index(tmp_path / f"out{number}").signals["actv"].sets) == 1
    assert sizes[1] < 2.5 * sizes[0]


def outcomes(root: Path, problems: Problems) -> list[str]:
    """Outcomes of the updates of the first rank's steps."""
    with Rows(last_run(root, problems).directories, problems) as rows:
        updates = StepUpdates(rows, 0)
        return [updates.put_into(step).batches[0].update.outcome for step in steps(rows, 0)]


@pytest.fixture
def updated(tmp_path: Path) -> Path:
    """A packed run with the updates of its steps."""
    directory = write_run(tmp_path / "run", 0, range(3))
    update = Update("skipped", 0, True, 0.1)
    lines = (cost_line(step, {"hooks": 0.1, "drain": 0.1, "device": 0.1}, 0.01, update) for step in range(3))
    (directory / COSTS).write_text("".join(lines), encoding="utf-8")
    pack(tmp_path / "run", tmp_path / "packed")
    return tmp_path / "packed"


def test_an_index_without_tables_is_read(updated: Path) -> None:
    """As runs have it that were packed before: the updates are found."""
    problems = Problems()
    assert set(outcomes(updated, problems)) == {"skipped"}
    fields = json.loads(gzip.decompress((updated / INDEX).read_bytes()))
    assert fields.pop("tables")[PACKED_COSTS] == (updated / PACKED_COSTS).stat().st_size
    (updated / INDEX).write_bytes(gzip.compress(json.dumps(fields).encode()))
    assert set(outcomes(updated, problems)) == {"skipped"}
    (updated / PACKED_COSTS).unlink()
    assert set(outcomes(updated, problems)) == {"unknown"}
    assert problems.lines() == []


def test_a_table_that_the_index_lists_and_that_is_gone_is_named(updated: Path) -> None:
    """The rows are read; that nothing is known of updates is a problem."""
    (updated / PACKED_COSTS).unlink()
    problems = Problems()
    assert set(outcomes(updated, problems)) == {"unknown"}
    assert any("the updates of steps are unknown" in line for line in problems.lines())
    assert problems.skipped
