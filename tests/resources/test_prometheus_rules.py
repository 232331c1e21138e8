"""Configuration, alerts and recording rules of Prometheus: in promtool, and in a real Prometheus with Alertmanager."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from copy import deepcopy
from pathlib import Path
from shutil import copytree
from typing import Any, NamedTuple

import pytest

from probe.core.output.metrics.catalogue import METRICS, SHOWN_BY_NODE
from tests.resources.monitoring_process import (
    ALERTMANAGER,
    PROMETHEUS,
    ROOT,
    Receiver,
    Server,
    alertmanager,
    node_exporter,
    prometheus,
)
from tests.resources.rule_cases import contents, judged, names_in, promtool
from tests.waiting import wait_for

GUIDE = (ROOT / "docs" / "guides" / "prometheus.md").read_text("utf-8")
RULE_FILES = sorted((PROMETHEUS / "rules").glob("*.yml"))
TEST_FILES = sorted((PROMETHEUS / "tests").glob("*.yml"))
SEVERITIES, COMPONENTS = {"critical", "warning", "info"}, {"gpu", "training", "system", "monitor"}

_READINGS = ("utilization_percent", "memory_used_bytes", "memory_total_bytes", "temperature_celsius")
OF_EXPORTERS = {
    *(f"{device}_{reading}" for device in ("gpu", "npu") for reading in (*_READINGS, "power_usage_watts")),
    *("gpu_power_limit_watts", "gpu_ecc_errors_total", "gpu_throttle_active", "gpu_xid_last_code", "npu_healthy"),
    *("probe_host_cpu_utilization_ratio", "probe_host_memory_available_bytes", "probe_host_memory_total_bytes"),
    *("probe_host_disk_free_bytes", "probe_host_disk_total_bytes", "probe_host_disk_hung"),
    *("probe_host_network_receive_bytes_total", "probe_host_network_transmit_bytes_total"),
    *("probe_exporter_devices", "probe_exporter_probe_hung", "probe_exporter_reading_age_seconds"),
    *(f"probe_exporter_unreadable_{what}" for what in ("files", "folders", "devices")),
    *("probe_remediation_up", "probe_remediation_history_failures_total"),
    *("training_loss", "training_throughput_samples_per_second", "training_gradient_norm"),
}
"""Metrics of `probe exporter`, of the JSON files that it reads, and of `probe remediate`."""
OF_OTHERS = {
    *("up", "node_vmstat_oom_kill", "node_disk_io_time_seconds_total"),
    *("node_filesystem_avail_bytes", "node_filesystem_size_bytes", "node_filesystem_readonly"),
    *("node_memory_MemAvailable_bytes", "node_memory_MemTotal_bytes"),
    *("node_network_receive_errs_total", "node_network_transmit_errs_total"),
    *("prometheus_config_last_reload_successful", "alertmanager_config_last_reload_successful"),
    *("prometheus_rule_evaluation_failures_total", "prometheus_rule_group_interval_seconds"),
    *("prometheus_rule_group_last_duration_seconds", "prometheus_notifications_dropped_total"),
    *("prometheus_notifications_alertmanagers_discovered", "prometheus_tsdb_head_series"),
    *("prometheus_target_scrapes_exceeded_sample_limit_total", "prometheus_tsdb_compactions_failed_total"),
    *("prometheus_tsdb_checkpoint_creations_failed_total", "alertmanager_notifications_failed_total"),
}
"""Metrics of the node exporter, of Prometheus and of Alertmanager."""


class Rule(NamedTuple):
    """Rule of a file."""

    file: str
    group: str
    interval: str
    content: dict[str, Any]


RULES: dict[str, Any] = {path.name: contents(path) for path in RULE_FILES}


def rules() -> Iterator[Rule]:
    """Every rule of every file."""
    for name, content in RULES.items():
        for group in content["groups"]:
            for each in group["rules"]:
                yield Rule(name, group["name"], group["interval"], each)


ALERTS = {rule.content["alert"]: rule for rule in rules() if "alert" in rule.content}
RECORDS = {rule.content["record"] for rule in rules() if "record" in rule.content}
CASES = {path.name: contents(path) for path in TEST_FILES}


def test_configuration_and_rules_are_accepted() -> None:
    """promtool accepts the configuration as it is shipped, with its targets and every file of rules."""
    for done in (
        promtool("check", "config", PROMETHEUS / "prometheus.yml"),
        promtool("check", "rules", "--lint=all", "--lint-fatal", *RULE_FILES),
    ):
        assert done.returncode == 0, done.stdout + done.stderr
    assert len(ALERTS) > 50


@pytest.mark.slow
def test_rules_pass_their_unit_tests(tmp_path: Path) -> None:
    """Every case of every file, in promtool; the files that a file of cases names are there."""
    for path in TEST_FILES:
        assert all((path.parent / name).is_file() for name in CASES[path.name]["rule_files"])
        groups = {
            group["name"] for name in CASES[path.name]["rule_files"] for group in RULES[Path(name).name]["groups"]
        }
        assert groups >= set(CASES[path.name].get("group_eval_order", ()))
    done = judged(tmp_path, RULES, CASES)
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.count("SUCCESS") > len(TEST_FILES)


def test_every_alert_has_cases_in_which_it_fires_and_in_which_it_does_not() -> None:
    """In the second, series of its metrics are there; and every record has a value in a case."""
    fires, quiet, recorded = set(), set(), ""
    for file in CASES.values():
        for group in file["tests"]:
            for check in group.get("alert_rule_test", ()):
                (fires if check["exp_alerts"] else quiet).add(check["alertname"])
                if not check["exp_alerts"]:
                    assert names_in(" ".join(each["series"] for each in group["input_series"])), group["name"]
            recorded += " ".join(each["expr"] for each in group.get("promql_expr_test", ()))
    assert ALERTS.keys() - fires == set()
    assert ALERTS.keys() - quiet == {"Watchdog"}
    assert {name for name in RECORDS if name not in recorded} == set()


def test_cases_have_gaps_resets_and_values_that_are_no_numbers() -> None:
    """Of the files that can have them; a counter that is reset is one whose values begin anew."""
    for name in ("gpu.yml", "training.yml", "training_hours.yml", "system.yml", "monitor.yml", "recording.yml"):
        values = [each["values"] for group in CASES[name]["tests"] for each in group["input_series"]]
        assert any("_" in each for each in values), name
        assert any("NaN" in each for each in values), name
    for name in ("gpu.yml", "training_hours.yml", "system.yml", "monitor.yml", "recording.yml"):
        counters = [
            each["values"]
            for group in CASES[name]["tests"]
            for each in group["input_series"]
            if re.match(r"\w+_total\b|node_vmstat_oom_kill", each["series"])
        ]
        assert any(re.search(r"[1-9]\d*x\d+ 0x", each) for each in counters), name


def test_every_metric_is_one_that_is_exported() -> None:
    """A metric of an expression is one of the catalogue, of an exporter, of a program beside it, or a record."""
    known = {*METRICS, *(metric.name for metric in SHOWN_BY_NODE), *OF_EXPORTERS, *OF_OTHERS, *RECORDS}
    known |= {*_server_metrics()}
    used: set[str] = set()
    for rule in rules():
        found = names_in(rule.content["expr"])
        assert found <= known, (rule.content, found - known)
        used |= found
    assert used >= OF_OTHERS


def _server_metrics() -> set[str]:
    """Names that the heartbeat server writes."""
    source = (ROOT / "probe" / "services" / "server" / "app.py").read_text("utf-8")
    return set(re.findall(r'"(probe_(?:server|job)_\w+)"', source))


@pytest.mark.parametrize("name", ALERTS)
def test_alert_says_what_it_is_and_what_to_do(name: str) -> None:
    """Severity, component, summary, description, action, and a heading of the guide that is there."""
    alert = ALERTS[name].content
    assert alert["labels"]["severity"] in SEVERITIES
    assert alert["labels"]["component"] in COMPONENTS
    assert list(alert["annotations"]) == ["summary", "description", "action", "guide"]
    page, _, heading = alert["annotations"]["guide"].partition("#")
    assert page == "docs/guides/prometheus.md"
    assert heading in [line.lstrip("# ").lower().replace(" ", "-") for line in GUIDE.splitlines() if line[:1] == "#"]
    assert "humanizePercentage" not in alert["annotations"]["description"] or "* 100" not in alert["expr"]
    assert alert["labels"]["severity"] != "critical" or ALERTS[name].interval == "1s" or "for" in alert or name in SLOW


SLOW = {"NotificationsFailing"}
"""Critical alerts that are judged less often than every second: the numbers that they need are scraped so."""


def test_guide_lists_every_alert() -> None:
    """Name, severity, time, and when it fires: a row an alert, in the order of the files."""
    rows = re.findall(r"^\| `(\w+)` \| (\w+) \| ([^|]+) \| [^|]+ \| [^|]+ \|$", GUIDE, re.MULTILINE)
    found = {name: (severity, lasting.strip()) for name, severity, lasting in rows}
    assert found == {
        name: (rule.content["labels"]["severity"], rule.content.get("for", "at once")) for name, rule in ALERTS.items()
    }


COMPARISON = re.compile(r"(?<![=!<>])([<>])=? (\d[\d.e]*)|== ([01])\b")
NO_THRESHOLD = {
    *("TrainingLossNaN", "GradientNotFinite", "TrainingStalled", "JobWithoutTargets", "TrainingEnded", "Watchdog"),
    *("GPUXidError", "GPUHardwareError"),
}
"""Alerts whose condition is no comparison with a number that could be met exactly."""


@pytest.mark.slow
def test_a_rule_that_is_a_little_too_sensitive_fails_its_test(tmp_path: Path) -> None:
    """With bounds that are met a little earlier in every rule, some case in which an alert does not fire fails."""
    changed = deepcopy(RULES)
    for rule in _alerts_of(changed):
        rule["expr"] = COMPARISON.sub(_weaker, rule["expr"])
    assert ALERTS.keys() - NO_THRESHOLD - failing(tmp_path, changed, "does not fire") == set()


@pytest.mark.slow
def test_a_rule_that_fires_at_once_fails_its_test(tmp_path: Path) -> None:
    """Without their times, alerts fire in cases in which they must not."""
    changed = deepcopy(RULES)
    for rule in _alerts_of(changed):
        rule.pop("for", None)
    lasting = {name for name, rule in ALERTS.items() if "for" in rule.content}
    assert lasting - failing(tmp_path, changed, " fires: ") == set()


def _alerts_of(files: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    """Every alert of files of rules."""
    for content in files.values():
        yield from (rule for group in content["groups"] for rule in group["rules"] if "alert" in rule)


def _weaker(found: re.Match[str]) -> str:
    """A comparison that more values meet: its bound too, and up to 15% beyond."""
    if found[3]:
        return {"0": "<= 1", "1": ">= 0"}[found[3]]
    return f"{found[1]}= {float(found[2]) * (0.85 if found[1] == '>' else 1.15):g}"


def failing(folder: Path, changed: Mapping[str, Any], kind: str) -> set[str]:
    """Alerts of ``changed`` rules that fire where they must not, in cases with ``kind`` in their names."""
    cases = deepcopy(CASES)
    for content in cases.values():
        content["tests"] = [each for each in content["tests"] if kind in each["name"] and "alert_rule_test" in each]
        for case in content["tests"]:  # no further than the last time at which it must not fire
            case["alert_rule_test"] = [check for check in case["alert_rule_test"] if not check["exp_alerts"]]
        content["tests"] = [each for each in content["tests"] if each["alert_rule_test"]]
    return set(re.findall(r"alertname: ?(\w+), time", judged(folder, changed, cases).stderr))


COPIED = """
groups:
  - name: copied
    rules:
      - alert: Leap
        expr: increase(training_loss[5m]) > 1
        annotations: {text: "{{ $value }}"}
      - alert: Percent
        expr: 100 * used_bytes / total_bytes > 90
        annotations: {text: "{{ $value | humanizePercentage }}"}
"""
COPIED_CASES = """
rule_files: [copied.yml]
evaluation_interval: 1m
tests:
  - interval: 1m
    input_series:
      - {series: 'training_loss{job_name="falls"}', values: '5-0.5x5'}
      - {series: 'training_loss{job_name="leaps", step="1"}', values: '2'}
      - {series: 'training_loss{job_name="leaps", step="2"}', values: '_ 50'}
      - {series: used_bytes, values: '95x5'}
      - {series: total_bytes, values: '100x5'}
    alert_rule_test:
      - eval_time: 5m
        alertname: Leap
        exp_alerts: [{exp_labels: {job_name: falls}, exp_annotations: {text: "17.5"}}]
      - eval_time: 5m
        alertname: Percent
        exp_alerts: [{exp_annotations: {text: "9500%"}}]
"""


def test_defects_of_rules_that_are_often_copied_are_as_the_guide_has_them(tmp_path: Path) -> None:
    """A loss that only falls "increases", a leap between two steps is none, and 95% is printed as 9500%."""
    (tmp_path / "copied.yml").write_text(COPIED)
    (tmp_path / "cases.yml").write_text(COPIED_CASES)
    done = promtool("test", "rules", tmp_path / "cases.yml")
    assert done.returncode == 0, done.stdout
    assert "17.5" in GUIDE
    assert "9500%" in GUIDE


def page_of(**losses: str) -> str:
    """Page of an exporter with two ranks."""
    page = "# TYPE probe_training_loss gauge\n"
    page += "".join(
        f'probe_training_loss{{job="pretrain",rank="{rank[-1]}"}} {loss}\n' for rank, loss in losses.items()
    )
    return page + "".join(f'probe_rank_up{{job="pretrain",rank="{rank[-1]}"}} 1\n' for rank in losses)


class Stack(NamedTuple):
    """Prometheus and Alertmanager with the shipped configurations, of which addresses alone are others."""

    prometheus: Server
    alertmanager: Server
    world: Receiver
    """Exporter and webhook."""
    folder: Path
    """The configuration of Prometheus."""


@pytest.fixture(scope="module", autouse=True)
def stack(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stack]:
    """Both programs. They start before the first test, since Prometheus takes 5 s to look for its first targets."""
    folder = tmp_path_factory.mktemp("stack")
    copytree(PROMETHEUS, folder / "p")
    with ExitStack() as running:
        world = running.enter_context(Receiver())
        world.pages["/metrics"] = page_of(rank0="2.5", rank1="2.5")
        routes = running.enter_context(alertmanager(_routes(folder, world), folder))
        targets = {"probe-exporter": world.port, "alertmanager": routes.port}
        for path in (folder / "p" / "targets").iterdir():
            path.write_text(f"- targets: ['127.0.0.1:{targets[path.stem]}']" if path.stem in targets else "[]")
        server = running.enter_context(prometheus(folder / "p" / "prometheus.yml", folder))
        yield Stack(server, routes, world, folder / "p")


def test_nan_reaches_a_webhook_by_the_shipped_intervals(stack: Stack) -> None:
    """At once, and the notice that it is over comes too; `benchmarks/stack.py` has the seconds."""
    server, world = stack.prometheus, stack.world
    wait_for(lambda: server.get("/api/v1/query?query=job:training_loss:avg")["data"]["result"])
    assert _sent(world, "firing") == []
    world.pages["/metrics"] = page_of(rank0="2.5", rank1="NaN")
    found = wait_for(lambda: _sent(world, "firing"))[0]
    (alert,) = found.body["alerts"]
    assert alert["labels"] == {
        "alertname": "TrainingLossNaN",
        "job": "pretrain",
        "severity": "critical",
        "component": "training",
        "cluster": "ml-training-cluster",
        "region": "region-1",
    }
    assert alert["annotations"]["description"] == "1 ranks of pretrain have NaN or Inf as their loss."
    world.pages["/metrics"] = page_of(rank0="2.5", rank1="2.5")
    wait_for(lambda: _sent(world, "resolved"))


def test_metrics_of_other_programs_are_theirs(stack: Stack, tmp_path: Path) -> None:
    """Real programs show every metric of theirs that a rule names."""
    pages = [server.request("GET", "/metrics")[1].decode() for server in (stack.prometheus, stack.alertmanager)]
    with node_exporter(tmp_path) as server:
        pages.append(server.request("GET", "/metrics")[1].decode())
    shown = set(re.findall(r"^# TYPE (\S+) ", "".join(pages), re.MULTILINE))
    assert OF_OTHERS - shown == {"up"}


def test_prometheus_loads_every_rule_and_keeps_them_if_a_file_is_refused(stack: Stack) -> None:
    """Those that were judged had no error; SIGTERM ends both programs in order."""
    groups = stack.prometheus.get("/api/v1/rules")["data"]["groups"]
    loaded = [(each["name"], rule["name"]) for each in groups for rule in each["rules"]]
    expected = [(rule.group, rule.content.get("alert") or rule.content["record"]) for rule in rules()]
    assert sorted(loaded) == sorted(expected)
    assert [rule for each in groups for rule in each["rules"] if rule["health"] == "err"] == []
    broken = stack.folder / "rules" / "broken.yml"
    broken.write_text("groups: [{name: a, rules: [{alert: A, expr: 'sum('}]}]")
    assert stack.prometheus.request("POST", "/-/reload")[0] == 500
    assert len(stack.prometheus.get("/api/v1/rules")["data"]["groups"]) == len(groups)
    broken.unlink()
    assert stack.prometheus.request("POST", "/-/reload")[0] == 200
    assert (stack.prometheus.end(), stack.alertmanager.end()) == (0, 0)


def _routes(folder: Path, world: Receiver) -> Path:
    """The shipped configuration of Alertmanager with the webhook's address and its token here."""
    text = (ALERTMANAGER / "alertmanager.yml").read_text("utf-8")
    text = text.replace("http://localhost:9095", world.address).replace("/etc/alertmanager/secrets", str(folder))
    (folder / "remediation_token").write_text("secret")
    (folder / "alertmanager.yml").write_text(text)
    (folder / "probe.tmpl").write_text((ALERTMANAGER / "probe.tmpl").read_text("utf-8"))
    return folder / "alertmanager.yml"


def _sent(world: Receiver, status: str) -> list[Any]:
    """What the webhook has got about the loss."""
    found = [each for each in world.at("/webhook") if each.body["status"] == status]
    return [each for each in found if each.body["commonLabels"]["alertname"] == "TrainingLossNaN"]
