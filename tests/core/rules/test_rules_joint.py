"""Rows of a step judged together: planted leaps among rows that rise and fall together with the batch."""

from __future__ import annotations

import numpy as np
import pytest

from probe.core.config.load import load
from probe.core.config.schema import RULE_ARGS
from probe.core.records import Batch, Key, Update
from probe.core.robust import common_movement
from probe.core.rules import factory
from probe.core.rules.evaluate import find
from probe.core.rules.tails import discoveries, limits

ROWS, LEAP = 40, 50
"""Rows of the model, and the step of the leap."""
OFTEN = {"warnings_per_10000_steps": 50.0}
"""Rate at which limits are small, whatever the tails are."""
NAMES = tuple(f"layers.{n}.weight" for n in range(ROWS))


def rule_of(**changes):
    """The rule with its defaults."""
    return factory("AnomalySpike")(RULE_ARGS["AnomalySpike"](**changes), 0, ("norm",))


def healthy(step, rows=ROWS, swing=0.7):
    """Norms that swing twofold all together, and by a tenth each by itself."""
    random = np.random.default_rng([step, 3])
    return np.exp(np.arange(rows) % 5 + random.normal(0, swing) + random.normal(0, 0.1, rows))


def batch_of(step, norms, names=NAMES, signal="grad_reduced", rate=1e-3, shape=(16, 16), **options):
    """Batch of nothing but norms, in the order of execution unless ``order`` has another."""
    rows = len(norms)
    return Batch(
        signal=signal,
        step=step,
        keys=tuple(Key(name) for name in names[:rows]),
        shapes=(shape,) * rows,
        dtypes=("torch.float32",) * rows,
        order=np.asarray(options.get("order", np.arange(rows))),
        columns={"sumsq": np.asarray(norms, dtype=np.float64) ** 2},
        update=Update(rate=rate),
    )


def found_in(rule, steps, plant=lambda _, norms: norms, rows=ROWS, swing=0.7, **options):
    """Step and row of each finding; ``plant`` puts a fault into the norms of a step."""
    return [
        (finding.step, finding.key.name)
        for step in steps
        for finding in find([rule], [batch_of(step, plant(step, healthy(step, rows, swing)), **options)])
    ]


def leap_of(rows, factor, at=(LEAP,)):
    """Fault that multiplies some rows at some steps."""

    def plant(step, norms):
        if step in at:
            norms[rows] *= factor
        return norms

    return plant


def test_a_row_that_leaps_alone_is_found_far_below_the_ratio():
    """Sixtyfold, where gradients must differ 900-fold without the others; and nothing else in 200 steps."""
    plant = leap_of([7], 60.0)
    assert found_in(rule_of(), range(200), plant) == [(LEAP, NAMES[7])]
    assert found_in(rule_of(joint=False), range(200), plant) == []


def test_half_of_the_rows_that_leap_are_named_and_no_other():
    """Every other row: the first of them, by execution."""
    found = found_in(rule_of(**OFTEN), range(80), leap_of(slice(1, None, 2), 200.0), swing=0.1)
    assert found == [(LEAP, NAMES[n]) for n in (1, 3, 5)]


def test_a_sound_row_is_not_accused_when_most_rows_have_moved():
    """Rows that stay leave the others: the rows that have moved against their own past are named."""
    moved = np.arange(ROWS) % 8 != 3
    found = found_in(rule_of(**OFTEN), range(80), leap_of(moved, 200.0), swing=0.1)
    assert found == [(LEAP, NAMES[n]) for n in (0, 1, 2)]


def test_a_movement_of_all_rows_accuses_none():
    """Batch, loss and rate move all rows: hundredfold in one step, and for good."""
    assert found_in(rule_of(), range(80), leap_of(slice(None), 100.0)) == []
    assert found_in(rule_of(), range(120), leap_of(slice(None), 100.0, range(LEAP, 120))) == []


def test_a_common_drift_of_the_batches_is_healthy():
    """All rows rise a hundredfold within 300 steps while they swing."""
    assert found_in(rule_of(), range(300), lambda step, norms: norms * np.exp(step / 65)) == []


def test_three_rows_are_judged_by_their_own_past_alone():
    """Nothing is taken out: the swing of the batch is a row's own, so that sixtyfold is nothing; 5,000-fold is."""
    assert found_in(rule_of(), range(80), leap_of([1], 60.0), rows=3) == []
    assert found_in(rule_of(), range(80), leap_of([1], 5000.0), rows=3) == [(LEAP, NAMES[1])]


@pytest.mark.parametrize(("signal", "factor"), [("actv", 15.0), ("actv_grad", 60.0)])
def test_a_step_along_the_order_names_its_first_rows(signal, factor):
    """From the 26th row on all are larger: the rows after it have it from there."""
    found = found_in(rule_of(**OFTEN), range(80), leap_of(slice(25, None), factor), swing=0.1, signal=signal)
    assert found == [(LEAP, NAMES[n]) for n in (25, 26, 27)]


def test_a_row_that_stays_is_not_named_with_the_side_that_moves():
    """The input of the model comes before the layer whose input is wrong, and is what it was."""
    found = found_in(rule_of(**OFTEN), range(80), leap_of(slice(1, 15), 15.0), swing=0.1, signal="actv")
    assert found == [(LEAP, NAMES[n]) for n in (1, 2, 3)]


def test_the_order_of_execution_decides_which_rows_are_first():
    """Gradients of activations come in the order of the backward, the last layer first."""
    order = np.arange(ROWS)[::-1]
    found = found_in(rule_of(**OFTEN), range(80), leap_of(slice(0, 25), 60.0), signal="actv_grad", order=order)
    assert found == [(LEAP, NAMES[n]) for n in (24, 23, 22)]


@pytest.mark.parametrize(("every", "expected"), [(2, []), (5, [(LEAP, NAMES[7])])])
def test_rows_that_come_and_go_need_most_of_the_window(every, expected):
    """An expert without a token has a zero, which is no number: every second time is too often, every fifth is not."""

    def plant(step, norms):
        norms[7] *= 60.0 if step == LEAP else float(step % every != 1)
        return norms

    assert found_in(rule_of(), range(80), plant) == expected


def test_rows_that_are_rare_are_listed_inside_an_episode_and_begin_none():
    """An activation twice as large is nothing by itself; beside one that is ten times as large, it is listed."""

    def plant(*factors):
        def planted(step, norms):
            if step == LEAP:
                norms[[3, 7, 20]] *= factors
            return norms

        return planted

    options = {"swing": 0.0, "signal": "actv"}
    weak = float(np.exp(0.1 * (limits("actv", ROWS, False, 0.2).above + 7.4) / 2))  # between the tail and the limit
    assert found_in(rule_of(), range(80), plant(weak, 1.0, weak), **options) == []
    strong = found_in(rule_of(), range(80), plant(weak, 10.0, weak), **options)
    assert strong == [(LEAP, NAMES[7]), (LEAP, NAMES[20])]  # what came before is no consequence


@pytest.mark.parametrize("seed", range(20))
def test_discoveries_are_those_of_the_textbook(seed):
    """The largest k with the k-th smallest chance at most k q / m; then all up to it (Benjamini and Hochberg, 1995)."""
    random = np.random.default_rng(seed)
    chances = np.concatenate([random.uniform(size=30), random.uniform(0, 0.01, size=seed % 12)])
    ordered = sorted(chances.tolist())
    passing = [k for k in range(1, len(ordered) + 1) if ordered[k - 1] <= k * 0.05 / len(ordered)]
    expected = {ordered[k] for k in range(max(passing, default=0))}
    assert {*chances[discoveries(chances, 0.05)].tolist()} == expected


def test_a_row_at_rounding_level_is_not_judged():
    """A gradient of a thousandth of the others' or less is what is left where gradients cancel."""

    def plant(step, norms):
        norms[7] *= 1e-5 * (60.0 if step == LEAP else 1.0)
        return norms

    assert found_in(rule_of(), range(80), plant) == []


def test_a_row_of_few_elements_is_not_judged():
    """Fifteen elements are too few, whatever the others do."""
    assert found_in(rule_of(), range(80), leap_of([7], 60.0), shape=(3, 5)) == []


def test_a_number_for_each_sample_is_not_judged():
    """Losses and logarithms of probabilities, outputs of one dimension, leap; a bias of one dimension does not."""
    plant = leap_of([7], 20.0)
    assert found_in(rule_of(), range(80), plant, swing=0.1, signal="actv", shape=(64,)) == []
    assert found_in(rule_of(), range(80), plant, swing=0.1, signal="actv", shape=(64, 2)) == [(LEAP, NAMES[7])]
    assert found_in(rule_of(**OFTEN), range(80), leap_of([7], 60.0), shape=(64,)) == [(LEAP, NAMES[7])]


def test_an_episode_is_reported_once_until_ten_steps_were_normal():
    """Leaps within ten normal steps of one another, in any rows, are one."""
    steps = (50, 56, 66, 77)

    def plant(step, norms):
        if step in steps:
            norms[step % ROWS] *= 60.0
        return norms

    assert [step for step, _ in found_in(rule_of(), range(100), plant)] == [50, 77]


def test_parameters_before_and_after_the_update_are_one_episode():
    """A leap of a weight shows after the update, and before the next one."""
    rule, found = rule_of(), []
    for step in range(80):
        before, after = np.ones(ROWS), np.ones(ROWS)
        before[7] *= 3.0 if step == LEAP + 1 else 1.0
        after[7] *= 3.0 if step == LEAP else 1.0
        batches = [batch_of(step, before, signal="param_origin"), batch_of(step, after, signal="param_updated")]
        found += [(finding.step, finding.signal) for finding in find([rule], batches)]
    assert found == [(LEAP, "param_updated")]


def test_the_rate_of_warnings_decides_what_is_found():
    """What one warning in a million steps leaves out is found at ten in a hundred."""
    size = {"above": [], "below": []}
    for warnings in (0.01, 0.2, 1000.0):
        limit = limits("grad_reduced", ROWS, False, warnings)
        size["above"].append(limit.above)
        size["below"].append(limit.below)
    assert all(numbers == sorted(numbers, reverse=True) and numbers[0] > 1.3 * numbers[2] for numbers in size.values())
    factor = float(np.exp(0.25 * (size["above"][0] + size["above"][2]) / 2))
    plant = leap_of([7], factor)
    assert (LEAP, NAMES[7]) not in found_in(rule_of(warnings_per_10000_steps=0.01), range(80), plant)
    assert (LEAP, NAMES[7]) in found_in(rule_of(warnings_per_10000_steps=1000.0), range(80), plant)


@pytest.mark.parametrize("alone", [True, False])
@pytest.mark.parametrize("signal", ["grad_reduced", "actv", "actv_grad", "param_updated"])
def test_limits_grow_with_the_number_of_rows(signal, alone):
    """The largest of more rows is larger."""
    few, many = limits(signal, 40, alone, 0.2), limits(signal, 4000, alone, 0.2)
    assert many.above > few.above > 0
    assert many.below > few.below > 0


def test_the_configuration_has_one_rate_for_all_rules():
    """A rule without a rate of its own has that of the alerts; a rule of its own keeps it."""
    rules = [{"rule_name": "AnomalySpike", "args": {"warnings_per_10000_steps": 3}}, {"rule_name": "AnomalySpike"}]
    alert = load({"alert": {"rules": rules, "warnings_per_10000_steps": 7}}).alert
    assert [rule.args.warnings_per_10000_steps for rule in alert.judging] == [3, 7]
    assert alert.judging[0] == alert.rules[0]


@pytest.mark.parametrize("rate", [2e-3, 1e-4])
def test_another_learning_rate_begins_another_history(rate):
    """What moves with the rate is no leap: nothing is judged until there is a history again."""
    rule = rule_of()
    assert found_in(rule, range(LEAP)) == []
    plant = leap_of([7], 60.0, (LEAP + 5, LEAP + 40))
    assert found_in(rule, range(LEAP, 120), plant, rate=rate) == [(LEAP + 40, NAMES[7])]


def test_gradients_that_stay_elsewhere_begin_another_history_of_all_signals():
    """As with other data: all have moved fivefold, and an activation that follows is no leap until there is a past."""
    rule, found = rule_of(), []
    for step in range(120):
        norms, outputs = healthy(step, swing=0.1), healthy(step, swing=0.1)
        norms *= 5.0 if step >= LEAP else 1.0
        outputs[7] *= 20.0 if step in (LEAP + 5, LEAP + 40) else 1.0
        batches = [batch_of(step, outputs, signal="actv"), batch_of(step, norms)]
        found += [(finding.step, finding.key.name) for finding in find([rule], batches)]
    assert found == [(LEAP + 40, NAMES[7])]


def test_another_set_of_rows_begins_another_history():
    """Half of the rows are frozen, and gone: the others are judged once there is a history again."""
    rule = rule_of()
    assert found_in(rule, range(LEAP)) == []
    plant = leap_of([7], 60.0, (LEAP + 5, LEAP + 40))
    assert found_in(rule, range(LEAP, 120), plant, rows=ROWS // 2) == [(LEAP + 40, NAMES[7])]


def found_in_steps(batches, steps=120):
    """Step, signal and row of each finding of a fresh rule."""
    rule = rule_of(**OFTEN)
    findings = (finding for step in range(steps) for finding in find([rule], batches(step)))
    return [(finding.step, finding.signal, finding.key.name) for finding in findings]


def test_another_size_of_the_batch_begins_another_history_of_all_signals():
    """From 64 samples to 4: what leaps is no leap until there is a past again, nor in the first steps of that size."""

    def batches(step):
        shape = (64, 16) if step < LEAP else (4, 16)
        norms = leap_of([7], 200.0, (LEAP + 1, LEAP + 15, LEAP + 40))(step, healthy(step, swing=0.1))
        return [batch_of(step, healthy(step, swing=0.1), signal="actv", shape=shape), batch_of(step, norms)]

    assert found_in_steps(batches) == [(LEAP + 40, "grad_reduced", NAMES[7])]


@pytest.mark.parametrize("length", [lambda step: 4 if step % 30 == 29 else 64, lambda step: 8 + 57 * (step % 9)])
def test_a_size_that_does_not_stay_begins_no_other_history(length):
    """The last batch of an epoch is smaller, and lengths of texts vary."""

    def batches(step):
        norms = leap_of([7], 200.0)(step, healthy(step, swing=0.1))
        shape = (length(step), 16)
        return [batch_of(step, healthy(step, swing=0.1), signal="actv", shape=shape), batch_of(step, norms)]

    assert found_in_steps(batches) == [(LEAP, "grad_reduced", NAMES[7])]


def test_parameters_that_are_unfrozen_begin_another_history_of_all_signals():
    """Half of the parameters get their first gradient: that they move then is no leap."""

    def batches(step):
        weights = leap_of([30], 3.0, (LEAP + 5, LEAP + 40))(step, np.ones(ROWS))
        norms = healthy(step, swing=0.1)[: ROWS if step >= LEAP else ROWS // 2]
        return [batch_of(step, norms), batch_of(step, weights, signal="param_updated")]

    assert found_in_steps(batches) == [(LEAP + 40, "param_updated", NAMES[30])]


def test_layers_that_are_skipped_at_random_begin_no_other_history_of_parameters():
    """Their gradients come and go, and have been there before."""

    def batches(step):
        weights = leap_of([30], 3.0)(step, np.ones(ROWS))
        norms = healthy(step, swing=0.1)[: ROWS - 10 * (step * 7919 % 3)]
        return [batch_of(step, norms), batch_of(step, weights, signal="param_updated")]

    assert found_in_steps(batches) == [(LEAP, "param_updated", NAMES[30])]


def test_a_rollback_begins_another_history():
    """Back at step 30, a rule finds what a fresh one finds, whatever leapt in the steps that are taken back."""
    plant = leap_of([7], 60.0, (45, 62))
    back, fresh = rule_of(), rule_of()
    found_in(back, range(70), plant)
    again = found_in(back, range(30, 90), plant)
    assert again == found_in(fresh, range(30, 90), plant) == [(62, NAMES[7])]


def test_rows_that_leap_by_the_ratio_are_reported_once():
    """A leap that both criteria find is one finding."""
    rule = rule_of()
    found = [f for step in range(60) for f in rule.judge(batch_of(step, leap_of([7], 1e5)(step, healthy(step))))]
    assert [(f.step, f.key.name) for f in found] == [(LEAP, NAMES[7])]


def test_the_common_movement_is_that_of_a_kind_or_of_all():
    """Ten rows of a kind have their own; three have that of all; three rows in all have none."""
    movements = np.array([1.0] * 10 + [5.0] * 3)[:, None]
    kinds = [np.arange(10), np.arange(10, 13)]
    assert common_movement(movements, kinds)[:, 0].tolist() == [1.0] * 13
    assert common_movement(movements[10:], [np.arange(3)])[:, 0].tolist() == [0.0] * 3
    movements[2:10] = np.nan
    assert common_movement(movements, kinds)[:, 0].tolist() == [0.0] * 13
