"""Selection of modules and parameters by a configuration."""

from __future__ import annotations

import time
from typing import Any

import pytest

from probe.core.config.load import load
from probe.core.config.schema import Selector
from probe.core.instrumentation.selection import PLACES, Selection, Watched, watched


def selection(targets: dict[str, dict[str, str]] | None = None, **more: Any) -> Selection:
    """Selection by the settings."""
    settings = load({"targets": targets or {}, **more})
    return Selection(settings.targets, settings.all_xy, settings.forward_only, settings.backward_only)


def thing(full: str, stage: int = 0) -> Watched:
    return watched(stage, full, full, object())


def places(chosen: Selection, name: str, stage: int = 0) -> list[str]:
    return list(chosen.places(thing(name, stage)))


def watches(chosen: Selection, name: str, stage: int = 0) -> bool:
    return chosen.watches(thing(name, stage))


def test_without_targets_everything_is_watched() -> None:
    """An empty configuration chooses every parameter and every place of every module."""
    chosen = selection()
    assert watches(chosen, "any.weight")
    assert places(chosen, "any") == places(chosen, "") == list(PLACES)


def test_many_targets_cost_as_much_as_they_are() -> None:
    """Each module and parameter is looked up among them; only the first that name nothing get the nearest name."""
    begun = time.process_time()
    chosen = selection({f"layers.{number}": {} for number in range(20_000)})
    names = [f"layers.{number}.fc" for number in range(5_000)]
    assert all(watches(chosen, f"{name}.weight") for name in names)
    assert places(chosen, names[0]) == []
    problems = chosen.check(names)
    assert len(problems) == 20
    assert (
        "layers.5000: expected the name of a module or parameter of the model, got 'layers.5000'; did you"
        in problems[0]
    )
    assert sum("did you mean" in problem for problem in problems) == 3
    assert problems[-1].endswith("; and 14980 more")
    assert time.process_time() - begun < 5


@pytest.mark.parametrize(
    ("target", "name", "expected"),
    [
        ("fc", "fc.weight", True),
        ("fc", "fc2.weight", False),
        ("layers.1", "layers.1.mlp.weight", True),
        ("layers.1", "layers.10.mlp.weight", False),
        ("fc.weight", "fc.weight", True),
        ("fc.weight", "fc.bias", False),
        ("0:fc", "fc.weight", True),
        ("1:fc", "fc.weight", False),
        ("layers.0", "model.encoder.layers.0.w", True),
        ("layers.0.w", "model.encoder.layers.0.w", True),
        ("model.encoder", "model.encoder.layers.0.w", True),
        ("encoder", "model.encoder.layers.0.w", False),
        ("", "anything.weight", True),
    ],
)
def test_a_target_takes_the_parameters_inside_it(target: str, name: str, expected: bool) -> None:
    """A module's name, full or squashed, takes all its parameters; a name ends at a dot."""
    assert watches(selection({target: {}}), name) is expected


@pytest.mark.parametrize(
    ("target", "name", "expected"),
    [
        ("layers.1", "layers.1", True),
        ("layers.1", "layers.10", False),
        ("layers.1", "layers.1.mlp", False),
        ("layers.1", "model.layers.1", True),
        ("0:layers.1", "model.layers.1", True),
        ("1:layers.1", "model.layers.1", False),
        ("", "", True),
        ("", "fc", False),
    ],
)
def test_a_target_takes_the_module_of_that_name(target: str, name: str, expected: bool) -> None:
    """Activations are those of the named module itself, not of the modules inside it."""
    assert bool(places(selection({target: {}}), name)) is expected


def test_a_target_without_stage_takes_every_stage() -> None:
    """``fc`` is the module of that name in every model chunk, ``1:fc`` that of the second."""
    assert [bool(places(selection({"fc": {}}), "fc", stage)) for stage in (0, 1)] == [True, True]
    assert [bool(places(selection({"1:fc": {}}), "fc", stage)) for stage in (0, 1)] == [False, True]


def test_only_listed_places_with_their_selectors() -> None:
    """Of a target with places only those are watched; ``{}`` means all four, every element."""
    chosen = selection({"a": {"input": "tuple[2]:1", "output_grad": "tensor"}, "b": {}})
    assert chosen.places(thing("a")) == {"input": Selector("tuple", 2, 1), "output_grad": Selector("tensor", 1)}
    assert chosen.places(thing("b")) == dict.fromkeys(PLACES)
    assert places(chosen, "c") == []


def test_all_xy_beside_targets() -> None:
    """Listed modules keep the places listed, all others have all four."""
    chosen = selection({"a": {"input": "tensor"}}, all_xy=True)
    assert places(chosen, "a") == ["input"]
    assert places(chosen, "b") == list(PLACES)


@pytest.mark.parametrize(
    ("switches", "expected"),
    [
        ({"forward_only": True}, ["input", "output"]),
        ({"backward_only": True}, ["input_grad", "output_grad"]),
        ({"forward_only": True, "backward_only": True}, []),
    ],
)
def test_one_direction_only(switches: dict[str, bool], expected: list[str]) -> None:
    """forward_only leaves the gradients out, backward_only the values, both together everything."""
    assert places(selection(**switches), "a") == expected
    listed = {"a": {"input": "tensor", "output_grad": "tensor"}}
    assert set(places(selection(listed, **switches), "a")) == {"input", "output_grad"} & set(expected)


def test_a_target_that_named_nothing_is_told_with_the_nearest_name() -> None:
    """Each target that no module or parameter answered to makes one problem."""
    chosen = selection({"layers.0.atention": {}, "0:fc.wieght": {}, "fc": {}, "zzz": {}})
    names = ["layers.0.attention", "fc", "fc.weight"]
    for name in names:
        chosen.places(thing(name))
        chosen.watches(thing(name))
    problems = chosen.check(names)
    assert len(problems) == 3
    assert problems[0].startswith("targets.layers.0.atention: ")
    assert "did you mean 'layers.0.attention'?" in problems[0]
    assert "did you mean 'fc.weight'?" in problems[1]
    assert "did you mean" not in problems[2]


def test_a_misspelt_squashed_name_finds_the_module_too() -> None:
    """The nearest name is sought among short names as well as full ones."""
    full = "module.language_model.encoder.layers.0.attention"
    chosen = selection({"layers.0.attentoin": {}})
    chosen.places(thing(full))
    (problem,) = chosen.check([full])
    assert "did you mean 'layers.0.attention'?" in problem
