"""Commands in processes of their own: seconds, peak memory of the first process and of the largest of its workers."""

from __future__ import annotations

import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import psutil

INTERVAL_SECONDS = 0.1


class TreeCost(NamedTuple):
    """Cost of a command."""

    seconds: float
    driver: float
    """Peak memory of its first process, in MiB."""
    worker: float
    """Peak memory of the largest of the processes that it has started, in MiB; 0 if there was none."""
    code: int
    output: str


def run(
    command: Sequence[str | Path], environ: Mapping[str, str] | None = None, codes: Sequence[int] = (0,)
) -> TreeCost:
    """Run a command; its memory is looked at ten times a second.

    Raises:
        RuntimeError: if its exit code is none of ``codes``.
    """
    driver = worker = 0.0
    with tempfile.TemporaryFile("w+") as out, tempfile.TemporaryFile("w+") as errors:
        begun = time.perf_counter()
        words = [str(word) for word in command]
        with subprocess.Popen(
            words, stdout=out, stderr=errors, env=None if environ is None else dict(environ)
        ) as child:
            while True:
                driver = max(driver, peak(child.pid))
                worker = max([worker, *(peak(pid) for pid in _below(child.pid))])
                try:
                    child.wait(INTERVAL_SECONDS)
                    break
                except subprocess.TimeoutExpired:
                    continue
        seconds = time.perf_counter() - begun
        out.seek(0)
        errors.seek(0)
        text = out.read()
        if child.returncode not in codes:
            raise RuntimeError(f"{' '.join(words)} ended with {child.returncode}: {text[-500:]}{errors.read()[-2000:]}")
    return TreeCost(seconds, driver, worker, child.returncode, text)


def probe(*words: str | Path, environ: Mapping[str, str] | None = None, codes: Sequence[int] = (0,)) -> TreeCost:
    """Run a command of probe."""
    return run([sys.executable, "-m", "probe", *words], environ, codes)


def peak(pid: int) -> float:
    """Peak memory of a process in MiB; what it uses now where Linux's /proc is missing; 0 if it is gone."""
    try:
        found = re.search(r"^VmHWM:\s*(\d+) kB", Path(f"/proc/{pid}/status").read_text(), re.MULTILINE)
        return int(found[1]) / 1024 if found else 0.0
    except OSError:
        pass
    try:
        return psutil.Process(pid).memory_info().rss / 2**20
    except psutil.Error:
        return 0.0


def _below(pid: int) -> list[int]:
    try:
        return [process.pid for process in psutil.Process(pid).children(recursive=True)]
    except psutil.Error:
        return []
