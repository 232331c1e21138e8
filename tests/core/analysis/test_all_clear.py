"""Results without findings: reported only for rows that were judged, else with the findings of the run itself."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner, Result

from probe.cli import app
from probe.core.analysis.anomaly_processor import main
from probe.core.analysis.diagnosis.analyse import analyse
from probe.core.analysis.report.findings import card, dumped, sentence
from probe.core.output.sinks.anomaly import AnomalyFile
from probe.core.records import Finding, Key
from probe.core.storage.directories import last_run
from probe.core.storage.problems import Problems
from probe.core.storage.run_directory import write_manifest
from tests.core.analysis.causes_data import bad, write_rank, write_run
from tests.core.analysis.test_report import PageFile
from tests.core.output.sink_data import context, finding
from tests.required import require

require("duckdb")

NAME = "Dec03_21-34-40-rank{}-0000000{}"


def anomalies(*words: object) -> Result:
    return CliRunner().invoke(app, ["anomalies", *map(str, words)])


def report(root: Path, *words: object) -> tuple[Result, str]:
    """The command, and the answers in the page that it writes."""
    done = CliRunner().invoke(app, ["report", str(root), "-o", str(root / "page.html"), *map(str, words)])
    return done, json.dumps(PageFile(root / "page.html").answers, separators=(",", ":"))


def flat(text: str) -> str:
    return " ".join(text.split())


def unread(root: Path, form: str, ranks: int = 1, **manifest: Any) -> None:
    """A run whose rows are in no file that can be judged."""
    for rank in range(ranks):
        directory = root / NAME.format(rank, rank)
        directory.mkdir()
        fields = {"rank": rank, "world_size": ranks, "start_time": "2026-12-03T21:34:40+0800", "first_step": 0}
        write_manifest(directory, {**fields, "config": {"format": [form]}, **manifest})


def dump(root: Path, *found: Finding, run: str = NAME.format(0, 0), **fields: Any) -> None:
    start = {"start": "2026-12-03T21:34:40+0800", "run": run, **fields}
    AnomalyFile(context(root, rank=found[0].rank, **start)).write(list(found))


def inf_at(step: int, name: str = "fc.weight") -> Finding:
    tag = f"0:{name}/rank0/post_grad"
    message = f"Rule AnomalyNan reports anomaly signal in ('{tag}', 'norm') at step {step}, current value inf."
    return finding(step, name, value=math.inf, message=message)


def test_what_was_judged_is_said(tmp_path: Path) -> None:
    """Ranks, steps, rows and signals, for people and machines; exit code 0. Rows are the lines of the tables."""
    write_run(tmp_path, 2, 4)
    lines = sum(len(path.read_text().splitlines()) - 1 for path in tmp_path.glob("*/*.csv"))
    done = anomalies(tmp_path)
    assert done.exit_code == 0, done.output
    extent = f"2 ranks, 4 sampled steps, {lines} rows of actv, actv_grad, grad_reduced, grad_unreduced, param_origin"
    assert f"Nothing was found in what was judged: {extent}" in flat(done.stdout)
    told = json.loads(anomalies(tmp_path, "--steps", "3", "--json").stdout)["judged"]
    assert (told["ranks"], told["steps"], told["rows"], len(told["signals"])) == ([0, 1], 1, lines / 4, 6)


@pytest.mark.parametrize("form", ["tensorboard", "api"])
def test_a_run_without_rows_is_no_healthy_run(tmp_path: Path, form: str) -> None:
    """Formats are named, and what the manifests count; exit code 2, and no word of nothing found."""
    unread(tmp_path, form, 2, findings=7)
    done = anomalies(tmp_path)
    assert done.exit_code == 2
    said = flat(done.output)
    assert f"nothing could be judged: format {form}; rows are in csv, parquet and sqlite" in said
    assert "While it ran, the run's rules reported 14 (rank 0: 7, rank 1: 7)." in said
    assert '"alert": {"dump": true}' in said
    assert "Nothing was found" not in said
    assert json.loads(anomalies(tmp_path, "--json").stdout)["run_found"] == {"0": 7, "1": 7}


def test_a_run_that_was_killed_says_nothing_of_what_it_found(tmp_path: Path) -> None:
    """A manifest without the number of findings is no manifest with none."""
    unread(tmp_path, "tensorboard")
    done = anomalies(tmp_path)
    assert done.exit_code == 2
    assert "The manifest of rank 0 has no number of findings" in flat(done.stdout)


@pytest.mark.parametrize("number", ["many", -1.5, True, None, [3]])
def test_a_wrong_number_of_findings_is_none(tmp_path: Path, number: object) -> None:
    """A field of a manifest that is no whole number is not taken for one."""
    unread(tmp_path, "tensorboard", findings=number)
    done = anomalies(tmp_path)
    assert done.exit_code == 2
    assert "has no number of findings" in flat(done.stdout)


def test_what_was_dumped_is_diagnosed_without_rows(tmp_path: Path) -> None:
    """The first cause comes from anomaly.json if no table has it; so in the report."""
    unread(tmp_path, "tensorboard", findings=2)
    dump(tmp_path, inf_at(5), inf_at(6, "fc2.weight"))
    done = anomalies(tmp_path)
    assert done.exit_code == 2
    said = flat(done.output)
    assert "Nothing could be judged: format tensorboard" in said
    assert "critical: overflow, first seen in fc.weight, step 5" in said
    assert "step 5" in said
    shown, page = report(tmp_path)
    assert shown.exit_code == 1
    assert "Inf" in page
    assert "Nothing was found" not in shown.output + page


def test_a_report_without_rows_is_not_green(tmp_path: Path) -> None:
    """Neither the card nor the command reports that nothing was found."""
    unread(tmp_path, "tensorboard", findings=3)
    done, page = report(tmp_path, "--no-judge")
    assert done.exit_code == 1
    assert "Nothing could be judged" in flat(done.stdout)
    assert '"health":"incomplete"' in page
    assert "Nothing was found" not in done.output + page


def test_findings_that_no_row_shows_are_not_passed_over(tmp_path: Path) -> None:
    """Rows are healthy, but the run counted findings: both are reported, and the exit code is 1."""
    write_run(tmp_path, 2, 4, findings=4)
    done = anomalies(tmp_path)
    assert done.exit_code == 1
    said = flat(done.stdout)
    assert "Nothing was found in what was judged (2 ranks, 4 sampled steps" in said
    assert "But: While it ran, the run's rules reported 8 (rank 0: 4, rank 1: 4)." in said
    assert not card(analyse(tmp_path)).clear


def test_findings_of_steps_that_are_in_no_file_count(tmp_path: Path) -> None:
    """A run that was killed between two files has dumped what its files lack."""
    write_rank(tmp_path, 0, range(3))
    dump(tmp_path, inf_at(31), run="Dec03_21-34-40-rank0-00000000")
    told = json.loads(anomalies(tmp_path, "--json").stdout)
    assert (told["diagnosis"]["first"]["step"], told["diagnosis"]["first"]["live"]) == (31, True)


def test_a_run_without_directories_is_known_by_its_dump(tmp_path: Path) -> None:
    """The format api alone makes no directory: the findings are shown, the exit code is 2."""
    dump(tmp_path, inf_at(5), inf_at(6))
    done = anomalies(tmp_path)
    assert done.exit_code == 2
    said = flat(done.output)
    assert "nothing could be judged; the rules of run Dec03_21-34-40-rank0-00000000 reported 2 while it ran" in said
    assert "at step 5, current value inf." in said


def test_wrong_use_shows_no_findings(tmp_path: Path) -> None:
    """An error in the command is that alone."""
    write_run(tmp_path, 1, 3)
    dump(tmp_path, inf_at(5))
    assert "nothing could be judged" not in anomalies(tmp_path, "--steps", "x").output


def test_the_ordering_command_says_what_its_findings_are_of(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A run without any of the requested steps is no healthy run: their number is printed."""
    dump(tmp_path, inf_at(5), inf_at(6))
    assert main(["-d", str(tmp_path), "-s", "[1]"]) == 0
    assert "0 of 2 findings of run Dec03_21-34-40-rank0-00000000 in " in capsys.readouterr().out


def marks(root: Path) -> list[str]:
    """The findings of the latest run, as the report words them without judging."""
    found, _ = dumped(root, last_run(root, Problems()), 0, 99, Problems())
    return [sentence(mark) for mark in found]


def test_inf_and_counts_of_infs_are_no_nan(tmp_path: Path) -> None:
    """Value, kind and count come back as they were found, from typed fields and from the messages of older files."""
    unread(tmp_path, "api")
    infs = finding(
        2, "a.weight", "infs", value=4.0,
        message="Rule AnomalyNan reports anomaly signal in ('0:a.weight/rank0/post_grad', 'infs') at step 2, "
        "current value 4.0.",
    )  # fmt: skip
    dump(tmp_path, inf_at(1), infs)
    about = "(weight gradient as the optimizer applies it)"
    said = [
        f"Inf at step 1 on rank 0: norm of fc.weight {about} is inf.",
        f"Inf at step 2 on rank 0: infs of a.weight {about} is 4.",
    ]
    assert marks(tmp_path) == said
    path = tmp_path / "anomaly_detected" / "rank0" / "anomaly.json"
    older = {key: dict(list(entry.items())[:9]) for key, entry in json.loads(path.read_text()).items()}
    path.write_text(json.dumps(older))
    assert marks(tmp_path) == said


def test_a_value_that_is_not_said_is_not_called_nan(tmp_path: Path) -> None:
    """The documentation's own example of an entry has no value."""
    unread(tmp_path, "api")
    tag = "0:a.weight/rank0/post_grad"
    message = f"Rule AnomalyTurbulence reports anomaly signal in ('{tag}', 'min') at step 1."
    entry = dict.fromkeys(("rank", "step", "micro_step", "pp_stage", "vpp_stage", "call_id"), 0)
    entry |= {"step": 1, "tag_name": tag, "message": message, "group_mates": [0]}
    path = tmp_path / "anomaly_detected" / "rank0" / "anomaly.json"
    path.parent.mkdir(parents=True)
    path.write_text(json.dumps({f"{tag}_step_1_call_0": entry}))
    about = "(weight gradient as the optimizer applies it)"
    assert marks(tmp_path) == [f"Drift at step 1 on rank 0: min of a.weight {about}."]


def test_typed_fields_go_before_the_message(tmp_path: Path) -> None:
    """Rules of other packages word their messages as they like; names may look like tags."""
    write_run(tmp_path, 1, 3)
    odd = finding(1, value=2.5, expected=1.0, rule="TheirRule", message="too much", key=Key("x/rank7/actv:3", call=2))
    dump(tmp_path, odd)
    diagnosis = json.loads(anomalies(tmp_path, "--json").stdout)["diagnosis"]["first"]
    assert [diagnosis[name] for name in ("rule", "name", "op", "value", "expected", "signal")] == [
        "TheirRule", "x/rank7/actv:3.call2", "norm", 2.5, 1.0, "grad_reduced",
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("field", "value"), [("value", "wide"), ("value", [1]), ("rule", 3), ("first_step", True), ("micro_stepped", 1)]
)
def test_a_wrong_typed_field_is_named(tmp_path: Path, field: str, value: object) -> None:
    """The entry is left out, the next one is read."""
    write_run(tmp_path, 1, 3)
    dump(tmp_path, inf_at(5), inf_at(6))
    path = tmp_path / "anomaly_detected" / "rank0" / "anomaly.json"
    entries = json.loads(path.read_text())
    next(iter(entries.values()))[field] = value
    path.write_text(json.dumps(entries))
    done = anomalies(tmp_path)
    assert f"expected {field} as" in done.stderr
    assert "step 6" in flat(done.stdout)


def test_hostile_entries_are_data(tmp_path: Path) -> None:
    """Names that no table can hold, numbers beyond any table, and values of any length: read, or named in a line."""
    write_run(tmp_path, 1, 6, bad(("actv", 0, 4, "b.output")))
    dump(tmp_path, *(inf_at(step, f"p{step}") for step in range(10, 16)))
    path = tmp_path / "anomaly_detected" / "rank0" / "anomaly.json"
    entries = json.loads(path.read_text())
    changes = [{"name": "\ud800"}, {"name": "a\0b"}, {"step": 10**30}, {"op": ["z" * 10**5]}, {"value": 10**400}, {}]
    for entry, change in zip(entries.values(), changes, strict=True):
        entry.update(change)
    path.write_text(json.dumps(entries))
    done = anomalies(tmp_path, "--json")
    names = {entry["name"] for entry in json.loads(done.stdout)["kept"] if entry["live"]}
    assert names == {"\\ud800", "a\0b", "p15"}  # the first as CSV files have it
    lines = [line for line in done.stderr.splitlines() if "left out" in line]
    assert len(lines) == 3
    assert max(map(len, lines)) < 1000
