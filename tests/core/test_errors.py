"""Commands that install optional packages."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

from probe.core.errors import install, missing

ROOT = Path(__file__).resolve().parents[2]
READ = [
    ROOT / "README.md",
    ROOT / "CONTRIBUTING.md",
    *sorted(path for folder in ("docs", "examples", "probe") for path in (ROOT / folder).rglob("*.[mp][dy]")),
]


def extras() -> set[str]:
    """Those of setup.py, as setuptools reads them."""
    program = """
import runpy, setuptools
setuptools.setup = lambda **given: print(*given["extras_require"])
runpy.run_path("setup.py")
"""
    done = subprocess.run([sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, check=True)
    return set(done.stdout.split())


def test_a_message_names_what_is_missing_its_extra_and_a_command_for_a_clone() -> None:
    """All that a reader needs, in one place for every message."""
    text = missing("the page", "duckdb", "analysis")
    assert all(part in text for part in ("the page", "duckdb", 'extra "analysis"', "clone of probe"))
    assert text.endswith(install("analysis"))


def test_no_command_installs_probe_from_a_package_index() -> None:
    """It is in none. Each extra of a command is one of setup.py."""
    texts = {path: path.read_text(encoding="utf-8") for path in READ}
    assert [path for path, text in texts.items() if re.search(r"pip install [^\n`]*probe-monitor", text)] == []
    commands = re.findall(r"pip install -e [^\[\n`]*\[([a-z,]+)\]", "\n".join(texts.values()))
    assert {extra for each in commands for extra in each.split(",")} - extras() == set()
    assert {"analysis", "tensorboard"} <= extras()


def test_messages_are_made_in_one_place() -> None:
    """No other module of the package writes a command with an extra."""
    found = {path.name for path in (ROOT / "probe").rglob("*.py") if re.search(r"install -e", path.read_text("utf-8"))}
    assert found == {"errors.py"}
