"""``--json`` of every command that answers: one object on standard output, in the schema of the package."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from jsonschema import Draft202012Validator
from typer.testing import CliRunner

from probe.agents.schema import ANSWERS, json_schema
from probe.cli import VERBS, _load, app
from tests.cli.json_schema import answer_of
from tests.cli.test_performance import write as write_performance
from tests.cli.test_targets_cli import EXISTING
from tests.core.analysis.causes_data import bad, everything_after, write_run
from tests.required import require

require("duckdb")

CASES: dict[str, tuple[list[str], int]] = {
    "anomalies": (["anomalies", "{broken}"], 1),
    "anomalies --explain": (["anomalies", "{broken}", "--explain"], 0),
    "compare": (["compare", "{broken}", "{healthy}"], 1),
    "compare --explain": (["compare", "{broken}", "{healthy}", "--explain"], 0),
    "performance": (["performance", "{timed}"], 1),
    "report": (["report", "{broken}", "-o", "{out}/report.html"], 0),
    "report --explain": (["report", "{broken}", "--explain"], 0),
    "csv2db": (["csv2db", "{broken}", "-o", "{out}"], 0),
    "csv2tb": (["csv2tb", "{broken}", "-o", "{out}"], 0),
    "merge": (["merge", "{broken}", "-o", "{out}/merged"], 1),
    "pack": (["pack", "{broken}", "-o", "{out}/packed", "--check"], 0),
    "sql": (["sql", "{broken}", "SELECT * FROM actv LIMIT 3"], 0),
    "sql --explain": (["sql", "{broken}", "SELECT * FROM actv", "--explain"], 0),
    "config check": (["config", "check", "{files}/config.json"], 0),
    "config explain": (["config", "explain", "alert"], 0),
    "targets": (["targets", "{files}/module_struct.json"], 0),
    "logs parse": (["logs", "parse", "{files}/train.log"], 1),
    "remediate": (["remediate", "--config", "{files}/actions.json", "--check"], 0),
    "control status": (["control", "status", "{broken}"], 0),
    "alert test": (["alert", "test", "{files}/channels.json"], 0),
    "alert flush": (["alert", "flush", "{broken}"], 0),
}
"""Words and exit code of each command that needs neither a framework nor a process of its own."""
ELSEWHERE = {
    "attach": "tests/pytorch/test_attach.py",
    "check": "tests/pytorch/test_check.py",
    "control start": "tests/cli/test_control_cli.py",
    "control stop": "tests/cli/test_control_cli.py",
    "control set": "tests/cli/test_control_cli.py",
    "control command": "tests/cli/test_control_cli.py",
    "demo": "tests/pytorch/test_demo.py",
    "track": "tests/cli/test_track_cli.py",
}
"""Commands whose answers are checked where their other tests are."""
SERVERS = ("exporter", "mcp", "run", "serve", "view")
"""Verbs without an answer: they serve, or run a program whose output is its own."""


@pytest.fixture(scope="module")
def places(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Folders of runs and of files, by the names that the words have."""
    root = tmp_path_factory.mktemp("answers")
    first = bad(("actv", 1, 6, "b.output"))
    write_run(root / "broken", 2, 10, everything_after(6, [1], first))
    write_run(root / "healthy", 2, 10)
    write_performance(root / "timed", slow=2.0)
    files = root / "files"
    files.mkdir()
    (files / "config.json").write_text('{"wg_distribution": true, "ops": ["norm"]}')
    (files / "module_struct.json").write_text(json.dumps(EXISTING))
    (files / "train.log").write_text("2024-01-15 10:30:20 ERROR CUDA out of memory. Tried to allocate 2.00 GiB\n")
    action = {"alerts": ["A"], "do": "run_program", "args": {"argv": ["/bin/true"]}}
    (files / "actions.json").write_text(json.dumps({"programs": ["/bin/true"], "actions": {"one": action}}))
    channel = {"channel": "file", "args": {"path": str(files / "alerts")}}
    (files / "channels.json").write_text(json.dumps({"alert": {"channels": [channel]}}))
    return {name: root / name for name in ("broken", "healthy", "timed", "files")}


@pytest.mark.parametrize("command", CASES)
def test_an_answer_is_one_object_of_the_schema(command: str, places: dict[str, Path], tmp_path: Path) -> None:
    """Standard output has nothing else, and the exit code is that of the command without it."""
    words, code = CASES[command]
    named = {name: str(place) for name, place in places.items()} | {"out": str(tmp_path)}
    done = CliRunner().invoke(app, [*(word.format(**named) for word in words), "--json"])
    assert done.exit_code == code, done.output
    answer = answer_of(command, done.stdout)
    Draft202012Validator(json_schema()).validate(answer)


def test_the_numbers_are_those_of_the_run(places: dict[str, Path]) -> None:
    """The verdict, the first difference, and the rows of a query name the planted place."""

    def answer(command: str, *words: str) -> Any:
        return answer_of(command, CliRunner().invoke(app, [*command.split(), *words, "--json"]).stdout)

    broken, healthy = str(places["broken"]), str(places["healthy"])
    verdict = answer("anomalies", broken)["verdict"]
    assert (verdict["where"], verdict["since"], verdict["ranks"]) == (["b.output"], 6, [1])
    first = answer("compare", broken, healthy)["first"][0]
    assert (first["name"], first["step"], first["rank"]) == ("b.output", 6, 1)
    rows = answer("sql", broken, "SELECT rank, name, norm FROM actv WHERE isnan(norm) ORDER BY step, rank LIMIT 1")
    assert (rows["columns"], rows["rows"]) == (
        ["rank", "name", "norm"],
        [{"rank": 1, "name": "b.output", "norm": "nan"}],
    )
    assert {table["signal"] for table in answer("sql", broken)["tables"]} >= {"actv", "grad_reduced"}
    (judge,) = answer("config explain", "loss-not-finite")["judges"]
    assert judge["remedy"]


def test_a_wrong_configuration_has_its_mistakes(tmp_path: Path) -> None:
    """As a list, beside the lines on standard error."""
    path = tmp_path / "config.json"
    path.write_text('{"wg_distributio": true}')
    done = CliRunner().invoke(app, ["config", "check", str(path), "--json"])
    answer = answer_of("config check", done.stdout)
    assert (done.exit_code, answer["correct"]) == (1, False)
    assert "did you mean wg_distribution?" in answer["problems"][0]


def test_wrong_use_prints_no_answer(places: dict[str, Path]) -> None:
    """The problem is on standard error, so that nothing is taken for an answer."""
    for words in (["anomalies", "nowhere"], ["sql", str(places["broken"]), "SELEC"], ["remediate", "--config", "x"]):
        done = CliRunner().invoke(app, [*words, "--json"])
        assert (done.exit_code, done.stdout) == (2, "")
        assert done.stderr


def commands() -> Iterator[tuple[str, Any]]:
    """Every command with its parameters, by its words."""
    for verb in VERBS:
        command = _load(verb)
        inner = getattr(command, "commands", {"": command})
        yield from ((f"{verb} {name}".strip(), each) for name, each in inner.items())


def test_every_command_that_answers_has_a_schema_and_a_test() -> None:
    """A new verb has ``--json``, or is named as one that serves."""
    having = {name for name, each in commands() if "--json" in {flag for p in each.params for flag in p.opts}}
    every = {name for name, _ in commands()}
    assert every - having == {*SERVERS}
    assert having == {name for name in ANSWERS if "--" not in name}
    assert {*ANSWERS} == {*CASES, *ELSEWHERE}
    root = Path(__file__).parents[2]
    for command, file in ELSEWHERE.items():
        assert f'answer_of("{command}"' in (root / file).read_text(encoding="utf-8"), command
