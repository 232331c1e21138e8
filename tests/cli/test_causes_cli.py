"""``probe anomalies``: what it prints and writes, its exit codes, and what it makes of files that are not in order."""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from probe.cli import app
from probe.cli.anomalies import chosen
from tests.core.analysis.causes_data import bad, everything_after, write_rank, write_run
from tests.required import require

pytestmark = pytest.mark.slow

require("duckdb")

nan = math.nan
STEPS, AT = 24, 20
NAN = everything_after(AT, (0, 1), bad(("actv", 1, AT, "b.output"), ("grad_reduced", 0, AT, "a.weight")))


def run(*words: object) -> Result:
    return CliRunner().invoke(app, ["anomalies", *map(str, words)])


def flat(text: str) -> str:
    """Text without line breaks."""
    return " ".join(text.split())


def test_healthy(tmp_path: Path) -> None:
    """Exit code 0."""
    write_run(tmp_path, 2, STEPS)
    done = run(tmp_path)
    assert done.exit_code == 0, done.output
    assert "Nothing was found" in done.stdout


def test_found(tmp_path: Path) -> None:
    """Kind, place and step first; with --why a paragraph with module, evidence, extent and advice; then a table; exit
    code 1."""
    write_run(tmp_path, 2, STEPS, NAN)
    done = run(tmp_path, "-k", 3, "--why")
    assert done.exit_code == 1, done.output
    assert done.stdout.startswith("critical: NaN in b.output, step 20, rank 1\n")
    said = flat(done.stdout)
    for part in (
        "First cause: NaN.",
        "b.output (activation: module inputs and outputs) in module b, rank 1, step 20, micro step 0",
        "found by AnomalyNan",
        "rank1-00000001/actv_20-24.csv",
        "the module's inputs were finite",
        "reached rank 0",
        "Look next at",
    ):
        assert part in said, part
    table = done.stdout.partition("cause ")[2].splitlines()[1:]
    assert [line.split()[0] for line in table if line.strip()] == ["initiating", "cascade", "cascade"]


def test_json(tmp_path: Path) -> None:
    """Standard output is one JSON object, whatever else is logged."""
    write_run(tmp_path, 2, STEPS, NAN)
    done = run(tmp_path, "--json")
    told = json.loads(done.stdout)
    assert done.exit_code == 1
    first = told["diagnosis"]["first"]
    assert (first["rank"], first["step"], first["name"], first["cause"]) == (1, AT, "b.output", "initiating")
    assert told["diagnosis"]["kind"] == "NaN"


def test_output_file(tmp_path: Path) -> None:
    """The documented objects, each with more fields behind the documented ones; the first k."""
    write_run(tmp_path / "in", 2, STEPS, NAN)
    done = run(tmp_path / "in", "-o", tmp_path / "out", "-k", 2)
    assert done.exit_code == 1
    entries = json.loads((tmp_path / "out" / "anomaly_analyse.json").read_text())
    assert next(iter(entries)) == "0:b.output:0/rank1/actv_step_20_call_3_norm"
    assert [entry["cause"] for entry in entries.values()] == ["initiating", "cascade"]
    documented = [
        "rank", "step", "micro_step", "pp_stage", "vpp_stage", "call_id", "tag_name", "message", "group_mates",
    ]  # fmt: skip
    assert list(next(iter(entries.values())))[:9] == documented


def test_steps(tmp_path: Path) -> None:
    """Only findings at these steps count."""
    write_run(tmp_path, 2, STEPS, NAN)
    assert run(tmp_path, "--steps", "0-19").exit_code == 0
    assert json.loads(run(tmp_path, "--steps", "22,23", "--json").stdout)["diagnosis"]["first"]["step"] == 22
    assert chosen("3,5-7") == [3, 5, 6, 7]


@pytest.mark.parametrize("steps", ["x", "3-", "-3", "7-3", "1.5"])
def test_wrong_steps(tmp_path: Path, steps: str) -> None:
    """Exit code 2, with what was expected."""
    write_run(tmp_path, 1, 2)
    done = run(tmp_path, f"--steps={steps}")
    assert done.exit_code == 2
    assert "expected steps such as 10-20,25" in done.stderr


@pytest.mark.parametrize("steps", ["1", "100-200"])
def test_steps_that_the_run_has_not(tmp_path: Path, steps: str) -> None:
    """Nothing found would be no news; a run that is sampled every second step has nothing at others either."""
    write_run(tmp_path, 2, STEPS, NAN)
    for path in tmp_path.glob("*/*.csv"):
        lines = path.read_text(encoding="utf-8").splitlines(keepends=True)
        at = lines[0].split(",").index("step")
        path.write_text(
            "".join([lines[0], *(x for x in lines[1:] if int(x.split(",")[at]) % 2 == 0)]), encoding="utf-8"
        )
    done = run(tmp_path, "--steps", steps)
    assert done.exit_code == 2
    assert "expected steps of this run, 0 to 22; it has none of those asked for" in done.stderr


def test_too_many_steps(tmp_path: Path) -> None:
    """A span is not made into a list of any size, nor are many spans."""
    write_run(tmp_path, 1, 2)
    for steps in ("0-99999999999", "0-60000,0-60000"):
        done = run(tmp_path, f"--steps={steps}")
        assert done.exit_code == 2
        assert "expected 100000 steps or fewer" in done.stderr


def test_nothing_to_read(tmp_path: Path) -> None:
    """A directory that is missing, empty or of another program: exit code 2, the expected content, nothing written."""
    (tmp_path / "empty").mkdir()
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "table.csv").write_text("a,b\n1,2\n")
    for name in ("missing", "empty", "other"):
        done = run(tmp_path / name)
        assert done.exit_code == 2
        assert str(tmp_path / name) in flat(done.stderr).replace(" ", "") or name in done.stderr
        assert "expected" in done.stderr
    assert sorted(path.name for path in tmp_path.rglob("*")) == ["empty", "other", "table.csv"]


def test_without_duckdb(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Exit code 2, and what to install."""
    write_run(tmp_path, 1, 2)
    monkeypatch.setitem(sys.modules, "duckdb", None)
    done = run(tmp_path)
    assert done.exit_code == 2
    assert 'pip install -e ".[analysis]"' in done.stderr


def test_nowhere_to_write(tmp_path: Path) -> None:
    """Exit code 2, naming the file."""
    write_run(tmp_path / "in", 1, STEPS)
    (tmp_path / "file").touch()
    done = run(tmp_path / "in", "-o", tmp_path / "file" / "x.json")
    assert done.exit_code == 2
    assert "x.json: cannot be written" in flat(done.stderr)


def half_written(root: Path) -> None:
    path = next(root.glob("*-rank0-*")) / "actv_15-19.csv"
    path.write_bytes(path.read_bytes()[:-9])


def wrong_cell(root: Path) -> None:
    path = next(root.glob("*-rank0-*")) / "actv_5-9.csv"
    path.write_text(path.read_text().replace("0,a.output,7,", "0,a.output,seven,", 1))


def foreign(root: Path) -> None:
    (next(root.glob("*-rank0-*")) / "actv_100-104.csv").write_text("who,what\n1,2\n")


def empty(root: Path) -> None:
    (next(root.glob("*-rank0-*")) / "grad_reduced_100-104.csv").touch()


def missing_rank(root: Path) -> None:
    for path in next(root.glob("*-rank0-*")).iterdir():
        path.unlink()
    next(root.glob("*-rank0-*")).rmdir()


def newer(root: Path) -> None:
    path = next(root.glob("*-rank0-*")) / "manifest.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"schema": 99}))


def torn_dump(root: Path) -> None:
    path = root / "anomaly_detected" / "rank0" / "anomaly.json"
    path.parent.mkdir(parents=True)
    path.write_text('{"a": {"rank": 0')


SKIPPED = {
    half_written: "actv_15-19.csv:21: the last line is not finished",
    wrong_cell: "actv_5-9.csv",
    foreign: "actv_100-104.csv:1: expected a header",
    empty: "grad_reduced_100-104.csv: expected a table; the file is empty",
    missing_rank: "expected ranks 0 too",
    newer: "schema 99 is of a newer version",
    torn_dump: "rank0/anomaly.json:1: expected a JSON object",
}


@pytest.mark.parametrize("spoil", list(SKIPPED), ids=lambda spoil: spoil.__name__)
def test_what_cannot_be_read_is_told(tmp_path: Path, spoil: Callable[[Path], None]) -> None:
    """File and line are named; the rest of a healthy run is judged, and the exit code is 1."""
    write_run(tmp_path, 2, STEPS)
    spoil(tmp_path)
    done = run(tmp_path)
    assert done.exit_code == 1, done.output
    assert SKIPPED[spoil] in done.stderr
    assert "Nothing was found" in done.stdout


@pytest.mark.parametrize("spoil", list(SKIPPED), ids=lambda spoil: spoil.__name__)
def test_the_rest_is_judged(tmp_path: Path, spoil: Callable[[Path], None]) -> None:
    """Problems with files of rank 0 do not hide the findings in those of rank 1."""
    write_run(tmp_path, 2, STEPS, NAN)
    spoil(tmp_path)
    first = json.loads(run(tmp_path, "--json").stdout)["diagnosis"]["first"]
    assert (first["rank"], first["step"], first["name"]) == (1, AT, "b.output")


def test_steps_that_come_twice(tmp_path: Path) -> None:
    """A resumed run in two directories: what was done again counts once, as it was the second time."""
    write_rank(tmp_path, 0, range(AT + 1), bad(("actv", 0, AT, "b.output")), time="Dec03_10-00-00")
    later = write_rank(tmp_path, 0, range(15, STEPS), time="Dec03_11-00-00", first_step=15)
    path = later / "manifest.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"start_time": "2026-12-03T23:00:00+0800"}))
    done = run(tmp_path)
    assert done.exit_code == 0, done.output


def test_without_manifests(tmp_path: Path) -> None:
    """The directories of a tool that writes none: ranks are known by their names, the default rules judge."""
    write_run(tmp_path, 2, STEPS, NAN)
    for path in tmp_path.glob("*/manifest.json"):
        path.unlink()
    first = json.loads(run(tmp_path, "--json").stdout)["diagnosis"]["first"]
    assert (first["rank"], first["step"], first["name"]) == (1, AT, "b.output")


def test_one_rank_alone(tmp_path: Path) -> None:
    """The directory of one rank may be given: it is judged alone."""
    write_run(tmp_path, 2, STEPS, NAN)
    told = json.loads(run(next(tmp_path.glob("*rank1*")), "--json").stdout)
    assert told["ranks"] == [1]
    assert told["diagnosis"]["first"]["name"] == "b.output"


def test_a_step_that_was_not_sampled_lies_between(tmp_path: Path) -> None:
    """With an interval, the last clean sampled step is printed."""
    write_rank(tmp_path, 0, range(0, 60, 5), bad(("actv", 0, 55, "b.output")))
    assert run(tmp_path).stdout.splitlines()[0].endswith(", between steps 50 and 55")
    assert "The sampled step before, 50, was clean" in flat(run(tmp_path, "--why").stdout)


def test_the_verdict_is_the_same_in_every_form(tmp_path: Path) -> None:
    """Kind, place, step and rank of the first line are those of the JSON."""
    write_run(tmp_path, 2, STEPS, NAN)
    verdict = json.loads(run(tmp_path, "--json").stdout)["verdict"]
    assert (verdict["kind"], verdict["where"], verdict["since"], verdict["ranks"]) == ("NaN", ["b.output"], AT, [1])
    shown = run(tmp_path).stdout.splitlines()
    assert shown[: len(verdict["lines"][:2])] == verdict["lines"][:2]
    assert "norm of b.output (actv): " in shown[2]


def test_without_a_folder_the_usual_one_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """MONITOR_OUTPUT_DIR, else monitor_output in the current folder."""
    write_run(tmp_path / "monitor_output", 2, STEPS, NAN)
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("MONITOR_OUTPUT_DIR", raising=False)
    assert run().stdout.startswith("critical: NaN in b.output")
    monkeypatch.setenv("MONITOR_OUTPUT_DIR", "elsewhere")
    assert run().exit_code == 2


def test_rules_that_cannot_be_used(tmp_path: Path) -> None:
    """A manifest of another version names unknown rules: the default ones judge, with a warning."""
    config = {"alert": {"rules": [{"rule_name": "AnomalyOfTomorrow"}]}}
    write_run(tmp_path, 2, STEPS, NAN, config=config)
    done = run(tmp_path)
    assert done.exit_code == 1
    assert "alert rules that cannot be used" in done.stderr
    assert "critical: NaN in b.output, step 20, rank 1" in done.stdout


def test_names_are_no_markup_and_no_sql(tmp_path: Path) -> None:
    """Modules may be called anything."""
    name = "a['x']\"; DROP [red]"

    directory = write_rank(tmp_path, 0, range(STEPS), bad(("actv", 0, AT, "b.output")))
    for file in directory.glob("*.csv"):
        lines = file.read_text().splitlines()
        cells = [line.split(",", 2) for line in lines]
        quoted = name.replace('"', '""')
        texts = [
            f'{stage},"{row.replace("b.", quoted + ".", 1)}",{rest}'
            if row.startswith("b.")
            else f"{stage},{row},{rest}"
            for stage, row, rest in cells
        ]
        file.write_text("\n".join(texts) + "\n")
    done = run(tmp_path, "--json")
    told = json.loads(done.stdout)
    assert told["diagnosis"]["first"]["name"] == f"{name}.output"
    assert told["diagnosis"]["evidence"]["values"][-1] == [AT, "nan"]
    assert name in flat(run(tmp_path).stdout)
