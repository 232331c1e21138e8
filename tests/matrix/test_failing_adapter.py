"""An adapter that fails: each of its functions in turn, after training has begun."""

from __future__ import annotations

import inspect
import logging
import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from importlib import import_module
from pathlib import Path
from typing import Any, get_args, get_type_hints

import numpy as np
import pytest

from probe.core.backend.protocols import FrameworkAdapter
from probe.core.monitor.trainer_mon import watcher_of
from probe.launch.made_objects import FINDERS
from probe.launch.trainer_run import TrainerRun
from probe.launch.watch import ScriptWatch
from tests.matrix.harness import FRAMEWORKS, Harness, Loop, Module, Tensor, train_step
from tests.matrix.models import SQUARE
from tests.matrix.watching import EVERYTHING, LR, MOMENTUM, inputs

ROOT = Path(__file__).parents[2]
ELSEWHERE = {
    "hooks.at_next_forward": "test_an_adapter_that_fails_when_the_last_step_was_collected",
    "hooks.may_rest": "test_a_function_that_fails_between_sampled_steps",
    **dict.fromkeys(
        (
            "arrays.on_host",
            "tensors.adam",
            "hooks.recomputed_by",
            "hooks.held_scale",
            "hooks.found_inf",
            "hooks.holds",
            "loop.divided",
            "loop.first_not_finite",
            "loop.oddities",
            "loop.origins",
            "loop.overrun",
        ),
        "tests/pytorch/test_failing_adapter.py",
    ),
    **dict.fromkeys(
        (
            "parallel.has_store",
            "parallel.meet",
            "parallel.store",
            "collectives.bytes_of",
            "loop.own_gradients",
            "loop.part_ways",
        ),
        "tests/distributed/test_failing_adapter.py",
    ),
}
"""Functions that are called at other times than in attaching and in a step of these models, and the test of each."""
REPLACED = {"tensors.host_place"}
"""Functions whose failure changes no row: tensors are then reduced in the general way, which counts its failures."""
SETTINGS = EVERYTHING | {
    "run": {"enable": True},
    "sentinel": {"enable": True},
    "mg_direction": True,
    "ur_distribution": True,
    "monitor_mbs_grad": True,
    "recording_l2_features": True,
    "l2_targets": {"linear_hook": ["fc"], "attention_hook": ["looked"], "moe_router_logit_hook": ["inner"]},
    "sa_mask": "causal",
    "router_top_k": 1,
    "alert": {"rules": []},
}


class Injected(Exception):  # noqa: N818 - no error
    """Exception that a function raises instead of its result."""


class Switch:
    """Functions of the adapter that fail now."""

    def __init__(self) -> None:
        self.failing: set[str] = set()
        self.asked: set[str] = set()
        """Functions that have been called, failing or not."""
        self.called: set[str] = set()
        """Failing functions that have been called."""

    def function(self, name: str, function: Callable[..., Any]) -> Callable[..., Any]:
        """``function``, which fails while the switch is on its name."""

        def call(*args: Any, **kwargs: Any) -> Any:
            self.asked.add(name)
            if name in self.failing:
                self.called.add(name)
                raise Injected(name)
            return function(*args, **kwargs)

        return call


class Part:
    """A part of an adapter whose functions can fail."""

    def __init__(self, part: Any, name: str, switch: Switch) -> None:
        self._part, self._name, self._switch = part, name, switch

    def __getattr__(self, function: str) -> Any:
        return self._switch.function(f"{self._name}.{function}", getattr(self._part, function))


def asked_of(hint: Any) -> list[str]:
    """The functions of a part of an adapter, as its protocol has them."""
    protocols = [each for each in (hint, *get_args(hint)) if getattr(each, "_is_protocol", False)]
    return [
        name for each in protocols for name, one in vars(each).items() if inspect.isfunction(one) and name[0] != "_"
    ]


def functions(adapter: FrameworkAdapter) -> Iterator[str]:
    """Every function of ``adapter``: ``part.function``, or the field alone where it is a function."""
    for field, hint in get_type_hints(FrameworkAdapter).items():
        part = getattr(adapter, field)
        if asked_of(hint):
            yield from (f"{field}.{name}" for name in asked_of(hint) if part is not None)
        elif callable(part):
            yield field


def breakable(adapter: FrameworkAdapter, switch: Switch) -> FrameworkAdapter:
    """``adapter``, whose functions can fail."""
    parts: dict[str, Any] = {}
    for name in functions(adapter):
        field, dot, _ = name.partition(".")
        part = getattr(adapter, field)
        parts[field] = Part(part, field, switch) if dot else switch.function(field, part)
    return adapter._replace(**parts)


def every_part(framework: Harness) -> Module:
    """A layer, something to call attention and something to call a router, in one model."""
    looked, inner = framework.module(lambda query, key: query), framework.module(lambda x: x)
    fc, large = framework.linear(SQUARE), framework.parameter(np.ones(5000))
    query = framework.tensor(np.ones((1, 2, 3, 4)))

    def forward(x: Tensor) -> Tensor:
        looked(query, query)
        return inner(fc(x))

    return framework.module(forward, fc=fc, looked=looked, inner=inner, large=large)


def trained(framework: Harness) -> tuple[Module, Any, Loop]:
    """A model with its optimizer and loop."""
    model = every_part(framework)
    rates = (
        {"lr": LR / 8, "beta1": 0.9, "beta2": 0.99} if "adam" in framework.STATE else {"lr": LR, "momentum": MOMENTUM}
    )
    optimizer = framework.optimizer("adam" if "adam" in framework.STATE else "momentum", model, **rates)
    return model, optimizer, framework.loop(model, optimizer)


def step(framework: Harness, model: Module, loop: Loop) -> dict[str, bytes]:
    """The weights after another step of two micro batches."""
    train_step(loop, *inputs(framework, 2))
    return {name: array.tobytes() for name, array in framework.weights(model).items()}


@pytest.fixture
def switch(framework: Harness, monkeypatch: pytest.MonkeyPatch) -> Switch:
    """That of the adapter of ``framework``."""
    made = Switch()
    monkeypatch.setattr(framework.TrainerMon, "framework", breakable(framework.TrainerMon.framework, made))
    return made


def test_a_function_that_fails_leaves_training_as_it_is(
    framework: Harness, switch: Switch, caplog: pytest.LogCaptureFixture
) -> None:
    """Each function of the adapter in turn raises through a step and through a change of what is collected: the weights
    are those of a training without a monitor, bit by bit, and each failure is counted."""
    caplog.set_level(logging.CRITICAL, "probe")  # tracebacks take most of the time
    every = list(functions(framework.TrainerMon.framework))
    of_collectives = [name for name in every if name.startswith("collectives.")]
    fail_in_turn(framework, switch, [name for name in every if name not in of_collectives], SETTINGS)
    fail_in_turn(framework, switch, of_collectives, {"wg_distribution": True, "cc_distribution": {"enable": True}})
    assert len(switch.called) > 40


def fail_in_turn(framework: Harness, switch: Switch, names: Iterable[str], settings: Mapping[str, Any]) -> None:
    """Two trainings, of which one is watched: through each of its steps a function fails."""
    plain_model, _, plain_loop = trained(framework)
    model, optimizer, loop = trained(framework)
    monitor = framework.TrainerMon(settings)
    monitor.set_monitor(model, 1, optimizer)
    for name in names:
        before = dict(monitor.faults)
        switch.failing = {name}
        monitor.log(loss=framework.tensor(np.ones(1)))
        assert step(framework, model, loop) == step(framework, plain_model, plain_loop), name
        monitor.ops = ["mean", "min"]  # everything is found and hooked anew
        assert monitor.flush()
        assert (monitor.faults != before) == (name in switch.called - REPLACED), name
        switch.failing = set()
        monitor.ops = ["mean", "max"]
    monitor.stop()


def test_an_adapter_that_fails_when_the_run_ends(framework: Harness, switch: Switch) -> None:
    """stop() raises nothing and counts what failed; called again it takes the hooks away that it had to leave."""
    model, optimizer, loop = trained(framework)
    step(framework, model, loop)
    before = framework.picture([model], [optimizer])
    monitor = framework.TrainerMon(SETTINGS)
    monitor.set_monitor(model, 1, optimizer)
    step(framework, model, loop)
    assert monitor.flush()
    switch.failing = set(functions(framework.TrainerMon.framework))
    asked = {"hooks.at_work", "loop.training"} & switch.failing
    monitor.stop()
    assert monitor.faults == {"end of the run: Injected": len(asked)}
    assert switch.called == asked
    assert not monitor.monitoring
    step(framework, model, loop)
    switch.failing = set()
    monitor.stop()
    assert framework.picture([model], [optimizer]) == before


# Other times than within a step.


def three_lines(framework: Harness, model: Module, optimizer: Any) -> Callable[[], None]:
    """A monitor of the program, which may raise before training begins; the function that ends it."""
    monitor = None
    with suppress(Injected):
        monitor = framework.TrainerMon(SETTINGS | {"cc_distribution": {"enable": True}})
        monitor.set_monitor(model, 1, optimizer)
    return (lambda: None) if monitor is None else monitor.stop


def callback(framework: Harness, model: Module, optimizer: Any) -> Callable[[], None]:
    """What a trainer's callback does when training begins."""
    run = TrainerRun(framework.TrainerMon, SETTINGS | {"cc_distribution": {"enable": True}})
    run.begin([model], [optimizer])
    return run.end


def program(framework: Harness, model: Module, optimizer: Any) -> Callable[[], None]:
    """What ``probe run`` does when the optimizer is made: the monitor attaches at the first forward."""
    package = "torch" if framework.TrainerMon.framework.name == "pytorch" else "mindspore"
    watch, exits = ScriptWatch(import_module(FINDERS[package]).WATCH._finder), os._exit
    watch.source = lambda: SETTINGS | {"cc_distribution": {"enable": True}}
    watch.made(optimizer)

    def end() -> None:
        if (monitor := watcher_of([model])) is not None:
            monitor.stop()
        os._exit = exits  # type: ignore[assignment] # which the watch has replaced for the rest of its process

    return end


FRONTS = [
    *((three_lines, framework) for framework in FRAMEWORKS),
    (callback, "pytorch"),  # which is the same code for all
    *((program, framework) for framework in ("pytorch", "mindspore")),  # which a command starts
]


@pytest.mark.parametrize(("front", "framework"), FRONTS, indirect=["framework"])
def test_a_function_that_fails_while_a_monitor_attaches(
    framework: Harness, switch: Switch, front: Callable[..., Callable[[], None]], caplog: pytest.LogCaptureFixture
) -> None:
    """However it attaches, each function that is called then in turn: the weights are those of a training without a
    monitor, and nothing is left behind."""
    caplog.set_level(logging.CRITICAL, "probe")
    plain_model, _, plain_loop = trained(framework)
    model, optimizer, loop = trained(framework)
    step(framework, model, loop)
    step(framework, plain_model, plain_loop)
    before = framework.picture([model], [optimizer])
    three_lines(framework, model, optimizer)()
    names = sorted(switch.asked & set(functions(framework.TrainerMon.framework)))
    for name in [*names, "hooks.on_step"]:
        switch.failing = {name}
        end = front(framework, model, optimizer)
        assert step(framework, model, loop) == step(framework, plain_model, plain_loop), name
        switch.failing = set()
        end()
        assert framework.picture([model], [optimizer]) == before, name
    early = {"prepare", "on_every_step", "hooks.on_step", "groups.ranks_of", "collectives.listen"}
    assert early & set(functions(framework.TrainerMon.framework)) <= switch.called


def test_a_function_that_fails_between_sampled_steps(
    framework: Harness, switch: Switch, caplog: pytest.LogCaptureFixture
) -> None:
    """Hooks that are to rest stay: training is as without a monitor, and the failure is counted."""
    caplog.set_level(logging.CRITICAL, "probe")
    plain_model, _, plain_loop = trained(framework)
    model, optimizer, loop = trained(framework)
    monitor = framework.TrainerMon(SETTINGS | {"step_interval": 4})
    monitor.set_monitor(model, 1, optimizer)
    switch.failing = {"hooks.may_rest"}
    for _ in range(6):
        assert step(framework, model, loop) == step(framework, plain_model, plain_loop)
    assert switch.called == switch.failing
    assert sum(monitor.faults.values()) > 0
    switch.failing = set()
    monitor.stop()


def test_an_adapter_that_fails_when_the_last_step_was_collected(framework: Harness, switch: Switch) -> None:
    """Hooks that should go at the next forward stay until stop(); training is as without a monitor."""
    plain_model, _, plain_loop = trained(framework)
    model, optimizer, loop = trained(framework)
    step(framework, model, loop)
    step(framework, plain_model, plain_loop)
    before = framework.picture([model], [optimizer])
    monitor = framework.TrainerMon({"wg_distribution": True, "collect_times": 2})
    monitor.set_monitor(model, 1, optimizer)
    switch.failing = {"hooks.at_next_forward"}
    for _ in range(4):
        assert step(framework, model, loop) == step(framework, plain_model, plain_loop)
    assert switch.called == switch.failing
    assert sum(monitor.faults.values()) > 0
    switch.failing = set()
    monitor.stop()
    step(framework, model, loop)
    monitor.stop()
    assert framework.picture([model], [optimizer]) == before


def test_no_function_is_left_out(framework: Harness, switch: Switch) -> None:
    """Each function of the adapter is called while a monitor attaches, or in steps, or another test makes it fail."""
    model, optimizer, loop = trained(framework)
    for settings in (SETTINGS, SETTINGS | {"cc_distribution": {"enable": True}}):
        monitor = framework.TrainerMon(settings)
        monitor.set_monitor(model, 1, optimizer)
        monitor.log(loss=framework.tensor(np.ones(1)))
        for _ in range(3):
            step(framework, model, loop)
        monitor.stop()
    assert set(functions(framework.TrainerMon.framework)) - switch.asked <= set(ELSEWHERE)
    for where in ELSEWHERE.values():
        assert where in globals() or (ROOT / where).exists(), where
