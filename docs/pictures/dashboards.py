"""Draw the dashboards of Grafana with the answers of a real Prometheus: ``python docs/pictures/dashboards.py``.

Prometheus has the recorded training of ``tests/resources``; each panel is drawn from the answers to its own queries.
The page ``docs/guides/dashboards.md`` gets the list of panels between its marks.
"""

from __future__ import annotations

import math
import re
import sys
import textwrap
from collections.abc import Callable, Iterator, Sequence
from html import escape
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
PAGE = ROOT / "docs" / "guides" / "dashboards.md"
sys.path.insert(0, str(ROOT))

from tests.resources.recorded_prometheus import prometheus_with  # noqa: E402 - the repository is no package
from tests.resources.recording import BEGIN, Recording  # noqa: E402
from tests.resources.shown_dashboard import Answer, ShownDashboard, named  # noqa: E402

NAMES = ("cluster", "job", "layers", "ranks")
COLUMN, ROW, GAP, MARGIN = 52, 32, 6, 10
"""Pixels: a column and a row of the grid, the space between panels, the space inside one."""
COLOURS = ("#3274d9", "#e0752d", "#299c46", "#a352cc", "#c4162a", "#8f7f00", "#0a8f8f", "#d44a8c", "#5b6b7a", "#7a5230")
INK, PALE, LINE, BAD = "#24292e", "#6a737d", "#d8dce0", "#c4162a"
CHARACTER = 5.7
"""Width of a character in pixels at 10.5 pixels of height."""
TABLE_ROWS, LETTERS, LEGENDS = 8, 30, 8
"""Rows of a table, letters of one of its texts, names below a panel."""

Series = tuple[str, list[float], list[float]]


class Box(NamedTuple):
    """Place of a panel's content in pixels."""

    x: float
    y: float
    width: float
    height: float


def text(x: float, y: float, content: str, size: float = 10.5, colour: str = INK, more: str = "") -> str:
    return f'<text x="{x:.1f}" y="{y:.1f}" font-size="{size}" fill="{colour}" {more}>{escape(content)}</text>'


FORMATS: dict[str, Callable[[float], str]] = {
    "percent": lambda value: f"{significant(value)} %",
    "percentunit": lambda value: f"{significant(100 * value)} %",
    "celsius": lambda value: f"{significant(value)} °C",
    "sci": lambda value: f"{value:.1e}",
    "bytes": lambda value: scaled(value, 1024, ("B", "KiB", "MiB", "GiB", "TiB")),
    "s": lambda value: f"{significant(value)} s" if abs(value) >= 1 or not value else f"{significant(value * 1e3)} ms",
}
"""Texts of values by unit; all others have a prefix of three digits each."""
SUFFIXES = {"Bps": "B/s", "flops": "FLOP/s", "watt": "W", "cps": "/s", "ops": "/s"}


def number(value: float, unit: str) -> str:
    """Text of a value in a unit of Grafana."""
    if not math.isfinite(value):
        return str(value)
    if unit in FORMATS:
        return FORMATS[unit](value)
    return scaled(value, 1000, tuple(f"{step}{SUFFIXES.get(unit, '')}" for step in ("", "k", "M", "G", "T", "P")))


def scaled(value: float, base: int, names: Sequence[str]) -> str:
    place = 0
    while abs(value) >= base and place < len(names) - 1:
        value, place = value / base, place + 1
    return f"{significant(value)} {names[place]}".strip()


def significant(value: float) -> str:
    shown = f"{value:.3g}"
    return f"{float(shown):g}" if abs(value) < 1e4 else f"{value:.0f}"


def ticks(low: float, high: float, logarithmic: bool) -> list[float]:
    """Round values between two others."""
    if logarithmic and low > 0:
        first, last = math.floor(math.log10(low)), math.ceil(math.log10(high))
        found = [10.0**power for power in range(first, last + 1, max(1, (last - first) // 4))]
        return found if len(found) > 1 else [low, high]
    step = 10.0 ** math.floor(math.log10((high - low) / 3))
    step *= next(factor for factor in (1, 2, 5, 10) if (high - low) / (step * factor) <= 5)
    return [step * place for place in range(math.floor(low / step), math.ceil(high / step) + 1)]


def curves(panel: dict[str, Any], answers: Sequence[Answer], box: Box) -> Iterator[str]:
    """Draw series over time, with a second axis for those with a unit of their own."""
    units = {
        rule["matcher"]["options"]: next(each["value"] for each in rule["properties"] if each["id"] == "unit")
        for rule in panel["fieldConfig"].get("overrides", ())
    }
    defaults = panel["fieldConfig"]["defaults"]
    custom = defaults.get("custom") or {}
    logarithmic = custom.get("scaleDistribution", {}).get("type") == "log"
    left = [each for answer in answers if answer.target.reference not in units for each in series_of(answer)]
    right = [each for answer in answers if answer.target.reference in units for each in series_of(answer)]
    if custom.get("stacking", {}).get("mode") == "normal":
        left = piled(left)
    limits = [each["value"] for each in defaults["thresholds"]["steps"] if each["value"] is not None]
    inner = Box(box.x + 52, box.y + 4, box.width - 52 - (52 if right else 6), box.height - 34)
    yield from axis(inner, left, defaults["unit"], logarithmic, limits, COLOURS, left_side=True)
    if right:
        unit = next(iter(units.values()))
        yield from axis(inner, right, unit, False, [], COLOURS[len(left) :], left_side=False)
    begin, end = BEGIN, max((times[-1] for _, times, _ in left + right), default=BEGIN + 60)
    for part in (0, 0.5, 1):
        anchor = ("start", "middle", "end")[int(part * 2)]
        minutes = f"{(end - begin) * part / 60:g} min"
        place = inner.x + part * inner.width
        yield text(place, inner.y + inner.height + 12, minutes, 9.5, PALE, f'text-anchor="{anchor}"')
    yield from legend([name for name, _, _ in left + right], box)


def extent(series: Sequence[Series], limits: Sequence[float]) -> tuple[float, float]:
    """Smallest and largest value, with a limit that is near."""
    values = [value for _, _, points in series for value in points if math.isfinite(value)]
    low, high = min(values), max(values)
    if limits and limits[0] < high * 3:
        high = max(high, limits[0])
    if high - low < 1e-12 * max(abs(high), 1e-300):
        low, high = min(low, 0.0), high + (abs(high) or 1.0) * 0.1
    return low, high


def axis(
    box: Box, series: Sequence[Series], unit: str, logarithmic: bool, limits: Sequence[float], colours: Sequence[str],
    left_side: bool,
) -> Iterator[str]:  # fmt: skip
    """Draw an axis with its series."""
    low, high = extent(series, limits)
    logarithmic = logarithmic and low > 0
    marks = ticks(low, high, logarithmic)
    low, high = min(low, marks[0]), max(high, marks[-1])
    scale: Callable[[float], float] = math.log10 if logarithmic else float

    def y(value: float) -> float:
        return box.y + box.height * (1 - (scale(value) - scale(low)) / (scale(high) - scale(low)))

    for mark in marks:
        place = box.x - 4 if left_side else box.x + box.width + 4
        anchor = "end" if left_side else "start"
        if left_side:
            yield f'<path d="M{box.x:.1f} {y(mark):.1f}h{box.width:.1f}" stroke="{LINE}"/>'
        yield text(place, y(mark) + 3.5, number(mark, unit), 9.5, PALE, f'text-anchor="{anchor}"')
    for limit in limits:
        if low <= limit <= high:
            yield f'<path d="M{box.x:.1f} {y(limit):.1f}h{box.width:.1f}" stroke="{BAD}" stroke-dasharray="5 4"/>'
    end = max(times[-1] for _, times, _ in series)
    for place, (_, times, points) in enumerate(series):
        x = [box.x + box.width * (time - BEGIN) / (end - BEGIN) for time in times]
        path = "".join(
            f"{'L' if math.isfinite(before) else 'M'}{moment:.1f} {y(value):.1f}"
            for moment, value, before in zip(x, points, [math.nan, *points], strict=False)
            if math.isfinite(value)
        )
        yield f'<path d="{path}" fill="none" stroke="{colours[place % len(colours)]}" stroke-width="1.4"/>'


def series_of(answer: Answer) -> list[Series]:
    return [(named(answer.target.legend, labels), times, values) for labels, times, values in answer.series]


def piled(series: Sequence[Series]) -> list[Series]:
    """Each series with those before it added."""
    moments = sorted({time for _, times, _ in series for time in times})
    heights, found = dict.fromkeys(moments, 0.0), []
    for name, times, values in series:
        for time, value in zip(times, values, strict=True):
            heights[time] += value
        found.append((name, times, [heights[time] for time in times]))
    return found


def legend(names: Sequence[str], box: Box) -> Iterator[str]:
    """Draw names beside their colours in one line, as many as there is room for."""
    x, y = box.x, box.y + box.height - 3
    for place, name in enumerate(names):
        width = 16 + CHARACTER * len(name) + 8
        if x + width > box.x + box.width - 30 or place >= LEGENDS:
            yield text(x, y, f"+{len(names) - place}", 10, PALE)
            return
        yield f'<path d="M{x:.1f} {y - 3.5:.1f}h10" stroke="{COLOURS[place % len(COLOURS)]}" stroke-width="2.5"/>'
        yield text(x + 14, y, name, 10, PALE)
        x += width


def figures(panel: dict[str, Any], answers: Sequence[Answer], box: Box) -> Iterator[str]:
    """Draw the last value of each series in large digits."""
    defaults = panel["fieldConfig"]["defaults"]
    limits = [each["value"] for each in defaults["thresholds"]["steps"] if each["value"] is not None]
    found = [(name, values[-1]) for answer in answers for name, _, values in series_of(answer)]
    for place, (name, value) in enumerate(found):
        x = box.x + box.width * (place + 0.5) / len(found)
        colour = BAD if any(value >= limit for limit in limits) else COLOURS[2]
        yield text(x, box.y + box.height * 0.62, number(value, defaults["unit"]), 26, colour, 'text-anchor="middle"')
        if len(found) > 1:
            yield text(x, box.y + box.height - 4, name, 10.5, PALE, 'text-anchor="middle"')


def bars(panel: dict[str, Any], answers: Sequence[Answer], box: Box) -> Iterator[str]:
    """Draw the value of each series as a bar."""
    found = [(name, values[-1]) for answer in answers for name, _, values in series_of(answer)]
    names = max(len(name) for name, _ in found) * CHARACTER + 8
    largest = max(value for _, value in found) or 1.0
    height = box.height / max(len(found), 8)
    for place, (name, value) in enumerate(found):
        y = box.y + height * place
        length = max((box.width - names - 70) * value / largest, 1)
        yield text(box.x + names - 6, y + height * 0.65, name, 10, INK, 'text-anchor="end"')
        yield (
            f'<rect x="{box.x + names:.1f}" y="{y + 2:.1f}" width="{length:.1f}" height="{height - 5:.1f}" '
            f'fill="{COLOURS[0]}"/>'
        )
        shown = number(value, panel["fieldConfig"]["defaults"]["unit"])
        yield text(box.x + names + length + 5, y + height * 0.65, shown, 10, PALE)


def cells(_: dict[str, Any], answers: Sequence[Answer], box: Box) -> Iterator[str]:
    """Draw each series as a row of coloured cells."""
    series = [each for answer in answers for each in series_of(answer)]
    finite = [value for _, _, values in series for value in values if math.isfinite(value)]
    low, high = min(finite), max(finite)
    names = min(max(len(name) for name, _, _ in series), 30) * CHARACTER + 8
    height = (box.height - 18) / len(series)
    for place, (name, _, values) in enumerate(series):
        y = box.y + height * place
        yield text(box.x + names - 5, y + height * 0.75, name[-30:], min(9.5, height), INK, 'text-anchor="end"')
        width = (box.width - names) / len(values)
        for moment, value in enumerate(values):
            if math.isfinite(value):
                x = box.x + names + width * moment
                yield (
                    f'<rect x="{x:.1f}" y="{y:.1f}" width="{width + 0.2:.1f}" height="{height - 1:.1f}" '
                    f'fill="{heat((value - low) / ((high - low) or 1))}"/>'
                )
    yield text(box.x + names, box.y + box.height - 3, f"{low:.2g}", 10, PALE)
    for part in range(20):
        yield (
            f'<rect x="{box.x + names + 34 + 6 * part:.1f}" y="{box.y + box.height - 12:.1f}" width="6.2" height="9" '
            f'fill="{heat(part / 19)}"/>'
        )
    yield text(box.x + names + 34 + 126, box.y + box.height - 3, f"{high:.2g}", 10, PALE)


def heat(part: float) -> str:
    """Colour between blue, yellow and red."""
    stops = ((50, 116, 217), (250, 222, 42), (196, 22, 42))
    place = min(int(part * 2), 1)
    mixed = (round(a + (b - a) * (part * 2 - place)) for a, b in zip(stops[place], stops[place + 1], strict=True))
    return "#" + "".join(f"{each:02x}" for each in mixed)


def rows(panel: dict[str, Any], answers: Sequence[Answer], box: Box) -> Iterator[str]:
    """Draw a table: answers joined by the labels that they share, columns renamed and hidden as Grafana does."""
    options = panel["transformations"][-1]["options"]
    units = {
        rule["matcher"]["options"]: rule["properties"][0]["value"] for rule in panel["fieldConfig"].get("overrides", ())
    }
    joined: dict[tuple[str, ...], dict[str, str]] = {}
    shared = sorted(set.intersection(*(set(labels) for answer in answers for labels, _, _ in answer.series)))
    for answer in answers:
        column = "Value" if len(answers) == 1 else f"Value #{answer.target.reference}"
        for labels, _, values in answer.series:
            identity = tuple(labels[name] for name in (shared if len(answers) > 1 else sorted(labels)))
            row = joined.setdefault(identity, {})
            row |= {name: value for name, value in labels.items() if name not in options["excludeByName"]}
            if column not in options["excludeByName"]:
                title = options["renameByName"][column]
                row[title] = number(values[-1], units.get(title, panel["fieldConfig"]["defaults"]["unit"]))
    found = list(joined.values())
    order = options["indexByName"]
    columns = sorted(dict.fromkeys(name for row in found for name in row), key=lambda name: order.get(name, len(order)))
    for rule in panel["options"].get("sortBy", ()):
        found.sort(key=lambda row: float(row[rule["displayName"]]), reverse=rule["desc"])
    widths = [max(len(name), *(min(len(row.get(name, "")), LETTERS) for row in found)) + 2 for name in columns]
    scale = box.width / sum(widths)
    x = box.x
    for name, width in zip(columns, widths, strict=True):
        yield text(x, box.y + 12, name, 10, INK, 'font-weight="bold"')
        for place, row in enumerate(found[:TABLE_ROWS]):
            value = row.get(name, "")
            shown = value if len(value) <= LETTERS else f"{value[: LETTERS - 2]}…"
            yield text(x, box.y + 34 + 21 * place, shown, 10)
        x += width * scale
    for place in range(min(len(found), TABLE_ROWS)):
        yield f'<path d="M{box.x:.1f} {box.y + 19.5 + 21 * place:.1f}h{box.width:.1f}" stroke="{LINE}"/>'


DRAWINGS = {"timeseries": curves, "stat": figures, "bargauge": bars, "status-history": cells, "table": rows}


def picture(board: ShownDashboard) -> str:
    """SVG of a dashboard with its panels where Grafana puts them."""
    parts, bottom = [], 0
    for panel in board.content["panels"]:
        place = panel["gridPos"]
        bottom = max(bottom, place["y"] + place["h"])
        x, y, width, height = place["x"] * COLUMN, place["y"] * ROW, place["w"] * COLUMN, place["h"] * ROW
        title = panel["title"].replace("$op", board.chosen.get("op", "")).replace(
            "$signal", board.chosen.get("signal", "")
        )  # fmt: skip
        if panel["type"] == "row":
            parts.append(text(GAP, y + 22, title, 15, INK, 'font-weight="bold"'))
            continue
        parts.append(
            f'<rect x="{x + GAP / 2}" y="{y + GAP / 2}" width="{width - GAP}" height="{height - GAP}" rx="3" '
            f'fill="#fff" stroke="{LINE}"/>'
        )
        parts.append(text(x + MARGIN, y + 21, title, 12, INK, 'font-weight="bold"'))
        box = Box(x + MARGIN, y + 32, width - 2 * MARGIN, height - 32 - MARGIN)
        answers = [board.answer(target) for target in board.targets() if target.panel is panel]
        parts += DRAWINGS[panel["type"]](panel, answers, box)
    width, height = 24 * COLUMN, bottom * ROW
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" height="{height}" '
        f'font-family="Helvetica, Arial, sans-serif">\n<rect width="{width}" height="{height}" fill="#f4f5f6"/>\n'
        + "\n".join(parts)
        + "\n</svg>\n"
    )


def listing(board: ShownDashboard) -> str:
    """Panels of a dashboard in Markdown, with their queries."""
    parts = []
    for panel in board.panels():
        queries = "\n".join(target["expr"] for target in panel["targets"])
        parts.append(textwrap.fill(f"**{panel['title']}**: {panel['description']}", 110, break_on_hyphens=False))
        parts.append(f"```text\n{queries}\n```")
    return "\n" + "\n\n".join(parts) + "\n"


def page(content: str, name: str, new: str) -> str:
    """Replace the text between the marks of a dashboard."""
    begin, end = f"<!-- panels of {name} -->", "<!-- /panels -->"
    assert begin in content, f"{PAGE.name}: expected the line {begin}"
    return re.sub(f"{begin}.*?{end}", lambda _: f"{begin}\n{new}\n{end}", content, count=1, flags=re.DOTALL)


def main() -> None:
    """Write the picture of each dashboard and the list of its panels."""
    recording = Recording()
    with TemporaryDirectory() as folder, prometheus_with(recording, Path(folder)) as server:
        content = PAGE.read_text("utf-8")
        for name in NAMES:
            board = ShownDashboard(name, server, BEGIN, recording.end)
            (HERE / f"dashboard_{name}.svg").write_text(picture(board), "utf-8")
            content = page(content, name, listing(board))
        PAGE.write_text(content, "utf-8")


if __name__ == "__main__":
    main()
