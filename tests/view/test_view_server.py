"""The page's data against the values that were written: lists, pictures, curves, rows, findings, two runs."""

from __future__ import annotations

import csv
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest

from probe.core.analysis.report.findings import Mark
from probe.core.storage.packed.pack import pack
from probe.view.findings import of_dump
from tests.core.storage.run_files import cells_of, write_run
from tests.required import require
from tests.simulated_run import ParallelSizes, SimulatedRun
from tests.view.view_data import SIGNAL, Numbers, WrittenRank, expected_cells, random_values
from tests.view.view_process import ViewServer, viewing
from tests.waiting import wait_for

require("duckdb")

NAMES = ("a", "<script>alert(1)</script>", 'c"d,e')


class ServedRuns(NamedTuple):
    """A server with a run of known values, and one with a planted fault."""

    server: ViewServer
    written: Numbers
    directories: list[Path]
    faulty: SimulatedRun


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServedRuns]:
    """Both runs lie in one folder, which has other things, too."""
    folder = tmp_path_factory.mktemp("runs")
    written: Numbers = {}
    directories = []
    for number in range(2):
        rank = WrittenRank(folder / "runs" / "known", number, NAMES)
        for step in range(0, 60, 2):
            rank.write(step, random_values(1000 * number + step, 3))
        rank.end()
        written |= rank.written
        directories.append(rank.directory)
    faulty = SimulatedRun(ParallelSizes(dp=2), fault="overflow", seed=3, steps=24, rows=20)
    faulty.write(folder / "runs" / "deep" / "er" / "faulty")
    (folder / "runs" / "notes.txt").write_text("no run")
    (folder / "runs" / "empty").mkdir()
    with viewing(folder / "server", folder / "runs") as server:
        yield ServedRuns(server, written, directories, faulty)


def number(server: ViewServer, name: str) -> int:
    """The number of a run."""
    [found] = [run for run in server.get("/api/runs", filter=name)["runs"] if run["name"] == name]
    return int(found["number"])


def test_runs_are_listed_with_what_is_known_of_them(served: ServedRuns) -> None:
    """By what they are sorted and filtered by, and by number alone."""
    answer = served.server.get("/api/runs", sort="name")
    assert [run["name"] for run in answer["runs"]] == ["faulty", "known"]
    assert (answer["total"], answer["known"]) == (2, 2)
    known = answer["runs"][1]
    assert (known["alive"], known["ranks"], known["first_step"], known["last_step"]) == (False, 2, 0, 58)
    assert known["problems"] == []
    assert served.server.get("/api/runs", sort="name", descending=1)["runs"][0]["name"] == "known"
    paged = served.server.get("/api/runs", sort="name", limit=1, offset=1)
    assert ([run["name"] for run in paged["runs"]], paged["total"]) == (["known"], 2)
    assert served.server.get("/api/runs", filter="nothing")["runs"] == []
    assert "expected one of" in served.server.get("/api/runs", 400, sort="wrong")["error"]
    assert "no run of this number" in served.server.get("/api/runs/99", 404)["error"]


def test_a_run_is_described(served: ServedRuns) -> None:
    """Signals with their rows in the order of the model, whatever these are called."""
    about = served.server.get(f"/api/runs/{number(served.server, 'known')}")
    [signal] = about["signals"]
    assert (signal["name"], signal["rows"], signal["ops"]) == (SIGNAL, list(NAMES), ["min", "max"])
    assert (about["first_step"], about["last_step"], about["rank_list"]) == (0, 58, "0-1")
    assert (about["numbers"], about["facts"]["world size"]) == ([], "2")


@pytest.mark.parametrize("columns", [4, 800])
@pytest.mark.parametrize("rank", ["", "1"])
def test_a_heatmap_has_the_values(columns: int, rank: str, served: ServedRuns) -> None:
    """To the last bit, for all ranks and for one."""
    path = f"/api/runs/{number(served.server, 'known')}/heatmap"
    found = served.server.binary(path, signal=SIGNAL, op="max", columns=columns, rank=rank)
    assert found.header["lines"] == list(NAMES)
    assert len(found.header["steps"]) <= columns
    assert found.header["exact"] is (columns == 800)
    own = {place: value for place, value in served.written.items() if rank in ("", str(place[0]))}
    expected = expected_cells(own, list(NAMES), found.header["steps"])
    for name in expected._fields:
        np.testing.assert_array_equal(found.arrays[name], getattr(expected, name))


def test_a_heatmap_of_ranks_has_the_values(served: ServedRuns) -> None:
    """Of one row, from one step to another."""
    path = f"/api/runs/{number(served.server, 'known')}/heatmap"
    asked: dict[str, Any] = {"signal": SIGNAL, "op": "max", "axis": "ranks", "row": NAMES[1], "from": 10, "to": 30}
    found = served.server.binary(path, **asked)
    assert found.header["lines"] == [0, 1]
    assert found.header["steps"] == [[step, step] for step in range(10, 31, 2)]
    own = {place: value for place, value in served.written.items() if place[1] == NAMES[1]}
    expected = expected_cells(own, [0, 1], found.header["steps"], by_rank=True)
    for name in expected._fields:
        np.testing.assert_array_equal(found.arrays[name], getattr(expected, name))


def test_curves_have_the_values(served: ServedRuns) -> None:
    """One a rank; with fewer points each has the extremes of its steps."""
    path = f"/api/runs/{number(served.server, 'known')}/curve"
    found = served.server.binary(path, signal=SIGNAL, op="max", row="a", ranks="1")
    values = [served.written[1, "a", step] for step in found.header["steps"]]
    assert (found.header["ranks"], found.header["steps"]) == ([1], list(range(0, 60, 2)))
    np.testing.assert_array_equal(found.maximum[0], values)
    np.testing.assert_array_equal(found.nan[0], np.isnan(values))
    np.testing.assert_array_equal(found.inf[0], np.isinf(values))
    few = served.server.binary(path, signal=SIGNAL, op="max", row="a", points=7)
    expected = expected_cells(served.written, ["a"], few.header["spans"])
    np.testing.assert_array_equal(few.maximum.max(axis=0, where=~np.isnan(few.maximum), initial=-np.inf),
                                  np.where(np.isnan(expected.maximum[0]), -np.inf, expected.maximum[0]))  # fmt: skip
    np.testing.assert_array_equal(few.nan.sum(axis=0), expected.nan[0])


def test_a_row_names_its_file_and_line(served: ServedRuns) -> None:
    """The line in the file, counted from 1, is that row."""
    path = f"/api/runs/{number(served.server, 'known')}/row"
    for name in NAMES:
        found = served.server.get(path, signal=SIGNAL, row=name, rank=1, step=24)
        value = served.written[1, name, 24]
        text = value if np.isfinite(value) else str(value)
        assert found["values"] == {"min": 0.0, "max": text}
        assert (found["shape"], found["previous_step"], found["next_step"]) == ("[3, 2]", 22, 26)
        file = served.directories[1].parent / found["file"]
        line = file.read_text().splitlines()[found["line"] - 1]
        assert next(csv.reader([line]))[1:3] == [name, "24"]
    assert "no such row" in served.server.get(path, 404, signal=SIGNAL, row="a", rank=1, step=25)["error"]
    assert "whole number" in served.server.get(path, 400, signal=SIGNAL, row="a", rank=1)["error"]


def test_findings_come_from_an_analysis_in_the_background(served: ServedRuns) -> None:
    """The planted fault is named, and its row found three requests later, with its value."""
    place = f"/api/runs/{number(served.server, 'faulty')}"
    about = wait_for(lambda: found if (found := served.server.get(place))["analysis"] == "done" else None)
    expected = served.faulty.expected
    assert expected is not None
    cause = about["cause"]
    assert (cause["kind"], cause["rank"], cause["step"]) == (expected.kind, expected.ranks[0], expected.step)
    assert cause["row"].startswith(expected.place)
    assert about["finding_total"] >= len(about["finding_list"]) > 1
    asked = {name: cause[name] for name in ("signal", "row", "rank", "step")}
    assert served.server.get(f"{place}/row", **asked)["values"]["norm"] == "inf"
    marked = served.server.binary(f"{place}/heatmap", signal=cause["signal"], op=cause["op"]).header
    line, column = marked["lines"].index(cause["row"]), marked["steps"].index([cause["step"]] * 2)
    assert [line, column] in marked["findings"]
    some = served.server.get(f"{place}/findings", rank=cause["rank"], **{"from": cause["step"], "to": cause["step"]})
    assert some["total"] == len(some["findings"]) > 0
    assert {each["rank"] for each in some["findings"]} == {cause["rank"]}
    listed = served.server.get("/api/runs", filter="faulty")["runs"][0]
    assert listed["findings"] == about["finding_total"]
    assert listed["first_cause"] == cause["sentence"]
    verdict, focus = about["verdict"], about["focus"]
    assert (verdict["kind"], verdict["since"], listed["verdict"]) == (expected.kind, expected.step, verdict)
    assert (focus["step"], focus["rank"], focus["row"].startswith(expected.place)) == (
        expected.step,
        cause["rank"],
        True,
    )
    assert [step for step, _ in focus["values"]] == [expected.step - 2, expected.step - 1, expected.step]
    assert verdict["zh"]["text"] != verdict["text"]


def test_runs_are_analysed_before_anybody_opens_them(tmp_path: Path) -> None:
    """The list has the verdict and the loss of runs whose pages nobody has asked for; the loss is that of the backward
    where the program logs none."""
    for name, numbers in (("logged", ("loss", "loss_root")), ("watched", ("loss_root",))):
        rank = WrittenRank(tmp_path / name, 0, world=1)
        for step in range(40):
            losses = {number: (60.0 - step) / (1 + n) for n, number in enumerate(numbers)}
            rank.write(step, [1.0, 2.0, 1e38 if step == 36 else 3.0], losses)
        rank.end()

    with viewing(tmp_path / "server", tmp_path / "logged", tmp_path / "watched") as server:

        def done() -> list[dict[str, Any]]:
            runs = server.get("/api/runs")["runs"]
            return runs if all(run["analysis"] == "done" for run in runs) else []

        runs = wait_for(done)
    assert len(runs) == 2
    for run in runs:
        assert (run["verdict"]["kind"], run["verdict"]["where"], run["verdict"]["since"]) == ("overflow", ["c"], 36)
        assert run["verdict"]["zh"]["kind"] == "溢出"
        assert run["loss"] == [[step, 60.0 - step] for step in range(40)]


def test_dumped_findings_are_one_a_tensor() -> None:
    """Of several numbers of a tensor that are wrong the first is listed; the number of all stays."""
    marks = [Mark("AnomalyNan", SIGNAL, name, op, float("nan"), 3, 0) for name in ("a", "b") for op in ("norm", "max")]
    found = of_dump(marks, 4, lambda _, __, ___, name: name, {})
    assert [(each.row, each.op) for each in found.findings] == [("a", "norm"), ("b", "norm")]
    assert found.cause is not None
    assert (found.total, found.cause["kind"]) == (4, "NaN")


def test_two_runs_are_compared(served: ServedRuns, tmp_path: Path) -> None:
    """The first difference is the value that was changed; a run has none against itself."""
    for name, factor in (("one", 1.0), ("two", 2.0)):
        rank = WrittenRank(tmp_path / "pair" / name, 0, world=1)
        for step in range(10):
            rank.write(step, [1.0, 2.0 * (factor if step == 7 else 1.0), 3.0])
        rank.end()
    with viewing(tmp_path / "server", tmp_path / "pair") as server:
        one, two = number(server, "one"), number(server, "two")

        def compared(against: int) -> Any:
            asked = {"run": one, "against": against}
            return wait_for(
                lambda: found if (found := server.get("/api/compare", **asked))["state"] != "running" else 0
            )

        first = compared(two)["first_difference"]
        assert (first["row"], first["op"], first["step"], first["left"], first["right"]) == ("b", "max", 7, 2.0, 4.0)
        assert compared(one)["first_difference"] is None
        assert compared(one)["same"] is True


def test_a_packed_run_shows_the_same(served: ServedRuns, tmp_path: Path) -> None:
    """The same picture and the same curve as the files that were packed."""
    root = served.directories[0].parent
    pack(root, tmp_path / "runs" / "packed")
    with viewing(tmp_path / "server", tmp_path / "runs") as server:
        for kind, more in (("heatmap", {}), ("heatmap", {"rank": 1}), ("curve", {"row": "a"})):
            asked = {"signal": SIGNAL, "op": "max", **more}
            mine = server.binary(f"/api/runs/0/{kind}", **asked)
            theirs = served.server.binary(f"/api/runs/{number(served.server, 'known')}/{kind}", **asked)
            assert {**mine.header, "findings": 0} == {**theirs.header, "findings": 0}
            for name, array in mine.arrays.items():
                np.testing.assert_array_equal(array, theirs.arrays[name])
        row = server.get("/api/runs/0/row", signal=SIGNAL, row="a", rank=1, step=24)
        assert (row["line"], row["file"].endswith(".csv")) == (None, True)


def test_numbers_of_the_run_are_curves(tmp_path: Path) -> None:
    """By their names, as the lowest rank has them, or another one."""
    for number in range(2):
        rank = WrittenRank(tmp_path / "run", number)
        for step in range(10):
            rank.write(step, [1.0, 2.0, 3.0], {"loss": step + number / 2, "it's": float("nan") if step == 3 else 1.0})
        rank.end()
    with viewing(tmp_path / "server", tmp_path / "run") as server:
        about = server.get("/api/runs/0")
        assert (sorted(about["numbers"]), [each["name"] for each in about["signals"]]) == (["it's", "loss"], [SIGNAL])
        found = server.binary("/api/runs/0/numbers", names="loss,it's,none", **{"from": 2})
        assert (found.header["names"], found.header["steps"]) == (["loss", "it's", "none"], list(range(2, 10)))
        np.testing.assert_array_equal(found.maximum[0], np.arange(2.0, 10.0))
        assert found.nan.tolist() == [[0] * 8, [0, 1, *[0] * 6], [0] * 8]
        other = server.binary("/api/runs/0/numbers", names="loss", rank=1)
        np.testing.assert_array_equal(other.minimum[0], np.arange(10) + 0.5)


def test_micro_steps_are_in_one_cell_and_in_rows_of_their_own(tmp_path: Path) -> None:
    """The cell of a step has the extremes of its micro batches; each of these has a line of its own."""
    directory = write_run(tmp_path / "run", 0, range(6))
    with viewing(tmp_path / "server", tmp_path / "run") as server:
        signal = server.get("/api/runs/0")["signals"][0]
        assert (signal["name"], signal["micro_stepped"], signal["rows"]) == ("actv", True, ["fc.input", "fc.output"])
        found = server.binary("/api/runs/0/curve", signal="actv", op="max", row="fc.output")
        picture = server.binary("/api/runs/0/heatmap", signal="actv", op="max")
        written = {(name, step, micro): value for (_, kind, _, name, micro, op), step, value in cells_of(directory, 0)
                   if (kind, op) == ("actv", "max")}  # fmt: skip
        pairs = [[written["fc.output", step, micro] for micro in (0, 1)] for step in range(6)]
        np.testing.assert_array_equal(found.maximum[0], np.max(pairs, axis=1))
        np.testing.assert_array_equal(found.minimum[0], np.min(pairs, axis=1))
        np.testing.assert_array_equal(picture.maximum[1], np.max(pairs, axis=1))
        asked = {"signal": "actv", "row": "fc.output", "rank": 0, "step": 4}
        first, second = (server.get("/api/runs/0/row", micro_step=micro, **asked) for micro in (0, 1))
        assert first["micro_steps"] == second["micro_steps"] == [0, 1]
        assert [each["values"]["max"] for each in (first, second)] == pairs[4]
        lines = (tmp_path / "run" / second["file"]).read_text().splitlines()
        cells = [lines[each["line"] - 1].split(",")[1:4] for each in (first, second)]
        assert cells == [["fc.output", "4", str(micro)] for micro in (0, 1)]


def test_nothing_is_written_into_a_run(served: ServedRuns) -> None:
    """All requests of the tests above have left the files, and the folders, as they were."""
    served.server.get("/api/runs")
    for directory in served.directories:
        assert {path.suffix for path in directory.iterdir()} == {".csv", ".json"}
    inside = {path.name for path in served.directories[0].parent.iterdir()}
    assert inside == {directory.name for directory in served.directories}
    assert any(served.server.cache.rglob("*.level"))
