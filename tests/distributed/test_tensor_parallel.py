"""Tensor and sequence parallelism through DTensor, alone and under fully_shard; the monitor itself never talks."""

from __future__ import annotations

from typing import Any

import pytest

from tests.distributed.ranks import Ranks
from tests.distributed.sharded import (
    LR,
    Part,
    Traces,
    assert_no_traces,
    assert_whole,
    collectives,
    parts,
    traces,
)
from tests.pytorch.watching import watch
from tests.required import require
from tests.tables import Row

torch = require("torch")

import torch.distributed as dist  # noqa: E402 - only where torch is
from torch.distributed.device_mesh import init_device_mesh  # noqa: E402
from torch.distributed.fsdp import fully_shard  # noqa: E402
from torch.distributed.tensor import DTensor, Replicate, Shard, distribute_tensor  # noqa: E402
from torch.distributed.tensor.parallel import (  # noqa: E402
    ColwiseParallel,
    PrepareModuleInput,
    PrepareModuleOutput,
    RowwiseParallel,
    SequenceParallel,
    parallelize_module,
)

BATCH, LENGTH, WIDTH, HIDDEN = 2, 4, 6, 8


class Block(torch.nn.Module):
    """A normalisation and two linear layers, with a residual branch."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = torch.nn.LayerNorm(WIDTH)
        self.up, self.down = torch.nn.Linear(WIDTH, HIDDEN), torch.nn.Linear(HIDDEN, WIDTH)

    def forward(self, x: Any) -> Any:
        return x + self.down(torch.tanh(self.up(self.norm(x))))


class Model(torch.nn.Module):
    """A block, and a layer that is not parallel."""

    def __init__(self) -> None:
        super().__init__()
        with torch.random.fork_rng():
            torch.manual_seed(0)
            self.block, self.head = Block(), torch.nn.Linear(WIDTH, 3)

    def forward(self, x: Any) -> Any:
        return self.head(self.block(x))


def batch(step: int, replica: int) -> Any:
    """Training data of a replica; the ranks that share its tensors get the same."""
    return torch.randn(BATCH, LENGTH, WIDTH, generator=torch.Generator().manual_seed(10 * step + replica))


def loss_of(outputs: Any) -> Any:
    return (outputs.square() + outputs).mean()


def parallel(model: Any, mesh: Any, sequence: bool) -> Any:
    """As users write it; ``sequence``: between the linear layers' regions, activations are split by position."""
    if not sequence:
        plan: dict[str, Any] = {"up": ColwiseParallel(), "down": RowwiseParallel()}
        parallelize_module(model.block, mesh, plan)
        return model
    whole, split = Replicate(), Shard(1)
    parallelize_module(
        model,
        mesh,
        {
            "block": PrepareModuleInput(input_layouts=(whole,), desired_input_layouts=(split,), use_local_output=False),
            "block.norm": SequenceParallel(),
            "block.up": ColwiseParallel(input_layouts=split),
            "block.down": RowwiseParallel(output_layouts=split, use_local_output=False),
        },
    )
    parallelize_module(model.block, mesh, PrepareModuleOutput(output_layouts=split, desired_output_layouts=whole))
    return model


def wrapped(sequence: bool, replicas: int) -> tuple[Any, int]:
    """The model, and which replica's data this rank trains on."""
    size = dist.get_world_size()
    mesh = init_device_mesh("cpu", (replicas, size // replicas), mesh_dim_names=("data", "tensor"))
    model = parallel(Model(), mesh["tensor"], sequence)
    if replicas > 1:
        for part in (model.block, model):
            fully_shard(part, mesh=mesh["data"])
    return model, mesh["data"].get_local_rank()


def train(model: Any, replica: int, optimizer: Any, steps: int = 2) -> list[float]:
    losses = []
    for step in range(steps):
        loss = loss_of(model(batch(step, replica)))
        loss.backward()
        losses.append(loss.item())
        optimizer.step()
        optimizer.zero_grad()
    return losses


def sgd(model: Any) -> Any:
    return torch.optim.SGD(model.parameters(), LR, momentum=0.5, foreach=False)


Watched = tuple[dict[Row, Part], bool, dict[str, Any], dict[str, Any], dict[str, Any], dict[str, Any]]


def seen(sequence: bool, replicas: int = 1) -> Watched:
    """Rows, whether training was the same, and of one process: this replica's gradients, their mean, the parameters
    before, and what the modules give."""
    plain, replica = wrapped(sequence, replicas)
    losses = train(plain, replica, sgd(plain))
    model, _ = wrapped(sequence, replicas)
    optimizer = sgd(model)
    monitor = watch(model, optimizer, squash_name=False)
    same = losses == train(model, replica, optimizer)
    monitor.stop()
    assert monitor.faults == {}
    for a, b in zip(plain.parameters(), model.parameters(), strict=True):
        same &= bool((getattr(a, "_local_tensor", a) == getattr(b, "_local_tensor", b)).all())
    one = Model()
    names = [name for name, _ in one.named_parameters()]
    local = [torch.autograd.grad(loss_of(one(batch(0, each))), list(one.parameters())) for each in range(replicas)]
    mean = {name: sum(each[i] for each in local) / replicas for i, name in enumerate(names)}
    outputs: dict[str, Any] = {}
    for name in ("block.norm", "block.up", "block.down", "block", "head"):
        one.get_submodule(name).register_forward_hook(lambda _, __, out, name=name: outputs.update({name: out}))
    loss_of(one(batch(0, replica))).backward()
    before = {name: parameter.detach().clone() for name, parameter in one.named_parameters()}
    values = {name: value.detach() for name, value in outputs.items()}
    own = dict(zip(names, local[replica], strict=True))
    return parts(monitor.output_directory), same, own, mean, before, values


def by_name(ranks: list[Watched], signal: str, step: int = 0) -> dict[str, list[Part]]:
    found: dict[str, list[Part]] = {}
    for rows, *_ in ranks:
        for row, part in rows.items():
            if row.signal == signal and row.step == step:
                found.setdefault(row.name, []).append(part)
    return found


@pytest.mark.parametrize("sequence", [False, True], ids=["tensor parallel", "sequence parallel too"])
def test_tensor_parallel(two_ranks: Ranks, sequence: bool) -> None:
    ranks = two_ranks.run(seen, sequence)
    assert all(same for _, same, *_ in ranks)
    _, _, _, mean, before, outputs = ranks[0]
    terms = {"block.norm.weight", "block.norm.bias"} if sequence else set()
    for signal, wanted in {"param_origin": before, "grad_unreduced": mean, "grad_reduced": mean}.items():
        found = by_name(ranks, signal)
        assert found.keys() == wanted.keys()
        for name, tensor in wanted.items():
            if signal != "param_origin" and name in terms:
                assert {part.coverage for part in found[name]} == {
                    f"6 of [6] term {i}/2 over ranks 0-1" for i in (0, 1)
                }
                assert sum(part.numbers["mean"] for part in found[name]) == pytest.approx(
                    float(tensor.mean()), rel=1e-4
                )
            else:
                assert_whole(found[name], tensor, (signal, name))
    state = by_name(ranks, "momentum_buffer", 1)
    for name in mean.keys() - terms:
        assert_whole(state[name], mean[name], name)
    shared = {name for name, found in by_name(ranks, "param_origin").items() if found[0].coverage}
    assert shared == {"block.up.weight", "block.up.bias", "block.down.weight"}
    values = by_name(ranks, "actv")
    for module in ("block.norm", "block.down", "block", "head"):
        assert_whole(values[f"{module}.output"], outputs[module], module)


def test_under_fully_shard(four_ranks: Ranks) -> None:
    """Replicas of two ranks, which share tensors among them, and share out each rank's part with the other replica."""
    ranks = four_ranks.run(seen, True, 2)
    assert all(same for _, same, *_ in ranks)
    _, _, _, mean, before, _ = ranks[0]
    terms = {"block.norm.weight", "block.norm.bias"}
    for signal, wanted in {"param_origin": before, "grad_reduced": mean}.items():
        for name, tensor in wanted.items():
            assert_whole(by_name(ranks, signal)[name], tensor, (signal, name))
    for replica in (0, 1):
        of_replica = ranks[2 * replica : 2 * replica + 2]
        for name, gradient in of_replica[0][2].items():
            found = by_name(of_replica, "grad_unreduced")[name]
            if name in terms:
                assert all(" term " in part.coverage for part in found)
                assert sum(part.numbers["mean"] for part in found) == pytest.approx(float(gradient.mean()), rel=1e-4)
            else:
                assert_whole(found, gradient, (replica, name))
    weight = by_name(ranks, "grad_reduced")["block.up.weight"]
    assert len({part.coverage for part in weight}) == 4
    assert all(part.coverage.endswith("over ranks 0-3") for part in weight)


def left(sequence: bool, replicas: int) -> Traces:
    from torch.distributed.tensor import _api

    model, replica = wrapped(sequence, replicas)
    del model
    return traces(
        lambda: wrapped(sequence, replicas)[0],
        lambda _: [],
        [DTensor, _api, dist],
        steps=lambda model, optimizer: train(model, replica, optimizer),
    )


@pytest.mark.parametrize("sequence", [False, True], ids=["tensor parallel", "sequence parallel too"])
def test_nothing_is_left_behind_and_no_collective_added(two_ranks: Ranks, sequence: bool) -> None:
    assert_no_traces(two_ranks.run(left, sequence, 1))


class Branches(torch.nn.Module):
    """Uses its input twice, in ways that spread the two gradients differently over ranks."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = torch.nn.Parameter(torch.ones(WIDTH, WIDTH))

    def forward(self, x: Any, y: Any) -> Any:
        return x @ self.weight, x * y


def apart(split: bool) -> tuple[int, int, list[str], dict[Row, Part]]:
    """Collectives without and with a monitor, its faults and rows, where the gradients of an input along two edges are
    spread differently; ``split``: so that no rank can add its parts alone."""
    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    model = Branches()
    model.weight = torch.nn.Parameter(distribute_tensor(model.weight.detach(), mesh, [Shard(1)]))
    optimizer = torch.optim.SGD(model.parameters(), 0.0, foreach=False)
    start = distribute_tensor(torch.ones(4, WIDTH), mesh, [Replicate()]).requires_grad_()
    factor = distribute_tensor(torch.ones(4, WIDTH), mesh, [Shard(0) if split else Replicate()])

    def step() -> None:
        product, same = model(start * 2, factor)
        (product.to_local().sum() + same.to_local().sum()).backward()
        optimizer.step()
        optimizer.zero_grad()

    plain = collectives(step)
    monitor = watch(model, optimizer)
    monitored = collectives(step)
    monitor.stop()
    return plain, monitored, sorted(monitor.faults), parts(monitor.output_directory)


def test_gradients_along_two_edges_are_added_on_each_rank_alone(two_ranks: Ranks) -> None:
    """One edge brings terms of a sum, the other the same on all ranks."""
    ranks = two_ranks.run(apart, False)
    means = []
    for plain, monitored, faults, rows in ranks:
        assert plain == monitored
        assert faults == []
        part = rows[Row("actv_grad", 0, ".input_0")]
        assert " term " in part.coverage
        means.append(part.numbers["mean"])
    assert sum(means) == pytest.approx(WIDTH + 1)


def test_a_sum_that_needs_a_collective_is_left_out_and_counted(two_ranks: Ranks) -> None:
    for plain, monitored, faults, rows in two_ranks.run(apart, True):
        assert plain == monitored > 0
        assert faults == ["gradient of module '': ValueError"]
        gradients = {row.name for row in rows if row.signal == "actv_grad"}
        assert ".input_0" not in gradients
        assert ".output_0" in gradients
