"""PerformanceMonitor: readings of every GPU, of the machine and of training, without a wait for a driver."""

from __future__ import annotations

import importlib
import json
import logging
import math
import os
import sys
import threading
import time
from collections.abc import Iterator
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from probe.core.output.metrics.catalogue import NUMBERS, STEP
from probe.core.storage.performance_file import DeviceReading, PerformanceReading, parsed, readings
from probe.core.storage.problems import Problems
from probe.services.exporter.reading_process import Sample
from probe.services.performance import PerformanceMonitor
from probe.services.performance.monitor import AnomalyLog, HealthyThroughput
from probe.services.performance.sources import TrainingSource, _devices
from tests.required import require
from tests.services.metrics_rank import written
from tests.services.test_exporter_devices import library
from tests.waiting import wait_for

psutil = require("psutil")

SILENT = (sys.executable, "-c", "import sys; sys.stdin.read()")
"""Reader of a driver that never answers."""
INTERVAL = 0.1


def of(reading: PerformanceReading, **changes: Any) -> PerformanceReading:
    return reading._replace(**changes)


@pytest.fixture
def monitor(tmp_path: Path) -> Iterator[PerformanceMonitor]:
    """A monitor that writes its readings, for a machine whose GPUs do not answer."""
    found = PerformanceMonitor(
        training_file=tmp_path / "training.json",
        readings_file=tmp_path / "performance.jsonl",
        deadline=10.0,  # the machine's own reading has it too
        commands={"nvml": SILENT},
    )
    yield found
    found.stop_monitoring()


def test_a_driver_that_never_answers_delays_nothing(monitor: PerformanceMonitor, tmp_path: Path) -> None:
    """Machine and training are read all the same; to start twice is harmless, and the end comes at once."""
    assert monitor.get_performance_summary() == {}
    (tmp_path / "training.json").write_text('{"throughput": 512.0, "loss": NaN, "learning_rate": "1e-3"}')
    before = threading.active_count()
    monitor.start_monitoring(INTERVAL)
    threads = threading.active_count()
    monitor.start_monitoring(INTERVAL)
    assert threading.active_count() == threads > before
    wait_for(lambda: len(monitor.readings) >= 4 and math.isfinite(monitor.readings[-1].cpu_percent))
    began = time.monotonic()
    monitor.stop_monitoring()
    monitor.stop_monitoring()
    assert time.monotonic() - began < 20
    assert not monitor.monitoring_active
    kept = monitor.readings
    assert kept[0].throughput == 512.0
    assert math.isnan(kept[0].loss)
    assert kept[0].learning_rate == 1e-3
    assert {math.isnan(reading.throughput) for reading in kept[1:]} == {True}  # the file has not changed
    summary = json.loads(json.dumps(monitor.get_performance_summary(1), allow_nan=False))
    assert summary["gpus"] == []
    assert summary["gpu_utilization"] == {"average": None, "max": None, "min": None}
    assert summary["training_efficiency"]["average_throughput"] == 512.0
    assert summary["training_efficiency"]["rating"] is None
    memory = psutil.virtual_memory()
    assert summary["host_memory_usage"]["max"] == pytest.approx(memory.percent, abs=10)
    assert monitor.get_performance_summary(0) == {}
    problems = Problems()
    again = [reading for _, reading in readings(tmp_path, problems)]
    assert [reading.time for reading in again] == [reading.time for reading in kept]
    assert problems.lines() == []


def test_it_can_be_started_again(monitor: PerformanceMonitor, monkeypatch: pytest.MonkeyPatch) -> None:
    """The readings go on in the same history."""
    monkeypatch.setattr("probe.services.performance.monitor.FIRST_SECONDS", INTERVAL)
    for number in (1, 2):
        monitor.start_monitoring(INTERVAL)
        wait_for(lambda number=number: len(monitor.readings) >= number)
        monitor.stop_monitoring()
    assert [*sorted(reading.time for reading in monitor.readings)] == [reading.time for reading in monitor.readings]


def test_all_gpus_are_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    """By a real call of a library that stands for the driver: two GPUs, the second of which measures memory alone."""
    require("pynvml")
    library("fake_nvml", tmp_path).rename(tmp_path / "libnvidia-ml.so.1")
    monkeypatch.setenv("LD_LIBRARY_PATH", str(tmp_path))
    monkeypatch.setenv("PATH", f"{Path(sys.executable).parent}:{os.defpath}")
    caplog.set_level(logging.INFO, "probe.performance")
    monitor = PerformanceMonitor(history_size=2, training_file=tmp_path / "none.json")
    monitor.start_monitoring(INTERVAL)
    try:
        wait_for(lambda: len(monitor.readings) == 2 and monitor.readings[0].devices)
    finally:
        monitor.stop_monitoring()
    first, second = monitor.readings[-1].devices
    assert first == DeviceReading("0", 'Test "GPU"', 87.0, 2**30, 80 * 2**30, 65.0, 350.5)
    assert (second.id, second.memory_used_bytes) == ("1", 2 * 2**30)
    assert math.isnan(second.utilization_percent)
    summary = monitor.get_performance_summary()
    assert summary["readings"] == 2
    assert summary["gpu_utilization"] == {"average": 87.0, "max": 87.0, "min": 87.0}
    assert [each["gpu_id"] for each in summary["gpus"]] == ["0", "1"]
    assert summary["gpus"][0]["memory_usage"]["average"] == 100 / 80
    assert summary["gpus"][1]["utilization"]["average"] is None
    assert summary["training_efficiency"] == {}
    assert monitor.anomalies == []


def test_the_baseline_is_the_first_healthy_stretch() -> None:
    """It does not follow a decline, as an average of the latest readings would; a slow start is corrected."""
    random = np.random.default_rng(3)
    healthy = HealthyThroughput()
    for throughput in (1.0, 50.0, math.nan, 0.0, math.inf, 90.0):
        healthy.add(throughput)
    assert healthy.level is None
    some = (100 * np.exp(0.02 * random.standard_normal(15))).tolist()
    for throughput in some:
        healthy.add(throughput)
    assert healthy.level == np.median(some)
    for throughput in np.linspace(100, 20, 400):
        healthy.add(throughput)
    assert healthy.level == np.median(some)
    for _ in range(15):
        healthy.add(200.0)
    assert (healthy.level, healthy.best) == (200.0, 200.0)


def test_readings_without_a_throughput_do_not_count() -> None:
    """Most have none, since a step takes longer than the interval; and the first three of a run are not judged."""
    healthy = HealthyThroughput()
    for throughput in (*[100.0] * 2, *[100.0, math.nan, 0.0] * 15):
        healthy.add(throughput)
    assert healthy.level is None
    healthy.add(100.0)
    assert healthy.level == 100.0


def test_anomalies_are_logged_as_they_begin_and_end(caplog: pytest.LogCaptureFixture) -> None:
    """By GPU; a number that is unknown neither begins nor ends one."""
    caplog.set_level(logging.INFO, "probe.performance")
    log = AnomalyLog(3)
    idle, full = DeviceReading("0", "H", 49.9, 10, 100), DeviceReading("1", "H", 50.0, 96, 100)
    unknown = DeviceReading("0", "H")
    calm = tuple(device._replace(utilization_percent=90.0, memory_used_bytes=95.0) for device in (idle, full))
    plain = PerformanceReading(1.7e9)
    log.judge(of(plain, devices=(idle, full), throughput=70.0), 100.0)
    assert [(each["type"], each.get("gpu_id"), each["value"]) for each in log.kept] == [
        ("low_gpu_utilization", "0", 49.9),
        ("high_gpu_memory", "1", 96.0),
    ]
    assert [each["severity"] for each in log.kept] == ["warning", "critical"]
    log.judge(of(plain, devices=(idle, full), throughput=69.9), 100.0)
    log.judge(of(plain, devices=(unknown,)), None)
    assert [each["type"] for each in log.kept][2:] == ["throughput_drop"]
    assert log.kept[2]["baseline"] == 100.0
    assert "is over" not in caplog.text
    log.judge(of(plain, time=1.7e9 + 30, devices=calm, throughput=71.0), 100.0)
    assert caplog.text.count("is over after seconds=30") == 3
    log.judge(of(plain, devices=(idle,)), None)
    assert len(log.kept) == 3  # the oldest is gone
    assert len([record for record in caplog.records if record.levelno == logging.WARNING]) == 4


def test_numbers_of_a_rank_are_read_from_its_mapped_file(tmp_path: Path) -> None:
    """Once a step; a file that another process has replaced is opened again."""
    names = {"throughput": 320.0, "loss": 1.5, "learning_rate": 1e-3, "grad_norm": 0.75}
    series = {(NUMBERS[name].name,): value for name, value in names.items()} | {(STEP.name,): 7.0}
    file = written(tmp_path, "job", 0, series)
    source = TrainingSource(file.path)
    expected = {"step": 7.0, "throughput": 320.0, "loss": 1.5, "learning_rate": 1e-3, "gradient_norm": 0.75}
    assert source.look() == expected
    assert source.look() == {}
    file.close()
    assert source.look() == {}
    again = written(tmp_path, "job", 0, series | {(STEP.name,): 8.0})
    assert again.path == file.path
    assert source.look() == {**expected, "step": 8.0}
    again.close()
    source.close()


@pytest.mark.parametrize("content", [None, "", '{"throughput": 5', "[1]", '{"throughput": "fast"}'])
def test_a_training_file_that_is_missing_or_half_written_is_no_error(tmp_path: Path, content: str | None) -> None:
    """There are no numbers then, and they come with the next good file."""
    path = tmp_path / "training.json"
    if content is not None:
        path.write_text(content)
    source = TrainingSource(path)
    assert source.look() == {}
    path.write_text('{"throughput": 5.0, "other": 1}')
    assert source.look() == {"throughput": 5.0}


def test_summary_by_hand(tmp_path: Path) -> None:
    """Averages, extremes and the score of readings of two GPUs, NaN left out; older readings are left out."""
    monitor = PerformanceMonitor(history_size=100, training_file=tmp_path / "none")
    now = time.time()
    random = np.random.default_rng(1)
    use, memory = random.uniform(60, 95, (40, 2)), random.uniform(20, 60, (40, 2))
    speed = np.where(np.arange(40) < 30, 100.0, 60.0)
    use[5, 1] = math.nan
    monitor._take(PerformanceReading(now - 7200, throughput=1.0))
    for n in range(40):
        gpus = tuple(DeviceReading(str(g), "H", use[n, g], memory[n, g], 100.0) for g in range(2))
        monitor._take(PerformanceReading(now - 400 + n, gpus, 10.0, 20.0, n, speed[n], 3.0 - n / 3600, 1e-3))
    summary = monitor.get_performance_summary(hours=1)
    both = np.nanmean(use, axis=1)
    assert summary["gpu_utilization"]["average"] == pytest.approx(both.mean())
    assert (summary["gpu_utilization"]["max"], summary["gpu_utilization"]["min"]) == (both.max(), both.min())
    assert summary["memory_usage"]["average"] == pytest.approx(memory.mean())
    assert summary["gpus"][1]["utilization"]["average"] == pytest.approx(np.nanmean(use[:, 1]))
    efficiency = summary["training_efficiency"]
    assert efficiency["average_throughput"] == 90.0
    assert efficiency["best_throughput"] == 100.0
    assert efficiency["efficiency_score"] == pytest.approx(0.6 * both.mean() + 0.4 * 90)
    assert efficiency["rating"] == {7: "Fair", 8: "Good", 9: "Excellent"}[int(efficiency["efficiency_score"] // 10)]
    assert summary["time_range"]["duration_hours"] == 1
    assert [each["type"] for each in monitor.anomalies] == ["throughput_drop"]
    baselines = monitor.performance_baselines
    assert baselines["throughput_baseline"] == 100.0
    assert baselines["loss_convergence_rate"] == pytest.approx(-1.0, rel=1e-6)
    assert monitor.metrics_history["training_throughput"] == [1.0, *speed]
    assert monitor.metrics_history["gpu_utilization"][0] is None


def test_all_times_are_of_this_machine_with_their_offset(monkeypatch: pytest.MonkeyPatch) -> None:
    """Those of readings, of the summary and of anomalies can be compared."""
    monkeypatch.setenv("TZ", "Asia/Shanghai")
    time.tzset()
    try:
        monitor = PerformanceMonitor()
        monitor._take(PerformanceReading(now := time.time(), (DeviceReading("0", "H", 5.0),)))
        (reading,) = monitor.metrics_history["timestamp"]
        span = monitor.get_performance_summary(hours=1)["time_range"]
        texts = [span["start"], span["end"], *(each["timestamp"] for each in monitor.anomalies)]
    finally:
        monkeypatch.undo()
        time.tzset()
    assert {text[-6:] for text in (reading.isoformat(), *texts)} == {"+08:00"}
    begin, end, anomaly = map(datetime.fromisoformat, texts)
    assert begin < reading < end + timedelta(seconds=1)
    assert (reading.timestamp(), anomaly.timestamp()) == pytest.approx((now, now), abs=0.002)


@pytest.mark.parametrize(
    ("score", "rating"),
    [
        (100, "Excellent"),
        (90, "Excellent"),
        (89.9, "Good"),
        (80, "Good"),
        (70, "Fair"),
        (60, "Poor"),
        (59.9, "Critical"),
    ],
)
def test_ratings(score: float, rating: str) -> None:
    """Each begins at its least score."""
    assert importlib.import_module("probe.core.analysis.performance.throughput").rating(score) == rating


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        ({"history_size": 0}, "history_size: expected a whole number of at least 1, got 0"),
        ({"history_size": 2.5}, "history_size: expected a whole number"),
        ({"deadline": -1}, "deadline: expected a number of seconds above 0, got -1"),
    ],
)
def test_wrong_arguments(arguments: dict[str, Any], text: str) -> None:
    """Refused at once, with the name, what was expected and what came."""
    with pytest.raises(ValueError, match=text):
        PerformanceMonitor(**arguments)
    with pytest.raises(ValueError, match="hours: expected a number of hours, at least 0, got 'x'"):
        PerformanceMonitor().get_performance_summary(hours="x")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="interval"):
        PerformanceMonitor().start_monitoring(math.inf)


def test_a_disk_that_is_full_ends_nothing(
    monitor: PerformanceMonitor, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Readings are kept in memory, and the reason is logged once."""
    (tmp_path / "performance.jsonl").mkdir()
    for n in range(3):
        monitor._take(PerformanceReading(float(n)))
    assert len(monitor.readings) == 3
    assert caplog.text.count("readings are not written") == 1


def test_a_file_of_readings_is_bounded(
    monitor: PerformanceMonitor, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A full one takes the place of the older one; both are read."""
    monkeypatch.setattr("probe.services.performance.monitor.MOST_BYTES", 1_000)
    for n in range(50):
        monitor._take(PerformanceReading(float(n)))
    sizes = [path.stat().st_size for path in tmp_path.glob("performance*.jsonl")]
    assert len(sizes) == 2
    assert max(sizes) < 1_500
    times = [reading.time for _, reading in readings(tmp_path, Problems())]
    assert sorted(times) == [float(n) for n in range(50 - len(times), 50)]


def test_devices_of_two_kinds_have_names_of_their_own() -> None:
    """GPU 0 and NPU 0 of one machine are two devices; where there is one kind, its numbers are enough."""
    gpu, npu = (Sample(f"{kind}_temperature_celsius", ("0", "x", "u"), 50.0) for kind in ("gpu", "npu"))
    assert [each.id for each in _devices([npu, gpu])] == ["gpu0", "npu0"]
    assert [each.id for each in _devices([npu])] == ["0"]


def test_readings_survive_a_line_of_another_version() -> None:
    """Keys that are unknown are ignored, and missing ones are unknown numbers."""
    found = parsed('{"time": 5, "new": 1, "devices": [{"id": 0}]}')
    assert (found.time, found.devices[0].id) == (5.0, "0")
    assert math.isnan(found.throughput)
    with pytest.raises(ValueError, match="throughput"):
        parsed('{"time": 5, "throughput": "fast"}')


def test_older_import_path() -> None:
    """The class by the name of the file that programs know."""
    module = importlib.import_module("probe.services.performance_monitor")
    assert module.PerformanceMonitor is PerformanceMonitor
