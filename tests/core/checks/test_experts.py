"""Checks of mixtures of experts: a router that learns nothing, and one expert that has everything."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest

from probe.core.checks import JudgedUpdate
from tests.core.checks.updates import Training, findings, steps

EXPERTS = 4
NAMES = ("embed.weight", "moe.gate.weight", *(f"moe.experts.{n}.up.weight" for n in range(EXPERTS)), "head.weight")


def updates(
    number: int, seed: int = 0, router: float = 1.0, shares: tuple[float, ...] = (1.0,) * EXPERTS, **facts: object
) -> Iterator[JudgedUpdate]:
    """Updates of a model with a layer of experts.

    Args:
        router: size of the router's gradient.
        shares: size of that of each expert.
    """
    random = np.random.default_rng(seed)
    training = Training(NAMES, seed, sizes=(400,) * len(NAMES), **facts)
    for _ in range(number):
        noise = np.exp(0.3 * random.standard_normal(len(NAMES)))
        sizes = dict(zip(NAMES, (1.0, router, *shares, 1.0) * noise, strict=True))
        yield training.update(norms=sizes)


@pytest.mark.parametrize("seed", range(4))
def test_a_router_without_a_gradient_is_found_at_the_tenth_update(seed: int) -> None:
    """One that is nothing but rounding, and one that is 0; one that is a hundredth of the experts' learns."""
    for size in (1e-7, 0.0):
        (finding,) = findings("router-untrained", updates(30, seed, size))
        assert (finding.step, finding.since, finding.where) == (9, 0, ("moe.gate.weight",))
    assert not findings("router-untrained", updates(30, seed, 0.01))


def test_a_router_that_is_frozen_or_begins_late_is_none() -> None:
    """By intention; and one that learns from its third update on, behind a branch that begins at 0."""
    others = [name for name in NAMES if "gate" not in name]
    assert not findings("router-untrained", updates(30, router=0.0, trainable=others))
    training = Training(NAMES, sizes=(400,) * len(NAMES))
    late = (training.update(norms={"moe.gate": 0.0 if step < 2 else 0.1}) for step in range(30))
    assert not findings("router-untrained", late)


@pytest.mark.parametrize("seed", range(4))
def test_an_expert_that_has_everything_is_found_after_the_first_updates(seed: int) -> None:
    """Twenty updates in a row, after ten; equal ones, and one that has two thirds, are none."""
    assert steps("router-collapse", updates(60, seed, shares=(0.1, 0.1, 6.0, 0.1))) == [29]
    (finding,) = findings("router-collapse", updates(60, seed, shares=(0.1, 0.1, 6.0, 0.1)))
    assert (finding.since, finding.where, finding.evidence["expert"]) == (10, ("moe.gate.weight",), 2)
    assert not findings("router-collapse", updates(60, seed))
    assert not findings("router-collapse", updates(60, seed, shares=(0.5, 0.5, 1.4, 0.5)))


def test_experts_that_take_turns_are_none() -> None:
    """Each batch is of another task, whose expert has all of it; so are experts of which the others are frozen."""
    training = Training(NAMES, sizes=(400,) * len(NAMES))
    turns = (
        training.update(
            norms={f"moe.experts.{n}": 1.0 if n == step % EXPERTS else 0.0 for n in range(EXPERTS)}, there=True
        )
        for step in range(80)
    )
    assert not findings("router-collapse", turns)
    one = ["embed.weight", "moe.gate.weight", "moe.experts.0.up.weight", "head.weight"]
    assert not findings("router-collapse", updates(60, shares=(1.0, 0.0, 0.0, 0.0), trainable=one))
