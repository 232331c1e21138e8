"""Targets in a real model: watched modules, their names, and the elements of inputs and outputs."""

from __future__ import annotations

import logging
import re
from collections import OrderedDict
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from probe.pytorch import TrainerMon
from tests.pytorch.runs import names, one_step, tables, watching
from tests.pytorch.toys import TinyNet, X
from tests.required import require

torch = require("torch")

ALL = {"wg_distribution": True, "xy_distribution": True, "param_distribution": True}


class Encoder(torch.nn.Module):
    """Eleven layers, so that one is called ``layers.1`` and another ``layers.10``."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = torch.nn.ModuleList(torch.nn.Linear(2, 2) for _ in range(11))
        self.final_norm = torch.nn.LayerNorm(2)

    def forward(self, x: Any) -> Any:
        for layer in self.layers:
            x = layer(x)
        return self.final_norm(x)


class Model(torch.nn.Module):
    """An encoder within a model, as large ones are."""

    def __init__(self) -> None:
        super().__init__()
        self.encoder = Encoder()
        self.output = torch.nn.Linear(2, 1)

    def forward(self, x: Any) -> Any:
        return self.output(self.encoder(x))


def watched(output_dir: Path, config: dict[str, Any], model: Any = None, steps: int = 1) -> dict[str, list[str]]:
    """The names in each file after training under ``config``."""
    model = model or Model()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with watching(ALL | config, model, optimizer):
        for _ in range(steps):
            one_step(model, optimizer)
    return {name.removesuffix("_0-0"): names(rows) for name, rows in tables(output_dir).items()}


PARAMETERS = ("grad_reduced", "grad_unreduced", "param_origin", "param_updated")


def parameters(found: dict[str, list[str]]) -> set[str]:
    """The parameters watched, which must be the same for every signal."""
    of_signal = {frozenset(found.get(signal, [])) for signal in PARAMETERS}
    assert len(of_signal) == 1
    return set(*of_signal)


FULL = {"encoder.layers.1.weight", "encoder.layers.1.bias"}
PLACES = {"actv": ["input", "output"], "actv_grad": ["output", "input"]}


@pytest.mark.parametrize("target", ["encoder.layers.1", "0:encoder.layers.1", "layers.1", "0:layers.1"])
@pytest.mark.parametrize("squash", [True, False])
def test_a_module_by_any_of_its_names(output_dir: Path, target: str, squash: bool) -> None:
    """With or without the stage, full or squashed: four places and all parameters of layer 1, never of layer 10."""
    found = watched(output_dir, {"targets": {target: {}}, "squash_name": squash})
    shown = "layers.1" if squash else "encoder.layers.1"
    assert parameters(found) == {f"{shown}.weight", f"{shown}.bias"}
    for signal, parts in PLACES.items():
        assert sorted(found[signal]) == sorted(f"{shown}.{part}" for part in parts)


@pytest.mark.parametrize("target", ["encoder.layers.1.weight", "layers.1.weight", "0:encoder.layers.1.weight"])
def test_a_single_parameter(output_dir: Path, target: str) -> None:
    """A parameter is watched alone; it has no activations."""
    found = watched(output_dir, {"targets": {target: {}}, "squash_name": False})
    assert parameters(found) == {"encoder.layers.1.weight"}
    assert not found.keys() & PLACES.keys()


def test_a_module_that_holds_modules(output_dir: Path) -> None:
    """Its own inputs and outputs, and every parameter inside."""
    found = watched(output_dir, {"targets": {"encoder": {}}, "squash_name": False})
    assert found["actv"] == ["encoder.input", "encoder.output"]
    assert parameters(found) == {f"encoder.{name}" for name, _ in Encoder().named_parameters()}


def test_squashed_names(output_dir: Path) -> None:
    """By default names begin at the last layer, embedding, final, output or norm component."""
    found = watched(output_dir, {})
    expected = {name.removeprefix("encoder.") for name, _ in Model().named_parameters()}
    assert parameters(found) == expected
    assert {"layers.10.input", "final_norm.output", "output.input", "encoder.output", ".input"} <= set(found["actv"])


def test_full_names(output_dir: Path) -> None:
    """squash_name false leaves every name as the framework gives it."""
    found = watched(output_dir, {"squash_name": False})
    assert parameters(found) == {name for name, _ in Model().named_parameters()}
    assert set(found["actv"]) == {f"{n}.{p}" for n, m in Model().named_modules() for p in PLACES["actv"] if ran(m)}


def ran(module: Any) -> bool:
    return not isinstance(module, torch.nn.ModuleList)


class Towers(torch.nn.Module):
    """Three towers whose squashed names clash."""

    def __init__(self) -> None:
        super().__init__()
        self.image = torch.nn.ModuleDict({"layers": torch.nn.ModuleList([torch.nn.Linear(2, 2)])})
        self.text = torch.nn.ModuleDict({"layers": torch.nn.ModuleList([torch.nn.Linear(2, 2)])})
        self.layers = torch.nn.ModuleList([torch.nn.Linear(2, 2)])

    def forward(self, x: Any) -> Any:
        return self.image["layers"][0](x) + self.text["layers"][0](x) + self.layers[0](x)


def test_names_that_clash_stay_full(output_dir: Path) -> None:
    """No row of one tower is lost to another; the name that is short by itself is the one that stays so."""
    found = watched(output_dir, {}, Towers())
    assert parameters(found) == {name for name, _ in Towers().named_parameters()}
    inputs = [name for name in found["actv"] if name.endswith("layers.0.input")]
    assert sorted(inputs) == ["image.layers.0.input", "layers.0.input", "text.layers.0.input"]


@pytest.mark.parametrize(
    ("config", "expected"),
    [
        ({"forward_only": True}, {"actv"}),
        ({"backward_only": True}, {"actv_grad"}),
        ({"forward_only": True, "backward_only": True}, set()),
    ],
)
@pytest.mark.parametrize("targets", [{}, {"encoder": {"input": "tensor", "output_grad": "tensor"}}])
def test_one_direction(output_dir: Path, config: dict[str, Any], expected: set[str], targets: dict[str, Any]) -> None:
    """forward_only and backward_only each leave one file; both leave neither; weights are watched all the same."""
    found = watched(output_dir, {"targets": targets, **config})
    assert found.keys() & PLACES.keys() == expected
    assert parameters(found)


def test_listed_places_only(output_dir: Path) -> None:
    """Of a target with places nothing else is written, of ``{}`` everything."""
    targets = {"encoder": {"output": "tensor"}, "output": {"input_grad": "tuple[1]:0"}, "layers.3": {}}
    found = watched(output_dir, {"targets": targets})
    assert found["actv"] == ["layers.3.input", "layers.3.output", "encoder.output"]
    assert found["actv_grad"] == ["output.input", "layers.3.output", "layers.3.input"]


def test_all_xy_beside_targets(output_dir: Path) -> None:
    """Targets keep their places, all other modules give four."""
    found = watched(output_dir, {"targets": {"encoder": {"output": "tensor"}}, "all_xy": True})
    assert "encoder.output" in found["actv"]
    assert "encoder.input" not in found["actv"]
    assert not [name for name in found["actv_grad"] if name.startswith("encoder")]
    assert {"layers.3.input", "layers.3.output", "output.output"} <= set(found["actv"])


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
def test_a_misspelt_target_is_an_error(output_dir: Path, target: str, nearest: str) -> None:
    """A target without a module or parameter is refused before training, with the nearest name; nothing stays
    behind."""
    model = Model()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    monitor = TrainerMon({"wg_distribution": True, "targets": {target: {}, "encoder": {}}})
    with pytest.raises(ValueError, match=rf"targets\.{target}.*did you mean '{nearest}") as raised:
        monitor.set_monitor(model, 1, optimizer)
    assert "targets.encoder:" not in str(raised.value)
    assert not any(module._forward_hooks or module._forward_pre_hooks for module in model.modules())
    assert not any(parameter._post_accumulate_grad_hooks for parameter in model.parameters())


# Elements of inputs and outputs.


@dataclass
class Answer:
    """Output of a module with more than a tensor."""

    first: Any
    second: Any


class Giver(torch.nn.Module):
    """Takes two tensors and gives them back in a container."""

    def __init__(self, container: Any) -> None:
        super().__init__()
        self.container = container
        self.scale = torch.nn.Parameter(torch.ones(()))

    def forward(self, left: Any, right: Any) -> Any:
        return self.container(left * self.scale, right * self.scale * 10)


class Caller(torch.nn.Module):
    """Uses what the giver gives."""

    def __init__(self, container: Any, take: Any) -> None:
        super().__init__()
        self.giver, self.take = Giver(container), take

    def forward(self, x: Any) -> Any:
        first, second = self.take(self.giver(x, x + 1))
        return first + second


CONTAINERS: dict[str, tuple[Any, Any]] = {
    "tuple": (lambda a, b: (a, b), lambda given: given),
    "list": (lambda a, b: [a, b], lambda given: given),
    "dict": (lambda a, b: OrderedDict(first=a, second=b), lambda given: given.values()),
    "dataclass": (Answer, lambda given: (given.first, given.second)),
}


def selected(output_dir: Path, container: str, places: dict[str, str]) -> dict[str, list[str]]:
    """The names in each file of a target with ``places``."""
    return watched(output_dir, {"targets": {"giver": places}}, Caller(*CONTAINERS[container]))


@pytest.mark.parametrize("container", CONTAINERS)
def test_every_element_without_a_selector(output_dir: Path, container: str) -> None:
    """``{}`` takes each tensor in whatever container, in order, values and gradients."""
    found = selected(output_dir, container, {})
    assert found["actv"] == ["giver.input_0", "giver.input_1", "giver.output_0", "giver.output_1"]
    assert {"giver.output_0", "giver.output_1"} <= set(found["actv_grad"])


@pytest.mark.parametrize(
    ("container", "selector", "part"),
    [
        ("tuple", "tuple[2]:0", "output_0"),
        ("tuple", "tuple[2]:1", "output_1"),
        ("tuple", "tuple[2]", "output_0"),
        ("list", "list[2]:1", "output_1"),
        ("dict", "dict[2]:1", "output_1"),
        ("dataclass", "dict[2]", "output_0"),
    ],
)
def test_one_element(output_dir: Path, container: str, selector: str, part: str) -> None:
    """A selector takes the element it names, of the values and of the gradients; without an index the first."""
    found = selected(output_dir, container, {"output": selector, "output_grad": selector})
    assert found["actv"] == found["actv_grad"] == [f"giver.{part}"]


def test_one_of_several_inputs(output_dir: Path) -> None:
    """Inputs are a tuple of the positional arguments, whatever their number."""
    found = selected(output_dir, "tuple", {"input": "tuple[2]:1", "input_grad": "tuple[2]:0"})
    assert found["actv"] == ["giver.input_1"]
    assert "actv_grad" not in found  # the inputs of the whole model need no gradient


def test_the_selected_values_are_the_element(output_dir: Path) -> None:
    """It is the right tensor that is measured, not only the right name."""
    selected(output_dir, "tuple", {"output": "tuple[2]:1"})
    (row,) = tables(output_dir)["actv_0-0"]
    assert float(row["norm"]) == pytest.approx(float((10 * (X + 1)).norm()))


@pytest.mark.parametrize("selector", ["tensor", "tuple[1]", "tuple[1]:0"])
def test_a_single_tensor_by_either_name(output_dir: Path, selector: str) -> None:
    """One tensor in or out is a tensor, and a tuple of one for inputs and gradients, as the documentation writes it."""
    places = {"input": selector, "input_grad": selector, "output_grad": selector}
    found = watched(output_dir, {"targets": {"fc2": places}}, TinyNet())
    assert found["actv"] == ["fc2.input"]
    assert found["actv_grad"] == ["fc2.output", "fc2.input"]


@pytest.mark.parametrize(
    ("places", "came"),
    [
        ({"output": "tuple[3]:0"}, "tensor"),
        ({"output": "list[2]:0"}, "tensor"),
        ({"input": "tuple[2]:1"}, r"tuple\[1\]"),
        ({"input": "dict[1]"}, r"tuple\[1\]"),
    ],
)
def test_a_selector_that_does_not_fit(
    output_dir: Path, caplog: pytest.LogCaptureFixture, places: dict[str, str], came: str
) -> None:
    """It is logged once, with the expected and the actual form; nothing is recorded there, all else is."""
    (place, selector), *_ = places.items()
    targets = {"fc": places, "fc2": {"output": "tensor"}}
    with caplog.at_level(logging.WARNING, logger="probe"):
        found = watched(output_dir, {"targets": targets}, TinyNet(), steps=3)
    assert found["actv"] == ["fc2.output"]
    (warning,) = (record.getMessage() for record in caplog.records)
    full = selector if ":" in selector else f"{selector}:0"
    assert f"targets.fc.{place}: expected {full}" in warning
    assert re.search(f"got {came}", warning)


def test_documented_example(output_dir: Path) -> None:
    """The target that the documentation prints, on a module of two inputs and outputs of which one is asked for."""
    places = {"input": "tuple[2]:0", "output": "tuple[2]:0", "input_grad": "tuple[2]:0", "output_grad": "tuple[2]:1"}
    found = selected(output_dir, "tuple", places)
    assert found["actv"] == ["giver.input_0", "giver.output_0"]
    assert found["actv_grad"] == ["giver.output_1"]
