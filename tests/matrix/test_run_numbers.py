"""Numbers of the run: every step, on every rank, in the formats of the run, without a wait or a change of training."""

from __future__ import annotations

import csv
import math
import os
import sqlite3
import threading
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from probe.core.monitor.trainer_mon import Monitor
from probe.core.naming import MODEL_TFLOPS, STEP_SECONDS, TOKENS_PER_SECOND
from probe.core.run_state.rules import RunStep
from probe.core.storage.directories import last_run
from probe.core.storage.problems import Problems
from tests.matrix.harness import Harness, generators, train_step
from tests.matrix.models import X, tiny_net
from tests.matrix.watching import EVERYTHING, LR, MOMENTUM
from tests.required import require

NOTHING: dict[str, Any] = {"format": "csv", "ops": ["norm"]}


class Training:
    """A model in training, with a monitor."""

    def __init__(self, framework: Harness, **config: Any) -> None:
        self.framework, self.config = framework, {**NOTHING, **config}
        self.model = tiny_net(framework)
        self.optimizer = framework.optimizer("momentum", self.model, lr=LR, momentum=MOMENTUM)
        self.loop = framework.loop(self.model, self.optimizer)
        self.monitor = framework.TrainerMon(self.config)

    def begin(self, start_iteration: int = 0) -> Training:
        self.monitor.set_monitor(self.model, 1, self.optimizer, start_iteration=start_iteration)
        return self

    def step(self, **numbers: Any) -> None:
        self.monitor.log(**numbers)
        train_step(self.loop, self.framework.tensor(X))

    def end(self) -> dict[tuple[int, str], float]:
        """Stop; return the numbers in the files by step and name."""
        self.monitor.stop()
        return numbers_in(root_of(self.monitor))


def root_of(monitor: Monitor) -> Path:
    """The output directory of the test."""
    assert monitor.faults == {}
    return Path(os.environ["MONITOR_OUTPUT_DIR"])


def numbers_in(root: Path) -> dict[tuple[int, str], float]:
    """Every number in the CSV files of ``root``, or of the directories in it; each must be there once."""
    found: dict[tuple[int, str], float] = {}
    for path in sorted({*root.glob("run_*.csv")} or root.glob("*/run_*.csv")):
        with path.open(newline="", encoding="utf-8") as file:
            for row in csv.DictReader(file):
                key = int(row["step"]), row["name"]
                assert key not in found
                found[key] = float(row["value"])
    return found


def test_the_last_value_of_a_step_counts(framework: Harness) -> None:
    """Numbers may be logged anywhere in a step and any number of times, of Python, NumPy or the framework."""
    training = Training(framework).begin()
    training.monitor.log(loss=framework.tensor(np.array([7.0])), grad_norm=1)
    training.step(loss=5.0, accuracy=np.float32(0.5), nothing=None)
    training.step(loss=framework.tensor(np.array(0.25)))
    training.monitor.log(val_loss=True)
    training.step(loss=np.array([3.0]))
    found = training.end()
    logged = {"loss", "grad_norm", "accuracy", "val_loss", "nothing"}
    assert {key: value for key, value in found.items() if key[1] in logged} == {
        (0, "loss"): 5.0,
        (0, "grad_norm"): 1.0,
        (0, "accuracy"): 0.5,
        (1, "loss"): 0.25,
        (2, "loss"): 3.0,
        (1, "val_loss"): 1.0,
    }


def test_a_number_without_a_name_is_logged_and_training_goes_on(
    framework: Harness, caplog: pytest.LogCaptureFixture
) -> None:
    """It is not recorded; those with names are."""
    training = Training(framework).begin()
    with caplog.at_level("WARNING", "probe"):
        training.monitor.log(2.5, accuracy=0.5)
    training.step()
    assert training.end()[0, "accuracy"] == 0.5
    assert "log: expected numbers by name, such as log(loss=2.5), got 2.5: not recorded" in caplog.text


def test_numbers_that_are_logged_after_the_update(framework: Harness, caplog: pytest.LogCaptureFixture) -> None:
    """With the step's number, or by log_ended, they count for the step that ended last; others are refused."""
    training = Training(framework).begin(5)
    seen: list[RunStep] = []
    training.monitor.on_run_step(seen.append)
    for step in range(5, 9):
        train_step(training.loop, framework.tensor(X))
        training.monitor.log(loss=float(step), step=step)
        training.monitor.log_ended(grad_norm=-float(step))
    training.monitor.log(loss=9.5, step=9)
    training.monitor.log(loss=0.0, step=3)
    training.monitor.stop()
    assert training.monitor.faults == {"log: numbers of neither the step in progress nor the one before": 1}
    assert sum("log: expected step=" in line for line in caplog.messages) == 1
    found = numbers_in(Path(os.environ["MONITOR_OUTPUT_DIR"]))
    assert [found[step, "loss"] for step in range(5, 9)] == [5.0, 6.0, 7.0, 8.0]
    assert [found[step, "grad_norm"] for step in range(5, 9)] == [-5.0, -6.0, -7.0, -8.0]
    assert [each.step for each in seen] == [5, 6, 7, 8]
    assert [each.values.get("loss") for each in seen[1:]] == [6.0, 7.0, 8.0]


def test_a_tensor_that_changes_afterwards_has_its_value_at_the_call(framework: Harness) -> None:
    """Tensors are copied when they are logged, those in NumPy's memory, too."""
    training = Training(framework).begin()
    array = np.array([2.0], dtype=np.float32)
    training.monitor.log(a=array)
    array[0] = 9.0
    training.step()
    assert training.end()[0, "a"] == 2.0


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf, 1e-30, 3e38])
@pytest.mark.parametrize("as_tensor", [False, True])
def test_values_are_written_as_they_are(framework: Harness, value: float, as_tensor: bool) -> None:
    """NaN, infinities, tiny and huge numbers arrive unchanged."""
    training = Training(framework).begin()
    training.step(loss=framework.tensor(np.array([value])) if as_tensor else value)
    found = training.end()[0, "loss"]
    assert found == pytest.approx(value, rel=1e-5, nan_ok=True)


@pytest.mark.parametrize(
    "config",
    [
        {"step_interval": 3, "wg_distribution": True},
        {"collect_times": 2, "wg_distribution": True},
        {"start_step": 4, "xy_distribution": True},
        {"module_ranks": [5], "wg_distribution": True},
        {"history": 3, "wg_distribution": True},
        {"collect_times": 0},
        {},
    ],
    ids=str,
)
def test_every_step_is_there_whatever_is_sampled(framework: Harness, config: dict[str, Any]) -> None:
    """Also those that are not collected, those after the last one, and those of ranks that take no part."""
    training = Training(framework, **config).begin()
    for step in range(7):
        training.step(loss=float(step))
    found = training.end()
    assert [found[step, "loss"] for step in range(7)] == [float(step) for step in range(7)]


def test_at_rest(framework: Harness, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A run whose monitoring is switched off records its numbers."""
    monkeypatch.setenv("DYNAMIC_MONITOR", "True")
    file = tmp_path / "config.json"
    file.write_text('{"dynamic_on": false, "wg_distribution": true, "format": "csv"}', encoding="utf-8")
    training = Training(framework)
    training.monitor = framework.TrainerMon(file)
    training.begin(10)
    training.step(loss=1.0)
    training.step(loss=2.0)
    found = training.end()
    assert found[10, "loss"], found[11, "loss"] == (1.0, 2.0)


def test_the_learning_rate_is_known(framework: Harness) -> None:
    """The optimizer's learning rate is recorded without a call, unless the program logs one."""
    training = Training(framework, run={"enable": True}).begin()
    training.step(learning_rate=0.5)
    training.step()
    found = training.end()
    assert found[0, "learning_rate"] == 0.5
    assert found[1, "learning_rate"] == pytest.approx(LR, rel=1e-5)


def test_rates_and_times(framework: Harness) -> None:
    """Seconds of a step and throughput follow from time: batch size and tokens by seconds; the first step has none."""
    training = Training(framework, run={"flops_per_step": 2e12}).begin()
    for _ in range(3):
        training.step(batch_size=8, tokens=100)
    found = training.end()
    assert (0, STEP_SECONDS) not in found
    for step in (1, 2):
        seconds = found[step, STEP_SECONDS]
        assert seconds > 0
        assert found[step, "throughput"] == pytest.approx(8 / seconds, rel=1e-4)
        assert found[step, TOKENS_PER_SECOND] == pytest.approx(100 / seconds, rel=1e-4)
        assert found[step, MODEL_TFLOPS] == pytest.approx(2 / seconds, rel=1e-4)


def test_phases(framework: Harness) -> None:
    """The time of each phase counts for the step in which it passes; an inner phase takes from the outer one."""
    training = Training(framework).begin()
    training.step()
    with training.monitor.phase("checkpoint"), training.monitor.phase("data"):
        assert sum(range(100_000)) > 0
    training.step()
    with pytest.raises(KeyError), training.monitor.phase("evaluation"):
        raise KeyError
    training.step()
    found = training.end()
    phases = {key for key in found if key[1].startswith("phase/")}
    assert phases == {(1, "phase/checkpoint_seconds"), (1, "phase/data_seconds"), (2, "phase/evaluation_seconds")}
    assert found[1, "phase/data_seconds"] > found[1, "phase/checkpoint_seconds"] > 0
    assert found[1, STEP_SECONDS] > found[1, "phase/data_seconds"]


def test_formats(framework: Harness) -> None:
    """Each format of the run has the numbers, in files of 100 steps by default; the readers find them."""
    require("duckdb")
    training = Training(framework, format=["csv", "sqlite", "parquet", "tensorboard"], param_distribution=True)
    training.begin(98)
    for step in range(98, 103):
        training.step(loss=step / 7)
    training.end()
    (directory,) = (each.path for each in last_run(root_of(training.monitor), Problems()).directories)
    assert {path.name for path in directory.glob("run_*")} == {
        "run_0-99.csv",
        "run_0-99.parquet",
        "run_100-199.csv",
        "run_100-199.parquet",
        "run_numbers.db",
    }
    assert _losses_of_database(directory / "run_numbers.db") == pytest.approx({n: n / 7 for n in range(98, 103)})
    assert _losses_of_events(directory / "run") == pytest.approx({n: n / 7 for n in range(98, 103)}, rel=1e-6)


def _losses_of_database(path: Path) -> dict[int, float]:
    with closing(sqlite3.connect(path)) as database:
        return dict(database.execute("SELECT step, value FROM run_rows WHERE target_name = 'loss'"))


def _losses_of_events(folder: Path) -> dict[int, float]:
    require("tensorboard")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    events = EventAccumulator(str(folder))
    events.Reload()
    return {event.step: event.value for event in events.Scalars("0:loss/rank0/run_value")}


@pytest.mark.parametrize("format", ["sqlite", "parquet", "csv"])
def test_readers_read_them_as_any_signal(framework: Harness, format: str) -> None:  # noqa: A002
    """What reads a run's rows reads these, whatever format holds them."""
    require("duckdb")
    from probe.core.storage.duckdb_reader import Rows

    training = Training(framework, format=format).begin()
    for step in range(3):
        training.step(loss=float(step))
    training.end()
    found = last_run(root_of(training.monitor), Problems()).directories
    with Rows(found, Problems()) as rows:
        query = f"SELECT step, value FROM {rows.view('run')} WHERE name = 'loss'"
        assert dict(rows.connection.execute(query).fetchall()) == {0: 0.0, 1: 1.0, 2: 2.0}


def test_a_resumed_directory_has_each_step_once(framework: Harness, tmp_path: Path) -> None:
    """Numbers of steps that are done again replace those of the first time."""
    training = Training(framework, wg_distribution=True).begin()
    for step in range(6):
        training.step(loss=float(step))
    training.end()
    root = root_of(training.monitor)
    (directory,) = (path.parent for path in root.rglob("manifest.json"))
    directory.rename(root / "Dec03_21-34-45-rank0-0123abcd")
    again = Training(framework, wg_distribution=True, append_output=["Dec03_21-34-40", "Dec03_21-34-50"]).begin(4)
    again.step(loss=40.0)
    again.step(loss=50.0)
    again.monitor.stop()
    (resumed,) = root.glob("*-rank0-0123abcd")
    losses = {step: value for (step, name), value in numbers_in(resumed).items() if name == "loss"}
    assert losses == {0: 0.0, 1: 1.0, 2: 2.0, 3: 3.0, 4: 40.0, 5: 50.0}


def test_nothing_is_written_unless_asked(framework: Harness) -> None:
    """Without a call and without a section in the configuration there are no numbers, and no thread."""
    training = Training(framework, wg_distribution=True).begin()
    train_step(training.loop, framework.tensor(X))
    assert not [thread for thread in threading.enumerate() if thread.name == "probe-run-state"]
    assert training.end() == {}
    forbidden = Training(framework, run={"enable": False}).begin()
    forbidden.step(loss=1.0)
    assert forbidden.end() == {}


def test_listeners_get_every_step(framework: Harness) -> None:
    """A listener receives the numbers of each step until it is removed; one that fails is counted."""
    training = Training(framework, format="api").begin()
    seen: list[RunStep] = []

    def fail(_: RunStep) -> None:
        raise OSError

    remove = training.monitor.on_run_step(seen.append)
    training.monitor.on_run_step(fail)
    training.step(loss=1.0)
    training.step(loss=2.0)
    training.monitor.flush()
    remove()
    training.step(loss=3.0)
    training.monitor.stop()
    assert [(step.step, step.values["loss"], step.outcome) for step in seen] == [
        (0, 1.0, "applied"),
        (1, 2.0, "applied"),
    ]
    assert training.monitor.faults == {"listener of run steps: OSError": 3}


@pytest.mark.parametrize("value", [np.zeros(3), "a text", [1.0, 2.0], {}], ids=str)
def test_a_value_that_is_no_number_is_counted(framework: Harness, value: Any) -> None:
    """Training goes on, the other numbers are recorded, and the fault names the number."""
    training = Training(framework).begin()
    training.step(loss=1.0, wrong=value)
    training.monitor.stop()
    (fault,) = training.monitor.faults
    assert fault.startswith("log wrong: ")


def test_a_tensor_of_several_elements_is_counted(framework: Harness) -> None:
    """A tensor with more than one element is no number."""
    training = Training(framework).begin()
    training.step(wrong=framework.tensor(np.zeros(2)), loss=2.0)
    training.monitor.stop()
    assert training.monitor.faults == {"log wrong: ValueError": 1}


def test_training_is_not_disturbed(framework: Harness, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Weights and random states are those of a run without a monitor, bit by bit, with everything on: numbers, alerts
    and heartbeats that nobody receives, a watcher of hangs."""
    require("httpx")
    monkeypatch.setenv("PROBE_PROGRESS_DIR", str(tmp_path / "progress"))
    channels = [{"channel": "http", "args": {"url": "http://127.0.0.1:9/hook"}}]
    run = {"enable": True, "server": "http://127.0.0.1:9", "hang": {"enable": True}}
    everything = {**EVERYTHING, "run": run, "alert": {"channels": channels, "grace_seconds": 0.1}}

    def trained(config: dict[str, Any] | None) -> tuple[dict[str, bytes], list[object]]:
        framework.seed()
        model = tiny_net(framework)
        optimizer = framework.optimizer("momentum", model, lr=LR, momentum=MOMENTUM)
        loop = framework.loop(model, optimizer)
        with framework.TrainerMon(config or {**NOTHING, "run": {"enable": False}}) as monitor:
            if config is not None:
                monitor.set_monitor(model, 1, optimizer)
            for step in range(4):
                if config is not None:
                    with monitor.phase("data"):
                        monitor.promise(10)
                        monitor.log(loss=framework.tensor(np.array([math.nan if step == 2 else 1.0])))
                train_step(loop, framework.tensor(X))
        wrong = [place for place in monitor.faults if not place.startswith(("alerts", "heartbeats"))]
        assert wrong == []
        return {name: array.tobytes() for name, array in framework.weights(model).items()}, generators(framework)

    assert trained(everything) == trained(None)


def test_before_and_after_a_run(framework: Harness, caplog: pytest.LogCaptureFixture) -> None:
    """A number before set_monitor is refused by a warning, one after stop has no effect."""
    training = Training(framework)
    training.monitor.log(loss=1.0)
    assert "call set_monitor first" in caplog.text
    training.begin()
    training.step(loss=2.0)
    training.monitor.stop()
    training.monitor.log(loss=3.0)
    with training.monitor.phase("data"):
        pass
    assert {key: value for key, value in training.end().items() if key[1] == "loss"} == {(0, "loss"): 2.0}
    with pytest.raises(RuntimeError, match="call set_monitor first"):
        framework.TrainerMon(NOTHING).on_run_step(print)
