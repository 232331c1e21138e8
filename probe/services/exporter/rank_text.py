"""Text of the series of ranks in the format of Prometheus or of OpenMetrics.

A rank has up to some hundred series whose names and labels hardly ever change. They are made once; a scrape only adds
the values, which takes a tenth of the time of a collector that makes all of it anew.

Formats: https://prometheus.io/docs/instrumenting/exposition_formats/,
https://github.com/prometheus/OpenMetrics/blob/main/specification/OpenMetrics.md
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from probe.core.output.metrics.catalogue import (
    BUDGET,
    METRICS,
    PHASE,
    RANK_INFO,
    RANK_UP,
    SINCE,
    Metric,
    Series,
)
from probe.services.exporter.ranks import ShownRank, short

_ORDER = {name: number for number, name in enumerate(METRICS)}

Places = dict[str, list[tuple[str, int]]]
"""By metric: the beginnings of lines, with the end of the line before, and the places of their values in the row."""


class RankText:
    """Text of ranks; it keeps the beginnings of the lines from one scrape to the next."""

    def __init__(self) -> None:
        self._known: dict[tuple[str, int], tuple[tuple[Series, ...], Places]] = {}
        self.unknown = 0
        """Series at the last scrape that are left out: their metric or labels are not in the catalogue."""

    def text(self, ranks: Sequence[ShownRank], gpus: Mapping[int, Sequence[str]], *, openmetrics: bool) -> str:
        """Return the lines of ``ranks``.

        Args:
            ranks: ranks in their order, each job and rank once.
            gpus: names of devices by process that uses them, for ranks that do not name theirs.
            openmetrics: whether the format is OpenMetrics, in which the name of a counter has no ending.
        """
        self.unknown = 0
        families: dict[str, list[str]] = defaultdict(list)
        places = {}
        for rank in ranks:
            identity = f'{{job="{label(rank.job)}",rank="{rank.rank}"'
            place = rank.job, rank.rank
            made = self._known.get(place)
            if made is None or made[0] is not rank.series:
                made = rank.series, _places(rank.series, identity)
            places[place] = made
            self.unknown += len(rank.series) - sum(map(len, made[1].values()))
            values = numbers(rank.values.tolist())
            for name, lines in made[1].items():
                families[name] += [begin + values[at] for begin, at in lines]
            _add_node(families, rank, identity, gpus.get(rank.pid_here, ()) if rank.pid_here else ())
        self._known = places
        metrics = [*METRICS.values(), RANK_INFO, RANK_UP, PHASE, SINCE, BUDGET]
        return "".join(
            _family(metric, families[metric.name], openmetrics) for metric in metrics if metric.name in families
        )


def label(text: str) -> str:
    """Return ``text`` as the value of a label in a line."""
    return short(text).replace("\\", r"\\").replace('"', r"\"")


def numbers(values: Iterable[float]) -> list[str]:
    """Return numbers as both formats have them."""
    texts = list(map(repr, values))
    return [_SPECIAL.get(text, text) for text in texts] if _SPECIAL.keys() & set(texts) else texts


_SPECIAL = {"nan": "NaN", "inf": "+Inf", "-inf": "-Inf"}


def _places(series: Sequence[Series], identity: str) -> Places:
    """Return the beginnings of the lines of ``series``, in the order of the catalogue; a series that stands twice is
    taken once, and one that the catalogue does not have is left out."""
    beginnings: Places = defaultdict(list)
    seen = set[str]()
    for at, (name, labels) in enumerate(series):
        metric = METRICS.get(name) if isinstance(name, str) else None
        if metric is None or len(labels) != len(metric.labels) or not all(isinstance(text, str) for text in labels):
            continue
        more = "".join(f',{key}="{label(value)}"' for key, value in zip(metric.labels, labels, strict=True))
        begin = f"\n{name}{identity}{more}}} "
        if begin not in seen:
            seen.add(begin)
            beginnings[name].append((begin, at))
    return dict(sorted(beginnings.items(), key=lambda item: _ORDER[item[0]]))


def _add_node(families: dict[str, list[str]], rank: ShownRank, identity: str, gpus: Sequence[str]) -> None:
    """Add the series of a rank that the node makes."""
    facts = {"host": label(rank.host), "pid": str(rank.pid), "ranks": str(rank.ranks)}
    for uuid in dict.fromkeys(map(label, rank.gpu_uuids or gpus or ("",))):
        _add(families, RANK_INFO, identity, {**facts, "gpu_uuid": uuid}, 1)
    if rank.up is not None:
        _add(families, RANK_UP, identity, {}, int(rank.up))
    if rank.progress is not None:
        _add(families, PHASE, identity, {"phase": label(rank.progress.phase)}, 1)
        _add(families, SINCE, identity, {}, rank.progress.age)
        _add(families, BUDGET, identity, {}, rank.progress.budget)


def _add(families: dict[str, list[str]], metric: Metric, identity: str, more: Mapping[str, Any], value: float) -> None:
    labels = "".join(f',{name}="{text}"' for name, text in more.items())
    families[metric.name].append(f"\n{metric.name}{identity}{labels}}} {numbers([value])[0]}")


def _family(metric: Metric, lines: Sequence[str], openmetrics: bool) -> str:
    name = metric.name.removesuffix("_total") if openmetrics and metric.kind == "counter" else metric.name
    help_text = metric.about.replace("\\", r"\\")
    return f"# HELP {name} {help_text}\n# TYPE {name} {metric.kind}{''.join(lines)}\n"
