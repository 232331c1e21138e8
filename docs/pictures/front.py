"""Pictures of the README: a run whose loss breaks, and the public faults that are found, beside other tools.

The moving one shows the numbers of ``examples/nan.py``; the bars are those of a table in ``docs/benchmarks.md``.
"""

from __future__ import annotations

import csv
import math
import os
import re
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import NamedTuple
from xml.sax.saxutils import escape

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
MOVING, BARS = HERE / "first_cause.svg", HERE / "faults_found.svg"
COMMAND = "probe run --deep train.py"
SECONDS = 9
"""Length of the moving picture, which begins again."""
AROUND = 7, 3
"""Steps before the first bad one, and from it on."""
LOSS, GRID = (30, 66, 220, 150), (330, 66, 310, 150)
"""Left, top, width and height of the curve and of the cells."""
STYLE = """
svg { --back: #ffffff; --line: #d0d7de; --text: #1f2328; --soft: #656d76; --curve: #0969da; --bad: #cf1a78; }
@media (prefers-color-scheme: dark) {
  svg { --back: #0d1117; --line: #30363d; --text: #e6edf3; --soft: #8b949e; --curve: #4493f8; --bad: #f0609f; }
}
text { font: 13px ui-monospace, SFMono-Regular, Menlo, Consolas, monospace; fill: var(--text); }
.soft { fill: var(--soft); } .bad { fill: var(--bad); font-weight: bold; } .title { font-size: 14px; }
.end { text-anchor: end; } .middle { text-anchor: middle; }
@media (prefers-reduced-motion: reduce) { * { animation: none !important; } }
"""


class Run(NamedTuple):
    """Numbers of a run whose loss breaks."""

    losses: Mapping[int, float]
    rows: Mapping[str, Mapping[int, float]]
    """Norm of each layer's output by step, in the order of execution."""

    @property
    def since(self) -> int:
        """First step whose loss is not finite."""
        return min(step for step, loss in self.losses.items() if not math.isfinite(loss))

    @property
    def cause(self) -> str:
        """First layer, in the order of execution, whose output is not finite at that step."""
        return next(name for name, values in self.rows.items() if not math.isfinite(values[self.since]))


def run_in(directory: Path) -> Run:
    """Read the CSV files of a rank."""
    losses = {step: value for name, step, value in _cells(directory, "run", "value") if name == "loss_root"}
    rows: dict[str, dict[int, float]] = {}
    for name, step, value in _cells(directory, "actv", "norm"):
        if re.fullmatch(r"\w+\.output", name):
            rows.setdefault(name, {})[step] = value
    return Run(losses, rows)


def moving(run: Run) -> str:
    """Return the animated picture: the loss breaks, one command, the layer is named."""
    times = Timeline()
    parts = [_card(660, 300), *_curve(run, times), *_terminal(run, times), *_grid(run, times)]
    return _svg(660, 300, "".join(times.rules), parts)


class Timeline:
    """Rules of CSS that let elements appear at their time."""

    def __init__(self) -> None:
        self.rules: list[str] = []

    def appear(self, seconds: float) -> str:
        """Return the attribute of an element that is not seen before a time."""
        return self._rule(seconds, seconds + 0.1, "opacity: 0", "opacity: 1", "linear")

    def unroll(self, begin: float, end: float, steps: str = "linear") -> str:
        """Return the attribute of an element that is uncovered from left to right."""
        return self._rule(begin, end, "clip-path: inset(0 100% 0 0)", "clip-path: inset(0 0 0 0)", steps)

    def _rule(self, begin: float, end: float, hidden: str, shown: str, pace: str) -> str:
        name = f"t{len(self.rules)}"
        first, last = (f"{100 * seconds / SECONDS:.1f}%" for seconds in (begin, end))
        frames = f"0%, {first} {{ {hidden}; animation-timing-function: {pace}; }} {last}, 100% {{ {shown}; }}"
        self.rules.append(f"@keyframes {name} {{ {frames} }} .{name} {{ animation: {name} {SECONDS}s infinite; }}\n")
        return f'class="{name}"'


def _curve(run: Run, times: Timeline) -> Iterator[str]:
    """Yield the loss up to its last finite value, and what comes after it."""
    left, top, width, height = LOSS
    finite = {step: loss for step, loss in run.losses.items() if step < run.since}
    highest, last = max(finite.values()), max(run.losses)
    points = [(left + width * step / last, top + height * (1 - loss / highest)) for step, loss in finite.items()]
    line = "M" + "L".join(f"{x:.0f} {y:.0f}" for x, y in points)
    at = left + width * run.since / last
    yield _text(left, 36, "loss", "title")
    yield f'<path d="M{left} {top}V{top + height}H{left + width}" fill="none" stroke="var(--line)"/>'
    yield f'<g {times.unroll(0.2, 2)}><path d="{line}" fill="none" stroke="var(--curve)" stroke-width="2"/></g>'
    yield f"<g {times.appear(2.1)}>"
    yield f'<path d="M{at:.0f} {top}V{top + height}" stroke="var(--bad)" stroke-dasharray="4 4"/>'
    yield _text(at + 8, top + height / 2, "NaN", "bad title")
    yield _text(at, top + height + 18, f"step {run.since}", "bad middle") + "</g>"


def _terminal(run: Run, times: Timeline) -> Iterator[str]:
    """Yield the command, typed, and the first line of its answer."""
    yield '<path d="M0 246.5H660" stroke="var(--line)"/>'
    yield _text(30, 270, "$", "soft")
    yield f"<g {times.unroll(2.9, 4.2, f'steps({len(COMMAND)})')}>{_text(46, 270, COMMAND)}</g>"
    yield f"<g {times.appear(6.5)}>{_text(30, 289, f'critical: NaN in {run.cause}, step {run.since}', 'bad')}</g>"


def _grid(run: Run, times: Timeline) -> Iterator[str]:
    """Yield the outputs of the layers around the first bad step, step by step, and the mark of the first cause."""
    left, top, width, height = GRID
    before, after = AROUND
    steps = range(run.since - before, run.since + after)
    cell, line = width / len(steps), height / len(run.rows)
    start = 4.5
    yield f"<g {times.appear(start)}>{_text(left, 36, 'outputs of the layers', 'title')}"
    for number, name in enumerate(run.rows):
        yield _text(left - 8, top + line * (number + 0.65), name.removesuffix(".output"), "end soft")
    yield "</g>"
    for column, step in enumerate(steps):
        yield f"<g {times.appear(start + 0.15 * (column + 1))}>"
        for number, values in enumerate(run.rows.values()):
            place = f'x="{left + cell * column:.1f}" y="{top + line * number:.1f}"'
            yield f'<rect {place} width="{cell - 2:.1f}" height="{line - 2:.1f}" rx="2" {_colour(values[step])}/>'
        yield _text(left + cell * (column + 0.5) - 1, top + height + 18, str(step), "middle soft") + "</g>"
    place = left + cell * before, top + line * [*run.rows].index(run.cause)
    yield f"<g {times.appear(6.5)}>"
    yield f'<rect x="{place[0] - 2:.1f}" y="{place[1] - 2:.1f}" width="{cell + 2:.1f}" height="{line + 2:.1f}" rx="3"'
    yield ' fill="none" stroke="var(--text)" stroke-width="2.5"/>'
    yield (
        _text(place[0] + cell / 2, top - 8, f"starts here: {run.cause.removesuffix('.output')}", "bad middle") + "</g>"
    )


def _colour(value: float) -> str:
    """Return the attributes of a cell: the larger the number, the darker."""
    if not math.isfinite(value):
        return 'fill="var(--bad)"'
    return f'fill="var(--curve)" fill-opacity="{min(max(0.25 + 0.2 * math.log10(max(value, 0.1)), 0.15), 0.9):.2f}"'


class Chart(NamedTuple):
    """Number of each tool, with what it counts."""

    title: str
    of: float
    """Number of a bar over the whole width."""
    numbers: Mapping[str, float]


def charts_in(benchmarks: str) -> Iterator[Chart]:
    """Read two tables of ``docs/benchmarks.md``: faults found, of a tool with two lines the better one; added time."""
    section = re.search(r"^### Beside other tools\n(.*?)^### ", benchmarks, re.DOTALL | re.MULTILINE)
    cost = re.search(
        r"^### What watching costs a step\n(.*?)^\| weight gradients \| (\d+) ms \| ([\d.]+) ms \| [\d.%]+ \| (\d+) ms",
        benchmarks,
        re.DOTALL | re.MULTILINE,
    )
    assert section, "docs/benchmarks.md has no section 'Beside other tools'"
    assert cost, "docs/benchmarks.md has no row 'weight gradients'"
    (total,) = re.findall(r"found, of (\d+)", section[1])
    found: dict[str, float] = {}
    for name, number in re.findall(r"^\| ([^|]+?) \| (\d+) \|", section[1], re.MULTILINE):
        tool = re.sub(r" [\d.]+$| \(\d.*\)$|, rises alone$", "", name.strip("`"))
        found[tool] = max(found.get(tool, 0), float(number))
    best_first = dict(sorted(found.items(), key=lambda item: -item[1]))
    yield Chart(f"faults found, of {total} that were reported", float(total), best_first)
    added = {"probe": float(cost[3]), "mindstudio-probe": float(cost[4])}
    bound = " at most" if "The machine was busy" in cost[1] else ""
    yield Chart(f"ms added{bound} to a step of {cost[2]} ms, for weight gradients", max(added.values()), added)


def bars(charts: Sequence[Chart]) -> str:
    """Return charts below each other, each with the best tool first."""
    left, width, line, y = 240, 250, 26, 0
    parts = []
    for chart in charts:
        parts.append(_text(20, y + 30, chart.title, "title"))
        for tool, number in chart.numbers.items():
            kind, colour = ("", "var(--curve)") if tool.startswith("probe") else (" soft", "var(--soft)")
            long = width * number / chart.of
            parts.append(_text(left - 10, y + 58, tool, f"end{kind}") + _text(left + long + 8, y + 58, f"{number:g}"))
            parts.append(f'<rect x="{left}" y="{y + 44}" width="{long:.0f}" height="18" rx="3" fill="{colour}"/>')
            y += line
        y += 48
    return _svg(560, y + 4, "", [_card(560, y + 4), *parts])


def _cells(directory: Path, signal: str, column: str) -> Iterator[tuple[str, int, float]]:
    """Yield name, step and value of each row of a signal."""
    for path in sorted(directory.glob(f"{signal}_[0-9]*.csv")):
        with path.open(newline="", encoding="utf-8") as file:
            for row in csv.DictReader(file):
                yield row["name"], int(row["step"]), float(row[column])


def _card(width: int, height: int) -> str:
    place = f'x="0.5" y="0.5" width="{width - 1}" height="{height - 1}" rx="8"'
    return f'<rect {place} fill="var(--back)" stroke="var(--line)"/>'


def _text(x: float, y: float, words: str, kind: str = "") -> str:
    kind = f' class="{kind}"' if kind else ""
    return f'<text x="{x:.0f}" y="{y:.0f}"{kind}>{escape(words)}</text>'


def _svg(width: int, height: int, rules: str, parts: Sequence[str]) -> str:
    size = f'width="{width}" height="{height}" viewBox="0 0 {width} {height}"'
    return f'<svg xmlns="http://www.w3.org/2000/svg" {size}>\n<style>{STYLE}{rules}</style>\n{"".join(parts)}\n</svg>\n'


def main() -> None:
    """Write both pictures: ``make pictures``."""
    with TemporaryDirectory() as folder:
        environment = os.environ | {"PYTHONPATH": str(ROOT), "MONITOR_OUTPUT_DIR": folder}
        program = str(ROOT / "examples" / "nan.py")
        subprocess.run([sys.executable, "-m", "probe", "run", "--deep", program], check=True, env=environment)
        (directory,) = Path(folder).glob("*-rank0-*")
        MOVING.write_text(moving(run_in(directory)), "utf-8")
    BARS.write_text(bars([*charts_in((ROOT / "docs" / "benchmarks.md").read_text("utf-8"))]), "utf-8")


if __name__ == "__main__":
    main()
