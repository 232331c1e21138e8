"""Ctrl-C in the commands that read runs: exit code 130, one line, and nothing half done under its final name."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

import pytest

from tests.required import require

pytestmark = pytest.mark.slow

require("duckdb")

ROOT = Path(__file__).parents[2]
SIGINT_CODE = 130


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two ranks, whose files take seconds to read."""
    root = tmp_path_factory.mktemp("run")
    for rank in range(2):
        directory = root / f"Dec03_21-34-40-rank{rank}-0000000{rank}"
        directory.mkdir()
        with (directory / "actv_0-999.csv").open("w") as file:
            file.write("vpp_stage,name,step,min,max,shape,dtype\n")
            for step in range(1000):
                file.writelines(f'0,fc{n}.input,{step},{-n},{n},"[3, 2]",torch.float32\n' for n in range(100))
    return root


def opened(pid: int, folder: Path) -> list[str]:
    """Return the files of ``folder`` that a process has open now."""
    paths = []
    with suppress(FileNotFoundError):
        for link in Path(f"/proc/{pid}/fd").iterdir():
            with suppress(FileNotFoundError):
                paths.append(str(link.readlink()))
    return [path for path in paths if path.startswith(f"{folder}/")]


@pytest.mark.parametrize(
    ("verb", "options"),
    [
        ("anomalies", ["-o", "out/first.json"]),
        ("report", ["--no-judge", "-o", "out/report.html"]),
        ("merge", ["-o", "out/merged"]),
        ("csv2db", ["-j", "2", "-o", "out/db"]),
        ("csv2tb", ["-j", "1", "-o", "out/curves"]),
        ("csv2tb", ["-j", "2", "-o", "out/curves"]),
    ],
)
def test_nothing_half_done_is_left(run: Path, tmp_path: Path, verb: str, options: list[str]) -> None:
    """The whole group gets SIGINT, as from a terminal, as soon as the command has made its first file or folder, or, if
    it makes none before its answer, has opened a file of the run."""
    (tmp_path / "out").mkdir()
    (tmp_path / "temporary").mkdir()
    command = [sys.executable, "-m", "probe", verb, str(run), *options]
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "TMPDIR": str(tmp_path / "temporary")}
    with subprocess.Popen(
        command, cwd=tmp_path, env=environment, stdout=-1, stderr=-1, text=True, start_new_session=True
    ) as process:
        while not [*tmp_path.glob("out/*/*"), *tmp_path.glob("out/merged"), *opened(process.pid, run)]:
            with suppress(subprocess.TimeoutExpired):
                assert process.wait(0.005) is None
        os.killpg(process.pid, signal.SIGINT)
        output, errors = process.communicate(timeout=60)
    assert (process.returncode, output, errors.split("\n")) == (SIGINT_CODE, "", ["probe: error: interrupted", ""])
    left = [path for path in (tmp_path / "out").rglob("*") if path.is_file()]
    assert [path.name for path in left if verb != "csv2db"] == []
    assert {path.name for path in left} <= {"monitor_metrics.db"}  # sound, and gone on with
