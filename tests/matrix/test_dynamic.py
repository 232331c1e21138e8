"""Dynamic start and stop: every documented scenario, while a toy of any framework trains."""

from __future__ import annotations

import gc
import json
import logging
import os
import signal
import threading
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from probe.core.monitor.trainer_mon import Monitor
from tests.matrix.editing import Edits, collected, config, rewriting, training
from tests.matrix.harness import Harness, train_step
from tests.matrix.models import X, tiny_net
from tests.matrix.watching import inputs, rows_of


@pytest.fixture
def dynamic(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DYNAMIC_MONITOR", "True")


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "monitor_config.json"


@pytest.mark.parametrize("value", [None, "False"])
def test_static_mode_takes_no_notice(
    framework: Harness, path: Path, value: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Scenario 1: without the environment variable ``dynamic_on`` and changes of the file have no effect."""
    if value is not None:
        monkeypatch.setenv("DYNAMIC_MONITOR", value)
    assert collected(framework, config(path, on=False, times=3), 5, {1: rewriting(collect_times=5)}) == [0, 1, 2]


def test_nothing_is_collected_before_it_is_switched_on(framework: Harness, path: Path, dynamic: None) -> None:
    """Scenario 2: no monitoring, and no file but the manifest, with that state."""
    with training(framework, config(path, on=False), 3, {}) as monitor:
        pass
    (manifest,) = Path(monitor.output_directory or "").iterdir()
    assert json.loads(manifest.read_text())["control"]["collecting"] is False


def test_switched_on_from_the_start_it_begins_at_step_1(framework: Harness, path: Path, dynamic: None) -> None:
    """Scenario 3: from the second step on, ``collect_times`` steps; then dynamic_on is false in the file, all else as
    it was."""
    before = config(path, on=True, times=2).read_text()
    assert collected(framework, path, 6, {}) == [1, 2]
    assert path.read_text() == before.replace('"dynamic_on": true', '"dynamic_on": false')


def test_switched_on_in_the_middle(framework: Harness, path: Path, dynamic: None) -> None:
    """Scenario 4: an edit during step 2 takes effect at step 3."""
    assert collected(framework, config(path, times=2), 8, {2: rewriting(dynamic_on=True)}) == [3, 4]


def test_changed_while_collecting(framework: Harness, path: Path, dynamic: None) -> None:
    """Scenario 5: the old configuration up to the step of the edit, the new one from the next, counting anew."""
    edits = {3: rewriting(collect_times=3, ops=["min", "max"])}
    with training(framework, config(path, on=True, times=4), 9, edits) as monitor:
        pass
    rows = rows_of(monitor)
    assert {row.step: tuple(numbers) for row, numbers in rows.items()} == {
        **dict.fromkeys((1, 2, 3), ("norm",)),
        **dict.fromkeys((4, 5, 6), ("min", "max")),
    }


def test_ended_early_by_collect_times_0(framework: Harness, path: Path, dynamic: None) -> None:
    """Scenario 5: ``collect_times: 0`` collects nothing more."""
    assert collected(framework, config(path, on=True), 6, {2: rewriting(collect_times=0)}) == [1, 2]
    assert '"dynamic_on": false' in path.read_text()


def test_switched_on_again(framework: Harness, path: Path, dynamic: None) -> None:
    """Scenario 6: after ``collect_times`` steps it rests, and begins again when dynamic_on is true."""
    assert collected(framework, config(path, on=True, times=2), 9, {5: rewriting(dynamic_on=True)}) == [1, 2, 6, 7]


def test_switched_off_it_stops_at_the_next_step(framework: Harness, path: Path, dynamic: None) -> None:
    """``dynamic_on: false`` while collecting ends it."""
    assert collected(framework, config(path, on=True), 6, {3: rewriting(dynamic_on=False)}) == [1, 2, 3]


def test_at_a_step_that_the_file_names(framework: Harness, path: Path, dynamic: None) -> None:
    """``apply_at_step`` sets the step."""
    edits = {1: rewriting(dynamic_on=True, apply_at_step=5)}
    assert collected(framework, config(path, times=2), 9, edits) == [5, 6]


def test_an_edit_without_effect_is_told(
    framework: Harness, path: Path, dynamic: None, caplog: pytest.LogCaptureFixture, tmp_path: Path
) -> None:
    """Each once: a first step, a rank that is not there, and what is read as training begins."""
    edits = {
        1: rewriting(start_step=7, output_dir=str(tmp_path / "elsewhere"), queue_size=9),
        3: rewriting(run={"enable": True}, sentinel={"enable": True}, module_ranks=[5]),
        4: rewriting(run={"enable": False}, sentinel={"enable": False}, param_distribution=False),
    }
    with caplog.at_level(logging.WARNING, "probe"):
        assert collected(framework, config(path, on=True), 6, edits) == [1, 2, 3]
    told = [record.getMessage().partition(": ")[0] for record in caplog.records]
    keys = "output_dir", "queue_size", "run", "sentinel.enable"
    lasting = [f"{key} has no effect while training runs" for key in keys]
    assert [line for line in told if "effect" in line or "ranks" in line or "nothing" in line] == [
        *lasting[:2],
        "start_step has no effect in dynamic mode",
        *lasting[2:],
        "module_ranks",
        "the configuration collects nothing",
    ]
    assert not (tmp_path / "elsewhere").exists()


def breaking(path: Path) -> None:
    path.write_text("{", encoding="utf-8")


def test_a_wrong_edit_changes_nothing_until_it_is_mended(
    framework: Harness, path: Path, dynamic: None, caplog: pytest.LogCaptureFixture
) -> None:
    """The old configuration goes on, with one warning; the mended file takes effect."""
    edits: Edits = {2: breaking, 5: lambda path: config(path, on=True, times=2, op="max")}
    with caplog.at_level(logging.WARNING, "probe.control"), training(framework, config(path, on=True), 9, edits) as m:
        pass
    assert {row.step: tuple(numbers) for row, numbers in rows_of(m).items()} == {
        **dict.fromkeys((1, 2, 3, 4, 5), ("norm",)),
        **dict.fromkeys((6, 7), ("max",)),
    }
    assert sum("cannot be used" in record.message for record in caplog.records) == 1


def test_a_wrong_edit_at_rest_has_no_effect(framework: Harness, path: Path, dynamic: None) -> None:
    """Nothing begins."""
    assert collected(framework, config(path), 4, {1: rewriting(dynamic_on="maybe")}) == []


def toggling(_: Path) -> None:
    os.kill(os.getpid(), signal.SIGUSR1)


def test_a_signal_switches_where_asked_for(framework: Harness, path: Path, dynamic: None) -> None:
    """SIGUSR1 during step 1 and step 4; afterwards the handler is the one that was there before."""
    heard: list[int] = []
    before = signal.signal(signal.SIGUSR1, lambda number, _: heard.append(number))
    try:
        there = signal.getsignal(signal.SIGUSR1)
        rewriting(toggle_on_signal=True)(config(path))
        assert collected(framework, path, 8, {1: toggling, 4: toggling}) == [2, 3, 4]
        assert signal.getsignal(signal.SIGUSR1) is there
    finally:
        signal.signal(signal.SIGUSR1, before)
    assert heard == [signal.SIGUSR1] * 2


def test_without_asking_the_signal_is_left_alone(framework: Harness, path: Path, dynamic: None) -> None:
    with training(framework, config(path), 1, {}):
        assert signal.getsignal(signal.SIGUSR1) == signal.SIG_DFL


def test_weights_are_the_same_as_without(framework: Harness, path: Path, dynamic: None, tmp_path: Path) -> None:
    """Switching on and off does not disturb training."""
    edits = {n: rewriting(dynamic_on=n % 2 == 0) for n in range(1, 8)}
    model, plain = tiny_net(framework), tiny_net(framework)
    for net, monitored in ((model, True), (plain, False)):
        optimizer = framework.optimizer("momentum", net, lr=0.01, momentum=0.5)
        loop = framework.loop(net, optimizer)
        monitor = framework.TrainerMon(config(path))
        if monitored:
            monitor.set_monitor(net, 1, optimizer)
        for step in range(9):
            if monitored and step in edits:
                edits[step](path)
            train_step(loop, *inputs(framework, 1))
        monitor.stop()
    one, other = framework.weights(model), framework.weights(plain)
    assert {name: array.tobytes() for name, array in one.items()} == {n: a.tobytes() for n, a in other.items()}


CHANGES = 30
"""On and off, after which what one of them leaves would be there as often."""
JUDGED = {"rules": [{"rule_name": "AnomalySpike", "args": {"warm_up": 4, "window": 8}}]}


def test_rules_keep_their_memory(framework: Harness, path: Path, dynamic: None) -> None:
    """A rule's memory from before a change and a rest is kept."""
    config(path, on=True, times=5)
    rewriting(xy_distribution=True, param_distribution=False, alert=JUDGED)(path)
    model = tiny_net(framework)
    optimizer = framework.optimizer("momentum", model, lr=0.0, momentum=0.0)
    loop = framework.loop(model, optimizer)
    with framework.TrainerMon(path) as monitor:
        monitor.set_monitor(model, 1, optimizer)
        for step in range(10):
            if step == 7:
                rewriting(dynamic_on=True, step_count_per_record=5)(path)
            train_step(loop, framework.tensor(X * (1e4 if step == 8 else 1.0)))
    assert {finding.step for finding in monitor.findings} == {8}


def test_a_change_that_names_nothing_is_told_and_not_made(framework: Harness, path: Path, dynamic: None) -> None:
    """Targets are checked against the model; what was collected before goes on."""
    edits = {2: rewriting(targets={"nowhere": {}}, ops=["max"])}
    with training(framework, config(path, on=True), 5, edits) as monitor:
        pass
    assert {row.step: tuple(numbers) for row, numbers in rows_of(monitor).items()} == dict.fromkeys(
        range(1, 5), ("norm",)
    )
    assert monitor.faults == {"control: ValueError": 1}


@pytest.mark.slow
def test_many_changes_leave_nothing_behind(framework: Harness, path: Path, dynamic: None) -> None:
    """No hook, thread, file or object of ours is left from one time on to the next."""
    config(path)
    rewriting(xy_distribution=True, wg_distribution=True, mv_distribution=True, alert=JUDGED, history=2)(path)
    rewriting(recording_l2_features=True, l2_targets={"linear_hook": []}, format=["csv", "sqlite"])(path)
    model = tiny_net(framework)
    optimizer = framework.optimizer("momentum", model, lr=0.0, momentum=0.0)
    loop = framework.loop(model, optimizer)
    left = []
    with framework.TrainerMon(path) as monitor:
        monitor.set_monitor(model, 1, optimizer)
        for _ in range(CHANGES):
            for on in (True, False):
                rewriting(dynamic_on=on, step_count_per_record=1000)(path)
                train_step(loop, *inputs(framework, 1))
                assert monitor.monitoring is on
            if len(left) < 2 or _ == CHANGES - 1:
                left.append(_left(framework, model, optimizer, monitor))
    assert left[1] == left[2]
    assert monitor.faults == {}


def _left(framework: Harness, model: Any, optimizer: Any, monitor: Monitor) -> object:
    monitor.flush()
    gc.collect()
    kinds = (type(thing) for thing in gc.get_objects())
    ours = Counter(kind.__name__ for kind in kinds if str(kind.__module__).startswith("probe."))
    files = len([*Path("/proc/self/fd").iterdir()])
    return framework.picture([model], [optimizer]), threading.active_count(), files, ours
