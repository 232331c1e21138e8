"""The grammar of the files: each name and cell that is written is parsed to what it was made from."""

from __future__ import annotations

import sqlite3
import time
from contextlib import closing
from itertools import product
from pathlib import Path

import pytest

from probe.core.naming import SIGNALS
from probe.core.records import Coverage, Key
from probe.core.storage.anomaly_json import file_of, rank_folders
from probe.core.storage.event_file import file_name, is_event_file
from probe.core.storage.layout import (
    EXAMPLE,
    FORMATS,
    TableName,
    candidates,
    cell_name,
    cost_line,
    cost_step,
    coverage_of,
    coverage_text,
    csv_cell,
    group_label,
    group_of,
    key_of,
    ranks_of,
    ranks_text,
    shape_of,
    shape_text,
    span_of,
    table_name,
)
from probe.core.storage.manifest import Manifest, RunDescription
from probe.core.storage.metrics_schema import RowTable, create_table, row_table, row_tables
from probe.core.storage.metrics_schema import table_name as row_table_name
from probe.core.storage.problems import Problems
from probe.core.storage.run_directory import (
    EXAMPLE_DIRECTORY,
    directories_of,
    directory_name,
    parsed_name,
    parsed_rank,
    parsed_stamp,
    parsed_time,
    rank_folder,
    read_manifest,
    stamp,
    superseded_name,
    time_text,
    write_manifest,
)

ODD = ("exp_avg", "a/b", "x_1-2", "a part_3", "größe", ".hidden", "%41", "x_0-1_part_2.csv")
"""Names that optimizers give to their state, likely and not."""
RANKS = ((0,), (0, 1), (0, 2, 4), (3, 9), (0, 1, 5), (5, 1), tuple(range(1000)), (0, 65_535))
PARTS = ("", "input", "output", "input_0", "output_11", "pre", "post")


@pytest.mark.parametrize("kind", FORMATS)
@pytest.mark.parametrize("signal", [*SIGNALS, *ODD])
def test_a_file_s_name_is_parsed(signal: str, kind: str) -> None:
    """Signal, steps, part and format, whatever the signal is called; the name has no separator of paths."""
    for (first, last), part in product([(0, 0), (10, 19), (7, 2**31)], [0, 1, 12]):
        name = TableName(signal, first, last, part, kind)
        assert table_name(str(name)) == name
        assert Path(str(name)).name == str(name)


@pytest.mark.parametrize("name", ["", "stack_info.csv", "actv.csv", "actv_1.csv", "actv_1-2.db", "actv_1-2_part_.csv"])
def test_another_name_is_none_of_a_table(name: str) -> None:
    """Files beside the tables are not taken for tables."""
    assert table_name(name) is None


def test_messages_show_names_of_the_grammar() -> None:
    """The examples are what they are examples of."""
    assert table_name(EXAMPLE) == TableName("actv", 0, 0)
    assert parsed_name(EXAMPLE_DIRECTORY) == ("Dec03_21-34-40", 0)


@pytest.mark.parametrize("kind", FORMATS)
def test_a_file_begins_where_its_rows_do_if_its_name_is_taken(kind: str) -> None:
    """The range of steps first, then the steps that are left, then parts; all of the same signal, and all different."""
    first, last = span_of(17, 10)
    names = [name for name, _ in zip(candidates("actv", first, last, 17, kind), range(5), strict=False)]
    assert [(name.first, name.last, name.part) for name in names] == [
        (10, 19, 0), (17, 19, 0), (17, 19, 1), (17, 19, 2), (17, 19, 3)
    ]  # fmt: skip
    assert len(set(map(str, names))) == 5


@pytest.mark.parametrize("rank", [0, 7, 65_535])
def test_a_directory_s_name_is_parsed(tmp_path: Path, rank: int) -> None:
    """Time and rank; the pattern of the rank fits, that of its neighbour does not; a superseded folder is no rank's."""
    now = 1764768880.0
    name = directory_name(rank, now)
    assert parsed_name(name) == (stamp(now), rank)
    assert parsed_stamp(stamp(now), 2025).timestamp() == now
    (tmp_path / name).mkdir()
    assert [path.name for path in tmp_path.glob(directories_of(rank))] == [name]
    assert [path.name for path in tmp_path.glob(directories_of())] == [name]
    assert list(tmp_path.glob(directories_of(rank + 1))) == []
    assert parsed_name(superseded_name(now, rank)) is None


def test_times_of_manifests_are_parsed() -> None:
    """To the second, whatever the zone of the machine."""
    moment = time.localtime(1764768880)
    assert parsed_time(time_text(moment)) == 1764768880.0


@pytest.mark.parametrize("rank", [0, 7, 65_535])
def test_the_findings_of_a_rank_are_found(tmp_path: Path, rank: int) -> None:
    """Where they are written; a folder of another name is passed over."""
    path = file_of(tmp_path, rank)
    path.parent.mkdir(parents=True)
    path.touch()
    (path.parent.parent / "ranks").mkdir()
    assert rank_folders(tmp_path) == [path.parent]
    assert (parsed_rank(rank_folder(rank)), parsed_rank("ranks")) == (rank, None)


@pytest.mark.parametrize("signal", [*SIGNALS, "exp_avg"])
def test_a_row_s_key_is_parsed(signal: str) -> None:
    """Name, part, micro step, call and stage, for every part that the signal's rows have."""
    parts = PARTS if signal in ("actv", "actv_grad", "other") else ("",)
    for name, part, micro_step, call, stage in product(["", "fc", "0.fc.weight"], parts, [0, 3], [0, 2], [0, 1]):
        key = Key(name, part, micro_step, call, stage)
        if name or part:
            assert key_of(signal, cell_name(key), micro_step, call, stage) == key


@pytest.mark.parametrize("shape", [(), (3,), (0,), (3, 2), (2**31, 1, 5)])
def test_shapes_are_parsed(shape: tuple[int, ...]) -> None:
    """Scalars and empty tensors too."""
    assert shape_of(shape_text(shape)) == shape


@pytest.mark.parametrize("ranks", RANKS)
def test_ranks_are_parsed(ranks: tuple[int, ...]) -> None:
    """From cells and from the names of groups; of the latter in no order."""
    assert ranks_of(ranks_text(ranks)) == ranks
    assert group_of(f"all_reduce.{group_label(ranks)}.train.py[23].post") == frozenset(ranks)


@pytest.mark.parametrize("name", ["all_reduce.post", "x.ranks.post", "x.ranks0-99999999999.post", "x.ranks0++1.post"])
def test_a_name_without_a_group_names_no_ranks(name: str) -> None:
    """Nor does one of more ranks than there can be."""
    assert group_of(name) == frozenset()


@pytest.mark.parametrize("text", ["0-99999999999", "9-99999999", "one"])
def test_ranks_that_cannot_be_are_an_error(text: str) -> None:
    """What is no number, and more ranks than any run has."""
    with pytest.raises(ValueError, match=r"expected at most|invalid literal"):
        ranks_of(text)


@pytest.mark.parametrize(("ranks", "term"), [*product(RANKS, [False, True])])
def test_coverage_is_parsed(ranks: tuple[int, ...], term: bool) -> None:
    """Parts of elements and terms of a sum; the part is whatever its engine calls it."""
    for part in ("0:1024", "rows 0:32", "rows 0:2, columns 3:5"):
        coverage = Coverage((64, 32), part, ranks, term)
        assert coverage_of(coverage_text(coverage, 1024)) == coverage


@pytest.mark.parametrize("text", ["", "plain", "a,b", 'a "b"', "a\nb", "a\rb"])
def test_a_cell_is_quoted_only_if_it_must_be(text: str) -> None:
    """As RFC 4180 has it."""
    plain = not set(text) & set(',"\n\r')
    assert csv_cell(text) == (text if plain else '"' + text.replace('"', '""') + '"')


def test_tables_of_a_database_are_parsed() -> None:
    """Metric and first step; tables of names are none of rows."""
    with closing(sqlite3.connect(":memory:")) as database:
        names = [row_table_name(metric, first, first + 499) for metric in (1, 12) for first in (0, 500)]
        for name in names:
            database.execute(create_table(name, row_table(name).first, 999, ("norm",)))  # type: ignore[union-attr]
        database.execute("CREATE TABLE metric_stats (metric_id INTEGER)")
        assert row_tables(database) == names
    assert [row_table(name) for name in names] == [RowTable(m, first) for m in (1, 12) for first in (0, 500)]


def test_a_manifest_is_read_as_it_was_written(tmp_path: Path) -> None:
    """Every field that readers ask for."""
    about = RunDescription(
        probe="1", host="node7", framework="pytorch", framework_version="2.10", rank=3, world_size=8,
        groups={"pipeline_parallel": [1, 3]}, run=2, first_step=10, pp_stage=1, model=["Net"], optimizer=["Adam"],
        optimizer_state_names=[{"m": "exp_avg"}], raw_names={"a": "module.a"}, start_time="2026-12-03T21:34:40+0800",
        time_zone="CST", directory_time_zone="UTC+08:00", config={"ndigits": 4},
    )  # fmt: skip
    write_manifest(tmp_path, {**about, "end_time": "later", "cost_seconds": {"hooks": 0.5}, "findings": 7})
    problems = Problems()
    found = read_manifest(tmp_path, problems)
    assert problems.lines() == []
    assert isinstance(found, Manifest)
    assert (found.framework, found.rank, found.world_size, found.attachment) == ("pytorch", 3, 8, 2)
    assert (found.groups, found.pipeline_stage, found.first_step) == ({"pipeline_parallel": (1, 3)}, 1, 10)
    assert (found.start_time, found.ended, found.findings) == ("2026-12-03T21:34:40+0800", True, 7)
    assert (found.cost_seconds, found.config, found.control) == ({"hooks": 0.5}, {"ndigits": 4}, None)
    assert found.continued(10, 25) == {"run": 2, "start_time": found.start_time, "first_step": 10, "resumed": [25]}


def test_a_line_of_costs_has_its_step() -> None:
    """And a line of something else is an error."""
    assert cost_step(cost_line(12, {"hooks": 0.25}, 0.5)) == 12
    for line in ("", "{}", "[]", '{"step": "x"}'):
        with pytest.raises(ValueError, match=r"."):
            cost_step(line)


def test_event_files_are_known_by_their_names() -> None:
    """Those of this package and of others; not what lies beside them."""
    assert is_event_file(file_name(1764768880.0))
    assert is_event_file("events.out.tfevents.1.host")
    assert not is_event_file("actv_0-0.csv")
