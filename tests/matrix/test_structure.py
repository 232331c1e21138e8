"""The structure of a model as a file, the end of training after it, and the targets made of it."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from typer.testing import CliRunner

from probe.cli import app
from probe.core.backend.pytree import DEPTH
from probe.core.config.load import load
from probe.core.errors import TrainingStopped
from tests.matrix.harness import Harness, train_step
from tests.matrix.models import SQUARE, X, container, keywords, tiny_net, with_idle
from tests.matrix.watching import ACTIVATIONS, LR, MOMENTUM, inputs, rows_of, train, watching

NONE = "<class 'NoneType'>"


@pytest.fixture(autouse=True)
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Output directory of runs."""
    monkeypatch.setenv("MONITOR_OUTPUT_DIR", str(tmp_path / "out"))
    return tmp_path / "out"


def train_until_stopped(framework: Harness, model: Any, micro_batches: int = 1, **config: Any) -> str:
    """Train until the structure is there, which is no failure; return the exception's text."""
    optimizer = framework.optimizer("momentum", model, lr=LR, momentum=MOMENTUM)
    loop = framework.loop(model, optimizer)
    with watching(framework, {"print_struct": True, **config}, model, optimizer):
        with pytest.raises(TrainingStopped) as stopped:
            train_step(loop, *inputs(framework, micro_batches))
        assert stopped.value.code == 0
    return str(stopped.value)


def structure_of(root: Path) -> dict[str, Any]:
    """Read the written structure."""
    found: dict[str, Any] = json.loads((root / "module_struct/rank0/module_struct.json").read_text(encoding="utf-8"))
    return found


def size(framework: Harness, *shape: int) -> str:
    """A float32 tensor as the file has it."""
    return f"size={shape}, dtype={framework.DTYPES['float32']}"


def test_every_module_says_what_it_takes_and_gives(framework: Harness, root: Path) -> None:
    """Inputs as the tuple of arguments, outputs as they are, gradients where they came."""
    train_until_stopped(framework, tiny_net(framework))
    wide, narrow, one = (size(framework, 2, n) for n in (3, 2, 1))
    found = structure_of(root)
    assert set(found) == {"0:", "0:fc", "0:relu", "0:fc2"}
    assert found["0:fc"]["input"] == {"config": "tuple[1]", "0": narrow}
    assert found["0:fc"]["output"] == {"config": "tensor", "tensor": wide}
    assert found["0:fc"]["input_grad"] == {"config": "tuple[1]", "0": first_input_grad(framework, narrow)}
    assert found["0:fc"]["output_grad"] == {"config": "tuple[1]", "0": wide}
    assert found["0:fc2"]["input_grad"] == {"config": "tuple[1]", "0": wide}
    assert found["0:fc2"]["output"] == {"config": "tensor", "tensor": one}


def first_input_grad(framework: Harness, there: str) -> str:
    """The data need no gradient, and only who computes one anyway has it."""
    rows = train(framework, ACTIVATIONS, tiny_net(framework))
    return there if any(row.signal == "actv_grad" and row.name == "fc.input" for row in rows) else NONE


def test_training_stops_after_its_first_update(framework: Harness, root: Path) -> None:
    """The parameters have been updated once, by the whole gradient, and nothing else is written."""
    model = tiny_net(framework)
    before = framework.weights(model)
    train_until_stopped(framework, model, wg_distribution=True, xy_distribution=True, param_distribution=True)
    other = tiny_net(framework)
    train(framework, {"param_distribution": True, "format": "api"}, other)
    after, once = framework.weights(model), framework.weights(other)
    assert {name: value.tolist() for name, value in after.items()} == {n: v.tolist() for n, v in once.items()}
    assert any((after[name] != before[name]).any() for name in before)
    assert [path.name for path in root.rglob("*") if path.is_file()] == ["module_struct.json"]


def test_hooks_are_gone_after_the_stop(framework: Harness) -> None:
    """Model and optimizer are as they were found."""
    model = tiny_net(framework)
    optimizer = framework.optimizer("momentum", model, lr=LR, momentum=MOMENTUM)
    loop = framework.loop(model, optimizer)
    train_step(loop, framework.tensor(X))  # what a framework itself leaves behind
    before = framework.picture([model], [optimizer])
    monitor = framework.TrainerMon({"print_struct": True})
    monitor.set_monitor(model, 1, optimizer)
    with pytest.raises(TrainingStopped):
        train_step(loop, framework.tensor(X))
    monitor.stop()
    after = framework.picture([model], [optimizer])
    assert {key: after[key] for key in before} == before


def test_training_that_catches_the_stop_goes_on_once(framework: Harness) -> None:
    """The exception is raised in one step only."""
    model = tiny_net(framework)
    optimizer = framework.optimizer("momentum", model, lr=LR, momentum=MOMENTUM)
    loop = framework.loop(model, optimizer)
    with watching(framework, {"print_struct": True}, model, optimizer) as monitor:
        with pytest.raises(TrainingStopped):
            train_step(loop, framework.tensor(X))
        for _ in range(2):
            train_step(loop, framework.tensor(X))
        assert not monitor.monitoring


def test_the_stop_says_where_the_structure_is(framework: Harness, root: Path) -> None:
    """The whole path, whatever the current directory is then."""
    assert str(root / "module_struct/rank0/module_struct.json") in train_until_stopped(framework, tiny_net(framework))


def test_a_rank_that_takes_no_part_stops_in_the_same_step(framework: Harness, root: Path) -> None:
    """It writes nothing, with a warning, and training ends after its first step as it does on the others."""
    assert "module_ranks" in train_until_stopped(framework, tiny_net(framework), module_ranks=[7])
    assert not root.exists()


def test_a_folder_that_cannot_be_made_is_told_before_training(framework: Harness, root: Path) -> None:
    """Before a step is trained for nothing, with what to set; nothing stays attached."""
    root.write_text("a file")
    model = tiny_net(framework)
    optimizer = framework.optimizer("momentum", model, lr=LR, momentum=MOMENTUM)
    monitor = framework.TrainerMon({"print_struct": True})
    with pytest.raises(OSError, match="MONITOR_OUTPUT_DIR"):
        monitor.set_monitor(model, 1, optimizer)
    train_step(framework.loop(model, optimizer), framework.tensor(X))


def test_a_file_that_cannot_be_written_is_no_success(framework: Harness, root: Path) -> None:
    """Training ends all the same, since other ranks end theirs, with exit code 1 and a fault that names the file."""
    model = tiny_net(framework)
    optimizer = framework.optimizer("momentum", model, lr=LR, momentum=MOMENTUM)
    monitor = framework.TrainerMon({"print_struct": True})
    monitor.set_monitor(model, 1, optimizer)
    folder = root / "module_struct/rank0"
    folder.rmdir()
    folder.write_text("a file")
    with pytest.raises(TrainingStopped, match="could not be written") as stopped:
        train_step(framework.loop(model, optimizer), framework.tensor(X))
    monitor.stop()
    assert stopped.value.code == 1
    assert [where for where in monitor.faults if str(folder / "module_struct.json") in where]


def test_targets_may_name_what_is_not_there(framework: Harness, root: Path) -> None:
    """Targets are not checked, since a user who needs the structure does not know the names yet."""
    train_until_stopped(framework, tiny_net(framework), targets={"no.such.module": {}})
    assert "0:fc" in structure_of(root)


def test_what_does_not_run_is_there_by_name(framework: Harness, root: Path) -> None:
    """A module without a forward has an empty entry."""
    train_until_stopped(framework, with_idle(framework))
    assert structure_of(root)["0:idle"] == {}


def late(framework: Harness) -> Any:
    """A layer that is passed over in the first forward, and called twice in each later one."""
    first, second = framework.linear(SQUARE), framework.linear(SQUARE)
    forwards = []

    def forward(x: Any) -> Any:
        forwards.append(x)
        h = first(x)
        return h if len(forwards) == 1 else second(second(h))

    return framework.module(forward, first=first, second=second)


def test_what_first_runs_in_a_later_micro_batch_is_told_with_its_gradients(framework: Harness, root: Path) -> None:
    """The backward through a module's first forward, whichever micro batch that is in."""
    train_until_stopped(framework, late(framework), micro_batches=3)
    entry, square = structure_of(root)["0:second"], size(framework, 2, 2)
    assert entry["output_grad"] == {"config": "tuple[1]", "0": square}
    assert entry["input_grad"] == {"config": "tuple[1]", "0": square}


def test_a_start_step_does_not_delay_it(framework: Harness, root: Path) -> None:
    """The first step is that of the run."""
    train_until_stopped(framework, tiny_net(framework), start_step=50)
    assert structure_of(root)["0:fc"]["output"]["config"] == "tensor"


@dataclass
class Pair:
    """Two tensors."""

    left: Any
    right: Any


PACKED: dict[str, tuple[Callable[[Any, Any], Any], Callable[[Any], Any], str]] = {
    "tuple": (lambda a, b: (a, b), lambda both: both, "tuple[2]"),
    "list": (lambda a, b: [a, b], lambda both: both, "list[2]"),
    "dict": (lambda a, b: {"left": a, "right": b}, lambda both: both.values(), "dict[2]"),
    "dataclass": (Pair, lambda both: (both.left, both.right), "dict[2]"),
}


@pytest.mark.parametrize("kind", PACKED)
def test_containers_are_said_as_selectors_say_them(framework: Harness, root: Path, kind: str) -> None:
    """With their length, and the elements by their positions."""
    pack, unpack, config = PACKED[kind]
    train_until_stopped(framework, container(framework, pack, unpack))
    output, square = structure_of(root)["0:giver"]["output"], size(framework, 2, 2)
    assert (output["config"], output["0"], output["1"]) == (config, square, square)
    assert output.get("keys") == (["left", "right"] if kind == "dict" else None)
    assert structure_of(root)["0:giver"]["input"]["config"] == "tuple[2]"


def test_keyword_arguments_are_beside_the_positional_ones(framework: Harness, root: Path) -> None:
    """Under their names, since selectors count the positional ones."""
    train_until_stopped(framework, keywords(framework))
    square = size(framework, 2, 2)
    given = structure_of(root)["0:inner"]["input"]
    assert given == {"config": "tuple[1]", "0": square, "keywords": {"factor": {"config": "tensor", "tensor": square}}}


def in_lists(value: Any, levels: int) -> Any:
    """``value`` in that many lists, one in the other."""
    return in_lists([value], levels - 1) if levels else value


@pytest.mark.parametrize("levels", range(DEPTH - 2, DEPTH + 2))
def test_what_is_nested_too_deep_is_no_tensor(framework: Harness, root: Path, levels: int) -> None:
    """A value that activations do not look into has its type, and the rest of the module is written."""
    scale = framework.parameter(np.full((2, 2), 2.0))

    def take(x: Any, nested: Any, *, named: Any) -> Any:
        return in_lists(framework.multiply(x, scale), levels)

    taker = framework.module(take, scale=scale)

    def forward(x: Any) -> Any:
        given = taker(x, in_lists(x, levels), named=in_lists(x, levels))
        for _ in range(levels):
            (given,) = given
        return given

    train_until_stopped(framework, framework.module(forward, taker=taker))
    entry, square = structure_of(root)["0:taker"], size(framework, 2, 2)
    text = json.dumps(entry["input"]["1"]), json.dumps(entry["input"].get("keywords", "")), json.dumps(entry["output"])
    assert [square in each for each in text] == [levels < DEPTH, levels < DEPTH, levels <= DEPTH]


def mixed(framework: Harness) -> Any:
    """Model of a module that returns a number and a tensor, and ones with one, two and keyword tensors."""
    scale = framework.parameter(np.full((2, 2), 2.0))
    first = framework.linear(SQUARE)
    noted = framework.module(lambda x, note: (note, framework.multiply(x, scale)), scale=scale)
    nested = framework.module(lambda x: {"a": (framework.add(x, x), framework.add(x, x)), "b": 3})
    adding = framework.module(lambda x, *, other: framework.add(x, other))

    def forward(x: Any) -> Any:
        _, h = noted(first(x), 5)
        one, two = nested(h)["a"]
        return adding(one, other=two)

    return framework.module(forward, first=first, noted=noted, nested=nested, adding=adding)


@pytest.mark.parametrize("ending", ["json", "yaml"])
def test_the_targets_of_a_file_watch_exactly_what_is_in_it(
    framework: Harness, root: Path, tmp_path: Path, ending: str
) -> None:
    """A run with them has the rows of a run that watches everything, and the block is a correct configuration."""
    train_until_stopped(framework, mixed(framework))
    file = root / "module_struct/rank0/module_struct.json"
    printed = CliRunner().invoke(app, ["targets", str(file), *(["--yaml"] if ending == "yaml" else [])])
    assert printed.exit_code == 0, printed.output
    path = tmp_path / f"config.{ending}"
    path.write_text(printed.stdout, encoding="utf-8")
    assert CliRunner().invoke(app, ["config", "check", str(path)]).exit_code == 0
    targets = load(path).model_dump(mode="json", exclude_defaults=True)["targets"]
    assert targets["0:noted"]["output"] == "tuple[2]:1"
    assert targets["0:nested"]["output"] == "dict[2]:0"
    assert targets["0:adding"] == {}
    everything = train(framework, ACTIVATIONS, mixed(framework))
    assert train(framework, {**ACTIVATIONS, "targets": targets}, mixed(framework)) == everything


def test_in_dynamic_mode_the_first_step_is_the_one_switched_on(
    framework: Harness, root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An edit of the file while training runs has the structure written, and stops training after that step."""
    monkeypatch.setenv("DYNAMIC_MONITOR", "True")
    path = tmp_path / "config.json"
    path.write_text(json.dumps({"print_struct": True, "dynamic_on": False}), encoding="utf-8")
    model = tiny_net(framework)
    optimizer = framework.optimizer("momentum", model, lr=0.01, momentum=MOMENTUM)
    loop = framework.loop(model, optimizer)
    with framework.TrainerMon(path) as monitor:
        monitor.set_monitor(model, 1, optimizer)
        train_step(loop, framework.tensor(X))
        path.write_text(json.dumps({"print_struct": True, "dynamic_on": True}), encoding="utf-8")
        train_step(loop, framework.tensor(X))
        with pytest.raises(TrainingStopped):
            train_step(loop, framework.tensor(X))
        assert monitor.step == 3
    assert structure_of(root)["0:fc"]["output"]["config"] == "tensor"
    assert rows_of(monitor) == {}
