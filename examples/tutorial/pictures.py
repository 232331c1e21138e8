"""Pictures of a run's CSV files as SVG, drawn with nothing but the standard library."""

import csv
import math
from collections.abc import Iterator, Mapping, Sequence
from html import escape
from pathlib import Path

LEFT, TOP, WIDTH, ROW = 240, 44, 560, 18
"""Pixels: room for names, room for the title, width of the drawing, height of a heatmap's row."""
COLOURS = ("#1f77b4", "#d62728", "#2ca02c", "#9467bd", "#ff7f0e", "#17becf")
NOT_A_NUMBER = "#d62728"


def rows(directory: Path, signal: str) -> Iterator[dict[str, str]]:
    """The rows of one signal in a rank's directory, step by step."""
    files = directory.glob(f"{signal}_[0-9]*-[0-9]*.csv")
    for path in sorted(files, key=lambda path: int(path.stem.rpartition("_")[2].partition("-")[0])):
        with path.open(newline="", encoding="utf-8") as file:
            yield from csv.DictReader(file)


def numbers(directory: Path, signal: str, op: str) -> dict[str, dict[int, float]]:
    """One op of every tensor of a signal, by name and step."""
    found: dict[str, dict[int, float]] = {}
    for row in rows(directory, signal):
        found.setdefault(row["name"], {})[int(row["step"])] = float(row[op])
    return found


def heatmap(path: Path, title: str, values: Mapping[str, Mapping[int, float]], columns: Sequence[int] = ()) -> None:
    """A row a tensor and a column a step: dark is large, on a logarithmic scale, and NaN is red."""
    columns = columns or sorted({column for line in values.values() for column in line})
    logs = [math.log10(v) for line in values.values() for c, v in line.items() if c in columns and 0 < v < math.inf]
    low, high = min(logs, default=0.0), max(logs, default=1.0)
    wide = WIDTH / len(columns)
    parts, cells = [], dict[str, list[str]]()
    for number, (name, line) in enumerate(values.items()):
        y = TOP + number * ROW
        parts.append(_text(LEFT - 8, y + ROW - 5, name, "end"))
        for place, column in enumerate(columns):
            if column in line:
                cell = f"M{LEFT + place * wide:.0f} {y}h{wide + 0.5:.0f}v{ROW - 1}h-{wide + 0.5:.0f}"
                cells.setdefault(_shade(line[column], low, high), []).append(cell)
    parts += [f'<path fill="{shade}" d="{"".join(each)}"/>' for shade, each in cells.items()]
    bottom = TOP + len(values) * ROW + 14
    for place in sorted({0, len(columns) // 2, len(columns) - 1}):
        parts.append(_text(LEFT + (place + 0.5) * wide, bottom, f"step {columns[place]}", "middle"))
    _write(path, title, parts, bottom + 12)


def curves(path: Path, title: str, values: Mapping[str, Mapping[int, float]], height: int = 220) -> None:
    """A curve for each name over steps, on a logarithmic scale; what is 0, NaN or infinite is left out."""
    points = {name: {s: v for s, v in line.items() if 0 < v < math.inf} for name, line in values.items()}
    steps = [step for line in points.values() for step in line]
    logs = [math.log10(value) for line in points.values() for value in line.values()]
    low, high = math.floor(min(logs)), math.ceil(max(logs))
    across, down = WIDTH / max(1, max(steps) - min(steps)), height / max(1, high - low)
    parts = []
    for power in range(low, high + 1):
        y = TOP + (high - power) * down
        parts.append(f'<path d="M{LEFT} {y:.1f}h{WIDTH}" stroke="#ddd"/>{_text(LEFT - 8, y + 4, f"1e{power}", "end")}')
    for number, (name, line) in enumerate(points.items()):
        colour = COLOURS[number % len(COLOURS)]
        places = [
            f"{LEFT + (step - min(steps)) * across:.1f},{TOP + (high - math.log10(value)) * down:.1f}"
            for step, value in sorted(line.items())
        ]
        parts.append(f'<polyline points="{" ".join(places)}" fill="none" stroke="{colour}" stroke-width="1.5"/>')
        parts.append(_text(8, TOP + 12 + number * ROW, name, "start", colour))
    bottom = TOP + height + 16
    parts += [_text(LEFT, bottom, f"step {min(steps)}"), _text(LEFT + WIDTH, bottom, f"step {max(steps)}", "end")]
    _write(path, title, parts, bottom + 12)


def _shade(value: float, low: float, high: float) -> str:
    if math.isnan(value):
        return NOT_A_NUMBER
    place = 0.0 if value <= 0 else (min(math.log10(value), high) - low) / (high - low or 1.0)
    return f"hsl(215,60%,{92 - 62 * place:.0f}%)"


def _text(x: float, y: float, text: str, anchor: str = "start", colour: str = "#333") -> str:
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}" fill="{colour}">{escape(text)}</text>'


def _write(path: Path, title: str, parts: Sequence[str], height: float) -> None:
    width = LEFT + WIDTH + 30
    size = f'width="{width}" height="{height:.0f}" viewBox="0 0 {width} {height:.0f}"'
    head = f'<svg xmlns="http://www.w3.org/2000/svg" {size} font-family="sans-serif" font-size="12">'
    lines = [head, '<rect width="100%" height="100%" fill="white"/>', _text(8, 22, title), *parts, "</svg>"]
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
