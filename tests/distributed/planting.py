"""A small attention model with one fault planted in it, trained alone, by data parallelism or as a pipeline.

What is bad first is known here, and only here: the analysis sees the files.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from tests.required import require

torch = require("torch")

import torch.distributed as dist  # noqa: E402 - only where torch is
from torch import nn  # noqa: E402
from torch.distributed.device_mesh import init_device_mesh  # noqa: E402
from torch.distributed.fsdp import fully_shard  # noqa: E402
from torch.distributed.pipelining import PipelineStage, ScheduleGPipe  # noqa: E402
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module  # noqa: E402

from probe.demo.pytorch.faults import _Amplify  # noqa: E402
from probe.pytorch import TrainerMon  # noqa: E402
from tests.tables import EVERY_SIGNAL  # noqa: E402

WIDTH, ROWS, TIME = 8, 4, 6
FIRST, LAST = 12, 16
"""Steps between which a fault begins."""
MICRO_BATCHES = 2
SHARED = {"fc1": ColwiseParallel, "fc2": RowwiseParallel}
OPS = ["min", "max", "norm", "zeros"]
RULES = ["AnomalyNan", "AnomalySpike", "AnomalyDead", "AnomalyFrozen", "AnomalyVanish"]


class Fault(NamedTuple):
    """Planted fault: kind, place, rank and first step."""

    kind: str
    place: str
    rank: int
    step: int
    element: int = 0


class Attention(nn.Module):
    """One head, its scores in a module of their own."""

    def __init__(self) -> None:
        super().__init__()
        self.query, self.key, self.value = (nn.Linear(WIDTH, WIDTH) for _ in range(3))
        self.scores, self.softmax, self.out = Scores(), nn.Softmax(-1), nn.Linear(WIDTH, WIDTH)

    def forward(self, x: Any) -> Any:
        weights = self.softmax(self.scores(self.query(x), self.key(x)))
        return self.out(weights @ self.value(x))


class Scores(nn.Module):
    """How well each place fits each other."""

    def forward(self, query: Any, key: Any) -> Any:
        return query @ key.transpose(-1, -2) * WIDTH**-0.5


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm, self.attention = nn.LayerNorm(WIDTH), Attention()
        self.fc1, self.act, self.fc2 = nn.Linear(WIDTH, 4 * WIDTH), nn.ReLU(), nn.Linear(4 * WIDTH, WIDTH)

    def forward(self, x: Any) -> Any:
        x = x + self.attention(self.norm(x))
        return x + self.fc2(self.act(self.fc1(x)))


class Net(nn.Module):
    """Two blocks between a linear layer at either end; a sum over all ranks between them if ``shared``."""

    def __init__(self, seed: int, shared: bool = False) -> None:
        super().__init__()
        with torch.random.fork_rng():
            torch.manual_seed(seed)
            self.first, self.last = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH)
            self.blocks = nn.ModuleList(Block() for _ in range(2))
        self.shared = shared

    def forward(self, x: Any) -> Any:
        x = self.blocks[0](self.first(x))
        if self.shared:
            from torch.distributed.nn.functional import all_reduce

            x = x + 0.1 * all_reduce(x.mean(0, keepdim=True))
        return self.last(self.blocks[1](x))


class Stage(nn.Module):
    """Half of the model."""

    def __init__(self, seed: int) -> None:
        super().__init__()
        with torch.random.fork_rng():
            torch.manual_seed(seed)
            self.first, self.block = nn.Linear(WIDTH, WIDTH), Block()

    def forward(self, x: Any) -> Any:
        return self.block(self.first(x))


def draw(kind: str, seed: int, ranks: int, staged: bool = False) -> Fault:
    """Where and when, by chance."""
    random = np.random.default_rng([seed, 0xCA])
    block = "block" if staged else f"blocks.{random.integers(2)}"
    places = {
        "nan weight": [f"{block}.attention.value.weight", f"{block}.fc1.bias", f"{block}.norm.weight", "first.weight"],
        "overflow": [f"{block}.attention.scores"],
        "gradient": [f"{block}.fc2", f"{block}.fc1", f"{block}.attention.out", f"{block}.norm"],
        "dead": [f"{block}.act"],
        "frozen": [f"{block}.fc1.weight", f"{block}.attention.query.weight", f"{block}.fc2.bias"],
        "replica": [f"{block}.fc1.weight", f"{block}.attention.query.weight", f"{block}.norm.bias"],
        "all-reduce": ["blocks.0.fc1", "blocks.0.attention.value", "first"],
        "bad batch": [""],
        "none": [""],
    }[kind]
    place = places[random.integers(len(places))]
    rank = 0 if staged and kind == "bad batch" else int(random.integers(ranks))
    return Fault(kind, place, rank, int(random.integers(FIRST, LAST + 1)), int(random.integers(WIDTH)))


class Planted:
    """The fault in a model. Set :attr:`step` as training goes on."""

    def __init__(self, fault: Fault, model: Any, optimizer: Any, rank: int) -> None:
        self.fault, self.step = fault, -1
        self._optimizer = optimizer
        here = fault.rank == rank
        plant: Callable[[Any], None] = {
            "nan weight": self._weight,
            "replica": self._weight,
            "overflow": self._overflow,
            "all-reduce": self._overflow,
            "gradient": self._gradient,
            "dead": self._dead,
            "frozen": self._frozen,
        }.get(fault.kind, lambda _: None)
        if here or (fault.kind in ("dead", "frozen") and not isinstance(model, Stage)):
            plant(model)
        self._spoils = here and fault.kind == "bad batch"

    def data(self, x: Any) -> Any:
        """The batch, or a bad one."""
        if self._spoils and self.step == self.fault.step:
            x = x.clone()
            x[-1, -1, self.fault.element] = torch.nan
        return x

    def before_update(self) -> None:
        """Work between backward and update."""
        frozen = self.fault.kind == "frozen" and self.step >= self.fault.step
        for group in self._optimizer.param_groups:
            if group.get("planted"):
                group["lr"] = 0.0 if frozen else group["lr"]

    def _strikes(self) -> bool:
        return self.step == self.fault.step

    def _weight(self, model: Any) -> None:
        parameter = model.get_parameter(self.fault.place)

        def change(*_: Any) -> None:
            if self._strikes() and not getattr(parameter, "changed", False):
                parameter.changed = True
                with torch.no_grad():
                    flat = parameter.view(-1)
                    flat[self.fault.element] = torch.nan if self.fault.kind == "nan weight" else flat.abs().max() * 2

        model.register_forward_pre_hook(change)

    def _overflow(self, model: Any) -> None:
        value = 1e38 if self.fault.kind == "overflow" else torch.nan
        model.get_submodule(self.fault.place).register_forward_hook(
            lambda _, __, output: output * value * 1e10 if self._strikes() else None
        )

    def _gradient(self, model: Any) -> None:
        model.get_submodule(self.fault.place).register_forward_hook(
            lambda _, __, output: _Amplify.apply(output, 1e7) if self._strikes() else None
        )

    def _dead(self, model: Any) -> None:
        model.get_submodule(self.fault.place).register_forward_hook(
            lambda _, __, output: output * 0.0 if self.step >= self.fault.step else None
        )

    def _frozen(self, model: Any) -> None:
        parameter = model.get_parameter(self.fault.place)
        (group,) = self._optimizer.param_groups
        group["params"] = [p for p in group["params"] if p is not parameter]
        self._optimizer.add_param_group({"params": [parameter], "planted": True})


def batch(step: int, seed: int, rank: int) -> tuple[Any, Any]:
    generator = torch.Generator().manual_seed(100_000 * seed + 100 * step + rank)
    x = torch.randn(ROWS, TIME, WIDTH, generator=generator)
    return x, torch.sin(2 * x.cumsum(1))


def configuration(**more: Any) -> dict[str, Any]:
    rules = [{"rule_name": name} for name in RULES]
    return {
        **EVERY_SIGNAL,
        "ops": OPS,
        "squash_name": False,
        "step_count_per_record": 8,
        "alert": {"rules": rules},
        **more,
    }


def _steps(fault: Fault) -> range:
    """Training goes on for longer where a fault is reported only after some steps."""
    return range(fault.step + (8 if fault.kind in ("dead", "frozen", "none") else 4))


def train(fault: Fault, seed: int, way: str) -> str:
    """Trains with the fault and a monitor; gives the monitor's directory.

    Args:
        way: ``alone``, ``ddp``, ``accumulated`` (the same with micro batches that are each averaged), ``fsdp``,
            ``tensor`` (layers shared out), ``reduced`` (gradients and a part of the forward summed up by hand) or
            ``pipeline``.
    """
    rank = 0 if way == "alone" else dist.get_rank()
    if way == "pipeline":
        return _pipeline(fault, seed, rank)
    inner = Net(seed, shared=way == "reduced")
    if way == "tensor":
        share = {f"blocks.{n}.{name}": how() for n in (0, 1) for name, how in SHARED.items()}
        parallelize_module(inner, init_device_mesh("cpu", (dist.get_world_size(),)), share)
    if way == "fsdp":
        fully_shard(inner)
    optimizer = torch.optim.Adam(inner.parameters(), 1e-3)
    planted = Planted(fault, inner, optimizer, rank)
    model = nn.parallel.DistributedDataParallel(inner) if way in ("ddp", "accumulated") else inner
    micro_batches = MICRO_BATCHES if way == "accumulated" else 1
    more: dict[str, Any] = {}
    if way == "reduced":
        more = {"cc_distribution": {"enable": True, "cc_pre_hook": True}}
    monitor = TrainerMon(configuration(**more), params_have_main_grad=False)
    monitor.set_monitor(model, micro_batches, optimizer)
    for step in _steps(fault):
        planted.step = step
        for micro_batch in range(micro_batches):
            x, y = batch(step, seed + 10 * micro_batch, 0 if way == "tensor" else rank)
            (model(planted.data(x)) - y).square().mean().backward()
        if way == "reduced":
            gradients = [parameter.grad for parameter in inner.parameters()]
            whole = torch.cat([gradient.flatten() for gradient in gradients])
            dist.all_reduce(whole)
            parts = whole.div_(dist.get_world_size()).split([gradient.numel() for gradient in gradients])
            for gradient, part in zip(gradients, parts, strict=True):
                gradient.copy_(part.view_as(gradient))
        planted.before_update()
        optimizer.step()
        optimizer.zero_grad()
    return _ended(monitor)


def _pipeline(fault: Fault, seed: int, rank: int) -> str:
    model = Stage(seed + rank)
    optimizer = torch.optim.Adam(model.parameters(), 1e-3)
    planted = Planted(fault, model, optimizer, rank)
    last = dist.get_world_size() - 1
    stage = PipelineStage(model, rank, last + 1, torch.device("cpu"))
    schedule = ScheduleGPipe(stage, n_microbatches=MICRO_BATCHES, loss_fn=lambda got, y: (got - y).square().mean())
    monitor = TrainerMon(configuration(), process_group=dist.group.WORLD, params_have_main_grad=False)
    monitor.set_monitor(model, MICRO_BATCHES, optimizer)
    for step in _steps(fault):
        planted.step = step
        x, y = batch(step, seed, 0)
        given = [planted.data(x)] if rank == 0 else []
        schedule.step(*given, **({"target": y, "losses": []} if rank == last else {}))
        planted.before_update()
        optimizer.step()
        optimizer.zero_grad()
    return _ended(monitor)


def _ended(monitor: TrainerMon) -> str:
    monitor.stop()
    assert monitor.faults == {}, monitor.faults
    return str(monitor.output_directory)
