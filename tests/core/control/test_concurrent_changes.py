"""Changes of a run's configuration by several people at once, or by one without permission."""

from __future__ import annotations

import json
import os
import traceback
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from probe.cli import app
from probe.core.control import status
from probe.core.storage.run_directory import write_manifest

KEYS = ("collect_times", "step_interval", "start_step", "ndigits", "step_count_per_record")
NOBODY = 65534


def a_run(root: Path) -> tuple[Path, Path]:
    """Output directory of a run, and the configuration that it follows."""
    config, output = root / "monitor.json", root / "output"
    config.write_text(json.dumps({"ops": ["norm"], **dict.fromkeys(KEYS, 1)}))
    rank = output / "Dec03_21-34-40-rank0-00000000"
    rank.mkdir(parents=True)
    write_manifest(rank, {"rank": 0, "run": 0, "control": status.followed(config, 0)})
    return output, config


def control(output: Path, *words: str) -> Any:
    return CliRunner().invoke(app, ["control", words[0], str(output), *words[1:]])


def forked(work: Callable[[], object]) -> Callable[[], Any]:
    """Start ``work`` in a child; return a function that waits for the child and returns the result."""
    read, write = os.pipe()
    child = os.fork()
    if not child:
        try:
            os.write(write, json.dumps(work()).encode())
        except BaseException:  # noqa: BLE001 - the child must not go on as a second pytest
            os.write(write, json.dumps(traceback.format_exc()).encode())
        finally:
            os._exit(0)
    os.close(write)

    def result() -> Any:
        with os.fdopen(read, encoding="utf-8") as pipe:
            found = json.load(pipe)
        os.waitpid(child, 0)
        return found

    return result


def test_no_change_is_written_over_another(tmp_path: Path) -> None:
    """Each key has the value that was set, although others were set at the same time."""
    output, config = a_run(tmp_path)
    assert control(output, "set", "start_step=1", "--wait", "0").exit_code == 0  # imports what the children need

    def set_often(key: str) -> list[int]:
        return [control(output, "set", f"{key}={number}", "--wait", "0").exit_code for number in range(2, 8)]

    children = [forked(partial(set_often, key)) for key in KEYS]
    assert [child() for child in children] == [[0] * 6] * len(KEYS)
    assert json.loads(config.read_text()) == {"ops": ["norm"], **dict.fromkeys(KEYS, 7)}


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become somebody else")
def test_who_may_not_write_changes_nothing(tmp_path: Path) -> None:
    """Another user gets one line that names the file, and exit code 2; the file stays as it was."""
    output, config = a_run(tmp_path)
    for folder in (tmp_path, *tmp_path.parents):
        if folder.owner() == "root" and folder != Path("/") and folder.name.startswith(("pytest", "test_")):
            folder.chmod(0o755)
    before = config.read_text()
    assert control(output, "status").exit_code == 0  # imports what the child needs

    def as_nobody() -> tuple[int, str]:
        os.setgid(NOBODY)
        os.setuid(NOBODY)
        result = control(output, "set", "collect_times=5", "--wait", "0")
        return result.exit_code, result.output

    code, text = forked(as_nobody)()
    assert (code, "permission is denied" in text, str(tmp_path) in text.replace("\n", "")) == (2, True, True), text
    assert config.read_text() == before
