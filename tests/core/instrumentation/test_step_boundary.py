"""Counts of a run: micro batches by forwards and backwards, and training steps by updates."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

import probe
from probe.core.instrumentation.clock import Clock
from probe.core.instrumentation.step_boundary import StepBoundary
from tests.matrix.numpy_framework import TENSORS


def micro_steps(events: str) -> list[int]:
    """The micro step after each event: ``F`` a forward of the whole model, ``f`` one of a module, ``b`` a gradient of a
    new backward, ``.`` another gradient of the same one."""
    clock, backward, seen = Clock(), 0, []
    for event in events:
        if event in "Ff":
            clock.forward_began(whole=event == "F")
        else:
            backward += event == "b"
            clock.backward_began(backward)
        seen.append(clock.micro_step)
    return seen


@pytest.mark.parametrize(
    ("events", "expected"),
    [
        ("Fffb..Fffb..Fff", [0, 0, 0, 0, 0, 0, 1, 1, 1, 1, 1, 1, 2, 2, 2]),
        ("FFb.Fb", [0, 0, 0, 0, 1, 1]),  # two forwards in one loss
        ("FbbFb", [0, 0, 0, 1, 1]),  # two losses of one forward
        ("fffb.ffb", [0, 0, 0, 0, 0, 1, 1, 1]),  # the model's own forward is never called
        ("ffbbfb", [0, 0, 0, 0, 1, 1]),
        ("b..b..b", [0, 0, 0, 1, 1, 1, 2]),  # no forward is seen at all
        ("FfbfFb", [0, 0, 0, 0, 1, 1]),  # a part runs again, as when it is recomputed
    ],
)
def test_micro_batches(events: str, expected: list[int]) -> None:
    """A forward after a backward begins a micro batch, whatever else happens in between."""
    assert micro_steps(events) == expected


@pytest.mark.parametrize(
    ("events", "expected"),
    [
        ("00b00b1b2", [0, 1, 0, 2, 1, 2]),  # one forward ahead, as in a first stage of two
        ("0b00b10b2", [0, 0, 1, 1, 2, 2]),
        ("0011b0b1", [0, 1, 0, 1, 0, 1]),  # two chunks
    ],
)
def test_micro_batches_of_a_pipeline(events: str, expected: list[int]) -> None:
    """Every forward of a chunk (its digit) is another micro batch; a backward (``b`` and the number of the micro batch
    whose outputs it comes to) belongs to that one, however many have gone forward since."""
    clock, seen, letters = Clock(), [], iter(events)
    for event in letters:
        if event == "b":
            clock.backward_began(len(seen))
            clock.backward_reached(int(next(letters)), len(seen))
            seen.append(clock.backward_step(len(seen)))
        else:
            clock.forward_began(whole=True, pipeline=int(event))
            clock.forward_began(whole=False)
            assert clock.backward_step(-1) == clock.micro_step
            seen.append(clock.micro_step)
    assert seen == expected


def test_a_step_begins_at_micro_step_zero() -> None:
    """Another step forgets how far the last one came."""
    clock = Clock()
    for number in range(3):
        clock.forward_began(whole=True)
        clock.backward_began(number)
    clock.begin(7, True)
    clock.forward_began(whole=True)
    assert (clock.step, clock.sampled, clock.micro_step) == (7, True, 0)


class Optimizer:
    """Something with an identity."""


def steps(updates: str) -> list[int]:
    """The number of the step that each update belongs to; optimizers are letters, all that occur anywhere are known."""
    optimizers = {letter: Optimizer() for letter in "ab"}
    boundary, step, numbers = StepBoundary(TENSORS, list(optimizers.values()), lambda: None), 0, []
    for letter in updates:
        if boundary.ends_by(optimizers[letter]):
            boundary.updated.clear()
            step += 1
        numbers.append(step)
        if boundary.take(optimizers[letter]):
            boundary.updated.clear()
            step += 1
    return numbers


@pytest.mark.parametrize(
    ("updates", "expected"),
    [
        ("ababab", [0, 0, 1, 1, 2, 2]),
        ("bababa", [0, 0, 1, 1, 2, 2]),
        ("aaaa", [0, 1, 2, 3]),  # the other rests
        ("aaababab", [0, 1, 2, 3, 4, 4, 5, 5]),  # the other joins
        ("ababaaa", [0, 0, 1, 1, 2, 3, 4]),  # the other leaves
    ],
)
def test_updates_of_several_optimizers_make_steps(updates: str, expected: list[int]) -> None:
    """A step is an update of each optimizer that takes part, and who does is learned as it changes."""
    assert steps(updates) == expected


def test_nobody_sets_an_attribute_of_a_run() -> None:
    """A run changes by its own methods alone: those that hold one assign nothing to it, and fill none of its lists."""
    wrong = []
    for path in Path(probe.__file__).parent.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Attribute | ast.Subscript) and isinstance(node.ctx, ast.Store):
                owner = ast.unparse(node.value).split("[")[0]
                if owner.split(".")[-1] in ("run", "_run") or owner.split(".")[-2:-1] in (["run"], ["_run"]):
                    wrong.append((path.name, ast.unparse(node)))
    assert [each for each in wrong if ".clock." not in each[1]] == []


def test_an_optimizer_that_searches_is_known_by_its_evaluations() -> None:
    """From three in one update on, of that optimizer alone; one that climbs first evaluates twice, and moves."""
    boundary, line_search, other = StepBoundary(TENSORS, [], lambda: None), object(), object()

    def include(optimizer: object, evaluations: int) -> bool:
        for _ in range(evaluations - 1):
            boundary.evaluated()
        return boundary.searches(optimizer)

    assert [include(line_search, number) for number in (1, 2, 3, 1)] == [False, False, True, True]
    assert [include(other, number) for number in (1, 2, 1)] == [False] * 3
