"""Dashboard as Grafana shows it: its variables are chosen, its queries filled in and sent to a Prometheus."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import yaml

from tests.resources.recorded_prometheus import PrometheusServer, filled

GRAFANA = Path(__file__).parents[2] / "resources" / "grafana"
LABEL_VALUES = re.compile(r"label_values\((.*), (\w+)\)")
MOST_POINTS = 1_000
"""Moments of a panel that has no limit of its own: about the width of a screen."""


class Target(NamedTuple):
    """Query of a panel."""

    panel: dict[str, Any]
    reference: str
    expression: str
    legend: str
    instant: bool


class Answer(NamedTuple):
    """Answer to a query: series with their labels, moments and values."""

    target: Target
    series: list[tuple[dict[str, str], list[float], list[float]]]

    @property
    def has_data(self) -> bool:
        """Whether there is a number in it."""
        return any(not math.isnan(value) for _, _, values in self.series for value in values)


class ShownDashboard:
    """Dashboard with a value for each of its variables.

    Args:
        chosen: values of variables; of the others the first choice of Grafana is taken.
    """

    def __init__(
        self, name: str, server: PrometheusServer, begin: float, end: float, chosen: Mapping[str, str] = {}
    ) -> None:
        self.content = json.loads((GRAFANA / "dashboards" / f"{name}.json").read_text("utf-8"))
        self._server, self.begin, self.end = server, begin, end
        self.choices: dict[str, list[str]] = {}
        """Values that each variable offers."""
        source = yaml.safe_load((GRAFANA / "provisioning" / "datasources" / "probe.yml").read_text("utf-8"))
        self.interval = int(source["datasources"][0]["jsonData"]["timeInterval"].removesuffix("s"))
        """Shortest time in seconds between two moments of a curve."""
        whole = f"{math.ceil(end - begin)}s"
        self.chosen: dict[str, str] = {"__rate_interval": f"{4 * self.interval}s", "__range": whole}
        for variable in self.content["templating"]["list"]:
            if variable["type"] == "query":
                self.choices[variable["name"]] = self._values(variable)
                self.chosen[variable["name"]] = chosen.get(variable["name"]) or self._choice(variable)

    def panels(self) -> Iterator[dict[str, Any]]:
        """Yield each panel that is no title of a row."""
        return (panel for panel in self.content["panels"] if panel["type"] != "row")

    def targets(self) -> Iterator[Target]:
        """Yield each query of each panel, filled in."""
        for panel in self.panels():
            for target in panel["targets"]:
                expression = filled(target["expr"], self.chosen)
                legend, instant = target.get("legendFormat", ""), bool(target["instant"])
                yield Target(panel, target["refId"], expression, legend, instant)

    def answer(self, target: Target) -> Answer:
        """Send a query as Grafana does."""
        if target.instant:
            found = self._server.at(target.expression, self.end)
            return Answer(target, [_numbers(each["metric"], [each["value"]]) for each in found])
        points = target.panel.get("maxDataPoints", MOST_POINTS)
        step = max(self.interval, math.ceil((self.end - self.begin) / points))
        found = self._server.over(target.expression, self.begin, self.end, step)
        return Answer(target, [_numbers(each["metric"], each["values"]) for each in found])

    def annotations(self) -> Iterator[str]:
        """Yield the query of each mark on the curves."""
        return (filled(each["expr"], self.chosen) for each in self.content["annotations"]["list"])

    def _values(self, variable: Mapping[str, Any]) -> list[str]:
        found = LABEL_VALUES.fullmatch(filled(variable["query"], self.chosen))
        assert found, variable["query"]
        values = self._server.values_of(found[2], found[1], self.begin, self.end)
        kept = (re.fullmatch(variable["regex"].strip("/") or "(.*)", value) for value in values)
        return [match[1] for match in kept if match]

    def _choice(self, variable: Mapping[str, Any]) -> str:
        if variable["includeAll"]:
            return str(variable["allValue"])
        offered, current = self.choices[variable["name"]], variable.get("current", {}).get("value")
        return str(current) if current in offered else offered[0]


def named(legend: str, labels: Mapping[str, str]) -> str:
    """Name of a series by a legend with labels in double braces."""
    return re.sub(r"\{\{(\w+)\}\}", lambda found: labels.get(found[1], ""), legend)


def _numbers(labels: dict[str, str], points: list[list[Any]]) -> tuple[dict[str, str], list[float], list[float]]:
    return labels, [float(time) for time, _ in points], [float(value) for _, value in points]
