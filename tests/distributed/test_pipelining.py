"""torch.distributed.pipelining: micro batches are those of the schedule; what a stage runs for shapes alone is none."""

from __future__ import annotations

from typing import Any

import pytest

from tests.distributed.ranks import Ranks
from tests.distributed.sharded import LR, Part, Traces, assert_close, assert_no_traces, parts, traces
from tests.pytorch.watching import watch
from tests.required import require
from tests.tables import Row

torch = require("torch")

import torch.distributed as dist  # noqa: E402 - only where torch is
from torch.distributed.pipelining import (  # noqa: E402
    PipelineStage,
    Schedule1F1B,
    ScheduleGPipe,
    ScheduleInterleaved1F1B,
    ScheduleInterleavedZeroBubble,
    schedules,
    stage,
)

WIDTH, ROWS, MICRO_BATCHES = 6, 8, 4


class Layer(torch.nn.Module):
    """One stage."""

    def __init__(self, seed: int) -> None:
        super().__init__()
        with torch.random.fork_rng():
            torch.manual_seed(seed)
            self.linear = torch.nn.Linear(WIDTH, WIDTH)

    def forward(self, x: Any) -> Any:
        return torch.tanh(self.linear(x))


def data(step: int) -> tuple[Any, Any]:
    generator = torch.Generator().manual_seed(step)
    return torch.randn(ROWS, WIDTH, generator=generator), torch.randn(ROWS, WIDTH, generator=generator)


def loss_of(outputs: Any, target: Any) -> Any:
    return (outputs - target).square().mean()


class Pipeline:
    """This rank's stages, and their schedule.

    Args:
        chunks: stages of each rank.
    """

    def __init__(self, kind: Any, chunks: int) -> None:
        rank, size = dist.get_rank(), dist.get_world_size()
        self.numbers = [rank + size * chunk for chunk in range(chunks)]
        self.models = [Layer(number) for number in self.numbers]
        cpu, total = torch.device("cpu"), size * chunks
        stages = [PipelineStage(m, n, total, cpu) for m, n in zip(self.models, self.numbers, strict=True)]
        given = stages if chunks > 1 else stages[0]
        self._schedule = kind(given, n_microbatches=MICRO_BATCHES, loss_fn=loss_of)
        self.optimizer = torch.optim.SGD([p for m in self.models for p in m.parameters()], LR)
        self._last = total - 1 in self.numbers

    def step(self, number: int) -> list[float]:
        x, y = data(number)
        losses: list[Any] = []
        given: dict[str, Any] = {"target": y, "losses": losses} if self._last else {}
        self._schedule.step(*([x] if dist.get_rank() == 0 else []), **given)
        self.optimizer.step()
        self.optimizer.zero_grad()
        return [loss.item() for loss in losses]


def by_hand(total: int) -> tuple[list[list[dict[str, Any]]], list[dict[str, Any]]]:
    """Of the first step and each stage: gradients of each micro batch's own loss; inputs, outputs and gradients."""
    layers = [Layer(number) for number in range(total)]
    gradients: list[list[dict[str, Any]]] = [[] for _ in layers]
    activations: list[dict[str, Any]] = [{} for _ in layers]
    x, y = data(0)
    for i, (value, target) in enumerate(zip(x.chunk(MICRO_BATCHES), y.chunk(MICRO_BATCHES), strict=True)):
        values = [value.requires_grad_()]
        for layer in layers:
            values.append(layer(values[-1]))
        flowing = torch.autograd.grad(loss_of(values[-1], target), values, retain_graph=True)
        for number, layer in enumerate(layers):
            found = torch.autograd.grad(values[-1], list(layer.parameters()), flowing[-1], retain_graph=True)
            names = (name for name, _ in layer.named_parameters())
            gradients[number].append(dict(zip(names, found, strict=True)))
            activations[number] |= {
                ("actv", "linear.input", i): values[number],
                ("actv", ".output", i): values[number + 1],
                ("actv_grad", ".output", i): flowing[number + 1],
            }
            if number:
                activations[number]["actv_grad", "linear.input", i] = flowing[number]
    return gradients, activations


Seen = tuple[dict[Row, Part], bool, list[tuple[int, list[dict[str, Any]], dict[Any, Any]]]]
KINDS = {"GPipe": (ScheduleGPipe, 1), "1F1B": (Schedule1F1B, 1), "interleaved": (ScheduleInterleaved1F1B, 2)}


def seen(kind: str, each: Any) -> Seen:
    """Rows, whether training was the same, and for each chunk what it must have given."""
    schedule, chunks = KINDS[kind]
    plain = Pipeline(schedule, chunks)
    losses = [plain.step(number) for number in range(3)]
    watched = Pipeline(schedule, chunks)
    models = watched.models if chunks > 1 else watched.models[0]
    monitor = watch(models, watched.optimizer, MICRO_BATCHES, monitor_mbs_grad=each)
    same = losses == [watched.step(number) for number in range(3)]
    monitor.stop()
    assert monitor.faults == {}
    for one, other in zip(plain.models, watched.models, strict=True):
        same &= all(torch.equal(a, b) for a, b in zip(one.parameters(), other.parameters(), strict=True))
    gradients, activations = by_hand(dist.get_world_size() * chunks)
    about = [(chunk, gradients[n], activations[n]) for chunk, n in enumerate(watched.numbers)]
    return parts(monitor.output_directory), same, about


@pytest.mark.parametrize("each", [True, False, "accumulated"], ids=["each micro batch", "sum", "running sums"])
@pytest.mark.parametrize("kind", list(KINDS))
def test_micro_batches(two_ranks: Ranks, kind: str, each: Any) -> None:
    for rows, same, about in two_ranks.run(seen, kind, each):
        assert same, "losses or weights differ from those without a monitor"
        wanted: dict[Row, Any] = {}
        for chunk, gradients, activations in about:
            for (signal, name, i), value in activations.items():
                wanted[Row(signal, 0, name, i, 0, chunk)] = value
            for name in gradients[0]:
                own = [gradient[name] for gradient in gradients]
                wanted[Row("grad_reduced", 0, name, 0, 0, chunk)] = sum(own) / MICRO_BATCHES
                if each is False:
                    wanted[Row("grad_unreduced", 0, name, 0, 0, chunk)] = sum(own)
                    continue
                sums = own if each is True else [sum(own[: i + 1]) for i in range(len(own))]
                wanted |= {Row("grad_unreduced", 0, name, i, 0, chunk): value for i, value in enumerate(sums)}
        for row, value in wanted.items():
            assert_close(rows[row].numbers, value, row)
        signals = ("actv", "actv_grad", "grad_unreduced", "grad_reduced")
        first, later = (
            {row._replace(step=0) for row in rows if row.step == s and row.signal in signals} for s in (0, 1)
        )
        assert first == later, "the first step has no more and no less rows than the others"
        assert {row for row in first if "grad_" in row.signal} - {
            row for row in first if row.signal == "actv_grad"
        } == {row for row in wanted if row.signal in ("grad_unreduced", "grad_reduced")}
        assert {row.call for row in first} == {0}


def left() -> Traces:
    made: list[Pipeline] = []

    def make() -> Any:
        made.append(Pipeline(Schedule1F1B, 1))
        return made[-1].models[0]

    def steps(model: Any, optimizer: Any) -> None:
        (pipeline,) = (each for each in made if each.models[0] is model)
        pipeline.optimizer = optimizer
        for number in range(2):
            pipeline.step(number)

    return traces(make, lambda _: [], [stage, schedules, PipelineStage, Schedule1F1B, dist], steps=steps)


def test_nothing_is_left_behind_and_nothing_sent(two_ranks: Ranks) -> None:
    assert_no_traces([each._replace(freed=True) for each in two_ranks.run(left)])


def splitting() -> dict[str, int]:
    """The faults of a monitor of a schedule that splits each backward."""
    pipeline = Pipeline(ScheduleInterleavedZeroBubble, 2)
    monitor = watch(pipeline.models, pipeline.optimizer, MICRO_BATCHES)
    pipeline.step(0)
    monitor.stop()
    return monitor.faults


def test_a_schedule_that_splits_the_backward_is_told(two_ranks: Ranks) -> None:
    for faults in two_ranks.run(splitting):
        assert faults["micro batch: ValueError"] == 2 * MICRO_BATCHES
