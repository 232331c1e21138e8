"""Both orders of set_monitor's arguments."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from probe.core.monitor.arguments import read


class Optimizer:
    """Attributes that distinguish an optimizer from a number."""

    def step(self) -> None: ...


MODEL, OPTIMIZER = object(), Optimizer()
FULL = {
    "model": MODEL,
    "grad_acc_steps": 4,
    "optimizer": OPTIMIZER,
    "dp_group": "dp",
    "tp_group": "tp",
    "start_iteration": 7,
}


@pytest.mark.parametrize(
    "given",
    [
        ((MODEL, 4, OPTIMIZER, "dp", "tp", 7), {}),
        ((MODEL, OPTIMIZER, 4, "tp", "dp", 7), {}),
        ((MODEL, 4), {"optimizer": OPTIMIZER, "tp_group": "tp", "dp_group": "dp", "start_iteration": 7}),
        ((MODEL, OPTIMIZER), {"grad_acc_steps": 4, "dp_group": "dp", "tp_group": "tp", "start_iteration": 7}),
        ((), FULL),
    ],
    ids=["documented", "existing", "documented with keywords", "existing with keywords", "keywords"],
)
def test_every_way_to_call(given: tuple[tuple[Any, ...], dict[str, Any]]) -> None:
    """The documented order, the existing tool's (an optimizer in second place) and keywords mean the same."""
    args, kwargs = given
    assert read(*args, **kwargs) == FULL


def test_defaults() -> None:
    """One micro batch, no groups, from step 0."""
    expected = {**FULL, "grad_acc_steps": 1, "dp_group": None, "tp_group": None, "start_iteration": 0}
    assert read(MODEL, 1, OPTIMIZER) == expected
    assert read(MODEL, OPTIMIZER) == expected
    assert read(model=MODEL, optimizer=OPTIMIZER) == expected


def test_a_list_of_optimizers() -> None:
    """Several optimizers may stand wherever one may."""
    optimizers = [OPTIMIZER, Optimizer()]
    assert read(MODEL, optimizers, 4)["optimizer"] is optimizers
    assert read(MODEL, optimizers, 4)["grad_acc_steps"] == 4
    assert read(MODEL, 4, optimizers)["optimizer"] is optimizers


@pytest.mark.parametrize(
    ("name", "value"),
    [("grad_acc_steps", 0), ("grad_acc_steps", 1.5), ("grad_acc_steps", True), ("start_iteration", -1)],
)
def test_numbers_out_of_range(name: str, value: Any) -> None:
    """A count that cannot be is refused by name."""
    with pytest.raises(ValueError, match=f"{name}: expected an integer of at least ., got {value}"):
        read(**{"model": MODEL, "optimizer": OPTIMIZER, name: value})


def test_missing_and_unknown_arguments() -> None:
    """No optimizer, or an argument that does not exist, is an error that names it."""
    with pytest.raises(TypeError, match="optimizer"):
        read(MODEL, 4)
    with pytest.raises(TypeError, match=r"^set_monitor: .*'start_step'; call set_monitor\(model, grad_acc_steps"):
        read(MODEL, 4, OPTIMIZER, start_step=3)
    with pytest.raises(TypeError, match=r"^set_monitor: too many positional arguments"):
        read(MODEL, 4, OPTIMIZER, None, None, 0, 1)


@pytest.mark.parametrize("name", ["model", "optimizer"])
def test_a_class_is_no_object(name: str) -> None:
    """It is refused by name before anything is asked of it."""
    with pytest.raises(ValueError, match=f"^set_monitor: {name}: expected an object, got the class dict; make one;"):
        read(**{"model": MODEL, "optimizer": OPTIMIZER, name: dict})


def test_integers_of_other_kinds() -> None:
    """A number from a checkpoint is accepted as a number."""
    found = read(MODEL, np.int64(2), OPTIMIZER, start_iteration=np.array(7, np.int32))
    numbers = found["grad_acc_steps"], found["start_iteration"]
    assert numbers == (2, 7)
    assert {*map(type, numbers)} == {int}


@pytest.mark.parametrize("given", [{"model": []}, {"optimizer": []}, {"optimizer": ()}])
def test_an_empty_list_is_told(given: dict[str, Any]) -> None:
    """There would be nothing to watch."""
    (name,) = given
    with pytest.raises(ValueError, match=f"^set_monitor: {name}: expected one or a list"):
        read(**{"model": MODEL, "optimizer": OPTIMIZER, **given})
