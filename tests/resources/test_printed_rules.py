"""Alerts of a monitoring stack as they are printed (001), over the series that are exported here: expressions, times
and labels are unmodified, texts are left out."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import yaml

from probe.core.output.metrics.catalogue import METRICS
from probe.services.exporter.json_numbers import GRADIENT_NORM, NUMBERS
from tests.resources.monitoring_process import PROMETHEUS
from tests.resources.rule_cases import contents, judged, names_in
from tests.resources.test_prometheus_rules import OF_EXPORTERS, OF_OTHERS

PRINTED = """
groups:
- name: gpu_alerts
  rules:
  - alert: GPUTemperatureHigh
    expr: gpu_temperature_celsius > 85
    for: 2m
    labels: {severity: warning, component: gpu}
  - alert: GPUMemoryUsageHigh
    expr: (gpu_memory_used_bytes / gpu_memory_total_bytes) * 100 > 90
    for: 5m
    labels: {severity: critical, component: gpu}
  - alert: GPUUtilizationLow
    expr: gpu_utilization_percent < 10
    for: 10m
    labels: {severity: warning, component: gpu}
- name: training_alerts
  rules:
  - alert: TrainingLossSpike
    expr: increase(training_loss[5m]) > 1.0
    for: 0m
    labels: {severity: critical, component: training}
  - alert: TrainingThroughputDrop
    expr: ((avg_over_time(training_throughput_samples_per_second[30m]) - avg_over_time(training_throughput_samples_per_second[5m])) / avg_over_time(training_throughput_samples_per_second[30m])) * 100 > 20
    for: 5m
    labels: {severity: warning, component: training}
  - alert: GradientExplosion
    expr: gradient_norm > 100
    for: 0m
    labels: {severity: critical, component: training}
- name: system_alerts
  rules:
  - alert: DiskSpaceLow
    expr: (node_filesystem_avail_bytes{mountpoint="/"} / node_filesystem_size_bytes{mountpoint="/"}) * 100 < 10
    for: 5m
    labels: {severity: critical, component: system}
  - alert: MemoryUsageHigh
    expr: ((node_memory_MemTotal_bytes - node_memory_MemAvailable_bytes) / node_memory_MemTotal_bytes) * 100 > 90
    for: 5m
    labels: {severity: warning, component: system}
"""  # noqa: E501 - as printed
GPU = 'gpu_id="0",gpu_name="A",gpu_uuid="GPU-1",instance="node1:9445",job="probe-exporter",node="node1"'
RANK = 'instance="node1:9445",job="pretrain",node="node1",rank="0"'
FILE = 'instance="node1:9445",job="probe-exporter",job_name="legacy",node="node1"'
NODE = 'instance="node1:9100",job="node-exporter",node="node1"'
SERIES = {
    f"gpu_temperature_celsius{{{GPU}}}": ("70x40", "90x10"),
    f"gpu_memory_used_bytes{{{GPU}}}": ("50x40", "95x10"),
    f"gpu_memory_total_bytes{{{GPU}}}": ("100x40", "100x10"),
    f"gpu_utilization_percent{{{GPU}}}": ("90x40", "5x10"),
    f"probe_training_loss{{{RANK}}}": ("10x40", "11.5x10"),
    f"training_loss{{{FILE}}}": ("10x40", "11.5x10"),
    f"probe_training_throughput_samples_per_second{{{RANK}}}": ("100x40", "50x10"),
    f"training_throughput_samples_per_second{{{FILE}}}": ("100x40", "50x10"),
    f"probe_training_gradient_norm{{{RANK}}}": ("1x40", "150x10"),
    f"gradient_norm{{{FILE}}}": ("1x40", "150x10"),
    f'node_filesystem_avail_bytes{{{NODE},mountpoint="/"}}': ("50x40", "5x10"),
    f'node_filesystem_size_bytes{{{NODE},mountpoint="/"}}': ("100x40", "100x10"),
    f"node_memory_MemAvailable_bytes{{{NODE}}}": ("50x40", "5x10"),
    f"node_memory_MemTotal_bytes{{{NODE}}}": ("100x40", "100x10"),
}
"""Series with their values a minute: 41 healthy ones, then 11 of which the alerts fire."""


def labels(text: str, rule: dict[str, Any], **more: str) -> dict[str, str]:
    """Labels of an alert about the series with these."""
    return {name: value.strip('"') for name, value in (pair.split("=") for pair in text.split(","))} | {
        **rule["labels"], **more
    }  # fmt: skip


def test_alerts_as_printed_fire_over_the_series_that_are_exported(tmp_path: Path) -> None:
    """Each of the eight, of ranks and of a program's JSON file; none of them before; the series are those of `probe
    exporter` and of the node exporter, and of a record that older names have."""
    printed = yaml.safe_load(PRINTED)
    rules = {rule["alert"]: rule for group in printed["groups"] for rule in group["rules"]}
    recording = contents(PROMETHEUS / "rules" / "recording.yml")
    exported = {*METRICS, *OF_EXPORTERS, *OF_OTHERS, GRADIENT_NORM.name, *(each.name for each in NUMBERS.values())}
    assert {name for series in SERIES for name in names_in(series)} <= exported
    system = {"DiskSpaceLow": f'{NODE},mountpoint="/"', "MemoryUsageHigh": NODE}
    expected = {name: [labels(system.get(name, GPU), rule)] for name, rule in rules.items()}
    for name in ("TrainingLossSpike", "TrainingThroughputDrop", "GradientExplosion"):
        layer = {"layer": "all"} if name == "GradientExplosion" else {}
        expected[name] = [labels('job_name="pretrain"', rules[name], **layer), labels(FILE, rules[name])]
    case = {
        "name": "printed",
        "interval": "1m",
        "input_series": [{"series": name, "values": f"{quiet} {bad}"} for name, (quiet, bad) in SERIES.items()],
        "alert_rule_test": [
            {"eval_time": time, "alertname": name, "exp_alerts": [{"exp_labels": row} for row in rows]}
            for name, found in expected.items()
            for time, rows in (("40m", []), ("51m", found))
            if name != "TrainingLossSpike" or time == "40m"
        ]
        + [
            {
                "eval_time": "42m",
                "alertname": "TrainingLossSpike",
                "exp_alerts": [{"exp_labels": row} for row in expected["TrainingLossSpike"]],
            }
        ],
    }
    groups = {"groups": printed["groups"] + recording["groups"]}
    done = judged(tmp_path, {"all.yml": groups}, {"printed.yml": {"rule_files": ["all.yml"], "tests": [case]}})
    assert done.returncode == 0, done.stdout + done.stderr
