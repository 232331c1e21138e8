"""Cost of the monitor: counted on the host and on the device, and in every output."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from probe.core.instrumentation.overhead import MEASURED_EVERY
from probe.core.output.sinks.context import SinkContext
from probe.core.output.sinks.overhead import CostSink
from probe.core.records import Snapshot
from tests.matrix import numpy_harness
from tests.matrix.numpy_framework import TENSORS, Tensor, TrainerMon
from tests.required import require

STEPS = 2 * MEASURED_EVERY + 1
EVERYTHING = {"wg_distribution": True, "param_distribution": True}


class Device:
    """Reduces tensors in its own time: a second for each."""

    def __init__(self) -> None:
        self.now = 0.0

    def moments(self, tensors: Any, *more: Any) -> Any:
        self.now += len(tensors)
        return TENSORS.moments(tensors, *more)

    def mark(self) -> Any:
        return self.now

    def monitored(self, **settings: Any) -> Any:
        """The monitor of a toy's training with tensors on this device, when it has ended."""
        tensors = SimpleNamespace(**vars(TENSORS) | {"moments": self.moments})
        clock = SimpleNamespace(mark=self.mark, between=lambda begin, end: end - begin)

        class Monitor(TrainerMon):
            framework = TrainerMon.framework._replace(tensors=tensors, clock=clock)

        model = numpy_harness.linear(np.ones((2, 3)), np.ones(2))
        optimizer = numpy_harness.optimizer("momentum", model, lr=0.1)
        loop = numpy_harness.loop(model, optimizer)
        with Monitor({**EVERYTHING, **settings}) as monitor:
            monitor.set_monitor(model, 1, optimizer)
            for _ in range(STEPS):
                loop.micro_batch(Tensor(np.ones((4, 3))))
                loop.update()
                monitor.flush()
        assert monitor.faults == {}
        return monitor


def manifest(monitor: Any) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((Path(monitor.output_directory) / "manifest.json").read_text())
    return found


def lines_of(monitor: Any) -> list[dict[str, float]]:
    text = (Path(monitor.output_directory) / "cost.jsonl").read_text(encoding="utf-8")
    return [json.loads(line) for line in text.splitlines()]


def curves_of(directory: Path) -> dict[str, list[float]]:
    """Monitor's own figures as TensorBoard reads them, step by step."""
    reader = require("tensorboard.backend.event_processing.event_accumulator")
    events = reader.EventAccumulator(str(directory), {reader.SCALARS: 0}).Reload()
    tags = [tag for tag in events.Tags()["scalars"] if tag.startswith("probe/")]
    return {tag: [event.value for event in events.Scalars(tag)] for tag in tags}


def test_what_a_device_does_is_counted_in_every_output(output_dir: Path) -> None:
    """Eight tensors a step; measured in some steps, and the same in all others."""
    require("tensorboardX")
    monitor = Device().monitored(format=["csv", "tensorboard"])
    assert monitor.cost["device"] == 8 * STEPS
    assert manifest(monitor)["cost_seconds"]["device"] == 8 * STEPS
    rows = lines_of(monitor)
    assert [(row["step"], row["device_seconds"]) for row in rows] == [(step, 8) for step in range(STEPS)]
    for name in ("hooks", "drain"):
        assert sum(row[f"{name}_seconds"] for row in rows) == pytest.approx(monitor.cost[name], rel=1e-4)
    assert rows[-1]["overhead"] > 1, "a toy's step takes less than a second"
    curves = curves_of(Path(monitor.output_directory))
    assert curves["probe/rank0/device_seconds"] == [8] * STEPS
    assert curves["probe/overhead/rank0"][-1] == pytest.approx(rows[-1]["overhead"], rel=1e-4)


@pytest.mark.parametrize("format", ["sqlite", "parquet"])
def test_every_table_has_it_beside(output_dir: Path, format: str) -> None:  # noqa: A002 - the key of the configuration
    """On a host nothing is measured of a device."""
    if format == "parquet":
        require("duckdb")
    device = Device()
    device.mark = lambda: None  # type: ignore[assignment]
    monitor = device.monitored(format=format)
    rows = lines_of(monitor)
    assert [row["step"] for row in rows] == [*range(STEPS)]
    assert {row["device_seconds"] for row in rows} == {0}
    assert "device" not in monitor.cost


def test_it_counts_towards_the_budget(output_dir: Path) -> None:
    """A toy's step takes milliseconds, the host about as much for it; what takes seconds is the device."""
    slow, none = Device(), Device()
    none.mark = lambda: None  # type: ignore[method-assign, assignment]
    intervals = [manifest(each.monitored(max_overhead=1.0))["pace"]["interval"] for each in (slow, none)]
    assert intervals[0] > 20 * intervals[1]


def test_a_device_that_cannot_be_asked_stops_nothing(output_dir: Path, caplog: pytest.LogCaptureFixture) -> None:
    """The failure is logged once; everything else goes on."""
    device = Device()
    asked = []

    def mark() -> float:
        asked.append(device.now)
        raise RuntimeError("the context is gone")

    device.mark = mark  # type: ignore[method-assign]
    monitor = device.monitored()
    assert monitor.cost["steps"] == STEPS
    assert len(asked) == 1
    assert [record.message for record in caplog.records if "the context is gone" in record.message] == [
        "what the monitor costs on the device is no longer measured: the context is gone"
    ]


def test_a_line_that_was_cut_off_is_taken_away(tmp_path: Path) -> None:
    """A killed run may leave one; the next goes on behind it."""
    sink = CostSink(SinkContext(tmp_path, tmp_path, 0))
    sink.write(Snapshot(0, 0, 0.0, (), (), cost={"hooks": 0.25, "drain": 0.5}, scalars={"probe/overhead": 0.125}))
    with (tmp_path / "cost.jsonl").open("a") as file:
        file.write('{"step": 1, "hoo')
    sink.write(Snapshot(1, 0, 0.0, (), (), cost={"hooks": 0.5}))
    one, other = map(json.loads, (tmp_path / "cost.jsonl").read_text().splitlines())
    nothing = {"drain_seconds": 0, "device_seconds": 0, "overhead": 0}
    assert one == {"step": 0, "hooks_seconds": 0.25, "drain_seconds": 0.5, "device_seconds": 0, "overhead": 0.125}
    assert other == {"step": 1, "hooks_seconds": 0.5, **nothing}
