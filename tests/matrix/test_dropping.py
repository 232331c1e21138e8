"""Monitors without a reference, and monitors dropped with their models: no stop(), nothing left, nothing lost."""

from __future__ import annotations

import gc
import json
import threading
import time
import weakref
from pathlib import Path
from typing import Any

import pytest

from tests.matrix.harness import Harness, train_step
from tests.matrix.models import tiny_net
from tests.matrix.watching import EVERYTHING, LR, MOMENTUM, inputs
from tests.tables import read

STEPS = 3


def deliveries() -> set[threading.Thread]:
    """The threads that write."""
    return {thread for thread in threading.enumerate() if thread.name == "probe-delivery"}


def collected(threads: set[threading.Thread]) -> None:
    """Collect garbage until ``threads`` have written everything, and have ended."""
    end = time.monotonic() + 120
    while any(thread.is_alive() for thread in threads) and time.monotonic() < end:
        gc.collect()
        for thread in threads:
            thread.join(0.1)
    gc.collect()


def train(framework: Harness, settings: Any) -> tuple[Path, list[weakref.ref[Any]]]:
    """Train with a monitor without a reference; return its directory, and all objects that must be gone after it."""
    model = tiny_net(framework)
    optimizer = framework.optimizer("momentum", model, lr=LR / 8, momentum=MOMENTUM)
    monitor = framework.TrainerMon(settings)
    monitor.set_monitor(model, 1, optimizer)
    directory, known = Path(str(monitor.output_directory)), weakref.ref(monitor)
    del monitor
    gc.collect()
    loop = framework.loop(model, optimizer)
    for _ in range(STEPS):
        train_step(loop, *inputs(framework, 2))
    return directory, [known, weakref.ref(model), weakref.ref(optimizer)]


@pytest.mark.slow
@pytest.mark.parametrize("more", [{}, {"cc_distribution": {"enable": True}, "monitor_mbs_grad": True}], ids=["", "cc"])
def test_dropped_with_the_model(framework: Harness, more: dict[str, Any]) -> None:
    """A monitor lives as long as its model. When both are dropped, model, optimizer, hooks and thread are gone, and the
    files are whole."""
    framework.optimizer(
        "momentum", tiny_net(framework), lr=LR, momentum=MOMENTUM
    )  # torch changes the class for the first
    idle = framework.picture([], [])
    before = deliveries()
    runs = [train(framework, EVERYTHING | more) for _ in range(2)]
    threads = deliveries() - before
    collected(threads)
    assert [known() for _, gone in runs for known in gone] == [None] * 6
    assert deliveries() == before
    assert framework.picture([], []) == idle
    for directory, _ in runs:
        manifest = json.loads((directory / "manifest.json").read_text())
        assert (manifest["cost_seconds"]["steps"], manifest["faults"]) == (STEPS, {})
        assert "end_time" in manifest
        rows = read(directory)
        for signal in ("actv", "actv_grad", "grad_unreduced", "grad_reduced", "param_updated"):
            assert {row.step for row in rows if row.signal == signal} == set(range(STEPS))


def test_a_monitor_that_has_stopped_keeps_no_model(framework: Harness) -> None:
    """A program may go on for long without the model, and with the monitor: its account can still be read."""
    model = tiny_net(framework)
    optimizer = framework.optimizer("momentum", model, lr=LR, momentum=MOMENTUM)
    monitor = framework.TrainerMon({"wg_distribution": True, "sentinel": {"enable": True}})
    monitor.set_monitor(model, 1, optimizer)
    train_step(framework.loop(model, optimizer), *inputs(framework, 2))
    monitor.stop()
    gone = [weakref.ref(model), weakref.ref(optimizer)]
    del model, optimizer
    gc.collect()
    assert [known() for known in gone] == [None, None]
    monitor.stop()
    assert (monitor.faults, monitor.monitoring) == ({}, False)
    assert read(monitor.output_directory)
