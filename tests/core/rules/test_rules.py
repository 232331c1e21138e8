"""Every rule against sequences worked out by hand, and against healthy series in which nothing may be found."""

from __future__ import annotations

import math
import sys
from types import SimpleNamespace

import numpy as np
import pytest

from probe.core.config.schema import RULE_ARGS
from probe.core.records import Batch, Key
from probe.core.rules import RULES, factory
from probe.core.rules.history import FORGET_AFTER, Field, History
from probe.core.rules.nan import AnomalyNan
from probe.core.rules.spike import AnomalySpike
from probe.core.rules.turbulence import AnomalyTurbulence
from tests.core.rules.rule_batches import OPS, W, batch_of, norms

nan, inf = math.nan, math.inf


def nan_rule(threshold=None, ops=OPS):
    return AnomalyNan(SimpleNamespace(threshold=threshold), 0, ops)


def turbulence(threshold=0.5, both_sides=False, ops=("norm",)):
    return AnomalyTurbulence(SimpleNamespace(threshold=threshold, both_sides=both_sides), 0, ops)


def spike(ops=("norm",), **changes):
    args = {
        "window": 32,
        "warm_up": 10,
        "threshold": 5.0,
        "min_ratio": 20.0,
        "cool_down": 10,
        "ops": list(ops),
        "joint": False,
    }
    return AnomalySpike(SimpleNamespace(**{**args, **changes}), 0, ops)


def steps_found(rule, series, key=W, start=0):
    """Steps at which ``rule`` finds something in the norms of one key."""
    return [f.step for step, value in enumerate(series, start) for f in rule.judge(norms({key: value}, step))]


def found_ops(rule, tensors, **options):
    return [(f.key.name, f.op) for f in rule.judge(batch_of(tensors, **options))]


# NaN and Inf


def test_nan_is_found_in_every_op_that_shows_it():
    """A NaN element shows in every number but the count of Inf; ``id`` of a matrix has no answer anyway."""
    ops = [op for _, op in found_ops(nan_rule(), {W: np.array([1.0, nan])})]
    assert ops == ["min", "max", "norm", "mean", "nans", "std"]


def test_inf_is_found_without_a_threshold():
    """Inf shows in the extremes and the norm, and as NaN in mean and std where both signs occur."""
    ops = [op for _, op in found_ops(nan_rule(), {W: np.array([1.0, inf, -inf])})]
    assert ops == ["min", "max", "norm", "mean", "infs", "std"]


def test_what_has_no_answer_is_no_finding():
    """Neither an empty tensor, whose extremes and mean are NaN, nor ``id`` of a matrix, NaN by definition."""
    assert not found_ops(nan_rule(), {Key("empty"): np.ones((0, 2)), Key("matrix"): np.ones((2, 2))})


def test_an_additive_mask_is_no_finding_but_infinite_outputs_are():
    """Inputs from -Inf to exactly 0 are a mask; the same in an output, or with another maximum, is reported."""
    mask = np.array([[0.0, -inf], [0.0, 0.0]])
    inputs, outputs = Key("attention", "input_1"), Key("attention", "output")
    rows = {inputs: mask, outputs: mask, Key("fc", "input"): np.array([1.0, -inf])}
    found = nan_rule(ops=("min", "max")).judge(batch_of(rows, ops=("min", "max"), signal="actv"))
    assert [finding.key for finding in found] == [outputs, Key("fc", "input")]


def test_id_of_a_scalar_is_judged():
    """A 0-d tensor has a value of its own."""
    assert ("scale", "id") in found_ops(nan_rule(), {Key("scale"): np.array(nan), W: np.ones(2)})


def test_nan_is_reported_at_every_step():
    """The rule has no memory: an old NaN mutes nothing."""
    assert steps_found(nan_rule(ops=["norm"]), [1, nan, nan, 1, nan]) == [1, 2, 4]


def test_threshold_adds_magnitudes_but_never_applies_to_counts():
    """-200 and 200 are beyond 100; three NaN are a finding below any threshold and are not compared with it."""
    rule = nan_rule(threshold=100.0, ops=["min", "max", "nans"])
    low, high, count = Key("low"), Key("high"), Key("count")
    found = list(rule.judge(batch_of({low: np.array([-200.0, 1]), high: np.array([200.0]), count: np.full(3, nan)})))
    assert [(f.key, f.op) for f in found if f.key != count] == [(low, "min"), (high, "min"), (high, "max")]
    assert [f.expected for f in found if f.key != count] == [100.0] * 3
    (counted,) = [f for f in found if f.op == "nans"]
    assert counted.value == 3
    assert math.isnan(counted.expected)


@pytest.mark.parametrize("rows", [1, 3, 200])
def test_histograms_are_passed_over_and_quantiles_are_judged(rows):
    """However many rows there are: a quantile is beyond the threshold where it is, and infinite where it is."""
    ops = ["histogram", "q50", "norm"]
    tensors = {Key(f"w{number}"): np.full(9, 2.0) for number in range(rows)}
    tensors[Key("w0")] = np.full(9, 200.0)
    found = nan_rule(threshold=100.0, ops=ops).judge(batch_of(tensors, ops=ops))
    assert [(f.key.name, f.op, f.expected) for f in found] == [("w0", "q50", 100.0), ("w0", "norm", 100.0)]
    tensors[Key("w0")] = np.array([inf, inf, 1.0])
    assert found_ops(nan_rule(ops=ops), tensors, ops=ops) == [("w0", "q50"), ("w0", "norm")]


def test_quantiles_of_a_file_are_judged_as_they_are():
    """There the histogram is not among the columns."""
    assert [f.op for f in nan_rule(ops=["q50"]).judge(norms({W: 1.0}, extra={"q50": np.array([inf])}))] == ["q50"]


def test_signals_without_an_op_are_left_alone():
    """A signal that did not collect an op's moment (attention entropy, say) is no error."""
    batch = norms({W: nan}, extra={"entropy": np.array([nan])})
    assert [f.op for f in nan_rule(ops=["shape", "mean", "norm", "entropy", "dtype"]).judge(batch)] == [
        "norm",
        "entropy",
    ]


def test_messages_have_the_documented_form():
    """The message has the value that was compared with, or no such clause if there is none."""
    (first,) = nan_rule(ops=["norm"]).judge(norms({W: nan}, 7, signal="param_origin"))
    assert first.message == (
        "Rule AnomalyNan reports anomaly signal in ('0:fc.weight/rank0/param_origin', 'norm') at step 7, "
        "current value nan."
    )
    rule = turbulence()
    list(rule.judge(norms({W: 2.0}, 0, signal="param_origin")))
    (second,) = rule.judge(norms({W: 8.0}, 1, signal="param_origin"))
    assert second.message == (
        "Rule AnomalyTurbulence reports anomaly signal in ('0:fc.weight/rank0/param_origin', 'norm') at step 1, "
        "current value 8.0, history mean 2.0."
    )


# Turbulence


def test_turbulence_compares_with_the_mean_before_this_value():
    """Seeded by 2, the mean is 2 at the second value, 2.0 * 0.99 + 2.9 * 0.01 = 2.009 at the third."""
    rule = turbulence(threshold=0.5)
    assert steps_found(rule, [2.0, 2.9]) == []
    (found,) = rule.judge(norms({W: 3.02}, 2))
    assert found.expected == pytest.approx(2.009)
    assert steps_found(rule, [3.0], start=3) == []  # the mean is 2.01911 by now


def test_turbulence_reports_nan_and_is_not_muted_by_it():
    """In 1, 1, NaN, 1, 100 the NaN and the 100, but no NaN before the first number."""
    assert steps_found(turbulence(), [nan, 1, 1, nan, 1, 100]) == [3, 5]


def test_inf_is_turbulence_and_is_not_remembered():
    """After Inf the mean is still 1."""
    rule = turbulence()
    assert steps_found(rule, [1, inf, 1.4]) == [1]
    (found,) = rule.judge(norms({W: 3.0}, 3))
    assert found.expected == pytest.approx(1.004)


def test_turbulence_waits_for_a_first_value_other_than_zero():
    """A bias that starts at 0 makes no alarm when it moves; then 0.001 is its mean."""
    rule = turbulence()
    assert steps_found(rule, [0, 0, 0.001, 0.001, 0.1]) == [4]


def test_both_sides_adds_values_that_are_too_small():
    """The value 0.4, below (1 - 0.5) of 1, is reported only with ``both_sides``."""
    assert steps_found(turbulence(), [1, 0.4]) == []
    assert steps_found(turbulence(both_sides=True), [1, 0.4]) == [1]


def test_turbulence_judges_magnitudes_of_norm_and_mean_only():
    """A mean of -30 after -1 strays; the extremes are not looked at."""
    rule = turbulence(ops=OPS)
    list(rule.judge(batch_of({W: np.array([-1.0, -1.0])})))
    found = list(rule.judge(batch_of({W: np.array([-30.0, -30.0])}, step=1)))
    assert [f.op for f in found] == ["norm", "mean"]
    assert [f.expected for f in found] == pytest.approx([math.sqrt(2), 1.0])


# Spike


def test_a_thousandfold_jump_is_found_and_named_with_the_median():
    """The median of 95..105 is 100; 1,900 is below twenty times that, 100,000 is a thousand times that."""
    rule = spike()
    assert steps_found(rule, [*range(95, 106)]) == []
    (found,) = rule.judge(norms({W: 1e5}, 11))
    assert (found.key, found.op, found.step, found.value) == (W, "norm", 11, pytest.approx(1e5))
    assert found.expected == pytest.approx(100.0)
    assert steps_found(spike(), [*range(95, 106), 1900]) == []
    assert found.message.endswith("history median " + str(found.expected) + ".")


@pytest.mark.parametrize("ratio", [20.5, 1 / 20.5])
def test_a_constant_has_min_ratio_for_its_spread_in_both_directions(ratio):
    """19-fold is nothing; more than twentyfold, up or down, is a spike."""
    inside = 19 if ratio > 1 else 1 / 19
    assert steps_found(spike(), [5.0] * 12 + [5 * inside, 5 * ratio]) == [13]


def test_the_spread_widens_the_limit():
    """ln|x| alternates -1, 1: median 0 or so, MAD 1, so that the limit is exp(7.4) and not 20."""
    rule = spike(window=20)
    swings = [math.exp(1.0), math.exp(-1.0)] * 10
    assert steps_found(rule, [*swings, math.exp(7.0), math.exp(1.0), math.exp(10.0)]) == [22]


@pytest.mark.parametrize("value", [1e-5, -1e-5])
def test_small_extremes_are_healthy(value):
    """The maximum of a mostly negative tensor may be near 0, and change sign."""
    rule, key = spike(ops=("min", "max")), [W]
    for step in range(20):
        batch = Batch("actv", step, tuple(key), ((8,),), ("f",), np.zeros(1, int), {"max": np.array([3.0])})
        assert not list(rule.judge(batch))
    tiny = Batch("actv", 20, tuple(key), ((8,),), ("f",), np.zeros(1, int), {"max": np.array([value])})
    assert not list(rule.judge(tiny))
    large = Batch("actv", 21, tuple(key), ((8,),), ("f",), np.zeros(1, int), {"max": np.array([-3000.0])})
    assert [f.op for f in rule.judge(large)] == ["max"]


def test_the_smallest_magnitude_of_a_tensor_may_leap():
    """The minimum of a second moment is near 0 and not judged; its maximum is, and so is its norm."""
    rule, ordinary = spike(ops=("norm", "min", "max")), np.array([1e-16, 1e-9, 2e-9, 1e-9, 3e-9])
    for step in range(20):
        assert not list(rule.judge(batch_of({W: ordinary}, step)))
    assert not list(rule.judge(batch_of({W: np.array([1e-13, 1e-9, 2e-9, 1e-9, 3e-9])}, 20)))
    assert [f.op for f in rule.judge(batch_of({W: 1000 * ordinary}, 21))] == ["norm", "max"]


def test_second_moments_are_judged_by_their_roots():
    """A gradient of 15 times its usual size is no spike, so its square is none; one of 30 times is, with its square."""
    for signal, power in [("param_updated", 1), ("exp_avg_sq", 2)]:
        rule, found = spike(), []
        for step, size in enumerate([2.0] * 12 + [30.0, 2.0, 60.0]):
            found += list(rule.judge(norms({W: size**power}, step, signal=signal)))
        assert [(f.step, f.value) for f in found] == [(14, 60.0**power)]
        assert found[0].expected == pytest.approx(2.0**power)


def test_an_extreme_must_differ_by_the_square():
    """A norm of 30 times its usual size is a spike; an extreme is one element, so it takes 400 times."""
    rule = spike(ops=("norm", "max"))
    for step in range(12):
        assert not list(rule.judge(batch_of({W: np.ones(16)}, step)))
    assert [f.op for f in rule.judge(batch_of({W: 30 * np.ones(16)}, 12))] == ["norm"]
    assert [f.op for f in rule.judge(batch_of({W: 500 * np.ones(16)}, 13))] == ["max"]  # the norm is silent by now


@pytest.mark.parametrize(
    "signal", ["actv_grad", "grad_unreduced", "grad_reduced", "other", "exp_avg", "momentum_buffer"]
)
def test_gradients_must_differ_by_the_square(signal):
    """Those of a model that leaves its first plateau leap a hundredfold; twentyfold means four hundredfold."""
    for ratio, expected in [(390.0, []), (1 / 390, []), (410.0, [12]), (1 / 410, [12])]:
        rule, series = spike(), [2.0] * 12 + [2 * ratio]
        assert [f.step for n, v in enumerate(series) for f in rule.judge(norms({W: v}, n, signal=signal))] == expected


def test_an_extreme_is_compared_with_the_larger_side():
    """One side is near 0 by nature; a leap there is usual on the other side."""
    rule = spike(ops=("norm", "min", "max"))
    for step in range(12):
        assert not list(rule.judge(batch_of({W: np.array([-1.0] * 8 + [1e-3])}, step)))
    assert not list(rule.judge(batch_of({W: np.array([-1.0] * 8 + [0.9])}, 12)))
    found = list(rule.judge(batch_of({W: np.array([-1.0] * 8 + [500.0])}, 13)))
    assert [(f.op, f.expected) for f in found] == [("norm", pytest.approx(8**0.5)), ("max", pytest.approx(1.0))]
    mirrored = spike(ops=("norm", "min", "max"))
    for step in range(12):
        assert not list(mirrored.judge(batch_of({W: np.array([1.0] * 8 + [-1e-3])}, step)))
    assert not list(mirrored.judge(batch_of({W: np.array([1.0] * 8 + [-0.9])}, 12)))
    found = list(mirrored.judge(batch_of({W: np.array([1.0] * 8 + [-500.0])}, 13)))
    assert [(f.op, f.expected) for f in found] == [("norm", pytest.approx(8**0.5)), ("min", pytest.approx(1.0))]


def test_a_norm_of_few_elements_may_be_small():
    """By shape, or because one element makes up the norm (the output of a ReLU that is mostly off)."""
    for shape, peak, expected in [((2,), None, []), ((64,), 1e-6, []), ((64,), 2e-7, [12])]:
        rule = spike()
        steps = []
        for step, value in enumerate([1.0] * 12 + [1e-6]):
            extra = {"max": np.array([peak if step == 12 else 0.5])} if peak else {}
            steps += [f.step for f in rule.judge(norms({W: value}, step, shape=shape, extra=extra))]
        assert steps == expected


def test_zeros_nan_and_inf_are_neither_judged_nor_remembered():
    """They do not count for the warm-up, do not mute, and do not move the median."""
    broken = [0.0, nan, inf]
    assert steps_found(spike(), [1.0] * 9 + broken * 20 + [1000.0]) == []
    assert steps_found(spike(), [1.0] * 10 + broken * 20 + [1000.0]) == [70]


def test_integers_and_booleans_are_not_judged():
    """The smallest token id jumps from 1 to 300 when the padding ends."""
    for dtype, count in [("torch.int64", 0), ("Int32", 0), ("torch.bool", 0), ("torch.float8_e4m3fn", 1)]:
        rule = spike()
        series = [1.0] * 12 + [300.0]
        assert sum(len(list(rule.judge(norms({W: v}, n, dtype=dtype)))) for n, v in enumerate(series)) == count


def test_a_spike_is_not_remembered_and_silences_its_key_for_the_cool_down():
    """Four single spikes: the second falls into ten values of silence, the third does not, each against median 1."""
    series = [1.0] * 12 + [1e3] + [1.0] * 5 + [1e3] + [1.0] * 4 + [1e3]
    assert steps_found(spike(), series) == [12, 23]


def test_spikes_do_not_become_the_norm_until_they_stay():
    """Nine spikes, then one healthy value, again and again: the healthy ones are never the ones reported."""
    rule, series = spike(), [1.0] * 12 + ([1e3] * 9 + [1.0]) * 6
    found = [f for step, value in enumerate(series) for f in rule.judge(norms({W: value}, step))]
    assert {(round(f.value), round(f.expected, 5)) for f in found} == {(1000, 1.0)}


def test_a_new_level_is_reported_once():
    """From 1 to 1,000 for good: one finding; the history begins anew, and a fall back is found after its warm-up."""
    assert steps_found(spike(), [1.0] * 20 + [1e3] * 60) == [20]
    assert steps_found(spike(), [1.0] * 20 + [1e3] * 10 + [1.0]) == [20]
    assert steps_found(spike(), [1.0] * 20 + [1e3] * 19 + [1.0]) == [20, 39]


def test_the_window_forgets():
    """After a slow climb by 5 % a step for 400 steps the value is compared with the last 32 only."""
    climb = [1.05**n for n in range(400)]
    assert steps_found(spike(), climb) == []
    rule = spike()
    steps_found(rule, climb)
    (found,) = rule.judge(norms({W: 1.0}, 400))
    assert found.expected == pytest.approx(math.exp(np.median(np.log(climb[-32:]))), rel=1e-5)


def test_the_order_of_rows_and_keys_that_come_and_go_do_not_matter():
    """Two keys a hundredfold apart swap places, one is away for a while; each keeps its own history."""
    rule, other = spike(), Key("fc.bias")
    for step in range(24):
        values = {W: 1.0, other: 100.0} if step % 2 else {other: 100.0, W: 1.0}
        if 10 <= step < 15:
            del values[other]
        assert not list(rule.judge(norms(values, step)))
    found = list(rule.judge(norms({Key("new"): 1.0, other: 1.0, W: 100.0}, 24)))
    assert sorted((f.key.name, f.expected) for f in found) == [
        ("fc.bias", pytest.approx(100)),
        ("fc.weight", pytest.approx(1)),
    ]


def test_signals_micro_steps_calls_and_stages_have_histories_of_their_own():
    """The same name under another signal, micro step, call or stage is another key."""
    rule = spike()
    keys = [W, W._replace(micro_step=1), W._replace(call=1), W._replace(stage=1)]
    for step in range(15):
        assert not list(rule.judge(norms({key: 10.0 ** (3 * n) for n, key in enumerate(keys)}, step)))
        assert not list(rule.judge(norms({W: 1e-6}, step, signal="param_origin")))
    assert [f.key for f in rule.judge(norms(dict.fromkeys(keys, 1e3), 15))] == [keys[0], keys[2], keys[3]]


@pytest.mark.parametrize(("signal", "steps"), [("param_updated", []), ("exp_avg", []), ("actv", [20])])
def test_a_tensor_of_another_shape_begins_the_history_anew(signal, steps):
    """A parameter of an old one's name, as in a model that has grown; activations vary with the batch."""
    rule, found = spike(), []
    for step in range(20):
        found += rule.judge(norms({W: 1.0}, step, shape=(4, 4), signal=signal))
    for step in range(20, 40):
        found += rule.judge(norms({W: 1e-4}, step, shape=(8, 8), signal=signal))
    assert [finding.step for finding in found] == steps


@pytest.mark.parametrize("rule", [spike(), turbulence(threshold=5.0)], ids=["spike", "turbulence"])
def test_a_rollback_begins_the_history_anew(rule):
    """After a diverged stretch the run resumes at step 5; what it learned from the stretch is gone."""
    assert len(steps_found(rule, [1.0] * 15 + [1e6] * 20)) >= 1
    assert steps_found(rule, [1.0] * 12, start=5) == []
    (found,) = rule.judge(norms({W: 1e4}, 17))
    assert found.expected == pytest.approx(1.0)


def test_healthy_training_is_silent():
    """200 keys, 1,000 steps: norms that swing eightfold about levels that drift, extremes that swing as far."""
    random, rule = np.random.default_rng(2), spike(ops=("norm", "min", "max"))
    keys = tuple(Key(f"layers.{n}.weight") for n in range(200))
    level = random.normal(0, 5, 200)
    for step in range(1000):
        level += random.normal(-0.002, 0.01, 200)
        swing = np.exp(level + random.normal(0, math.log(8) / 6.5, (3, 200)))
        columns = {"sumsq": (8 * swing[0]) ** 2, "min": -swing[1], "max": swing[2]}
        batch = Batch("exp_avg", step, keys, ((64,),) * 200, ("f",) * 200, np.arange(200), columns)
        assert not list(rule.judge(batch))
    jump = {**columns, "sumsq": columns["sumsq"] * np.where(np.arange(200) == 77, 1e6, 1)}
    found = list(rule.judge(Batch("exp_avg", 1000, keys, ((64,),) * 200, ("f",) * 200, np.arange(200), jump)))
    assert [(f.key, f.op, f.order) for f in found] == [(keys[77], "norm", 77)]


@pytest.mark.slow
def test_adam_from_the_first_step_is_silent():
    """Biases that start at 0, gradients that fall a hundredfold, first and second moments that warm up."""
    random, rule = np.random.default_rng(3), spike(ops=("norm", "min", "max"))
    bias, first, second = np.zeros((3, 20, 16))
    for step in range(300):
        gradient = random.normal(0.3, 1.0, bias.shape) * (math.exp(-step / 20) + 0.01)
        first, second = 0.9 * first + 0.1 * gradient, 0.999 * second + 0.001 * gradient**2
        for signal, rows in [("grad_reduced", gradient), ("exp_avg", first), ("exp_avg_sq", second)]:
            tensors = {Key(f"{n}.bias"): row for n, row in enumerate(rows)}
            assert not list(rule.judge(batch_of(tensors, step, signal=signal)))
        assert not list(rule.judge(batch_of({Key(f"{n}"): r for n, r in enumerate(bias)}, step, signal="param_origin")))
        bias = bias - 1e-3 * min(1, step / 50) * first / (np.sqrt(second) + 1e-8)


# Memory


def test_a_step_that_comes_again_is_remembered_anew():
    """Nothing is left of what a key had when its steps go back, be it by one; other keys keep theirs."""
    history = History(("norm",), {"seen": Field(0, np.int64)})
    one, other = Key("one"), Key("other")
    for step in (4, 5):
        slots = history.read(norms({one: 1.0, other: 1.0}, step)).slots
        history.of("seen")[slots] += 1
    (slot,) = history.read(norms({one: 1.0}, 5)).slots
    assert history.of("seen")[slot] == 2
    (slot,) = history.read(norms({one: 1.0}, 4)).slots
    assert history.of("seen")[slot] == 0
    (slot,) = history.read(norms({other: 1.0}, 6)).slots
    assert history.of("seen")[slot] == 2


def test_memory_is_bounded_and_what_does_not_fit_is_counted():
    """Room for two keys of two ops: the third is not remembered, and 2 values are counted."""
    history = History(("norm", "mean"), {"seen": Field(0, np.int64)}, limit=4)
    keys = [Key(f"{n}") for n in range(3)]
    readings = history.read(norms(dict.fromkeys(keys, 1.0), extra={"sum": np.ones(3)}))
    assert readings.at.tolist() == [0, 1, 0, 1]
    assert history.dropped == 2
    assert len(history.of("seen")) == 4


def test_a_key_that_no_longer_comes_gives_its_place_to_another():
    """Only after many steps, and with a clean memory."""
    history = History(("norm",), {"seen": Field(0, np.int64)}, limit=1)
    early = history.read(norms({W: 1.0}, 0))
    history.of("seen")[early.slots] = 7
    assert not len(history.read(norms({Key("new"): 1.0}, FORGET_AFTER, signal="actv")).slots)
    late = history.read(norms({Key("new"): 1.0}, FORGET_AFTER + 1, signal="actv"))
    assert history.of("seen")[late.slots].tolist() == [0]
    assert not len(history.read(norms({W: 1.0}, FORGET_AFTER + 2)).slots)


# Names


def test_every_rule_is_found_by_its_name():
    """The documented names, and ours."""
    assert set(RULES) == set(RULE_ARGS)
    assert {"AnomalyNan", "AnomalyTurbulence", "AnomalySpike"} < set(RULES)
    assert factory("AnomalyNan") is AnomalyNan


def test_an_unknown_rule_names_the_nearest():
    """And every other."""
    with pytest.raises(ValueError, match=r"AnomalyNan, AnomalyReplica, .*; did you mean 'AnomalyNan'"):
        factory("AnomlyNan")


def test_another_package_offers_a_rule(tmp_path, monkeypatch):
    """By entry point; the built-in rule of a name is preferred."""
    info = tmp_path / "rules_of_mine-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: rules-of-mine\nVersion: 1.0\n")
    lines = ["[probe.rules]", "Mine = rules_of_mine:Mine", "AnomalyNan = rules_of_mine:Mine", ""]
    (info / "entry_points.txt").write_text("\n".join(lines))
    (tmp_path / "rules_of_mine.py").write_text("class Mine: pass\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    assert factory("Mine") is sys.modules["rules_of_mine"].Mine
    assert factory("AnomalyNan") is AnomalyNan
