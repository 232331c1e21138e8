"""Lines on standard error: from real processes, with and without logging of the user's own."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

from probe.cli import app
from probe.core.messages import plural, wrapped

ROOT = Path(__file__).parents[2]
LOG = """
import logging
from probe.core.faults import Faults
logging.getLogger("probe.anomaly").warning("first line\\nsecond line")
logging.getLogger("probe").info("not shown")
try:
    1 / 0
except ZeroDivisionError as error:
    Faults().note("sink", error)
"""


def standard_error(before: str, after: str = "") -> list[str]:
    """Run ``LOG`` between two other pieces of Python in a process and return its standard error."""
    code = f"{before}\n{LOG}\n{after}"
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    return done.stderr.splitlines()


def test_every_line_begins_with_the_name_of_the_tool() -> None:
    """Level once a message, further lines (a traceback) marked too; what is information is not shown."""
    lines = standard_error("")
    assert lines[:4] == [
        "probe: warning: first line",
        "probe:   second line",
        "probe: warning: training goes on without it: sink: ZeroDivisionError: division by zero",
        "probe:   Traceback (most recent call last):",
    ]
    assert all(line.startswith("probe:") for line in lines)


CONFIGURED = {
    "root": "import logging; logging.basicConfig(format='mine: %(message)s')",
    "probe": "import logging, sys; h = logging.StreamHandler(sys.stderr); "
    "h.setFormatter(logging.Formatter('mine: %(message)s')); logging.getLogger('probe').addHandler(h)",
}


@pytest.mark.parametrize("where", CONFIGURED)
@pytest.mark.parametrize("import_first", [True, False])
def test_logging_of_the_user_is_left_alone(where: str, import_first: bool) -> None:
    """Set up before or after the import, for all loggers or for ours: each message comes once, in the user's form."""
    before = "import probe.core.faults\n" * import_first + CONFIGURED[where]
    lines = standard_error(before)
    assert lines[:2] == ["mine: first line", "second line"]
    assert not [line for line in lines if line.startswith("probe:")]
    assert sum("first line" in line for line in lines) == 1


def test_lines_can_be_switched_off() -> None:
    """The handler of ours can be removed, or replaced by one that does nothing."""
    assert standard_error("import logging; logging.getLogger('probe').addHandler(logging.NullHandler())") == []


def test_commands_write_lines_of_the_same_form(tmp_path: Path) -> None:
    """A problem is one line, with its level."""
    for command in (["anomalies", str(tmp_path)], ["csv2db", str(tmp_path)], ["config", "explain", "opps"]):
        done = CliRunner().invoke(app, command)
        assert done.exit_code == 2
        assert done.stderr.startswith("probe: error: ")
        assert len(done.stderr.splitlines()) == 1


def test_numbers_have_the_right_noun() -> None:
    """One is singular, everything else plural."""
    assert [plural(number, "rank") for number in (0, 1, 2)] == ["ranks", "rank", "ranks"]
    assert plural(2, "directory", "directories") == "directories"


UNWRITABLE = {
    "full": "os.dup2(os.open('/dev/full', os.O_WRONLY), 2)",
    "closed": "os.close(2)",
    "broken pipe": "reading, writing = os.pipe(); os.dup2(writing, 2); os.close(writing); os.close(reading)",
    "a pipe that nobody reads": "messages.patience = 0.01; os.dup2(os.pipe()[1], 2); os.write(2, b'x' * 65536)",
    "none": "sys.stderr = None",
    "a closed file": "sys.stderr = open(os.devnull, 'w'); sys.stderr.close()",
    "an object that raises": "class E:\n    def write(self, text): 1 / 0\n    def flush(self): pass\nsys.stderr = E()",
}


@pytest.mark.parametrize("how", UNWRITABLE)
@pytest.mark.parametrize("unbuffered", ["", "1"])
def test_a_line_that_cannot_be_written_ends_nothing(how: str, unbuffered: str) -> None:
    """Reports and logged warnings are counted; the exit code is the program's own, to the end of the process."""
    code = (
        f"import os, sys\nfrom probe.core import messages\n{UNWRITABLE[how]}\n{LOG}\n"
        "messages.complain('one more', 'warning')\nprint(messages.unwritten)\n"
    )
    environment = os.environ | {"PYTHONUNBUFFERED": unbuffered}
    done = subprocess.run(
        [sys.executable, "-c", code],
        cwd=ROOT,
        env=environment,
        stdout=subprocess.PIPE,
        text=True,
        check=False,
        timeout=60,
    )
    assert (done.returncode, done.stdout) == (0, "3\n")


@pytest.mark.parametrize("width", [20, 33, 60])
def test_a_line_that_is_too_wide_is_broken_between_words(width: int) -> None:
    """Also between Chinese characters, each of two cells; a command stays whole, so that it can be copied."""
    command = "probe view 'my run/rank0#signal=actv&row=norm.output'"
    for line in (
        f"next: look at `{command}`, and at the batch of this step",
        f"open: {command}",
        "损失从 4.201 到 nan，最后一次有限值在第 40 步（0.04813），第 41 步起不再有限",
    ):
        first, *others = wrapped(line, width, 4).split("\n")
        assert all(other.startswith("    ") for other in others)
        assert "".join(piece.strip() for piece in [first, *others]).replace(" ", "") == line.replace(" ", "")
        assert (command in line) is any(command in piece for piece in [first, *others])
        wide = [piece for piece in [first, *others] if len(piece.encode("gbk")) > width]
        assert wide == [piece for piece in [first, *others] if command in piece and len(piece) > width]
        assert not any(piece.strip()[0] in "，）" or piece[-1] in "（" for piece in [first, *others])
    assert wrapped("as  it  is", width) == wrapped("as  it  is", 0) == "as  it  is"
