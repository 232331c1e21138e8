"""Commands of a new user, each in a process of its own, in the folder of the user's program."""

from __future__ import annotations

import os
import re
import subprocess
from collections.abc import Sequence
from pathlib import Path

from tests import user_scripts
from tests.quick_python import probe_command, quick_python

ROOT = Path(__file__).parents[2]
LANGUAGES = ("LANGUAGE", "LC_ALL", "LC_MESSAGES", "LANG")
CHINESE = {"LANGUAGE": "zh_CN", "LC_ALL": "C.UTF-8"}
SENTENCE = re.compile(r"(?:[A-Za-z][a-z]*'?[ ,]+){2}[a-z]{2,}")
"""Three words of English in a row."""
COMMAND = re.compile(r"`[^`]*`|probe (?:view|anomalies|run) \S+|\([^()]*\)|[\w./-]+[./_-][\w./-]*")


def probe(folder: Path, *words: str, **language: str) -> subprocess.CompletedProcess[str]:
    """Run ``probe`` with these words."""
    plain = {name: value for name, value in os.environ.items() if name not in LANGUAGES}
    environment = {**plain, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1", "PYTHONUTF8": "1", **language}
    environment.pop("MONITOR_OUTPUT_DIR", None)
    return subprocess.run(
        probe_command(*words), cwd=folder, env=environment, capture_output=True, text=True, check=False
    )


def run(
    folder: Path,
    *words: object,
    options: Sequence[str] = (),
    script: str = "train.py",
    modules: Sequence[str] = user_scripts.TORCH,
    **language: str,
) -> subprocess.CompletedProcess[str]:
    """Run ``probe run`` with a script, by an interpreter that has imported what the script imports."""
    command = [*options, "--", quick_python(*modules), script, *map(str, words)]
    return probe(folder, "run", *command, **language)


def card(done: subprocess.CompletedProcess[str]) -> list[str]:
    """Return the closing lines of ``probe run`` without their prefix, the verdict first."""
    lines = [line.removeprefix("probe:").strip() for line in done.stderr.splitlines()]
    heads = ("warning: critical: ", "warning: warning: ", "info: nothing found", "警告: ", "信息: ")
    first = max(number for number, line in enumerate(lines) if line.startswith(heads))
    return [lines[first].partition(": ")[2], *lines[first + 1 :]]


def english(text: str) -> list[str]:
    """Return the sentences of English in a text, apart from commands and names."""
    return SENTENCE.findall(COMMAND.sub(" ; ", text))
