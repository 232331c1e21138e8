"""Packing: the values, rows and order of the source, the same bytes after any interruption, and a source as it was."""

from __future__ import annotations

import hashlib
import math
import os
import random
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from probe.core.storage.directories import last_run
from probe.core.storage.packed.blocks import SEALS
from probe.core.storage.packed.pack import PackError, damaged, pack, pack_followed
from probe.core.storage.packed.run import INDEX, packed_index
from probe.core.storage.problems import Problems
from tests.core.storage.run_files import write_run
from tests.forks import ROOT
from tests.required import require
from tests.user_scripts import Ended, forks, ran

duckdb = require("duckdb")

from probe.core.storage.duckdb_reader import Rows  # noqa: E402 - needs DuckDB

NAME = "Dec03_21-34-40-rank0-00000000"
SMALL = 2000
"""Bytes of the files that are packed into one: so few that there are several."""


def tree(root: Path) -> dict[str, str]:
    """Every file with the hash of its bytes."""
    files = (path for path in sorted(root.rglob("*")) if path.is_file())
    return {path.relative_to(root).as_posix(): hashlib.sha256(path.read_bytes()).hexdigest() for path in files}


def states(root: Path) -> dict[str, tuple[int, int]]:
    """Every file and folder with its time and size."""
    return {str(path): (path.stat().st_mtime_ns, path.stat().st_size) for path in sorted(root.rglob("*"))}


def rows_of(root: Path, signal: str, order: str = "ORDER BY ALL") -> list[Any]:
    """All rows of the view of a signal, as texts: NaN is not equal to itself."""
    problems = Problems()
    with Rows(last_run(root, problems).directories, problems) as rows:
        found = rows.connection.execute(f"SELECT * FROM {rows.view(signal)} {order}").fetchall()
    return [tuple(map(repr, row)) for row in found]


def write_text(root: Path, text: str, name: str = "actv_0-9.csv", directory: str = NAME) -> Path:
    (root / directory).mkdir(parents=True, exist_ok=True)
    path = root / directory / name
    path.write_text(text)
    return path


@pytest.fixture
def run(tmp_path: Path) -> Path:
    """Three ranks of 12 steps, 3 in a file."""
    for rank in range(3):
        write_run(tmp_path / "run", rank, range(12), steps_per_file=3)
    return tmp_path / "run"


def test_every_number_has_all_its_digits(tmp_path: Path) -> None:
    """Those of the text as Python's float reads them: NaN, infinities, the smallest and largest, and -0."""
    numbers = ["nan", "inf", "-inf", "-0.0", "5e-324", "1.7976931348623157e308", "0.1", "", "123456789.123456789"]
    lines = [f"0,w{n},{n // 4},{number},{n}\n" for n, number in enumerate(numbers)]
    write_text(tmp_path / "run", "vpp_stage,name,step,norm,max\n" + "".join(lines))
    report = pack(tmp_path / "run", tmp_path / "out")
    (path,) = (tmp_path / "out").glob("actv/*/*.parquet")
    found = duckdb.sql(f"SELECT name, step, norm, max FROM '{path}' ORDER BY max").fetchall()
    assert [(name, step, repr(norm)) for name, step, norm, _ in found] == [
        (f"w{n}", n // 4, repr(float(number)) if number else "None") for n, number in enumerate(numbers)
    ]
    assert (report.rows, report.files, report.problems.lines()) == (9, 1, [])
    assert math.copysign(1, found[3][2]) == -1


def test_rows_are_sorted_by_step_and_rank_and_else_as_they_were_written(run: Path, tmp_path: Path) -> None:
    """Names and micro steps of a rank keep the order in which the rank computed them."""
    pack(run, tmp_path / "out")
    (path,) = (tmp_path / "out").glob("actv/*/*.parquet")
    found = duckdb.sql(f"SELECT step, rank, name, micro_step FROM '{path}'").fetchall()
    assert [row[:2] for row in found] == sorted(row[:2] for row in found)
    assert len(found) == 3 * 12 * 4
    first = (run / NAME / "actv_0-2.csv").read_text().splitlines()[1:5]
    assert [f"{name},0,{micro}" for _, _, name, micro in found[:4]] == [
        ",".join(line.split(",")[1:4]) for line in first
    ]


def test_small_files_hold_whole_steps(run: Path, tmp_path: Path) -> None:
    """Spans in the names and in the index are the ones of the rows; all rows are there once."""
    report = pack(run, tmp_path / "out", block_bytes=SMALL)
    assert report.blocks > 6
    for signal in packed_index(tmp_path / "out").signals.values():
        spans = []
        for block in signal.blocks:
            found = duckdb.sql(
                f"SELECT min(step), max(step), count(*) FROM '{tmp_path / 'out' / block.path}'"
            ).fetchall()
            assert found == [(*block.steps, block.rows)]
            assert block.path.endswith(f"/steps={block.steps[0]}-{block.steps[1]}.parquet")
            spans.append(block.steps)
        assert all(before[1] < after[0] for before, after in pairwise(spans))
    assert rows_of(tmp_path / "out", "actv") == rows_of(run, "actv")


def test_columns_that_some_files_lack_are_missing_there(tmp_path: Path) -> None:
    """Also the micro step: it is 0 in views, and none in the packed file."""
    write_text(tmp_path / "run", "vpp_stage,name,step,norm\n0,a,0,1\n")
    second = "Dec03_21-34-40-rank1-00000001"
    write_text(tmp_path / "run", "vpp_stage,name,step,micro_step,max,norm\n0,a,0,3,2,\n", directory=second)
    pack(tmp_path / "run", tmp_path / "out")
    (path,) = (tmp_path / "out").glob("actv/*/*.parquet")
    found = duckdb.sql(f"SELECT rank, micro_step, norm, max FROM '{path}' ORDER BY rank").fetchall()
    assert found == [(0, None, 1.0, None), (1, 3, None, 2.0)]
    assert rows_of(tmp_path / "out", "actv") == rows_of(tmp_path / "run", "actv")


def test_rows_that_a_resume_replaced_are_left_out(tmp_path: Path) -> None:
    """The later directory's rows stand for the steps that were done again."""
    root = tmp_path / "run"
    write_run(root, 0, range(8), steps_per_file=3)
    write_run(root, 0, range(5, 10), time="Dec03_22-34-40", scale=3.0, steps_per_file=3)
    pack(root, tmp_path / "out", block_bytes=SMALL)
    assert rows_of(tmp_path / "out", "actv") == rows_of(root, "actv")
    files = " UNION ALL ".join(f"SELECT * FROM '{p}'" for p in (tmp_path / "out").glob("actv/*/*.parquet"))
    assert duckdb.sql(f"SELECT count(*), count(DISTINCT directory) FROM ({files})").fetchall() == [(10 * 4, 2)]


def test_an_earlier_run_is_left_out_and_named(tmp_path: Path) -> None:
    """As the analyses do it."""
    root = tmp_path / "run"
    write_run(root, 0, range(4), time="Dec01_10-00-00")
    write_run(root, 0, range(4))
    report = pack(root, tmp_path / "out")
    assert report.rows == 4 * 6
    assert any("of an earlier run (of 1 rank), left out" in line for line in report.problems.lines())
    assert [d.path.name for d in last_run(tmp_path / "out", Problems()).directories] == [NAME]


def test_a_source_is_never_touched(run: Path, tmp_path: Path) -> None:
    """No time, size or name in it changes, also where it can only be read."""
    (run / "anomaly_detected" / "rank0").mkdir(parents=True)
    (run / "anomaly_detected" / "rank0" / "anomaly.json").write_text("{}")
    folders = [run, *(path for path in run.rglob("*") if path.is_dir())]
    for path in folders:
        path.chmod(0o555)
    before = states(run), tree(run)
    pack(run, tmp_path / "out")
    assert (states(run), tree(run)) == before
    assert (tmp_path / "out" / "anomaly_detected" / "rank0" / "anomaly.json").read_text() == "{}"
    for path in folders:
        path.chmod(0o755)


def test_several_at_a_time_give_the_same_bytes(run: Path, tmp_path: Path) -> None:
    """In whatever order the files are written."""

    def backwards(work: Callable[[Any], Any], items: Any) -> Any:
        every = list(items)
        done = {n: work(every[n]) for n in reversed(range(len(every)))}
        yield from ((item, done[n]) for n, item in enumerate(every))

    pack(run, tmp_path / "a", block_bytes=SMALL)
    pack(run, tmp_path / "b", backwards, block_bytes=SMALL)
    assert tree(tmp_path / "a") == tree(tmp_path / "b")


KILLED = """
import os, signal, sys
from pathlib import Path
from probe.core.storage.packed.pack import pack

root, out, last = Path(sys.argv[1]), Path(sys.argv[2]), int(sys.argv[3])
seen = 0

def hook(event, arguments):
    global seen
    written = event == "open" and isinstance(arguments[1], str) and set(arguments[1]) & set("wax+")
    if written or event in ("os.rename", "os.remove", "os.mkdir", "os.rmdir"):
        if str(out) in str(arguments[0]):
            seen += 1
            if seen == last:
                os.kill(os.getpid(), signal.SIGKILL)

sys.addaudithook(hook)
pack(root, out, block_bytes=int(sys.argv[4]))
print(seen)
"""


def killed(run: Path, out: Path, last: int) -> Ended:
    """Pack in another process, which kills itself before its ``last``-th change of a file or folder."""
    script = run.parent / "killed.py"
    script.write_text(KILLED)
    words = [str(script), str(run), str(out), str(last), str(SMALL)]
    return ran(
        forks("duckdb", "probe.core.storage.packed.pack"), words, run.parent, os.environ | {"PYTHONPATH": str(ROOT)}
    )


def test_a_killed_pack_goes_on_and_gives_the_same_bytes(run: Path, tmp_path: Path) -> None:
    """Killed before a file is opened, moved or removed, at places all over the work; again and again in one folder."""
    whole = killed(run, tmp_path / "whole", 0)
    changes = int(whole.stdout)
    assert changes > 30
    expected = tree(tmp_path / "whole")
    for n, last in enumerate([*random.Random(7).sample(range(2, changes), 3), changes]):
        out = tmp_path / f"out{n}"
        assert killed(run, out, last).returncode == -9
        killed(run, out, last // 2)  # once more, on the way
        if (out / SEALS).is_dir():
            pack(run, out, block_bytes=SMALL)
        assert tree(out) == expected, last


def test_files_that_are_finished_are_not_written_again(run: Path, tmp_path: Path) -> None:
    """Those before the one at which it ended."""
    calls: list[str] = []

    def stopping(work: Callable[[Any], Any], items: Any) -> Any:
        for n, item in enumerate(items):
            yield item, OSError("no space left") if n == 4 else work(item)
            calls.append(item.path)

    with pytest.raises(PackError, match=r"/ranks=.*no space left: pack again to go on"):
        pack(run, tmp_path / "out", stopping, block_bytes=SMALL)
    before = {path: path.stat().st_mtime_ns for path in (tmp_path / "out").glob("*/*/*.parquet")}
    assert len(before) == 4
    assert not (tmp_path / "out" / INDEX).exists()
    pack(run, tmp_path / "out", block_bytes=SMALL)
    assert {path: path.stat().st_mtime_ns for path in before} == before
    assert not (tmp_path / "out" / SEALS).exists()


def test_what_changed_since_an_interruption_is_packed_again(run: Path, tmp_path: Path) -> None:
    """The files with rows of it, and nothing else."""

    def stopping(work: Callable[[Any], Any], items: Any) -> Any:
        for n, item in enumerate(items):
            yield item, OSError("killed") if n == 6 else work(item)

    with pytest.raises(PackError):
        pack(run, tmp_path / "out", stopping, block_bytes=SMALL)
    path = run / NAME / "actv_0-2.csv"
    path.write_text(path.read_text().replace("fc.input,0,0", "changed,0,0"))
    pack(run, tmp_path / "out", block_bytes=SMALL)
    pack(run, tmp_path / "new", block_bytes=SMALL)
    assert tree(tmp_path / "out") == tree(tmp_path / "new")
    assert "changed" in str(rows_of(tmp_path / "out", "actv"))


@pytest.mark.parametrize("target", ["run", "run/out", ".", "file", "full"])
def test_a_folder_that_is_no_place_for_it_is_refused(run: Path, tmp_path: Path, target: str) -> None:
    """The source, within it, around it, a file, and a folder with other files."""
    (tmp_path / "file").write_text("")
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "notes.txt").write_text("")
    before = tree(tmp_path)
    with pytest.raises(ValueError, match="expected"):
        pack(run, tmp_path / target)
    assert tree(tmp_path) == before


def test_a_packed_run_is_neither_packed_nor_replaced(run: Path, tmp_path: Path) -> None:
    """The message says what it is."""
    pack(run, tmp_path / "out")
    with pytest.raises(ValueError, match="this is a packed run already"):
        pack(tmp_path / "out", tmp_path / "again")
    with pytest.raises(ValueError, match="there is a packed run already: remove it"):
        pack(run, tmp_path / "out")


def test_check_names_what_is_not_as_it_was_written(run: Path, tmp_path: Path) -> None:
    """One bit, or a whole file."""
    pack(run, tmp_path / "out")
    assert damaged(tmp_path / "out") == []
    first, second = sorted((tmp_path / "out").glob("*/*/*.parquet"))
    data = bytearray(first.read_bytes())
    data[len(data) // 2] ^= 1
    first.write_bytes(data)
    second.unlink()
    assert damaged(tmp_path / "out") == [first, second]
    with pytest.raises(ValueError, match="expected a packed run"):
        damaged(run)


def test_damaged_lines_and_files_are_named_as_before(run: Path, tmp_path: Path) -> None:
    """A torn last line, a line that is none, a file that is none: the rest is packed."""
    (run / NAME / "actv_0-2.csv").open("a").write("0,fc.input,2,1,0.5")
    lines = (run / NAME / "actv_3-5.csv").read_text().splitlines(keepends=True)
    (run / NAME / "actv_3-5.csv").write_text("".join([*lines[:3], "0,x,four,0,1,2,,\n", *lines[3:]]))
    (run / NAME / "grad_reduced_0-2.csv").write_text("nothing")
    (run / NAME / "notes.csv").write_text("")
    (run / NAME / "actv_100-100.parquet").write_text("PAR1 PAR1")
    report = pack(run, tmp_path / "out", block_bytes=SMALL)
    problems = Problems()
    with Rows(last_run(run, problems).directories, problems) as rows:
        for signal in rows.signals:
            rows.connection.execute(f"SELECT count(name) FROM {rows.view(signal)}").fetchall()
    assert sorted(map(str, report.problems.kept)) == sorted(map(str, problems.kept))
    assert len(problems.kept) >= 5
    assert report.problems.skipped
    for signal in ("actv", "grad_reduced"):
        assert rows_of(tmp_path / "out", signal) == rows_of(run, signal)


def test_a_run_is_followed_to_its_end(tmp_path: Path) -> None:
    """After each time the folder is a packed run of whole steps, and at the end of all of them."""
    root, out, spans = tmp_path / "run", tmp_path / "out", []
    for rank in range(2):
        write_run(root, rank, range(6), steps_per_file=3)

    def wait(_: object) -> bool:
        own = rows_of(out, "actv") if "actv" in packed_index(out).signals else []
        everything = rows_of(root, "actv")
        assert own == everything[: len(own)] or set(own) <= set(everything)
        spans.append(len(own))
        step = 6 + 6 * len(spans)
        for rank in range(2):
            ended = {"end_time": "2026-12-03T22:00:00+0800"} if step >= 30 else {}
            write_more(root, rank, range(step - 6, step), **ended)
        return True

    report = pack_followed(root, out, wait, block_bytes=SMALL)
    assert spans == sorted(spans)
    assert spans[-1] > 0
    assert report.complete
    assert packed_index(out).complete
    assert not (out / SEALS).exists()
    assert rows_of(out, "actv") == rows_of(root, "actv")


def write_more(root: Path, rank: int, steps: range, **manifest: Any) -> None:
    """Files of later steps beside those of a rank."""
    other = root.parent / "more"
    directory = write_run(other, rank, steps, steps_per_file=3)
    for path in directory.glob("*.csv"):
        path.rename(root / directory.name / path.name)
    if manifest:
        from probe.core.storage.run_directory import write_manifest

        write_manifest(root / directory.name, {"rank": rank, **manifest})


def test_following_may_end_before_training_and_packing_goes_on(run: Path, tmp_path: Path) -> None:
    """The packed files of the closed steps stay; the last steps come with the pack."""
    report = pack_followed(run, tmp_path / "out", lambda _: False, block_bytes=SMALL)
    assert not report.complete
    before = {path: path.stat().st_mtime_ns for path in (tmp_path / "out").glob("*/*/*.parquet")}
    assert before
    pack(run, tmp_path / "out", block_bytes=SMALL)
    assert {path: path.stat().st_mtime_ns for path in before} == before
    assert rows_of(tmp_path / "out", "actv") == rows_of(run, "actv")
