"""Plans: which one holds from which step on, whoever proposes it."""

from __future__ import annotations

import ast
import json
import os
import time
from pathlib import Path
from typing import Any

import pytest

from probe.core.checks.check import CheckFinding
from probe.core.control.armed_collection import ArmedCollection
from probe.core.control.planner import Configuration, Planner
from probe.core.errors import TrainingStopped
from probe.core.faults import Faults
from probe.core.instrumentation.plan import Plan
from probe.core.records import Finding
from tests.core.output.sink_data import finding
from tests.matrix.numpy_framework import TrainerMon

ROOT = Path(__file__).resolve().parents[3]
ARMED = {"on_anomaly": {"arm": {"xy_distribution": True}, "steps": 3, "cool_down": 2}}


@pytest.fixture(autouse=True)
def _output(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MONITOR_OUTPUT_DIR", str(tmp_path))
    monkeypatch.delenv("DYNAMIC_MONITOR", raising=False)


def planner(configuration: Configuration, first: int = 0) -> Planner:
    return Planner(configuration, TrainerMon.framework, 0, first, Faults())


def advance(planner: Planner, step: int, *findings: Finding) -> list[Plan]:
    """Every plan that takes effect before ``step``, accepted."""
    plans = []
    for plan in planner.plans(step, lambda: list(findings)):
        planner.accept(plan)
        plans.append(plan)
    return plans


def sampled(plan: Plan, steps: range) -> list[int]:
    """The steps that a session would sample by ``plan``."""
    chosen = []
    for step in steps:
        if plan.schedule.samples(step):
            chosen.append(step)
        plan.schedule.ended(step, step in chosen)
    return chosen


def test_a_finding_deepens_the_plan_for_some_steps_and_the_one_before_holds_again() -> None:
    """Its sources and suspects come and go; the schedule below it goes on with its own count."""
    chosen = planner(Configuration({"wg_distribution": True, "step_interval": 5, **ARMED}))
    base = chosen.plan
    assert advance(chosen, 6) == []
    (deeper,) = advance(chosen, 7, finding(6))
    assert (deeper.purpose, deeper.until, len(deeper.sources) > len(base.sources)) == ("deeper", 10, True)
    assert deeper.suspects
    assert sampled(deeper, range(7, 12)) == [7, 8, 9]
    (after,) = advance(chosen, 10)
    assert (after.purpose, after.schedule, after.suspects) == ("collect", base.schedule, ())
    assert chosen.settings.on_anomaly == base.settings.on_anomaly


def test_a_value_assigned_as_deeper_collection_ends_is_not_lost() -> None:
    """It is part of the plan that holds again."""
    configuration = Configuration({"wg_distribution": True, "ops": ["norm"], **ARMED})
    chosen = planner(configuration)
    (deeper,) = advance(chosen, 1, finding(0))
    sampled(deeper, range(1, 4))
    configuration.asked["ops"] = configuration.assign("ops", ["max"])
    (after,) = advance(chosen, 4)
    assert (after.settings.ops, chosen.settings.ops, after.base) == (("max",), ("max",), None)


def test_an_assigned_value_ends_deeper_collection() -> None:
    """The plan of the program has the schedule below."""
    configuration = Configuration({"wg_distribution": True, "ops": ["norm"], **ARMED})
    chosen = planner(configuration)
    base = chosen.plan
    advance(chosen, 1, finding(0))
    configuration.asked["ops"] = configuration.assign("ops", ["max"])
    (plan,) = advance(chosen, 2)
    assert (plan.origin, plan.settings.ops, plan.schedule, plan.base) == ("program", ("max",), base.schedule, None)


def armed(configuration: Configuration, step: int) -> Planner:
    """A planner of which the sentinel has found something at the end of ``step``."""
    chosen = planner(configuration)
    chosen.armed = ArmedCollection()
    chosen.armed.receive([CheckFinding("loss-not-finite", "critical", (), step, step, "", {})])
    return chosen


def test_everything_is_collected_after_what_the_sentinel_finds() -> None:
    """For ten steps at every step, whatever the targets; then the plan before holds again, with its own count."""
    chosen = armed(Configuration({"wg_distribution": True, "step_interval": 7, "targets": {"fc": {}}}), 5)
    base = chosen.plan
    (deep,) = advance(chosen, 6)
    assert (deep.purpose, deep.suspects, deep.name) == ("deeper", ("",), base.name)
    assert deep.settings.xy_distribution
    assert deep.settings.param_distribution
    assert not chosen.settled
    assert sampled(deep, range(6, 20)) == [*range(6, 16)]
    (after,) = advance(chosen, 16)
    assert (after.settings, after.schedule) == (base.settings, base.schedule)
    assert chosen.settled
    assert chosen.armed is not None
    assert [(stretch.first, stretch.last) for stretch in chosen.armed.stretches] == [(6, 15)]


def test_a_limit_ends_what_the_sentinel_has_collected() -> None:
    """With the next step."""
    chosen = armed(Configuration({"wg_distribution": True}), 5)
    assert chosen.armed is not None
    advance(chosen, 6)
    assert advance(chosen, 7) == []
    chosen.armed.spend(1e9, 0)
    (after,) = advance(chosen, 8)
    assert (after.purpose, chosen.armed.stretches[0].last) == ("collect", 7)


def test_deeper_collection_goes_on_below_that_of_the_sentinel() -> None:
    """One that is under way, and one that begins meanwhile; each for its own steps."""
    under_way = planner(Configuration({"wg_distribution": True, "on_anomaly": ARMED["on_anomaly"] | {"steps": 20}}))
    under_way.armed = ArmedCollection()
    (first,) = advance(under_way, 1, finding(0))
    under_way.armed.receive([CheckFinding("loss-not-finite", "critical", (), 2, 2, "", {})])
    (deep,) = advance(under_way, 3)
    (back,) = advance(under_way, 13)
    assert (deep.origin, back.suspects, back.until) == ("sentinel", first.suspects, 21)
    (end,) = advance(under_way, 21)
    assert (end.purpose, end.base) == ("collect", None)
    meanwhile = armed(Configuration({"wg_distribution": True, **ARMED}), 5)
    advance(meanwhile, 6)
    assert advance(meanwhile, 15, finding(14)) == []
    (later,) = advance(meanwhile, 16)
    assert (later.purpose, later.origin, later.until) == ("deeper", "finding", 18)


def test_a_plan_that_is_not_accepted_changes_nothing() -> None:
    """What cannot be watched leaves the plan and the configuration as they were."""
    configuration = Configuration({"wg_distribution": True, "ops": ["norm"]})
    chosen = planner(configuration)
    before = chosen.plan
    configuration.asked["ops"] = configuration.assign("ops", ["max"])
    for plan in chosen.plans(3, list):
        assert plan.settings.ops == ("max",)
        break
    assert chosen.plan is before
    assert (chosen.settings.ops, configuration.asked) == (("norm",), {})


def test_a_changed_file_is_a_plan_and_a_pace_goes_on_with_its_count(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """At rest until the file says otherwise, and again when it says so."""
    monkeypatch.setenv("DYNAMIC_MONITOR", "True")
    path = tmp_path / "probe.json"

    def write(**keys: Any) -> None:
        path.write_text(json.dumps({"wg_distribution": True, "max_overhead": 0.5, **keys}))
        os.utime(path, (time.time(), time.time()))

    write(dynamic_on=False)
    chosen = planner(Configuration(path))
    assert (chosen.plan.purpose, chosen.collecting, sampled(chosen.plan, range(5))) == ("rest", False, [])
    write(dynamic_on=True)
    (on,) = advance(chosen, 5)
    assert (on.purpose, on.origin, chosen.collecting) == ("collect", "configuration", True)
    assert on.schedule.pace is not None
    on.schedule.pace.skipped = 3
    write(dynamic_on=True, step_interval=2)
    (changed,) = advance(chosen, 6)
    assert changed.schedule.pace is not None
    assert (changed.schedule.step_interval, changed.schedule.pace.skipped) == (2, 3)
    write(dynamic_on=False, step_interval=2)
    (off,) = advance(chosen, 8)
    assert (off.purpose, off.sources, chosen.settings.dynamic_on) == ("rest", [], False)
    chosen.close()


def test_training_is_stopped_once_after_the_step_whose_structure_is_written() -> None:
    """A program that catches it goes on."""
    chosen = planner(Configuration({"print_struct": True}), first=4)
    assert (chosen.plan.purpose, chosen.plan.writes, sampled(chosen.plan, range(4, 8))) == ("structure", False, [4])
    with pytest.raises(TrainingStopped):
        advance(chosen, 5)
    assert advance(chosen, 6) == []


def test_no_source_of_plans_touches_the_session() -> None:
    """The attachment alone applies plans; ``control`` proposes them, and ``output`` knows a session's steps alone."""
    users = {}
    for path in (ROOT / "probe" / "core").rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.ImportFrom) and node.module == "probe.core.instrumentation.session":
                users[path.relative_to(ROOT / "probe" / "core").as_posix()] = {alias.name for alias in node.names}
    assert {file for file, names in users.items() if "Session" in names} == {
        "monitor/attachment.py",  # makes and ends it
        "monitor/sentinel_attachment.py",  # shows it every update
    }
    calls = [
        path.name
        for path in (ROOT / "probe" / "core" / "monitor").glob("*.py")
        if "session.change(" in path.read_text(encoding="utf-8")
    ]
    assert calls == ["attachment.py"]
