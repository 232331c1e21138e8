"""Reports of benchmarks: the machine, tables in Markdown, medians with their intervals."""

from __future__ import annotations

import argparse
import importlib
import importlib.metadata
import json
import platform
import shlex
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
from _history import Figure, processor

Array = npt.NDArray[np.float64]


class Part(NamedTuple):
    """Part of a result."""

    paragraphs: list[str]
    figures: dict[str, Figure]
    """Costs by name."""
    spread: float = 0.0
    """That of the plain step, see ``_quiet.spread``."""


class Rows(NamedTuple):
    """Lines of a table, with the figures in them."""

    rows: list[list[str]]
    figures: dict[str, Figure]
    spread: float
    """That of the plain step."""


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
    parts = [processor()]
    if framework == "torch" and (torch := importlib.import_module("torch")).cuda.is_available():
        parts.append(torch.cuda.get_device_name())
    version = importlib.metadata.version(framework)
    versions = f"Python {platform.python_version()}, {framework} {version}, numpy {np.__version__}"
    return f"{', '.join(parts)}; {platform.system()}; {versions}"


def table(header: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Table in Markdown: text to the left, figures to the right."""
    lines = [header, ["---", *["---:"] * (len(header) - 1)], *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def merged(several: Sequence[Rows]) -> Rows:
    """All rows and figures, with the largest spread."""
    rows = [row for each in several for row in each.rows]
    figures = {name: figure for each in several for name, figure in each.figures.items()}
    return Rows(rows, figures, max(each.spread for each in several))


def publish(
    title: str,
    paragraphs: Iterable[str],
    output: Path | None,
    framework: str = "torch",
    figures: Mapping[str, Figure] = {},
    spread: float = 0.0,
) -> None:
    """Print a result and write it to ``output``, followed by the machine and the command.

    Args:
        figures: costs that repeated runs are judged and compared by, also written to a JSON file beside the text.
        spread: that of the plain step, see ``_quiet.spread``.
    """
    settings = shlex.join(_settings_of(sys.argv[1:]))
    command = f"python benchmarks/{Path(sys.argv[0]).name} {settings}".rstrip()
    text = "\n\n".join([f"### {title}", *paragraphs, f"{machine(framework)}; `{command}`."]) + "\n"
    print(text)
    if output is None:
        return
    file = file_in(output, Path(sys.argv[0]).stem)
    file.write_text(text, encoding="utf-8")
    if figures:
        about = {"arguments": settings, "machine": machine(framework), "spread": spread, "figures": figures}
        file.with_suffix(".json").write_text(json.dumps(about, ensure_ascii=False), encoding="utf-8")


def publish_parts(title: str, parts: Sequence[Part], output: Path | None, framework: str = "torch") -> None:
    """Publish a result of several parts, with all their figures and the largest spread."""
    paragraphs = [paragraph for part in parts for paragraph in part.paragraphs]
    figures = {name: figure for part in parts for name, figure in part.figures.items()}
    publish(title, paragraphs, output, framework, figures, max(part.spread for part in parts))


def file_in(output: Path, stem: str) -> Path:
    """Return ``output`` if it names a text, else the text ``stem`` in that directory, which is made."""
    if output.suffix == ".md":
        return output
    output.mkdir(parents=True, exist_ok=True)
    return output / f"{stem}.md"


def _settings_of(argv: Sequence[str]) -> list[str]:
    """Arguments that a result depends on: all but the output path."""
    kept, skip = [], False
    for argument in argv:
        if not skip and not argument.startswith("--output"):
            kept.append(argument)
        skip = argument == "--output"
    return kept


def interval(statistic: Callable[[Array], Array], samples: Array) -> Figure:
    """Compute ``statistic`` of ``samples`` and the ends of its bootstrap interval.

    Args:
        statistic: reduces the last axis but one, along which the rounds lie.
        samples: rounds x measurements; resampled by whole rounds, so that pairs stay pairs.

    Efron and Tibshirani, "An Introduction to the Bootstrap" (1993), chapter 13: the percentile interval.
    """
    picks = np.random.default_rng(0).integers(len(samples), size=(RESAMPLES, len(samples)))
    edge = (100 - CONFIDENCE) / 2
    low, high = np.percentile(statistic(samples[picks]), [edge, 100 - edge])
    return Figure(float(statistic(samples)), float(low), float(high))


def share(votes: Sequence[bool], families: Sequence[str]) -> Figure:
    """Compute the share of votes that are true, with its bootstrap interval over families.

    Args:
        families: family of each vote: those of one family are drawn together, as they are no independent evidence.
    """
    names = sorted({*families})
    sums = np.zeros((len(names), 2))
    for vote, family in zip(votes, families, strict=True):
        sums[names.index(family)] += vote, 1
    return interval(lambda s: s[..., 0].sum(axis=-1) / s[..., 1].sum(axis=-1), sums)


def shared(votes: Sequence[bool], families: Sequence[str]) -> str:
    """Text of a share with its interval, as ``17 of 44 (39 %, 25 to 53)``."""
    if not votes:
        return "0 of 0"
    percent = [f"{100 * number:.0f}" for number in share(votes, families)]
    return f"{sum(votes)} of {len(votes)} ({percent[0]} %, {percent[1]} to {percent[2]})"


def difference(seconds: Array, variant: int) -> Any:
    """Median over rounds of the time that a variant took longer than plain, the first."""
    return np.median(seconds[..., variant] - seconds[..., 0], axis=-1)


def of_the_step(seconds: Array) -> Figure:
    """Time that the second variant adds, as a fraction of the plain step: the first."""
    return interval(lambda s: difference(s, 1) / np.median(s[..., 0], axis=-1), seconds)


def verdict(aim: float, low: float, high: float | None = None) -> str:
    """Judge whether a figure is at most ``aim``, by the ends of its interval or by itself alone."""
    if low > aim:
        return "MISSED"
    return "met" if (low if high is None else high) <= aim else "too noisy to say"


def milliseconds(seconds: float) -> str:
    """Text of ``seconds`` with three significant digits."""
    return f"{1e3 * seconds:.3g} ms" if abs(seconds) < 1 else f"{1e3 * seconds:.0f} ms"
