"""Memory of the rules about the run: through JSON, through the steps of an earlier run, and damaged."""

from __future__ import annotations

import json
import math

import numpy as np
import pytest

from probe.core.naming import STEP_SECONDS
from probe.core.run_state.rules import RUN_RULES, remember
from tests.core.run_state.run_steps import found, noise, places, rule_of, steps_of

N, CUT = 400, 250


def spiking():
    """A spike after the cut, one that is open at the cut."""
    loss = 2 + noise(N, size=0.05)
    loss[CUT - 2 : CUT + 3] += 5
    loss[CUT + 30] += 5
    return {"loss": loss.tolist()}


def broken():
    return {
        "loss": [math.nan if 240 <= n < 260 else 1.0 for n in range(N)],
        "extra": [math.nan if n > 300 else 1.0 for n in range(N)],
    }


def slowing():
    return {STEP_SECONDS: [1.0 if n < 240 else 2.0 for n in range(N)]}


def straggling():
    return {
        f"rank__{rank}__outside_seconds": [3.0 if rank == 2 and n >= CUT - 5 else 1.0 for n in range(N)]
        for rank in range(4)
    }


RUNS = {"RunSpike": spiking, "RunNan": broken, "RunSlow": slowing, "RunStraggler": straggling}


def split(name):
    """The steps of a run before and after the cut."""
    steps = list(steps_of(**RUNS[name]()))
    return steps[:CUT], steps[CUT:]


def through_json(rule):
    return json.loads(json.dumps(rule.state_dict(), allow_nan=False))


@pytest.mark.parametrize("name", [name for name in RUNS if name != "RunSlow"])
def test_a_resumed_run_finds_what_an_uninterrupted_one_finds(name):
    """A rule with the memory of another, through JSON, goes on as if nothing had happened."""
    before, after = split(name)
    whole, first, second = rule_of(name), rule_of(name), rule_of(name)
    expected = places(found(whole, before + after))
    assert any(step >= CUT for _, step, _ in expected)
    start = places(found(first, before))
    second.load_state_dict(through_json(first))
    assert start + places(found(second, after)) == expected


@pytest.mark.parametrize("name", RUNS)
def test_steps_of_an_earlier_run_teach_the_same(name):
    """Shown the steps, a rule is where the memory would put it, and nothing is reported again."""
    before, after = split(name)
    loaded, shown, first = rule_of(name), rule_of(name), rule_of(name)
    found(first, before)
    loaded.load_state_dict(through_json(first))
    remember([shown], before)
    assert places(found(shown, after)) == places(found(loaded, after))


def test_the_best_stretch_is_remembered():
    """A run that is resumed on slower machines is slow, from the first stretch after its warm-up on."""
    before, after = list(steps_of(step_seconds=[1.0] * 200)), list(steps_of(first=200, step_seconds=[2.0] * 200))
    rule = rule_of("RunSlow")
    remember([rule], before)
    [(_, step, _)] = places(found(rule, after))
    assert 240 <= step <= 250
    assert found(rule_of("RunSlow"), after) == []
    later = rule_of("RunSlow")
    later.load_state_dict(through_json(rule))
    assert found(later, after) == []


def test_a_resumed_scaler_may_search_its_scale_again():
    """Updates skipped right after a resume are a warm-up; a burst that was open is still open."""
    outcomes = dict.fromkeys(range(30, 36), "skipped")
    first = rule_of("RunOverflow")
    assert len(found(first, steps_of(loss=[1.0] * 36, outcomes=outcomes))) == 1
    second = rule_of("RunOverflow")
    second.load_state_dict(through_json(first))
    outcomes = dict.fromkeys(range(36, 50), "skipped")
    assert places(found(second, steps_of(36, loss=[1.0] * 60, outcomes=outcomes))) == [("skipped_updates", 60, True)]
    third, steps = rule_of("RunOverflow"), [1.0] * 30
    remember([third], steps_of(loss=steps))
    assert found(third, steps_of(30, loss=steps, outcomes=dict.fromkeys(range(30, 48), "skipped"))) == []


@pytest.mark.parametrize("name", RUN_RULES)
@pytest.mark.parametrize(
    "damage",
    [
        lambda _: None,
        lambda _: "text",
        lambda _: math.nan,
        lambda _: [None],
        lambda _: {"x": -1},
        lambda _: [[1]],
        lambda _: -1,
    ],
    ids=["none", "text", "nan", "list", "mapping", "nested", "negative"],
)
def test_a_memory_that_cannot_be_read_is_ignored(name, damage):
    """Whatever stands in a field, the rule keeps a memory it can judge with."""
    rule = rule_of(name)
    columns = {key: values for run in RUNS.values() for key, values in run().items()}
    found(rule, steps_of(**columns))
    state = through_json(rule)
    for key in state:
        other = rule_of(name)
        other.load_state_dict({**state, key: damage(state[key])})
        found(other, steps_of(N, **columns))
        fields = state[key] if isinstance(state[key], dict) else {}
        for inner in fields:
            other.load_state_dict({**state, key: {**fields, inner: damage(fields[inner])}})
            found(other, steps_of(N, **{k: v[:20] for k, v in columns.items()}))


@pytest.mark.parametrize("name", RUN_RULES)
def test_the_memory_of_another_version_is_ignored(name):
    """An empty memory, and one that is no mapping, leave a rule as it is."""
    rule = rule_of(name)
    state = rule.state_dict()
    for other in ({}, {"version": 3}, dict.fromkeys(state, 1)):
        rule.load_state_dict(other)
        assert rule.state_dict() == state


@pytest.mark.parametrize("name", RUN_RULES)
def test_judging_costs_little(name):
    """The memory of a rule does not grow with the steps."""
    rule = rule_of(name)
    columns = {key: np.tile(values, 2).tolist() for run in RUNS.values() for key, values in run().items()}
    found(rule, steps_of(**columns))
    size = len(json.dumps(rule.state_dict()))
    found(rule, steps_of(2 * N, **columns))
    assert len(json.dumps(rule.state_dict())) <= 1.2 * size + 100
