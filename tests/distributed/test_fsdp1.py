"""FullyShardedDataParallel: unreduced gradients are this rank's own and whole; all else is in flat stretches."""

from __future__ import annotations

import json
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest

from tests.distributed.models import WIDTH, Net, batch, gradients, loss_of
from tests.distributed.ranks import Ranks
from tests.distributed.sharded import (
    LR,
    MICRO_BATCHES,
    Seen,
    Traces,
    assert_close,
    assert_no_traces,
    assert_seen,
    each_micro_batch,
    observed,
    parts,
    rows_of,
    sum_of_step,
    traces,
    train,
)
from tests.pytorch.watching import rows_of as rows_after
from tests.pytorch.watching import watch
from tests.required import require

torch = require("torch")

import torch.distributed as dist  # noqa: E402 - only where torch is
from torch.distributed.device_mesh import init_device_mesh  # noqa: E402
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP  # noqa: E402, N817
from torch.distributed.fsdp import MixedPrecision, ShardingStrategy  # noqa: E402
from torch.distributed.fsdp.wrap import ModuleWrapPolicy  # noqa: E402
from torch.nn.utils import clip_grad_norm_  # noqa: E402


def wrapped(model: Any, **options: Any) -> Any:
    """Two units: the normalisation, and the rest."""
    policy = ModuleWrapPolicy({torch.nn.LayerNorm})
    options = {"use_orig_params": True, "device_id": torch.device("cpu"), "auto_wrap_policy": policy, **options}
    return FSDP(model, **options)


def unsynchronized(model: Any, last: bool) -> Any:
    return nullcontext() if last else model.no_sync()


def seen(
    micro_batches: int = 1,
    synchronized: bool = True,
    strategy: str = "FULL_SHARD",
    low: bool = False,
    mesh: tuple[int, int] | None = None,
    **settings: Any,
) -> Seen:
    options: dict[str, Any] = {"sharding_strategy": ShardingStrategy[strategy]}
    if low:
        options["mixed_precision"] = MixedPrecision(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
    if mesh is not None:
        options["device_mesh"] = init_device_mesh("cpu", mesh, mesh_dim_names=("replicas", "shards"))
    return observed(
        lambda model: wrapped(model, **options),
        micro_batches,
        quiet=None if synchronized else unsynchronized,
        dtype=torch.bfloat16 if low else None,
        **settings,
    )


def test_gradients_parameters_and_state(two_ranks: Ranks) -> None:
    ranks = two_ranks.run(seen)
    assert_seen(ranks, sum_of_step)
    parts = {row.coverage for each in ranks for row in each.rows.values() if row.coverage}
    assert any("28 of [5, 6] at 0:28" in part for part in parts), "a stretch that ends inside a row of up.weight"
    assert any("2 of [5, 6] at 28:30" in part for part in parts), "a stretch that begins inside a row"
    assert any(part.startswith("0 of [3, 5] at 0:0") for part in parts), "a rank without an element of down.weight"


@pytest.mark.parametrize(("synchronized", "each", "wanted"), MICRO_BATCHES)
def test_several_micro_batches(two_ranks: Ranks, synchronized: bool, each: Any, wanted: Any) -> None:
    assert_seen(two_ranks.run(seen, 3, synchronized, monitor_mbs_grad=each), wanted)


@pytest.mark.parametrize("strategy", ["SHARD_GRAD_OP", "NO_SHARD"])
def test_other_strategies(two_ranks: Ranks, strategy: str) -> None:
    ranks = two_ranks.run(seen, 2, False, strategy)
    assert_seen(ranks, sum_of_step)
    assert any(part.coverage for part in ranks[0].rows.values()) == (strategy != "NO_SHARD")


def test_shards_within_replicas(four_ranks: Ranks) -> None:
    ranks = four_ranks.run(seen, 2, strategy="HYBRID_SHARD", mesh=(2, 2))
    assert_seen(ranks, each_micro_batch)
    for rank, each in enumerate(ranks):
        groups = {part.coverage.partition(" over ranks ")[2] for part in each.rows.values() if part.coverage}
        assert groups == {"0-1" if rank < 2 else "2-3"}


def test_mixed_precision(two_ranks: Ranks) -> None:
    """Unreduced gradients are as the backward gives them, in bfloat16; the rest is float32."""
    ranks = two_ranks.run(seen, low=True)
    assert_seen(ranks, sum_of_step)
    for each in ranks:
        assert {each.rows[row].dtype for row in rows_of(each, "grad_unreduced")} == {"torch.bfloat16"}
        assert {each.rows[row].dtype for row in rows_of(each, "grad_reduced")} == {"torch.float32"}
    assert_seen(two_ranks.run(seen, 2, False, low=True), sum_of_step, bound=2e-2)


def test_clipping_is_seen(two_ranks: Ranks) -> None:
    """``clip_grad_norm_`` of the wrapper, between backward and update."""
    for written, total, found in two_ranks.run(clipped):
        assert total == pytest.approx(0.01, rel=1e-4)
        assert written
        assert found == [[], [("clip-of-parts", 2)]]


def clipped() -> tuple[bool, float, list[list[tuple[str, int]]]]:
    """Whether the rows are of the clipped gradients, the norm of all of them, from this rank's parts, and what is found
    in updates whose gradients are clipped so, and then by the norm of each rank's parts."""
    model = wrapped(Net())
    optimizer = torch.optim.SGD(model.parameters(), LR)
    monitor = watch(model, optimizer, xy_distribution=False)
    loss_of(model(batch(0, 0))).backward()
    model.clip_grad_norm_(0.01)
    norms = {name: float(p.grad.norm()) for name, p in model.named_parameters() if p.grad is not None}
    optimizer.step()
    monitor.stop()
    rows = parts(monitor.output_directory)
    total = torch.tensor(sum(value.numbers["norm"] ** 2 for row, value in rows.items() if row.signal == "grad_reduced"))
    dist.all_reduce(total)
    written = {row.name: rows[row].numbers["norm"] for row in rows if row.signal == "grad_reduced" and rows[row].numel}
    same = all(written[name.replace("_fsdp_wrapped_module.", "")] == pytest.approx(norms[name]) for name in norms)
    found = [_found(FSDP.clip_grad_norm_), _found(lambda model, limit: clip_grad_norm_(model.parameters(), limit))]
    return same and len(norms) == len(written), float(total) ** 0.5, found


def _found(clip: Callable[[Any, float], object]) -> list[tuple[str, int]]:
    """Kinds and steps of what the checks find in four updates."""
    model = wrapped(Net())
    optimizer = torch.optim.SGD(model.parameters(), LR)
    monitor = watch(model, optimizer, xy_distribution=False, sentinel={"enable": True}, alert={"rules": []})
    for step in range(4):
        optimizer.zero_grad()
        loss_of(model(batch(step, 0))).backward()
        clip(model, 0.01)
        optimizer.step()
    monitor.stop()
    texts = [path.read_text() for path in Path(monitor.output_directory).glob("checks.jsonl")]
    lines = [json.loads(line) for text in texts for line in text.splitlines()]
    return [(line["check"], line["step"]) for line in lines if line["grade"] != "note"]


def refused() -> list[str]:
    """Errors for models that cannot be watched."""
    messages = []
    whole = FSDP(Net(), device_id=torch.device("cpu"), use_orig_params=False)
    outside = wrapped(Net())
    for model in (whole, outside.module):
        with pytest.raises(ValueError) as error:  # noqa: PT011 - the text is what the test is about
            watch(model, torch.optim.SGD(outside.parameters(), LR))
        messages.append(str(error.value))
    return messages


def test_what_cannot_be_watched_is_refused(two_ranks: Ranks) -> None:
    for flat, inner in two_ranks.run(refused):
        assert "use_orig_params=True" in flat
        assert "'up.weight'" in inner
        assert "give the wrapped model" in inner


def late() -> tuple[dict[str, int], set[str], list[float], list[float]]:
    """A model that is wrapped after the monitor was attached: faults, signals with rows, and the losses."""
    plain = wrapped(Net())
    losses = train(plain, torch.optim.SGD(plain.parameters(), LR), 1)
    model = Net()
    optimizer = torch.optim.SGD(model.parameters(), LR)
    monitor = watch(model, optimizer)
    model = wrapped(model)
    watched = train(model, optimizer, 1)
    monitor.stop()
    return monitor.faults, {row.signal for row in parts(monitor.output_directory)}, losses, watched


def test_wrapping_after_attaching_is_said_and_gives_no_wrong_rows(two_ranks: Ranks) -> None:
    for faults, signals, losses, watched in two_ranks.run(late):
        assert faults["parameters: ValueError"] > 0
        assert not signals & {"grad_unreduced", "grad_reduced", "param_origin", "param_updated"}
        assert losses == watched


def left() -> Traces:
    from torch.distributed.fsdp import _flat_param, _runtime_utils

    def inside(model: Any) -> list[Any]:
        handles = [unit._handle for unit in FSDP.fsdp_modules(model)]
        return [*handles, *(handle.flat_param for handle in handles)]

    return traces(lambda: wrapped(Net()), inside, [_runtime_utils, _flat_param.FlatParamHandle, FSDP, dist])


def test_nothing_is_left_behind_and_no_collective_added(two_ranks: Ranks) -> None:
    assert_no_traces(two_ranks.run(left))


def tied() -> tuple[dict[Any, Any], dict[str, Any]]:
    """A parameter in two places, and one that the forward does not use: rows and gradients by hand."""

    class Tied(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            torch.manual_seed(0)
            self.first, self.second = torch.nn.Linear(WIDTH, WIDTH), torch.nn.Linear(WIDTH, WIDTH, bias=False)
            self.second.weight = self.first.weight
            self.frozen = torch.nn.Linear(3, 2)
            self.frozen.requires_grad_(False)

        def forward(self, x: Any) -> Any:
            return self.second(torch.tanh(self.first(x)))

    plain = Tied()
    loss_of(plain(batch(0, 0))).backward()
    model = FSDP(Tied(), use_orig_params=True, device_id=torch.device("cpu"))
    optimizer = torch.optim.SGD([p for p in model.parameters() if p.requires_grad], LR)
    monitor = watch(model, optimizer, xy_distribution=False)
    loss_of(model(batch(0, 0))).backward()
    optimizer.step()
    monitor.stop()
    assert monitor.faults == {}
    return parts(monitor.output_directory), {n: p.grad for n, p in plain.named_parameters() if p.grad is not None}


def test_tied_and_frozen_parameters(two_ranks: Ranks) -> None:
    for rows, local in two_ranks.run(tied):
        unreduced = {row.name: part for row, part in rows.items() if row.signal == "grad_unreduced"}
        assert unreduced.keys() == local.keys() == {"first.weight", "first.bias"}
        for name, gradient in local.items():
            assert_close(unreduced[name].numbers, gradient, name)
        assert {row.name for row in rows if row.signal == "param_origin"} >= {"frozen.weight", "frozen.bias"}


def scaled() -> tuple[dict[str, float], dict[str, float]]:
    """Norms of gradients under FSDP's own gradient scaler, and what they must be."""
    from torch.distributed.fsdp.sharded_grad_scaler import ShardedGradScaler

    model = Net()
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    scaler = ShardedGradScaler(device="cpu", init_scale=1024.0)
    original = dict(vars(ShardedGradScaler))
    monitor = watch(model, optimizer)
    wanted = gradients(Net(), 0, 0, dist.get_rank())
    scaler.scale(loss_of(model(batch(0, 0)))).backward()
    scaler.step(optimizer)
    scaler.update()
    rows = rows_after(monitor)
    assert dict(vars(ShardedGradScaler)) == original
    found = {row.name: values["norm"] for row, values in rows.items() if row.signal == "grad_unreduced"}
    return found, {name: float(gradient.norm()) for name, gradient in wanted.items()}


def test_its_own_gradient_scaler_is_heard(two_ranks: Ranks) -> None:
    """It has ``scale`` and ``update`` of its own, beside those of torch's scaler."""
    for found, wanted in two_ranks.run(scaled):
        assert found == pytest.approx(wanted, rel=1e-4)
