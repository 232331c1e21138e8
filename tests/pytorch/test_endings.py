"""Ends of a run, in real processes, which are waited for by their output."""

from __future__ import annotations

import json
import signal
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from tests.required import require

require("torch")

from tests import user_scripts  # noqa: E402
from tests.forks import WHOLE_END  # noqa: E402
from tests.pytorch.watching import Row, read  # noqa: E402
from tests.user_scripts import TORCH, Running  # noqa: E402

BEGIN = """
import os, resource, signal, sys
from tests.pytorch.toys import TinyNet, X
from tests.pytorch.watching import EVERYTHING
import torch
from probe.pytorch import TrainerMon

model = TinyNet()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
monitor = TrainerMon({**EVERYTHING, "mv_distribution": False, "step_count_per_record": 100000, "alert": {"rules": []}})

def attach():
    monitor.set_monitor(model, 1, optimizer)

def step():
    model(X).sum().backward()
    optimizer.step()
    optimizer.zero_grad()

def say(what):
    print(what, flush=True)
"""


def running(script: str, output: Path) -> AbstractContextManager[Running]:
    """A training script in a process of its own."""
    own = {"MONITOR_OUTPUT_DIR": str(output), WHOLE_END: "1"}
    return user_scripts.running(BEGIN + script, output.parent, modules=TORCH, **own)


class Ended(NamedTuple):
    """What a script has left."""

    returncode: int | None
    stdout: str
    stderr: str


def run(script: str, output: Path) -> Ended:
    """A training script until it ends by itself."""
    with running(script, output) as process:
        printed = process.end()
        return Ended(process.returncode, printed, others(process.errors))


def others(errors: str) -> str:
    """Lines on standard error but that by which each run ends, once."""
    lines = errors.splitlines(keepends=True)
    closing = [
        line for line in lines if line.startswith("probe: info: ") and " watched, all of them recorded; " in line
    ]
    assert len(closing) <= 1, errors
    return "".join(line for line in lines if line not in closing)


def directory_of(output: Path) -> Path:
    (directory,) = (path for path in output.iterdir() if "-rank0-" in path.name)
    return directory


def steps_of(rows: Any, signal_name: str) -> set[int]:
    return {row.step for row in rows if row.signal == signal_name}


def manifest_of(output: Path) -> dict[str, Any]:
    manifest: dict[str, Any] = json.loads((directory_of(output) / "manifest.json").read_text())
    return manifest


def test_exit_without_stop(output_dir: Path) -> None:
    """A script that just ends leaves every step and a finished manifest."""
    ended = run("attach()\nfor _ in range(5): step()\n", output_dir)
    assert (ended.returncode, ended.stderr) == (0, "")
    assert steps_of(read(directory_of(output_dir)), "param_updated") == {0, 1, 2, 3, 4}
    assert manifest_of(output_dir)["faults"] == {}
    assert "end_time" in manifest_of(output_dir)


def test_an_unhandled_exception(output_dir: Path) -> None:
    """A script that dies of an exception shows it, and leaves what was seen of the step in which it happened."""
    ended = run("attach()\nstep()\nmodel(X).sum().backward()\nraise FloatingPointError('mine')\n", output_dir)
    assert ended.returncode == 1
    assert ended.stderr.rstrip().endswith("FloatingPointError: mine")
    rows = read(directory_of(output_dir))
    assert Row("grad_unreduced", 1, "fc.weight") in rows
    assert steps_of(rows, "param_updated") == {0}


ENDLESS = """
attach()
for number in range(100000000):
    step()
    if number == 20:
        say("under way")
"""


def test_sigterm_flushes_and_kills(output_dir: Path) -> None:
    """SIGTERM ends the process as it would without us, after everything was written."""
    with running(ENDLESS, output_dir) as process:
        process.wait_for("under way")
        process.send_signal(signal.SIGTERM)
        assert process.wait() == -signal.SIGTERM
    rows = read(directory_of(output_dir))
    steps = steps_of(rows, "param_updated")
    assert steps == set(range(len(steps))) >= set(range(20))
    assert len([row for row in rows if row.signal == "param_updated"]) == 3 * len(steps)
    assert manifest_of(output_dir)["cost_seconds"]["steps"] == len(steps)


@pytest.mark.parametrize("when", ["before", "after"])
def test_a_user_handler_of_sigterm_still_runs(when: str, output_dir: Path) -> None:
    """A handler of the user's, set before or after attaching, runs; training it lets go on is monitored on."""
    script = """
asked = []
def handler(*_):
    asked.append(1)
if BEFORE: signal.signal(signal.SIGTERM, handler)
attach()
if not BEFORE: signal.signal(signal.SIGTERM, handler)
for number in range(100000000):
    step()
    if number == 20:
        say("under way")
    if asked:
        break
for _ in range(3): step()
monitor.stop()
assert signal.getsignal(signal.SIGTERM) is handler
say(f"ended at {monitor.step}")
"""
    with running(script.replace("BEFORE", str(when == "before")), output_dir) as process:
        process.wait_for("under way")
        process.send_signal(signal.SIGTERM)
        out = process.end()
        assert (process.returncode, others(process.errors)) == (0, "")
    steps = steps_of(read(directory_of(output_dir)), "param_updated")
    assert out.strip() == f"ended at {len(steps)}"
    assert steps == set(range(len(steps)))


def test_sigkill_leaves_readable_files(output_dir: Path) -> None:
    """After SIGKILL every file is whole up to its last write, and what was flushed is there."""
    script = ENDLESS.replace('say("under way")', 'assert monitor.flush(); say("under way")')
    with running(script, output_dir) as process:
        process.wait_for("under way")
        process.send_signal(signal.SIGKILL)
        process.wait()
    rows = read(directory_of(output_dir))
    assert steps_of(rows, "param_updated") >= set(range(21))
    assert manifest_of(output_dir)["model"] == ["TinyNet"]


def test_a_forked_child_leaves_the_files_alone(output_dir: Path) -> None:
    """A child that trains on, stops the monitor and exits neither hangs nor writes nor disturbs its parent."""
    script = """
import warnings
warnings.filterwarnings("ignore", "This process .* is multi-threaded", DeprecationWarning)  # Python 3.12's, of any fork
attach()
for _ in range(3): step()
assert monitor.flush()
for how in ("stop", "exit", "terminate"):
    child = os.fork()
    if not child:
        for _ in range(3): step()
        assert monitor.flush()
        if how == "stop": monitor.stop()
        if how == "terminate": os.kill(os.getpid(), signal.SIGTERM)
        sys.exit(7)
    _, status = os.waitpid(child, 0)
    say(os.WTERMSIG(status) if os.WIFSIGNALED(status) else os.WEXITSTATUS(status))
assert "end_time" not in open(f"{monitor.output_directory}/manifest.json").read()
for _ in range(3): step()
monitor.stop()
assert monitor.faults == {}, monitor.faults
"""
    ended = run(script, output_dir)
    assert (ended.returncode, ended.stderr) == (0, "")
    assert ended.stdout.split() == ["7", "7", str(int(signal.SIGTERM))]
    assert steps_of(read(directory_of(output_dir)), "param_updated") == set(range(6))


def test_a_full_disk_is_survived(output_dir: Path) -> None:
    """While nothing can be written, training goes on, each lost write is counted, and later steps are written again."""
    script = """
attach()
step()
assert monitor.flush()
_, most = resource.getrlimit(resource.RLIMIT_FSIZE)
resource.setrlimit(resource.RLIMIT_FSIZE, (600, most))
for _ in range(4): step()
assert monitor.flush()
say(monitor.faults)
resource.setrlimit(resource.RLIMIT_FSIZE, (most, most))
step()
monitor.stop()
"""
    ended = run(script, output_dir)
    assert ended.returncode == 0, ended.stderr
    faults = manifest_of(output_dir)["faults"]
    assert faults["sink CsvSink: OSError"] == 4
    assert set(faults) <= {"sink CsvSink: OSError", "sink CostSink: OSError"}
    assert ended.stdout.strip() == str(faults)
    assert "Traceback" not in ended.stderr
    assert "CsvSink: OSError: " in ended.stderr
    assert "6 steps watched, not all of them written: warnings above name what failed" in ended.stderr
    assert {0, 5} <= steps_of(read(directory_of(output_dir)), "actv") < {0, 1, 2, 3, 4, 5}
