"""Recorded training as Prometheus would have scraped it: series of all exporters, for any number of ranks.

The numbers of ranks and layers are those of ``recorded/training.json``, a real training; those of GPUs and hosts follow
from them.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple, TextIO

import numpy as np
import numpy.typing as npt

from probe.core.naming import OUTSIDE_SECONDS, STEP_SECONDS
from probe.core.output.metrics import catalogue
from probe.core.output.metrics.catalogue import Metric

RECORDED = Path(__file__).parent / "recorded" / "training.json"
BEGIN = 236_111 * 7_200
"""Time of the first sample, in Unix time: the beginning of a block of Prometheus."""
JOB, CLUSTER = "pretrain", "training"
NODE_PORTS = {"exporter": 9445, "node": 9100}
STATES = ("alive", "waiting", "silent", "ended", "replaced")

REMEDIATION = {"job": "remediation", "instance": "node0:9095"}
NPU = {"npu_id": "0", "npu_name": "910B", "npu_uuid": "0-0"}
NPU_READINGS = {
    "healthy": 1, "utilization_percent": 80, "memory_used_bytes": 50e9, "memory_total_bytes": 64e9,
    "temperature_celsius": 55, "power_usage_watts": 250, "power_limit_watts": 350,
}  # fmt: skip
JSON_NUMBERS = {
    "step": 9, "epoch": 1, "loss": 2.5, "validation_loss": 2.6, "accuracy": 0.5, "gradient_norm": 1.5,
    "learning_rate": 1e-4, "throughput_samples_per_second": 100, STEP_SECONDS: 0.5,
}  # fmt: skip
"""Numbers of a program that writes a JSON file."""

Values = npt.NDArray[np.float64]


class Line(NamedTuple):
    """Series with a value for each moment, or from a moment on."""

    name: str
    labels: Mapping[str, str]
    values: Values | float
    first: int = 0
    """Moment of the first sample."""


class Recording:
    """Series of a cluster that trains one job.

    Args:
        ranks: more than eight repeat the recorded ones.
        seconds: length of the recording; the recorded training is stretched to it.
        every: seconds between two samples.
        ranks_of_node: ranks, each with a GPU, of a node.
        fully: ranks with all series of tensors; the others have the norms of one signal.
    """

    def __init__(
        self, ranks: int = 8, seconds: int = 600, every: int = 10, ranks_of_node: int = 4, fully: int = 8
    ) -> None:
        self._training = json.loads(RECORDED.read_text("utf-8"))
        self.times = BEGIN + np.arange(0, seconds + 1, every)
        steps = self._training["steps"]
        self._steps = np.minimum((self.times - BEGIN) * steps // seconds, steps - 1)
        self._ranks, self._seconds, self._ranks_of_node = ranks, seconds, ranks_of_node
        self._fully = fully
        recorded = [_complete(run[STEP_SECONDS]) for run in self._training["runs"]]
        self._stretch = seconds / steps / float(np.mean(recorded))

    @property
    def end(self) -> int:
        """Time of the last sample."""
        return int(self.times[-1])

    def write(self, file: TextIO) -> int:
        """Write all series in the text format of OpenMetrics; return their number."""
        count = 0
        for line in self.lines():
            count += 1
            labels = ",".join(f'{name}="{value}"' for name, value in {**line.labels, "cluster": CLUSTER}.items())
            values = np.broadcast_to(np.asarray(line.values, np.float64), self.times.shape)
            head = f"{line.name}{{{labels}}} "
            file.writelines(
                f"{head}{_number(value)} {time}\n"
                for value, time in zip(values[line.first :].tolist(), self.times[line.first :].tolist(), strict=True)
            )
        file.write("# EOF\n")
        return count

    def lines(self) -> Iterator[Line]:
        """Yield every series."""
        for rank in range(self._ranks):
            yield from self._rank(rank)
            yield from self._gpu(rank)
        for node in range(math.ceil(self._ranks / self._ranks_of_node)):
            yield from self._node(f"node{node}")
        yield from self._servers()

    def _rank(self, rank: int) -> Iterator[Line]:
        host = f"node{rank // self._ranks_of_node}"
        whole = {"job": JOB, "rank": str(rank), "instance": f"{host}:{NODE_PORTS['exporter']}"}
        run = {name: self._at(values) for name, values in self._training["runs"][rank % 8].items()}
        seconds = run[STEP_SECONDS] = run[STEP_SECONDS] * self._stretch
        run[OUTSIDE_SECONDS] = run[OUTSIDE_SECONDS] * self._stretch
        ended = BEGIN + self._steps * self._seconds / self._training["steps"]
        for line in self._of_run(run):
            yield line._replace(labels={**whole, **line.labels})
        facts = {"host": host, "pid": str(4_000 + rank), "ranks": str(self._ranks), "gpu_uuid": _uuid(rank)}
        for metric, labels, values in (
            (catalogue.STEP, {}, self._steps),
            (catalogue.STEPS, {}, self._steps + 1),
            (catalogue.SKIPPED, {}, np.cumsum(run["skipped"])),
            (catalogue.LAST_STEP, {}, ended),
            (catalogue.FINDINGS, {"rule": "RunStraggler"}, (rank == 5) * np.maximum(self._steps - 40, 0)),
            (catalogue.FAULTS, {}, 0),
            (catalogue.OVERHEAD, {}, 0.004 + 0.002 * run[STEP_SECONDS] / seconds.max()),
            (catalogue.DROPPED, {}, 12),
            (catalogue.RANK_INFO, facts, 1),
            (catalogue.RANK_UP, {}, 1),
            (catalogue.PHASE, {"phase": "evaluation" if rank == 5 else "train"}, 1),
            (catalogue.SINCE, {}, self.times - ended),
            (catalogue.BUDGET, {}, 60),
        ):
            yield _line(metric, {**whole, **labels}, values)
        for signal, layers in self._training["tensors"].items():
            for layer, ops in layers.items():
                for op, recorded in ops.items():
                    if rank >= self._fully and (signal, op) != ("grad_reduced", "norm"):
                        continue
                    labels = {**whole, "signal": signal, "layer": layer}
                    yield _line(catalogue.TENSORS[op], labels, self._at(recorded) * (1 + 0.001 * (rank % 8)))

    def _of_run(self, run: Mapping[str, Values]) -> Iterator[Line]:
        for name, values in run.items():
            if name in catalogue.NUMBERS:
                factor = catalogue.FACTORS.get(name, 1.0)
                yield _line(catalogue.NUMBERS[name], {}, values * factor, whole=())
            elif name.startswith("phase/"):
                phase = name.removeprefix("phase/").removesuffix("_seconds")
                spent = np.cumsum(values) * self._stretch
                yield _line(catalogue.PHASE_SECONDS, {"phase": phase}, spent, whole=())
            elif name != "skipped":
                yield _line(catalogue.NUMBER, {"name": name}, values, whole=())

    def _gpu(self, rank: int) -> Iterator[Line]:
        host, place = f"node{rank // self._ranks_of_node}", rank % self._ranks_of_node
        run = self._training["runs"][rank % 8]
        busy = np.clip(self._at(run[OUTSIDE_SECONDS]) / self._at(run[STEP_SECONDS]), 0, 1)
        labels = {
            "job": "exporter",
            "instance": f"{host}:{NODE_PORTS['exporter']}",
            "gpu_id": str(place),
            "gpu_name": "NVIDIA H100",
            "gpu_uuid": _uuid(rank),
        }
        for name, more, values in (
            ("gpu_utilization_percent", {}, np.round(60 + 40 * busy)),
            ("gpu_memory_used_bytes", {}, (60 + rank % 8) * 2**30),
            ("gpu_memory_total_bytes", {}, 80 * 2**30),
            ("gpu_temperature_celsius", {}, np.round(55 + 20 * busy + rank % 8)),
            ("gpu_power_usage_watts", {}, 300 + 350 * busy),
            ("gpu_power_limit_watts", {}, 700),
            ("gpu_ecc_errors_total", {"kind": "corrected"}, rank % 3),
            ("gpu_ecc_errors_total", {"kind": "uncorrected"}, 0),
            ("gpu_throttle_active", {"reason": "sw_power_cap"}, (busy > busy.mean()) * (rank % 2)),
            ("gpu_throttle_active", {"reason": "hw_thermal"}, 0),
            ("gpu_xid_last_code", {}, 0),
        ):
            yield Line(name, {**labels, **more}, values)

    def _node(self, host: str) -> Iterator[Line]:
        busy = 0.3 + 0.2 * np.sin(self.times / 100 + len(host))
        exporter = {"job": "exporter", "instance": f"{host}:{NODE_PORTS['exporter']}"}
        node = {"job": "node", "instance": f"{host}:{NODE_PORTS['node']}"}
        past = self.times - BEGIN
        disk = {"device": "/dev/nvme0n1p1", "fstype": "ext4", "mountpoint": "/"}
        for name, labels, values in (
            ("probe_host_cpu_utilization_ratio", {}, busy),
            ("probe_host_memory_total_bytes", {}, 2**40),
            ("probe_host_memory_available_bytes", {}, 2**40 * (0.7 - 0.2 * busy)),
            ("probe_host_disk_total_bytes", disk, 4e12),
            ("probe_host_disk_free_bytes", disk, 2e12 - 1e8 * past),
            ("probe_host_network_receive_bytes_total", {"device": "eth0"}, 2.4e9 * past),
            ("probe_host_network_transmit_bytes_total", {"device": "eth0"}, 2.1e9 * past),
            ("probe_host_cpus", {}, 64),
            *((f"probe_host_load{span}", {}, 40 * busy) for span in (1, 5, 15)),
            ("probe_host_swap_total_bytes", {}, 2**33),
            ("probe_host_swap_used_bytes", {}, 2**30 * busy),
            ("probe_host_disk_hung", disk, 0),
            *((f"npu_{name}", NPU, value) for name, value in NPU_READINGS.items()),
            *((f"training_{name}", {"job_name": "legacy"}, value) for name, value in JSON_NUMBERS.items()),
            ("gradient_norm", {"job_name": "legacy"}, 1.5),
            ("training_last_update_timestamp_seconds", {"job_name": "legacy"}, self.times - 3),
            ("probe_exporter_probe_hung", {"probe": "nvml"}, 0),
            ("probe_exporter_probe_starts_total", {"probe": "nvml"}, 1),
            ("probe_exporter_malformed_readings_total", {"probe": "nvml"}, 0),
            ("probe_exporter_reading_age_seconds", {"source": "host"}, 1 + busy),
            ("probe_exporter_scrapes_total", {}, past),
            ("probe_exporter_scrape_seconds", {}, 0.01 * busy),
            ("probe_exporter_devices", {}, self._ranks_of_node),
            *((f"probe_exporter_unreadable_{name}", {}, 0) for name in ("files", "folders", "devices")),
            *((f"probe_exporter_{name}", {}, 0) for name in ("unknown_series", "hidden_ranks")),
        ):
            yield Line(name, {**exporter, **labels}, values)
        for name, labels, values in (
            ("node_load1", {}, 40 * busy),
            ("node_disk_io_time_seconds_total", {"device": "nvme0n1"}, 0.2 * past),
            ("node_network_receive_errs_total", {"device": "eth0"}, past // 300),
            ("node_network_transmit_errs_total", {"device": "eth0"}, 0),
            ("node_vmstat_oom_kill", {}, 0),
        ):
            yield Line(name, {**node, **labels}, values)
        for target in (exporter, node):
            yield Line("up", target, 1)
            yield Line("scrape_duration_seconds", target, 0.02 + 0.01 * busy)

    def _servers(self) -> Iterator[Line]:
        heartbeats = {"instance": "node0:8765", "job": JOB, "launch": "node0/29500", "id": "0"}
        for state in STATES:
            yield Line("probe_job_ranks", {**heartbeats, "state": state}, self._ranks * (state == "alive"))
        past = self.times - BEGIN
        heartbeat_server = {"instance": heartbeats["instance"]}
        loss, norm, seconds = (
            self._at(self._training["runs"][0][name]) for name in ("loss", "grad_norm", STEP_SECONDS)
        )
        for name, labels, values in (
            ("probe_job_step", heartbeats, self._steps),
            ("probe_job_loss", heartbeats, loss),
            ("probe_job_grad_norm", heartbeats, norm),
            ("probe_job_step_seconds", heartbeats, seconds),
            ("probe_job_stage_seconds", {**heartbeats, "stage": "fwd_bwd"}, 0.8 * seconds),
            ("probe_job_stage_seconds", {**heartbeats, "stage": "optimizer"}, 0.2 * seconds),
            ("probe_server_requests_total", {**heartbeat_server, "status": "200"}, 2 * past),
            ("probe_server_messages_total", {**heartbeat_server, "result": "stored"}, 3 * past),
            ("probe_server_commits_total", heartbeat_server, past),
            ("probe_server_commit_seconds_total", heartbeat_server, 0.002 * past),
            ("probe_server_commit_failures_total", heartbeat_server, 0),
            ("probe_server_waiting", heartbeat_server, 0),
            ("probe_server_jobs", heartbeat_server, 1),
            *((f"probe_remediation_{name}", REMEDIATION, value) for name, value in (("up", 1), ("waiting", 0))),
            ("probe_remediation_running", REMEDIATION, 0),
            ("probe_remediation_action_live", {**REMEDIATION, "action": "undo"}, 1),
            ("probe_remediation_actions_total", {**REMEDIATION, "state": "done"}, past // 300),
            ("probe_remediation_alerts_total", {**REMEDIATION, "result": "known"}, past // 300),
            ("probe_remediation_requests_total", {**REMEDIATION, "status": "200"}, past // 100),
            ("probe_remediation_history_failures_total", REMEDIATION, 0),
            ("probe_remediation_last_webhook_timestamp_seconds", REMEDIATION, self.times - 60),
        ):
            yield Line(name, labels, values)
        for name, port in (("prometheus", 9090), ("probe-serve", 8765)):
            yield Line("up", {"job": name, "instance": f"node0:{port}"}, 1)
            yield Line("scrape_duration_seconds", {"job": name, "instance": f"node0:{port}"}, 0.005)
        watchdog = {"alertname": "Watchdog", "severity": "info", "component": "monitoring"}
        yield Line("ALERTS", {**watchdog, "alertstate": "firing"}, 1)
        straggler = {"alertname": "Straggler", "severity": "warning", "component": "training", "job": JOB, "rank": "5"}
        yield Line("ALERTS", {**straggler, "alertstate": "firing"}, 1, first=len(self.times) * 2 // 3)

    def _at(self, recorded: list[float | None]) -> Values:
        """Values at each moment."""
        return _complete(recorded)[self._steps * len(recorded) // self._training["steps"]]


def _complete(recorded: list[float | None]) -> Values:
    """Values by step; a step without one has that of the step before, the first steps that of the first one."""
    first = next(place for place, value in enumerate(recorded) if value is not None)
    places = np.maximum.accumulate([first if value is None else place for place, value in enumerate(recorded)])
    return np.array(recorded, np.float64)[np.maximum(places, first)]


def _line(
    metric: Metric, labels: Mapping[str, str], values: Any, whole: tuple[str, ...] = ("job", "rank", "instance")
) -> Line:
    assert set(labels) == {*metric.labels, *whole}, f"{metric.name} has the labels {metric.labels}"
    return Line(metric.name, labels, values)


def _uuid(rank: int) -> str:
    return f"GPU-{rank:08x}-5d1e-4f0a-9b7c-0123456789ab"


def _number(value: float) -> str:
    if math.isfinite(value):
        return f"{value:.15g}"
    return "NaN" if math.isnan(value) else "+Inf" if value > 0 else "-Inf"
