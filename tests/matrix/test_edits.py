"""Changes of what is collected, by edits at awkward moments and of every kind: none is lost, and none is half made."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest

from probe.core.monitor.trainer_mon import Monitor
from tests.matrix.editing import collected, config, rewriting, training
from tests.matrix.harness import Harness, train_step
from tests.matrix.models import X, tiny_net
from tests.matrix.watching import inputs, rows_of

JUDGED = {"rules": [{"rule_name": "AnomalySpike", "args": {"warm_up": 3, "window": 4}}]}
DEEPER = {"arm": {"xy_distribution": True}, "steps": 2, "cool_down": 0}


@pytest.fixture(autouse=True)
def dynamic(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("DYNAMIC_MONITOR", "True")
    monkeypatch.setenv("MONITOR_OUTPUT_DIR", str(tmp_path / "out"))


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "monitor_config.json"


def ops_of(monitor: Monitor) -> dict[int, tuple[str, ...]]:
    """By step the ops that were written."""
    return {row.step: tuple(numbers) for row, numbers in rows_of(monitor).items()}


def test_an_edit_in_the_last_step_of_collecting_takes_effect(framework: Harness, path: Path) -> None:
    """As one in any other: the new configuration follows, and ``dynamic_on: false`` is written after it."""
    edits = {2: rewriting(ops=["max"], collect_times=3)}
    with training(framework, config(path, on=True, times=2), 9, edits) as monitor:
        pass
    assert ops_of(monitor) == {**dict.fromkeys((1, 2), ("norm",)), **dict.fromkeys((3, 4, 5), ("max",))}
    assert '"dynamic_on": false' in path.read_text()


def test_an_edit_before_training_takes_effect(framework: Harness, path: Path) -> None:
    """Between the making of the monitor and its attachment; and between two attachments."""
    model = tiny_net(framework)
    optimizer = framework.optimizer("momentum", model, lr=0.01, momentum=0.5)
    loop = framework.loop(model, optimizer)
    monitor = framework.TrainerMon(config(path, on=False))
    found = []
    for values in ({"dynamic_on": True, "collect_times": 2}, {}, {"dynamic_on": True, "ops": ["max"]}):
        rewriting(**values)(path)
        monitor.set_monitor(model, 1, optimizer)
        for _ in range(5):
            train_step(loop, *inputs(framework, 1))
        monitor.stop()
        found.append(ops_of(monitor))
    assert found == [{1: ("norm",), 2: ("norm",)}, {}, {1: ("max",), 2: ("max",)}]
    assert monitor.faults == {}


def test_metrics_of_a_step_are_those_of_its_own_configuration(framework: Harness, path: Path) -> None:
    """A program that asks for them after each step is not disturbed by other ops from the next one on."""
    model = tiny_net(framework)
    optimizer = framework.optimizer("momentum", model, lr=0.01, momentum=0.5)
    loop = framework.loop(model, optimizer)
    seen = []
    with framework.TrainerMon(config(path, on=True)) as monitor:
        rewriting(wg_distribution=True, xy_distribution=True)(path)
        monitor.set_monitor(model, 1, optimizer)
        for step in range(5):
            if step == 2:
                rewriting(ops=["max", "zeros"])(path)
            train_step(loop, *inputs(framework, 1))
            metrics = (*monitor.generate_wgrad_metrics(), *monitor.generate_xy_metrics())
            seen.append({tuple(values) for each in metrics for values in each.values()})
    assert seen == [set(), {("norm",)}, {("norm",)}, {("max", "zeros")}, {("max", "zeros")}]


def test_a_format_that_cannot_be_had_changes_nothing(
    framework: Harness, path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The log names the package to install, and the old configuration goes on until one comes that can be used."""
    monkeypatch.setitem(sys.modules, "tensorboardX", None)
    monkeypatch.setitem(sys.modules, "tensorboardX.proto.event_pb2", None)
    edits = {2: rewriting(format="tensorboard", ops=["max"]), 4: rewriting(format="csv", ops=["min"])}
    with training(framework, config(path, on=True), 7, edits) as monitor:
        pass
    assert ops_of(monitor) == {**dict.fromkeys((1, 2, 3, 4), ("norm",)), **dict.fromkeys((5, 6), ("min",))}
    assert monitor.faults == {"control: ImportError": 1}
    about = json.loads((Path(str(monitor.output_directory)) / "manifest.json").read_text())
    assert about["config"]["format"] == ["csv"]


def test_a_step_is_kept_while_the_file_is_away(framework: Harness, path: Path) -> None:
    """The file is missing for a moment, as with editors: a change for a step takes effect at that step."""
    edits = {1: rewriting(dynamic_on=True, apply_at_step=4), 2: Path.unlink, 5: lambda path: config(path, on=False)}
    with training(framework, config(path), 9, edits) as monitor:
        pass
    assert sorted({row.step for row in rows_of(monitor)}) == [4, 5]
    assert monitor.faults == {"control: FileNotFoundError": 1}


@pytest.mark.parametrize(("warm_up", "found"), [(6, {7}), (7, set())])
def test_a_rule_that_is_there_twice_sees_each_step_once(
    framework: Harness, path: Path, warm_up: int, found: set[int]
) -> None:
    """Also after a change: at step 7 it knows the six steps since the first."""
    twice = {"rules": [{"rule_name": "AnomalySpike", "args": {"warm_up": warm_up, "window": 8}}] * 2}
    rewriting(alert=twice, wg_distribution=True)(config(path, on=True))
    monitor = judged(framework, path, {4: {"ndigits": 12}}, spike=7)
    assert {finding.step for finding in monitor.findings if finding.step == 7} == found


def test_limits_of_numbers_of_the_run_may_be_changed(framework: Harness, path: Path) -> None:
    """They hold from the step of the change on, and numbers are recorded from then on."""
    limit = {"rules": [{"rule_name": "AnomalyThreshold", "args": {"ops": ["learning_rate"], "above": 0.001}}]}
    with training(framework, config(path, on=True), 9, {4: rewriting(alert=limit)}) as monitor:
        monitor.flush()
        found = monitor._attachment.reporting.account.summary(9, "", {}, True).findings
    assert [(finding.kind, finding.where) for finding in found] == [("Value beyond its limit", ("learning_rate",))]
    assert found[0].step in (5, 6)


def judged(framework: Harness, path: Path, edits: dict[int, dict[str, Any]], spike: int) -> Monitor:
    """A run that learns nothing, with one step of parameters a thousand times as large."""
    model = tiny_net(framework)
    optimizer = framework.optimizer("momentum", model, lr=0.0, momentum=0.0)
    loop = framework.loop(model, optimizer)
    with framework.TrainerMon(path) as monitor:
        monitor.set_monitor(model, 1, optimizer)
        for step in range(14):
            if step in edits:
                rewriting(**edits[step])(path)
            train_step(loop, framework.tensor(X * (1e3 if step == spike else 1.0)))
            monitor.flush()
    return monitor


ON_ANOMALY = [
    ({}, {4: {"on_anomaly": DEEPER}}, 2),
    ({"on_anomaly": DEEPER}, {4: {"on_anomaly": None}}, 0),
    ({"on_anomaly": DEEPER}, {4: {"on_anomaly": DEEPER | {"steps": 4}}}, 4),
    ({"on_anomaly": DEEPER}, {4: {"on_anomaly": DEEPER, "ndigits": 12}}, 2),
]


@pytest.mark.parametrize(("at_first", "edits", "deep"), ON_ANOMALY)
def test_on_anomaly_may_be_changed_while_it_runs(
    framework: Harness, path: Path, at_first: dict[str, Any], edits: dict[int, dict[str, Any]], deep: int
) -> None:
    """Switched on, off, or to another number of steps: the file's values at the time of the finding hold."""
    rewriting(alert=JUDGED, wg_distribution=True, **at_first)(config(path, on=True))
    monitor = judged(framework, path, edits, spike=7)
    assert {finding.step for finding in monitor.findings} >= {7}
    found = sorted({row.step for row in rows_of(monitor) if row.signal == "actv"})
    assert len(found) == deep
    assert found in ([], [*range(8, 8 + deep)], [*range(9, 9 + deep)])  # rules judge in parallel with training
    assert monitor.faults == {}


def test_what_was_found_before_a_rest_is_not_looked_into_after_it(framework: Harness, path: Path) -> None:
    """Monitoring ends with the step in which something was found, and goes on much later."""
    rewriting(alert=JUDGED, wg_distribution=True, on_anomaly=DEEPER)(config(path, on=True))
    edits = {7: {"dynamic_on": False}, 11: {"dynamic_on": True}}
    monitor = judged(framework, path, edits, spike=7)
    assert {row.step for row in rows_of(monitor)} == {1, 2, 3, 4, 5, 6, 7, 12, 13}
    assert not {row.signal for row in rows_of(monitor)} & {"actv", "actv_grad"}
    assert monitor.faults == {}


def test_skipped_steps_of_all_changes_are_counted(framework: Harness, path: Path) -> None:
    """Within a budget that a toy never keeps: what was left out before a change is in the manifest too."""
    rewriting(max_overhead=1e-9)(config(path, on=True))
    with training(framework, path, 30, {15: rewriting(ops=["max"])}) as monitor:
        pass
    about = json.loads((Path(str(monitor.output_directory)) / "manifest.json").read_text())
    collected_steps = {row.step for row in rows_of(monitor)}
    assert collected_steps & {*range(16)}
    assert collected_steps & {*range(16, 30)}
    assert about["pace"]["skipped"] == 29 - len(collected_steps)


def test_an_edit_between_micro_batches_changes_nothing_of_their_step(framework: Harness, path: Path) -> None:
    """All of them are collected as the step began, and those of the next by the new file."""
    model = tiny_net(framework)
    optimizer = framework.optimizer("momentum", model, lr=0.01, momentum=0.5)
    loop = framework.loop(model, optimizer)
    rewriting(xy_distribution=True)(config(path, on=True))
    with framework.TrainerMon(path) as monitor:
        monitor.set_monitor(model, 3, optimizer)
        for step in range(4):
            for number, each in enumerate(inputs(framework, 3)):
                if (step, number) == (1, 1):
                    rewriting(ops=["max"])(path)
                if (step, number) == (2, 2):
                    rewriting(dynamic_on=False)(path)
                loop.micro_batch(each)
            loop.update()
    found = {(row.step, row.micro_step): tuple(ops) for row, ops in rows_of(monitor).items() if row.signal == "actv"}
    assert found == {(1, micro): ("norm",) for micro in range(3)} | {(2, micro): ("max",) for micro in range(3)}
    assert monitor.faults == {}


def test_a_file_with_anchors_is_never_spoilt(framework: Harness, tmp_path: Path) -> None:
    """``dynamic_on: false`` replaces an alias; if others refer to its anchor, the file is left with a warning."""
    path = tmp_path / "monitor.yaml"
    path.write_text("param_distribution: &yes true\ndynamic_on: *yes\ncollect_times: 1\n")
    assert collected(framework, path, 4, {}) == [1]
    assert path.read_text() == "param_distribution: &yes true\ndynamic_on: false\ncollect_times: 1\n"
    path.write_text(text := "dynamic_on: &yes true\nparam_distribution: *yes\ncollect_times: 1\n")
    with training(framework, path, 4, {}) as monitor:
        pass
    assert (path.read_text(), monitor.faults) == (text, {"control: OSError": 1})
    assert {row.step for row in rows_of(monitor)} == {1}
