"""Checks of what updates apply: cleared, computed anew, finite, there."""

from __future__ import annotations

from functools import partial
from math import inf, nan
from typing import Any

import numpy as np
import pytest

from probe.core.checks import JudgedUpdate
from probe.core.checks.beginning import owner
from probe.core.checks.loss_calls import LossCall, LossGraph
from probe.core.checks.parameter_use import ParameterUse
from tests.core.checks.updates import NAMES, Training, findings, steps


def test_gradients_that_nothing_clears_are_found_at_the_third_update() -> None:
    """Forgotten zero_grad: found once, with the first update at which it was so."""
    training = Training()
    (finding,) = findings("stale-gradient", [training.update()], training.updates(9, again=True))
    assert (finding.step, finding.since, finding.where, finding.grade) == (3, 1, (), "warning")


@pytest.mark.parametrize(("kept", "number"), [(1.0, 1), (0.0, 0), (0.9, 0)])
def test_sums_that_a_program_adds_up_by_itself_show_what_it_keeps(kept: float, number: int) -> None:
    """All that was applied before is kept; nothing of it is; an average that forgets keeps a part."""
    training, applied = Training(), np.zeros((len(NAMES), 2))
    rows = []
    for step in range(9):
        own = np.random.default_rng(step).normal(size=len(NAMES))
        applied = np.stack([np.full(len(NAMES), 3.0), own + kept * applied[:, 1]], axis=1)
        rows.append(JudgedUpdate(training.update(own_sums=own).facts, applied))
    found = findings("stale-gradient", rows)
    assert [(finding.step, finding.since) for finding in found] == [(3, 1)] * number


def test_stale_gradients_of_a_part_are_named() -> None:
    """If half of the gradients are stale, their modules are the place."""
    training = Training()
    (finding,) = findings("stale-gradient", training.updates(5, again=["layers.0", "layers.1"]))
    assert finding.where == ("layers.0", "layers.1")


def test_a_few_stale_gradients_and_those_of_skipped_updates_are_none() -> None:
    """A head that is not cleared, two updates in a row, and skipped ones are silent."""
    training = Training()
    assert not findings("stale-gradient", training.updates(9, again=["head"]))
    assert not findings("stale-gradient", (training.update(again=step % 3 != 2) for step in range(12)))
    assert not findings("stale-gradient", training.updates(9, again=True, outcome="skipped"))


def test_gradients_that_are_cleared_too_rarely_are_found() -> None:
    """Two of three updates apply the old gradients, too: found after 18 updates, and once."""
    training = Training()
    (finding,) = findings("stale-gradient", (training.update(again=step % 3 != 0) for step in range(40)))
    assert (finding.step, finding.since) == (17, 1)
    assert "12 of the last 18" in finding.text
    assert not findings("stale-gradient", (training.update(again=step % 2 != 0) for step in range(40)))


def test_an_update_without_a_new_backward_is_found() -> None:
    """Each second update applies the old gradients: found at the second of them."""
    training = Training()
    updates = [training.update(untouched=bool(step % 2), backwards=1 - step % 2) for step in range(8)]
    again = [JudgedUpdate(update.facts, updates[step // 2 * 2].gradients) for step, update in enumerate(updates)]
    assert steps("update-without-backward", again) == [3]


def test_gradients_set_by_hand_and_one_repeated_update_are_none() -> None:
    """Evolution strategies write gradients without a backward; a step too many happens once at the end of an epoch."""
    training = Training()
    assert not findings("update-without-backward", training.updates(9, backwards=0))
    rare = (training.update(untouched=step % 7 == 6, backwards=int(step % 7 != 6)) for step in range(40))
    assert not findings("update-without-backward", rare)


def test_gradients_that_are_written_past_the_framework_are_new() -> None:
    """Gradients of master copies are filled through ``grad.data``: other numbers in objects that seem untouched."""
    assert not findings("update-without-backward", Training(untouched=True, backwards=0).updates(9))


@pytest.mark.parametrize(("facts", "number"), [({}, 1), ({"rewritten": False}, 0), ({"loss": 0.0}, 0)])
def test_gradients_that_were_cleared_to_zero_before_the_update_are_none_to_apply(
    facts: dict[str, float], number: int
) -> None:
    """All are exactly zero, and were written after the backward of a loss that is not zero."""
    training = Training(**{"norms": 0.0, "rewritten": True, "moved": False, **facts})
    assert len(findings("nothing-to-apply", training.updates(5))) == number


def test_an_optimizer_of_frozen_parameters_is_found() -> None:
    """Gradients go to parameters that no optimizer has: these are the place."""
    training = Training(there=False, moved=False, backwards=0, strangers=("norm.weight", "norm.bias"))
    (finding,) = findings("nothing-to-apply", training.updates(6))
    assert (finding.step, finding.where, finding.grade) == (2, ("norm",), "critical")


@pytest.mark.parametrize(("facts", "cause"), [({"backwards": 1}, "cleared"), ({"backwards": 0}, "no backward")])
def test_cleared_gradients_and_a_loss_without_a_graph_are_found(facts: dict[str, int], cause: str) -> None:
    """The cause is named."""
    (finding,) = findings("nothing-to-apply", Training(there=False, moved=False, **facts).updates(6))
    assert cause in finding.text


def test_an_optimizer_whose_part_is_frozen_for_a_while_is_none() -> None:
    """Beside another optimizer an idle one is healthy; so is one that moves parameters, from gradients of a closure."""
    assert not findings("nothing-to-apply", Training(there=False, moved=False, backwards=0, alone=False).updates(9))
    assert not findings("nothing-to-apply", Training(there=False, moved=True, backwards=2).updates(9))
    in_turn = Training(there=False, moved=False, backwards=0, alone=False, in_turn=True)
    assert len(findings("nothing-to-apply", in_turn.updates(9))) == 1, "each has a backward of its own"


def test_an_applied_gradient_that_is_not_finite_is_critical() -> None:
    """It is found once while it lasts; the first parameters in the order of names are the place if all are bad."""
    training = Training()
    updates = [*training.updates(5), *training.updates(3, norms=nan)]
    (finding,) = findings("gradient-not-finite", updates)
    assert (finding.step, finding.where, finding.grade) == (5, NAMES[:5], "critical")
    again = [*updates, training.update(), training.update(norms={"head": np.inf})]
    assert findings("gradient-not-finite", again)[1].where == ("head",)


@pytest.mark.parametrize("known", [True, False])
def test_the_place_of_a_bad_gradient_follows_from_the_order_of_use(known: bool) -> None:
    """The backward reaches first what the forward uses last, whatever the order of names; without it, names decide."""
    uses = {name: ParameterUse(-place, "", 2) for place, name in enumerate(NAMES)} if known else {}
    first, last = NAMES[0], NAMES[-1]
    updates = [*Training(uses=uses).updates(3), Training(uses=uses).update(norms={first: nan, last: nan})]
    (finding,) = findings("gradient-not-finite", updates)
    assert finding.where[0] == owner(first if known else last)
    assert ("in which the model names them" in finding.text) != known


def test_what_a_scaler_skips_and_absent_gradients_are_finite() -> None:
    """Inf under a scaler is not applied, and NaN stands for no gradient."""
    training = Training()
    assert not findings("gradient-not-finite", training.updates(4, norms=np.inf, outcome="skipped"))
    assert not findings("gradient-not-finite", training.updates(4, there=["head"]))


def test_a_scaler_that_skips_five_updates_in_a_row_fails() -> None:
    """After applied updates it is a warning at the third, as of three bad batches, and critical at the fifth."""
    training = Training()
    updates = [*training.updates(12), *training.updates(20, outcome="skipped")]
    few, finding = findings("scaling-fails", updates)
    assert (few.step, few.since, few.grade) == (14, 12, "warning")
    assert (finding.step, finding.since, finding.grade) == (16, 12, "critical")


def test_a_scaler_that_begins_too_large_or_tries_a_larger_scale_is_healthy() -> None:
    """The first updates are a warm-up, also of 20 in a row; later single ones are skipped; never applying is not."""
    training = Training()
    begin = [*training.updates(20, outcome="skipped"), *training.updates(20)]
    later = (training.update(outcome="skipped" if step % 9 == 0 else "applied") for step in range(200))
    assert not findings("scaling-fails", begin, later)
    assert steps("scaling-fails", training.updates(80, outcome="skipped")) != []


def test_a_loss_that_is_not_finite_is_critical_also_if_its_update_is_skipped() -> None:
    """A transient one is found; a loss that is not known is none."""
    training = Training()
    rows = [
        training.update(),
        training.update(loss=nan, outcome="skipped"),
        training.update(),
        training.update(loss=np.inf),
    ]
    assert steps("loss-not-finite", rows) == [1, 3]
    assert not findings("loss-not-finite", training.updates(3, loss=nan, loss_seen=False))


def test_clipping_before_unscaling_is_found_at_the_second_update() -> None:
    """One such update alone is none."""
    training = Training()
    assert steps("clip-before-unscale", training.updates(9, scaled=True)) == [1]
    assert not findings("clip-before-unscale", (training.update(scaled=step % 4 == 0) for step in range(20)))


def test_unreduced_gradients_are_found_at_the_second_update() -> None:
    """Without a wrapper nothing is judged, which is said so."""
    training = Training()
    assert steps("unreduced-accumulation", training.updates(9, reduced=False)) == [1]
    assert not findings("unreduced-accumulation", training.updates(9, reduced=True))
    assert not findings("unreduced-accumulation", training.updates(9))


@pytest.mark.parametrize("factor", [1.0, 2.0, 0.5, 3.0])
def test_a_loss_times_the_number_of_ranks_is_found(factor: float) -> None:
    """In the second graph; not of several micro batches, nor where a rank has a part of the classes."""
    call = LossCall(0, "cross_entropy", "", "numbers", 8, 16, 0.0, nan, "other", 0)

    def grades(call: LossCall = call, **facts: Any) -> list[str]:
        graphs = (LossGraph((call,), factor=factor) for _ in range(3))
        rows = (Training(world=2, reduced=True).update(loss_graph=partial(lambda g: g, g), **facts) for g in graphs)
        return [finding.grade for finding in findings("loss-times-ranks", rows)]

    assert grades() == ["warning"] * (factor in (2, 0.5))
    assert grades(normalises=True) == ["note"] * (factor in (2, 0.5))
    assert grades(backwards=2) == grades(call._replace(classes=32)) == []


def test_missing_gradients_are_one_note() -> None:
    """An unused pooler is named after three updates; frozen parameters are left out; so are tasks in turn."""
    training = Training(there=[name for name in NAMES if not name.startswith("head")])
    (finding,) = findings("no-gradient", training.updates(9))
    assert (finding.step, finding.where, finding.grade) == (2, ("head",), "note")
    used = ["embed", "layers.0"]
    assert not findings("no-gradient", Training(there=used, trainable=used).updates(5))
    assert not findings(
        "no-gradient", (training.update(there=["embed", "layers", f"head.{part}"]) for part in ("weight", "bias") * 3)
    )


def test_clipping_at_every_update_is_a_note() -> None:
    """100 updates in a row below a tenth, not 99."""
    training = Training()
    (finding,) = findings("constant-clip", training.updates(150, clip=0.01))
    assert (finding.step, finding.grade) == (99, "note")
    assert not findings(
        "constant-clip", (training.update(clip=1.0 if step % 100 == 99 else 0.01) for step in range(300))
    )


@pytest.mark.parametrize("norm", [0.0, 3.0, 1e200, nan, inf])
@pytest.mark.parametrize("there", [True, ["embed", "head"]])
def test_what_checks_share_is_what_numpy_derives(norm: float, there: bool | list[str]) -> None:
    """Total norm without NaN, finiteness of the gradients that are there, and those that are not zero."""
    update = Training().update(there=there, norms={"head.bias": norm})
    norms, present = update.gradients[:, 0], update.facts.gradients.there
    with np.errstate(over="ignore"):
        assert update.total == pytest.approx(np.sqrt(np.nansum(norms**2)), rel=1e-12)
    assert update.finite == np.isfinite(norms[present]).all()
    assert update.pattern == (present & (norms != 0)).tobytes()
    unread = Training().update(there=there, readable=False)
    assert (unread.norms, unread.total, unread.finite) == (None, 0.0, True)
    assert unread.pattern == present.tobytes()


DEEP = tuple(f"layers.{number}.{part}" for number in range(6) for part in ("weight", "bias"))
DEPTH = {
    "names": DEEP,
    "sizes": (400, 20) * 6,
    "uses": {name: ParameterUse(at // 2, "", 2 - at % 2) for at, name in enumerate(DEEP)},
}


@pytest.mark.parametrize(
    ("norms", "where"),
    [
        ([1e-7, 1e-6, 1e-5, 1e-3, 1e-2, 1.0], ("layers.0", "layers.1", "layers.2")),
        ([1.0, 1e-2, 1e-3, 1e-5, 1e-6, 1e-7], ()),  # that is an explosion, which leaps
        ([1e-7, 1e-2, 1e-1, 0.2, 0.3, 1.0], ()),  # an embedding of which a batch uses few rows
        ([1e-7, 1.0, 1e-7, 1.0, 1e-7, 1.0], ()),  # every other layer: an adapter whose other half begins at 0
        ([0.0, 0.0, 0.0, 1e-1, 1e-1, 1.0], ()),
    ],
)
def test_gradients_that_fall_from_layer_to_layer_from_the_beginning(norms: list[float], where: tuple[str, ...]) -> None:
    """They are found once, with the layers that hardly train; what differs in other ways is not."""
    sizes = {f"layers.{number}": norm for number, norm in enumerate(norms)}
    training = Training(names=DEEP, first=7)
    unsurveyed = training.updates(2, **{**DEPTH, "uses": {}}, norms=sizes)
    found = findings("gradient-fades", unsurveyed, training.updates(30, **DEPTH, norms=sizes))
    assert [(finding.since, finding.where) for finding in found] == [(7, where)] * bool(where)


def test_a_vector_beside_the_layers_is_none_of_them() -> None:
    """Such as the weights of several losses, whose gradients are of the losses' size."""
    rising = {f"layers.{number}": 10.0**number * 0.1 for number in range(4)} | {"layers.4": 1e3, "log_variance": 1e5}
    training = Training(names=(*DEEP, "log_variance"))
    depth = {"sizes": (*DEPTH["sizes"], 3), "uses": DEPTH["uses"] | {"log_variance": ParameterUse(9, "", 1)}}
    assert not findings("gradient-fades", training.updates(30, **depth, norms=rising))


def test_gradients_that_are_small_only_at_first_are_no_finding() -> None:
    """Branches that begin at 0 let little through at first."""
    training, fading = Training(names=DEEP), {f"layers.{number}": 10.0 ** (number - 6) for number in range(6)}
    assert not findings("gradient-fades", training.updates(5, **DEPTH, norms=fading), training.updates(9, **DEPTH))
