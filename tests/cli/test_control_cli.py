"""``probe control``: a run in another process, switched and watched from outside."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from probe.cli import app
from probe.core.control.status import states
from tests.cli.json_schema import answer_of
from tests.quick_python import quick_python
from tests.user_scripts import COMMANDS

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[2]
PROGRAM = """
import sys
from pathlib import Path
from tests.matrix import numpy_harness as framework
from tests.matrix.harness import train_step
from tests.matrix.models import tiny_net
from tests.matrix.watching import inputs

model = tiny_net(framework)
optimizer = framework.optimizer("momentum", model, lr=0.001, momentum=0.5)
loop = framework.loop(model, optimizer)
with framework.TrainerMon(sys.argv[1]) as monitor:
    monitor.set_monitor(model, 1, optimizer)
    print("attached", flush=True)
    while not Path(sys.argv[2]).exists():
        train_step(loop, *inputs(framework, 1))
print(monitor.faults)
"""
CONFIG = '{\n    "param_distribution": true, // all\n    "dynamic_on": false,\n    "ops": ["norm"]\n}\n'


@contextmanager
def a_run(folder: Path, dynamic: bool = True) -> Iterator[Path]:
    """A training that goes on until this ends; the folder that it writes to."""
    config, done, output = folder / "monitor.json", folder / "done", folder / "output"
    config.write_text(CONFIG)
    environment = {
        **os.environ,
        "PYTHONPATH": str(ROOT),
        "MONITOR_OUTPUT_DIR": str(output),
        "DYNAMIC_MONITOR": str(dynamic),
    }
    command = [quick_python(*COMMANDS), "-c", PROGRAM, str(config), str(done)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, env=environment, text=True) as process:
        try:
            assert process.stdout is not None
            assert process.stdout.readline() == "attached\n"
            yield output
        finally:
            done.touch()
            ended = process.communicate(timeout=60)[0]
    assert (process.returncode, ended) == (0, "{}\n")


def control(*arguments: str) -> Any:
    return CliRunner().invoke(app, ["control", *arguments])


def test_a_run_is_switched_changed_and_watched(tmp_path: Path) -> None:
    """At rest, collecting, collecting something else, at rest, ended; the file keeps its comments."""
    with a_run(tmp_path) as output:
        assert "at rest" in control(str(output), "status").output
        started = control(str(output), "start")
        assert (started.exit_code, "collecting" in started.output) == (0, True)
        changed = control(str(output), "set", 'ops=["max"]', "step_count_per_record=1000000")
        assert changed.exit_code == 0, changed.output
        (state,) = states(output)
        assert (state.state, state.changes) == ("collecting", 2)
        sent = control(str(output), "command", "reduce_learning_rate", "factor=0.5", "--wait", "0", "--json")
        assert answer_of("control command", sent.stdout)["ranks"] == 1
        stopped = answer_of("control stop", control("stop", str(output), "--json").stdout)
        assert (stopped["applied"], stopped["ranks"][0]["state"]) == (True, "at rest")
        (state,) = states(output)
        assert (state.state, state.changes) == ("at rest", 3)
        manifest = json.loads((state.directory / "manifest.json").read_text())
        assert [change.get("changed", {}).get("ops") for change in manifest["changes"]] == [None, ["max"], None]
        first, _, last = (change["step"] for change in manifest["changes"])
        assert first < last
    assert "ended" in control("status", str(output)).output
    assert (tmp_path / "monitor.json").read_text() == CONFIG.replace('["norm"]', '["max"]').replace(
        "{\n", '{\n    "step_count_per_record": 1000000,\n', 1
    )


def test_what_is_so_already_is_not_waited_for(tmp_path: Path) -> None:
    with a_run(tmp_path) as output:
        told = [control(verb, str(output)) for verb in ("stop", "start", "start")]
        again = answer_of("control start", control("start", str(output), "--json").stdout)
        changed = answer_of("control set", control("set", str(output), 'ops=["max"]', "--json").stdout)
    assert [(answer["changed"], answer["applied"]) for answer in (again, changed)] == [(False, True), (True, True)]
    assert [each.exit_code for each in told] == [0, 0, 0]
    assert ["nothing to change" in each.output for each in told] == [True, False, True]


def test_a_key_that_is_there_twice_is_told(tmp_path: Path) -> None:
    """The run could not use the file: nothing is written, and the command does not wait."""
    with a_run(tmp_path) as output:
        text = CONFIG.replace('"dynamic_on": false', '"dynamic_on": false, "dynamic_on": false')
        (tmp_path / "monitor.json").write_text(text)
        refused = control("start", str(output))
        assert refused.exit_code == 2
        assert "dynamic_on: given more than once" in refused.output
        assert (tmp_path / "monitor.json").read_text() == text


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["set", "collect_times=many"], "collect_times"),
        (["set", "collect_times"], "KEY=VALUE"),
        (["set", "opps=[]"], "ops"),
    ],
)
def test_what_is_wrong_is_told_and_not_written(tmp_path: Path, arguments: list[str], told: str) -> None:
    """Exit code 2."""
    with a_run(tmp_path) as output:
        verb, *rest = arguments
        refused = control(verb, str(output), *rest)
        assert refused.exit_code == 2
        assert told in refused.output
    assert (tmp_path / "monitor.json").read_text() == CONFIG


def test_a_verb_that_is_none_is_named(tmp_path: Path) -> None:
    """The verb, and not the directory before it, is what is wrong."""
    refused = control(str(tmp_path), "stat")
    assert refused.exit_code == 2
    assert "'stat'" in refused.stderr


def test_a_run_that_follows_no_file_is_told_of(tmp_path: Path) -> None:
    with a_run(tmp_path, dynamic=False) as output:
        refused = control("start", str(output))
        assert refused.exit_code == 2
        assert "DYNAMIC_MONITOR" in refused.output
        assert "not followed" in control("status", str(output)).output


def test_a_run_that_was_killed_is_gone(tmp_path: Path) -> None:
    """A process that has ended does not collect, whatever its manifest has."""
    with a_run(tmp_path) as output:
        (state,) = states(output)
    manifest = json.loads((state.directory / "manifest.json").read_text())
    del manifest["end_time"]
    (state.directory / "manifest.json").write_text(json.dumps(manifest))
    assert [state.state for state in states(output)] == ["gone"]
    refused = control("start", str(output), "--wait", "0.1")
    assert refused.exit_code == 1


def test_a_folder_without_a_run_is_wrong_use(tmp_path: Path) -> None:
    for verb in ("status", "start", "stop"):
        assert control(verb, str(tmp_path)).exit_code == 2
