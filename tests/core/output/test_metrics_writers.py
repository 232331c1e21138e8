"""Ways out for metrics, to real receivers: text files, a Pushgateway, a collector of OpenTelemetry."""

from __future__ import annotations

import os
import socket
import subprocess
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.error import URLError
from urllib.request import urlopen

import numpy as np
import pytest

from probe.core.config.load import load
from probe.core.faults import Faults
from probe.core.output.metrics.hub import MetricsHub, MetricsSender, RankName
from probe.core.output.sinks import factory
from probe.core.output.sinks.context import SinkContext
from tests.core.output.test_metrics_board import run_step, tensors
from tests.required import require, require_program

require("prometheus_client")

from prometheus_client.parser import text_string_to_metric_families  # noqa: E402

from tests.waiting import free_port, wait_for  # noqa: E402

SECONDS = 120.0


def hub(folder: Path, faults: Faults | None = None) -> MetricsHub:
    return MetricsHub(RankName("job \u4e2d", 3, 8, "host"), lambda: folder, ["RunNan"], faults or Faults())


def opened(name: str, hub: MetricsHub, tmp_path: Path, **options: Any) -> Any:
    """A sink as a configuration makes it."""
    settings = load({"format": name, name: options})
    make = factory(name)
    assert make is not None
    sink = make(SinkContext(tmp_path, tmp_path, 3, options=settings.sink_options, metrics=hub))
    sink.open()
    return sink


def samples(text: str) -> dict[str, tuple[Mapping[str, str], float]]:
    """Every sample of an exposition, by name."""
    found = {}
    for family in text_string_to_metric_families(text):
        assert family.documentation
        for sample in family.samples:
            found[sample.name + sample.labels.get("layer", "")] = sample.labels, sample.value
    return found


def test_a_text_file_for_the_node_exporter(tmp_path: Path) -> None:
    """It is replaced while training runs, has all series with the labels of the rank, and is gone after the end."""
    ways, folder = hub(tmp_path), tmp_path / "collector"
    folder.mkdir()
    sink = opened("prometheus", ways, tmp_path, textfile=str(folder), seconds=0.05)
    sink.write(run_step(4, loss=float("nan"), learning_rate=0.5))
    sink.write(tensors(1.0, {"fc": 3.0}))

    def written() -> dict[str, tuple[Mapping[str, str], float]]:
        found = samples("".join(path.read_text("utf-8") for path in folder.glob("probe_job___*_rank3.prom")))
        return found if "probe_tensor_normfc" in found else {}

    found = wait_for(written)
    rank = {"job": "job \u4e2d", "rank": "3"}
    assert found["probe_training_learning_rate"] == (rank, 0.5)
    assert np.isnan(found["probe_training_loss"][1])
    assert found["probe_tensor_normfc"] == ({**rank, "signal": "grad_reduced", "layer": "fc"}, 3.0)
    assert found["probe_findings_total"] == ({**rank, "rule": "RunNan"}, 0.0)
    ways.close(SECONDS)
    assert list(folder.iterdir()) == []
    assert ways.faults.counts == {}


def test_a_folder_of_text_files_that_is_not_there_is_an_error_before_training(tmp_path: Path) -> None:
    """The error names the key, the folder and what it should be."""
    with pytest.raises(OSError, match=r"prometheus\.textfile: .*nowhere: expected a directory"):
        opened("prometheus", hub(tmp_path), tmp_path, textfile=str(tmp_path / "nowhere"))


@contextmanager
def pushgateway() -> Iterator[str]:
    """A Pushgateway on this machine."""
    program = require_program("prometheus-pushgateway", "pushgateway")
    address = f"127.0.0.1:{free_port()}"
    # Debian's keeps its groups on the disk of the machine otherwise, from one test to the next.
    command = [program, f"--web.listen-address={address}", "--persistence.file="]
    with subprocess.Popen(command, stderr=subprocess.DEVNULL) as process:
        try:
            wait_for(partial(ready, f"http://{address}/-/ready"))
            yield f"http://{address}"
        finally:
            process.terminate()


def ready(address: str) -> bool:
    try:
        with urlopen(address, timeout=10) as answer:
            return bool(answer.status == 200)
    except URLError:
        return False


def test_a_push_gateway_has_the_numbers_until_the_end(tmp_path: Path) -> None:
    """They are sent while training runs, early however long the later pauses are, in a group of the job and rank, and
    deleted when it ends."""
    with pushgateway() as address:
        ways = hub(tmp_path)
        sink = opened("prometheus", ways, tmp_path, push=address, seconds=3600.0)
        sink.write(run_step(4, loss=0.25))

        def shown() -> tuple[Mapping[str, str], float] | None:
            with urlopen(f"{address}/metrics") as answer:
                return samples(answer.read().decode()).get("probe_training_loss")

        labels, value = wait_for(shown)
        assert value == 0.25
        assert labels == {"job": "job \u4e2d", "rank": "3", "instance": ""}
        ways.close(SECONDS)
        assert shown() is None
        assert ways.faults.counts == {}


class Collector(ThreadingHTTPServer):
    """Receiver of metrics by OTLP over HTTP."""

    def __init__(self, status: int = 200) -> None:
        super().__init__(("127.0.0.1", 0), partial(_Handler))
        self.status, self.bodies, self.headers = status, list[Any](), list[Mapping[str, str]]()
        threading.Thread(target=self.serve_forever, daemon=True).start()

    @property
    def address(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}/v1/metrics"


class _Handler(BaseHTTPRequestHandler):
    server: Collector

    def do_POST(self) -> None:
        from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import ExportMetricsServiceRequest

        body = self.rfile.read(int(self.headers["Content-Length"]))
        if self.headers.get("Content-Encoding") == "gzip":
            import gzip

            body = gzip.decompress(body)
        self.server.bodies.append(ExportMetricsServiceRequest.FromString(body))
        self.server.headers.append(dict(self.headers))
        self.send_response(self.server.status)
        self.end_headers()

    def log_message(self, *_: object) -> None:
        """Write nothing."""


def decoded(body: Any) -> tuple[dict[str, str], dict[tuple[str, ...], float]]:
    """The resource of a message, and its points by metric and labels."""
    (resource,) = body.resource_metrics
    points = {}
    for metric in resource.scope_metrics[0].metrics:
        assert metric.description
        data = metric.sum if metric.HasField("sum") else metric.gauge
        assert not metric.HasField("sum") or (metric.sum.is_monotonic and metric.name.endswith("_total"))
        for point in data.data_points:
            labels = (attribute.value.string_value for attribute in point.attributes)
            value = point.as_double if point.HasField("as_double") else float(point.as_int)
            points[(metric.name, *labels)] = value
    return {each.key: each.value.string_value for each in resource.resource.attributes}, points


def test_metrics_by_opentelemetry(tmp_path: Path) -> None:
    """A collector gets the job and rank as the resource, every series as a point, and the headers of a file."""
    require("opentelemetry.sdk")
    secret = tmp_path / "headers"
    secret.write_text("Authorization: Bearer abc\n\nX-Scope: a:b\n")
    secret.chmod(0o600)
    collector, ways = Collector(), hub(tmp_path)
    sink = opened("otlp", ways, tmp_path, endpoint=collector.address, headers_file=str(secret), seconds=0.05)
    sink.write(run_step(4, loss=float("inf"), skipped=0.0))
    sink.write(tensors(1.0, {"fc": 3.0}))
    wait_for(lambda: collector.bodies and len(decoded(collector.bodies[-1])[1]) >= 9)
    ways.close(SECONDS)
    collector.shutdown()
    resource, points = decoded(collector.bodies[-1])
    assert resource["job"] == resource["service.name"] == "job \u4e2d"
    assert resource["rank"] == "3"
    assert points["probe_training_loss",] == float("inf")
    assert points["probe_training_steps_total",] == 1.0
    assert points["probe_tensor_norm", "grad_reduced", "fc"] == 3.0
    assert points["probe_findings_total", "RunNan"] == 0.0
    assert {name.lower(): value for name, value in collector.headers[-1].items()}["authorization"] == "Bearer abc"
    assert ways.faults.counts == {}


@pytest.mark.parametrize("status", [400, 503])
def test_a_collector_that_refuses_is_counted(tmp_path: Path, status: int) -> None:
    """Failures are counted, not raised, and the end takes no longer than it may."""
    require("opentelemetry.sdk")
    collector, ways = Collector(status), hub(tmp_path)
    sink = opened("otlp", ways, tmp_path, endpoint=collector.address, seconds=0.05)
    sink.write(run_step(4, loss=1.0))
    wait_for(lambda: collector.bodies)
    began = time.monotonic()
    ways.close(1.0)
    assert time.monotonic() - began < 25
    collector.shutdown()
    assert any(name.startswith("metrics: ") for name in ways.faults.counts)


def test_a_receiver_that_never_answers_does_not_hold_the_end_up(tmp_path: Path) -> None:
    """A gateway that accepts connections and is silent costs the end its seconds, and is counted."""
    with socket.socket() as silent:
        silent.bind(("127.0.0.1", 0))
        silent.listen()
        ways = hub(tmp_path)
        sink = opened("prometheus", ways, tmp_path, push=f"127.0.0.1:{silent.getsockname()[1]}", seconds=60)
        sink.write(run_step(4, loss=1.0))
        began = time.monotonic()
        ways.close(0.5)
        assert time.monotonic() - began < 25
    assert ways.faults.counts


@pytest.mark.parametrize(
    ("content", "mode", "problem"),
    [
        ("Authorization: Bearer secret-token", 0o644, "others can read it"),
        ("Authorization secret-token", 0o600, "headers:1: expected a header"),
        (None, 0o600, "cannot be read"),
    ],
)
def test_a_file_of_headers_that_cannot_be_used(tmp_path: Path, content: str | None, mode: int, problem: str) -> None:
    """It is an error before training that says what is wrong and has nothing of the secret."""
    require("opentelemetry.sdk")
    file = tmp_path / "headers"
    if content is not None:
        file.write_text(content)
        file.chmod(mode)
    with pytest.raises(ValueError, match=problem) as error:
        opened("otlp", hub(tmp_path), tmp_path, headers_file=str(file))
    assert "secret-token" not in str(error.value)


def test_a_forked_child_sends_nothing(tmp_path: Path) -> None:
    """Closing in a child neither waits nor sends, and the file of its parent stays."""
    sent: list[int] = []

    class Writer:
        def send(self, series: Any, values: Any, seconds: float) -> None:
            sent.append(os.getpid())

        def end(self, seconds: float) -> None:
            sent.append(os.getpid())

    class Late(MetricsSender):
        FIRST_SECONDS = 60.0

    sender = Late(Writer(), lambda: ([], np.empty(0)), 60.0, Faults())
    child = os.fork()
    if child == 0:
        sender.close(SECONDS)
        os._exit(len(sent))
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    sender.close(SECONDS)
    assert sent == [os.getpid()] * 2
