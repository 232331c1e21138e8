"""Board: rows of panels and the variables above them; and how it becomes a dashboard of Grafana."""

from __future__ import annotations

import re
from typing import NamedTuple

from grafana_foundation_sdk.builders import dashboard
from grafana_foundation_sdk.models.dashboard import (
    Dashboard,
    DashboardCursorSync,
    DashboardLinkType,
    VariableOption,
    VariableRefresh,
    VariableSort,
)

from boards.panel import DATASOURCE, Panel, build

ALERTS = 'alertstate="firing", alertname!="Watchdog"'
"""Matcher of alerts without the one that always fires."""
CLUSTER = 'cluster=~"$cluster"'
"""Matcher of the chosen clusters: all, or series without such a label, unless one is chosen."""
JOB = f'{CLUSTER}, job="$job"'
ALL = ".*"


class Variable(NamedTuple):
    """Choice above the panels."""

    name: str
    label: str
    query: str
    regex: str = ""
    """Part of a value that is shown and used."""
    every: bool = False
    """Whether several values, or all of them, can be chosen."""
    current: str = ""
    numeric: bool = False


class Row(NamedTuple):
    """Row of panels with a title."""

    title: str
    panels: tuple[Panel, ...]


class Board(NamedTuple):
    """Dashboard."""

    name: str
    """Name of its file, and the end of its uid."""
    title: str
    about: str
    variables: tuple[Variable, ...]
    rows: tuple[Row, ...]

    @property
    def panels(self) -> tuple[Panel, ...]:
        return tuple(panel for row in self.rows for panel in row.panels)


CLUSTERS = Variable("cluster", "Cluster", "label_values(up, cluster)", every=True)
OF_RANKS = '__name__=~"probe_rank_info|probe_training_step"'
"""Matcher of series that ranks have: the exporter's from the start on, and their own, also without an exporter."""
JOBS = Variable("job", "Job", f"label_values({{{OF_RANKS}, {CLUSTER}}}, job)")


SELECTOR = re.compile(r"([\w$]+\{[^}]*\})(\[\$__rate_interval\])?")


def top(count: int, by: str, expression: str, smallest: bool = False) -> str:
    """Return a query of the ``count`` series with the largest last values, over all of the shown time.

    ``topk`` alone would choose anew at each moment, so that a panel shows many more series than ``count``. The series
    are chosen once, also if they end before the shown time does; those of rates by their mean over that time.

    Args:
        by: labels that the series have.
    """
    chosen = SELECTOR.sub(_last, expression)
    return f"{expression} and on ({by}) {'bottomk' if smallest else 'topk'}({count}, {chosen})"


def _last(selector: re.Match[str]) -> str:
    over = f"{selector[1]}[$__range] @ end()"
    return over if selector[2] else f"last_over_time({over})"


def dashboard_of(board: Board) -> Dashboard:
    """Return a board as Grafana's type."""
    made = (
        dashboard.Dashboard(board.title)
        .uid(f"probe-{board.name}")
        .description(board.about)
        .tags(["probe"])
        .timezone("browser")
        .tooltip(DashboardCursorSync.CROSSHAIR)
        .time("now-1h", "now")
        .refresh("30s")
        .link(_links())
        .annotation(_alerts(board))
        .with_variable(dashboard.DatasourceVariable("datasource").label("Data source").type("prometheus"))
    )
    for variable in board.variables:
        made.with_variable(_variable(variable))
    number = 1
    for row in board.rows:
        made.with_row(dashboard.Row(row.title).id(number))
        for panel in row.panels:
            number += 1
            made.with_panel(build(panel, number))
        number += 1
    return made.build()


def _links() -> dashboard.DashboardLink:
    made = dashboard.DashboardLink("probe").type(DashboardLinkType.DASHBOARDS).tags(["probe"])
    return made.include_vars(include_vars=True).keep_time(keep_time=True)


def _alerts(board: Board) -> dashboard.AnnotationQuery:
    """Marks of alerts on the curves, of the job if one is chosen."""
    chosen = JOB if any(variable.name == "job" for variable in board.variables) else CLUSTER
    made = dashboard.AnnotationQuery().name("Alerts").datasource(DATASOURCE).enable(enable=True).icon_color("red")
    return made.expr(f"ALERTS{{{ALERTS}, {chosen}}}")


def _variable(variable: Variable) -> dashboard.QueryVariable:
    made = dashboard.QueryVariable(variable.name).label(variable.label).query(variable.query).datasource(DATASOURCE)
    made.refresh(VariableRefresh.ON_TIME_RANGE_CHANGED).regex(variable.regex)
    made.sort(VariableSort.NUMERICAL_ASC if variable.numeric else VariableSort.ALPHABETICAL_ASC)
    if variable.every:
        made.multi(multi=True).include_all(include_all=True).all_value(ALL)
        made.current(VariableOption(selected=True, text=["All"], value=["$__all"]))
    elif variable.current:
        made.current(VariableOption(selected=True, text=variable.current, value=variable.current))
    return made
