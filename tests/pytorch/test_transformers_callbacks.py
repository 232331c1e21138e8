"""MindSpore Transformers' callbacks in training loops of PyTorch, and callbacks for trainers."""

from __future__ import annotations

import json
import logging
import math
import os
import re
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from probe.core.transformers_monitor import TransformersConfigError
from probe.pytorch import MFLossMonitor, TrainerMon, TrainingStateMonitor, TrainingStopped, from_yaml
from probe.pytorch import callbacks as callbacks_module
from tests import user_scripts
from tests.core.test_transformers_monitor import scalars_of, texts_of
from tests.quick_python import quick_python
from tests.required import require

torch = require("torch")

ROOT = Path(__file__).parents[2]
SAMPLE = ROOT / "resources" / "mindspore_transformers.yaml"
BOTH = ["log", "tensorboard"]
EVERYTHING = {
    "monitor_on": True, "local_loss_format": BOTH, "local_norm_format": BOTH, "device_local_norm_format": BOTH,
    "device_local_loss_format": BOTH, "optimizer_state_format": BOTH, "weight_state_format": BOTH,
    "throughput_baseline": 100, "target": None,
}  # fmt: skip
BATCH, STEPS = 4, 3


class Net(torch.nn.Module):
    """Three layers and a head, the first of which is frozen."""

    def __init__(self) -> None:
        super().__init__()
        with torch.random.fork_rng():
            torch.manual_seed(0)
            self.layers = torch.nn.ModuleList(torch.nn.Linear(3, 3) for _ in range(3))
            self.head = torch.nn.Linear(3, 1)
        self.layers[0].bias.requires_grad_(False)

    def forward(self, x: Any) -> Any:
        for layer in self.layers:
            x = torch.tanh(layer(x))
        return self.head(x)


def batch(step: int) -> Any:
    return torch.randn(BATCH, 3, generator=torch.Generator().manual_seed(step))


class Training:
    """A loop that calls the callbacks in one line a step, and works the numbers out by itself."""

    def __init__(self, *, scale: float = 1.0) -> None:
        self.net, self.scale = Net(), scale
        self.trained = {name: p for name, p in self.net.named_parameters() if p.requires_grad}
        self.optimizer = torch.optim.AdamW(self.trained.values(), 0.01)
        self.expected: list[dict[str, float]] = []

    def run(self, callbacks: Any, steps: int = STEPS, first: int = 1) -> None:
        for step in range(first, first + steps):
            loss = self.scale * self.net(batch(step)).square().mean()
            self.optimizer.zero_grad()
            loss.backward()
            gradients = {name: float(p.grad.double().norm()) for name, p in self.trained.items()}
            norm = torch.nn.utils.clip_grad_norm_(self.trained.values(), 1e9)
            self.optimizer.step()
            self.expected.append(self.numbers(loss, gradients))
            callbacks.step_end(loss=loss, grad_norm=norm, loss_scale=2.0)

    def numbers(self, loss: Any, gradients: dict[str, float]) -> dict[str, float]:
        """The numbers of a step by tag, in float64."""
        state = {name: self.optimizer.state[p] for name, p in self.trained.items()}
        weights = [float(p.detach().double().square().sum()) for p in self.trained.values()]
        return (
            {f"local_norm/{name}": norm for name, norm in gradients.items()}
            | {f"adam_m_norm/{name}": float(kept["exp_avg"].double().norm()) for name, kept in state.items()}
            | {f"adam_v_norm/{name}": float(kept["exp_avg_sq"].double().norm()) for name, kept in state.items()}
            | dict.fromkeys(("local_loss", "device_accum_local_loss", "loss"), float(loss.detach()))
            | {"device_local_norm": math.sqrt(sum(norm**2 for norm in gradients.values()))}
            | {"weight_norm": math.sqrt(sum(weights))}
        )


@pytest.fixture
def lines(caplog: pytest.LogCaptureFixture, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[], list[str]]:
    """The lines of the callbacks so far; tests run in a directory of their own."""
    caplog.set_level(logging.INFO, "probe.transformers")
    monkeypatch.chdir(tmp_path)
    return lambda: [record.getMessage() for record in caplog.records if record.name == "probe.transformers"]


def callbacks_of(training: Training, section: dict[str, Any], **options: Any) -> Any:
    """The sample's callbacks with another ``monitor_config``, attached."""
    more = {"arguments": {"monitor_config": section}, "global_batch_size": BATCH, "dataset_size": 2}
    return from_yaml(SAMPLE, **(more | options)).attach(training.net, training.optimizer)


def events(folder: str = "worker/tensorboard/rank_0") -> dict[str, list[tuple[int, float]]]:
    return scalars_of(Path(folder))


def test_the_sample_drives_a_loop(lines: Callable[[], list[str]]) -> None:
    """The documented YAML, unchanged, in two lines: every tag, text and line that it asks for."""
    training = Training()
    with from_yaml(SAMPLE, global_batch_size=BATCH).attach(training.net, training.optimizer) as callbacks:
        assert [type(callback) for callback in callbacks] == [MFLossMonitor, TrainingStateMonitor]
        training.run(callbacks)
    assert [callback.faults for callback in callbacks] == [{}, {}]
    found = events()
    both = {"learning-rate", "batch-size", "loss", "loss-scale", "grad-norm", "iteration-time", "throughput"}
    chosen = {f"local_norm/{name}" for name in training.trained if name.startswith(("layers.0", "layers.1"))}
    assert chosen == {"local_norm/layers.0.weight", "local_norm/layers.1.weight", "local_norm/layers.1.bias"}
    assert set(found) == (
        both | {f"{tag}_vs_samples" for tag in both} | {"B-samples-per-day", "local_loss", "device_local_norm"} | chosen
    )
    assert found["learning-rate"] == [(step, pytest.approx(0.01)) for step in (1, 2, 3)]
    for tag in chosen | {"local_loss", "device_local_norm", "loss"}:
        assert found[tag] == [(i, pytest.approx(each[tag], rel=1e-5)) for i, each in enumerate(training.expected, 1)]
    assert texts_of(Path("worker/tensorboard/rank_0"))["seed"] == "0"
    logged = lines()
    assert len([line for line in logged if line.startswith("{ Epoch:[")]) == STEPS
    assert len([line for line in logged if "local_norm/" in line]) == STEPS * len(chosen)
    assert not Path("dump").exists()


def test_every_number_is_that_of_the_tensors(lines: Callable[[], list[str]]) -> None:
    """Norms of gradients, optimizer state and weights after the update, losses: in event files and log alike."""
    training = Training()
    with callbacks_of(training, EVERYTHING) as callbacks:
        training.run(callbacks)
    found, logged = events(), lines()
    for step, expected in enumerate(training.expected, 1):
        for tag, value in expected.items():
            assert found[tag][step - 1] == (step, pytest.approx(value, rel=1e-5)), tag
            if tag != "loss":
                (line,) = [each for each in logged if f"step:[{2 - step % 2:5d}/    2] {tag}: " in each
                           and f"Epoch:[{(step + 1) // 2:3d}/" in each]  # fmt: skip
                assert float(line.rpartition(": ")[2]) == pytest.approx(value, rel=1e-5)


def test_the_linearity_is_the_throughput_over_its_baseline(lines: Callable[[], list[str]]) -> None:
    """Samples a second and device, divided by throughput_baseline, to the log and the event file."""
    monitor = TrainingStateMonitor(
        config={"throughput_baseline": 50}, global_batch_size=4, tensorboard={"tensorboard_dir": "curves"}
    )
    began = time.perf_counter()
    monitor.step_begin()
    while time.perf_counter() < began + 0.02:
        pass
    monitor.step_end(loss=1.0)
    longest = time.perf_counter() - began
    monitor.close()
    ((step, value),) = events("curves/rank_0")["throughput_linearity"]
    assert step == 1
    assert 4 / longest / 50 <= value <= 4 / 0.02 / 50 * 1.01
    (line,) = [line for line in lines() if "throughput_linearity" in line]
    assert float(line.rpartition(": ")[2]) == pytest.approx(value, rel=1e-6)


def test_small_norms_are_not_hidden(lines: Callable[[], list[str]]) -> None:
    """A gradient of 1e-12 is shown with its digits in both styles."""
    for style in ("1.6", "1.9"):
        training = Training(scale=1e-12)
        with callbacks_of(training, EVERYTHING | {"target": ["head"]}, log_style=style) as callbacks:
            training.run(callbacks, 1)
        (line,) = [line for line in lines() if "local_norm/head.weight" in line][-1:]
        shown = re.search(r"local_norm/head.weight: (\d+\.\d+)$", line)
        assert shown
        assert float(shown[1]) == pytest.approx(training.expected[0]["local_norm/head.weight"], rel=1e-3)


@pytest.mark.parametrize("initial", [0, 4])
def test_an_interval_takes_multiples_of_itself(lines: Callable[[], list[str]], initial: int) -> None:
    """Steps are numbered over all runs: after a resume the same ones are recorded, in lines and curves."""
    training = Training()
    section = EVERYTHING | {"step_interval": 3}
    with callbacks_of(training, section, initial_step=initial) as callbacks:
        training.run(callbacks, 6, initial + 1)
    found, recorded = events(), [step for step in range(initial + 1, initial + 7) if step % 3 == 0]
    for tag in ("device_local_norm", "weight_norm", "local_loss", "adam_v_norm/head.bias", "local_norm/head.bias"):
        expected = [(step, pytest.approx(training.expected[step - initial - 1][tag], rel=1e-5)) for step in recorded]
        assert found[tag] == expected
    assert [step for step, _ in found["loss"]] == list(range(initial + 1, initial + 7))
    assert any(f"step:[{2 - recorded[0] % 2:5d}/    2] weight_norm" in line for line in lines())


def test_inverted_targets_are_the_others(lines: Callable[[], list[str]]) -> None:
    """`invert` chooses what `target` does not match."""
    training = Training()
    section = EVERYTHING | {"target": [r"layers\.\d"], "invert": True}
    with callbacks_of(training, section) as callbacks:
        training.run(callbacks, 1)
    named = {tag.partition("/")[2] for tag in events() if "_norm/" in tag}
    assert named == {"head.weight", "head.bias"}


def test_a_target_without_a_match_is_a_warning(caplog: pytest.LogCaptureFixture, tmp_path: Path) -> None:
    """It names parameters that there are."""
    training = Training()
    section = {"monitor_on": True, "local_norm_format": "log", "target": ["encoder"]}
    from_yaml({"monitor_config": section, "output_dir": str(tmp_path)}).attach(training.net, training.optimizer).close()
    assert "no parameter is chosen by ['encoder']; the names are such as layers.0.weight" in caplog.text


def test_micro_batches_have_lines_of_their_own(lines: Callable[[], list[str]]) -> None:
    """Several local losses: one line each, their mean in the event file; losses by name have tags by name."""
    section = {"monitor_on": True, "local_loss_format": BOTH, "device_local_loss_format": "tensorboard"}
    training = Training()
    with callbacks_of(training, section) as callbacks:
        callbacks.step_end(loss=1.0, local_loss=[torch.tensor(1.0), torch.tensor(2.0)])
        callbacks.step_end(loss=1.0, local_loss={"lm": 3.0, "mtp": torch.tensor(0.5)})
    found = events()
    assert found["local_loss"] == [(1, 1.5)]
    assert found["device_accum_local_loss"] == [(1, 1.5)]
    assert (found["local_lm_loss"], found["local_mtp_loss"]) == ([(2, 3.0)], [(2, 0.5)])
    state = [line.partition("] ")[2] for line in lines() if line.startswith("Epoch")]
    assert state == ["micro_local_loss: 1.0", "micro_local_loss: 2.0", "local_lm_loss: 3.0", "local_mtp_loss: 0.5"]


def test_print_struct_names_parameters_and_ends_training(lines: Callable[[], list[str]]) -> None:
    """All trainable parameters, whatever the target; training ends after the first step."""
    training = Training()
    callbacks = callbacks_of(training, EVERYTHING | {"print_struct": True})
    with pytest.raises(TrainingStopped):
        training.run(callbacks)
    assert [line for line in lines() if line in training.trained] == list(training.trained)
    assert len(training.expected) == 1


def test_an_optimizer_without_moments_is_a_warning(
    lines: Callable[[], list[str]], caplog: pytest.LogCaptureFixture
) -> None:
    """The other numbers are recorded all the same."""
    training = Training()
    training.optimizer = torch.optim.SGD(training.trained.values(), 0.1)
    with callbacks_of(
        training, {"monitor_on": True, "optimizer_state_format": "log", "weight_state_format": "log"}
    ) as cb:
        cb.step_end(loss=1.0)
        cb.step_end(loss=1.0)
    assert caplog.text.count("keeps no first and second moment") == 1
    assert len([line for line in lines() if "weight_norm" in line]) == 2


# The end of training that a configuration asks for.


@pytest.mark.parametrize("norm", [5.0, float("nan")])
def test_a_spike_of_the_global_norm_ends_training_for_the_launcher(
    lines: Callable[[], list[str]],
    norm: float,
) -> None:
    """One step later, with the error that launchers look for; done again, the step passes."""
    config = {"monitor_config": {"monitor_on": True, "check_for_global_norm": True}, "output_dir": "out"}
    norms = [1.0, norm, 1.0, 1.0]

    def run(steps: int) -> None:
        with from_yaml(config).attach(Net(), None) as callbacks:
            for each in norms[:steps]:
                callbacks.step_end(loss=torch.tensor(1.0), grad_norm=torch.tensor(each))

    for steps in (2, 3):  # at the end, and one step later
        Path("out/abnormal_global_norm.json").unlink(missing_ok=True)
        with pytest.raises(RuntimeError, match=r"^TREError occurred\.\.\.\.\.\."):
            run(steps)
    assert list(json.loads(Path("out/abnormal_global_norm.json").read_text(encoding="utf-8"))) == ["2"]
    run(len(norms))


def test_the_last_step_is_checked_at_the_end() -> None:
    """`finish` raises what the last step did."""
    monitor = TrainingStateMonitor(check_for_nan_in_loss_and_grad=True)
    monitor.step_end(loss=torch.tensor(1.0))
    monitor.step_end(loss=torch.tensor(float("inf")))
    with pytest.raises(ValueError, match="There is inf in loss of step 2"):
        monitor.finish()


def test_a_step_that_cannot_be_read_does_not_hold_training_up() -> None:
    """Its check is left out, and counted; training neither waits nor ends."""
    began = time.monotonic()
    with from_yaml({"check_for_nan_in_loss_and_grad": True}) as callbacks:
        for loss in ("a", "b", "c", 1.0):
            callbacks.step_end(loss=loss)
    assert time.monotonic() - began < 60
    assert callbacks[0].faults == {"TrainingStateMonitor: ValueError": 3}


def test_bad_values_are_one_error_before_training() -> None:
    """A callback made by hand checks its values as the file does."""
    with pytest.raises(TransformersConfigError, match="2 problems") as raised:
        TrainingStateMonitor(config={"target": "layers", "weight_state_format": "disk"})
    assert [line.split(":")[0] for line in raised.value.problems] == ["target", "weight_state_format"]
    with pytest.raises(TransformersConfigError, match="per_print_times: expected an integer >= 1, got 0"):
        MFLossMonitor(per_print_times=0)


# Promises.


def test_training_is_bit_identical(lines: Callable[[], list[str]]) -> None:
    """With every number recorded, weights and random states are those of a run without."""

    class Nothing:
        def step_end(self, **_: Any) -> None: ...

    plain, watched = Training(), Training()
    states = []
    plain.run(Nothing(), 5)
    states.append(torch.get_rng_state())
    with callbacks_of(watched, EVERYTHING) as callbacks:
        watched.run(callbacks, 5)
    states.append(torch.get_rng_state())
    assert torch.equal(*states)
    pairs = zip(plain.net.parameters(), watched.net.parameters(), strict=True)
    assert all(torch.equal(one, other) for one, other in pairs)


def test_training_does_not_wait_for_lines_and_files(
    lines: Callable[[], list[str]],
    caplog: pytest.LogCaptureFixture,
) -> None:
    """While a log handler blocks, steps go on; what was logged meanwhile comes later."""
    release, blocked = threading.Event(), threading.Event()

    class Blocking(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            blocked.set()
            assert release.wait(120)

    logger, handler = logging.getLogger("probe.transformers"), Blocking()
    logger.addHandler(handler)
    try:
        monitor = MFLossMonitor()
        for step in range(50):
            monitor.step_end(loss=torch.tensor(float(step)))
        assert blocked.wait(120)
        assert not monitor.flush(0.0)
        release.set()
        assert monitor.flush()
        monitor.close()
    finally:
        release.set()
        logger.removeHandler(handler)
    assert monitor.faults == {}
    assert len([line for line in lines() if line.startswith("{")]) == 50


def test_a_failure_of_the_event_file_is_counted(lines: Callable[[], list[str]], tmp_path: Path) -> None:
    """Lines go on if the folder is gone and cannot be made again."""
    monitor = MFLossMonitor(tensorboard={"tensorboard_dir": "curves", "tensorboard_queue_size": 1})
    monitor.step_end(loss=1.0, learning_rate=1.0, grad_norm=1.0)
    assert monitor.flush()
    folder = tmp_path / "curves" / "rank_0"
    for file in folder.iterdir():
        file.unlink()
    folder.rmdir()
    folder.write_text("", encoding="utf-8")
    monitor.step_end(loss=1.0, learning_rate=1.0, grad_norm=1.0)
    monitor.close()
    assert sum(monitor.faults.values()) == 1
    assert len([line for line in lines() if line.startswith("{")]) == 2


SCRIPT = """
import torch
from probe.pytorch import from_yaml

net = torch.nn.Linear(2, 1)
optimizer = torch.optim.AdamW(net.parameters())
callbacks = from_yaml("train.yaml").attach(net, optimizer)
for _ in range(2):
    loss = net(torch.ones(1, 2)).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    callbacks.step_end(loss=loss)
"""


def test_a_script_without_logging_prints_lines_and_ends_by_itself(tmp_path: Path) -> None:
    """Lines go to standard output, in the form that readers of logs search, and nothing is lost at the end."""
    (tmp_path / "train.yaml").write_text(SAMPLE.read_text(encoding="utf-8").replace("['layers.0', 'layers.1']", "null"))
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    command = [quick_python(*user_scripts.TORCH), "-c", SCRIPT]
    run = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=True)
    assert "Error" not in run.stderr
    printed = run.stdout.splitlines()
    assert len([line for line in printed if "INFO - { Epoch:[" in line]) == 2
    assert len([line for line in printed if "] local_norm/weight: " in line]) == 2
    assert [step for step, _ in scalars_of(tmp_path / "worker/tensorboard/rank_0")["loss"]] == [1, 2]


# Trainers.


class Receiver:
    """What ``monitor.log`` receives."""

    def __init__(self) -> None:
        self.received: list[dict[str, Any]] = []

    def log_ended(self, **values: Any) -> None:
        self.received.append(values)


def test_the_hugging_face_callback_logs_what_the_trainer_logs() -> None:
    """Loss, learning rate, norm and the loss of an evaluation; nothing else."""
    require("transformers")
    from transformers import TrainerCallback

    from probe.pytorch.callbacks import HuggingFaceCallback

    run = Receiver()
    callback = HuggingFaceCallback(run)
    assert isinstance(callback, TrainerCallback)
    callback.on_log(None, None, None, {"loss": 0.5, "learning_rate": 0.1, "grad_norm": 2.0, "epoch": 1.0})
    callback.on_log(None, None, None, {"eval_loss": 0.25, "eval_runtime": 1.0})
    callback.on_log(None, None, None, {"train_runtime": 1.0})
    assert run.received == [{"loss": 0.5, "learning_rate": 0.1, "grad_norm": 2.0}, {"val_loss": 0.25}]


def test_the_lightning_callback_logs_each_step(tmp_path: Path) -> None:
    """A real Trainer of two steps and a validation."""
    lightning = require("lightning.pytorch")
    from probe.pytorch.callbacks import LightningCallback

    class Module(lightning.LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.net = torch.nn.Linear(3, 1)

        def training_step(self, x: Any, _: int) -> Any:
            return self.net(x).square().mean()

        def validation_step(self, x: Any, _: int) -> None:
            self.log("val_loss", self.net(x).square().mean())

        def configure_optimizers(self) -> Any:
            return torch.optim.SGD(self.parameters(), 0.25)

    run = Receiver()
    quiet = {"logger": False, "enable_checkpointing": False, "enable_progress_bar": False, "accelerator": "cpu"}
    trainer = lightning.Trainer(
        max_epochs=1, callbacks=[LightningCallback(run)], default_root_dir=tmp_path, enable_model_summary=False, **quiet
    )
    loaders = [torch.utils.data.DataLoader(torch.cat([batch(1), batch(2)])[:n], BATCH) for n in (2 * BATCH, BATCH)]
    trainer.fit(Module(), *loaders)
    *steps, validation = sorted(run.received, key=lambda values: "val_loss" in values)
    assert [set(values) for values in steps] == [{"loss"}] * 2
    assert float(validation["val_loss"]) > 0


@pytest.mark.parametrize(
    ("name", "packages"),
    [("HuggingFaceCallback", ["transformers"]), ("LightningCallback", ["lightning", "pytorch_lightning"])],
)
def test_a_callback_without_its_package_says_what_to_install(
    name: str, packages: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The package is imported when its callback is."""
    for module in ("huggingface", "lightning"):
        monkeypatch.delitem(sys.modules, f"probe.pytorch.callbacks.{module}", raising=False)
    for package in packages:
        for loaded in [each for each in sys.modules if each.partition(".")[0] == package]:
            monkeypatch.delitem(sys.modules, loaded)
        monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(ImportError, match=rf"{name} needs {packages[0]}.*pip install"):
        getattr(callbacks_module, name)


def test_operations_a_second_are_those_of_the_monitor(
    lines: Callable[[], list[str]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without ``flops_per_step`` of its own, the loss monitor has those of a monitor of the same training, over the
    time of each step."""
    monkeypatch.setenv("MONITOR_OUTPUT_DIR", str(tmp_path / "run"))
    training = Training()
    monitor = TrainerMon({"format": "api", "run": {"flops_per_step": 2e12}})
    monitor.set_monitor(training.net, 1, training.optimizer)
    settings = {"tensorboard_dir": "curves", "log_timers_to_tensorboard": True}
    loss = MFLossMonitor(tensorboard=settings, monitor=monitor)
    for step in range(4):
        training.optimizer.zero_grad()
        training.net(batch(step)).square().mean().backward()
        training.optimizer.step()
        loss.step_end(loss=1.0)
        assert monitor.flush()
    loss.close()
    monitor.stop()
    curves = scalars_of(tmp_path / "curves" / "rank_0")
    rates, milliseconds = curves["model-flops-throughput-per-npu"], dict(curves["iteration-time"])
    assert rates
    for step, rate in rates:
        assert rate * milliseconds[step] / 1000 == pytest.approx(2.0, rel=1e-5)
    assert monitor.faults == {}
