"""Uses that are no error and collect nothing: each is logged once, with the remedy."""

from __future__ import annotations

import gc
import shutil
import time
from pathlib import Path
from typing import Any

import pytest

from probe.core.instrumentation.other_updates import FIRST
from probe.core.monitor.trainer_mon import Monitor
from probe.core.sentinel.board import BOARD, Board
from probe.core.sentinel.watch_summary import report_of
from probe.launch.parent.following import BoardFolder
from tests.matrix.harness import Harness, train_step
from tests.matrix.models import X, tiny_net
from tests.matrix.watching import GRADIENTS, LR, MOMENTUM, names_of, rows_of


@pytest.fixture(autouse=True)
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Output directory of runs."""
    monkeypatch.setenv("MONITOR_OUTPUT_DIR", str(tmp_path / "out"))
    monkeypatch.delenv("DYNAMIC_MONITOR", raising=False)
    return tmp_path / "out"


def trained(framework: Harness, config: Any, steps: int = 2) -> Monitor:
    """A run from its beginning to its end."""
    model = tiny_net(framework)
    optimizer = framework.optimizer("momentum", model, lr=LR, momentum=MOMENTUM)
    loop = framework.loop(model, optimizer)
    monitor = framework.TrainerMon(config)
    monitor.set_monitor(model, 1, optimizer)
    for _ in range(steps):
        train_step(loop, framework.tensor(X))
    monitor.stop()
    return monitor


@pytest.mark.parametrize(
    ("config", "told"),
    [
        ({}, "collects nothing"),
        ({"targets": {"fc": {}}, "ops": ["max"]}, "collects nothing"),
        ({"wg_distribution": True, "module_ranks": [3, 5]}, "module_ranks"),
        ({"wg_distribution": True, "dynamic_on": True}, "DYNAMIC_MONITOR=True"),
    ],
)
def test_settings_in_vain_are_told(
    framework: Harness, caplog: pytest.LogCaptureFixture, config: dict[str, Any], told: str
) -> None:
    """A warning when the monitor attaches; training goes on."""
    gc.collect()  # monitors of other tests
    caplog.clear()
    trained(framework, config)
    assert [told in record.message for record in caplog.records if record.levelname == "WARNING"] == [True]


@pytest.mark.parametrize(
    "config",
    [
        GRADIENTS,
        {"stack_info": True},
        {"cc_distribution": {"enable": True}},
        {"wg_distribution": True, "module_ranks": [0, 3]},
    ],
    ids=str,
)
def test_settings_that_collect_are_not(
    framework: Harness, caplog: pytest.LogCaptureFixture, config: dict[str, Any]
) -> None:
    """Nor is a rank among others that do not exist."""
    trained(framework, config)
    assert not [record.message for record in caplog.records if "nothing" in record.message]


def attached_to_another_models(framework: Harness) -> Monitor:
    """A monitor that was given one model and the optimizer of another, after three steps of both."""
    model, other = tiny_net(framework), tiny_net(framework)
    mine, others = (framework.optimizer("momentum", each, lr=LR, momentum=MOMENTUM) for each in (model, other))
    loop = framework.loop(framework.module(lambda x: framework.add(model(x), other(x)), a=model, b=other), mine, others)
    monitor = framework.TrainerMon(GRADIENTS)
    monitor.set_monitor(model, 1, others)
    for _ in range(3):
        train_step(loop, framework.tensor(X))
    return monitor


def test_an_optimizer_of_another_model_is_told(framework: Harness, caplog: pytest.LogCaptureFixture) -> None:
    """Its parameters have no rows: logged and counted once, or the optimizer that trains is followed instead."""
    monitor = attached_to_another_models(framework)
    monitor.stop()
    assert monitor.faults in ({"optimizer: ValueError": 1}, {FIRST: 1})
    told = "this one is followed from now on" if FIRST in monitor.faults else "updates none of the model's parameters"
    assert told in caplog.text
    at_once = "set_monitor: optimizer: expected one that holds parameters of the model, such as "
    assert [at_once in line for line in caplog.messages].index(True) == 0


def test_a_folder_that_is_removed_while_the_run_writes(framework: Harness, caplog: pytest.LogCaptureFixture) -> None:
    """What was in it is gone: a warning says so once; later steps are written to a new one."""
    model = tiny_net(framework)
    optimizer = framework.optimizer("momentum", model, lr=LR, momentum=MOMENTUM)
    loop, monitor = framework.loop(model, optimizer), framework.TrainerMon(GRADIENTS)
    monitor.set_monitor(model, 1, optimizer)
    for step in range(4):
        train_step(loop, framework.tensor(X))
        monitor.flush()
        if step == 1:
            shutil.rmtree(str(monitor.output_directory))
    monitor.stop()
    assert monitor.faults == {}
    assert caplog.text.count("the folder was removed while the run writes to it, with its steps") == 1
    assert {row.step for row in rows_of(monitor)} == {2, 3}


@pytest.mark.needs("every step")
def test_an_optimizer_of_another_model_gives_way_to_the_one_that_trains(framework: Harness) -> None:
    """Once that has updated, it is followed, and updates of the other one are no steps."""
    monitor = attached_to_another_models(framework)
    assert monitor.step == 3
    monitor.stop()
    assert monitor.faults == {FIRST: 1}
    assert {row.step for row in rows_of(monitor) if row.signal == "grad_reduced"} == {1, 2}


def test_one_of_two_optimizers_may_be_of_another_model(framework: Harness) -> None:
    """As with a discriminator that is not watched."""
    model, other = tiny_net(framework), tiny_net(framework)
    optimizers = [framework.optimizer("momentum", each, lr=LR, momentum=MOMENTUM) for each in (model, other)]
    parent = framework.module(lambda x: framework.add(model(x), other(x)), a=model, b=other)
    loop = framework.loop(parent, *optimizers)
    monitor = framework.TrainerMon(GRADIENTS)
    monitor.set_monitor(model, 1, optimizers)
    for _ in range(2):
        train_step(loop, framework.tensor(X))
    monitor.stop()
    assert monitor.faults == {}
    assert names_of(rows_of(monitor), "grad_reduced") == {"fc.weight", "fc.bias", "fc2.weight"}


def test_a_run_without_a_step_is_told(framework: Harness, caplog: pytest.LogCaptureFixture) -> None:
    """The optimizer may be another than the one that trains; a run that has taken steps logs no warning."""
    trained(framework, GRADIENTS, steps=1)
    assert "no training step was seen" not in caplog.text
    trained(framework, GRADIENTS, steps=0)
    assert caplog.text.count("no training step was seen") == 1


@pytest.mark.parametrize(("place", "name"), [(0, "model"), (2, "optimizer")])
def test_an_empty_list_is_no_model_and_no_optimizer(framework: Harness, place: int, name: str) -> None:
    """Refused, naming the argument."""
    model = tiny_net(framework)
    given: list[Any] = [model, 1, framework.optimizer("momentum", model, lr=LR, momentum=MOMENTUM)]
    given[place] = []
    with pytest.raises(ValueError, match=f"set_monitor: {name}: expected"):
        framework.TrainerMon(GRADIENTS).set_monitor(*given)


@pytest.mark.parametrize("more", [{}, {"optimiser": None}], ids=["missing", "unknown"])
def test_wrong_arguments_are_told_by_the_name_of_what_was_called(framework: Harness, more: dict[str, Any]) -> None:
    """The message has the right call."""
    given = [tiny_net(framework), 1] if more else []
    with pytest.raises(
        TypeError, match=r"^set_monitor: (got an unexpected keyword|missing a required).*; call set_monitor\(model, "
    ):
        framework.TrainerMon(GRADIENTS).set_monitor(*given, **more)


def test_an_output_directory_that_is_none_is_told_with_what_to_set(framework: Harness, root: Path) -> None:
    """Before training begins."""
    root.write_text("a file")
    model = tiny_net(framework)
    with pytest.raises(OSError, match="set MONITOR_OUTPUT_DIR, or output_dir in") as refused:
        framework.TrainerMon(GRADIENTS).set_monitor(
            model, 1, framework.optimizer("momentum", model, lr=LR, momentum=MOMENTUM)
        )
    assert str(root) in str(refused.value)


def test_a_run_that_is_interrupted_while_it_stands_still(
    framework: Harness, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No step has ended for a hundred seconds by the clock: the report says so, and of no other end."""
    monkeypatch.setenv("MONITOR_OUTPUT_DIR", str(tmp_path / "out"))
    folder = BoardFolder(f"board-{tmp_path.name}")
    monkeypatch.setenv(BOARD, str(folder.path))
    late = time.monotonic_ns() + 100 * 10**9
    monkeypatch.setattr("probe.core.monitor.reporting.time.monotonic_ns", lambda: late)
    for error in (None, KeyboardInterrupt()):
        model = tiny_net(framework)
        optimizer = framework.optimizer("momentum", model, lr=LR, momentum=MOMENTUM)
        loop = framework.loop(model, optimizer)
        monitor = framework.TrainerMon({"wg_distribution": True, "sentinel": {"enable": True}})
        monitor.set_monitor(model, 1, optimizer)
        for _ in range(3):
            train_step(loop, framework.tensor(X))
        monitor.__exit__(None, error)
    plain, interrupted = Board(folder.path).summaries()
    folder.remove()
    assert (plain.still, round(interrupted.still, -1)) == (0.0, 100.0)
    text = "rank 0 stood still for 100 s after step 2, until the end"
    assert report_of([interrupted._replace(still=100.0)]).lines()[0].startswith(text)
    assert text not in "".join(report_of([plain]).lines())
