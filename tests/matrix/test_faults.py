"""Faults: inside probe they do not reach training, in training they are written and named."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from probe.core.monitor.trainer_mon import Monitor
from tests.matrix.harness import Harness, Module, train_step
from tests.matrix.models import FC2_WEIGHT, FC_BIAS, FC_WEIGHT, X, container, product, tiny_net
from tests.matrix.watching import EVERYTHING, LR, MOMENTUM, inputs, names_of, rows_of, watching
from tests.tables import read

pytestmark = pytest.mark.filterwarnings("ignore:invalid value encountered:RuntimeWarning")  # NumPy's, of NaN and Inf

ALERT = {"alert": {"rules": [{"rule_name": "AnomalyNan"}]}}


class Opaque(dict):  # type: ignore[type-arg]
    """Container that no other code can look into."""

    def values(self) -> Any:
        raise RuntimeError("no values for you")


def opaque(framework: Harness) -> Module:
    """A model with a module whose outputs cannot be looked into."""
    pack = lambda a, b: Opaque(first=a, second=b)  # noqa: E731
    return container(framework, pack, lambda given: (given["first"], given["second"]))


def weights_after(framework: Harness, model: Module, monitor: Monitor | None, steps: int = 3) -> dict[str, bytes]:
    """The weights of a training that takes no notice of ``monitor``."""
    optimizer = framework.optimizer("momentum", model, lr=LR / 8, momentum=MOMENTUM)
    loop = framework.loop(model, optimizer)
    if monitor is not None:
        monitor.set_monitor(model, 1, optimizer)
    for _ in range(steps):
        train_step(loop, *inputs(framework, 2))
    if monitor is not None:
        monitor.stop()
    return {name: array.tobytes() for name, array in framework.weights(model).items()}


def test_a_container_of_the_users_own_is_left_alone(framework: Harness, caplog: pytest.LogCaptureFixture) -> None:
    """Its class is counted, logged once and shown in the manifest; training and all other rows are as ever."""
    monitor = framework.TrainerMon(EVERYTHING)
    monitored = weights_after(framework, opaque(framework), monitor)
    assert monitored == weights_after(framework, opaque(framework), None)
    assert monitor.faults == {f"activations: {__name__}.Opaque are left alone": 1}
    assert caplog.text.count("Opaque are left alone, of module 'giver' first") == 1
    manifest = json.loads((Path(str(monitor.output_directory)) / "manifest.json").read_text())
    assert manifest["faults"] == monitor.faults
    rows = rows_of(monitor)
    assert {row.step for row in rows if row.signal == "param_updated"} == {0, 1, 2}
    values = {"giver.input_0", "giver.input_1", "first.input", "first.output", ".input", ".output"}
    assert names_of(rows, "actv") == values
    assert {(row.step, row.micro_step) for row in rows if row.name == "first.output"} == {
        (step, micro_step) for step in range(3) for micro_step in range(2)
    }


def test_a_directory_that_cannot_be_written_any_more(framework: Harness) -> None:
    """When a file takes the output directory's place, training goes on and each lost step is counted."""
    model = tiny_net(framework)
    optimizer = framework.optimizer("momentum", model, lr=LR / 8, momentum=MOMENTUM)
    loop = framework.loop(model, optimizer)
    monitor = framework.TrainerMon(EVERYTHING)
    monitor.set_monitor(model, 1, optimizer)
    directory = Path(str(monitor.output_directory))
    for step in range(3):
        train_step(loop, *inputs(framework, 2))
        if step == 0:
            assert monitor.flush()
            assert {row.step for row in read(directory)} == {0}
            shutil.rmtree(directory)
            directory.write_text("not a directory")
    monitor.stop()
    assert monitor.faults["sink CsvSink: NotADirectoryError"] == 2
    assert {name: array.tobytes() for name, array in framework.weights(model).items()} == weights_after(
        framework, tiny_net(framework), None
    )


@pytest.mark.parametrize(
    ("odd", "ops"),
    [(np.nan, {"min": "nan", "norm": "nan", "nans": "1.0"}), (np.inf, {"max": "inf", "norm": "inf", "infs": "1.0"})],
    ids=["nan", "inf"],
)
def test_a_bad_gradient_is_written_and_named(framework: Harness, odd: float, ops: dict[str, str]) -> None:
    """The first finding is the gradient itself, at the step in which it came; the tables show it."""
    model = product(framework, np.zeros(3))
    optimizer = framework.optimizer("momentum", model, lr=0.0, momentum=0.5)
    loop = framework.loop(model, optimizer)
    with watching(framework, EVERYTHING | ALERT | {"xy_distribution": False}, model, optimizer) as monitor:
        for step in range(3):
            train_step(loop, framework.tensor([1.0, odd if step == 2 else 2.0, 3.0]))
    first = monitor.findings[0]
    assert (first.rule, first.signal, first.key.name, first.step) == ("AnomalyNan", "grad_unreduced", "w", 2)
    assert {finding.step for finding in monitor.findings} == {2}
    (found,) = (values for row, values in rows_of(monitor).items() if row.signal == "grad_reduced" and row.step == 2)
    assert {op: str(found[op]) for op in ops} == ops


@pytest.mark.parametrize("odd", [np.nan, np.inf], ids=["nan", "inf"])
def test_a_bad_activation_is_written_and_named(framework: Harness, odd: float) -> None:
    """A weight gone bad shows first at the output of its own module, not at those before or around it."""
    broken = FC2_WEIGHT.copy()
    broken[0, 2] = odd
    fc, relu, fc2 = framework.linear(FC_WEIGHT, FC_BIAS), framework.relu(), framework.linear(broken)
    model = framework.module(lambda x: fc2(relu(fc(x))), fc=fc, relu=relu, fc2=fc2)
    optimizer = framework.optimizer("momentum", model, lr=0.0, momentum=0.5)
    config = EVERYTHING | ALERT | {"param_distribution": False}
    with watching(framework, config, model, optimizer) as monitor:
        train_step(framework.loop(model, optimizer), framework.tensor(X - 3))
    first = monitor.findings[0]
    assert (first.signal, first.key.name, first.key.part, first.step) == ("actv", "fc2", "output", 0)
    values = {row.name: numbers for row, numbers in rows_of(monitor).items() if row.signal == "actv"}
    bad = {name for name, numbers in values.items() if numbers["nans"] + numbers["infs"]}
    assert bad == {"fc2.output", ".output"}


def test_a_healthy_run_has_no_findings(framework: Harness) -> None:
    """AnomalyNan reports nothing in a healthy run."""
    model = tiny_net(framework)
    optimizer = framework.optimizer("momentum", model, lr=LR / 8, momentum=MOMENTUM)
    loop = framework.loop(model, optimizer)
    with watching(framework, EVERYTHING | ALERT, model, optimizer) as monitor:
        for _ in range(3):
            train_step(loop, *inputs(framework, 2))
    assert monitor.findings == []


JUDGED = {
    "xy_distribution": True,
    "ops": ["norm"],
    "squash_name": False,
    "alert": {"rules": [{"rule_name": "AnomalySpike", "args": {"warm_up": 4, "window": 8}}]},
}


def spikes(framework: Harness, first: int, *scales: float) -> list[tuple[int, str]]:
    """Steps of the spikes found by a monitor that begins at step ``first``, on inputs of these scales, one a step."""
    model = tiny_net(framework)
    optimizer = framework.optimizer("momentum", model, lr=0.0, momentum=0.0)
    loop = framework.loop(model, optimizer)
    with watching(framework, JUDGED, model, optimizer, start_iteration=first) as monitor:
        for scale in scales:
            train_step(loop, framework.tensor(X * scale))
    return [(finding.step, f"{finding.key.name}.{finding.key.part}") for finding in monitor.findings]


def test_rules_remember_across_a_resume(framework: Harness) -> None:
    """A run that goes on where another ended is judged by what that one has shown, from its first step on."""
    assert spikes(framework, 0, *[1.0] * 6) == []
    assert (6, "fc.input") in spikes(framework, 6, 1e4)


def test_rules_remember_no_step_that_is_done_again(framework: Harness) -> None:
    """Steps behind the one that a run goes on from do not count: what they had shown is not what is compared with."""
    assert spikes(framework, 0, *[1.0] * 2, *[1e4] * 5) == []
    assert spikes(framework, 2, 1.0, 1.0, 1.0) == []
    assert (5, "fc.input") in spikes(framework, 5, 1e4)


def test_without_earlier_files_rules_begin_anew(framework: Harness) -> None:
    """A late first step alone is no memory."""
    assert spikes(framework, 6, 1e4) == []


def written_with_history(framework: Harness, *scales: float) -> list[int]:
    """The steps in the files of a run that holds two back; inputs of these scales, one a step."""
    model = tiny_net(framework)
    optimizer = framework.optimizer("momentum", model, lr=0.0, momentum=0.0)
    loop = framework.loop(model, optimizer)
    with watching(framework, JUDGED | {"history": 2}, model, optimizer) as monitor:
        for scale in scales:
            train_step(loop, framework.tensor(X * scale))
    return sorted({row.step for row in rows_of(monitor)})


def test_history_is_written_around_what_is_found(framework: Harness) -> None:
    """Two steps before the spike and two after it; nothing of a healthy run."""
    assert written_with_history(framework, *[1.0] * 9) == []
    assert written_with_history(framework, *[1.0] * 6, 1e4, *[1.0] * 5) == [4, 5, 6, 7, 8]


def test_history_is_written_when_training_raises(framework: Harness) -> None:
    """An exception is an incident."""
    model = tiny_net(framework)
    optimizer = framework.optimizer("momentum", model, lr=0.0, momentum=0.0)
    loop = framework.loop(model, optimizer)
    monitor = framework.TrainerMon(JUDGED | {"history": 2})

    def train() -> None:
        with monitor:
            monitor.set_monitor(model, 1, optimizer)
            for _ in range(5):
                train_step(loop, *inputs(framework, 1))
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        train()
    assert sorted({row.step for row in rows_of(monitor)}) == [3, 4]


def test_around_what_is_found_more_is_collected(framework: Harness) -> None:
    """After a spike in fc2's input: its parameters, besides activations, for three steps; once more after a rest."""
    about = {"arm": {"param_distribution": True}, "steps": 3, "cool_down": 4}
    model = tiny_net(framework)
    optimizer = framework.optimizer("momentum", model, lr=0.0, momentum=0.0)
    loop = framework.loop(model, optimizer)
    config = JUDGED | {"on_anomaly": about, "targets": {"fc2": {"input": "tensor"}}}
    with watching(framework, config, model, optimizer) as monitor:
        for step in range(30):
            train_step(loop, framework.tensor(X * (1e4 if step in (6, 9, 20) else 1.0)))
            monitor.flush()
    rows = rows_of(monitor)
    assert {row.step for row in rows if row.signal == "actv"} == set(range(30))
    deep = [row for row in rows if row.signal == "param_origin"]
    # The worker judges a step while it ends, or once it has ended: then the plan begins one step later.
    first, second = (min(row.step for row in deep if row.step > spike) for spike in (6, 20))
    assert {first - 6, second - 20} <= {1, 2}
    assert sorted({row.step for row in deep}) == [*range(first, first + 3), *range(second, second + 3)]
    assert {row.name for row in deep} == {"fc2.weight"}
    manifest = json.loads((Path(monitor.output_directory or "") / "manifest.json").read_text())
    assert [(change["step"], change["suspects"]) for change in manifest["changes"]] == [
        (first, ["fc2"]),
        (first + 3, []),
        (second, ["fc2"]),
        (second + 3, []),
    ]
