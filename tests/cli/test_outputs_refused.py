"""Places that cannot be written to: every command names them, ends with exit code 1 or 2 and leaves nothing there."""

from __future__ import annotations

import os
import stat
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from probe.cli import app
from tests.core.storage.run_files import write_run
from tests.full_disk import files_of_at_most
from tests.required import require

pytestmark = pytest.mark.slow

require("duckdb")

FILES = {
    "anomalies": ["anomalies", "RUN", "-o"],
    "report": ["report", "RUN", "--no-judge", "-o"],
    "compare": ["compare", "RUN", "RUN", "-o"],
}
FOLDERS = {"merge": ["merge", "RUN", "-o"], "csv2db": ["csv2db", "RUN", "-o"], "csv2tb": ["csv2tb", "RUN", "-o"]}
COMMANDS = {**FILES, **FOLDERS}


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("run")
    write_run(root, 0, range(40), steps_per_file=40)
    return root


def refused(run: Path, command: list[str], out: Path) -> Any:
    """The result of a command that ends by itself, with an exit code that is not 0, naming ``out``."""
    result = CliRunner().invoke(app, [str(run) if word == "RUN" else word for word in [*command, str(out)]])
    assert isinstance(result.exception, SystemExit), result.exception
    assert result.exit_code in (1, 2)
    assert out.name in result.output.replace("\n", "")
    return result


@pytest.mark.parametrize("command", COMMANDS.values(), ids=COMMANDS)
def test_below_a_file(run: Path, tmp_path: Path, command: list[str]) -> None:
    """A file is in the place of a folder."""
    (tmp_path / "file").write_text("mine")
    refused(run, command, tmp_path / "file" / "out.html")
    assert (tmp_path / "file").read_text() == "mine"


@pytest.mark.parametrize("command", COMMANDS.values(), ids=COMMANDS)
def test_a_name_that_is_too_long(run: Path, tmp_path: Path, command: list[str]) -> None:
    """For any file system."""
    refused(run, command, tmp_path / f"{'a' * 300}.html")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("command", COMMANDS.values(), ids=COMMANDS)
def test_what_is_no_regular_file_stays(run: Path, tmp_path: Path, command: list[str]) -> None:
    """A FIFO, or a device such as /dev/null, which root could replace."""
    fifo = tmp_path / "out.html"
    os.mkfifo(fifo)
    refused(run, command, fifo)
    assert stat.S_ISFIFO(fifo.stat().st_mode)


@pytest.mark.parametrize("command", [FILES["report"], FILES["compare"]], ids=["report", "compare"])
def test_a_folder_is_no_file(run: Path, tmp_path: Path, command: list[str]) -> None:
    """For a page; anomalies writes its file into the folder."""
    (tmp_path / "out.html").mkdir()
    refused(run, command, tmp_path / "out.html")
    assert list((tmp_path / "out.html").iterdir()) == []


@pytest.mark.parametrize("command", [*FILES.values(), FOLDERS["merge"]], ids=[*FILES, "merge"])
def test_a_full_disk(run: Path, tmp_path: Path, command: list[str]) -> None:
    """The earlier file stays, and no half of a file is left. The findings of anomalies are shown anyway."""
    write_nan(tmp_path / "run")
    out = tmp_path / "out.html"
    with files_of_at_most(100):
        refused(run if "merge" in command else tmp_path / "run", command, out)
    assert [path for path in tmp_path.glob("**/*") if path.is_file() and path.parent.parent.name != "run"] == []


def write_nan(root: Path) -> None:
    """A run with something to find."""
    directory = root / "Dec03_21-34-40-rank0-00000000"
    directory.mkdir(parents=True)
    rows = "".join(f"0,fc{n}.input,0,nan,[3],torch.float32\n" for n in range(9))
    (directory / "actv_0-0.csv").write_text(f"vpp_stage,name,step,norm,shape,dtype\n{rows}")


@pytest.mark.parametrize("command", [FOLDERS["csv2db"], FOLDERS["csv2tb"]], ids=["csv2db", "csv2tb"])
def test_a_full_disk_for_a_conversion(run: Path, tmp_path: Path, command: list[str]) -> None:
    """No database without rows and no event file that ends in the middle; converted again when there is room, all is
    there."""
    out = tmp_path / "out"
    with files_of_at_most(100):
        refused(run, command, out)
    assert [path for path in tmp_path.rglob("*") if path.is_file()] == []
    again = CliRunner().invoke(app, [str(run) if word == "RUN" else word for word in [*command, str(out)]])
    assert (again.exit_code, f"{40 * 6} rows of 2 files" in again.output) == (0, True)
