"""Names with control characters on a terminal and in a pipe: escaped by every command that prints names from files."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml
from typer.testing import CliRunner

from probe.cli import app
from probe.core.analysis.anomaly_processor import main
from probe.core.messages import printable, printable_json, printable_lines
from probe.core.output.sinks import SINKS
from probe.core.output.sinks.anomaly import AnomalyFile
from probe.core.records import Key
from probe.core.storage.run_directory import write_manifest
from tests.core.output.sink_data import batch, context, finding, snapshot
from tests.quick_python import probe_command
from tests.required import require

pytestmark = pytest.mark.slow

require("duckdb")

HOSTILE = "\x1b[31mred\x07\x9b2J\x7f\u202e\u2066\nFORGED"
"""Colours, a bell, an erased screen, text turned round, and a line of its own."""
SHOWN = "\\x1b[31mred\\x07\\x9b2J\\x7f\\u202e\\u2066\\nFORGED"
NAME = "Dec03_21-34-40-rank0-00000000"


def write(root: Path, value: float = 1.0, sink: str = "csv") -> None:
    """A run of a module with that name, bad in its last step unless ``value`` is finite."""
    directory = root / NAME
    writer = SINKS[sink](context(root, directory=directory, steps_per_file=5))
    writer.open()
    for step in range(3):
        bad = {"min": [value if step == 2 else 0.5], "max": [1.0]}
        writer.write(snapshot(step, batch("actv", step, bad, keys=(Key(HOSTILE, "output"),), micro_stepped=True)))
    writer.close()
    write_manifest(directory, {"rank": 0, "start_time": "2026-12-03T21:34:40+0800"})


def is_plain(text: str) -> bool:
    """Nothing but printable characters and our own line feeds; no line that a name has made."""
    return all(c.isprintable() or c == "\n" for c in text) and "\nFORGED" not in text


def run(*words: object) -> str:
    """Output of a command on both streams."""
    return CliRunner().invoke(app, list(map(str, words))).output


def test_what_is_escaped() -> None:
    """Control characters, marks of direction, separators of lines and surrogates; letters of any script stay."""
    assert printable(HOSTILE) == SHOWN
    assert printable("層.权重 émoji 🙂 [red] \\n") == "層.权重 émoji 🙂 [red] \\n"
    assert printable("a\tb\u2028c\ud800") == "a\\tb\\u2028c\\ud800"
    assert printable_lines("a\nb\x1b") == "a\nb\\x1b"
    assert json.loads(printable_json('"a\x9bb\x7f"')) == "a\x9bb\x7f"


@pytest.mark.parametrize("sink", ["csv", "sqlite"])
def test_anomalies(tmp_path: Path, sink: str) -> None:
    """The paragraph, the table and the JSON."""
    write(tmp_path, float("nan"), sink)
    said = run("anomalies", tmp_path)
    assert is_plain(said)
    assert "\\x1b[31mred" in said
    done = CliRunner().invoke(app, ["anomalies", str(tmp_path), "--json"])
    assert json.loads(done.stdout)["diagnosis"]["first"]["name"] == f"{HOSTILE}.output"
    assert is_plain(done.output)


def test_compare(tmp_path: Path) -> None:
    """The rows that differ, the names of one run alone, and what cannot be found."""
    for side, value in (("a", 0.5), ("b", 0.75)):
        write(tmp_path / side, value)
    said = run("compare", tmp_path / "a", tmp_path / "b")
    assert "The runs differ" in said
    assert is_plain(said)
    assert is_plain(run("compare", tmp_path / "a", tmp_path / "b", "--signals", HOSTILE))


def test_report(tmp_path: Path) -> None:
    """The paragraph that is printed beside the page."""
    write(tmp_path, float("nan"))
    for words in ([], ["--no-judge"]):
        said = run("report", tmp_path, "-o", tmp_path / "page.html", *words)
        assert "\\x1b[31mred" in said
        assert is_plain(said)


@pytest.mark.parametrize("form", ["json", "yaml"])
def test_targets(tmp_path: Path, form: str) -> None:
    """The configuration that is printed is read back with the names as they were."""
    tensor = {"config": "tensor", "tensor": "size=(2, 2), dtype=torch.float32"}
    (tmp_path / "s.json").write_text(json.dumps({HOSTILE: {"output": tensor}, f"{HOSTILE}2": 3, "idle": {}}))
    said = CliRunner().invoke(app, ["targets", str(tmp_path / "s.json"), *(["--yaml"] if form == "yaml" else [])])
    assert is_plain(said.output)
    read: dict[str, Any] = yaml.safe_load(said.stdout) if form == "yaml" else json.loads(said.stdout)
    assert list(read["targets"]) == [HOSTILE]


def test_findings_in_order(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Messages have names in them; the run that they are of may be called anything."""
    found = [finding(1, message=f"Rule X reports {HOSTILE}")]
    AnomalyFile(context(tmp_path, run=f"Dec03{HOSTILE}")).write(found)
    assert main(["-d", str(tmp_path)]) == 0
    told = capsys.readouterr()
    assert is_plain(told.out + told.err)
    assert SHOWN in told.out
    assert main(["-d", str(tmp_path), "--run", f"no{HOSTILE}"]) == 2
    assert is_plain(capsys.readouterr().err)


def test_files_that_cannot_be_read(tmp_path: Path) -> None:
    """Paths and cells in problems are escaped once, wherever they are printed."""
    write(tmp_path)
    (tmp_path / NAME / "x\x1b[2J_0-0.csv").write_text("who\x1b,what\n")
    for words in (("anomalies",), ("csv2db",), ("csv2tb",), ("report", "-o", tmp_path / "page.html")):
        verb, *more = words
        said = run(verb, tmp_path, *more)
        assert "x\\x1b[2J_0-0.csv" in said, words
        assert is_plain(said)


def test_into_a_pipe(tmp_path: Path) -> None:
    """Escapes are removed without a terminal too, since the output may be paged."""
    write(tmp_path, float("nan"))
    command = probe_command("anomalies", tmp_path)
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert is_plain(done.stdout + done.stderr)
