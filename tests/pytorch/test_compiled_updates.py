"""Updates that ``torch.compile`` compiles: our hooks are traced to nothing, and what is not seen is counted."""

from __future__ import annotations

import itertools
import sys
from collections.abc import Callable
from functools import cache
from typing import Any

import pytest

from tests.required import require

torch = require("torch")

from probe.core.instrumentation.other_updates import COMPILED  # noqa: E402
from probe.pytorch import TrainerMon  # noqa: E402

STEPS = 4
X = torch.randn(6, 8, generator=torch.Generator().manual_seed(1))
EVERYTHING = {
    "wg_distribution": True,
    "xy_distribution": True,
    "param_distribution": True,
    "mv_distribution": True,
    "cc_distribution": {"enable": True},
}
SENTINEL = {"sentinel": {"enable": True}}
SEEN = sys.version_info >= (3, 13)
"""Whether torch runs an update with anybody's hooks as it is, but for the arithmetic, after tracing it (2.13)."""
UNSEEN = 0 if SEEN else STEPS
"""Compiled updates of torch's optimizers that no hook sees."""


class Plain:
    """An optimizer that is none of torch's, and that compiles as one graph."""

    def __init__(self, parameters: Any) -> None:
        self.param_groups: list[dict[str, Any]] = [{"params": list(parameters), "lr": 0.1}]

    @torch.no_grad()
    def step(self) -> None:
        for parameter in self.param_groups[0]["params"]:
            parameter.sub_(0.1 * parameter.grad)

    def zero_grad(self) -> None:
        for parameter in self.param_groups[0]["params"]:
            parameter.grad = None


OPTIMIZERS: dict[str, Callable[[Any], Any]] = {
    "Adam": lambda parameters: torch.optim.Adam(parameters, 0.1),
    "SGD": lambda parameters: torch.optim.SGD(parameters, 0.1, momentum=0.9),
    "Plain": Plain,
}


class Outcome:
    """What a training of four steps leaves behind."""

    def __init__(self, monitored: bool, part: str, kind: str, backend: str, **options: Any) -> None:
        torch._dynamo.reset()
        torch._dynamo.utils.counters.clear()
        torch.manual_seed(0)
        self.model = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.ReLU(), torch.nn.Linear(16, 4))
        self.optimizer = OPTIMIZERS[kind](self.model.parameters())
        self.steps: dict[int, dict[str, int]] = {}
        interval, watched = options.pop("step_interval", 1), options.pop("watched", EVERYTHING)
        compiling = {"backend": backend, **options}
        self.numbers: list[dict[str, float]] = []
        if not monitored and SEEN and kind != "Plain":
            self.optimizer.register_step_pre_hook(lambda *_: None)
        if monitored:
            settings = {"format": "api", "step_interval": interval, "alert": {"rules": []}, **watched}
            self.monitor = TrainerMon(settings)
            self.monitor.on_snapshot(self._receive)
            self.monitor.set_monitor(self.model, 1, self.optimizer)
            self.monitor.on_run_step(lambda step: self.numbers.append({**step.values}))
        self._train(part, compiling)
        counters = torch._dynamo.utils.counters
        self.compiled = dict(counters["stats"]), dict(counters["graph_break"]), dict(counters["recompiles"])
        if monitored:
            assert self.monitor.flush()
            attachment = self.monitor._attachment
            assert attachment is not None
            self.preflight = "" if attachment.judge is None else attachment.judge.panel.preflight()
            self.monitor.stop()
            self.faults = self.monitor.faults

    def _receive(self, snapshot: Any) -> None:
        self.steps[snapshot.step] = {batch.signal: len(batch.keys) for batch in snapshot.batches}

    def _train(self, part: str, compiling: dict[str, Any]) -> None:
        update = self.optimizer.step
        if part == "update":
            update = torch.compile(lambda: self.optimizer.step(), **compiling)  # noqa: PLW0108 - the recipe
        elif part == "method":
            update = torch.compile(self.optimizer.step, **compiling)
        elif part == "every second":
            both = itertools.cycle([torch.compile(self.optimizer.step, **compiling), self.optimizer.step])
            update = lambda: next(both)()  # noqa: E731, PLW0108 - one of them at a time

        def step() -> None:
            forward().pow(2).sum().backward()
            update()
            self.optimizer.zero_grad()

        forward = torch.compile(lambda: self.model(X), **compiling) if part == "model" else lambda: self.model(X)
        trained = torch.compile(step, **compiling) if part == "step" else step
        for _ in range(STEPS):
            trained()

    @property
    def weights(self) -> list[Any]:
        return [parameter.detach() for parameter in self.model.parameters()]


@cache
def unwatched(part: str, kind: str, backend: str, **options: Any) -> Outcome:
    """The same training without a monitor."""
    return Outcome(False, part, kind, backend, **options)


def assert_undisturbed(part: str, kind: str, backend: str, **options: Any) -> Outcome:
    """The same weights to the bit, and the same graphs, breaks and recompilations, with and without monitor."""
    ours = {name: options.pop(name) for name in ("step_interval", "watched") if name in options}
    without = unwatched(part, kind, backend, **options)
    within = Outcome(True, part, kind, backend, **ours, **options)
    assert within.compiled == without.compiled
    assert within.compiled[0].get("unique_graphs", 0) > 0
    assert all(torch.equal(a, b) for a, b in zip(within.weights, without.weights, strict=True))
    return within


@pytest.mark.parametrize(
    ("part", "backend", "kind"),
    [
        ("update", "eager", "Adam"),
        ("update", "aot_eager", "SGD"),
        ("method", "eager", "SGD"),
        ("method", "aot_eager", "Adam"),
        ("step", "aot_eager", "Adam"),
        ("step", "inductor", "SGD"),
    ],
)
def test_a_compiled_update_trains_as_without(part: str, backend: str, kind: str) -> None:
    """PyTorch's recipe of a compiled optimizer, and a compiled step, compile and train as without a monitor; each
    update that no hook has seen is counted, and steps are counted all the same. Each part by two backends and both
    optimizers: our hooks meet the tracing alone, which is the same for all backends."""
    run = assert_undisturbed(part, kind, backend)
    assert run.faults.get(COMPILED, 0) == UNSEEN
    assert [*run.steps] == [*range(STEPS)]
    assert all(rows["grad_unreduced"] == 4 for rows in run.steps.values())
    assert all(("param_updated" in rows) is SEEN for rows in run.steps.values())


@pytest.mark.parametrize("backend", ["eager", "aot_eager"])
def test_an_update_compiled_as_one_graph_has_no_break(backend: str) -> None:
    """``fullgraph=True`` forbids breaks of the graph: the monitor makes none."""
    run = assert_undisturbed("update", "Plain", backend, fullgraph=True)
    assert run.faults[COMPILED] == STEPS
    assert [*run.steps] == [*range(STEPS)]


@pytest.mark.parametrize(
    ("part", "kind", "backend"),
    [
        ("model", "Adam", "eager"),
        ("update", "SGD", "eager"),
        ("step", "SGD", "inductor"),
    ],
)
def test_the_sentinel_compiles_nothing(part: str, kind: str, backend: str) -> None:
    """As many graphs, breaks and recompilations as without it. It sees the loss of each backward that is not compiled;
    an update that is compiled is counted as unseen, and no check of updates claims to have looked."""
    run = assert_undisturbed(part, kind, backend, watched=SENTINEL, step_interval=1000)
    assert len(run.numbers) == STEPS
    if part == "model" or SEEN:
        assert all(step["loss_root"] > 0 and step["gradient_norm"] > 0 for step in run.numbers)
        assert run.faults == {}
    else:
        assert run.faults == {COMPILED: STEPS}
        assert all("gradient_norm" not in step for step in run.numbers)
        assert all(step["loss_root"] > 0 and step["backwards"] == 1.0 for step in run.numbers)
        assert "2 hold" in run.preflight, "those of losses alone"
        assert "updates are compiled, and no hook runs in them: gradient-not-finite" in run.preflight


def test_the_sentinel_breaks_no_graph_that_must_be_whole() -> None:
    """``fullgraph=True`` for the model with a clip of its gradients, and for an update."""
    assert_undisturbed("update", "Plain", "eager", fullgraph=True, watched=SENTINEL)
    assert_undisturbed("model", "SGD", "aot_eager", fullgraph=True, watched=SENTINEL)


def test_steps_that_are_not_sampled_are_counted_too() -> None:
    """With an interval of two, two of four steps have rows."""
    run = assert_undisturbed("step", "Adam", "aot_eager", step_interval=2)
    assert [*run.steps] == [0, 2]
    assert run.faults.get(COMPILED, 0) == UNSEEN


def test_an_update_that_hooks_see_after_all_is_counted_once() -> None:
    """Traced or not: every second update is not compiled."""
    run = assert_undisturbed("every second", "SGD", "eager")
    assert [*run.steps] == [*range(STEPS)]
    assert run.faults.get(COMPILED, 0) == UNSEEN / 2
    assert all(("param_updated" in rows) is (SEEN or step % 2 == 1) for step, rows in run.steps.items())


def test_a_compiled_update_is_reported_once(caplog: pytest.LogCaptureFixture) -> None:
    """One line says what is missing, and what to do."""
    Outcome(True, "update", "Adam", "eager")
    assert caplog.text.count("call optimizer.step() outside of what is compiled") == (0 if SEEN else 1)


def test_hooks_are_not_compiled_by_themselves() -> None:
    """Where a compiled region calls a module that is not compiled, hooks run as they are: they are no graphs."""

    class Outer(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = torch.nn.Linear(8, 4)

        def forward(self, x: Any) -> Any:
            torch._dynamo.graph_break()
            return self.inner(x)

    def graphs(monitored: bool) -> dict[str, int]:
        torch._dynamo.reset()
        torch._dynamo.utils.counters.clear()
        model = Outer()
        optimizer = torch.optim.SGD(model.parameters(), 0.1)
        if monitored:
            monitor = TrainerMon({"format": "api", "xy_distribution": True, "alert": {"rules": []}})
            monitor.set_monitor(model, 1, optimizer)
        compiled = torch.compile(model, backend="eager")
        for _ in range(3):
            compiled(X).sum().backward()
            optimizer.step()
        if monitored:
            monitor.stop()
        return dict(torch._dynamo.utils.counters["stats"])

    assert graphs(True) == graphs(False)
