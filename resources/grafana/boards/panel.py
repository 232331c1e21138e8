"""Panel of a dashboard: a title, a text, a unit and queries; and how it becomes a panel of Grafana.

Types: grafana-foundation-sdk for Grafana 10.1, https://grafana.github.io/grafana-foundation-sdk/
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal, NamedTuple

from grafana_foundation_sdk.builders import (
    bargauge,
    common,
    dashboard,
    prometheus,
    stat,
    statushistory,
    table,
    timeseries,
)
from grafana_foundation_sdk.models.common import (
    AxisPlacement,
    BigValueGraphMode,
    BigValueTextMode,
    GraphTresholdsStyleMode,
    LegendDisplayMode,
    LegendPlacement,
    ScaleDistribution,
    SortOrder,
    StackingMode,
    TooltipDisplayMode,
    VisibilityMode,
    VizOrientation,
)
from grafana_foundation_sdk.models.dashboard import (
    DataSourceRef,
    DataTransformerConfig,
    DynamicConfigValue,
    FieldColorModeId,
    Threshold,
    ThresholdsMode,
)
from grafana_foundation_sdk.models.prometheus import PromQueryFormat

Kind = Literal["curves", "number", "bars", "table", "grid"]

DATASOURCE = DataSourceRef(type_val="prometheus", uid="${datasource}")
MOST_POINTS = 120
"""Most moments of a curve: an hour in steps of half a minute. The cost of a query grows with them."""
FEW_POINTS = 60
"""Most moments of a panel that joins the GPUs of many ranks."""
MOST_CELLS = 90
"""Most moments of a grid."""
GOOD, BAD = "green", "red"


class Query(NamedTuple):
    """Expression of PromQL and the name of each series of its result."""

    expression: str
    legend: str
    """Labels in double braces; in a table, the title of the column of values, or nothing if the value is not shown."""
    unit: str = ""
    """Unit if it is not that of the panel: curves then have an axis on the right."""


class Panel(NamedTuple):
    """Panel of a dashboard."""

    title: str
    about: str
    """Sentences that Grafana shows beside the title."""
    unit: str
    """Unit by its identifier in Grafana."""
    queries: tuple[Query, ...]
    kind: Kind = "curves"
    width: int = 8
    """Columns of 24."""
    height: int = 8
    points: int = MOST_POINTS
    limit: float | None = None
    """Value from which on it is red."""
    stacked: bool = False
    logarithmic: bool = False
    empty: str = "none"
    """Text if there is no series."""
    first: tuple[str, ...] = ()
    """Labels that are the first columns of a table."""
    descending: str = ""
    """Column by which the rows of a table are sorted."""


def build(panel: Panel, number: int) -> Any:
    """Return the builder of a panel with the id ``number``."""
    made = BUILDERS[panel.kind](panel)
    made.id(number).title(panel.title).description(panel.about).unit(panel.unit).datasource(DATASOURCE)
    made.span(panel.width).height(panel.height).no_value(panel.empty).thresholds(_thresholds(panel.limit))
    for place, query in enumerate(panel.queries):
        made.with_target(_target(panel, query, chr(ord("A") + place)))
    return made


def _target(panel: Panel, query: Query, name: str) -> prometheus.Dataquery:
    made = prometheus.Dataquery().expr(query.expression).ref_id(name).datasource(DATASOURCE)
    if panel.kind == "table":
        return made.instant().format(PromQueryFormat.TABLE)
    made.legend_format(query.legend).format(PromQueryFormat.TIME_SERIES)
    return made.instant() if panel.kind == "bars" else made.range()


def _thresholds(limit: float | None) -> dashboard.ThresholdsConfig:
    steps = [Threshold(value=None, color=GOOD)] + ([] if limit is None else [Threshold(value=limit, color=BAD)])
    return dashboard.ThresholdsConfig().mode(ThresholdsMode.ABSOLUTE).steps(steps)


def _legend() -> common.VizLegendOptions:
    return (
        common.VizLegendOptions()
        .display_mode(LegendDisplayMode.LIST)
        .placement(LegendPlacement.BOTTOM)
        .show_legend(show_legend=True)
    )


def _curves(panel: Panel) -> timeseries.Panel:
    tooltip = common.VizTooltipOptions().mode(TooltipDisplayMode.MULTI).sort(SortOrder.DESCENDING)
    made = timeseries.Panel().legend(_legend()).tooltip(tooltip).max_data_points(panel.points).line_width(1)
    made.color_scheme(dashboard.FieldColor().mode(FieldColorModeId.PALETTE_CLASSIC))
    made.span_nulls(False).show_points(VisibilityMode.AUTO)
    if panel.limit is not None:
        made.thresholds_style(common.GraphThresholdsStyleConfig().mode(GraphTresholdsStyleMode.DASHED))
    if panel.stacked:
        made.stacking(common.StackingConfig().mode(StackingMode.NORMAL)).fill_opacity(40)
    if panel.logarithmic:
        made.scale_distribution(common.ScaleDistributionConfig().type(ScaleDistribution.LOG).log(10))
    for place, query in enumerate(panel.queries):
        if query.unit:
            right = DynamicConfigValue("custom.axisPlacement", AxisPlacement.RIGHT)
            made.override_by_query(chr(ord("A") + place), [DynamicConfigValue("unit", query.unit), right])
    return made


def _number(panel: Panel) -> stat.Panel:
    last = common.ReduceDataOptions().calcs(["lastNotNull"]).values(values=False)
    several = len(panel.queries) > 1
    text = BigValueTextMode.VALUE_AND_NAME if several else BigValueTextMode.VALUE
    made = stat.Panel().reduce_options(last).text_mode(text).max_data_points(MOST_CELLS)
    return made.graph_mode(BigValueGraphMode.NONE if several else BigValueGraphMode.AREA)


def _bars(_: Panel) -> bargauge.Panel:
    last = common.ReduceDataOptions().calcs(["lastNotNull"]).values(values=False)
    return bargauge.Panel().reduce_options(last).orientation(VizOrientation.HORIZONTAL).min(0)


def _grid(_: Panel) -> statushistory.Panel:
    made = statushistory.Panel().legend(_legend()).show_value(VisibilityMode.NEVER).max_data_points(MOST_CELLS)
    made.line_width(1).fill_opacity(70)
    return made.color_scheme(dashboard.FieldColor().mode(FieldColorModeId.CONTINUOUS_BL_YL_RD))


def _table(panel: Panel) -> table.Panel:
    made = table.Panel().show_header(show_header=True)
    values = {_column(panel, place): query for place, query in enumerate(panel.queries)}
    left_out = ["Time", *(name for name, query in values.items() if not query.legend)]
    names = {name: query.legend for name, query in values.items() if query.legend}
    if len(panel.queries) > 1:
        made.with_transformation(DataTransformerConfig("merge", options={}))
    order = {label: place for place, label in enumerate(panel.first)}
    options = {"excludeByName": dict.fromkeys(left_out, True), "renameByName": names, "indexByName": order}
    if panel.descending:
        made.sort_by([common.TableSortByFieldState().display_name(panel.descending).desc(True)])
    made.with_transformation(DataTransformerConfig("organize", options=options))
    for query in panel.queries:
        if query.unit:
            made.override_by_name(query.legend, [DynamicConfigValue("unit", query.unit)])
    return made


def _column(panel: Panel, place: int) -> str:
    """Return the name that Grafana gives to the values of a query of a table."""
    return "Value" if len(panel.queries) == 1 else f"Value #{chr(ord('A') + place)}"


BUILDERS: dict[Kind, Callable[[Panel], Any]] = {
    "curves": _curves,
    "number": _number,
    "bars": _bars,
    "table": _table,
    "grid": _grid,
}
