"""Directories that are one run, and those of them that are read."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from probe.core.storage.batches import steps
from probe.core.storage.csv_reader import PlainRows
from probe.core.storage.directories import RankDirectory, RecordedRun, find, last_run, runs
from probe.core.storage.duckdb_reader import Rows
from probe.core.storage.manifest import Manifest
from probe.core.storage.problems import Problems
from probe.core.storage.table_files import first_step
from tests.required import require

duckdb = require("duckdb")


def directory(
    root: Path, rank: int, time: str = "Dec03_21-34-40", first: int = 0, last: int = 4, **manifest: object
) -> Path:
    """Write a rank's steps ``first`` to ``last``; the norm is the hour of its directory's name."""
    path = root / f"{time}-rank{rank}-{len(list(root.iterdir())) if root.exists() else 0:08x}"
    path.mkdir(parents=True)
    lines = [f'0,w,{step},{int(time[6:8])},"[3]",torch.float32\n' for step in range(first, last + 1)]
    text = "vpp_stage,name,step,norm,shape,dtype\n" + "".join(lines)
    (path / "grad_reduced_0-99.csv").write_text(text, encoding="utf-8")
    hour, minute, second = time[6:].split("-")
    start = f"2025-12-{time[3:5]}T{hour}:{minute}:{second}+0800"
    about = {"schema": 1, "rank": rank, "world_size": 1, "run": 0, "first_step": first, "start_time": start}
    (path / "manifest.json").write_text(json.dumps({**about, **manifest}), encoding="utf-8")
    return path


def values(root: Path, rank: int = 0) -> dict[int, float]:
    """The norm of each step of the last run."""
    problems = Problems()
    with Rows(last_run(root, problems).directories, problems) as rows:
        found = {step.step: float(step.batches[0].op("norm")[0]) for step in steps(rows, rank)}
        query = f"SELECT step, norm FROM {rows.view('grad_reduced')} WHERE rank = {rank} ORDER BY step"
        assert dict(rows.connection.execute(query).fetchall()) == found
    plain = PlainRows(last_run(root, Problems()).directories, Problems())
    assert {step.step: float(step.batches[0].op("norm")[0]) for step in steps(plain, rank)} == found
    return found


def hours(run: RecordedRun) -> list[tuple[int, str]]:
    return [(each.rank, each.path.name[6:8]) for each in run.directories]


def test_a_resumed_run_is_one(tmp_path: Path) -> None:
    """Steps done again after a resume replace the earlier ones, after any number of resumes."""
    directory(tmp_path, 0, "Dec03_10-00-00", 0, 9)
    directory(tmp_path, 0, "Dec03_11-00-00", 6, 8)
    directory(tmp_path, 0, "Dec04_12-00-00", 8, 11)
    assert [hours(run) for run in runs(find(tmp_path, Problems()))] == [[(0, "10"), (0, "11"), (0, "12")]]
    assert values(tmp_path) == {**dict.fromkeys(range(6), 10.0), 6: 11.0, 7: 11.0, **dict.fromkeys(range(8, 12), 12.0)}


def test_a_run_from_the_beginning_is_another(tmp_path: Path) -> None:
    """The last one is read, the others are reported."""
    directory(tmp_path, 0, "Dec03_10-00-00", 0, 9)
    directory(tmp_path, 0, "Dec03_11-00-00", 0, 3)
    problems = Problems()
    assert hours(last_run(tmp_path, problems)) == [(0, "11")]
    (line,) = problems.lines()
    assert "Dec03_10-00-00-rank0-00000000: of an earlier run (of 1 rank), left out" in line
    assert not problems.skipped
    assert values(tmp_path) == dict.fromkeys(range(4), 11.0)


def test_clocks_of_ranks_may_differ(tmp_path: Path) -> None:
    """Ranks whose clocks are hours apart are of one run if each has as many."""
    for day in ("03", "05"):
        directory(tmp_path, 0, f"Dec{day}_10-00-00", world_size=2)
        directory(tmp_path, 1, f"Dec{day}_16-30-00", world_size=2)
    found = runs(find(tmp_path, Problems()))
    assert [[(each.rank, each.time[:5]) for each in run.directories] for run in found] == [
        [(0, "Dec03"), (1, "Dec03")],
        [(0, "Dec05"), (1, "Dec05")],
    ]
    assert [run.missing for run in found] == [(), ()]


def test_ranks_with_another_configuration_are_told(tmp_path: Path) -> None:
    """What they have recorded cannot be compared; nothing of it is left out."""
    for rank in range(4):
        directory(tmp_path, rank, world_size=4, config={"ops": ["max" if rank == 2 else "norm"], "eps": rank})
    problems = Problems()
    assert last_run(tmp_path, problems).ranks == (0, 1, 2, 3)
    (line,) = problems.lines()
    assert "expected one configuration on all ranks, got other ops or switches on ranks 2: give all the same" in line
    assert not problems.skipped


def test_missing_ranks_are_told(tmp_path: Path) -> None:
    """Those of the world that should have written, or of ``module_ranks`` if that was set."""
    for rank in (0, 3, 4):
        directory(tmp_path, rank, world_size=8)
    problems = Problems()
    assert last_run(tmp_path, problems).missing == (1, 2, 5, 6, 7)
    assert "expected ranks 1-2, 5-7 too; there is nothing of them" in problems.lines()[0]
    other = tmp_path / "other"
    for rank in (0, 3):
        directory(other, rank, world_size=8, config={"module_ranks": [0, 3]})
    assert last_run(other, Problems()).missing == ()


def test_a_rank_that_has_written_nothing_is_told(tmp_path: Path) -> None:
    """As one that is missing is; data are missing because of it."""
    directory(tmp_path, 0, world_size=2)
    empty = tmp_path / "Dec03_21-34-40-rank1-aa"
    empty.mkdir()
    problems = Problems()
    run = last_run(tmp_path, problems)
    assert (run.ranks, run.missing, problems.skipped) == ((0,), (1,), True)
    assert problems.lines() == [f"{empty}: expected files such as actv_0-0.csv; rank 1 has written nothing: left out"]


def test_a_healthy_rank_with_history_lacks_nothing(tmp_path: Path) -> None:
    """A rank with history that has found nothing is reported, and is no failure."""
    for rank in (0, 1):
        directory(tmp_path, rank, world_size=2, config={"history": 5})
    held = next(tmp_path.glob("*-rank1-*"))
    for table in held.glob("*.csv"):
        table.unlink()
    problems = Problems()
    run = last_run(tmp_path, problems)
    assert (run.ranks, problems.skipped) == ((0,), False)
    assert problems.lines() == [f"{held}: rank 1 has found nothing, and with history it has written nothing: left out"]


def test_a_rank_that_should_write_nothing_is_not_told(tmp_path: Path) -> None:
    """Where ``module_ranks`` names others."""
    for rank in (0, 1):
        path = directory(tmp_path, rank, world_size=2, config={"module_ranks": [0]})
    (path / "grad_reduced_0-99.csv").unlink()
    problems = Problems()
    assert (last_run(tmp_path, problems).missing, problems.lines()) == ((), [])


@pytest.mark.parametrize(
    ("field", "value"), [("world_size", 10**9), ("groups", 5), ("config", {"module_ranks": [["a"]]})]
)
def test_a_field_of_a_manifest_that_cannot_be_is_not_used(tmp_path: Path, field: str, value: object) -> None:
    """The rank is read; no rank is taken for missing."""
    path = directory(tmp_path, 0, **{field: value})
    problems = Problems()
    (found,) = last_run(tmp_path, problems).directories
    assert (field in found.manifest) == (field == "config")
    assert last_run(tmp_path, Problems()).missing == ()
    if field != "config":
        assert f"{path / 'manifest.json'}: {field}: expected" in problems.lines()[0]
    assert not problems.skipped


def test_one_directory_of_a_rank_may_be_given(tmp_path: Path) -> None:
    """It is a run by itself."""
    path = directory(tmp_path, 2)
    assert [(each.rank, each.path) for each in last_run(path, Problems()).directories] == [(2, path)]


@pytest.mark.parametrize("given", [".", "../{name}", "inside/.."])
def test_a_rank_is_read_from_inside_its_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, given: str) -> None:
    """A path without the rank in its name is read too, also without a manifest."""
    path = directory(tmp_path, 2, last=1)
    (path / "manifest.json").unlink()
    (path / "inside").mkdir()
    monkeypatch.chdir(path)
    root = Path(given.format(name=path.name))
    assert (last_run(root, Problems()).ranks, last_run(root, Problems()).name) == ((2,), path.name)
    assert values(root, 2) == {0: 21.0, 1: 21.0}


def test_rows_of_the_current_directory_are_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """And so are its lines that cannot be read."""
    monkeypatch.chdir(directory(tmp_path, 0, last=1))
    with Path("grad_reduced_0-99.csv").open("a", encoding="utf-8") as file:
        file.write("0,w,two,21,,\n")
    problems = Problems()
    with Rows([RankDirectory(Path(), 0, "", 0.0, Manifest(), 0)], problems) as rows:
        query = f"SELECT rank, step FROM {rows.view('grad_reduced')} ORDER BY step"
        assert rows.connection.execute(query).fetchall() == [(0, 0), (0, 1)]
    assert [(problem.path, problem.line) for problem in problems.kept] == [(Path("grad_reduced_0-99.csv"), 4)]


@pytest.mark.parametrize(
    ("start", "end", "expected"),
    [
        (None, None, ["10", "11", "12"]),
        ("Dec03_11-00-00", None, ["11", "12"]),
        (None, "Dec03_11-00-00", ["10", "11"]),
        ("Dec03_11-00-00", "Dec03_11-00-00", ["11"]),
        ("Dec03_10-00-01", "Dec03_11-59-59", ["11"]),
    ],
)
def test_times_are_a_closed_interval(tmp_path: Path, start: str | None, end: str | None, expected: list[str]) -> None:
    """The first and the last are included."""
    for hour in (10, 11, 12):
        directory(tmp_path, 0, f"Dec03_{hour}-00-00")
    assert [each.path.name[6:8] for each in find(tmp_path, Problems(), start, end)] == expected


def test_times_go_over_the_new_year(tmp_path: Path) -> None:
    """Runs from December to January are in order, although names have no year."""
    for time in ("Dec30_10-00-00", "Dec31_23-59-59", "Jan01_00-00-00", "Jan02_10-00-00", "Jun01_10-00-00"):
        directory(tmp_path, 0, time)
    found = find(tmp_path, Problems(), "Dec31_00-00-00", "Jan01_00-00-00")
    assert sorted(each.time for each in found) == ["Dec31_23-59-59", "Jan01_00-00-00"]


@pytest.mark.parametrize(
    ("start", "end", "told"),
    [
        (
            "Dec04_00-00-00",
            "Dec03_00-00-00",
            "time_end: expected one after time_start, Dec04_00-00-00; got Dec03_00-00-00",
        ),
        ("yesterday", None, "time_start: expected a time such as Dec03_21-34-40; got 'yesterday'"),
        (None, "Feb30_00-00-00", "time_end: expected a time such as Dec03_21-34-40; got 'Feb30_00-00-00'"),
        (
            "Dec05_00-00-00",
            None,
            "no directory from Dec05_00-00-00 to the last; there are Dec03_10-00-00 to Dec03_10-00-00",
        ),
    ],
)
def test_wrong_times_are_told(tmp_path: Path, start: str | None, end: str | None, told: str) -> None:
    """With what was expected, and what there is."""
    directory(tmp_path, 0, "Dec03_10-00-00")
    with pytest.raises(ValueError, match=told):
        find(tmp_path, Problems(), start, end)


@pytest.mark.parametrize("kind", ["none", "file", "empty", "else"])
def test_a_directory_of_something_else_is_told(tmp_path: Path, kind: str) -> None:
    """One that is not there, a file, an empty one, and one that other programs have written."""
    root = tmp_path / kind
    if kind == "file":
        root.write_text("x", encoding="utf-8")
    elif kind != "none":
        root.mkdir()
    if kind == "else":
        (root / "src").mkdir()
        (root / "src" / "table_0-1.csv").write_text("a,b\n", encoding="utf-8")
        (root / "manifest.json").write_text('{"name": "app"}', encoding="utf-8")
    with pytest.raises(ValueError, match=f"{kind}: expected"):
        find(root, Problems())


def test_what_else_lies_there_is_left_alone(tmp_path: Path) -> None:
    """Findings, merged files and folders of other programs are no ranks."""
    path = directory(tmp_path, 0)
    for name in ("anomaly_detected", "merged", "logs-rank0"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "grad_reduced_0-0.csv").write_text("a,b\n", encoding="utf-8")
    (path / "events.out.tfevents.1").write_bytes(b"\0")
    (path / "stack_info.csv").write_text("a,b\n", encoding="utf-8")
    problems = Problems()
    assert [each.path for each in last_run(tmp_path, problems).directories] == [path]
    assert problems.lines() == []


def test_a_table_of_something_else_is_told(tmp_path: Path) -> None:
    """One whose name is no signal's, in the directory of a rank."""
    (directory(tmp_path, 0) / "notes.csv").write_text("a,b\n", encoding="utf-8")
    problems = Problems()
    with Rows(last_run(tmp_path, problems).directories, problems) as rows:
        assert rows.signals == ("grad_reduced",)
    assert "notes.csv: expected a name such as actv_0-0.csv" in problems.lines()[0]
    assert not problems.skipped


def test_a_newer_layout_is_left_out(tmp_path: Path) -> None:
    """A rank of a later version, whose rows may have another meaning, is reported and left out."""
    directory(tmp_path, 0, world_size=2)
    newer = directory(tmp_path, 1, world_size=2, schema=2)
    problems = Problems()
    assert last_run(tmp_path, problems).ranks == (0,)
    told = "".join(problems.lines())
    assert f"{newer / 'manifest.json'}: schema 2 is of a newer version; this one reads up to 1" in told
    assert problems.skipped


def test_a_newer_layout_alone_is_told(tmp_path: Path) -> None:
    """The message explains why there is nothing."""
    directory(tmp_path, 0, schema=2)
    with pytest.raises(ValueError, match=r"found none: give that of a run\n.*schema 2 is of a newer version"):
        last_run(tmp_path, Problems())


@pytest.mark.parametrize(
    "text", ["", "{", "[1]", '{"rank": "0"}', '{"start_time": 7, "world_size": "many", "config": 1}']
)
def test_a_broken_manifest_stops_nothing(tmp_path: Path, text: str) -> None:
    """The rank and the time are those of the directory's name; what cannot be used is logged."""
    path = directory(tmp_path, 3, "Dec03_10-00-00")
    (path / "manifest.json").write_text(text, encoding="utf-8")
    problems = Problems()
    (found,) = last_run(tmp_path, problems).directories
    assert (found.rank, found.time, found.first_step) == (3, "Dec03_10-00-00", 0)
    assert f"{path / 'manifest.json'}" in "".join(problems.lines())
    assert values(tmp_path, 3) == dict.fromkeys(range(5), 10.0)


def test_directories_without_manifests_are_in_order_of_their_names(tmp_path: Path) -> None:
    """As other tools write them: the last run follows from the names, not from the times of copies."""
    for n, hour in enumerate((12, 10, 11)):
        path = directory(tmp_path, 0, f"Dec03_{hour}-00-00")
        (path / "manifest.json").unlink()
        os.utime(path, (1_764_800_000 + n, 1_764_800_000 + n))
    assert hours(last_run(tmp_path, Problems())) == [(0, "12")]


def test_the_first_step_is_found_without_a_manifest(tmp_path: Path) -> None:
    """From the rows: a resumed run is one in other tools' files too."""
    for hour, first, last in ((10, 0, 9), (11, 6, 8)):
        (directory(tmp_path, 0, f"Dec03_{hour}-00-00", first, last) / "manifest.json").unlink()
    assert values(tmp_path) == {**dict.fromkeys(range(6), 10.0), **dict.fromkeys(range(6, 9), 11.0)}


def test_parquet_is_read_beside_csv(tmp_path: Path) -> None:
    """A file that is cut off is reported and left out."""
    path = directory(tmp_path, 0)
    made = (
        "SELECT 0 AS vpp_stage, 'w' AS name, 5 AS step, 7.0::DOUBLE AS norm, '[3]' AS shape, 'torch.float32' AS dtype"
    )
    duckdb.sql(f"COPY ({made}) TO '{path / 'grad_reduced_5-5.parquet'}' (FORMAT parquet)")
    whole = (path / "grad_reduced_5-5.parquet").read_bytes()
    (path / "grad_reduced_6-6.parquet").write_bytes(whole[:-30])
    (path / "grad_reduced_7-7.parquet").write_bytes(whole[:4] + b"\0" * 40 + whole[-8:])
    problems = Problems()
    with Rows(last_run(tmp_path, problems).directories, problems) as rows:
        found = {step.step: float(step.batches[0].op("norm")[0]) for step in steps(rows, 0)}
    assert found == {**dict.fromkeys(range(5), 21.0), 5: 7.0}
    assert {problem.path.name for problem in problems.kept} == {"grad_reduced_6-6.parquet", "grad_reduced_7-7.parquet"}
    assert all("expected a Parquet file" in problem.what for problem in problems.kept)
    assert problems.skipped


def test_a_directory_begins_with_the_first_row_of_its_first_files(tmp_path: Path) -> None:
    """A file's name holds the steps that it has room for; its first row is the first that was sampled."""
    for name, step in (("grad_reduced_0-9", 4), ("param_origin_0-9", 3), ("grad_reduced_10-19", 10)):
        (tmp_path / f"{name}.csv").write_text(f"vpp_stage,name,step,norm\n0,w,{step},1.0\n", encoding="utf-8")
    assert first_step(tmp_path) == 3


def test_what_overlaps_in_time_is_no_earlier_run(tmp_path: Path) -> None:
    """Processes that a program starts without a launcher, and models of one process, are ranks of one run; one that
    began after the end of another is a later run."""
    ended = {"end_time": "2025-12-03T12:00:00+0800"}
    for time in ("Dec03_10-00-00", "Dec03_10-00-00", "Dec03_11-30-00"):
        directory(tmp_path, 0, time, **ended)
    problems = Problems()
    run = last_run(tmp_path, problems)
    assert hours(run) == [(0, "10"), (1, "10"), (2, "11")]
    assert problems.lines() == []
    assert values(tmp_path, rank=2) == dict.fromkeys(range(5), 11.0)
    directory(tmp_path, 0, "Dec03_12-00-00", end_time="2025-12-03T13:00:00+0800")
    assert hours(last_run(tmp_path, Problems())) == [(0, "12")]


def test_processes_of_one_watched_program_that_have_not_ended_are_one_run(tmp_path: Path) -> None:
    """Where ``probe run`` names the program, a process that goes on or was killed is no earlier run of it."""
    for time in ("Dec03_10-00-00", "Dec03_10-00-07"):
        directory(tmp_path, 0, time, program="18f")
    assert hours(last_run(tmp_path, Problems())) == [(0, "10"), (1, "10")]
    directory(tmp_path, 0, "Dec03_11-00-00", program="190")
    assert hours(last_run(tmp_path, Problems())) == [(0, "11")]


def test_numbers_in_a_program_are_the_ranks_of_one_run(tmp_path: Path) -> None:
    """Processes that lived side by side under ``probe run`` have written their numbers as ranks: they stay, though
    clocks to the second do not overlap; neither an earlier nor a later program is mixed in."""
    ended = {"end_time": "2025-12-03T10:00:00+0800", "world_size": 1}
    for program, hour in (("18f", "10"), ("190", "11")):
        for rank in (0, 1):
            times = {**ended, "end_time": f"2025-12-03T{hour}:00:00+0800", "program": program}
            directory(tmp_path, rank, f"Dec03_{hour}-00-0{rank}", **times)
    directory(tmp_path, 0, "Dec03_12-00-00", program="191")
    found = runs(find(tmp_path, Problems()))
    assert [hours(run) for run in found] == [[(0, "10"), (1, "10")], [(0, "11"), (1, "11")], [(0, "12")]]
    assert [run.missing for run in found] == [(), (), ()]


def test_a_file_in_place_of_a_directory_is_called_one(tmp_path: Path) -> None:
    """It is there, so that it is not sought elsewhere."""
    file = tmp_path / "actv_0-9.csv"
    file.write_text("vpp_stage,name,step,norm\n", encoding="utf-8")
    with pytest.raises(
        ValueError, match=r"actv_0-9\.csv: expected the directory .*; this is a file: give MONITOR_OUTPUT_DIR"
    ):
        find(file, Problems())


def test_a_path_that_is_no_utf8_is_refused(tmp_path: Path) -> None:
    """DuckDB takes no such path: the message shows it in letters that every terminal has."""
    root = tmp_path / "bad\udcff"
    directory(root, 0)
    with pytest.raises(ValueError, match=r"bad\\udcff: expected a path in UTF-8"):
        find(root, Problems())
