"""Table of the outcomes that each kind of optimizer reports for its training steps, checked against the framework."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any, NamedTuple

import pytest

from tests.distributed import test_deepspeed as zero
from tests.distributed.models import Net, batch, loss_of
from tests.required import require

torch = require("torch")

INFINITE = float("inf")


class Heard:
    """Listener of steps that records their outcomes."""

    sampled = reads_gradients = True

    def __init__(self) -> None:
        self.told: list[str] = []

    def before(self, optimizer: Any, scale: Any) -> None:
        self.told.append("before")

    def after(self, optimizer: Any, outcome: str) -> None:
        self.told.append(outcome)

    def searching(self, on: bool) -> None:
        self.told.append("search" if on else "searched")

    def compiled(self, optimizer: Any, updates: Any) -> None:
        self.told.append("compiled")

    @property
    def faults(self) -> Heard:
        return self

    uncounted = 0

    def note(self, where: str, error: BaseException) -> None:
        self.told.append(f"{where}: {error}")


@contextmanager
def listened(*optimizers: Any) -> Iterator[list[str]]:
    """Outcomes that are reported for every step of these."""
    from probe.pytorch import hooks, parallel

    heard = Heard()
    with ExitStack() as stack:
        for optimizer in optimizers:
            stack.callback(hooks.on_step(parallel.acting(optimizer), heard))
        yield heard.told


Outcome = tuple[list[str], list[str]]
"""Recorded and expected outcomes."""


def told_for(outcomes: list[str]) -> list[str]:
    """Each step begins, and then has its outcome."""
    return [word for outcome in outcomes for word in ("before", outcome)]


def scaled(fused: bool) -> Outcome:
    """A GradScaler; the second of three steps overflows."""
    model, scaler = Net(), torch.amp.GradScaler("cpu", init_scale=8.0)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, fused=fused)
    with listened(optimizer) as told:
        for factor in (1.0, INFINITE, 1.0):
            scaler.scale(loss_of(model(batch(0, 0, 0))) * factor).backward()
            scaler.step(optimizer)
            scaler.update()
            optimizer.zero_grad()
    return told, told_for(["applied", "skipped", "applied"])


def searched() -> Outcome:
    """LBFGS calls its closure several times in each of two steps."""
    model, calls = Net(), []
    optimizer = torch.optim.LBFGS(model.parameters(), lr=0.1, max_iter=3)

    def closure() -> Any:
        optimizer.zero_grad()
        loss = loss_of(model(batch(0, 0, 0)))
        loss.backward()
        calls.append(loss)
        return loss

    with listened(optimizer) as told:
        for _ in range(2):
            optimizer.step(closure)
    assert len(calls) > 2
    line_search = [word for word in told if word.startswith("search")]
    assert line_search == ["search", "searched"] * (len(calls) - 2)
    return [word for word in told if word not in line_search], told_for(["applied"] * 2)


def two_optimizers() -> Outcome:
    """Each reports its own steps; the session decides which of them end a training step."""
    model = Net()
    optimizers = [torch.optim.SGD([p], lr=0.1) for p in (model.up.weight, model.down.weight)]
    with listened(*optimizers) as told:
        for _ in range(2):
            loss_of(model(batch(0, 0, 0))).backward()
            for optimizer in optimizers:
                optimizer.step()
    return told, told_for(["applied"] * 4)


def deepspeed(case: zero.Case, given: str) -> Outcome:
    """An engine with two parameter groups; where losses are scaled, the second of three steps overflows."""
    engine = zero.engine_of(case)
    inner = getattr(engine.optimizer, "optimizer", engine.optimizer)
    said = []
    with listened({"engine": engine, "optimizer": engine.optimizer, "inner": inner}[given]) as told:
        for factor in (1.0, INFINITE if case.precision == "fp16" else 1.0, 1.0):
            zero.train(engine, case, 1, factor)
            said.append("applied" if engine.was_step_applied() else "skipped")
    assert said.count("skipped") == (case.precision == "fp16")
    return told, told_for(said)


def megatron(half: bool, distributed: bool, chunks: int) -> Outcome:
    """Chained optimizers, one a chunk; in half precision the second of three steps overflows, in the first chunk."""
    from tests.distributed import megatron_tiny

    models, optimizer = megatron_tiny.build(half, distributed, chunks)
    with listened(optimizer) as told:
        overflows = [half and number == 1 for number in range(3)]
        applied = [megatron_tiny.step(models, optimizer, number, now)[1] for number, now in enumerate(overflows)]
    assert applied == [not now for now in overflows]
    megatron_tiny.step(models, optimizer, 3)
    return told, told_for(["applied" if each else "skipped" for each in applied])


class Line(NamedTuple):
    """One line of the table."""

    play: Callable[..., Outcome]
    arguments: tuple[Any, ...] = ()
    where: tuple[str, ...] = ()
    """The fixture of processes that it runs in, and what that is called with; none for this process."""


def zero_lines() -> Iterator[Any]:
    """DeepSpeed, stage by stage."""
    cases = [
        (zero.Case(0, "fp16", 2), "optimizer"),
        (zero.Case(0, "fp32", 2), "engine"),
        (zero.Case(1, "fp16", 2), "optimizer"),
        (zero.Case(1, "bf16", 2, accumulates_in="fp32"), "inner"),
        (zero.Case(2, "fp16", 2), "inner"),
        (zero.Case(2, "fp32", 1), "optimizer"),
        (zero.Case(3, "fp16", 2), "engine"),
        (zero.Case(3, "bf16", 1), "inner"),
    ]
    for version, tried in ((zero.NEWEST, cases), (zero.OLDER, [cases[0], cases[3], cases[6]])):
        for case, given in tried:
            line = Line(deepspeed, (case, given), ("deepspeed_ranks", version))
            yield pytest.param(line, id=f"DeepSpeed {version} ZeRO-{case.stage} {case.precision}, {given}")


def megatron_lines() -> Iterator[Any]:
    """Megatron-Core: in half precision or not, with the distributed optimizer or not, of one chunk or two."""
    cases = [(False, False, 2), (False, True, 2), (True, False, 1), (True, True, 1), (True, True, 2)]
    for version, tried in (("0.16.1", cases), ("0.12.3", cases[-1:])):
        for case in tried:
            half, distributed, chunks = case
            what = f"{'fp16' if half else 'fp32'}{', distributed' * distributed}, {chunks} in a chain"
            yield pytest.param(Line(megatron, case, ("megatron_ranks", version)), id=f"Megatron-Core {version} {what}")


TABLE = [
    pytest.param(Line(scaled, (False,)), id="GradScaler"),
    pytest.param(Line(scaled, (True,)), id="GradScaler, fused"),
    pytest.param(Line(searched), id="LBFGS"),
    pytest.param(Line(two_optimizers), id="two optimizers"),
    *zero_lines(),
    *megatron_lines(),
]


@pytest.mark.parametrize("line", TABLE)
def test_every_training_step_is_told_once_with_its_outcome(request: pytest.FixtureRequest, line: Line) -> None:
    if line.where:
        fixture, *arguments = line.where
        answers = request.getfixturevalue(fixture)(*arguments).run(line.play, *line.arguments)
    else:
        answers = [line.play(*line.arguments)]
    for told, expected in answers:
        assert told == expected
