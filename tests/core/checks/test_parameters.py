"""Checks of parameters: whether they move, are those of the model, and are in an optimizer."""

from __future__ import annotations

from typing import Any

import pytest

from probe.core.checks import CHECKS, NotApplicable
from probe.core.checks.check import JudgedUpdate
from probe.core.checks.parameter_use import ParameterUse
from tests.core.checks.updates import NAMES, Training, findings, steps


def test_nothing_moves_is_found_at_the_fifth_update() -> None:
    """It is critical, found once, and names the rate and the parameters that were looked at."""
    (finding,) = findings("nothing-moves", Training(moved=False).updates(12))
    assert (finding.step, finding.since, finding.grade) == (4, 0, "critical")
    assert (finding.evidence["rate"], finding.evidence["looked"]) == (1e-3, 8)


def test_nothing_moves_with_a_part_looked_at_each_time() -> None:
    """Different parameters in turn are enough; two are not."""
    training = Training(moved=False)
    assert steps("nothing-moves", (training.update(looked=[NAMES[step % 8]]) for step in range(12))) == [4]
    assert not findings("nothing-moves", (training.update(looked=[NAMES[step % 2]]) for step in range(12)))


@pytest.mark.parametrize(
    "facts",
    [
        {"rates": (0.0,)},
        {"norms": 0.0},
        {"outcome": "skipped"},
        {"looked": False},
        {"rates": (1e-3,), "norms": 1e-14, "state_steps": None},
    ],
)
def test_updates_that_should_move_nothing_are_none(facts: dict[str, object]) -> None:
    """Rate 0, zero gradients, skipped updates, nothing looked at, and updates too small to be seen."""
    assert not findings("nothing-moves", Training(moved=False, **facts).updates(20))


def test_convergence_and_the_end_of_a_schedule_are_none() -> None:
    """After updates that moved something: LBFGS at a minimum, and a cosine that ends near zero."""
    training = Training(state_steps=None)
    assert not findings("nothing-moves", training.updates(9), training.updates(50, moved=False, norms=1e-5))
    training = Training()
    assert not findings("nothing-moves", training.updates(9), training.updates(50, moved=False, rates=(1e-9,)))


def test_a_search_that_ends_is_a_note() -> None:
    """A line search that finds nothing better moves nothing, at a gradient and a rate as before."""
    training = Training(state_steps=None, rates=(0.5,), searches=True)
    (finding,) = findings("nothing-moves", training.updates(9), training.updates(50, moved=False))
    assert (finding.step, finding.since, finding.grade) == (13, 9, "note")
    assert "may have ended its search" in finding.text
    lost = Training(searches=True)
    assert [finding.grade for finding in findings("nothing-moves", lost.updates(9, moved=False))] == ["critical"]


def test_parameters_that_never_move_are_named() -> None:
    """Half precision without a master copy: the norms of a model do not move, the rest does."""
    moving = [name for name in NAMES if not name.startswith("layers")]
    training = Training(moved=moving, parameter_dtypes=("torch.bfloat16",) * 8)
    (finding,) = findings("parameter-stuck", training.updates(20))
    assert (finding.step, finding.since, finding.where) == (4, 0, tuple(name for name in NAMES if name not in moving))
    assert "half precision" in finding.text


def test_a_lost_update_is_found_also_later() -> None:
    """In single precision it is a fact whenever it begins."""
    training = Training(state_steps=None, rates=(0.1,))
    (finding,) = findings("parameter-stuck", training.updates(30), training.updates(9, moved=NAMES[1:]))
    assert (finding.step, finding.where) == (34, ("embed.weight",))
    assert "lost" in finding.text


@pytest.mark.parametrize(
    "facts",
    [
        {"norms": {"layers.0.bias": 1e-8}},
        {"norms": {"layers.0.bias": 0.0}},
        {"rates": (1e-9,)},
        {"rates": (1e-3, 0.0), "groups": (0, 0, 0, 1, 0, 0, 0, 0)},
        {"rates": (1e-3, 0.0)},
    ],
    ids=["rounding", "zero", "warm-up", "frozen by its rate", "some group frozen"],
)
def test_parameters_that_should_not_move_are_none(facts: dict[str, object]) -> None:
    """A key's bias, a zero-initialised branch, the beginning of a warm-up, and groups whose rate is 0."""
    moving = [name for name in NAMES if name != "layers.0.bias"]
    assert not findings("parameter-stuck", Training(moved=moving, state_steps=None, **facts).updates(30))


@pytest.mark.parametrize(("factor", "expected"), [(0.1, 1), (1e-4, 0)])
def test_a_part_that_has_converged_may_stop(factor: float, expected: int) -> None:
    """Adam divides by what gradients have been: one ten-thousandth as large moves nothing, and a tenth does."""
    training = Training()
    rows = training.updates(100), training.updates(20, moved=NAMES[:-1], norms=0.1 * factor)
    assert len(findings("parameter-stuck", *rows)) == expected


def test_updates_that_move_nothing_are_not_about_a_part() -> None:
    """All parameters stand still at once, as when an optimizer has ended its search."""
    training = Training()
    assert not findings("parameter-stuck", training.updates(20), training.updates(20, moved=False))
    part = Training(searches=True)
    turns = (part.update(moved=False, looked=[NAMES[step % 2]]) for step in range(20))
    assert not findings("parameter-stuck", part.updates(20), turns)


def test_half_precision_that_moved_before_may_stop() -> None:
    """At the end of a schedule the update of a norm is below the rounding of its numbers."""
    training = Training(parameter_dtypes=("torch.float16",) * 8)
    assert not findings("parameter-stuck", training.updates(20), training.updates(20, moved=["embed"]))


def test_replaced_parameters_are_critical_at_once() -> None:
    """FSDP, resize, assign: the new ones have a gradient and are in no optimizer."""
    training = Training()
    replaced = training.updates(5, replaced=("head.weight",), strangers=("head.weight",), there=NAMES[:6])
    (finding,) = findings("parameters-replaced", training.updates(2), replaced)
    assert (finding.step, finding.where, finding.grade) == (2, ("head.weight",), "critical")
    (finding,) = findings("parameters-replaced", training.updates(5, replaced=NAMES, there=False))
    assert finding.grade == "critical"


def test_parameters_replaced_before_the_first_update_are_found_by_their_number() -> None:
    """A head made anew: the optimizer holds two of no model, and the model has two with a gradient in none."""
    names = (*NAMES[:-2], "", "")
    new = ("head.weight", "head.bias")
    training = Training(names=names, there=NAMES[:-2], strangers=new)
    (finding,) = findings("parameters-replaced", training.updates(9))
    assert (finding.step, finding.since, finding.where, finding.grade) == (2, 0, ("head",), "critical")


@pytest.mark.parametrize("facts", [{"strangers": ("head.weight",)}, {"there": True}, {"names": NAMES}])
def test_parameters_of_no_model_beside_untrained_ones_are_none(facts: dict[str, object]) -> None:
    """Another number of them, those that have a gradient, and none."""
    names = (*NAMES[:-2], "", "")
    usual = {"names": names, "there": NAMES[:-2], "strangers": ("head.weight", "head.bias")}
    assert not findings("parameters-replaced", Training(**{**usual, **facts}).updates(9))


def test_a_head_that_was_exchanged_and_added_is_a_note() -> None:
    """What the optimizer still holds of the old one does no harm."""
    (finding,) = findings("parameters-replaced", Training(replaced=("head.weight",), there=NAMES[:6]).updates(9))
    assert (finding.step, finding.grade) == (2, "note")


def test_a_broken_tie_is_found_at_once() -> None:
    """Names that were one parameter; a tie that is made later, or grows, is none."""
    tied, more = (("embed.weight", "head.weight"),), (("embed.weight", "head.weight", "extra.weight"),)
    training = Training()
    (finding,) = findings("tie-broken", training.updates(3, ties=tied), training.updates(3))
    assert (finding.step, finding.where) == (3, tied[0])
    assert not findings(
        "tie-broken", training.updates(2), training.updates(2, ties=tied), training.updates(2, ties=more)
    )


def test_a_flipped_bit_is_found_at_the_next_update() -> None:
    """Exactly one parameter differs, which nothing has written, after ten quiet updates."""
    training = Training()
    rows = [*training.updates(12), training.update(written=["layers.1.weight"]), *training.updates(5)]
    (finding,) = findings("written-between-updates", rows)
    assert (finding.step, finding.where, finding.grade) == (12, ("layers.1.weight",), "warning")


def test_what_programs_write_is_no_flipped_bit() -> None:
    """Clamping of all weights, of one again and again, of a scalar at its bound, and of too few to judge."""
    training = Training()
    quiet = list(training.updates(20))
    assert not findings("written-between-updates", quiet, training.updates(9, written=True))
    settled = list(training.updates(60))
    (left,) = findings("written-between-updates", settled, training.updates(1, written=True), training.updates(9))
    assert (left.where, left.grade) == ((), "warning"), "all of them, once: an average that was left"
    assert not findings("written-between-updates", training.updates(30, written=["head.weight"]))
    sizes = (400, 20, 400, 20, 400, 20, 400, 1)
    assert not findings("written-between-updates", quiet, training.updates(1, written=["head.bias"], sizes=sizes))
    assert not findings(
        "written-between-updates", quiet, training.updates(1, written=["embed.weight"], looked=NAMES[:2])
    )


@pytest.mark.parametrize(("elements", "number"), [([1] * 8, 1), ([-1] * 8, 0)])
def test_a_flipped_bit_is_a_change_of_one_element(elements: list[int], number: int) -> None:
    """Programs reset codes of a codebook, or clamp one weight, past the framework and now and then."""
    changed = Training(first=30).update(written=["head.weight"], elements=elements)
    assert len(findings("written-between-updates", Training().updates(30), [changed])) == number


def test_an_average_that_is_left_in_the_model_is_found() -> None:
    """All parameters are written for the first time after many updates."""
    training = Training()
    rows = [*training.updates(60), training.update(written=True, seen_write=True), *training.updates(9)]
    (finding,) = findings("written-between-updates", rows)
    assert (finding.step, finding.where, finding.grade) == (60, (), "warning")


def test_a_loaded_checkpoint_and_repeated_averaging_are_notes() -> None:
    """The optimizer's count of steps goes back with a checkpoint; averages come again and again."""
    training = Training()
    written = {"written": True, "seen_write": True}
    loaded = [*training.updates(60), training.update(**written, state_steps=40)]
    assert [finding.grade for finding in findings("written-between-updates", loaded)] == ["note"]
    again = (training.update(**written) if step % 20 == 19 else training.update() for step in range(200))
    assert [finding.grade for finding in findings("written-between-updates", again)] == ["note"]


@pytest.mark.parametrize(
    ("facts", "grade"),
    [({}, "warning"), ({"restored": True}, "note"), ({"world": 2}, "note"), ({"world": 2, "reduced": True}, "warning")],
)
def test_weights_that_programs_exchange_for_a_reason_are_a_note(facts: dict[str, Any], grade: str) -> None:
    """The best ones that are loaded again, and averages over ranks that train apart; what is repeated is found once."""
    rows = []
    for _ in range(3):
        training = Training(first=len(rows), **{name: value for name, value in facts.items() if name != "restored"})
        rows += training.updates(60)
        rows.append(training.update(written=True, seen_write=True))
        if "restored" in facts:
            values = rows[-1].facts.values
            assert values is not None
            facts_of_best = rows[-1].facts._replace(values=values._replace(restored=True))
            rows[-1] = JudgedUpdate(facts_of_best, rows[-1].gradients)
    assert [finding.grade for finding in findings("written-between-updates", rows)] == [grade]


def test_writes_by_operations_are_one_note() -> None:
    """A part that is clamped, from some update on."""
    training = Training()
    rows = [*training.updates(12), *training.updates(9, written=["head"], seen_write=["head"])]
    (finding,) = findings("written-between-updates", rows)
    assert (finding.step, finding.grade, finding.where) == (12, "note", ("head",))


def test_unfrozen_parameters_in_no_optimizer_are_named() -> None:
    """Found at the third update with a gradient, grouped by modules."""
    strangers = ("back.0.weight", "back.0.bias", "back.1.weight")
    training = Training()
    (finding,) = findings("unfrozen-not-held", training.updates(20), training.updates(9, strangers=strangers))
    assert (finding.step, finding.since, finding.where) == (22, 20, ("back.0", "back.1"))


def test_strangers_of_the_beginning_are_a_note() -> None:
    """A linear probe whose body computes gradients that no optimizer has; it is no change, and counted in one line."""
    training = Training(strangers=("body.weight", "body.bias"))
    rows = list(training.updates(20))
    assert not findings("unfrozen-not-held", rows)
    (finding,) = findings("not-held", rows)
    assert (finding.step, finding.grade) == (2, "note")
    assert finding.text == "2 of 10 parameters that have a gradient are in no optimizer: body"


@pytest.mark.parametrize(("world", "reduced", "is_found"), [(1, None, True), (2, True, True), (2, None, False)])
def test_parameters_that_ranks_may_divide_are_not_forgotten(world: int, reduced: bool | None, is_found: bool) -> None:
    """A head in no optimizer, alone or behind a wrapper; without one, another rank may update it."""
    uses = {name: ParameterUse(number, "torch.float32", 2) for number, name in enumerate((*NAMES, "tail.weight"))}
    training = Training(strangers=("tail.weight",), uses=uses, world=world, reduced=reduced)
    assert bool(findings("parameters-forgotten", training.updates(3))) is is_found


def test_parameters_of_two_optimizers_are_a_note() -> None:
    """Once for the same ones; with one optimizer there is nothing to judge."""
    training = Training(alone=False, shared=("layers.0.weight", "layers.0.bias"))
    (finding,) = findings("held-twice", training.updates(9))
    assert (finding.grade, finding.where, finding.step) == ("note", ("layers.0",), 0)
    check = CHECKS["held-twice"]()
    assert check.missing() == "no update was applied"
    assert not list(check.judge(Training().update()))
    assert isinstance(check.missing(), NotApplicable)


def test_strangers_for_a_moment_are_none() -> None:
    """Between unfreezing and a new optimizer there may be an update or two."""
    training = Training()
    rows = [*training.updates(9), *training.updates(2, strangers=("back.weight",)), *training.updates(9)]
    assert not findings("unfrozen-not-held", rows)


BLOCKS = tuple(f"layers.{block}.{part}.weight" for block in range(4) for part in ("norm", "up"))


def used_in(dtypes: dict[str, str], names: tuple[str, ...] = BLOCKS) -> list[JudgedUpdate]:
    """Updates of a training whose forward computes modules in these dtypes."""
    uses = {f"{module}.weight": ParameterUse(number, dtype, 2) for number, (module, dtype) in enumerate(dtypes.items())}
    return list(Training(names, uses=uses).updates(3))


def test_an_output_in_float32_where_others_are_in_half_precision_is_found() -> None:
    """One of several at the same place, or one of two."""
    several = {f"layers.{block}.up": "torch.bfloat16" for block in range(4)}
    (finding,) = findings("dtype-unlike", used_in(several | {"layers.2.up": "torch.float32"}))
    assert (finding.where, finding.grade, finding.step) == (("layers.2.up",), "warning", 0)
    pair = {"layers.0.up": "BFloat16", "layers.1.up": "Float32", "layers.1.norm": "Float32"}
    (finding,) = findings("dtype-unlike", used_in(pair))
    assert finding.where == ("layers.1.up",)


def test_dtypes_that_differ_for_a_reason_are_none() -> None:
    """Norms, unlike modules in one list, half of the blocks, and one in half precision."""
    usual = {f"layers.{block}.up": "torch.bfloat16" for block in range(4)}
    norms = {f"layers.{block}.norm": "torch.float32" for block in range(4)}
    assert not findings("dtype-unlike", used_in(usual | norms))
    mixed = {"net.0": "torch.bfloat16", "net.1": "torch.bfloat16", "net.2": "torch.float32"}
    names = tuple(f"{module}.weight" for module in mixed)
    assert not findings("dtype-unlike", used_in(mixed, names))
    half = usual | {"layers.0.up": "torch.float32", "layers.1.up": "torch.float32"}
    assert not findings("dtype-unlike", used_in(half))
    assert not findings("dtype-unlike", used_in(norms | {"layers.0.up": "torch.float16"}))
