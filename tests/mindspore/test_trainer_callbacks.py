"""``ProbeCallback`` in ``Model.train``, and in the register of MindSpore Transformers."""

from __future__ import annotations

import copy
import csv
import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any, ClassVar

import numpy as np
import pytest

from probe.mindspore import ProbeCallback, TrainerMon, TrainingStateMonitor, from_yaml
from probe.mindspore.callbacks import RunCallback, register
from tests.mindspore.toys import TinyNet, X, ms, nn, weights

CONFIG = {"wg_distribution": True, "param_distribution": True, "ops": ["norm"]}


def rows_of(monitor: Any) -> dict[str, str]:
    """Files about tensors, by name."""
    folder = Path(str(monitor.output_directory))
    return {path.name: path.read_text() for path in sorted(folder.glob("*.csv")) if not path.name.startswith("run_")}


def steps_of(monitor: Any, name: str) -> list[int]:
    """Steps for which a number of the run is recorded."""
    with next(Path(str(monitor.output_directory)).glob("run_*.csv")).open(newline="") as file:
        return [int(row["step"]) for row in csv.DictReader(file) if row["name"] == name]


class Lines(ms.train.Callback):
    """Three lines of a user's, in a callback of their own."""

    monitor: Any = None

    def on_train_begin(self, run_context: Any) -> None:
        params = run_context.original_args()
        self.monitor = TrainerMon(CONFIG)
        self.monitor.set_monitor(params.network, 1, params.optimizer)

    def on_train_end(self, run_context: Any) -> None:
        self.monitor.stop()


def trained(callbacks: list[Any], optimizer: Any = None, net: Any = None) -> tuple[Any, Any]:
    """Train with ``Model``, two epochs of four steps; return the net and its optimizer."""
    net = net or TinyNet()
    optimizer = optimizer or nn.AdamWeightDecay(net.trainable_params(), learning_rate=0.001)
    data = {"x": np.concatenate([X * (number + 1) for number in range(4)]), "y": np.zeros((8, 1), np.float32)}
    dataset = ms.dataset.NumpySlicesDataset(data, shuffle=False).batch(2)
    ms.train.Model(net, nn.MSELoss(), optimizer).train(2, dataset, callbacks=callbacks, dataset_sink_mode=False)
    return net, optimizer


def test_a_model_is_watched_as_by_the_three_lines() -> None:
    """Rows to the byte, weights to the bit, and the loss at each step; the next training has a run that goes on."""
    callback, lines = ProbeCallback(CONFIG), Lines()
    net, optimizer = trained([callback])
    assert weights(net) == weights(trained([lines])[0]) == weights(trained([])[0])
    assert rows_of(callback.monitor) == rows_of(lines.monitor)
    assert len(rows_of(callback.monitor)) >= 3 * 8
    assert steps_of(callback.monitor, "loss") == [*range(8)]
    assert callback.monitor.faults == {}
    first = callback.monitor
    trained([callback], optimizer, net)
    assert callback.monitor is not first
    assert steps_of(callback.monitor, "loss") == [*range(8, 16)]


def test_a_class_in_the_place_of_a_callback(capsys: pytest.CaptureFixture[str]) -> None:
    """An object is made of it, as trainers of PyTorch do; where it needs an argument, the error has the call."""
    trained([ProbeCallback])
    assert "watching TinyNet with AdamWeightDecay" in capsys.readouterr().err
    with pytest.raises(TypeError, match=r"RunCallback: missing .*; call RunCallback\(monitor\)"):
        trained([RunCallback])
    assert (isinstance(ProbeCallback, type), copy.deepcopy(ProbeCallback)) == (True, ProbeCallback)


def test_a_monitor_of_the_program_watches_alone() -> None:
    """The callback passes it the numbers, and leaves it running."""
    lines, callback = Lines(), ProbeCallback()
    trained([lines, callback])
    assert callback.monitor is lines.monitor
    assert steps_of(lines.monitor, "loss") == [*range(8)]


@pytest.mark.usefixtures("graph_mode")
def test_in_graph_mode_numbers_of_the_run_are_recorded() -> None:
    """The same configuration: signals are left out, each step has its loss."""
    callback = ProbeCallback(CONFIG)
    trained([callback])
    assert callback.monitor.step == 8
    assert steps_of(callback.monitor, "loss") == [*range(8)]
    assert rows_of(callback.monitor) == {}


@pytest.mark.parametrize("mode", ["PYNATIVE_MODE", "GRAPH_MODE"])
def test_steps_that_end_together_are_warned_of_once(
    mode: str, request: pytest.FixtureRequest, caplog: pytest.LogCaptureFixture
) -> None:
    """Where the dataset is sunk to the device, which a CPU cannot: the arguments that a callback gets then."""
    if mode == "GRAPH_MODE":
        request.getfixturevalue("graph_mode")
    received: list[dict[str, Any]] = []
    receiver = SimpleNamespace(log_ended=lambda **values: received.append(values))
    params = SimpleNamespace(dataset_sink_mode=True, batch_num=4, net_outputs=ms.Tensor(0.5))
    callback = RunCallback(receiver)
    for _ in range(2):
        callback.on_train_step_end(SimpleNamespace(original_args=lambda: params))
    warnings = [each.getMessage() for each in caplog.records if each.name == "probe"]
    assert len(warnings) == 1
    assert "RunCallback: the dataset is sunk to the device, so that 4 steps end together" in warnings[0]
    assert ("recorded as one step" in warnings[0]) is (mode == "GRAPH_MODE")
    assert [float(values["loss"]) for values in received] == [0.5, 0.5]


def register_of_mindformers() -> ModuleType:
    """Stand-in for ``mindformers.tools.register`` (1.9.0): a table of classes by type and name, filled by
    ``register_cls``, from which ``build_callback`` makes objects with the keys of the YAML as arguments."""

    class MindFormerModuleType:
        CALLBACK = "callback"

    class MindFormerRegister:
        registry: ClassVar[dict[str, dict[str, type]]] = {}

        @classmethod
        def register_cls(cls, register_class: type, module_type: str = "tools", alias: str | None = None) -> type:
            cls.registry.setdefault(module_type, {})[alias or register_class.__name__] = register_class
            return register_class

        @classmethod
        def is_exist(cls, module_type: str, class_name: str) -> bool:
            return class_name in cls.registry.get(module_type, {})

        @classmethod
        def get_instance_from_cfg(cls, cfg: dict[str, Any], module_type: str) -> Any:
            arguments = dict(cfg)
            return cls.registry[module_type][arguments.pop("type")](**arguments)

    module = ModuleType("mindformers.tools.register")
    module.MindFormerModuleType, module.MindFormerRegister = MindFormerModuleType, MindFormerRegister  # type: ignore[attr-defined]
    return module


def test_from_yaml_makes_the_callback_beside_the_tools_own() -> None:
    """Each records what it does alone."""
    yaml = {
        "monitor_config": {"monitor_on": True, "local_norm_format": ["log"]},
        "callbacks": [{"type": "ProbeCallback", "config": CONFIG}],
    }
    alone, (state, callback) = ProbeCallback(CONFIG), from_yaml(yaml)
    assert weights(trained([alone])[0]) == weights(trained([state, callback])[0])
    assert isinstance(state, TrainingStateMonitor)
    assert rows_of(callback.monitor) == rows_of(alone.monitor)
    assert steps_of(callback.monitor, "loss") == [*range(8)]
    assert (state.faults, callback.monitor.faults) == ({}, {})


def test_mindspore_transformers_makes_the_callback_from_its_yaml() -> None:
    """By its name, with the keys of the configuration beside it."""
    module = register_of_mindformers()
    register(module)
    register(module)
    callback = module.MindFormerRegister.get_instance_from_cfg({"type": "ProbeCallback", **CONFIG}, "callback")
    trained([callback])
    assert steps_of(callback.monitor, "loss") == [*range(8)]
    assert len(rows_of(callback.monitor)) >= 3
    assert "mindformers" not in sys.modules
