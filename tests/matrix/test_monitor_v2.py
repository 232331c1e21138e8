"""msprobe's Monitor V2: its quick start with another import, on both frameworks, and its files."""

from __future__ import annotations

import csv
import json
import logging
from collections.abc import Callable
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest

from probe.core.analysis.compare.compare import compare
from probe.core.analysis.convert.csv2db import CSV2DBConfig, csv2db
from probe.core.analysis.diagnosis.analyse import analyse
from probe.core.analysis.report.write import write_report
from probe.core.monitor_v2.trainer import TrainerMonitorV2
from probe.core.storage.directories import find
from probe.core.storage.problems import Problems
from tests.matrix.harness import FRAMEWORKS, Harness, train_step
from tests.matrix.models import X, tiny_net
from tests.matrix.watching import LR, MOMENTUM
from tests.required import require
from tests.tables import read

OPS = ["min", "max", "mean", "norm", "nans"]
QUICK_START = {
    "rank": [0],
    "start_step": 0,
    "step_interval": 1,
    "step_count_per_record": 1,
    "collect_times": 100,
    "format": "csv",
    "monitors": {"weight_grad": {"enabled": True, "ops": OPS, "eps": 1e-8, "monitor_mbs_grad": False}},
}
EVERY_MONITOR = {
    **QUICK_START["monitors"],  # type: ignore[dict-item]
    "module": {"targets": ["fc2"], "ops": OPS},
    "optimizer": {"enabled": True, "ops": OPS},
    "param": {"enabled": True, "ops": OPS},
}


@pytest.fixture(params=["pytorch", "mindspore"])
def framework(request: pytest.FixtureRequest) -> Harness:
    """The harness of each framework that Monitor V2 has."""
    entry = FRAMEWORKS[request.param]
    require(entry.package)
    harness: Harness = import_module(entry.harness)
    return harness


def run(framework: Harness, folder: Path, steps: int = 3, optimizer: bool = True, **more: Any) -> TrainerMonitorV2:
    """The quick start's program: a file, four calls, and a call of ``step()`` after each update."""
    path = folder / "monitor_v2_config.json"
    path.write_text(json.dumps({**QUICK_START, "framework": framework.NAME, "output_dir": str(folder / "out"), **more}))
    model = tiny_net(framework)
    trains = framework.optimizer("momentum", model, lr=LR, momentum=MOMENTUM)
    loop = framework.loop(model, trains)
    monitor = TrainerMonitorV2(str(path), fr=framework.NAME)
    monitor.start(model=model, **({"optimizer": trains, "grad_acc_steps": 1} if optimizer else {}))
    for _ in range(steps):
        train_step(loop, framework.tensor(X))
        monitor.step()
    monitor.stop()
    assert monitor.monitor is not None
    assert monitor.monitor.faults == {}
    return monitor


def names_of(monitor: TrainerMonitorV2, signal: str) -> set[str]:
    """The names of a signal's rows."""
    assert monitor.monitor is not None
    return {row.name for row in read(monitor.monitor.output_directory) if row.signal == signal}


def test_the_quick_start(framework: Harness, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Each step is recorded once, in output_dir; one warning names the calls of step() beside an optimizer."""
    with caplog.at_level(logging.WARNING, "probe"):
        monitor = run(framework, tmp_path)
    assert monitor.monitor is not None
    assert Path(str(monitor.monitor.output_directory)).parent == tmp_path / "out"
    rows = read(monitor.monitor.output_directory)
    assert {(row.signal, row.step) for row in rows} == {
        (signal, step) for signal in ("grad_reduced", "grad_unreduced") for step in range(3)
    }
    assert sum("step has no effect" in record.message for record in caplog.records) == 1


def test_steps_without_an_optimizer(framework: Harness, tmp_path: Path) -> None:
    """The optimizer that updates the model is followed, so that each step is recorded once."""
    monitor = run(framework, tmp_path, optimizer=False, monitors={"module": {"targets": []}})
    assert monitor.monitor is not None
    assert {row.step for row in read(monitor.monitor.output_directory)} == {0, 1, 2}


def test_sections_and_parts_of_names(framework: Harness, tmp_path: Path) -> None:
    """Modules are chosen by parts of their names, which leaves out no parameter of the other sections."""
    monitor = run(framework, tmp_path, monitors=EVERY_MONITOR)
    modules = {name.rpartition(".")[0] for name in names_of(monitor, "actv")}
    assert modules == {"fc2"}
    parameters = {"fc.weight", "fc.bias", "fc2.weight"}
    assert names_of(monitor, "grad_reduced") == names_of(monitor, "param_origin") == parameters


def test_steps_that_are_recorded(framework: Harness, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """From start_step to before stop_step at their distance; keys without effect and unknown ops are logged."""
    section = {"enabled": True, "ops": ["norm", "nrom"]}
    cc = {"enabled": True, "ops": ["norm"], "cc_distribution": {"cc_codeline": ["train.py[23]"]}, "module_ranks": [1]}
    schedule = {"start_step": 1, "stop_step": 6, "step_interval": 2, "step_count_per_record": 3, "async_write": True}
    with caplog.at_level(logging.WARNING, "probe"):
        monitor = run(framework, tmp_path, 8, monitors={"weight_grad": section, "cc": cc}, **schedule)
    assert monitor.monitor is not None
    rows = read(monitor.monitor.output_directory)
    assert {row.step for row in rows} == {1, 3, 5}
    assert all(numbers.keys() == {"norm"} for numbers in rows.values())
    settings = monitor.monitor.settings
    assert (settings.cc_distribution.enable, settings.cc_distribution.cc_codeline) == (True, (r"train.py\[23\]",))
    for text in (
        "async_write has no effect",
        "cc.module_ranks has no effect",
        "got 'nrom', left out; did you mean norm?",
    ):
        assert text in caplog.text


def test_a_step_before_the_start_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    """Once, with the call that is missing."""
    monitor = TrainerMonitorV2({"monitors": {"param": {"enabled": True}}})
    with caplog.at_level(logging.WARNING, "probe"):
        monitor.step()
        monitor.step()
    assert caplog.text.count("nothing is recorded; call start(model=model, ...) before training") == 1


def test_an_unknown_part_of_a_name(framework: Harness, tmp_path: Path) -> None:
    """It is an error before training that lists the modules there are."""
    with pytest.raises(ValueError, match=r"monitors\.module\.targets: expected parts .* got 'fx'; there are 0:fc"):
        run(framework, tmp_path, monitors={"module": {"targets": ["fx"]}})


def test_its_layout_is_written_and_read_by_all_analyses(framework: Harness, tmp_path: Path) -> None:
    """Files as Monitor V2 writes them, in a folder of their own, give the numbers of ours, and no difference."""
    monitor = run(framework, tmp_path, monitors=EVERY_MONITOR, layout="v2", step_count_per_record=2)
    assert monitor.monitor is not None
    ours, alone = Path(str(monitor.monitor.output_directory)), tmp_path / "alone"
    alone.mkdir()
    (tmp_path / "out" / "rank_0").rename(alone / "rank_0")
    files = {path.name for path in (alone / "rank_0").iterdir()}
    assert {"module_step0-1.csv", "weight_grad_step2-3.csv", "param_step0-1.csv"} <= files
    with (alone / "rank_0" / "weight_grad_step0-1.csv").open(newline="") as file:
        assert next(csv.reader(file)) == ["vpp_stage", "step", "module_name", "scope", "micro_step", *OPS]
    (theirs,) = find(alone, Problems())
    here, there = read(ours), read(theirs.path)
    assert there.keys() == here.keys()
    for row, numbers in there.items():
        assert numbers == pytest.approx(here[row], rel=1e-4, nan_ok=True), row
    assert not list(analyse(alone).findings())
    assert write_report(alone, tmp_path / "report.html")
    csv2db(CSV2DBConfig(str(alone), output_dirpath=str(tmp_path / "db")))
    assert (tmp_path / "db" / "monitor_metrics.db").exists()
    assert compare(alone, tmp_path / "out").agrees


WRONG: dict[str, tuple[Callable[[Any, Any, Any], object], str]] = {
    "no configuration": (
        lambda new, _, __: new(),
        "missing a required argument: 'config_path'; call TrainerMonitorV2",
    ),
    "no model": (
        lambda new, _, o: new(QUICK_START).start(optimizer=o),
        "model: expected a model, got None; call start",
    ),
    "a number": (
        lambda new, _, o: new(QUICK_START).start(3, o),
        "model: expected a .* got <class 'int'>; pass the model",
    ),
    "no optimizer": (lambda new, m, _: new(QUICK_START).start(m), "optimizer: expected the optimizer that trains"),
}


@pytest.mark.parametrize("name", WRONG)
def test_wrong_calls(framework: Harness, name: str) -> None:
    """Each is refused with what was expected."""
    model = tiny_net(framework)
    optimizer = framework.optimizer("momentum", model, lr=LR, momentum=MOMENTUM)
    call, told = WRONG[name]
    with pytest.raises((TypeError, ValueError), match=told):
        call(partial(TrainerMonitorV2, fr=framework.NAME), model, optimizer)


def test_wrong_names_of_arguments_and_attributes(
    framework: Harness, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Are reported, with the nearest; what the monitor has stays."""
    model = tiny_net(framework)
    optimizer = framework.optimizer("momentum", model, lr=LR, momentum=MOMENTUM)
    monitor: Any = TrainerMonitorV2({**QUICK_START, "output_dir": str(tmp_path)}, fr=framework.NAME)
    config = monitor.config
    monitor.start(model, optimizer, grad_acc_step=1)
    monitor.ops, monitor.config = ["max"], 3
    monitor.stop()
    for text in (
        "TrainerMonitorV2.start: grad_acc_step: passed over; did you mean grad_acc_steps?",
        "monitor.ops: there is no such attribute: assigned without effect; it is a key of the configuration",
        "monitor.config: cannot be assigned: 3 is left out",
    ):
        assert text in caplog.text
    assert monitor.config is config
