"""Expected rows of ranks that share a model's tensors, by hand, and the merging of their parts into wholes."""

from __future__ import annotations

import csv
import gc
import math
import weakref
from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from probe.core.moments import merge
from tests.distributed.models import Net, Reference, batch, copy_of, loss_of
from tests.pytorch.watching import numbers, watch
from tests.required import require
from tests.tables import OPS, Row

torch = require("torch")

import torch.distributed as dist  # noqa: E402 - only where torch is

STEPS, LR = 2, 0.1
SHARED = ("grad_reduced", "param_origin", "param_updated", "momentum_buffer")

Quiet = Callable[[Any, bool], AbstractContextManager[object]]
"""Given the model and whether this is the step's last micro batch: within it, gradients are reduced or not."""


class Part(NamedTuple):
    """Numbers of one row."""

    numbers: dict[str, float]
    numel: int
    dtype: str
    coverage: str


class Seen(NamedTuple):
    """Rows of one rank, and the expected ones."""

    rows: dict[Row, Part]
    same: bool
    """Whether losses and weights were those of training without a monitor, to the last bit."""
    reference: Reference
    activations: dict[Row, Any]


def parts(directory: str | None) -> dict[Row, Part]:
    """Every row of every file."""
    found: dict[Row, Part] = {}
    for path in sorted(Path(directory or "").glob("*.csv")):
        with path.open(newline="", encoding="utf-8") as file:
            for line in csv.DictReader(file):
                counts = (int(line.get(count) or 0) for count in ("micro_step", "call", "vpp_stage"))
                name = line["name"].removesuffix(f".call{line.get('call')}")
                row = Row(path.stem.rpartition("_")[0], int(line["step"]), name, *counts)
                assert row not in found, f"{row} twice"
                shape = [int(size) for size in line["shape"].strip("[]").split(",") if size.strip()]
                values = {op: float(line[op]) for op in OPS}
                found[row] = Part(values, math.prod(shape), line["dtype"], line.get("coverage") or "")
    return found


def train(model: Any, optimizer: Any, micro_batches: int, quiet: Quiet | None = None) -> list[float]:
    """The losses of some steps."""
    losses = []
    for step in range(STEPS):
        for i in range(micro_batches):
            with nullcontext() if quiet is None else quiet(model, i == micro_batches - 1):
                loss = loss_of(model(batch(step, i)))
                loss.backward()
            losses.append(loss.item())
        optimizer.step()
        optimizer.zero_grad()
    return losses


def observed(
    wrap: Callable[[Any], Any],
    micro_batches: int = 1,
    *,
    quiet: Quiet | None = None,
    dtype: Any = None,
    clip: float | None = None,
    **settings: Any,
) -> Seen:
    """Trains twice, without a monitor and with one.

    Args:
        wrap: gives the model to train; it may replace the parameters.
        dtype: in which forward and backward run, if not in that of the parameters.
    """
    plain = wrap(Net())
    losses = train(plain, _optimizer(plain, clip), micro_batches, quiet)
    model = wrap(Net())
    optimizer = _optimizer(model, clip)
    monitor = watch(model, optimizer, micro_batches, **settings)
    same = losses == train(model, optimizer, micro_batches, quiet)
    monitor.stop()
    assert monitor.faults == {}
    for a, b in zip(plain.parameters(), model.parameters(), strict=True):
        same &= torch.equal(_local(a), _local(b))
    rows = parts(monitor.output_directory)
    return Seen(rows, same, reference(micro_batches, dtype), activations(micro_batches, dtype))


def _optimizer(model: Any, clip: float | None) -> Any:
    optimizer = torch.optim.SGD(model.parameters(), LR, momentum=0.5, foreach=False)
    if clip is not None:
        optimizer.register_step_pre_hook(lambda *_: torch.nn.utils.clip_grad_norm_(model.parameters(), clip) and None)
    return optimizer


def _local(tensor: Any) -> Any:
    return tensor.detach().to_local() if hasattr(tensor, "to_local") else tensor.detach()


def reference(micro_batches: int, dtype: Any = None) -> Reference:
    """The first step of all ranks' data, in one process."""
    model, world = Net(), dist.get_world_size()
    low = Net().to(dtype) if dtype is not None else model
    own = [[_gradients(low, i, rank, dtype) for i in range(micro_batches)] for rank in range(world)]
    reduced = {name: sum(one[name].float() for each in own for one in each) / world for name in own[0][0]}
    before = copy_of(model)
    after = {name: before[name] - LR * reduced[name] for name in before}
    return Reference(own[dist.get_rank()], reduced, before, after)


def _gradients(model: Any, micro_batch: int, rank: int, dtype: Any) -> dict[str, Any]:
    loss = loss_of(model(batch(0, micro_batch, rank).to(dtype or torch.float32)))
    found = torch.autograd.grad(loss, list(model.parameters()))
    return {name: gradient for (name, _), gradient in zip(model.named_parameters(), found, strict=True)}


def activations(micro_batches: int, dtype: Any = None) -> dict[Row, Any]:
    """Inputs and outputs of modules in the first step, and their gradients, for this rank's data."""
    model = Net().to(dtype or torch.float32)
    rows: dict[Row, Any] = {}
    for i in range(micro_batches):
        x = batch(0, i).to(dtype or torch.float32)
        up = model.up(x)
        norm = model.norm(up)
        tanh = torch.tanh(norm)
        down = model.down(tanh)
        gradients = torch.autograd.grad(loss_of(down), [up, norm, tanh, down])
        values = {"up.input": x, "up.output": up, "norm.input": up, "norm.output": norm, "down.input": tanh}
        values |= {"down.output": down, ".output": down}
        rows |= {Row("actv", 0, name, i): value for name, value in values.items()}
        names = [("up.output", "norm.input"), ("norm.output",), ("down.input",), ("down.output", ".output")]
        for gradient, each in zip(gradients, names, strict=True):
            rows |= {Row("actv_grad", 0, name, i): gradient for name in each}
    return rows


def assert_close(got: dict[str, float], tensor: Any, about: object, bound: float = 1e-5) -> None:
    """Norm to ``bound`` relative; extremes and mean to ``bound`` of the root mean square."""
    wanted = numbers(tensor.float())
    rms = wanted["norm"] / math.sqrt(tensor.numel())
    for op, value in wanted.items():
        scale = wanted["norm"] if op == "norm" else rms
        assert abs(got[op] - value) <= bound * scale + 1e-9, f"{about} {op}: {got[op]}, expected {value}"


def assert_seen(
    ranks: Sequence[Seen], unreduced: dict[Row, Any] | Callable[[Seen], dict[Row, Any]], bound: float = 1e-5
) -> None:
    """Every rank's unreduced gradients and activations are its own; what ranks share makes up the whole tensors."""
    for seen in ranks:
        assert seen.same, "losses or weights differ from those without a monitor"
        wanted = unreduced(seen) if callable(unreduced) else unreduced
        assert rows_of(seen, "grad_unreduced") == set(wanted)
        for row, tensor in {**wanted, **seen.activations}.items():
            assert not seen.rows[row].coverage, row
            assert_close(seen.rows[row].numbers, tensor, row, bound)
    reference = ranks[0].reference
    first = {"grad_reduced": reference.reduced, "param_origin": reference.before, "param_updated": reference.after}
    for signal, tensors in first.items():
        for name, tensor in tensors.items():
            assert_whole([seen.rows[Row(signal, 0, name)] for seen in ranks], tensor, (signal, name), bound)
    for name, tensor in reference.reduced.items():  # where momentum begins: a rank without elements has none
        rows = [seen.rows.get(Row("momentum_buffer", 1, name)) for seen in ranks]
        assert_whole([row for row in rows if row], tensor, ("momentum_buffer", name), bound)


def rows_of(seen: Seen, signal: str, step: int = 0) -> set[Row]:
    """Of one signal and step."""
    return {row for row in seen.rows if row.signal == signal and row.step == step}


def assert_whole(rows: Iterable[Part], tensor: Any, about: object, bound: float = 1e-5) -> None:
    """The parts make up the whole ``tensor``, each of its elements once."""
    distinct = {part.coverage.partition(" over ")[0]: part for part in rows}
    assert sum(part.numel for part in distinct.values()) == tensor.numel(), f"{about}: {sorted(distinct)}"
    for part in distinct.values():
        assert part.numel == tensor.numel() or f"{part.numel} of {list(tensor.shape)} at " in part.coverage, about
    full = [part for part in distinct.values() if part.numel]
    merged = merge([_moments(part) for part in full], [part.numel for part in full])
    got = {"min": merged["min"], "max": merged["max"], "mean": merged["sum"] / tensor.numel()}
    got |= {"norm": math.sqrt(merged["sumsq"]), "nans": merged["nans"], "infs": merged["infs"]}
    assert_close(got, tensor, about, bound)


def _moments(part: Part) -> dict[str, float]:
    own = part.numbers
    counts = {"nans": own["nans"], "infs": own["infs"], "min": own["min"], "max": own["max"]}
    return {**counts, "sum": own["mean"] * part.numel, "sumsq": own["norm"] ** 2}


def each_micro_batch(seen: Seen) -> dict[Row, Any]:
    """Its own gradient for every micro batch."""
    local = enumerate(seen.reference.local)
    return {Row("grad_unreduced", 0, name, i): g for i, gradients in local for name, g in gradients.items()}


def sum_of_step(seen: Seen) -> dict[Row, Any]:
    """One local sum."""
    local = seen.reference.local
    return {Row("grad_unreduced", 0, name): sum(gradients[name] for gradients in local) for name in local[0]}


def running_sums(seen: Seen) -> dict[Row, Any]:
    """The local sum after each micro batch."""
    local = seen.reference.local
    return {
        Row("grad_unreduced", 0, name, i): sum(gradients[name] for gradients in local[: i + 1])
        for i in range(len(local))
        for name in local[0]
    }


MICRO_BATCHES = [
    pytest.param(False, False, sum_of_step, id="not reduced, the step's sum"),
    pytest.param(False, True, each_micro_batch, id="not reduced, each micro batch"),
    pytest.param(False, "accumulated", running_sums, id="not reduced, running sums"),
    pytest.param(True, False, each_micro_batch, id="reduced one by one: there is no sum"),
    pytest.param(True, True, each_micro_batch, id="reduced one by one, each micro batch"),
    pytest.param(True, "accumulated", each_micro_batch, id="reduced one by one, so that nothing accumulates"),
]
"""Whether each micro batch is reduced, ``monitor_mbs_grad``, and the unreduced rows that there must be."""


class Traces(NamedTuple):
    """Traces that a monitor leaves behind, and its additions to training."""

    same_framework: bool
    """True if every attribute of the framework's classes and modules is as it was."""
    same_hooks: bool
    placed: bool
    """Whether there were other hooks in between."""
    collectives: tuple[int, int]
    """Of the same steps without and with a monitor, in all process groups."""
    freed: bool
    """Whether the model is freed when nobody but us could hold it."""


def traces(
    make: Callable[[], Any],
    inside: Callable[[Any], list[Any]],
    framework: Sequence[Any],
    *,
    steps: Callable[[Any, Any], object] | None = None,
    used: bool = True,
) -> Traces:
    """Trains without, with, and again without a monitor.

    Args:
        inside: of a model, the framework's own objects, and tensors that may get hooks.
        framework: classes and modules that could be patched.
        steps: some steps of model and optimizer.
        used: whether the monitor comes to a model that has trained before.
    """
    steps = steps or partial(train, micro_batches=2)
    model, other = make(), make()
    optimizer = torch.optim.SGD(model.parameters(), LR, foreach=False)
    if used:
        steps(model, optimizer)
    steps(other, torch.optim.SGD(other.parameters(), LR, foreach=False))
    before = _picture(model if used else other, inside(model if used else other))
    attributes = [dict(vars(owner)) for owner in framework]
    monitor = watch(model, optimizer)
    during = _picture(model, inside(model))
    monitored = collectives(partial(steps, model, optimizer))
    monitor.stop()
    assert monitor.faults == {}
    same_hooks = _picture(model, inside(model)) == before
    same_framework = all(_same(dict(vars(owner)), was) for owner, was in zip(framework, attributes, strict=True))
    plain = collectives(partial(steps, model, optimizer))
    gone = weakref.ref(model)
    del model, other, optimizer, monitor
    gc.collect()
    return Traces(same_framework, same_hooks, during != before, (plain, monitored), gone() is None)


def _same(now: dict[str, Any], before: dict[str, Any]) -> bool:
    return now.keys() == before.keys() and all(now[name] is before[name] for name in now)


def _picture(model: Any, inside: list[Any]) -> str:
    """Hooks and attributes, as text: whatever is held in it would not be freed."""
    tensors = [*model.parameters(), *(thing for thing in inside if isinstance(thing, torch.Tensor))]
    hooks = [(repr(t._backward_hooks), repr(t._post_accumulate_grad_hooks)) for t in tensors]
    modules = [
        {k: [_called(f) for f in v.values()] for k, v in vars(m).items() if "hooks" in k and v} for m in model.modules()
    ]
    names = [sorted(vars(thing)) for thing in inside if not isinstance(thing, torch.Tensor)]
    return repr([hooks, modules, names])


def _called(function: Any) -> str:
    return getattr(function, "__qualname__", type(function).__qualname__)


def collectives(function: Callable[[], object]) -> int:
    """How many operations the backends of all process groups begin in it, point to point ones too."""

    def begun() -> int:
        groups = dist.distributed_c10d._world.pg_map
        return sum(group._get_backend(torch.device("cpu"))._get_sequence_number_for_group() for group in groups)

    before = begun()
    function()
    return begun() - before


def assert_no_traces(ranks: Iterable[Traces]) -> None:
    for left in ranks:
        assert left.same_framework
        assert left.same_hooks
        assert left.placed
        assert left.collectives[0] == left.collectives[1] > 0
        assert left.freed
