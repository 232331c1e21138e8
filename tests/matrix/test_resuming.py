"""A run that is resumed and goes on in its old directory: each step is there once."""

from __future__ import annotations

import json
import logging
import shutil
import sqlite3
from pathlib import Path
from typing import Any

import pytest

from probe.core.checks.check import CheckFinding
from probe.core.monitor.trainer_mon import Monitor
from probe.core.storage.check_lines import CHECKS, CheckLines, read_check_lines
from probe.core.storage.directories import last_run
from probe.core.storage.problems import Problems
from tests.matrix.harness import Harness, train_step
from tests.matrix.models import X, tiny_net
from tests.matrix.watching import LR, MOMENTUM, lines_of, rows_of, watching
from tests.required import require
from tests.tables import read

CONFIG = {"param_distribution": True, "ops": ["norm"], "squash_name": False, "ndigits": 20}
STAMPS = ["Dec03_21-34-40", "Dec03_21-34-50"]


@pytest.fixture(autouse=True)
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Output directory of runs."""
    monkeypatch.setenv("MONITOR_OUTPUT_DIR", str(tmp_path / "out"))
    return tmp_path / "out"


def run(framework: Harness, first: int, steps: int, **config: Any) -> Monitor:
    """Trains ``steps`` steps, the first of which is called ``first``."""
    model = tiny_net(framework)
    optimizer = framework.optimizer("momentum", model, lr=LR, momentum=MOMENTUM)
    loop = framework.loop(model, optimizer)
    with watching(framework, {**CONFIG, **config}, model, optimizer, start_iteration=first) as monitor:
        for _ in range(steps):
            train_step(loop, framework.tensor(X))
    return monitor


def earlier(framework: Harness, root: Path, name: str, first: int, steps: int, **config: Any) -> Path:
    """The directory of an earlier run, under the name that it would have had."""
    written = Path(str(run(framework, first, steps, **config).output_directory))
    return written.rename(root / name)


def steps_in(directory: Path) -> list[int]:
    """The steps whose rows are there; none of them twice, which reading would refuse."""
    return sorted({row.step for row in read(directory)})


@pytest.mark.parametrize("steps_per_file", [1, 3, 100])
def test_steps_that_are_done_again_are_there_once(framework: Harness, root: Path, steps_per_file: int) -> None:
    """Those before them stay as they are, and they have the numbers of the second time."""
    more = {"step_count_per_record": steps_per_file}
    old = earlier(framework, root, "Dec03_21-34-45-rank0-0123abcd", 0, 8, **more)
    before = read(old)
    monitor = run(framework, 5, 2, append_output=STAMPS, **more)
    assert monitor.output_directory == str(old)
    rows, again = rows_of(monitor), read(run(framework, 5, 2, **more).output_directory)
    assert {row.step for row in rows} == set(range(7))
    assert rows == {row: values for row, values in before.items() if row.step < 5} | again
    assert before != rows
    cost = [json.loads(line)["step"] for line in (old / "cost.jsonl").read_text(encoding="utf-8").splitlines()]
    assert cost == [*range(7)]


def test_what_is_done_again_is_put_aside(framework: Harness, root: Path) -> None:
    """The rows of the first time are in a folder of their own, which no reader takes for a rank's."""
    old = earlier(framework, root, "Dec03_21-34-45-rank0-0123abcd", 0, 8, step_count_per_record=3)
    before = read(old)
    run(framework, 5, 1, append_output=STAMPS, step_count_per_record=3)
    (aside,) = old.glob("superseded-*-from-step-5")
    assert {row: before[row] for row in before if row.step >= 5}.items() <= read(aside).items()
    found = last_run(root, Problems())
    assert [(each.path, each.first_step) for each in found.directories] == [(old, 0)]


def test_findings_of_checks_in_steps_that_are_done_again_are_put_aside(framework: Harness, root: Path) -> None:
    """Those of the checks, by the step in which they were found."""
    old = earlier(framework, root, "Dec03_21-34-45-rank0-0123abcd", 0, 8, step_count_per_record=3)
    finding = CheckFinding("rate-zero", "warning", (), 4, 2, "all learning rates are 0", {})
    CheckLines(old).write([finding, finding._replace(step=6)])
    run(framework, 5, 1, append_output=STAMPS, step_count_per_record=3)
    (aside,) = old.glob("superseded-*-from-step-5")
    steps = [[line.finding.step for line in read_check_lines(place / CHECKS, Problems())] for place in (old, aside)]
    assert steps == [[4], [4, 6]]


def test_nothing_is_put_aside_before_a_step_is_written(framework: Harness, root: Path) -> None:
    """A run that fails at once, or in its first step, leaves the old rows as they were."""
    old = earlier(framework, root, "Dec03_21-34-45-rank0-0123abcd", 0, 4)
    before = read(old)
    run(framework, 2, 0, append_output=STAMPS)
    with pytest.raises(ValueError, match=r"no\.such"):
        run(framework, 2, 1, append_output=STAMPS, targets={"no.such": {}})
    assert read(old) == before


def test_a_run_after_the_last_step_only_adds(framework: Harness, root: Path) -> None:
    """No step was done again: nothing is rewritten."""
    old = earlier(framework, root, "Dec03_21-34-45-rank0-0123abcd", 0, 4)
    run(framework, 4, 2, append_output=STAMPS)
    assert steps_in(old) == [0, 1, 2, 3, 4, 5]
    assert [*old.glob("superseded*")] == []


@pytest.mark.parametrize("name", ["Dec03_21-34-51-rank0-0123abcd", "Dec03_21-34-45-rank1-0123abcd"])
def test_a_rank_outside_the_range_begins_a_new_directory(framework: Harness, root: Path, name: str) -> None:
    """So does one that only another rank's directory is there for; the old one stays as it is."""
    old = earlier(framework, root, name, 0, 4)
    before = read(old)
    monitor = run(framework, 2, 2, append_output=STAMPS)
    assert monitor.output_directory != str(old)
    assert ({row.step for row in rows_of(monitor)}, read(old)) == ({2, 3}, before)


def test_the_latest_directory_in_the_range_goes_on(framework: Harness, root: Path) -> None:
    """Of several, and over the turn of a year."""
    stamps = ["Dec31_23-00-00", "Jan01_01-00-00"]
    first = earlier(framework, root, "Dec31_23-30-00-rank0-0123abcd", 0, 2)
    manifest = first / "manifest.json"
    about = json.loads(manifest.read_text(encoding="utf-8"))
    manifest.write_text(json.dumps(about | {"start_time": "2025-12-31T23:30:00+0800"}), encoding="utf-8")
    second = earlier(framework, root, "Jan01_00-30-00-rank0-0123abcd", 2, 2)
    run(framework, 3, 1, append_output=stamps)
    assert (steps_in(first), steps_in(second)) == ([0, 1], [2, 3])


def test_other_columns_begin_another_file(framework: Harness, root: Path) -> None:
    """Within the range of steps of a file that is there."""
    old = earlier(framework, root, "Dec03_21-34-45-rank0-0123abcd", 0, 4, step_count_per_record=100)
    monitor = run(framework, 2, 3, append_output=STAMPS, step_count_per_record=100, ops=["max", "min"])
    assert steps_in(old) == [0, 1, 2, 3, 4]
    assert {stem for stem in lines_of(monitor) if stem.startswith("param_origin")} == {
        "param_origin_0-99",
        "param_origin_2-99",
    }


def test_an_unfinished_last_line_is_not_taken_for_a_row(framework: Harness, root: Path) -> None:
    """The torn last row of a run that was killed while it wrote is not there, and no other is spoilt."""
    old = earlier(framework, root, "Dec03_21-34-45-rank0-0123abcd", 0, 4, step_count_per_record=100)
    file = old / "param_updated_0-99.csv"
    header, *rows = file.read_text(encoding="utf-8").splitlines()
    first = [row for row in rows if row.split(",")[2] == "0"]
    file.write_text("\n".join([header, *first, rows[-1], first[0][:-3]]), encoding="utf-8")
    run(framework, 3, 1, append_output=STAMPS, step_count_per_record=100)
    found = file.read_text(encoding="utf-8").splitlines()
    assert found[: 1 + len(first)] == [header, *first]
    assert [row.split(",")[2] for row in found[1 + len(first) :]] == ["3"] * len(first)


def test_rules_know_what_the_directory_holds(framework: Harness, root: Path, caplog: pytest.LogCaptureFixture) -> None:
    """The steps before the first one, and not those that are done again."""
    earlier(framework, root, "Dec03_21-34-45-rank0-0123abcd", 0, 6)
    rule = {"rule_name": "AnomalyTurbulence", "args": {"threshold": 1e9}}
    with caplog.at_level(logging.INFO, "probe"):
        run(framework, 4, 1, append_output=STAMPS, alert={"rules": [rule]})
    assert "rules know 4 steps before step 4" in caplog.text


def test_the_manifest_says_where_it_was_resumed(framework: Harness, root: Path) -> None:
    """And still when and with which step it began."""
    old = earlier(framework, root, "Dec03_21-34-45-rank0-0123abcd", 1, 4)
    began = json.loads((old / "manifest.json").read_text(encoding="utf-8"))
    run(framework, 3, 1, append_output=STAMPS)
    run(framework, 4, 1, append_output=STAMPS)
    manifest = json.loads((old / "manifest.json").read_text(encoding="utf-8"))
    assert (manifest["first_step"], manifest["resumed"]) == (1, [3, 4])
    assert manifest["start_time"] == began["start_time"]


def test_a_directory_of_the_existing_tool_goes_on(framework: Harness, root: Path) -> None:
    """It has no manifest, and its tables are the same."""
    old = earlier(framework, root, "Dec03_21-34-45-rank0-0123abcd", 0, 4)
    (old / "manifest.json").unlink()
    run(framework, 2, 3, append_output=STAMPS)
    assert steps_in(old) == [0, 1, 2, 3, 4]


def test_a_database_has_each_step_once(framework: Harness, root: Path) -> None:
    """Rows of the steps done again are those of the second time; the old ones are beside it."""
    old = earlier(framework, root, "Dec03_21-34-45-rank0-0123abcd", 0, 5, format="sqlite", xy_distribution=True)
    run(framework, 2, 1, append_output=STAMPS, format="sqlite")
    assert database_steps(old / "monitor_metrics.db") == [0, 1, 2]
    assert database_steps(next(old.glob("superseded-*/monitor_metrics.db"))) == [0, 1, 2, 3, 4]


def database_steps(path: Path) -> list[int]:
    """The steps in every table of rows."""
    connection = sqlite3.connect(path)
    names = [name for (name,) in connection.execute("SELECT name FROM sqlite_master WHERE type = 'table'")]
    tables = [name for name in names if "_step_" in name]
    found = [connection.execute(f"SELECT DISTINCT step FROM {name}").fetchall() for name in tables]
    connection.close()
    return sorted({step for steps in found for (step,) in steps})


def test_parquet_files_have_each_step_once(framework: Harness, root: Path) -> None:
    """Also where a file holds steps of both kinds."""
    require("duckdb")
    import duckdb

    more: dict[str, Any] = {"format": "parquet", "step_count_per_record": 3}
    old = earlier(framework, root, "Dec03_21-34-45-rank0-0123abcd", 0, 8, **more)
    run(framework, 4, 2, append_output=STAMPS, **more)
    files = f"'{old}/param_origin_*.parquet'"
    found = duckdb.sql(f"SELECT step, name, count(*) FROM {files} GROUP BY ALL").fetchall()
    assert {step for step, _, _ in found} == set(range(6))
    assert {count for _, _, count in found} == {1}


def test_tensorboard_forgets_what_is_done_again(framework: Harness, root: Path) -> None:
    """Its own reader shows each step once."""
    require("tensorboard")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    old = earlier(framework, root, "Dec03_21-34-45-rank0-0123abcd", 0, 8, format="tensorboard")
    run(framework, 4, 2, append_output=STAMPS, format="tensorboard")
    reader = EventAccumulator(str(old), size_guidance={"scalars": 0})
    reader.Reload()
    tags = [tag for tag in reader.Tags()["scalars"] if "param_origin" in tag]
    assert tags
    assert all([event.step for event in reader.Scalars(tag)] == list(range(6)) for tag in tags)


def test_tensorboard_forgets_once(framework: Harness, root: Path) -> None:
    """Not again when a later change of the configuration begins another event file: those steps are there to stay."""
    require("tensorboard")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    old = earlier(framework, root, "Dec03_21-34-45-rank0-0123abcd", 0, 6, format="tensorboard")
    model = tiny_net(framework)
    optimizer = framework.optimizer("momentum", model, lr=LR, momentum=MOMENTUM)
    loop = framework.loop(model, optimizer)
    config = {**CONFIG, "format": "tensorboard", "append_output": STAMPS, "step_count_per_record": 1}
    path = root / "monitor.json"
    path.write_text(json.dumps(config | {"dynamic_on": True}), encoding="utf-8")
    with pytest.MonkeyPatch.context() as patch, framework.TrainerMon(path) as monitor:
        patch.setenv("DYNAMIC_MONITOR", "True")
        monitor.set_monitor(model, 1, optimizer, start_iteration=2)
        for step in range(2, 8):
            if step == 5:
                path.write_text(json.dumps(config | {"dynamic_on": True, "step_count_per_record": 2}), encoding="utf-8")
            train_step(loop, framework.tensor(X))
    assert monitor.faults == {}
    assert len([*old.glob("events*")]) == 3
    reader = EventAccumulator(str(old), size_guidance={"scalars": 0})
    reader.Reload()
    tags = [tag for tag in reader.Tags()["scalars"] if "param_origin" in tag]
    assert tags
    assert all([event.step for event in reader.Scalars(tag)] == [0, 1, 3, 4, 5, 6, 7] for tag in tags)


def test_a_file_without_a_row_is_no_trouble(framework: Harness, root: Path) -> None:
    """A run was killed between making it and writing its first row."""
    old = earlier(framework, root, "Dec03_21-34-45-rank0-0123abcd", 0, 4)
    (old / "param_origin_3-3.csv").write_text("")
    (old / "param_updated_3-3.csv").write_text("vpp_stage,na")
    run(framework, 2, 2, append_output=STAMPS)
    assert steps_in(old) == [0, 1, 2, 3]


def test_files_that_are_no_tables_stay(framework: Harness, root: Path) -> None:
    """Other files in the directory are left alone."""
    old = earlier(framework, root, "Dec03_21-34-45-rank0-0123abcd", 0, 4)
    (old / "notes.csv").write_text("a,b\n1,2\n", encoding="utf-8")
    shutil.copy(old / "notes.csv", old / "notes.txt")
    run(framework, 2, 1, append_output=STAMPS)
    assert (old / "notes.csv").read_text(encoding="utf-8") == (old / "notes.txt").read_text(encoding="utf-8")


def test_findings_of_steps_that_are_done_again_are_put_aside(framework: Harness, root: Path) -> None:
    """As their rows are; those of earlier steps, and of other runs in the same file, stay."""
    too_large = {"rule_name": "AnomalyNan", "args": {"threshold": 1e-3}}
    config = {"alert": {"rules": [too_large], "dump": True}, "targets": {"fc": {}}}
    old = Path(str(run(framework, 0, 4, **config).output_directory))
    other = Path(str(run(framework, 0, 4, **config).output_directory))
    file = root / "anomaly_detected" / "rank0" / "anomaly.json"

    def steps_of(path: Path, directory: Path) -> set[int]:
        return {entry["step"] for entry in json.loads(path.read_text()).values() if entry["run"] == directory.name}

    assert (steps_of(file, old), steps_of(file, other)) == ({0, 1, 2, 3}, {0, 1, 2, 3})
    for time, directory in (("1", other), ("2", old)):  # the later one is resumed
        manifest = json.loads((directory / "manifest.json").read_text())
        manifest["start_time"] = f"2026-12-03T21:34:4{time}+0800"
        (directory / "manifest.json").write_text(json.dumps(manifest))
    time = old.name.partition("-rank")[0]
    latest = max(old.name, other.name)
    resumed = run(framework, 2, 1, append_output=[time, latest.partition("-rank")[0]])
    assert resumed.output_directory == str(old)
    assert (steps_of(file, old), steps_of(file, other)) == ({0, 1}, {0, 1, 2, 3})
    (aside,) = old.glob("superseded-*-from-step-2")
    assert steps_of(aside / "anomaly.json", old) == {2, 3}


def test_without_a_first_step_nothing_is_put_aside(framework: Harness, root: Path) -> None:
    """Step 0 is the default: a directory that has steps is refused with what to do, and stays as it was."""
    old = earlier(framework, root, "Dec03_21-34-45-rank0-0123abcd", 0, 4)
    before = {path.name: path.read_bytes() for path in old.iterdir()}
    with pytest.raises(ValueError, match=r"start_iteration.*0123abcd.*up to step 3"):
        run(framework, 0, 1, append_output=STAMPS)
    assert {path.name: path.read_bytes() for path in old.iterdir()} == before


def test_a_run_that_came_to_no_step_goes_on_from_step_0(framework: Harness, root: Path) -> None:
    """There is nothing that could be put aside, also not in its database."""
    old = earlier(framework, root, "Dec03_21-34-45-rank0-0123abcd", 0, 0, format=["csv", "sqlite"])
    run(framework, 0, 2, append_output=STAMPS)
    assert steps_in(old) == [0, 1]
