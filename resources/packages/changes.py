"""The section of CHANGELOG.md about a version, in Markdown.

    python resources/packages/changes.py v0.2.0

It fails unless the tag, the version of the package, that of CITATION.cff and a dated section of the changelog agree: a
release that forgets one of them is not published.
"""

from __future__ import annotations

import re
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


def section(version: str, changelog: str) -> str:
    """Return the text below the heading of ``version``."""
    found = re.search(rf"^## \[{re.escape(version)}\] - \d{{4}}-\d\d-\d\d\n(.*?)(?=^## |\Z)", changelog, re.M | re.S)
    if not found or not found[1].strip():
        raise SystemExit(f"CHANGELOG.md: expected a section with text under '## [{version}] - YEAR-MONTH-DAY'")
    return found[1].strip()


def stated(path: str, pattern: str) -> str:
    """Return the version that a file states."""
    found = re.search(pattern, (ROOT / path).read_text(encoding="utf-8"), re.MULTILINE)
    if not found:
        raise SystemExit(f"{path}: expected a line that matches {pattern}")
    return found[1]


def main() -> None:
    """Print the section that belongs to a tag."""
    version = sys.argv[1].removeprefix("v")
    for path, pattern in (("probe/__init__.py", r'^__version__ = "(.+)"$'), ("CITATION.cff", r'^version: "?([^"\n]+)')):
        if stated(path, pattern) != version:
            raise SystemExit(f"{path}: expected version {version} of tag {sys.argv[1]}, found {stated(path, pattern)}")
    print(section(version, (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")))


if __name__ == "__main__":
    main()
