"""Reports of benchmarks: the machine, tables in Markdown, medians with their intervals."""

from __future__ import annotations

import argparse
import importlib
import importlib.metadata
import os
import platform
import re
import shlex
import sys
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[np.float64]

RESAMPLES = 4000
CONFIDENCE = 95


def arguments(purpose: str | None, rounds: int) -> argparse.ArgumentParser:
    """Parser with the arguments that all benchmarks take, so that one ``ARGS`` suits them all."""
    parser = argparse.ArgumentParser(description=purpose, formatter_class=argparse.ArgumentDefaultsHelpFormatter)
    parser.add_argument("--rounds", type=int, default=rounds, help="repetitions of every measurement")
    parser.add_argument("--threads", type=int, default=2, help="CPU threads of torch")
    parser.add_argument("--output", type=Path, help="file for the same text, or a directory to put it in")
    return parser


def machine(framework: str = "torch") -> str:
    """Text of the processor, its cores and the versions that the figures depend on."""
    parts = [
        _processor(),
        f"{len(os.sched_getaffinity(0)) if hasattr(os, 'sched_getaffinity') else os.cpu_count()} cores",
    ]
    if framework == "torch" and (torch := importlib.import_module("torch")).cuda.is_available():
        parts.append(torch.cuda.get_device_name())
    version = importlib.metadata.version(framework)
    versions = f"Python {platform.python_version()}, {framework} {version}, numpy {np.__version__}"
    return f"{', '.join(parts)}; {platform.system()}; {versions}"


def _processor() -> str:
    try:
        found = re.search(r"^model name\s*:\s*(.+)$", Path("/proc/cpuinfo").read_text(), re.MULTILINE)
    except OSError:
        found = None
    return found.group(1) if found else platform.processor() or platform.machine()


def table(header: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Table in Markdown: text to the left, figures to the right."""
    lines = [header, ["---", *["---:"] * (len(header) - 1)], *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def publish(title: str, paragraphs: Iterable[str], output: Path | None, framework: str = "torch") -> None:
    """Print a result and write it to ``output``, followed by the machine and the command."""
    command = shlex.join(["python", f"benchmarks/{Path(sys.argv[0]).name}", *_settings_of(sys.argv[1:])])
    text = "\n\n".join([f"### {title}", *paragraphs, f"{machine(framework)}; `{command}`."]) + "\n"
    print(text)
    if output is not None:
        if output.suffix != ".md":
            output.mkdir(parents=True, exist_ok=True)
            output = output / f"{Path(sys.argv[0]).stem}.md"
        output.write_text(text, encoding="utf-8")


def _settings_of(argv: Sequence[str]) -> list[str]:
    """Arguments that a result depends on: all but the output path."""
    kept, skip = [], False
    for argument in argv:
        if not skip and not argument.startswith("--output"):
            kept.append(argument)
        skip = argument == "--output"
    return kept


def interval(statistic: Callable[[Array], Array], samples: Array) -> tuple[float, float, float]:
    """Compute ``statistic`` of ``samples`` and the ends of its bootstrap interval.

    Args:
        statistic: reduces the last axis but one, along which the rounds lie.
        samples: rounds x measurements; resampled by whole rounds, so that pairs stay pairs.

    Efron and Tibshirani, "An Introduction to the Bootstrap" (1993), chapter 13: the percentile interval.
    """
    picks = np.random.default_rng(0).integers(len(samples), size=(RESAMPLES, len(samples)))
    edge = (100 - CONFIDENCE) / 2
    low, high = np.percentile(statistic(samples[picks]), [edge, 100 - edge])
    return float(statistic(samples)), float(low), float(high)


def verdict(aim: float, low: float, high: float | None = None) -> str:
    """Judge whether a figure is at most ``aim``, by the ends of its interval or by itself alone."""
    if low > aim:
        return "MISSED"
    return "met" if (low if high is None else high) <= aim else "too noisy to say"


def milliseconds(seconds: float) -> str:
    """Text of ``seconds`` with three significant digits."""
    return f"{1e3 * seconds:.3g} ms" if abs(seconds) < 1 else f"{1e3 * seconds:.0f} ms"
