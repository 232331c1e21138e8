"""Insert results into docs/benchmarks.md: ``python benchmarks/_page.py DIRECTORY``, filled by ``--output
DIRECTORY``. A result takes the place of the one with the same heading; those of other benchmarks stay."""

from __future__ import annotations

import sys
import textwrap
from pathlib import Path

BEGIN, END = "<!-- benchmarks -->", "<!-- /benchmarks -->"
PAGE = Path(__file__).parent.parent / "docs" / "benchmarks.md"
ORDER = (
    "overhead",
    "overhead_parallel",
    "overhead_mindspore",
    "moments",
    "sinks",
    "readers",
    "conversions",
    "false_alarms",
    "run_rules",
    "hangs",
    "server",
    "run_state",
    "stack",
    "dashboards",
    "logs",
    "exporter",
    "trackers",
    "probe_run",
    "view",
)


WHOLE: dict[str, bool] = {"break_long_words": False, "break_on_hyphens": False}
"""Words stay in one piece."""


def results(directory: Path) -> dict[str, str]:
    """Results in ``directory`` by their headings, in the order of the page.

    Raises:
        FileNotFoundError: if there are none.
    """
    files = [directory / f"{name}.md" for name in ORDER]
    texts = [file.read_text(encoding="utf-8").strip() for file in files if file.exists()]
    if not texts:
        raise FileNotFoundError(f"{directory}: expected any of {', '.join(file.name for file in files)}")
    return by_heading("\n\n".join(map(wrapped, texts)))


def by_heading(text: str) -> dict[str, str]:
    """Sections of ``text`` by their headings, each with its own."""
    sections = [f"### {section.strip()}" for section in text.split("### ")[1:]]
    return {section.partition("\n")[0]: section for section in sections}


def wrapped(text: str) -> str:
    """``text`` with its paragraphs in lines of 110 characters; tables stay."""
    lines = (line if line.startswith("|") else textwrap.fill(line, 110, **WHOLE) for line in text.splitlines())
    return "\n".join(lines)


def replaced(text: str, new: dict[str, str]) -> str:
    """Put the sections ``new`` between the marks of ``text``, in place of those with their headings, or at the end.

    Raises:
        ValueError: if a mark is missing.
    """
    before, begin, rest = text.partition(BEGIN)
    known, end, after = rest.partition(END)
    if not begin or not end:
        raise ValueError(f"{PAGE.name}: expected the lines {BEGIN} and {END}")
    sections = "\n\n".join({**by_heading(known), **new}.values())
    return f"{before}{begin}\n{sections}\n{end}{after}"


if __name__ == "__main__":
    PAGE.write_text(replaced(PAGE.read_text(encoding="utf-8"), results(Path(sys.argv[1]))), encoding="utf-8")
