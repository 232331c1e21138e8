"""Callbacks that attach by themselves, in real trainers: rows of the three lines, and numbers of the right step."""

from __future__ import annotations

import copy
import csv
import io
import logging
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from probe.core.config.errors import ConfigError
from probe.core.monitor.trainer_mon import Monitor, watcher_of
from probe.core.naming import STEP_SECONDS
from tests.required import require

torch = require("torch")
transformers = require("transformers")
lightning = require("lightning.pytorch")
accelerate = require("accelerate")

from probe.pytorch import TrainerMon  # noqa: E402
from probe.pytorch.callbacks import accelerate as of_accelerate  # noqa: E402
from probe.pytorch.callbacks import huggingface  # noqa: E402
from probe.pytorch.callbacks import lightning as of_lightning  # noqa: E402

ROOT = Path(__file__).parents[2]
CONFIG = {"wg_distribution": True, "param_distribution": True, "mv_distribution": True, "ops": ["norm", "nans"]}
STEPS, MICRO_BATCHES = 4, 2


def rows_of(monitor: Monitor) -> dict[str, str]:
    """Files about tensors, by name."""
    folder = Path(str(monitor.output_directory))
    return {path.name: path.read_text() for path in sorted(folder.glob("*.csv")) if not path.name.startswith("run_")}


def numbers_of(monitor: Monitor, name: str) -> dict[int, float]:
    """A number of the run, by step."""
    found = []
    for path in Path(str(monitor.output_directory)).glob("run_*.csv"):
        with path.open(newline="") as file:
            found += [(int(row["step"]), float(row["value"])) for row in csv.DictReader(file) if row["name"] == name]
    return dict(sorted(found))


def by_hand(model: Any, optimizer: Any, begun: int = 0) -> TrainerMon:
    """The three lines."""
    monitor = TrainerMon(CONFIG)
    monitor.set_monitor(model, MICRO_BATCHES, optimizer, start_iteration=begun)
    return monitor


# Hugging Face.


class Points(torch.utils.data.Dataset[Any]):
    """Inputs of a linear model."""

    def __len__(self) -> int:
        return 64

    def __getitem__(self, index: int) -> dict[str, Any]:
        return {"x": torch.full((3,), float(index % 7) - 3.0)}


class Regression(torch.nn.Module):
    """The usual shape of a model for the Trainer."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(1)
        self.fc, self.head = torch.nn.Linear(3, 4), torch.nn.Linear(4, 1)

    def forward(self, x: Any, return_loss: bool = True) -> dict[str, Any]:
        out = self.head(self.fc(x))
        return {"loss": (out - 1).square().mean(), "out": out}


class Lines(transformers.TrainerCallback):
    """Three lines of a user's, in a callback of their own."""

    monitor: Any = None

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self.monitor = by_hand(kwargs["model"], kwargs["optimizer"], state.global_step)

    def on_train_end(self, *_: Any, **__: Any) -> None:
        self.monitor.stop()


def trainer(folder: Path, callbacks: list[Any], **options: Any) -> Any:
    """A Trainer with accumulation that logs at each step."""
    settings = {"max_steps": STEPS, "logging_steps": 1, "save_strategy": "no", **options}
    arguments = transformers.TrainingArguments(
        output_dir=str(folder),
        per_device_train_batch_size=2,
        gradient_accumulation_steps=MICRO_BATCHES,
        report_to=[],
        learning_rate=1e-2,
        disable_tqdm=True,
        use_cpu=True,
        dataloader_pin_memory=False,
        **settings,
    )
    return transformers.Trainer(
        model=Regression(), args=arguments, train_dataset=Points(), eval_dataset=Points(), callbacks=callbacks
    )


def logged(done: Any, name: str) -> list[float]:
    return [entry[name] for entry in done.state.log_history if name in entry]


def test_the_trainer_is_watched_as_by_the_three_lines(tmp_path: Path) -> None:
    """Rows to the byte, weights to the bit; each number at the step that the Trainer's log is about."""
    callback, lines = huggingface.ProbeCallback(CONFIG), Lines()
    plain, watched, own = (trainer(tmp_path, each) for each in ([], [callback], [lines]))
    for each in (plain, watched, own):
        each.train()
    assert all(map(torch.equal, plain.model.parameters(), watched.model.parameters()))
    assert rows_of(callback.monitor) == rows_of(lines.monitor)
    assert len(rows_of(callback.monitor)) >= 4 * STEPS
    for name in ("loss", "grad_norm", "learning_rate"):
        assert [*numbers_of(callback.monitor, name)] == [*range(STEPS)]
        assert [*numbers_of(callback.monitor, name).values()] == pytest.approx(logged(watched, name), rel=1e-5)
    assert logged(watched, "loss") == logged(plain, "loss")
    assert [*numbers_of(callback.monitor, STEP_SECONDS)] == [*range(1, STEPS)]
    assert callback.monitor.faults == {}
    assert watcher_of([watched.model]) is None
    assert not watched.model.fc._forward_hooks


def test_logs_and_evaluations_between_steps_belong_to_the_step_before(tmp_path: Path) -> None:
    """With a log every second step, and an evaluation before training, every second step and at the end."""
    callback = huggingface.ProbeCallback(CONFIG)
    options = {"logging_steps": 2, "eval_strategy": "steps", "eval_steps": 2, "eval_on_start": True}
    trainer(tmp_path, [callback], **options).train()
    assert [*numbers_of(callback.monitor, "loss")] == [1, 3]
    assert [*numbers_of(callback.monitor, "val_loss")] == [0, 1, 3]


def test_a_resumed_trainer_goes_on_counting(tmp_path: Path) -> None:
    """From its checkpoint's step, in a run of its own."""
    trainer(tmp_path, [], save_strategy="steps", save_steps=2, max_steps=2).train()
    callback, lines = huggingface.ProbeCallback(CONFIG), Lines()
    for each in (callback, lines):
        trainer(tmp_path, [each]).train(resume_from_checkpoint=str(tmp_path / "checkpoint-2"))
    assert [*numbers_of(callback.monitor, "loss")] == [2, 3]
    assert rows_of(callback.monitor) == rows_of(lines.monitor)


def test_three_lines_and_callbacks_watch_once(tmp_path: Path) -> None:
    """The first of them watches, and gets the Trainer's numbers; the program's own is left running."""
    lines, callback, other = Lines(), huggingface.ProbeCallback({"ops": ["max"]}), huggingface.ProbeCallback()
    trainer(tmp_path, [lines, callback, other]).train()
    assert lines.monitor is callback.monitor is other.monitor
    assert [*numbers_of(lines.monitor, "loss")] == [*range(STEPS)]
    runs = [*Path(str(lines.monitor.output_directory)).parent.glob("*/manifest.json")]
    assert len(runs) == 1


def test_each_training_is_a_run_of_its_own(tmp_path: Path) -> None:
    """Also if the one before was interrupted."""
    callback, made = huggingface.ProbeCallback(CONFIG), []

    class Interruption(transformers.TrainerCallback):
        def on_step_end(self, *_: Any, **__: Any) -> None:
            made.append(callback.monitor)
            if len(made) == 2:
                raise KeyboardInterrupt

    watched = trainer(tmp_path, [callback, Interruption()])
    with pytest.raises(KeyboardInterrupt):
        watched.train()
    watched.train()
    first, last = made[0], made[-1]
    assert first is not last
    assert (first.step, last.step) == (2, STEPS)
    assert not first.monitoring


def test_overrides_replace_keys_and_wrong_ones_are_refused_before_training(tmp_path: Path) -> None:
    """Of a file or a mapping; the problem names the key."""
    file = tmp_path / "monitor.yaml"
    file.write_text("ops: [norm]\nparam_distribution: true\n")
    callback = huggingface.ProbeCallback(file, ops=["max"])
    trainer(tmp_path, [callback], max_steps=1).train()
    assert callback.monitor.settings.ops == ["max"] or [*callback.monitor.settings.ops] == ["max"]
    assert callback.monitor.settings.param_distribution
    with pytest.raises(ConfigError, match="wg_distributio: unknown key; did you mean wg_distribution"):
        huggingface.ProbeCallback(file, wg_distributio=True)


# Lightning.


class Module(lightning.LightningModule):
    """A module that logs; its learning rate changes at each step."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(2)
        self.net = torch.nn.Linear(3, 1)
        self.losses: list[float] = []

    def training_step(self, x: Any, _: int) -> Any:
        loss = (self.net(x) - 1).square().mean()
        self.losses.append(float(loss))
        self.log("accuracy", float(len(self.losses)))
        return loss

    def validation_step(self, x: Any, _: int) -> None:
        self.log("val_loss", self.net(x).square().mean())

    def configure_optimizers(self) -> Any:
        optimizer = torch.optim.AdamW(self.parameters(), 0.5)
        schedule = torch.optim.lr_scheduler.StepLR(optimizer, 1, gamma=0.5)
        return [optimizer], [{"scheduler": schedule, "interval": "step"}]


class OwnLines(lightning.Callback):
    """Three lines of a user's, in a callback of their own."""

    monitor: Any = None

    def on_train_start(self, trainer: Any, pl_module: Any) -> None:
        self.monitor = by_hand(pl_module, trainer.optimizers[0])

    def on_train_end(self, trainer: Any, pl_module: Any) -> None:
        self.monitor.stop()


def fit(callbacks: list[Any], module: Any = None, **options: Any) -> Any:
    """A training of two epochs of two steps with accumulation, each with a validation."""
    quiet = {"logger": False, "enable_checkpointing": False, "enable_progress_bar": False, "accelerator": "cpu"}
    settings = {"max_epochs": 2, "accumulate_grad_batches": MICRO_BATCHES, "enable_model_summary": False, **options}
    module = module or Module()
    data = torch.arange(24.0).reshape(8, 3) / 24
    loaders = torch.utils.data.DataLoader(data, 2), torch.utils.data.DataLoader(data[:2], 2)
    lightning.Trainer(callbacks=callbacks, **settings, **quiet).fit(module, *loaders)
    return module


def test_lightning_is_watched_as_by_the_three_lines() -> None:
    """Rows to the byte, weights to the bit; the loss of a step is the mean over its micro batches, metrics are those of
    its last one, and a validation belongs to the step before it."""
    callback, lines = of_lightning.ProbeCallback(CONFIG), OwnLines()
    plain, watched, _ = fit([]), fit([callback]), fit([lines])
    assert all(map(torch.equal, plain.parameters(), watched.parameters()))
    assert rows_of(callback.monitor) == rows_of(lines.monitor)
    losses = watched.losses
    means = [sum(losses[i : i + MICRO_BATCHES]) / MICRO_BATCHES for i in range(0, len(losses), MICRO_BATCHES)]
    assert numbers_of(callback.monitor, "loss") == pytest.approx(dict(enumerate(means)), rel=1e-5)
    assert numbers_of(callback.monitor, "accuracy") == {0: 2.0, 1: 4.0, 2: 6.0, 3: 8.0}
    assert numbers_of(callback.monitor, "learning_rate") == {0: 0.5, 1: 0.25, 2: 0.125, 3: 0.0625}
    assert [*numbers_of(callback.monitor, "val_loss")] == [1, 3]
    assert callback.monitor.faults == {}
    assert not watched.net._forward_hooks


def test_a_training_of_lightning_that_fails_ends_its_run() -> None:
    """The hooks are gone, and what was recorded is written."""

    class Failing(Module):
        def training_step(self, x: Any, number: int) -> Any:
            if len(self.losses) == 5:
                raise ValueError("of the user")
            return super().training_step(x, number)

    callback, module = of_lightning.ProbeCallback(CONFIG), Failing()
    with pytest.raises(ValueError, match="of the user"):
        fit([callback], module)
    assert not callback.monitor.monitoring
    assert [*numbers_of(callback.monitor, "loss")] == [0, 1]
    assert not module.net._forward_hooks


class Adversaries(lightning.LightningModule):
    """Two models with optimizers of their own, stepped by hand."""

    def __init__(self) -> None:
        super().__init__()
        self.automatic_optimization = False
        torch.manual_seed(3)
        self.generator, self.critic = torch.nn.Linear(3, 3), torch.nn.Linear(3, 1)

    def training_step(self, x: Any, _: int) -> None:
        for optimizer, sign in zip(self.optimizers(), (-1, 1), strict=True):
            loss = sign * self.critic(self.generator(x)).mean()
            optimizer.zero_grad()
            self.manual_backward(loss)
            optimizer.step()
            self.log("last", loss)

    def configure_optimizers(self) -> Any:
        return [torch.optim.SGD(each.parameters(), 0.1) for each in (self.generator, self.critic)]


def test_optimizers_that_a_module_steps_itself_share_a_step() -> None:
    """As many steps as batches, and numbers at each."""
    callback = of_lightning.ProbeCallback(CONFIG)
    fit([callback], Adversaries(), accumulate_grad_batches=1)
    assert callback.monitor.step == 8
    assert [*numbers_of(callback.monitor, "last")] == [*range(8)]


@pytest.fixture
def installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], None]:
    """Metadata of the package as an installation has them, on the path; then ``PROBE_CONFIG`` is what is passed."""
    command = [sys.executable, "setup.py", "-q", "egg_info", "--egg-base", str(tmp_path)]
    subprocess.run(command, cwd=ROOT, check=True, capture_output=True)
    monkeypatch.syspath_prepend(str(tmp_path))
    return lambda config: monkeypatch.setenv("PROBE_CONFIG", config)


def test_lightning_finds_the_callback_by_its_entry_point(
    installed: Callable[[str], None], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """Where PROBE_CONFIG names a configuration; without, nothing is added. A callback of the program's comes first."""
    monkeypatch.setenv("MONITOR_OUTPUT_DIR", str(tmp_path / "out"))
    folders = lambda: [*(tmp_path / "out").glob("*")]  # noqa: E731
    logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)
    fit([])
    assert folders() == []
    (tmp_path / "monitor.json").write_text('{"wg_distribution": true}')
    installed(str(tmp_path / "monitor.json"))
    fit([])
    assert len(folders()) == 1
    said = [line for line in capfd.readouterr().err.splitlines() if line.startswith("probe: ")]
    assert said[0].startswith("probe: info: watching Module with AdamW; files in ")
    assert said[1].startswith("probe: info: 4 steps watched, all of them recorded; ")
    assert "nothing found in gradients" in said[1]  # not "0 findings": the line names what was looked at
    callback = of_lightning.ProbeCallback(CONFIG)
    fit([callback])
    assert len(folders()) == 2
    assert [*numbers_of(callback.monitor, "loss")] == [*range(STEPS)]


# All of them.


def test_a_model_that_accelerate_trains_is_copied_and_saved() -> None:
    """While the tracker follows its forwards: the copy has a hook without effect."""
    tracker = of_accelerate.ProbeTracker(CONFIG)
    accelerator = accelerate.Accelerator(cpu=True, log_with=[tracker])
    model = torch.nn.Linear(2, 1)
    model, optimizer = accelerator.prepare(model, torch.optim.SGD(model.parameters(), 0.1))
    monitor = of_accelerate.watch(accelerator)
    for step in range(3):
        accelerator.backward(model(torch.ones(4, 2)).sum())
        optimizer.step()
        tracker.log({"loss": step})
        loaded = io.BytesIO()
        torch.save(model, loaded)
        loaded.seek(0)
        for twin in (copy.deepcopy(model), torch.load(loaded, weights_only=False)):
            twin.train()(torch.ones(4, 2)).sum().backward()
    tracker.finish()
    assert numbers_of(monitor, "loss") == {0: 0.0, 1: 1.0, 2: 2.0}


class Failing:
    """Receiver of numbers that fails."""

    def log_ended(self, **_: Any) -> None:
        raise RuntimeError("of the receiver")


def test_what_fails_in_a_callback_is_logged_and_the_trainer_goes_on(caplog: pytest.LogCaptureFixture) -> None:
    """Numbers that cannot be recorded, or that are of another kind than expected."""
    callback = huggingface.HuggingFaceCallback(Failing())
    callback.on_log(None, None, None, logs={"loss": 1.0})
    of_accelerate.ProbeTracker(Failing()).log({"loss": 1.0})
    of_lightning.LightningCallback(Failing()).on_train_batch_end(None, None, object(), None, 0)
    assert "of the receiver" in caplog.text
    assert "callback on_train_batch_end: AttributeError" in caplog.text
