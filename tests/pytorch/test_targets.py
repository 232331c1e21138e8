"""Targets in a real model: watched modules, their names, and the elements of inputs and outputs."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.pytorch.runs import names, one_step, tables, watching
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


PLACES = {"actv": ["input", "output"], "actv_grad": ["output", "input"]}


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
    "dataclass": (Answer, lambda given: (given.first, given.second)),
}


def selected(output_dir: Path, container: str, places: dict[str, str]) -> dict[str, list[str]]:
    """The names in each file of a target with ``places``."""
    return watched(output_dir, {"targets": {"giver": places}}, Caller(*CONTAINERS[container]))


def test_elements_of_a_dataclass(output_dir: Path) -> None:
    """Each tensor of its fields in their order; a selector takes one as of a mapping."""
    found = selected(output_dir, "dataclass", {})
    assert found["actv"] == ["giver.input_0", "giver.input_1", "giver.output_0", "giver.output_1"]
    assert {"giver.output_0", "giver.output_1"} <= set(found["actv_grad"])


def test_one_element_of_a_dataclass(output_dir: Path) -> None:
    """A selector without an index takes the first, of the values and of the gradients."""
    found = selected(output_dir, "dataclass", {"output": "dict[2]", "output_grad": "dict[2]"})
    assert found["actv"] == found["actv_grad"] == ["giver.output_0"]


def test_documented_example(output_dir: Path) -> None:
    """The target that the documentation prints, on a module of two inputs and outputs of which one is asked for."""
    places = {"input": "tuple[2]:0", "output": "tuple[2]:0", "input_grad": "tuple[2]:0", "output_grad": "tuple[2]:1"}
    found = selected(output_dir, "tuple", places)
    assert found["actv"] == ["giver.input_0", "giver.output_0"]
    assert found["actv_grad"] == ["giver.output_1"]
