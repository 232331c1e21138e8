"""Alerts that Grafana evaluates by itself: a query, a threshold and a time, in the format of its provisioning files.

Format: https://grafana.com/docs/grafana/v10.1/alerting/set-up/provision-alerting-resources/file-provisioning/
"""

from __future__ import annotations

import json
from typing import Any, NamedTuple

from grafana_foundation_sdk.builders import alerting, expr, prometheus
from grafana_foundation_sdk.cog.encoder import JSONEncoder
from grafana_foundation_sdk.models.alerting import RelativeTimeRange
from grafana_foundation_sdk.models.dashboard import DataSourceRef

SOURCE = "probe-prometheus"
"""Identity of the data source in provisioning/datasources/probe.yml."""
OF_THE_API = ("folderUID", "orgID", "ruleGroup")
"""Fields of a rule that its group has in a file."""


class ThresholdAlert(NamedTuple):
    """Alert if a query is above a threshold for some time."""

    name: str
    query: str
    above: float
    lasting: str
    severity: str
    component: str
    summary: str
    action: str
    """Advice."""


ALERTS = (
    ThresholdAlert(
        "GpuHot",
        "max by (instance, gpu_id) (gpu_temperature_celsius)",
        85,
        "2m",
        "warning",
        "gpu",
        "GPU {{ $labels.gpu_id }} of {{ $labels.instance }} has {{ $values.A }} degrees Celsius",
        "Look at fans, air and power limit of the node.",
    ),
    ThresholdAlert(
        "GpuMemoryFull",
        "max by (instance, gpu_id) (gpu_memory_used_bytes / gpu_memory_total_bytes)",
        0.95,
        "5m",
        "warning",
        "gpu",
        "GPU {{ $labels.gpu_id }} of {{ $labels.instance }} uses {{ humanizePercentage $values.A.Value }} of memory",
        "A larger batch or a longer sequence would fail; make room before.",
    ),
    ThresholdAlert(
        "LossIsNoNumber",
        "sum by (job) (probe_training_loss != bool probe_training_loss)",
        0,
        "0s",
        "critical",
        "training",
        "{{ $values.A }} ranks of {{ $labels.job }} have NaN as their loss",
        "See the findings of the job for the first layer, and go back to a checkpoint before it.",
    ),
    ThresholdAlert(
        "GradientNormLarge",
        "max by (job) (probe_training_gradient_norm)",
        100,
        "1m",
        "critical",
        "training",
        "{{ $labels.job }} has a gradient norm of {{ $values.A }}",
        "Look at the layers of the job; lower the learning rate or clip gradients.",
    ),
    ThresholdAlert(
        "NoProgress",
        "max by (job) (probe_training_progress_age_seconds / probe_training_step_budget_seconds)",
        1,
        "0s",
        "critical",
        "training",
        "{{ $labels.job }} stands still for longer than its budget",
        "Look at the ranks of the job: the phase in which one of them is alone.",
    ),
    ThresholdAlert(
        "RankMissing",
        "sum by (job) (1 - probe_rank_up)",
        0,
        "0s",
        "critical",
        "training",
        "{{ $values.A }} ranks of {{ $labels.job }} have gone without having ended",
        "Look at the log of the rank and at the kernel's, then start the job again.",
    ),
)


def provisioning() -> dict[str, Any]:
    """Return the content of a provisioning file with all alerts."""
    rules = [json.loads(json.dumps(_rule(alert), cls=JSONEncoder)) for alert in ALERTS]
    for rule in rules:
        for field in OF_THE_API:
            del rule[field]
    group = {"orgId": 1, "name": "probe", "folder": "probe", "interval": "1m", "rules": rules}
    return {"apiVersion": 1, "groups": [group]}


def _rule(alert: ThresholdAlert) -> Any:
    made = alerting.Rule(alert.name).uid(f"probe-{alert.name.lower()}").condition("B").for_val(alert.lasting)
    made.labels({"severity": alert.severity, "component": alert.component})
    made.annotations({"summary": alert.summary, "description": alert.action})
    made.no_data_state("OK").exec_err_state("Error")
    source = DataSourceRef(type_val="prometheus", uid=SOURCE)
    query = prometheus.Dataquery().expr(alert.query).ref_id("A").instant().datasource(source)
    made.with_query(_query("A", SOURCE).model(query))
    evaluator = expr.ExprTypeThresholdConditionsEvaluator().type("gt").params([alert.above])
    threshold = expr.TypeThreshold().ref_id("B").expression("A")
    threshold.datasource(DataSourceRef(type_val="__expr__", uid="__expr__"))
    threshold.conditions([expr.ExprTypeThresholdConditions().evaluator(evaluator)])
    return made.with_query(_query("B", "__expr__").model(threshold)).build()


def _query(name: str, source: str) -> alerting.Query:
    return alerting.Query(name).datasource_uid(source).relative_time_range(RelativeTimeRange(from_val=600, to=0))
