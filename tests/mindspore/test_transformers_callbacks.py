"""MindSpore Transformers' callbacks in ``Model.train``, next to the lines and curves of the tool itself.

``mindformers_1_9_0.json`` has what mindformers 1.9.0 with mindspore 2.9.0 logged and wrote in the training of
:func:`trained`, whose gradients were passed to it in the files that its compiler writes on Ascend.
"""

from __future__ import annotations

import csv
import json
import logging
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from probe.mindspore import MFLossMonitor, TrainerMon, TrainingStateMonitor, from_yaml
from probe.mindspore.callbacks import RunCallback
from tests.core.test_transformers_monitor import scalars_of, texts_of
from tests.mindspore.toys import TinyNet, X, ms, nn, tensor, weights

ROOT = Path(__file__).parents[2]
SAMPLE = ROOT / "resources" / "mindspore_transformers.yaml"
RECORDED = json.loads((ROOT / "tests" / "mindspore" / "mindformers_1_9_0.json").read_text(encoding="utf-8"))
BOTH = ["log", "tensorboard"]
EVERYTHING = {
    "target": None, "optimizer_state_format": BOTH, "weight_state_format": BOTH, "throughput_baseline": 100,
}  # fmt: skip
FOLDER = Path("worker/tensorboard/rank_0")
OPERATIONS = 2 * 2 * (2 * 3 * 2 + 3 * 1 * 3)
"""Floating-point operations of a step: two for each product of two samples, forward and for gradients of weights in
both layers, for the gradient of inputs in the second."""


@pytest.fixture
def lines(caplog: pytest.LogCaptureFixture, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[], list[str]]:
    """The lines of the callbacks so far; tests run in a directory of their own."""
    caplog.set_level(logging.INFO, "probe.transformers")
    monkeypatch.chdir(tmp_path)
    return lambda: [record.getMessage() for record in caplog.records if record.name == "probe.transformers"]


class WithLoss(nn.Cell):
    """The mean squared distance of the outputs from 1."""

    def __init__(self, net: Any) -> None:
        super().__init__(auto_prefix=False)
        self.net = net

    def construct(self, x: Any) -> Any:
        return ((self.net(x) - 1.0) ** 2).mean()


class Step(nn.TrainOneStepCell):
    """A training step that returns what the tool's training cells return."""

    def construct(self, x: Any) -> Any:
        loss = self.network(x)
        gradients = self.grad(self.network, self.weights)(x, ms.ops.fill(loss.dtype, loss.shape, 1.0))
        loss = ms.ops.depend(loss, self.optimizer(gradients))
        norm = ms.ops.sqrt(sum([(gradient**2).sum() for gradient in gradients])).reshape((1,))
        return loss, ms.Tensor(False), ms.Tensor(1024.0, ms.float32), ms.Tensor(0.001, ms.float32), norm


def trained(callbacks: list[Any], epochs: int = 2, monitor: TrainerMon | None = None, **options: Any) -> Any:
    """Train a small net with ``Model``, four steps an epoch, watched by ``monitor``; return the net."""
    net = TinyNet()
    net.fc2.weight.set_data(tensor([[1e-6, -1e-6, 2e-6]]))
    step = Step(WithLoss(net), nn.AdamWeightDecay(net.trainable_params(), learning_rate=0.001))
    step.set_train()
    if monitor is not None:
        monitor.set_monitor(net, step.optimizer)
    data = {"x": np.concatenate([X * (number + 1) for number in range(4)])}
    dataset = ms.dataset.NumpySlicesDataset(data, shuffle=False).batch(2)
    ms.train.Model(step).train(epochs, dataset, callbacks=callbacks, dataset_sink_mode=False, **options)
    return net


def without_times(line: str) -> str:
    """``line`` without what depends on the clock, on the order of sums and on the release: numbers of six digits."""
    line = re.sub(r"per_step_time: \d+ms|[\d.]+ samples/s/p  \S+ }|(?<=linearity: )\S+", "", line)
    line = line.replace("micro_local_lm_loss", "local_loss")
    return re.sub(r"\d+\.\d+(?:e-?\d+)?", lambda number: f"{float(number[0]):.4g}", line)


def curves(scalars: list[Any]) -> dict[str, list[Any]]:
    """Steps and values by tag, without those that depend on the clock."""
    found: dict[str, list[Any]] = {}
    for step, tag, value in scalars:
        if not re.match("iteration|throughput|B-samples", tag):
            found.setdefault(tag.replace("local_lm_loss", "local_loss"), []).append([step, pytest.approx(value, 1e-4)])
    return found


def test_lines_tags_and_values_are_those_of_the_tool(lines: Callable[[], list[str]]) -> None:
    """For the same training, the same lines, but for their order within a step, and the same curves."""
    trained(from_yaml(SAMPLE, {"monitor_config": EVERYTHING}))
    expected = [without_times(line) for line in RECORDED["lines"]]
    assert len(expected) > 70
    here = [without_times(line) for line in lines()]
    assert sorted(line for line in here if line in expected) == sorted(expected)
    found, recorded = scalars_of(FOLDER), curves(RECORDED["scalars"])
    for tag, points in recorded.items():
        assert [list(point) for point in found[tag]][: len(points)] == points, tag
    timers = {"iteration-time", "throughput"}
    assert set(found) == set(recorded) | timers | {f"{tag}_vs_samples" for tag in timers} | {
        "B-samples-per-day",
        "throughput_linearity",
    }


def test_the_sample_drives_a_training(lines: Callable[[], list[str]]) -> None:
    """The documented YAML, unchanged: both callbacks, the second by itself; its numbers, and its texts."""
    callbacks = from_yaml(SAMPLE)
    assert [type(callback) for callback in callbacks] == [MFLossMonitor, TrainingStateMonitor]
    trained(callbacks, 1)
    assert [callback.faults for callback in callbacks] == [{}, {}]
    found = scalars_of(FOLDER)
    assert [step for step, _ in found["loss_vs_samples"]] == [2, 4, 6, 8]
    assert {"local_loss", "device_local_norm"} <= set(found)
    assert not [tag for tag in found if tag.startswith("local_norm/")]  # no parameter of this model is in a layer
    assert (texts_of(FOLDER)["output_dir"], texts_of(FOLDER)["data_size"]) == ("./output", "4")
    assert len([line for line in lines() if line.startswith("{")]) == 4


@pytest.mark.parametrize(
    ("initial", "epochs", "options"),
    [(4, 1, {}), (0, 2, {"initial_epoch": 1}), (4, 2, {"initial_epoch": 1})],
    ids=["initial_step", "initial_epoch", "both"],
)
def test_a_resumed_run_goes_on_counting(
    initial: int, epochs: int, options: Any, lines: Callable[[], list[str]]
) -> None:
    """Steps of both callbacks continue after initial_step or an epoch, in lines and curves alike."""
    trained(from_yaml(SAMPLE, {"monitor_config": EVERYTHING}, initial_step=initial), epochs, **options)
    found = scalars_of(FOLDER)
    for tag in ("loss", "device_local_norm", "weight_norm", "local_norm/fc.bias"):
        assert [step for step, _ in found[tag]] == [5, 6, 7, 8]
    assert all("Epoch:[  2/" in line for line in lines() if "step:[" in line)


def test_print_struct_names_parameters_and_ends_training(lines: Callable[[], list[str]]) -> None:
    """Training ends after the first step."""
    run: list[Any] = []

    class Count(ms.train.Callback):
        def on_train_step_end(self, run_context: Any) -> None:
            run.append(run_context)

    trained([*from_yaml(SAMPLE, {"monitor_config": {"print_struct": True}}), Count()])
    assert len(run) == 1
    assert [line for line in lines() if line.startswith("fc")] == ["fc.weight", "fc.bias", "fc2.weight"]


def test_a_spike_ends_training(lines: Callable[[], list[str]]) -> None:
    """The error of the callback comes out of ``Model.train``, and the step is recorded."""
    config = {"monitor_config": {"monitor_on": True, "check_for_global_norm": True, "global_norm_spike_threshold": 10}}
    with pytest.raises(RuntimeError, match=r"^TREError occurred\.\.\.\.\.\."):
        trained(from_yaml(config))
    assert json.loads(Path("output/abnormal_global_norm.json").read_text(encoding="utf-8")) == {
        "2": [pytest.approx(14.580803)]
    }
    assert lines()


def test_training_is_bit_identical(lines: Callable[[], list[str]]) -> None:
    """With every number recorded, weights are those of a run without."""
    watched = weights(trained(from_yaml(SAMPLE, {"monitor_config": EVERYTHING})))
    assert watched == weights(trained([]))
    assert lines()


@pytest.mark.usefixtures("graph_mode")
@pytest.mark.parametrize("dumps", [True, False], ids=["norms dumped", "no norms"])
def test_the_sample_drives_a_training_in_graph_mode(dumps: bool, lines: Callable[[], list[str]]) -> None:
    """The documented YAML, unchanged: norms of gradients, which no hook sees, are those that MindSpore dumps, which one
    warning states; all other numbers, and the weights, are those of the training without it."""
    callbacks = from_yaml(SAMPLE, {"monitor_config": {"target": ["fc"]}} if dumps else None)
    norms = {name: [value for _, value in points] for name, points in curves(RECORDED["scalars"]).items()}

    class Compiler(ms.train.Callback):
        """The files that ``TensorDump`` writes, which has no kernel on a CPU."""

        def on_train_step_end(self, run_context: Any) -> None:
            step = run_context.original_args().cur_step_num
            folder = Path("dump/rank_0")
            folder.mkdir(parents=True, exist_ok=True)
            for name in ("fc.weight", "fc.bias", "fc2.weight"):
                value = norms[f"local_norm/{name}"][step - 1].expected
                np.save(folder / f"local_norm__{name}_float32_{len(list(folder.iterdir())) + 10 * step}", value)

    watched = trained([*([Compiler()] if dumps else []), *callbacks], 1)
    assert [callback.faults for callback in callbacks] == [{}, {}]
    found, recorded = scalars_of(FOLDER), curves(RECORDED["scalars"])
    dumped = ["device_local_norm", "local_norm/fc.bias", "local_norm/fc2.weight"] if dumps else []
    for tag in ("loss", "grad-norm", "learning-rate", "loss-scale", "local_loss", *dumped):
        assert [list(point) for point in found[tag]] == recorded[tag][:4], tag
    assert "iteration-time" in found
    assert ("device_local_norm" in found) is dumps
    assert len([line for line in lines() if "GRAPH_MODE" in line and "local_norm_format" in line]) == 1
    assert texts_of(FOLDER)["data_size"] == "4"
    assert weights(watched) == weights(trained([], 1))


@pytest.mark.usefixtures("graph_mode")
def test_in_graph_mode_all_but_gradients_is_recorded(lines: Callable[[], list[str]]) -> None:
    """Loss, norms of weights and moments, throughput are the tool's."""
    without = {"local_norm_format": None, "device_local_norm_format": None}
    callbacks = from_yaml(
        SAMPLE, {"monitor_config": EVERYTHING | without, "tensorboard": {"tensorboard_dir": "curves"}}
    )
    received: list[dict[str, Any]] = []

    class Run:
        def log_ended(self, **values: Any) -> None:
            received.append(values)

    trained([*callbacks, RunCallback(Run())], 1)
    assert [callback.faults for callback in callbacks] == [{}, {}]
    found, recorded = scalars_of(Path("curves/rank_0")), curves(RECORDED["scalars"])
    for tag in ("loss", "grad-norm", "learning-rate", "weight_norm", "adam_v_norm/fc.bias", "local_loss"):
        assert [list(point) for point in found[tag]] == recorded[tag][:4], tag
    assert len(found["throughput_linearity"]) == 4
    assert callbacks[0].flops_per_step == OPERATIONS
    for (_, teraflops), (_, milliseconds) in zip(
        found["model-flops-throughput-per-npu"], found["iteration-time"], strict=True
    ):
        assert teraflops * milliseconds * 1e9 == pytest.approx(OPERATIONS, 1e-5)
    assert [{*values} for values in received] == [{"loss", "loss_scale", "learning_rate", "grad_norm"}] * 4
    assert [float(values["loss"]) for values in received] == [value for _, value in found["loss"]]
    assert lines()


@pytest.mark.usefixtures("graph_mode")
def test_numbers_of_the_run_are_recorded_in_graph_mode(
    lines: Callable[[], list[str]], caplog: pytest.LogCaptureFixture
) -> None:
    """A monitor without signals attaches; its steps are those of the callback, with the numbers of the training cell,
    and weights stay those of a training without it."""
    received: list[float] = []

    class Run:
        def log_ended(self, **values: Any) -> None:
            received.append(float(values["loss"]))

    monitor = TrainerMon({"run": {"enable": True}, "wg_distribution": False})
    watched = trained([RunCallback(monitor), RunCallback(Run())], 2, monitor)
    assert monitor.step == 8
    monitor.stop()
    assert monitor.faults == {}
    with next(Path(str(monitor.output_directory)).glob("run_*.csv")).open(newline="") as file:
        rows = [(int(row["step"]), float(row["value"])) for row in csv.DictReader(file) if row["name"] == "loss"]
    assert rows == [(step, pytest.approx(value, abs=1e-6)) for step, value in enumerate(received)]
    assert weights(watched) == weights(trained([], 2))
    trained([RunCallback(again := TrainerMon({"run": {"enable": True}}))], 1, again)
    again.stop()
    assert again.step == 4
    assert not [record for record in caplog.records if "sunk" in record.getMessage()]
    assert not lines()
