"""One verdict about a run, wherever it is read: kind, place, step and rank."""

from __future__ import annotations

import json
import os
import re
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from tests.agents.agent_client import asking
from tests.core.alerting.receivers import Receiver, serving, text_of
from tests.core.trackers.wandb_file import WandbRun, read_run
from tests.journeys.commands import ROOT, card, probe, run
from tests.journeys.test_student import TRAIN
from tests.quick_python import quick_python
from tests.required import require_installed, require_version
from tests.user_scripts import COMMANDS

require_installed("torch", "httpx", "duckdb", "mcp")

BAD = 16
RANKS = """
import os, subprocess, sys
names = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "29544", "WORLD_SIZE": "2"}
ranks = [subprocess.Popen([sys.executable, "rank.py", *sys.argv[1:]],
                          env={**os.environ, **names, "RANK": str(rank), "LOCAL_RANK": str(rank)}) for rank in range(2)]
raise SystemExit(max(rank.wait() for rank in ranks))
"""


class Seen(NamedTuple):
    """Verdict as somebody reads it."""

    kind: str
    where: tuple[str, ...]
    step: int
    ranks: tuple[int, ...]


class Planted(NamedTuple):
    """Run with a planted fault on the second of two ranks, and what was received meanwhile."""

    folder: Path
    lines: list[str]
    messages: list[str]
    tracked: WandbRun


@pytest.fixture(scope="module")
def planted(tmp_path_factory: pytest.TempPathFactory) -> Planted:
    """Two ranks that train by themselves; in one of them a row of padding makes a norm NaN."""
    folder = tmp_path_factory.mktemp("planted")
    (folder / "rank.py").write_text(TRAIN.replace("if step == bad:", "if step == bad and os.environ['RANK'] == '1':")
                                    .replace("import random", "import os, random"))  # fmt: skip
    (folder / "train.py").write_text(RANKS)
    package = require_version("wandb-0.31.0")
    with serving(Receiver()) as receiver:
        channel = {"channel": "feishu", "args": {"url": receiver.url()}}
        config = {
            "xy_distribution": True, "all_xy": True, "sentinel": {"enable": False}, "format": ["csv", "wandb"],
            "trackers": {"rank": 1, "seconds": 0.05}, "alert": {"channels": [channel], "group_seconds": 0},
        }  # fmt: skip
        (folder / "monitor.json").write_text(json.dumps(config))
        own = {"PYTHONPATH": f"{package}{os.pathsep}{ROOT}", "WANDB_MODE": "offline"}
        done = run(folder, 0, BAD, options=["-c", "monitor.json"], **own)
    assert done.returncode == 0, done.stderr
    return Planted(folder, card(done), [text_of(request) for request in receiver.requests], read_run(folder / "wandb"))


def of_head(head: str) -> Seen:
    """Parse a head such as ``NaN in blocks.0.n1.output, step 16, rank 1``."""
    found = re.search(r"(\w+) in (\S+), step (\d+), ranks? ([\d,]+)$", head)
    assert found, head
    return Seen(found[1], (found[2],), int(found[3]), tuple(map(int, found[4].split(","))))


def of_json(verdict: dict[str, Any]) -> Seen:
    """Take the fields of a verdict in JSON."""
    return Seen(verdict["kind"], tuple(verdict["where"]), verdict["since"], tuple(verdict["ranks"]))


def of_card(run: Planted) -> Seen:
    """Read the card of `probe run`."""
    return of_head(run.lines[0])


def of_command(run: Planted) -> Seen:
    """Read the first line of `probe anomalies`."""
    return of_head(probe(run.folder, "anomalies").stdout.splitlines()[0])


def of_command_as_json(run: Planted) -> Seen:
    """Read the verdict of `probe anomalies --json`."""
    return of_json(json.loads(probe(run.folder, "anomalies", "--json").stdout)["verdict"])


def of_alert(run: Planted) -> Seen:
    """Read the title of the only message."""
    (message,) = run.messages
    return of_head(message.splitlines()[0])


def of_tracker(run: Planted) -> Seen:
    """Read the summary of the run in W&B, and its only alert."""
    names = ("kind", "where", "step", "ranks")
    kind, where, step, ranks = (run.tracked.summary[f"probe/verdict/{name}"] for name in names)
    seen = Seen(kind, (where,), step, tuple(map(int, ranks.split(","))))
    assert [of_head(title) for title, _, _ in run.tracked.alerts] == [seen]
    return seen


def of_page(run: Planted) -> Seen:
    """Read the answer that the page gets from the analysis."""
    directory = next(run.folder.glob("monitor_output/*rank1*")).name
    place = str(run.folder / "monitor_output")
    command = [quick_python(*COMMANDS), "-m", "probe.view.background", "0", "[]", "analyse", place, directory]
    own = {**os.environ, "PYTHONPATH": str(ROOT)}
    return of_json(json.loads(subprocess.run(command, capture_output=True, check=True, env=own).stdout)["verdict"])


def of_agent(run: Planted) -> Seen:
    """Read the answer that an agent gets."""
    with asking(run.folder / "monitor_output", run.folder) as agent:
        return of_json(agent.ask("verdict")["verdict"])


READERS = [of_card, of_command, of_command_as_json, of_alert, of_tracker, of_page, of_agent]
"""Everybody who reads a verdict. To add one, write a function that returns what it has read."""


@pytest.mark.parametrize("read", READERS)
def test_everybody_reads_the_same(planted: Planted, read: Callable[[Planted], Seen]) -> None:
    """Kind, place, step and rank are those that were planted."""
    assert read(planted) == Seen("NaN", ("blocks.0.n1.output",), BAD, (1,))
