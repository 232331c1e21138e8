"""Numbers that are logged somewhere in the loop: each is recorded for the step that it is about."""

from __future__ import annotations

import math
from typing import Any

import pytest

from probe.core.run_state.rules import RunStep
from tests.matrix.harness import Harness, train_step
from tests.matrix.models import X
from tests.matrix.test_run_numbers import Training

STEPS = 8
EVERY = pytest.mark.parametrize("interval", [1, 3])
"""Whether steps that are not sampled lie between the others."""


def training_of(framework: Harness, interval: int, **config: Any) -> Training:
    return Training(framework, xy_distribution=True, all_xy=True, step_interval=interval, **config).begin()


def named(found: dict[tuple[int, str], float], name: str) -> dict[int, float]:
    """The values of one number by step."""
    return {step: value for (step, number), value in found.items() if number == name}


def recorded(training: Training, name: str) -> dict[int, float]:
    return named(training.end(), name)


@EVERY
def test_numbers_logged_after_the_update_are_of_the_step_that_ended(framework: Harness, interval: int) -> None:
    """In every step, every other one, or late for the first time; an evaluation in between changes nothing."""
    training = training_of(framework, interval)
    for step in range(STEPS):
        train_step(training.loop, framework.tensor(X))
        training.monitor.log(loss=float(step))
        if step % 2:
            training.monitor.log(odd=float(step))
        if step == 4:
            framework.evaluate(training.model, framework.tensor(X))
            training.monitor.log(val_loss=float(step))
    found = training.end()
    assert named(found, "loss") == {step: float(step) for step in range(STEPS)}
    assert named(found, "odd") == {step: float(step) for step in (1, 3, 5, 7)}
    assert named(found, "val_loss") == {4: 4.0}


@EVERY
@pytest.mark.parametrize("every", [1, 2])
def test_numbers_logged_between_forward_and_update_are_of_the_step_in_progress(
    framework: Harness, interval: int, every: int
) -> None:
    """In every step or in every other one, from the first on."""
    training = training_of(framework, interval)
    for step in range(STEPS):
        training.loop.micro_batch(framework.tensor(X))
        if step % every == 0:
            training.monitor.log(loss=float(step))
        training.loop.update()
    assert recorded(training, "loss") == {step: float(step) for step in range(0, STEPS, every)}


def test_numbers_logged_first_in_a_later_step_before_its_update_are_of_that_step(framework: Harness) -> None:
    """A forward has begun: so the number is not of the step that ended."""
    training = training_of(framework, 1)
    for step in range(STEPS):
        training.loop.micro_batch(framework.tensor(X))
        if step % 3 == 2:
            training.monitor.log(loss=float(step))
        training.loop.update()
    assert recorded(training, "loss") == {2: 2.0, 5: 5.0}


def test_the_last_of_several_micro_batches_is_logged_after_the_update(framework: Harness) -> None:
    """Each of them is logged, and the last one counts, although only it comes after the update."""
    training = training_of(framework, 1)
    for number in range(3 * STEPS):
        training.loop.micro_batch(framework.tensor(X))
        if number % 3 == 2:
            training.loop.update()
        training.monitor.log(loss=float(number))
    assert recorded(training, "loss") == {step: 3.0 * step + 2 for step in range(STEPS)}


def test_numbers_logged_before_the_first_forward_are_of_the_step_that_begins(framework: Harness) -> None:
    """The size of a batch is known where a step begins."""
    training = training_of(framework, 1)
    for step in range(STEPS):
        training.monitor.log(batch_size=step + 1)
        train_step(training.loop, framework.tensor(X))
        training.monitor.log(loss=float(step))
    assert recorded(training, "batch_size") == {step: step + 1.0 for step in range(STEPS)}


@EVERY
@pytest.mark.parametrize("broken", [0, 5])
def test_rules_judge_numbers_with_the_step_that_ended(framework: Harness, interval: int, broken: int) -> None:
    """A loss that is NaN and logged after the update is found in its own step; listeners get every step once."""
    training = training_of(framework, interval, run={"enable": True})
    seen: list[RunStep] = []
    found: list[tuple[str, int]] = []
    training.monitor.on_run_step(seen.append)
    numbers = training.monitor._attachment.listening_numbers()  # type: ignore[union-attr]
    numbers.on_findings(lambda findings: found.extend((f.name, f.step) for f in findings))
    for step in range(STEPS):
        train_step(training.loop, framework.tensor(X))
        training.monitor.log(loss=math.nan if step == broken else float(step))
    training.end()
    assert found[0] == ("loss", broken)
    assert [step.step for step in seen] == [*range(STEPS)]
    assert [math.isnan(step.values["loss"]) for step in seen] == [step == broken for step in range(STEPS)]


def test_the_learning_rate_of_an_update_is_not_replaced_by_that_of_the_next(framework: Harness) -> None:
    """A scheduler has changed what is logged after the update."""
    training = training_of(framework, 1, run={"enable": True})
    for _ in range(3):
        train_step(training.loop, framework.tensor(X))
        training.monitor.log(learning_rate=7.0)
    assert 7.0 not in recorded(training, "learning_rate").values()
