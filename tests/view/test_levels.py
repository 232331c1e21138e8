"""Levels against a direct computation: with NaN and infinities, as files grow, and after loss and damage."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import numpy as np
import pytest

from probe.core.analysis.pictures.cells import RANKS, Span, cell_query, fetched
from probe.core.analysis.pictures.survey import SurveyRow
from probe.core.storage.duckdb_reader import connect, fill
from probe.core.storage.run_directory import write_manifest
from probe.view import levels
from probe.view.heatmap import heatmap_of_ranks, heatmap_of_rows
from probe.view.levels import Level, LevelStore
from probe.view.located_row import located_row
from probe.view.row_names import row_names
from probe.view.run_files import GrowingFiles
from probe.view.run_reader import RunReader
from tests.required import require
from tests.view.view_data import (
    SIGNAL,
    START,
    Numbers,
    WrittenRank,
    arrays_of,
    assert_cells,
    expected_cells,
    random_values,
)

require("duckdb")

ALL = Span(0, 1 << 40)


@contextmanager
def reading(root: Path, cache: Path) -> Iterator[tuple[RunReader, LevelStore]]:
    """A reader that looks at the files whenever it is asked."""
    with closing(RunReader(GrowingFiles(str(root)))) as reader, closing(LevelStore(reader, cache)) as store:
        yield reader, store


def looked(reader: RunReader) -> RunReader:
    """The reader after a new look at the files."""
    reader._next_look = 0.0
    return reader


def written_run(root: Path, steps: range, sink: str = "csv", ranks: int = 3) -> Numbers:
    """A run with values of all kinds."""
    found: Numbers = {}
    for rank in range(ranks):
        one = WrittenRank(root, rank, ("a", "<script>", 'c"d,e'), sink=sink, world=ranks)
        for step in steps:
            one.write(step, random_values(1000 * rank + step, 3))
        one.end()
        found |= one.written
    return found


def check(level: Level, written: Numbers) -> None:
    """The level is what the values are."""
    steps = [(block * level.width, (block + 1) * level.width - 1) for block in level.blocks]
    assert_cells(arrays_of(level.cells), expected_cells(written, [row.name for row in level.rows], steps))
    assert level.cells["count"].sum() == len(written)


@pytest.mark.parametrize("sink", ["csv", "parquet", "sqlite"])
def test_levels_are_what_the_values_are(sink: str, tmp_path: Path) -> None:
    """Extremes, counts of NaN and Inf, and ranks, to the last bit; from the cache, too."""
    written = written_run(tmp_path / "run", range(50), sink)
    for _ in range(2):
        with reading(tmp_path / "run", tmp_path / "cache") as (_, store):
            check(store.level(SIGNAL, "max"), written)


def test_steps_are_added_as_they_come(tmp_path: Path) -> None:
    """Ranks write at different paces; the last step of each is shown, too, and what is kept is read again."""
    ranks = [WrittenRank(tmp_path / "run", rank) for rank in range(2)]
    with reading(tmp_path / "run", tmp_path / "cache") as (reader, store):
        for step in range(40):
            ranks[0].write(step, random_values(step, 3))
            if step % 3:
                ranks[1].write(step, random_values(500 + step, 3))
            if step % 7 == 0:
                looked(reader)
                check(store.level(SIGNAL, "max"), ranks[0].written | ranks[1].written)
        for rank in ranks:
            rank.end()
        looked(reader)
        check(store.level(SIGNAL, "max"), ranks[0].written | ranks[1].written)
    with reading(tmp_path / "run", tmp_path / "cache") as (_, store):
        check(store.level(SIGNAL, "max"), ranks[0].written | ranks[1].written)


def test_a_step_is_read_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Files that were read to their end are left out of later queries."""
    rank = WrittenRank(tmp_path / "run", 0, world=1)
    for step in range(35):
        rank.write(step, [1.0, 2.0, 3.0])
    with reading(tmp_path / "run", tmp_path / "cache") as (reader, store):
        check(store.level(SIGNAL, "max"), rank.written)
        read: list[str] = []
        chosen = RunReader._chosen

        def recorded(self: RunReader, *arguments: object) -> object:
            found = chosen(self, *arguments)  # type: ignore[arg-type]
            read.extend(file.path.name for _, file in found)
            return found

        monkeypatch.setattr(RunReader, "_chosen", recorded)
        rank.write(35, [4.0, 5.0, 6.0])
        looked(reader)
        check(store.level(SIGNAL, "max"), rank.written)
        assert set(read) == {f"{SIGNAL}_30-39.csv"}


@pytest.mark.parametrize("harm", ["lost", "cut", "changed", "emptied", "of another version"])
def test_levels_that_cannot_be_used_are_made_again(harm: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever has happened to the cache."""
    written = written_run(tmp_path / "run", range(30))
    cache = tmp_path / "cache"
    with reading(tmp_path / "run", cache) as (_, store):
        store.level(SIGNAL, "max")
    [path] = cache.iterdir()
    data = path.read_bytes()
    if harm == "lost":
        shutil.rmtree(cache)
    elif harm == "cut":
        path.write_bytes(data[: len(data) // 2])
    elif harm == "changed":
        place = len(data) // 2
        path.write_bytes(data[:place] + bytes([data[place] ^ 1]) + data[place + 1 :])
    elif harm == "emptied":
        path.write_bytes(b"")
    else:
        monkeypatch.setattr(levels, "VERSION", levels.VERSION + 1)
    with reading(tmp_path / "run", cache) as (_, store):
        check(store.level(SIGNAL, "max"), written)


def test_levels_of_files_that_were_written_anew_are_made_again(tmp_path: Path) -> None:
    """The same names, other values: in the same process, and in the next one."""
    root = tmp_path / "run"
    for attempt in range(3):
        shutil.rmtree(root, ignore_errors=True)
        rank = WrittenRank(root, 0, world=1)
        for step in range(20 + 5 * attempt):
            rank.write(step, random_values(100 * attempt + step, 3))
        rank.kill()
        with reading(root, tmp_path / "cache") as (_, store):
            check(store.level(SIGNAL, "max"), rank.written)


def test_steps_that_were_done_again_count_once(tmp_path: Path) -> None:
    """A rank that is resumed at step 12 in a directory of its own replaces its steps from there on."""
    root = tmp_path / "run"
    before = WrittenRank(root, 0, world=1)
    for step in range(20):
        before.write(step, [100.0 + step, 1.0, 1.0])
    with reading(root, tmp_path / "cache") as (reader, store):
        check(store.level(SIGNAL, "max"), before.written)
        after = WrittenRank(root, 0, time="Dec03_22-34-40", first=12, world=1)
        for step in range(12, 30):
            after.write(step, [1.0, 2.0, 3.0])
        kept = {place: value for place, value in before.written.items() if place[2] < 12}
        looked(reader)
        check(store.level(SIGNAL, "max"), kept | after.written)


def test_a_rank_that_had_ended_may_go_on(tmp_path: Path) -> None:
    """In the same files, as a resumed run does."""
    rank = WrittenRank(tmp_path / "run", 0, world=1)
    for step in range(15):
        rank.write(step, random_values(step, 3))
    rank.end()
    with reading(tmp_path / "run", tmp_path / "cache") as (reader, store):
        check(store.level(SIGNAL, "max"), rank.written)
        path = rank.directory / f"{SIGNAL}_10-19.csv"
        with path.open("a") as file:
            file.write(path.read_text().splitlines()[-1].replace(",14,", ",15,") + "\n")
        write_manifest(rank.directory, {"rank": 0, "world_size": 1, "first_step": 0, "start_time": START})
        written = rank.written | {(0, "c", 15): rank.written[0, "c", 14]}
        looked(reader)
        check(store.level(SIGNAL, "max"), written)


def test_columns_become_wider_before_a_level_grows_too_large(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """And it is still what the values are."""
    monkeypatch.setattr(levels, "MOST_CELLS", 12)
    written = written_run(tmp_path / "run", range(150), ranks=2)
    with reading(tmp_path / "run", tmp_path / "cache") as (_, store):
        level = store.level(SIGNAL, "max")
        assert level.width == 64
        check(level, written)


@pytest.mark.parametrize("sink", ["csv", "sqlite"])
def test_queries_can_open_the_run_alone(sink: str, tmp_path: Path) -> None:
    """Every file of it, of costs too; no other file, no setting, no extension: as with ``probe sql``."""
    import duckdb

    written_run(tmp_path / "run", range(3), sink)
    (tmp_path / "secret.csv").write_text("a,b\n1,2\n")
    with reading(tmp_path / "run", tmp_path / "cache") as (reader, _), reader.rows([SIGNAL]) as rows:
        own = rows.connection.cursor()
        assert own.execute(f"SELECT count(*) FROM {rows.view(SIGNAL)}").fetchone() == (27,)
        beside = next((tmp_path / "run").glob("*/manifest.json"))
        assert own.execute(f"SELECT filename FROM read_text('{beside}')").fetchone() == (str(beside),)
        for query in (
            f"SELECT * FROM read_csv('{tmp_path / 'secret.csv'}')",
            f"SELECT * FROM read_text('{tmp_path / 'secret.csv'}')",
            f"COPY (SELECT 1) TO '{tmp_path / 'made.csv'}'",
            f"ATTACH '{tmp_path / 'made.db'}'",
            "SET enable_external_access = true",
            "INSTALL httpfs",
        ):
            with pytest.raises(duckdb.Error):
                own.execute(query)
        own.close()
    assert sorted(path.name for path in tmp_path.iterdir() if path.name != "cache") == ["run", "secret.csv"]


@pytest.mark.parametrize("columns", [1, 7, 500])
def test_pictures_are_what_the_values_are(columns: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """From single steps and from levels, for all ranks, for one, and by rank; no number of columns hides an extreme."""
    written = written_run(tmp_path / "run", range(60))
    with reading(tmp_path / "run", tmp_path / "cache") as (reader, store):
        for most in (10**6, 0):
            monkeypatch.setattr("probe.view.heatmap.MOST_RAW", most)
            for rank in (None, 1):
                picture = heatmap_of_rows(reader, store, SIGNAL, "max", ALL, columns, rank)
                assert picture.lines == ["a", "<script>", 'c"d,e']
                assert len(picture.steps) <= columns
                assert picture.exact is (most > 0 and columns == 500)
                own = {place: value for place, value in written.items() if rank in (None, place[0])}
                assert_cells(arrays_of(picture.cells), expected_cells(own, picture.lines, picture.steps))
        picture = heatmap_of_ranks(reader, SIGNAL, "max", Span(5, 44), columns, "<script>", [0, 1, 2])
        own = {place: value for place, value in written.items() if place[1] == "<script>" and 5 <= place[2] <= 44}
        assert_cells(arrays_of(picture.cells), expected_cells(own, [0, 1, 2], picture.steps, by_rank=True))


def test_rows_of_pipeline_stages_have_lines_of_their_own(tmp_path: Path) -> None:
    """Two stages have a row of one name; their lines have the stage before it, in the order of the model."""
    ranks = [WrittenRank(tmp_path / "run", rank, ("out", "in"), stage=rank) for rank in (0, 1)]
    for rank in ranks:
        for step in range(5):
            rank.write(step, [10.0 * rank.rank + step, 1.0])
        rank.end()
    with reading(tmp_path / "run", tmp_path / "cache") as (reader, store):
        picture = heatmap_of_rows(reader, store, SIGNAL, "max", ALL, 800, None)
        assert picture.lines == ["pp0:out", "pp0:in", "pp1:out", "pp1:in"]
        np.testing.assert_array_equal(picture.cells["maximum"][2], 10.0 + np.arange(5))
        by_rank = heatmap_of_ranks(reader, SIGNAL, "max", ALL, 800, "pp1:out", [0, 1])
        assert by_rank.lines == [1]
        assert row_names(reader, SIGNAL).label(SurveyRow(1, 0, "out")) == "pp1:out"


def test_a_step_that_is_half_written_is_read_again(tmp_path: Path) -> None:
    """Rows of a step that come after a look at it are in the next picture, and count once."""
    rank = WrittenRank(tmp_path / "run", 0, world=1)
    for step in range(4):
        rank.write(step, [1.0 + step, 2.0, 3.0])
    path = rank.directory / f"{SIGNAL}_0-9.csv"
    lines = path.read_text().splitlines(keepends=True)
    path.write_text("".join(lines[:-2]))  # of the last step the first row alone
    with reading(tmp_path / "run", tmp_path / "cache") as (reader, store):
        half = {place: value for place, value in rank.written.items() if place[1:] not in {("b", 3), ("c", 3)}}
        check(store.level(SIGNAL, "max"), half)
        with path.open("a") as file:
            file.write("".join(lines[-2:]))
        looked(reader)
        check(store.level(SIGNAL, "max"), rank.written)


def rank_of(values: dict[int, float], threads: int = 2) -> int:
    """Rank of the number that a cell of the values of ranks shows."""
    with closing(connect(threads=threads)) as connection:
        columns = {"rank": "INTEGER", "step": "INTEGER", "x": "DOUBLE"}
        fill(connection, "v", columns, ((rank, 3, x) for rank, x in values.items()))
        cells = fetched(connection, cell_query({"block": "0"}, {"": "v.x"}, "v"))
        return int(RANKS.of(cells).directory[0])


@pytest.mark.parametrize("value", [1.5, 0.0, -2.0, 1e-12, np.inf, -np.inf, np.nan])
def test_of_equal_numbers_it_is_the_lowest_rank(value: float) -> None:
    """In whatever order rows are read: also of zeros, infinities and NaN."""
    assert rank_of(dict.fromkeys(range(40, 0, -3), value)) == 1


@pytest.mark.parametrize("value", [1.0, -1.0, 1e300, 5e-324, 0.0, -1e-310])
def test_the_rank_of_the_largest_magnitude_is_exact(value: float) -> None:
    """However near the numbers of the others are, and of equal magnitudes the lowest rank; NaN and Inf before all."""
    for other in (float(np.nextafter(value, np.inf)), value, -value):
        values = {rank: other if rank in (63, 70) else value for rank in range(100)}
        assert rank_of(values) == max(values, key=lambda rank: (abs(values[rank]), -rank))
        assert rank_of({**values, 8: np.inf, 9: -np.inf}) == 8
        assert rank_of({**values, 8: np.inf, 90: np.nan}) == 90


@pytest.mark.parametrize("size", [7, 64, 1 << 20])
def test_a_line_is_counted_in_a_file_of_any_size(size: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """However many pieces it is read in."""
    monkeypatch.setattr("probe.view.located_row.BLOCK", size)
    rank = WrittenRank(tmp_path / "run", 0, world=1)
    for step in range(10):
        rank.write(step, [1.0, 2.0, 3.0])
    lines = (rank.directory / f"{SIGNAL}_0-9.csv").read_text().splitlines()
    with closing(RunReader(GrowingFiles(str(tmp_path / "run")))) as reader:
        for step in range(10):
            found = located_row(reader, SIGNAL, "c", 0, step, None)
            assert found is not None
            assert lines[found["line"] - 1].startswith(f"0,c,{step},")


def test_of_a_row_that_comes_twice_the_later_is_shown(tmp_path: Path) -> None:
    """Its numbers and its line, whatever lies between; every reader takes it."""
    rank = WrittenRank(tmp_path / "run", 0, world=1)
    rank.write(3, [1.0, 2.0, 3.0])
    (path,) = rank.directory.glob(f"{SIGNAL}_*.csv")
    header, *rows = path.read_text().splitlines()
    path.write_text("\n".join([header, *rows, *(row.replace(',3,"', ',5,"') for row in rows), ""]))
    with closing(RunReader(GrowingFiles(str(tmp_path / "run")))) as reader:
        found = located_row(reader, SIGNAL, "c", 0, 3, None)
    assert found is not None
    assert (found["values"]["max"], found["line"]) == (5.0, 7)
