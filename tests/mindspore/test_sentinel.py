"""The sentinel on MindSpore: training stays as it is, the numbers are right, and faults are found at their step."""

from __future__ import annotations

import csv
import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.mindspore.sentinel_loops import FAULTY, HEALTHY, Attach, batches, clipped, function, scaled
from tests.mindspore.test_run import ran
from tests.mindspore.toys import TrainerMon, nn

from mindspore.dataset.engine import iterators  # isort: skip - only where MindSpore is

from probe.mindspore.private_api import executor  # isort: skip - only where MindSpore is
from probe.mindspore.training_loop import GlobalNormClip  # isort: skip

SETTINGS: dict[str, Any] = {
    "format": "csv",
    "alert": {"rules": []},
    "run": {"enable": True},
    "sentinel": {"enable": True},
    "step_interval": 1000,
    "ndigits": 9,
}
LOOPS = [*HEALTHY, *FAULTY]


@contextmanager
def watched(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Attach]:
    """An attachment of a monitor with the sentinel; nothing has failed when it ends."""
    monkeypatch.setenv("MONITOR_OUTPUT_DIR", str(folder))
    monitors: list[Any] = []

    def attach(net: Any, optimizer: Any) -> Any:
        monitors.append(TrainerMon(SETTINGS))
        monitors[-1].set_monitor(net, 1, optimizer)
        return monitors[-1]

    yield attach
    for monitor in monitors:
        monitor.stop()
        assert monitor.faults == {}


def bits(net: Any) -> list[bytes]:
    """Every bit of the parameters."""
    parameters = net.parameters() if hasattr(net, "parameters") else net.trainable_params()
    return [parameter.asnumpy().tobytes() for parameter in parameters]


def findings(folder: Path) -> list[dict[str, Any]]:
    """What was found, without notes."""
    lines = [json.loads(line) for path in folder.glob("*/checks.jsonl") for line in path.read_text().splitlines()]
    return [line for line in lines if line["grade"] != "note"]


def series(folder: Path, name: str) -> np.ndarray:
    """A number of the run at every step."""
    rows = [row for path in folder.glob("*/run_*.csv") for row in csv.DictReader(path.open())]
    steps = {int(row["step"]): float(row["value"]) for row in rows if row["name"] == name}
    return np.array([steps[step] for step in sorted(steps)])


@pytest.mark.parametrize("loop", LOOPS, ids=lambda loop: loop.__name__)
def test_a_loop_is_left_as_it_is_and_judged(
    loop: Callable[[Attach], Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Weights are the same to the bit; nothing is found in a healthy loop, and the fault of another at its step."""
    without = bits(loop(lambda *_: None))
    with watched(tmp_path, monkeypatch) as attach:
        within = bits(loop(attach))
    assert within == without
    since = {line["check"]: line["since"] for line in findings(tmp_path)}
    assert since == (since | FAULTY[loop] if loop in FAULTY else {})


def by_hand(x: np.ndarray, y: np.ndarray, weights: list[np.ndarray]) -> tuple[float, float]:
    """The loss, and the norm of all gradients, of the model of the loops, in float64."""
    first, bias, second, other = (weight.astype(np.float64) for weight in weights)
    hidden = np.tanh(x @ first.T + bias)
    differences = hidden @ second.T + other - y
    loss, back = (differences**2).mean(), 2 * differences / differences.size
    inner = back @ second * (1 - hidden**2)
    gradients = inner.T @ x, inner.sum(0), back.T @ hidden, back.sum(0)
    return float(loss), float(np.sqrt(sum((gradient**2).sum() for gradient in gradients)))


@pytest.mark.parametrize(("loop", "error"), [(function, 1e-4), (clipped, 1e-4), (scaled, 1e-2)])
def test_loss_and_norms_are_those_of_numpy(
    loop: Callable[[Attach], Any], error: float, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Losses without the factor of a scaler, and norms as they were before the clip, at steps that were not sampled."""
    inputs, weights = [(x.asnumpy(), y.asnumpy()) for x, y in batches()], list[list[np.ndarray]]()
    original = nn.Optimizer.__call__

    def call(self: Any, gradients: Any) -> Any:
        weights.append([parameter.asnumpy().copy() for parameter in self.parameters])
        return original(self, gradients)

    with watched(tmp_path, monkeypatch) as attach, monkeypatch.context() as patch:
        patch.setattr(nn.Optimizer, "__call__", call)
        loop(attach)
    skipped = len(inputs) - len(weights)
    losses, norms = zip(
        *(by_hand(*pair, held) for pair, held in zip(inputs[skipped:], weights, strict=True)), strict=True
    )
    assert (skipped > 0) == (loop is scaled)
    np.testing.assert_allclose(series(tmp_path, "gradient_norm"), norms, rtol=error)
    np.testing.assert_allclose(series(tmp_path, "loss_root")[1:], losses[1:], rtol=error)
    if loop is clipped:
        np.testing.assert_allclose(series(tmp_path, "gradient_norm_applied"), np.minimum(norms, 0.25), rtol=error)


def test_stop_leaves_mindspore_as_it_was(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With the last monitor every function is MindSpore's own again, and no gradient is kept."""
    kinds = type(executor), GlobalNormClip, nn.LossBase, iterators.Iterator
    names = ("grad", "end_graph", "check_run", "__call__", "__init__")
    before = [[vars(kind).get(name) for name in names] for kind in kinds]
    with watched(tmp_path, monkeypatch) as attach:
        clipped(attach)
        assert [[vars(kind).get(name) for name in names] != own for kind, own in zip(kinds, before, strict=True)] == [
            True
        ] * 4
    assert [[vars(kind).get(name) for name in names] for kind in kinds] == before


PROGRAM = """
import numpy as np
import mindspore as ms
from mindspore import nn, ops
random = np.random.default_rng(0)
net = nn.SequentialCell(nn.Dense(4, 8), nn.ReLU(), nn.Dense(8, 2)).set_train()
for p in net.trainable_params():
    p.set_data(ms.Tensor(random.normal(size=p.shape).astype(np.float32)))
optimizer = nn.Adam(net.trainable_params(), 1e-2)
gradients_of = ms.value_and_grad(lambda a, b: ops.cross_entropy(net(a), b), None, optimizer.parameters)
for step in range(60):
    x = random.normal(size=(16, 4)).astype(np.float32)
    if step == 40:
        x[3, 1] = np.nan
    loss, gradients = gradients_of(ms.Tensor(x), ms.Tensor((x[:, 0] > 0).astype(np.int32)))
    if ms.amp.all_finite(gradients):
        optimizer(gradients)
print(sum(float(p.asnumpy().astype(np.float64).sum()) for p in net.get_parameters()))
"""


def test_probe_run_finds_one_bad_batch_of_sixty(tmp_path: Path) -> None:
    """Alone, without a configuration, at its step, with the parameters whose gradients the program has dropped."""
    alone = ran(tmp_path / "alone", PROGRAM, "run")
    assert alone.printed == ran(tmp_path / "plain", PROGRAM).printed
    assert "gradient-not-finite in 0.weight" in alone.errors
    assert ", step 40" in alone.errors
    (found,) = findings(tmp_path / "alone" / "out")
    assert (found["check"], found["step"], found["where"][0]) == ("gradient-not-finite", 40, "0.weight")
