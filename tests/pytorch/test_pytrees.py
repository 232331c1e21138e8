"""Containers in arguments and outputs, as torch's own registry knows them."""

from __future__ import annotations

import time
from collections import UserDict, namedtuple
from dataclasses import dataclass
from typing import Any

import pytest

from tests.pytorch.watching import read, watch
from tests.required import require

torch = require("torch")

from torch.utils import _pytree as registry  # noqa: E402


class Batch:
    """A node that a library has registered."""

    def __init__(self, x: Any, y: Any) -> None:
        self.x, self.y = x, y


class OneShot(UserDict):  # type: ignore[type-arg]
    """A mapping whose numbers depend on how often it was read."""

    reads = 0

    def __getitem__(self, key: Any) -> Any:
        self.reads += 1
        return self.data[key] * self.reads

    def __iter__(self) -> Any:
        self.reads += 1
        return iter(self.data)


@dataclass
class Output:
    x: Any
    y: Any = None


Pair = namedtuple("Pair", ["x", "y"])


class Giver(torch.nn.Module):
    """A module that packs its output."""

    def __init__(self, pack: Any) -> None:
        super().__init__()
        self.fc, self.pack = torch.nn.Linear(2, 2), pack

    def forward(self, x: Any) -> Any:
        return self.pack(self.fc(x))


class Net(torch.nn.Module):
    def __init__(self, pack: Any, unpack: Any) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.giver, self.unpack = Giver(pack), unpack

    def forward(self, x: Any) -> Any:
        return self.unpack(self.giver(x))


def train(pack: Any, unpack: Any, watched: bool) -> tuple[list[float], Any]:
    """The losses of three steps, and the monitor."""
    model = Net(pack, unpack)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    monitor = watch(model, optimizer, mv_distribution=False) if watched else None
    losses = []
    for _ in range(3):
        loss = model(torch.ones(3, 2)).square().sum()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(float(loss))
    if monitor is not None:
        monitor.stop()
    return losses, monitor


@pytest.fixture(scope="module", autouse=True)
def _registered() -> None:
    registry.register_pytree_node(
        Batch, lambda batch: ([batch.x, batch.y], None), lambda values, _: Batch(*values), serialized_type_name="Batch"
    )


@pytest.mark.parametrize("kind", [Batch, Output, Pair, lambda x, y: {"x": x, "y": y}, torch.return_types.max])
def test_registered_classes_are_read(kind: Any) -> None:
    """Nodes of torch's registry, dataclasses and named tuples have a row for each of their tensors."""
    make = (lambda y: kind((y, y * 2))) if kind is torch.return_types.max else lambda y: kind(y, y * 2)
    losses, monitor = train(make, lambda given: given["x"] if isinstance(given, dict) else _first(given), True)
    assert monitor.faults == {}
    names = {row.name for row in read(monitor.output_directory) if row.signal == "actv"}
    assert {"giver.output_0", "giver.output_1"} <= names
    assert losses == train(make, lambda given: given["x"] if isinstance(given, dict) else _first(given), False)[0]


def _first(given: Any) -> Any:
    return given.x if hasattr(given, "x") else given[0]


def test_a_mapping_that_reading_changes_is_left_alone() -> None:
    """Losses are those of the run without a monitor, and the class is counted."""
    losses, monitor = train(lambda y: OneShot(x=y), lambda given: given["x"], True)
    assert losses == train(lambda y: OneShot(x=y), lambda given: given["x"], False)[0]
    assert monitor.faults == {f"activations: {__name__}.OneShot are left alone": 1}


def test_a_list_of_a_million_numbers_costs_little() -> None:
    """A step whose module returns one takes no seconds of the processor."""
    numbers = [0] * 10**6
    begun = time.process_time()
    _, monitor = train(lambda y: [y, *numbers], lambda given: given[0], True)
    assert time.process_time() - begun < 1.5
    assert list(monitor.faults) == ["activations: elements beyond the first 4096 are left alone"]
