"""Targets: watched modules, their names, and the elements of inputs and outputs."""

from __future__ import annotations

import logging
from typing import Any

import numpy as np
import pytest

from tests.matrix.by_hand import numbers
from tests.matrix.harness import Harness, Module, train_step
from tests.matrix.models import SQUARE, X, container, tiny_net, tower
from tests.matrix.watching import LR, MOMENTUM, lines_of, names_of, rows_of, train, watching
from tests.tables import Row, Rows

ALL = {"wg_distribution": True, "xy_distribution": True, "param_distribution": True, "ops": ["norm"]}
PARAMETERS = ("grad_reduced", "grad_unreduced", "param_origin", "param_updated")
LAYERS = [f"encoder.layers.{number}" for number in range(11)]
EVERY_PARAMETER = {f"{layer}.weight" for layer in LAYERS} | {"output.weight"}


def watched(framework: Harness, config: dict[str, Any], model: Module, steps: int = 1) -> Rows:
    """The rows of a training under ``config``."""
    return train(framework, ALL | config, model, steps)


def parameters(rows: Rows) -> set[str]:
    """The parameters watched, which must be the same for every signal."""
    found = [names_of(rows, signal) for signal in PARAMETERS]
    assert all(names == found[0] for names in found)
    return found[0]


@pytest.mark.parametrize("target", ["encoder.layers.1", "0:encoder.layers.1", "layers.1", "0:layers.1", "0:1"])
@pytest.mark.parametrize("squash", [True, False], ids=["squashed", "full"])
def test_a_module_by_any_of_its_names(framework: Harness, target: str, squash: bool) -> None:
    """With or without the stage, full, squashed or as earlier tools shortened it: four places and all parameters of
    layer 1, never of layer 10."""
    rows = watched(framework, {"targets": {target: {}}, "squash_name": squash}, tower(framework))
    shown = "layers.1" if squash else "encoder.layers.1"
    assert parameters(rows) == {f"{shown}.weight"}
    for signal in ("actv", "actv_grad"):
        assert names_of(rows, signal) == {f"{shown}.input", f"{shown}.output"}


@pytest.mark.parametrize("target", ["encoder.layers.1.weight", "layers.1.weight", "0:encoder.layers.1.weight"])
def test_a_single_parameter(framework: Harness, target: str) -> None:
    """A parameter is watched alone; it has no activations."""
    rows = watched(framework, {"targets": {target: {}}, "squash_name": False}, tower(framework))
    assert parameters(rows) == {"encoder.layers.1.weight"}
    assert {row.signal for row in rows} == set(PARAMETERS)


def test_a_module_that_holds_modules(framework: Harness) -> None:
    """Its own inputs and outputs, and every parameter inside."""
    rows = watched(framework, {"targets": {"encoder": {}}, "squash_name": False}, tower(framework))
    assert names_of(rows, "actv") == {"encoder.input", "encoder.output"}
    assert parameters(rows) == EVERY_PARAMETER - {"output.weight"}


def test_squashed_names(framework: Harness) -> None:
    """By default names begin at the last layer, embedding, final, output or norm component."""
    rows = watched(framework, {}, tower(framework))
    assert parameters(rows) == {name.removeprefix("encoder.") for name in EVERY_PARAMETER}
    assert {"layers.10.input", "final_norm.output", "output.input", "encoder.output", ".input"} <= names_of(
        rows, "actv"
    )


def test_full_names(framework: Harness) -> None:
    """squash_name false leaves every name as the framework has it; a container that never runs has no row."""
    rows = watched(framework, {"squash_name": False}, tower(framework))
    assert parameters(rows) == EVERY_PARAMETER
    modules = ["", "encoder", "encoder.final_norm", "output", *LAYERS]
    assert names_of(rows, "actv") == {f"{name}.{part}" for name in modules for part in ("input", "output")}


def test_several_models_are_stages(framework: Harness) -> None:
    """Of a list of models each is a virtual pipeline stage; names carry no prefix."""
    first, second = framework.linear(SQUARE), framework.linear(2 * SQUARE)
    chunks = [framework.module(lambda x, fc=fc: fc(x), fc=fc) for fc in (first, second)]
    optimizer = framework.optimizer("momentum", *chunks, lr=LR, momentum=MOMENTUM)
    loop = framework.loop(lambda x: chunks[1](chunks[0](x)), optimizer)
    with watching(framework, ALL | {"squash_name": False}, chunks, optimizer) as monitor:
        train_step(loop, framework.tensor(X))
    rows = rows_of(monitor)
    for signal in (*PARAMETERS, "actv", "actv_grad"):
        names = [{row.name for row in rows if (row.signal, row.stage) == (signal, stage)} for stage in (0, 1)]
        expected = {"fc.weight"} if signal in PARAMETERS else {".input", ".output", "fc.input", "fc.output"}
        unknown = {".input", "fc.input"} if signal == "actv_grad" else set()  # the first inputs need no gradient
        assert names == [expected - unknown, expected]
    norms = [rows[Row("param_origin", 0, "fc.weight", stage=stage)]["norm"] for stage in (0, 1)]
    assert norms[1] == pytest.approx(2 * norms[0])


def test_a_target_of_one_stage(framework: Harness) -> None:
    """The prefix of a target is the stage that it means."""
    chunks = [tiny_net(framework) for _ in range(2)]
    optimizer = framework.optimizer("momentum", *chunks, lr=LR, momentum=MOMENTUM)
    loop = framework.loop(lambda x: framework.add(chunks[0](x), chunks[1](x)), optimizer)
    with watching(framework, ALL | {"targets": {"1:fc": {}}}, chunks, optimizer) as monitor:
        train_step(loop, framework.tensor(X))
    rows = rows_of(monitor)
    assert {row.stage for row in rows} == {1}
    assert parameters(rows) == {"fc.weight", "fc.bias"}


@pytest.mark.parametrize(
    ("config", "signals"),
    [
        ({"forward_only": True}, {"actv"}),
        ({"backward_only": True}, {"actv_grad"}),
        ({"forward_only": True, "backward_only": True}, set()),
    ],
    ids=["forward", "backward", "both"],
)
def test_one_direction(framework: Harness, config: dict[str, Any], signals: set[str]) -> None:
    """forward_only and backward_only each leave one table; both leave neither; weights are watched all the same."""
    rows = watched(framework, config, tiny_net(framework))
    assert {row.signal for row in rows} == signals | set(PARAMETERS)


def test_listed_places_only(framework: Harness) -> None:
    """Of a target with places nothing else is written; all_xy adds the other modules with all four."""
    targets = {"fc": {"output": "tensor"}, "fc2": {"input_grad": "tuple[1]:0", "output": "tensor"}}
    rows = watched(framework, {"targets": targets}, tiny_net(framework))
    assert names_of(rows, "actv") == {"fc.output", "fc2.output"}
    assert names_of(rows, "actv_grad") == {"fc2.input"}
    rows = watched(framework, {"targets": targets, "all_xy": True}, tiny_net(framework))
    others = {f"{name}.{part}" for name in ("", "relu") for part in ("input", "output")}
    assert names_of(rows, "actv") == {"fc.output", "fc2.output"} | others
    assert names_of(rows, "actv_grad") == {"fc2.input"} | others - {".input"}


@pytest.mark.parametrize(
    ("target", "nearest"),
    [
        ("encoder.layer.1", "encoder.layers.1"),
        ("layers.11", "layers.1"),
        ("output.wieght", "output.weight"),
        ("1:output", "output"),
        ("Encoder", "encoder"),
    ],
)
def test_a_misspelt_target_is_an_error(framework: Harness, target: str, nearest: str) -> None:
    """A target that names nothing is refused before training, with the nearest name; nothing stays behind."""
    model = tower(framework)
    optimizer = framework.optimizer("momentum", model, lr=LR, momentum=MOMENTUM)
    before = framework.picture([model], [optimizer])
    monitor = framework.TrainerMon(ALL | {"targets": {target: {}, "encoder": {}}})
    with pytest.raises(ValueError, match=rf"targets\.{target}.*did you mean '{nearest}") as raised:
        monitor.set_monitor(model, 1, optimizer)
    assert "targets.encoder:" not in str(raised.value)
    assert framework.picture([model], [optimizer]) == before


CONTAINERS: dict[str, tuple[Any, Any]] = {
    "tuple": (lambda a, b: (a, b), lambda given: given),
    "list": (lambda a, b: [a, b], lambda given: given),
    "dict": (lambda a, b: {"first": a, "second": b}, lambda given: given.values()),
    "nested": (lambda a, b: ({"first": a}, [None, (b, "note")]), lambda given: (given[0]["first"], given[1][1][0])),
}


@pytest.mark.parametrize("kind", ["tuple", "list", "dict"])
def test_every_tensor_of_a_container(framework: Harness, kind: str) -> None:
    """Without a selector each tensor inputs and outputs hold has its row, values and gradients."""
    rows = watched(framework, {"targets": {"giver": {}}}, container(framework, *CONTAINERS[kind]))
    names = {f"giver.{part}_{i}" for part in ("input", "output") for i in (0, 1)}
    assert names_of(rows, "actv") == names_of(rows, "actv_grad") == names
    h = X @ SQUARE.T
    for name, array in {"input_0": h, "input_1": 2 * h, "output_0": 2 * h, "output_1": 4 * h}.items():
        norm = rows[Row("actv", 0, f"giver.{name}")]["norm"]
        assert norm == pytest.approx(numbers(array)["norm"], rel=1e-5)
    for name, factor in {"input_0": 2, "input_1": 2, "output_0": 1, "output_1": 1}.items():
        norm = rows[Row("actv_grad", 0, f"giver.{name}")]["norm"]
        assert norm == pytest.approx(factor * 2.0), name


def test_nested_containers(framework: Harness) -> None:
    """Tensors are found however deep they lie; what is none keeps its place in the numbering."""
    rows = watched(framework, {"targets": {"giver": {}}}, container(framework, *CONTAINERS["nested"]))
    outputs = {name for name in names_of(rows, "actv") if "output" in name}
    assert outputs == {"giver.output_0", "giver.output_2"}


@pytest.mark.parametrize(
    ("kind", "selector", "part"),
    [
        ("tuple", "tuple[2]:0", "output_0"),
        ("tuple", "tuple[2]:1", "output_1"),
        ("tuple", "tuple[2]", "output_0"),
        ("list", "list[2]:1", "output_1"),
        ("dict", "dict[2]:1", "output_1"),
    ],
)
def test_one_element(framework: Harness, kind: str, selector: str, part: str) -> None:
    """A selector takes the element it names, of the values and of the gradients; without an index the first."""
    targets = {"giver": {"output": selector, "output_grad": selector}}
    rows = watched(framework, {"targets": targets}, container(framework, *CONTAINERS[kind]))
    assert names_of(rows, "actv") == names_of(rows, "actv_grad") == {f"giver.{part}"}
    value = rows[Row("actv", 0, f"giver.{part}")]["norm"]
    factor = 4 if part == "output_1" else 2
    assert value == pytest.approx(factor * float(np.linalg.norm(X @ SQUARE.T)), rel=1e-5)


def test_one_of_several_inputs(framework: Harness) -> None:
    """Inputs are a tuple of the positional arguments."""
    targets = {"giver": {"input": "tuple[2]:1", "input_grad": "tuple[2]:0"}}
    rows = watched(framework, {"targets": targets}, container(framework, *CONTAINERS["tuple"]))
    assert names_of(rows, "actv") == {"giver.input_1"}
    assert names_of(rows, "actv_grad") == {"giver.input_0"}


@pytest.mark.parametrize(("kind", "selector"), [("list", "tuple[2]:1"), ("tuple", "list[2]:1")])
def test_inputs_and_gradients_are_tuples_or_lists_alike(framework: Harness, kind: str, selector: str) -> None:
    """Earlier tools call positional inputs a list, and the gradients of a list a tuple; an output is what it is."""
    targets = {"giver": {"input": "list[2]:0", **dict.fromkeys(("input_grad", "output_grad", "output"), selector)}}
    rows = watched(framework, {"targets": targets}, container(framework, *CONTAINERS[kind]))
    assert names_of(rows, "actv") == {"giver.input_0"}
    assert names_of(rows, "actv_grad") == {"giver.input_1", "giver.output_1"}


@pytest.mark.parametrize("selector", ["tensor", "tuple[1]", "tuple[1]:0", "list[1]:0"])
def test_a_single_tensor_by_either_name(framework: Harness, selector: str) -> None:
    """One tensor in or out is a tensor, and a tuple of one for inputs and gradients."""
    targets = {"fc2": {"input": selector, "input_grad": selector, "output_grad": selector}}
    rows = watched(framework, {"targets": targets}, tiny_net(framework))
    assert names_of(rows, "actv") == {"fc2.input"}
    assert names_of(rows, "actv_grad") == {"fc2.input", "fc2.output"}


@pytest.mark.parametrize(
    ("place", "selector", "came"),
    [
        ("output", "tuple[3]:0", "tensor"),
        ("output", "list[2]:0", "tensor"),
        ("input", "tuple[2]:1", "tuple[1]"),
        ("input", "dict[1]:0", "tuple[1]"),
    ],
)
def test_a_selector_that_does_not_fit(
    framework: Harness, caplog: pytest.LogCaptureFixture, place: str, selector: str, came: str
) -> None:
    """A warning is logged once, with what was expected and what came; nothing is recorded there, all else is."""
    targets = {"fc": {place: selector}, "fc2": {"output": "tensor"}}
    with caplog.at_level(logging.WARNING, logger="probe"):
        rows = watched(framework, {"targets": targets}, tiny_net(framework), steps=3)
    assert names_of(rows, "actv") == {"fc2.output"}
    (warning,) = (record.getMessage() for record in caplog.records)
    assert f"targets.fc.{place}: expected {selector}, the module got {came}" in warning


def test_rows_stand_in_the_order_of_execution(framework: Harness) -> None:
    """Inputs before outputs, modules in the order in which they ran; parameters in the model's order."""
    model = tiny_net(framework)
    optimizer = framework.optimizer("momentum", model, lr=LR, momentum=MOMENTUM)
    with watching(framework, ALL, model, optimizer) as monitor:
        train_step(framework.loop(model, optimizer), framework.tensor(X))
    names = {kind: [line["name"] for line in lines] for kind, lines in lines_of(monitor).items()}
    inner = [f"{name}.{part}" for name in ("fc", "relu", "fc2") for part in ("input", "output")]
    assert names["actv_0-0"] == [".input", *inner, ".output"]
    for signal in ("grad_reduced", "param_origin", "param_updated"):
        assert names[f"{signal}_0-0"] == ["fc.weight", "fc.bias", "fc2.weight"]
    assert names["grad_unreduced_0-0"][0] == "fc2.weight"
    gradients = names["actv_grad_0-0"]
    places = [gradients.index(name) for name in ("fc2.output", "fc2.input", "relu.input")]
    assert places == sorted(places)
