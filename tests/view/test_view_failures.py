"""Failures beside the page: none ends its threads, none looks like health, and no link leads to other files."""

from __future__ import annotations

import json
import sqlite3
import sys
import tempfile
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from probe.core.storage import files
from probe.core.storage.files import confine
from probe.view.background import BackgroundTasks, analysis_arguments, comparison_arguments
from probe.view.findings import health_of
from probe.view.run_list import RunList
from tests.quick_python import quick_python
from tests.required import require
from tests.user_scripts import forks
from tests.view.view_data import SIGNAL, WrittenRank
from tests.view.view_process import TASKS, ViewServer, viewing
from tests.waiting import PATIENCE, wait_for

require("duckdb")

SECRET = "secret-of-another-user"
HEADER = "vpp_stage,name,step,norm\n"


@pytest.fixture
def quick_tasks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Tasks of this process are forked from one that has imported what they need."""
    forks(*TASKS)  # which Python itself is to start
    monkeypatch.setattr(sys, "executable", quick_python(*TASKS))


def written(root: Path, name: str = "run", findings: int = 0) -> Path:
    """The directory of a small run that has ended."""
    rank = WrittenRank(root / name, 0, world=1)
    for step in range(3):
        rank.write(step, [1.0, 2.0, 3.0])
    rank.end(findings)
    return rank.directory


def analysed(server: ViewServer, number: int = 0) -> Any:
    """The answer about a run, once its analysis has ended."""
    path = f"/api/runs/{number}"
    return wait_for(lambda: found if (found := server.get(path))["health"] != "running" else None)


@pytest.mark.usefixtures("quick_tasks")
def test_a_task_that_cannot_be_started_leaves_the_others(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is failed with the reason and worth another attempt; later tasks are done, whatever their callback does."""

    def changed(key: object) -> None:
        raise RuntimeError(f"nobody is there for {key}")

    now = [0.0]
    arguments = analysis_arguments(str(written(tmp_path).parent), "")
    tasks = BackgroundTasks(changed, clock=lambda: now[0])
    with monkeypatch.context() as full:
        full.setattr(tempfile, "tempdir", str(tmp_path / "none"))
        tasks.ask("first", arguments, "1")
        first = tasks.wait("first", PATIENCE)
    assert (first.state, first.version) == ("failed", None)
    assert first.error.startswith("it could not be run: FileNotFoundError")
    tasks.ask("second", arguments, "1")
    second = tasks.wait("second", PATIENCE)
    assert (second.state, second.answer["number"]) == ("done", 0)
    assert tasks.ask("first", arguments, "1") is first
    now[0] = 3600.0
    tasks.ask("first", arguments, "1")
    assert (tasks.wait("first", PATIENCE).state, first.state) == ("done", "failed")
    tasks.close()


@pytest.mark.usefixtures("quick_tasks")
def test_an_answer_is_of_one_moment(tmp_path: Path) -> None:
    """What was asked before a task has ended stays as it was: no page says that it is done and has no answer."""
    tasks = BackgroundTasks(lambda _: None)
    asked = tasks.ask("task", analysis_arguments(str(written(tmp_path).parent), ""), "1")
    ended = tasks.wait("task", PATIENCE)
    assert (asked.state, asked.answer) == ("running", None)
    assert (ended.state, ended.answer["number"]) == ("done", 0)
    tasks.close()


@pytest.mark.usefixtures("quick_tasks")
def test_a_task_that_fails_has_the_last_line_of_its_error(tmp_path: Path) -> None:
    """Also after much other output; one that was killed has its signal."""
    tasks = BackgroundTasks(lambda _: None)
    tasks.ask("analysis", analysis_arguments(str(tmp_path / ("x" * 200 + "/" + "y" * 200)), ""), "1")
    result = tasks.wait("analysis", PATIENCE)
    assert (result.state, "there is none of this name" in result.error) == ("failed", True)
    tasks.ask("killed", ["analyse", str(tmp_path)], "1")
    wait_for(lambda: tasks._process).kill()
    assert tasks.wait("killed", PATIENCE).state == "failed"
    assert "ended by signal 9" in tasks.wait("killed", 0).error
    tasks.close()


def test_a_file_of_one_run_does_not_end_the_following_of_others(tmp_path: Path) -> None:
    """Runs that begin later are listed, and the odd ones are, too."""
    contents = ["[" * 4000, '{"overhead": ' * 4000, '{"overhead": "x", "step": null}', "9" * 4000]
    odd = {f"odd{number}": 2 for number in range(len(contents))}
    for name, content in zip(odd, contents, strict=True):
        (written(tmp_path / "runs", name) / "cost.jsonl").write_text(f"{content}\n")
    with viewing(tmp_path / "server", tmp_path / "runs") as server:
        written(tmp_path / "runs", "later")

        def summaries() -> dict[str, int]:
            return {run["name"]: run["last_step"] for run in server.get("/api/runs")["runs"]}

        wait_for(lambda: summaries() == {**odd, "later": 2})


@pytest.mark.usefixtures("quick_tasks")
def test_whatever_fails_in_one_run_the_others_are_followed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The last resort: an exception that nobody expects is a problem of its run, and one of a search is shown."""
    import probe.view.run_list as room

    real = room.summary_of

    def summary_of(listing: Any, root: Any, found: Any) -> Any:
        if root.name == "odd":
            raise MemoryError("much")
        return real(listing, root, found)

    monkeypatch.setattr(room, "summary_of", summary_of)
    monkeypatch.setattr(room, "SEARCH_SECONDS", 0.05)
    for name in ("even", "odd"):
        written(tmp_path / "runs", name)
    runs = RunList([str(tmp_path / "runs")], tmp_path / "cache", lambda _: None)
    runs.start()
    wait_for(lambda: all(run.summary for run in runs.runs))
    problems = {run.name: run.summary.problems for run in runs.runs if run.summary}
    assert problems == {"even": [], "odd": ["MemoryError: much"]}
    with monkeypatch.context() as broken:
        broken.setattr(room, "_names", lambda folder: 1 / 0)
        wait_for(lambda: runs.problem == "ZeroDivisionError: division by zero")
    wait_for(lambda: not runs.problem)
    runs.close()


def test_a_failed_analysis_is_shown_with_its_error_and_the_command(tmp_path: Path) -> None:
    """In the list, too; it is no health, whatever the run itself counted."""
    directory = written(tmp_path / "a folder")
    prelude = "import probe.view.background as background\nbackground.MODULE = 'probe.nothing'"
    with viewing(tmp_path / "server", directory.parent, prelude=prelude) as server:
        about = analysed(server)
        assert (about["health"], about["finding_total"], about["cause"]) == ("failed", 0, None)
        assert about["analysis_error"].endswith("No module named probe.nothing")
        assert about["analysis_command"] == f"probe anomalies '{directory.parent}'"
        (listed,) = server.get("/api/runs")["runs"]
        assert (listed["analysis"], listed["analysis_error"]) == ("failed", about["analysis_error"])


def test_only_a_run_that_was_judged_whole_is_healthy(tmp_path: Path) -> None:
    """Not one whose own count differs from the analysis', nor one of which something could not be read."""
    recorded = {"healthy": 0, "unexplained": 688, "incomplete": 0}
    for name, findings in recorded.items():
        directory = written(tmp_path / "runs", name, findings)
    (directory / "actv_0-9.csv").write_text("not a table\n")
    with viewing(tmp_path / "server", tmp_path / "runs") as server:
        for run in server.get("/api/runs")["runs"]:
            about = analysed(server, run["number"])
            assert (about["analysis"], about["health"], about["finding_total"]) == ("done", run["name"], 0)
            assert about["recorded_findings"] == run["findings"] == recorded[run["name"]]


def test_what_is_known_of_a_run_decides_on_its_health() -> None:
    """An answer of earlier files says nothing of those of now; a run without rows was not judged."""
    answer = {"diagnosis": None, "run_found": {"0": None}, "skipped": False, "judged": {"rows": 5}}
    assert health_of("done", answer, 0, None) == health_of("done", answer, 0, 0) == "healthy"
    assert health_of("running", answer, 0, 0) == health_of("running", None, 0, 0) == "running"
    assert health_of("failed", answer, 0, 0) == health_of("failed", None, 7, 7) == "failed"
    assert health_of("done", answer, 3, None) == "found"
    assert health_of("done", {**answer, "run_found": {"0": 2}}, 0, None) == "unexplained"
    assert health_of("done", {**answer, "judged": {"rows": 0}}, 0, 0) == "incomplete"


def test_a_comparison_that_fails_is_not_the_one_before(tmp_path: Path) -> None:
    """If the files have changed and cannot be compared any more, the earlier verdict is gone."""
    one, two = written(tmp_path / "runs", "one"), written(tmp_path / "runs", "two")
    with viewing(tmp_path / "server", tmp_path / "runs") as server:
        asked = {"run": 0, "against": 1}
        wait_for(lambda: server.get("/api/compare", **asked)["state"] == "done")
        (two / "manifest.json").write_text(json.dumps({"schema": 10**6}))

        def failed() -> Any:
            answer = server.client.get("/api/compare", params=asked)
            return answer if answer.status_code != 200 or answer.json()["state"] == "failed" else None

        assert "same" not in wait_for(failed).json()
    assert comparison_arguments((str(one), ""), (str(two), ""))[0] == "compare"


def test_no_link_leads_out_of_the_folders(tmp_path: Path) -> None:
    """Neither as a file of a run nor as a folder; each is a problem of its run; the analysis follows none either."""
    directory = written(tmp_path / "runs")
    outside = tmp_path / "outside"
    foreign = written(outside, SECRET)
    (outside / "secret").write_text(f"{SECRET}\nmore\n")
    for name in ("param_origin_900-900.csv", "actv_0-9.parquet", "cost.jsonl"):
        (directory / name).symlink_to(outside / "secret")
    (directory / "actv_10-19.csv").symlink_to(next(foreign.glob("*.csv")))
    with closing(sqlite3.connect(outside / "rows.db")) as database:
        database.execute(f"CREATE TABLE '{SECRET}' (a)")
    (directory / "monitor_metrics.db").symlink_to(outside / "rows.db")
    (tmp_path / "runs" / "run" / "Dec03_21-34-40-rank1-00000001").symlink_to(foreign)
    (tmp_path / "runs" / "other").symlink_to(outside)
    with viewing(tmp_path / "server", tmp_path / "runs") as server:
        about = analysed(server)
        texts = [server.client.get(path).text for path in ("/api/runs", "/api/runs/0", "/api/runs/0/findings")]
        assert [text for text in texts if SECRET in text] == []
        assert len(server.get("/api/runs")["runs"]) == 1
        assert "a link leads out of the folders" in " ".join(about["problems"])
        assert [signal["name"] for signal in about["signals"]] == [SIGNAL]
        assert about["health"] == "incomplete"
    with viewing(tmp_path / "server", tmp_path / "runs", outside) as server:
        assert len(server.get("/api/runs")["runs"]) > 1  # named beside them, the targets may be shown


def test_links_within_the_folders_are_followed(tmp_path: Path) -> None:
    """And those in the path of a folder that was named, as of a home."""
    written(tmp_path / "real" / "runs")
    (tmp_path / "home").symlink_to(tmp_path / "real")
    (tmp_path / "real" / "runs" / "latest").symlink_to(tmp_path / "real" / "runs" / "run")
    with viewing(tmp_path / "server", tmp_path / "home" / "runs") as server:
        assert {run["name"] for run in server.get("/api/runs")["runs"]} == {"run", "latest"}
        assert analysed(server)["health"] == "healthy"


def test_a_command_of_the_user_follows_links_anywhere(tmp_path: Path) -> None:
    """Only a process that shows runs to others is confined."""
    from probe.core.storage.problems import Problems
    from probe.core.storage.table_files import tables

    (tmp_path / "table").write_text(f"{HEADER}0,a,0,1.0\n")
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "actv_0-9.csv").symlink_to(tmp_path / "table")
    try:
        assert len(tables(tmp_path / "run", Problems())) == 1
        confine([tmp_path / "run"])
        problems = Problems()
        assert (tables(tmp_path / "run", problems), problems.number) == ([], 1)
    finally:
        files._permitted.clear()
