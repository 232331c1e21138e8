"""Table of the deployment guide: every file under ``resources/``, with the program that ran it or the reason why none
did."""

from __future__ import annotations

import re
import subprocess
from fnmatch import fnmatchcase
from pathlib import Path

ROOT = Path(__file__).parents[2]
GUIDE = (ROOT / "docs" / "guides" / "deployment.md").read_text(encoding="utf-8")
(TABLE,) = re.findall(r"<!-- files -->(.*?)<!-- /files -->", GUIDE, re.DOTALL)
ROWS = [[cell.strip() for cell in line.strip("| ").split(" | ")] for line in TABLE.strip().splitlines()[2:]]


def resources() -> list[str]:
    """Files under ``resources/`` that belong to the project."""
    listed = subprocess.run(
        ["git", "ls-files", "--cached", "--others", "--exclude-standard", "resources"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    found = listed.stdout.splitlines() if listed.returncode == 0 else []
    return found or [str(path.relative_to(ROOT)) for path in (ROOT / "resources").rglob("*") if path.is_file()]


def test_every_file_has_one_row() -> None:
    """A file that nobody thought of, and one that two rows are about, are both found."""
    patterns = [re.sub(r"^`|`$", "", row[0]) for row in ROWS]
    for file in resources():
        same_folder = [
            pattern
            for pattern in patterns
            if fnmatchcase(file, pattern) and ("**" in pattern or file.count("/") == pattern.count("/"))
        ]
        assert len(same_folder) == 1, (file, same_folder)


def test_every_row_is_about_files_and_says_how_they_were_run() -> None:
    """Each pattern matches a file; each row names a program, and a test that exists or a reason."""
    files = resources()
    for pattern, program, shown in ROWS:
        assert any(fnmatchcase(file, pattern.strip("`")) for file in files), pattern
        assert program
        tests = re.findall(r"`(tests/[\w/]+\.py)`", shown)
        assert [test for test in tests if not (ROOT / test).exists()] == []
        assert tests or len(shown) > 10, pattern
