"""Checks of the course of training: modes, rates, states, leaps, and modules that fall silent."""

from __future__ import annotations

import math
from itertools import count
from math import nan
from typing import Any

import numpy as np
import pytest

from probe.core.checks import JudgedUpdate
from probe.core.checks.loss_calls import LossCall, LossGraph
from probe.core.checks.update_facts import UpdateFacts
from probe.core.sentinel.rota import PastNumbers
from tests.core.checks.updates import NAMES, Training, findings, steps


def test_evaluation_mode_left_on_is_found_at_the_third_update() -> None:
    """After ten updates in training mode."""
    training = Training()
    (finding,) = findings("root-not-trained", training.updates(20), training.updates(9, training=False))
    assert (finding.step, finding.since, finding.grade) == (22, 20, "warning")


def test_evaluations_between_updates_are_none() -> None:
    """A backward in evaluation mode now and then is silent; a run that is never in training mode is a note."""
    training = Training()
    assert not findings("root-not-trained", (training.update(training=step % 3 == 0) for step in range(60)))
    assert not findings("root-not-trained", training.updates(9, training=None))
    assert [finding.grade for finding in findings("root-not-trained", training.updates(30, training=False))] == ["note"]


def test_a_rate_of_zero_is_found_at_the_third_update() -> None:
    """All groups are 0, and were not before."""
    training = Training()
    assert steps("rate-zero", training.updates(9, rates=(1e-3, 1e-4)), training.updates(9, rates=(0.0, 0.0))) == [11]


@pytest.mark.parametrize("zeros", [(0,), (0, 1, 2, 3), (40, 41), (20, 40, 60), (98, 99)])
def test_schedules_that_touch_zero_are_none(zeros: tuple[int, ...]) -> None:
    """A warm-up from zero, restarts at zero, and a linear decay that ends there."""
    training = Training()
    rows = (training.update(rates=(0.0 if step in zeros else 1e-3,)) for step in range(100))
    assert not findings("rate-zero", rows)


def test_a_schedule_that_ends_just_before_the_run_is_none() -> None:
    """Rate zero for six updates after 234; soon after the beginning three are enough, and eight at any time."""
    training = Training()
    assert not findings("rate-zero", training.updates(234), training.updates(6, rates=(0.0,)))
    later = Training()
    assert steps("rate-zero", later.updates(1000), later.updates(20, rates=(0.0,))) == [1007]


def test_a_rate_that_is_next_to_nothing_is_found() -> None:
    """A schedule of epochs that is stepped each batch: below a millionth in a tenth of all updates, at least twenty."""
    training = Training()
    (finding,) = findings("rate-zero", (training.update(rates=(1e-3 * 0.8**step,)) for step in range(200)))
    assert (finding.step, finding.since) == (81, 62)
    later = Training()
    assert steps("rate-zero", later.updates(500), later.updates(90, rates=(1e-10,))) == [555]


@pytest.mark.parametrize("length", [200, 2000])
def test_schedules_that_end_near_zero_are_none(length: int) -> None:
    """A cosine and a decay of the fifth power to 0; a rate that is a hundred-thousandth for half of the run."""
    left = [1 - step / length for step in range(length)]
    for rates in ([0.5 - 0.5 * np.cos(np.pi * x) for x in left], [x**5 for x in left], [1.0, *[1e-5] * length]):
        training = Training()
        assert not findings("rate-zero", (training.update(rates=(float(rate),)) for rate in rates if rate > 0))


def test_a_rate_that_is_never_above_zero_is_found() -> None:
    """At the twentieth update, if no other optimizer trains; a warm-up may begin with ten."""
    training = Training(rates=(0.0,))
    (finding,) = findings("rate-zero", training.updates(60))
    assert (finding.step, finding.since) == (19, 0)
    assert not findings("rate-zero", training.updates(60, alone=False))
    assert not findings("rate-zero", training.updates(10), training.updates(60, rates=(1e-3,)))


def test_a_schedule_that_rests_at_zero_is_found_once() -> None:
    """Each cycle ends with four updates at rate zero; an end of ten is another matter."""
    training = Training()
    cycles = (training.update(rates=(0.0 if step % 30 > 25 else 1e-3,)) for step in range(180))
    assert steps("rate-zero", cycles, training.updates(10, rates=(0.0,))) == [28, 183]


def test_a_group_that_is_frozen_by_its_rate_is_none() -> None:
    """One group at 0 is no schedule; a rate that is not known is not judged."""
    training = Training()
    assert not findings("rate-zero", training.updates(9, rates=(1e-3, 1e-3)), training.updates(9, rates=(1e-3, 0.0)))
    assert not findings("rate-zero", training.updates(9), training.updates(9, rates=(nan,)))


def test_a_state_that_begins_again_is_found() -> None:
    """In one run, and in a run that goes on without its optimizer's state."""
    training = Training()
    again = (training.update(state_steps=number) for number in range(5))
    assert steps("state-restarted", training.updates(30), again) == [30]
    assert steps("state-restarted", Training(first=500).updates(5, state_steps=0)) == [500]


def test_a_restored_state_and_a_second_optimizer_are_none() -> None:
    """A resume with its state; a new optimizer beside the first; one that counts no steps."""
    assert not findings("state-restarted", Training(first=500).updates(9))
    late = Training(first=500, optimizer=1)
    assert not findings("state-restarted", (late.update(state_steps=number) for number in range(9)))
    assert not findings("state-restarted", Training(first=500).updates(9, state_steps=None))


def test_a_training_that_begins_anew_with_other_weights_is_none() -> None:
    """A search for the learning rate restores weights and state; a state that is lost alone is found at once."""
    later = Training(first=30)
    anew = [later.update(written=True, state_steps=None), later.update(state_steps=1)]
    assert not findings("state-restarted", Training().updates(30), anew)
    lost = Training(first=30)
    assert steps("state-restarted", Training().updates(30), [lost.update(state_steps=None)]) == [30]


def test_a_module_whose_gradient_vanishes_is_found_within_ten_updates() -> None:
    """Exactly zero for eight updates after twenty that were not; modules are one finding with their ancestor."""
    training = Training()
    gone = training.updates(20, norms={"layers.0": 0.0, "layers.1.weight": 0.0})
    (finding,) = findings("gradient-gone", training.updates(30), gone)
    assert (finding.step, finding.since, finding.where) == (37, 30, ("layers.0",))


def test_gradients_that_come_and_go_are_none() -> None:
    """Heads of tasks in turn, experts that are left out for a while, and a loss that is satisfied."""
    training = Training()
    assert not findings(
        "gradient-gone", (training.update(norms={"head": 0.0} if step % 25 else {}) for step in range(200))
    )
    names = (*NAMES, "experts.3.weight")
    experts = Training(names)
    assert not findings(
        "gradient-gone", experts.updates(30), experts.updates(15, norms={"experts.3": 0.0}), experts.updates(9)
    )
    names = ("trunk.weight", "head.weight", "aux_head.0.weight", "aux_head.0.bias")
    branch = Training(names)
    assert not findings("gradient-gone", branch.updates(30), branch.updates(30, norms={"aux_head": 0.0}))
    fading = (training.update(norms={"head": 0.1 * max(0.0, 1 - step / 60)}) for step in range(100))
    assert not findings("gradient-gone", fading)
    assert not findings("gradient-gone", training.updates(60, norms={"layers.0": 0.0}))


def test_a_module_whose_gradient_is_no_longer_computed_is_found() -> None:
    """The encoder runs without gradients from one step on, and still requires them."""
    training = Training()
    detached = training.updates(20, there=["head"])
    (finding,) = findings("gradient-gone", training.updates(30), detached)
    assert (finding.step, finding.since, finding.where) == (37, 30, ("embed", "layers.0", "layers.1"))
    assert "not computed" in finding.text


def test_auxiliary_heads_and_coefficients_that_come_and_go_are_none() -> None:
    """A small head at the end whose loss is left out, and a module whose part of the loss is annealed in cycles."""
    training = Training((*NAMES, "auxiliary.weight"))
    assert not findings("gradient-gone", training.updates(30), training.updates(40, there=NAMES))
    cycles = (training.update(norms={"layers.1": 0.0} if step % 60 < 30 else {}) for step in range(200))
    assert not findings("gradient-gone", cycles)


def test_inputs_that_become_zero_are_found_by_the_weights_alone() -> None:
    """Weights of one module have no gradient from a step on, and its bias has; with the bias it is another matter."""
    training, gone = Training(), {"layers.0.weight": 0.0}
    (finding,) = findings("inputs-zero", training.updates(30), training.updates(20, norms=gone))
    assert (finding.where, finding.since, finding.step) == (("layers.0",), 30, 37)
    assert not findings("inputs-zero", training.updates(30), training.updates(20, norms={"layers.0": 0.0}))
    assert not findings("inputs-zero", training.updates(40, norms=gone), training.updates(9, norms=gone))
    now_and_then = (training.update(norms={} if step % 5 else gone) for step in range(60))
    assert not findings("inputs-zero", training.updates(30), now_and_then)


def test_a_beginning_of_a_model_that_never_has_a_gradient_is_found() -> None:
    """Zeros alone from the first update on, as behind rounding; a small part, or one in the middle, may be meant."""
    training = Training()
    (finding,) = findings("gradient-gone", training.updates(40, norms={"embed": 0.0, "layers.0": 0.0}))
    assert (finding.step, finding.since, finding.where) == (19, 0, ("embed", "layers.0"))
    assert not findings("gradient-gone", Training().updates(40, norms={"embed.bias": 0.0}))


def test_gradients_that_were_never_there_are_found() -> None:
    """All of them, of losses that are not 0; of losses that are, they are a note after a hundred updates."""
    training = Training()
    (finding,) = findings("gradient-gone", training.updates(40, norms=0.0), training.updates(40))
    assert (finding.step, finding.since, finding.grade) == (19, 0, "warning")
    training = Training()
    (finding,) = findings("gradient-gone", training.updates(130, norms=0.0, loss=0.0))
    assert (finding.step, finding.grade) == (99, "note")
    training = Training()
    assert not findings("gradient-gone", training.updates(60, norms=0.0, loss=0.0), training.updates(60))


def test_a_steady_loss_that_is_0_at_once_with_all_gradients_is_found() -> None:
    """What is not finite is replaced by 0; a loss that is satisfied has faded."""
    training = Training()
    (finding,) = findings("gradient-gone", training.updates(30), training.updates(30, norms=0.0, loss=0.0))
    assert (finding.step, finding.since, finding.grade) == (49, 30, "warning")
    training = Training()
    fading = [training.update(loss=2.0 - step / 16) for step in range(31)]
    assert not findings("gradient-gone", fading, training.updates(60, norms=0.0, loss=0.0))
    training = Training()
    now_and_then = (training.update(**({"norms": 0.0, "loss": 0.0} if step % 20 else {})) for step in range(90))
    assert not findings("gradient-gone", training.updates(30), now_and_then)


@pytest.mark.parametrize(
    ("labels", "is_found"), [((5, 7, 7, 9, 9), True), ((7, 7, 7, 7, 7), False), ((5, 6, 7, 8, 9), False)]
)
def test_batches_that_come_twice_are_found_by_their_labels(labels: tuple[int, ...], is_found: bool) -> None:
    """A warning where workers share a stream, else a note; labels that are always the same may be those of pairs."""
    call = LossCall(0, "cross_entropy", "", "numbers", 10, 32, 0.0, 1.0, "other", 0)
    for streams in (True, False):
        graphs = [LossGraph((call._replace(labels=number),), streams=streams) for number in labels]
        rows = [Training().update(loss_graph=lambda graph=graph: graph) for graph in graphs]
        grades = [finding.grade for finding in findings("samples-repeated", rows)]
        assert grades == ["warning" if streams else "note"] * is_found


@pytest.mark.parametrize(
    ("first", "last", "more", "is_found"),
    [
        (22.0, -3e4, {}, True),
        (22.0, -3e4, {"alone": False}, False),  # one optimizer plays against another
        (22.0, -2e3, {}, False),  # a log likelihood
        (-0.1, -3e4, {}, False),  # a return, with either sign
        (0.0, -3e4, {}, False),  # a return that is rare at first
    ],
)
def test_a_loss_that_falls_without_bound_is_found(
    first: float, last: float, more: dict[str, Any], is_found: bool
) -> None:
    """A thousand times as far below zero as it was above."""
    training = Training(**more)
    rows = training.updates(20, loss=first), training.updates(10, loss=last)
    assert [(row.since, row.step) for row in findings("loss-unbounded", *rows)] == [(20, 22)] * is_found


def cosine(step: int, end: int) -> float:
    """Rate of a schedule that goes on after its end."""
    return 1e-3 * (0.5 + 0.5 * math.cos(math.pi * step / end))


@pytest.mark.parametrize(("end", "times"), [(10, 1), (10, 7), (60, 1), (60, 2)])
def test_a_schedule_that_goes_on_after_its_end_is_found(end: int, times: int) -> None:
    """A cosine that rises again along its curve, stepped with each batch, each epoch, or twice."""
    training = Training()
    rows = [training.update(rates=(cosine(step // times, end),)) for step in range(2 * end * times)]
    assert [finding.since for finding in findings("schedule-ahead", rows)] == [(end + 1) * times]


RATES = {
    "warm-up and one cosine": [1e-4 * n for n in range(1, 11)] + [cosine(n, 80) for n in range(81)],
    "warm restarts": [cosine(n % 40, 40) for n in range(200)],
    "straight cycles": [1e-3 * abs(n % 40 - 20) / 20 + 1e-6 for n in range(200)],
    "cosine to a tenth, in cycles": [1e-4 + 0.9 * cosine(n, 40) for n in range(200)],
    "cosine, and the rise of an average": [cosine(n, 100) for n in range(101)]
    + [4e-4 - 0.4 * cosine(n, 10) for n in range(11)],
    "plateaus": [1e-3 * 0.1 ** (n // 50) for n in range(200)],
    "straight, and anew with a warm-up": [1e-3 * (1 - n / 50) for n in range(51)] + [1e-4 * n for n in range(11)],
}


@pytest.mark.parametrize("name", RATES)
def test_schedules_with_cycles_and_new_starts_are_none(name: str) -> None:
    """As they are meant."""
    training = Training()
    assert not findings("schedule-ahead", (training.update(rates=(rate,)) for rate in RATES[name]))


def test_all_gradients_that_fall_to_zero_are_found_if_the_loss_does_not() -> None:
    """Half precision without the scaler's factor."""
    training = Training()
    (finding,) = findings("gradient-gone", training.updates(30), training.updates(20, norms=0.0))
    assert (finding.step, finding.since) == (37, 30)
    assert not findings("gradient-gone", training.updates(30), training.updates(20, norms=0.0, loss_seen=False))


def test_frozen_modules_and_heads_that_take_turns_are_none() -> None:
    """Stages that freeze what was trained, and tasks that follow each other."""
    training = Training()
    frozen = training.updates(40, there=["head"], trainable=["head"])
    assert not findings("gradient-gone", training.updates(30), frozen)
    names = (*NAMES, "second.weight")
    tasks = Training(names)
    first, second = (lambda: tasks.updates(30, there=NAMES)), (lambda: tasks.updates(30, there=[*NAMES[:6], "second"]))
    assert not findings("gradient-gone", first(), second(), first(), second())


def losses(values: list[float], training: Training) -> list[JudgedUpdate]:
    """Return updates with these losses."""
    return [training.update(loss=value) for value in values]


def series(number: int, middle: float = 2.0, noise: float = 0.05, seed: int = 1) -> list[float]:
    """Return noise around a middle."""
    return list(middle + noise * np.random.default_rng(seed).standard_normal(number))


def test_a_loss_that_leaps_and_comes_back_is_found() -> None:
    """One batch of rubbish: found as the loss comes back, with the step of the leap."""
    rows = losses([4.2, *series(60), 9.0, 2.5, *series(20)], Training())
    (finding,) = findings("loss-leap", rows)
    assert (finding.step, finding.since, finding.grade) == (62, 61, "warning")


def test_a_loss_that_diverges_is_found() -> None:
    """It leaps and goes on rising."""
    rows = losses([*series(60), *(5.0 * 1.6**step for step in range(10))], Training())
    assert steps("loss-leap", rows) == [66]


def test_a_loss_far_beyond_all_before_is_found_at_once() -> None:
    """If the gradients are as well, also where the loss is too uneven to be judged otherwise."""
    training = Training()
    rows = losses([abs(value) for value in series(60, 0.0)], training)
    assert steps("loss-leap", rows, [training.update(loss=90.0, factor=50.0)]) == [60]
    assert not steps("loss-leap", rows, [training.update(loss=90.0)])


def test_a_loss_that_becomes_immense_within_a_few_updates_and_stays_is_found() -> None:
    """The gradients leap one update before the loss is ten times what it ever was; it is found once."""
    training = Training()
    rows = [*losses(series(60), training), training.update(loss=15.0, factor=200.0)]
    assert steps("loss-leap", rows, training.updates(20, loss=90.0, factor=300.0)) == [61]


def test_healthy_losses_do_not_leap() -> None:
    """Curricula, tasks in turn, policy losses around zero, a restart below the first loss, heavy tails."""
    shift = [*series(60, 1.6), *(1.6 + 6.0 * 0.96**step for step in range(60))]
    assert not steps("loss-leap", losses(shift, Training()))
    assert not steps("loss-leap", losses([*series(60, 1.8), *series(60, 2.8)], Training()))
    assert not steps("loss-leap", losses([4.2, *series(60), *series(5, 3.5), *series(60)], Training()))
    policy = np.random.default_rng(3).standard_t(2, 2000)
    assert not steps("loss-leap", losses(list(policy), Training()))
    heads = Training()
    parts = ["embed", "layers", "head.weight"], ["embed", "layers", "head.bias"]
    rows = (heads.update(there=parts[step % 50 == 49], loss=1e4 if step % 50 == 49 else 2.0) for step in range(200))
    assert not steps("loss-leap", rows)


def test_noise_alone_never_leaps() -> None:
    """Ten thousand updates with normal noise, and with a slow trend."""
    training = Training()
    values = np.array(series(10_000)) * np.linspace(2, 1, 10_000)
    rows = losses(list(values), training)
    assert not findings("loss-leap", rows)
    assert not findings("gradient-leap", rows)


def test_a_norm_that_leaps_while_the_loss_does_not_is_found() -> None:
    """A wrong product in the backward: found as the norm comes back."""
    training = Training()
    rows = [*training.updates(60), training.update(factor=40.0), *training.updates(9)]
    (finding,) = findings("gradient-leap", rows)
    assert (finding.step, finding.since, finding.grade) == (61, 60, "warning")


def test_a_leap_names_the_last_gradient_that_has_leapt() -> None:
    """A backward that goes wrong leaves the gradients nearer to the loss as they are, and spoils all upstream."""
    training, places = Training(), ("embed", "layers.0")
    rows = [*training.updates(60), training.update(norms=dict.fromkeys(places, 40.0)), *training.updates(9)]
    (finding,) = findings("gradient-leap", rows)
    assert (finding.since, finding.where) == (60, ("layers.0.bias",))
    assert finding.text.endswith("; layers.0.bias is the last parameter whose gradient has leapt")


@pytest.mark.parametrize("norms", [40.0, {"embed": 40.0, "layers": 1.0}, {"layers.1.weight": 40.0, "head": 1.0}])
def test_a_leap_of_all_or_in_part_names_no_gradient(norms: Any) -> None:
    """A batch moves all of them, each as much as it does."""
    training = Training()
    rows = [*training.updates(60), training.update(norms=norms), *training.updates(9)]
    assert [finding.where for finding in findings("gradient-leap", rows)] == [()]


def test_a_norm_that_leaps_with_the_loss_counts_if_both_come_back() -> None:
    """A rubbish batch is found; another stage of a curriculum is not."""
    training = Training()
    rows = [*training.updates(60), training.update(factor=40.0, loss=3.5), *training.updates(9)]
    assert steps("gradient-leap", rows) == [61]
    stage = (training.update(factor=1 + 40 * 0.5**step, loss=6 * 0.97**step) for step in count())
    assert not steps("gradient-leap", rows[:60], (next(stage) for _ in range(30)))


def test_norms_of_all_sizes_do_not_leap() -> None:
    """LBFGS and policy gradients have norms over orders of magnitude."""
    training, random = Training(), np.random.default_rng(5)
    assert not findings("gradient-leap", (training.update(factor=10 ** random.normal()) for _ in range(1000)))


@pytest.mark.parametrize("loss", [2.2, 2.8])
def test_gradients_that_leap_while_the_loss_rises_are_found_at_once(loss: float) -> None:
    """Before the loss itself leaps: in that update, and again if it goes on for more than ten."""
    training = Training()
    (finding,) = findings("turning-unstable", training.updates(60), training.updates(1, factor=8.0, loss=loss))
    assert (finding.step, finding.grade) == (60, "warning")
    assert 5 < finding.evidence["norm"] / finding.evidence["median"] < 12
    other = Training()
    again = (other.update(factor=8.0 if step % 4 == 0 else 1.0, loss=loss) for step in range(24))
    assert len(findings("turning-unstable", other.updates(60), again)) == 2


@pytest.mark.parametrize(
    ("usual", "changed"),
    [
        ({}, {"factor": 8.0}),
        ({}, {"factor": 3.0, "loss": 2.4}),
        ({}, {"factor": 8.0, "loss": 6.0}),
        ({}, {"factor": 8.0, "loss": nan}),
        ({"loss": -2.0}, {"factor": 8.0, "loss": -1.7}),
        ({"backwards": 2}, {"factor": 8.0, "loss": 2.4, "backwards": 1}),
    ],
    ids=["usual loss", "small leap", "another task", "not finite", "negative", "other backwards"],
)
def test_what_is_no_rise_of_both_is_not_unstable(usual: dict[str, Any], changed: dict[str, Any]) -> None:
    """One of the two alone, a loss beyond all measure, losses that cannot be compared."""
    training = Training()
    assert not findings("turning-unstable", training.updates(60, **usual), training.updates(1, **{**usual, **changed}))


def test_uneven_losses_do_not_turn_unstable() -> None:
    """As in reinforcement learning; and nothing is judged before 24 updates."""
    training, random = Training(), np.random.default_rng(3)
    uneven = (training.update(loss=abs(random.normal())) for _ in range(60))
    assert not findings("turning-unstable", uneven, training.updates(1, factor=8.0, loss=3.0))
    early = Training()
    assert not findings("turning-unstable", early.updates(23), early.updates(1, factor=8.0, loss=2.4))


def leaping(common: float, times: float) -> list[JudgedUpdate]:
    """Forty healthy updates, one in which all gradients are larger, and that of a layer moreover, and five more."""
    training, layer = Training(), {"layers.1.weight": 0.1 * common * times}
    return [*training.updates(40), training.update(factor=common, norms=layer), *training.updates(5)]


def test_a_gradient_that_leaps_alone_is_named_in_its_step() -> None:
    """A sixteenfold one, of one layer; the norm of all gradients is as it was."""
    rows = leaping(1.0, 16.0)
    (finding,) = findings("gradient-apart", rows)
    assert (finding.step, finding.where, finding.grade) == (40, ("layers.1.weight",), "warning")
    assert 8 < finding.evidence["norm"] / finding.evidence["median"] < 32


def test_gradients_that_move_together_are_not_apart() -> None:
    """A batch that makes all of them a hundred times as large, a small leap, and gradients at rounding level."""
    assert not findings("gradient-apart", leaping(100.0, 1.0))
    assert not findings("gradient-apart", leaping(1.0, 4.0))
    training = Training()
    faint = {"layers.1.weight": 1e-9}
    rows = [*training.updates(40, norms=faint), training.update(norms={"layers.1.weight": 1e-7})]
    assert not findings("gradient-apart", rows)


def faded(times: float) -> list[JudgedUpdate]:
    """Updates in which the gradients of two layers fade to a thousandth, and leap once beyond what they were."""
    training = Training()
    rows = [*training.updates(70)]
    for norm in (*np.geomspace(0.1, 1e-4, 30), *[1e-4] * 32):
        rows.append(training.update(norms={"layers": float(norm)}))
    return [*rows, training.update(norms={"layers": 0.1 * times})]


def test_a_part_that_has_converged_may_come_back() -> None:
    """A rare reward gives a critic the gradients that it once had; a wrong number goes far beyond these."""
    assert not findings("gradient-apart", faded(1.0))
    (finding,) = findings("gradient-apart", faded(100.0))
    assert (finding.step, finding.where) == (132, ("layers.0", "layers.1"))


def test_a_gradient_that_others_join_has_no_past() -> None:
    """After other parameters have got gradients, as by unfreezing, nothing is judged for a while."""
    training = Training()
    rows = [*training.updates(40, there=NAMES[:6]), *training.updates(3)]
    assert not findings("gradient-apart", rows, [training.update(norms={NAMES[0]: 9.0})])


def test_a_model_that_goes_on_with_a_new_optimizer_is_found() -> None:
    """It has the numbers that an optimizer has left in another model, and the state begins at 0; the same model again,
    as with a new optimizer for each epoch, is none."""
    first = PastNumbers(1)
    for number in range(12):
        first.add(np.full((2, 4), float(number)))
    assert PastNumbers(2).goes_on(np.full((2, 4), 11.0))
    assert not PastNumbers(1).goes_on(np.full((2, 4), 11.0))
    assert not PastNumbers(2).goes_on(np.full((2, 4), 3.0)), "of long before"
    for goes_on in (True, False):
        updates = Training().updates(6)
        rows = [JudgedUpdate(_going_on(row, goes_on and not row.facts.step), row.gradients) for row in updates]
        assert [row.since for row in findings("state-restarted", rows)] == [0] * goes_on


def _going_on(update: JudgedUpdate, goes_on: bool) -> UpdateFacts:
    values = update.facts.values
    return update.facts._replace(values=None if values is None else values._replace(goes_on=goes_on))
