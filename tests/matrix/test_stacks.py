"""Call stacks of modules, as a file."""

from __future__ import annotations

import csv
import re
from pathlib import Path
from typing import Any

import pytest

import probe
from tests.matrix.harness import Harness, train_step
from tests.matrix.models import SQUARE, X, tiny_net
from tests.matrix.watching import ACTIVATIONS, LR, MOMENTUM, rows_of, train, train_tiny, watching

PACKAGE = Path(probe.__file__).parent
LINE = re.compile(r"(.+)\[(\d+)\] (\S+)")


@pytest.fixture(autouse=True)
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Output directory of runs."""
    monkeypatch.setenv("MONITOR_OUTPUT_DIR", str(tmp_path / "out"))
    return tmp_path / "out"


def stacks_of(directory: Path) -> dict[str, list[tuple[str, int, str]]]:
    """The file, read by the rules of CSV: by module the lines of its stack."""
    with next(directory.rglob("stack_info.csv")).open(newline="", encoding="utf-8") as file:
        header, *rows = csv.reader(file, strict=True)
    assert header == ["module_name", "stack_info"]
    assert len({name for name, _ in rows}) == len(rows), "a module is told twice"
    found = {}
    for name, text in rows:
        lines = [LINE.fullmatch(line) for line in text.splitlines()]
        found[name] = [(line[1], int(line[2]), line[3]) for line in lines if line]
        assert len(found[name]) == len(lines)
    return found


def is_ours(path: str) -> bool:
    """Return whether a file is part of the package, wherever that is installed."""
    return Path(path).is_relative_to(PACKAGE)


def nested(framework: Harness) -> Any:
    """A layer that is called by a module in a function with a name of its own."""
    inner = framework.linear(SQUARE)

    def called_here(x: Any) -> Any:
        return inner(inner(x))

    block = framework.module(called_here, inner=inner)
    return framework.module(lambda x: framework.add(block(x), x), block=block)


def test_each_module_has_the_lines_that_called_it(framework: Harness, root: Path) -> None:
    """The nearest first: the line in the module around, and further out that of the training loop."""
    train(framework, {"stack_info": True}, nested(framework))
    found = stacks_of(root)
    assert set(found) == {"0:", "0:block", "0:block.inner"}
    path, number, function = found["0:block.inner"][0]
    assert (path, function) == (__file__, "called_here")
    assert "inner(inner(x))" in Path(path).read_text(encoding="utf-8").splitlines()[number - 1]
    functions = [function for _, _, function in found["0:block.inner"]]
    assert functions.index("called_here") < functions.index("micro_batch") < functions.index("train_step")
    assert functions.count("called_here") == 1


def test_lines_of_probe_and_of_calling_modules_are_left_out(framework: Harness, root: Path) -> None:
    """Frames between a module and the line that calls it are left out."""
    train(framework, {"stack_info": True, **ACTIVATIONS}, nested(framework))
    for lines in stacks_of(root).values():
        for path, _, function in lines:
            assert not is_ours(path), path
            assert not path.endswith(("nn/modules/module.py", "nn/cell.py", "numpy_framework.py")), (path, function)


@pytest.mark.needs("idioms")
def test_what_probe_has_put_around_the_optimizer_is_left_out(framework: Harness, root: Path) -> None:
    """If an update calls the model, probe's lines are further out."""
    for number, step in enumerate(framework.IDIOMS.values()):
        model = nested(framework)
        optimizer = framework.optimizer("momentum", model, lr=LR, momentum=MOMENTUM)
        with watching(framework, {"stack_info": True}, model, optimizer) as monitor:
            step(model, optimizer, framework.tensor(X))
        for lines in stacks_of(Path(str(monitor.output_directory))).values():
            assert not [path for path, _, _ in lines if is_ours(path)], number
            assert lines


def test_only_the_first_collected_step_is_told(framework: Harness, root: Path) -> None:
    """Calls of other steps, before and after, are not there."""
    model = tiny_net(framework)
    optimizer = framework.optimizer("momentum", model, lr=LR, momentum=MOMENTUM)
    loop = framework.loop(model, optimizer)

    def step_three() -> None:
        train_step(loop, framework.tensor(X))

    with watching(framework, {"stack_info": True, "start_step": 3, "step_interval": 2}, model, optimizer):
        for step in range(6):
            step_three() if step == 3 else train_step(loop, framework.tensor(X))
    found = stacks_of(root)
    assert set(found) == {"0:", "0:fc", "0:relu", "0:fc2"}
    assert all("step_three" in [function for _, _, function in lines] for lines in found.values())


def test_targets_choose_the_modules(framework: Harness, root: Path) -> None:
    """With what is inside them."""
    train(framework, {"stack_info": True, "targets": {"block": {}}}, nested(framework))
    assert set(stacks_of(root)) == {"0:block", "0:block.inner"}


def test_a_step_in_which_nothing_is_called_is_told(
    framework: Harness, root: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """The failure is logged once, and counted in each step; there is no file."""
    model = tiny_net(framework)
    optimizer = framework.optimizer("momentum", model, lr=LR, momentum=MOMENTUM)
    other = tiny_net(framework)
    with framework.TrainerMon({"stack_info": True}) as monitor:
        monitor.set_monitor(other, 1, optimizer)
        for _ in range(3):
            train_step(framework.loop(model, optimizer), framework.tensor(X))
    assert monitor.faults["stack_info: steps in which no watched module was seen to run"] == 3
    assert caplog.text.count("stack_info: no watched module was seen to run") == 1
    assert [*root.rglob("stack_info.csv")] == []


def test_a_file_that_cannot_be_written_costs_no_rows(framework: Harness) -> None:
    """It is counted in each step; what else the step has is written."""
    model = tiny_net(framework)
    optimizer = framework.optimizer("momentum", model, lr=LR, momentum=MOMENTUM)
    loop = framework.loop(model, optimizer)
    with framework.TrainerMon({"stack_info": True, **ACTIVATIONS}) as monitor:
        monitor.set_monitor(model, 1, optimizer)
        (Path(str(monitor.output_directory)) / "stack_info.csv").mkdir()
        for _ in range(2):
            train_step(loop, framework.tensor(X))
    assert sum(monitor.faults.values()) == 2
    rows = rows_of(monitor)
    assert {row.step for row in rows} == {0, 1}
    assert {row.name for row in rows} >= {"fc.output", "relu.output", "fc2.output"}


def test_every_module_that_has_activations_is_told(framework: Harness, root: Path) -> None:
    """With ``all_xy`` those beside the targets too."""
    train(framework, {"stack_info": True, "targets": {"block": {}}, "all_xy": True, **ACTIVATIONS}, nested(framework))
    assert set(stacks_of(root)) == {"0:", "0:block", "0:block.inner"}


@pytest.mark.parametrize("more", [{}, {"format": "api", "stack_info": True}])
def test_nothing_when_off(framework: Harness, root: Path, more: dict[str, Any]) -> None:
    """Neither switched off nor without CSV files is there a file."""
    train_tiny(framework, {**ACTIVATIONS, **more})
    assert [*root.rglob("stack_info.csv")] == []


def test_it_is_beside_the_rows_and_changes_none(framework: Harness) -> None:
    """The rows are those of a run without it."""
    monitor, rows = train_tiny(framework, {**ACTIVATIONS, "stack_info": True}, (1, 2))
    assert (Path(str(monitor.output_directory)) / "stack_info.csv").is_file()
    assert rows == train_tiny(framework, ACTIVATIONS, (1, 2))[1] == rows_of(monitor)
