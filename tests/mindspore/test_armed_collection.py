"""What the sentinel finds on MindSpore has everything collected for ten steps, and training stays as it is."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from probe.core.analysis.diagnosis.analyse import analyse
from probe.core.analysis.diagnosis.export import as_json
from tests.mindspore.sentinel_loops import batches, differentiated, made, squares
from tests.mindspore.test_run import ran
from tests.mindspore.test_sentinel import bits
from tests.mindspore.toys import TrainerMon, ms, nn

SETTINGS: dict[str, Any] = {
    "format": "csv",
    "ops": ["norm", "nans"],
    "sentinel": {"enable": True},
    "step_interval": 1000,
    "wg_distribution": True,
}
BAD = (12, 14)
"""Batches that go wrong in a cell of the model."""


class Spoiling(nn.Cell):
    """Cell whose outputs are not finite if asked to."""

    def __init__(self) -> None:
        super().__init__()
        self.bad = False

    def construct(self, x: Any) -> Any:
        """Return the inputs, or NaN."""
        return x * float("nan") if self.bad else x


class Trained:
    """A training, watched or not: its weights, and the signals of each step with rows."""

    def __init__(self, watched: bool, drops: bool, compiled: bool = False) -> None:
        """Train.

        Args:
            drops: whether the program drops gradients that are not finite.
            compiled: whether MindSpore compiles the forward and the backward.
        """
        inner = made()
        self.net = nn.SequentialCell(inner[0], spoiling := Spoiling(), inner[1], inner[2]).set_train()
        optimizer = nn.Momentum(self.net.trainable_params(), 0.05, 0.9)
        self.steps: dict[int, set[str]] = {}
        self.directory = ""
        monitor = TrainerMon(SETTINGS) if watched else None
        if monitor is not None:
            monitor.set_monitor(self.net, 1, optimizer)
            monitor.on_snapshot(lambda taken: self.steps.update({taken.step: {one.signal for one in taken.batches}}))
            self.directory = monitor.output_directory or ""
        gradients_of = differentiated(self.net, optimizer)
        if compiled:
            weights = optimizer.parameters
            forward = self._loss

            def gradients(x: Any, y: Any) -> Any:
                return ms.value_and_grad(forward, None, weights)(x, y)

            gradients_of = ms.jit(gradients)
        for number, (x, y) in enumerate(batches(36)):
            spoiling.bad = number in BAD and not compiled
            _, gradients = gradients_of(x * float("nan") if number in BAD and compiled else x, y)
            if not drops or ms.amp.all_finite(gradients):
                optimizer(gradients)
            if monitor is not None:
                monitor.flush()  # what is found in a step is known before the next one, however busy the machine is
        if monitor is not None:
            monitor.stop()
            assert monitor.faults == {}

    def _loss(self, x: Any, y: Any) -> Any:
        return squares(self.net(x), y)

    @property
    def deep(self) -> list[int]:
        """Steps with rows of the parameters, which are not configured."""
        return [step for step, signals in self.steps.items() if "param_origin" in signals]


@pytest.fixture(autouse=True)
def _output(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MONITOR_OUTPUT_DIR", str(tmp_path))


def criticals(trained: Trained) -> dict[str, Any]:
    """Places of critical findings by kind, the last of each."""
    entries = as_json(analyse(Path(trained.directory)))["findings"]
    return {entry["kind"]: entry["where"] for entry in entries if entry["grade"] == "critical"}


def test_rows_of_steps_with_finite_weights_name_the_cell() -> None:
    """The program drops the gradients, and another batch is as bad. Weights are those of a run without a monitor."""
    trained = Trained(watched=True, drops=True)
    assert trained.deep == [*range(13, 23)]
    assert {"actv", "actv_grad", "grad_reduced"} < trained.steps[13]
    assert bits(trained.net) == bits(Trained(watched=False, drops=True).net)
    assert criticals(trained)["loss-not-finite"] == "1"


def test_rows_of_spoilt_weights_name_no_cell() -> None:
    """The update has applied NaN."""
    trained = Trained(watched=True, drops=False)
    assert trained.deep == [*range(13, 23)]
    assert criticals(trained)["loss-not-finite"] == ""
    diagnosis = analyse(Path(trained.directory)).diagnosis
    assert diagnosis is not None
    assert diagnosis.spoilt == 12


def test_what_is_compiled_stays_as_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    """Parameters and gradients are collected around it; nothing of it is compiled again, and nothing counts as
    failed."""
    from mindspore.common import api

    graphs = set[object]()
    compile_graph: Callable[..., Any] = api._JitExecutor.compile

    def noted(self: Any, *args: Any, **kwargs: Any) -> Any:
        graphs.add(phase := compile_graph(self, *args, **kwargs))
        return phase

    monkeypatch.setattr(api._JitExecutor, "compile", noted)
    without = bits(Trained(watched=False, drops=False, compiled=True).net)
    number = len(graphs)
    graphs.clear()
    trained = Trained(watched=True, drops=False, compiled=True)
    assert len(trained.deep) == 10
    assert "actv" not in trained.steps[trained.deep[0]]
    assert (bits(trained.net), len(graphs)) == (without, number)


PROGRAM = """
import numpy as np
import mindspore as ms
from mindspore import nn, ops
random = np.random.default_rng(0)
net = nn.SequentialCell(nn.Dense(4, 8), nn.Tanh(), nn.Dense(8, 2)).set_train()
for p in net.trainable_params():
    p.set_data(ms.Tensor(random.normal(size=p.shape).astype(np.float32)))
optimizer = nn.Adam(net.trainable_params(), 1e-2)
gradients_of = ms.value_and_grad(lambda a, b: ops.cross_entropy(net(a), b), None, optimizer.parameters)
for step in range(40):
    x = random.normal(size=(16, 4)).astype(np.float32)
    if step in (20, 22):
        x[3, 1] = np.nan
    loss, gradients = gradients_of(ms.Tensor(x), ms.Tensor((x[:, 0] > 0).astype(np.int32)))
    if ms.amp.all_finite(gradients):
        optimizer(gradients)
print(sum(float(p.asnumpy().astype(np.float64).sum()) for p in net.get_parameters()))
"""


def test_probe_run_names_the_steps_and_what_went_wrong(tmp_path: Path) -> None:
    """Alone, without a configuration."""
    alone = ran(tmp_path / "alone", PROGRAM, "run")
    assert alone.printed == ran(tmp_path / "plain", PROGRAM).printed
    assert "collected deep at steps 21 to 30 (" in alone.errors
    assert "at step 21, with finite weights, it shows first in input" in alone.errors
    lines = [json.loads(line) for path in tmp_path.glob("alone/out/*/checks.jsonl") for line in path.open()]
    assert ["input"] in [line["where"] for line in lines]
