"""Dashboards of Grafana: made by code, and each of their queries run against a Prometheus with a recorded training."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from typing import Any

import numpy as np
import pytest
import yaml

from probe.core.moments import OPS
from probe.core.naming import OUTSIDE_SECONDS
from probe.core.output.metrics import catalogue
from probe.services.exporter.json_numbers import GRADIENT_NORM, UPDATED
from probe.services.exporter.json_numbers import NUMBERS as JSON_NUMBERS
from probe.services.exporter.readings.catalogue import READINGS
from probe.services.server.app import exposition
from probe.services.server.board import RunBoard
from probe.services.server.store import HeartbeatStore
from tests.http_requests import exchange
from tests.required import require, require_program
from tests.resources.recorded_prometheus import PrometheusServer, filled, prometheus_with
from tests.resources.recording import BEGIN, JOB, RECORDED, Recording
from tests.resources.shown_dashboard import GRAFANA, ShownDashboard, named
from tests.waiting import PATIENCE

encoder = require("grafana_foundation_sdk.cog.encoder")
dashboards = require("grafana_foundation_sdk.models.dashboard")
alerting = require("grafana_foundation_sdk.models.alerting")
require("grafana_foundation_sdk.cog.plugins").register_default_plugins()
NAMES = ("cluster", "job", "layers", "ranks")
WORDS = {
    *("sum", "avg", "min", "max", "count", "quantile", "topk", "bottomk", "and", "or", "bool", "rate", "increase"),
    *("avg_over_time", "last_over_time", "exp", "ln", "log10", "abs", "scalar", "vector", "time", "end"),
}
"""Functions and operators of PromQL; any other word of a query is a metric."""
OF_PROMETHEUS = {"up", "scrape_duration_seconds", "ALERTS"}
OF_JSON_FILES = {*(metric.name for metric in JSON_NUMBERS.values()), GRADIENT_NORM.name, UPDATED.name}
OF_THE_EXPORTER = {*READINGS, *OF_JSON_FILES}
OF_ITSELF = {
    *(f"probe_exporter_unreadable_{what}" for what in ("files", "folders", "devices")),
    *(f"probe_exporter_{name}" for name in ("hidden_ranks", "unknown_series", "devices", "scrape_seconds")),
    *(f"probe_exporter_{name}_total" for name in ("scrapes", "probe_starts", "malformed_readings")),
    *("probe_exporter_probe_hung", "probe_exporter_reading_age_seconds"),
    *(f"probe_remediation_{name}_total" for name in ("requests", "alerts", "actions", "history_failures")),
    *(f"probe_remediation_{name}" for name in ("waiting", "running", "up", "action_live")),
    "probe_remediation_last_webhook_timestamp_seconds",
}
"""Metrics of the exporter and of the remediation service about themselves; the exporter's version is in no panel."""


@pytest.fixture(scope="module")
def recording() -> Recording:
    return Recording()


@pytest.fixture(scope="module")
def server(recording: Recording, tmp_path_factory: pytest.TempPathFactory) -> Iterator[PrometheusServer]:
    """Prometheus with a recorded training, which scrapes a page of the same training as exporters do."""
    require_program("promtool")
    with (
        served(page_of(recording)) as port,
        prometheus_with(
            recording,
            tmp_path_factory.mktemp("prometheus"),
            [
                {
                    "job_name": name,
                    "honor_labels": name == "honest",
                    "scrape_interval": "1s",
                    "static_configs": [{"targets": [f"127.0.0.1:{port}"], "labels": {"scraped": name}}],
                }
                for name in ("honest", "strict")
            ],
        ) as running,
    ):
        yield running


@contextmanager
def served(page: bytes) -> Iterator[int]:
    """Port of an exporter that always answers ``page``."""

    class Exporter(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200)
            self.send_header("Content-Type", "text/plain; version=0.0.4")
            self.end_headers()
            self.wfile.write(page)

        def log_message(self, *arguments: Any) -> None:
            """Keep standard error clean."""

    with ThreadingHTTPServer(("127.0.0.1", 0), Exporter) as exporter:
        thread = Thread(target=exporter.serve_forever, kwargs={"poll_interval": 0.02})
        thread.start()
        try:
            yield exporter.server_port
        finally:
            exporter.shutdown()
            thread.join()


def page_of(recording: Recording) -> bytes:
    """Exposition of the ranks of the first node at the end of a recording."""
    lines = []
    for line in recording.lines():
        if line.name in catalogue.METRICS and line.labels["instance"].startswith("node0"):
            labels = ",".join(f'{name}="{value}"' for name, value in line.labels.items() if name != "instance")
            lines.append(f"{line.name}{{{labels}}} {float(np.atleast_1d(line.values)[-1])}\n")
    return "".join(sorted(lines)).encode()


def shown(name: str, server: PrometheusServer, recording: Recording, **chosen: str) -> ShownDashboard:
    return ShownDashboard(name, server, BEGIN, recording.end, chosen)


def content(name: str) -> dict[str, Any]:
    read = json.loads((GRAFANA / "dashboards" / f"{name}.json").read_text("utf-8"))
    assert isinstance(read, dict)
    return read


def expressions(name: str) -> Iterator[str]:
    """Every query of a dashboard as it is in the file."""
    board = content(name)
    for panel in board["panels"]:
        yield from (target["expr"] for target in panel.get("targets", ()))
    yield from (each["expr"] for each in board["annotations"]["list"])
    yield from (each["query"] for each in board["templating"]["list"] if each["type"] == "query")


def alerts() -> list[dict[str, Any]]:
    """Rules of the file of alerts."""
    read = yaml.safe_load((GRAFANA / "provisioning" / "alerting" / "probe.yml").read_text("utf-8"))
    return [rule for group in read["groups"] for rule in group["rules"]]


def metrics_in(expression: str) -> set[str]:
    """Names of metrics in an expression of PromQL."""
    for left_out in (r'"[^"]*"', r"\{[^}]*\}", r"\[[^]]*\]", r"\b(by|on|group_right|group_left) ?\([^)]*\)"):
        expression = re.sub(left_out, " ", expression)
    return set(re.findall(r"[a-zA-Z_:][\w:$]*", expression)) - WORDS


def last(server: PrometheusServer, expression: str, recording: Recording, label: str) -> dict[str, float]:
    """Value of each series at the end of the recording, by a label."""
    found = server.at(expression, recording.end)
    return {each["metric"].get(label, ""): float(each["value"][1]) for each in found}


def test_the_files_are_those_that_the_code_makes(tmp_path: Path) -> None:
    """Dashboards and alerts in the folder are byte for byte those of ``make dashboards``."""
    code = (
        "import sys, json; sys.path.insert(0, sys.argv[1]); import make; "
        "print(json.dumps({str(path.relative_to(make.HERE)): text for path, text in make.files().items()}))"
    )
    done = subprocess.run([sys.executable, "-c", code, str(GRAFANA)], capture_output=True, check=True)
    made = json.loads(done.stdout)
    assert set(made) == {*(f"dashboards/{name}.json" for name in NAMES), "provisioning/alerting/probe.yml"}
    assert {path.name for path in (GRAFANA / "dashboards").iterdir()} == {f"{name}.json" for name in NAMES}
    assert [path for path, text in made.items() if (GRAFANA / path).read_text("utf-8") != text] == []


def test_dashboards_have_unique_identities_and_titles() -> None:
    """No uid, title of a dashboard, id or title of a panel stands twice."""
    boards = [content(name) for name in NAMES]
    assert len({board["uid"] for board in boards}) == len({board["title"] for board in boards}) == len(NAMES)
    for board in boards:
        panels = board["panels"]
        numbers = Counter(panel["id"] for panel in panels)
        titles = Counter(panel["title"] for panel in panels if panel["type"] != "row")
        assert [each for each, count in (numbers + titles).items() if count > 1] == []
        assert 8 <= len(board["uid"]) <= 40


@pytest.mark.parametrize("name", NAMES)
def test_a_dashboard_is_one_of_grafana_and_every_panel_explains_itself(name: str) -> None:
    """Grafana's own types read each file back unchanged; each panel has a text, a unit, a legend and a source."""
    board = content(name)
    assert json.loads(json.dumps(dashboards.Dashboard.from_json(board), cls=encoder.JSONEncoder)) == board
    for panel in board["panels"]:
        if panel["type"] == "row":
            continue
        defaults = panel["fieldConfig"]["defaults"]
        assert all([panel["title"], len(panel["description"]) > 20, defaults["unit"], defaults["noValue"]]), panel
        assert panel["datasource"] == {"type": "prometheus", "uid": "${datasource}"}, panel["title"]
        if panel["type"] in {"timeseries", "status-history"}:
            assert panel["options"]["legend"]["showLegend"] is True, panel["title"]
        if panel["type"] != "table":
            legends = [target["legendFormat"] for target in panel["targets"]]
            assert len(set(filter(None, legends))) == len(panel["targets"]), panel["title"]


@pytest.mark.parametrize("name", NAMES)
def test_panels_fill_the_grid_without_overlap(name: str) -> None:
    """No two panels share a cell, and every row of panels is 24 columns wide."""
    cells = Counter(
        (x, y)
        for panel in content(name)["panels"]
        for place in [panel["gridPos"]]
        for x in range(place["x"], place["x"] + place["w"])
        for y in range(place["y"], place["y"] + place["h"])
    )
    assert set(cells.values()) == {1}
    assert {x for x, _ in cells} == set(range(24))
    assert all((x, y) in cells for _, y in cells for x in range(24))


@pytest.mark.parametrize("name", NAMES)
def test_every_query_of_every_panel_gives_data(name: str, server: PrometheusServer, recording: Recording) -> None:
    """Each query, sent as Grafana sends it after the first choice of every variable, answers with numbers."""
    board = shown(name, server, recording)
    silent = [(each.panel["title"], each.expression) for each in board.targets() if not board.answer(each).has_data]
    assert silent == []
    assert len(list(board.targets())) > 8


@pytest.mark.parametrize("name", NAMES)
def test_every_variable_and_every_mark_gives_data(name: str, server: PrometheusServer, recording: Recording) -> None:
    """Each variable offers values, and the alerts that are marked on curves are found."""
    board = shown(name, server, recording)
    assert [each for each, values in board.choices.items() if not values] == []
    for expression in board.annotations():
        assert server.over(expression, BEGIN, recording.end, 15), expression


def test_every_op_that_can_be_chosen_gives_data(server: PrometheusServer, recording: Recording) -> None:
    """The layers are shown for each op that the rank exports, and for one rank alone."""
    ops = shown("layers", server, recording).choices["op"]
    assert set(ops) == {"norm", "max", "nans", "infs"}
    for op in ops:
        board = shown("layers", server, recording, op=op, signal="param_origin", rank="3")
        curves = [each for each in board.targets() if each.panel["title"] == "Largest layers"]
        assert [board.answer(each).has_data for each in curves] == [True]


def test_every_metric_is_one_that_an_exporter_exports(tmp_path: Path) -> None:
    """Metrics of ranks are in the catalogue, those of the server on its page, those of hosts on the node exporter's."""
    known = {*exported(tmp_path), *OF_PROMETHEUS, *OF_ITSELF}
    queries = [query for name in NAMES for query in expressions(name)]
    queries = [query.split("(", 1)[1].rpartition(",")[0] if "label_values" in query else query for query in queries]
    queries += [rule["data"][0]["model"]["expr"] for rule in alerts()]
    named_there = {metric.replace("$op", op) for query in queries for metric in metrics_in(query) for op in OPS}
    of_hosts = {metric for metric in named_there if metric.startswith("node_")}
    assert named_there - of_hosts - known == set()
    assert len(of_hosts) > 3
    assert of_hosts - node_exporter_metrics() == set()


def test_every_number_that_is_promised_reaches_a_panel(tmp_path: Path) -> None:
    """Each metric of ranks, devices, hosts, JSON files, heartbeats, and of the services about themselves is in the
    query of some panel, and so is each that a guide names."""
    shown_there = {
        metric.replace("$op", op)
        for name in NAMES
        for panel in content(name)["panels"]
        for target in panel.get("targets", ())
        for metric in metrics_in(target["expr"])
        for op in OPS
    }
    assert (exported(tmp_path) | OF_ITSELF) - shown_there == set()
    guides = "".join(path.read_text("utf-8") for path in (GRAFANA.parents[1] / "docs" / "guides").glob("*.md"))
    named_in_guides = set(
        re.findall(r"`((?:probe_(?:training|job|server|rank|host|exporter|remediation)|npu)_\w+)", guides)
    )
    labels = {"npu_id", "npu_name", "npu_uuid", "npu_util", "probe_host_", "probe_exporter_build_info"}
    assert named_in_guides - shown_there - labels == set()
    assert len(named_in_guides) > 50


def exported(folder: Path) -> set[str]:
    """Names of the metrics of ranks, of the exporter, and of the heartbeat server."""
    store = HeartbeatStore(folder / "heartbeats", lambda tickets: None)
    served_by_probe = set(re.findall(r"# TYPE (\w+)", exposition(store, RunBoard(60), Counter()).decode()))
    assert store.close(PATIENCE)
    return {*catalogue.METRICS, *(each.name for each in catalogue.SHOWN_BY_NODE), *served_by_probe} | OF_THE_EXPORTER


def node_exporter_metrics() -> set[str]:
    """Names on the page of a real node exporter."""
    program = require_program("prometheus-node-exporter")
    command = [program, "--web.listen-address=127.0.0.1:0", "--log.level=info"]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as process:
        assert process.stderr is not None
        try:
            found = (re.search(r"127\.0\.0\.1:([1-9]\d*)", line) for line in process.stderr)
            port = next(int(each[1]) for each in found if each)
            page = exchange(f"http://127.0.0.1:{port}", "GET", "/metrics")[2].decode()
            return set(re.findall(r"# TYPE (\w+)", page))
        finally:
            process.kill()


def test_unknown_words_of_a_query_count_as_metrics() -> None:
    """A name that no exporter has is found wherever it stands."""
    query = 'sum by (job, rank) (rate(one{a="two"}[5m])) / on (job) group_right () three and topk(3, four{} @ end())'
    assert metrics_in(query) == {"one", "three", "four"}


def test_curves_of_the_largest_are_the_same_all_the_time(server: PrometheusServer, recording: Recording) -> None:
    """A panel of the ten largest has ten curves, each over all of the time, chosen by their values at the end."""
    layers = json.loads(RECORDED.read_text("utf-8"))["tensors"]["grad_reduced"]
    largest = sorted(layers, key=lambda layer: -layers[layer]["norm"][-1])[:10]
    board = shown("layers", server, recording)
    (target,) = (each for each in board.targets() if each.panel["title"] == "Largest layers")
    series = board.answer(target).series
    assert {labels["layer"] for labels, _, _ in series} == set(largest)
    assert {len(values) for _, _, values in series} == {(recording.end - BEGIN) // board.interval + 1}


@pytest.mark.parametrize("name", NAMES)
def test_curves_of_an_ended_job_are_shown(name: str, server: PrometheusServer, recording: Recording) -> None:
    """Every curve has data while the shown time goes on for a quarter of an hour after the last sample."""
    board = ShownDashboard(name, server, BEGIN, recording.end + 900)
    curves = [each for each in board.targets() if each.panel["type"] == "timeseries"]
    assert [(each.panel["title"], each.expression) for each in curves if not board.answer(each).has_data] == []
    assert curves


def test_numbers_of_panels_are_those_of_the_training(server: PrometheusServer, recording: Recording) -> None:
    """Mean loss, factor of change and straggler agree with NumPy over the recorded numbers; a watchdog is no alert."""
    training = json.loads(RECORDED.read_text("utf-8"))
    board = shown("job", server, recording)
    (loss,) = (each for each in board.targets() if each.panel["title"] == "Mean loss")
    expected = np.mean([run["loss"][-1] for run in training["runs"]])
    assert last(server, loss.expression, recording, "")[""] == pytest.approx(expected)

    (firing,) = (query for query in expressions("cluster") if query.startswith("count(ALERTS"))
    assert last(server, filled(firing, {"cluster": ".*"}), recording, "") == {"": 1}

    board = shown("ranks", server, recording)
    (slow,) = (each for each in board.targets() if each.panel["title"] == "Time outside of collectives")
    outside = np.array([run[OUTSIDE_SECONDS][-1] for run in training["runs"]])
    ratios = last(server, slow.expression, recording, "rank")
    assert ratios == pytest.approx({str(rank): value for rank, value in enumerate(outside / np.median(outside))})
    assert max(ratios, key=lambda rank: ratios[rank]) == "5"

    board = shown("layers", server, recording)
    (change,) = (each for each in board.targets() if each.panel["title"] == "Layers that have changed the most")
    steps = np.minimum((recording.times - BEGIN) * 60 // 600, 59)
    for layer, factor in last(server, change.expression, recording, "layer").items():
        norms = np.array(training["tensors"]["grad_reduced"][layer]["norm"])[steps * 12 // 60]
        assert factor == pytest.approx(np.exp(abs(np.log(norms[-1] / norms.mean()))), rel=1e-6)


def test_gpus_are_joined_with_ranks(server: PrometheusServer, recording: Recording) -> None:
    """The GPU of a rank is the one whose uuid the rank has, though both have another instance and job."""
    board = shown("ranks", server, recording)
    (memory,) = (each for each in board.targets() if each.panel["title"] == "Memory of GPUs")
    assert last(server, memory.expression, recording, "rank") == {str(rank): (60 + rank) * 2**30 for rank in range(8)}


def test_tables_have_a_column_for_each_value_that_is_shown(server: PrometheusServer, recording: Recording) -> None:
    """Each renamed or hidden column of a table is one that Grafana makes of its queries, and rows can be joined."""
    for name in NAMES:
        board = shown(name, server, recording)
        for panel in board.panels():
            if panel["type"] != "table":
                continue
            answers = [board.answer(each) for each in board.targets() if each.panel is panel]
            shared = set.intersection(*(set(labels) for answer in answers for labels, _, _ in answer.series))
            assert shared, panel["title"]
            suffixes = [""] if len(answers) == 1 else [f" #{answer.target.reference}" for answer in answers]
            options = panel["transformations"][-1]["options"]
            columns = {f"Value{suffix}" for suffix in suffixes}
            left_out = {each for each in options["excludeByName"] if "Value" in each}
            assert set(options["renameByName"]) | left_out == columns


def test_legends_name_labels_that_the_series_have(server: PrometheusServer, recording: Recording) -> None:
    """Curves of a panel have different names."""
    for name in NAMES:
        board = shown(name, server, recording)
        for target in board.targets():
            names = [named(target.legend, labels) for labels, _, _ in board.answer(target).series]
            if target.panel["type"] != "table":
                assert len(set(names)) == len(names), (target.panel["title"], names)


def test_alerts_of_grafana_ask_for_data_and_state_what_to_do(server: PrometheusServer, recording: Recording) -> None:
    """Each rule is read by Grafana's types, its query answers, and its threshold and labels are complete."""
    sources = GRAFANA / "provisioning" / "datasources" / "probe.yml"
    (source,) = yaml.safe_load(sources.read_text("utf-8"))["datasources"]
    assert len({rule["uid"] for rule in alerts()}) == len(alerts()) > 3
    for rule in alerts():
        assert alerting.Rule.from_json(rule).title == rule["title"]
        query, threshold = rule["data"]
        assert query["datasourceUid"] == source["uid"]
        assert server.at(query["model"]["expr"], recording.end), query["model"]["expr"]
        assert (rule["condition"], threshold["model"]["expression"]) == (threshold["refId"], query["refId"])
        assert rule["labels"]["severity"] in {"critical", "warning", "info"}
        assert rule["labels"]["component"] in {"gpu", "training"}
        assert all([rule["annotations"]["summary"], rule["annotations"]["description"]])


def test_the_guide_has_every_panel_with_its_queries() -> None:
    """The page lists each panel and query of the files, and shows the picture of each dashboard."""
    page = (GRAFANA.parents[1] / "docs" / "guides" / "dashboards.md").read_text("utf-8")
    for name in NAMES:
        assert f"../pictures/dashboard_{name}.svg" in page
        for panel in content(name)["panels"]:
            for target in panel.get("targets", ()):
                assert f"**{panel['title']}**" in page
                assert f"\n{target['expr']}\n" in page, (name, panel["title"])


def test_a_training_job_keeps_its_name_where_labels_are_honoured(server: PrometheusServer) -> None:
    """The label ``job`` of a rank is that of the training with ``honor_labels``; without it no panel would find it.

    The last test, since Prometheus takes up to five seconds until it scrapes.
    """
    deadline = time.monotonic() + PATIENCE
    found: dict[str, str] = {}
    while set(found) != {"honest", "strict"}:
        assert time.monotonic() < deadline, found
        series = server.at('probe_training_step{scraped!=""}', time.time())
        found = {each["metric"]["scraped"]: each["metric"]["job"] for each in series}
        time.sleep(0.02)  # between two looks
    assert found == {"honest": JOB, "strict": "strict"}
    step = next(expr for expr in expressions("job") if "probe_training_step{" in expr)
    query = filled(step, {"cluster": ".*", "job": JOB})
    assert server.at(query, time.time()), "series without a label of the cluster are shown while all are chosen"
