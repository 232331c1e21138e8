"""``global_stats``: the numbers of whole tensors while training runs, and what it may never do to training."""

from __future__ import annotations

import csv
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from probe.core.analysis.merge import merge_directory
from tests.distributed.models import Net, batch, by_hand, loss_of
from tests.distributed.ranks import Ranks
from tests.pytorch.watching import numbers, watch
from tests.required import require

torch = require("torch")

import torch.distributed as dist  # noqa: E402 - only where torch is
from torch.distributed.device_mesh import init_device_mesh  # noqa: E402
from torch.distributed.fsdp import fully_shard  # noqa: E402

LR, STEPS = 0.1, 2
OPS = ["min", "max", "mean", "norm", "nans", "infs", "zeros", "std"]
SHARED = ("param_origin", "param_updated", "grad_reduced", "momentum_buffer")
Table = list[dict[str, str]]


def sharded(mesh: Any = None) -> tuple[Any, Any]:
    """Over all ranks, two units."""
    model = Net()
    mesh = mesh or init_device_mesh("cpu", (dist.get_world_size(),))
    for part in (model.up, model):
        fully_shard(part, mesh=mesh)
    return model, torch.optim.SGD(model.parameters(), LR, momentum=0.5)


def train(model: Any, optimizer: Any, steps: int = STEPS, poison: int | None = None) -> list[float]:
    """The losses; on rank ``poison`` the first step's data are not finite."""
    losses = []
    for step in range(steps):
        x = batch(step, 0)
        if poison == dist.get_rank() and step == 0:
            x[0, 0] = float("nan")
        loss = loss_of(model(x))
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
    return losses


def table(directory: str, signal: str) -> Table:
    found: Table = []
    for path in sorted(Path(directory).glob(f"{signal}_[0-9]*.csv")):
        with path.open(newline="", encoding="utf-8") as file:
            found += csv.DictReader(file, strict=True)
    return found


def settings(**more: Any) -> dict[str, Any]:
    return {"xy_distribution": False, "global_stats": True, "ops": OPS, "global_stats_seconds": 20.0, **more}


def everything(shape: tuple[int, ...] | None = None) -> tuple[dict[str, Table], dict[str, dict[str, dict[str, float]]]]:
    """Rows of a rank, and the whole tensors of the first step."""
    model, optimizer = sharded(shape and init_device_mesh("cpu", shape, mesh_dim_names=("replicas", "shards")))
    monitor = watch(model, optimizer, **settings())
    train(model, optimizer)
    monitor.stop()
    assert monitor.faults == {}
    (reference, *_) = by_hand(1, 1, LR)
    wholes = {"param_origin": reference.before, "param_updated": reference.after, "grad_reduced": reference.reduced}
    wanted = {s: {name: numbers(t) for name, t in tensors.items()} for s, tensors in wholes.items()}
    return {signal: table(monitor.output_directory, signal) for signal in SHARED}, wanted


def assert_whole(tables: dict[str, Table], wanted: dict[str, dict[str, dict[str, float]]]) -> None:
    for signal, tensors in wanted.items():
        rows = {row["name"]: row for row in tables[signal] if row["step"] == "0"}
        assert set(rows) == set(tensors)
        for name, ops in tensors.items():
            assert rows[name]["merged"] == "1"
            scale = ops["norm"]
            for op, value in ops.items():
                assert float(rows[name][f"global_{op}"]) == pytest.approx(value, rel=1e-5, abs=1e-5 * scale), (name, op)


def after_another() -> list[str]:
    """Which rows were merged where one rank alone has taken part in a run before."""
    model, optimizer = sharded()
    watch(model, optimizer, **settings(module_ranks=[0])).stop()
    monitor = watch(model, optimizer, **settings())
    train(model, optimizer)
    monitor.stop()
    assert monitor.faults == {}
    return [row["merged"] for row in table(monitor.output_directory, "param_origin")]


def test_ranks_meet_whatever_one_of_them_did_before(two_ranks: Ranks) -> None:
    """Runs are counted where a monitor is attached, whether it collects anything there or not."""
    for merged in two_ranks.run(after_another):
        assert merged
        assert set(merged) == {"1"}


def test_whole_tensors_of_fsdp(two_ranks: Ranks, output_dir: Path) -> None:
    """Uneven shards: five rows on two ranks."""
    answers = two_ranks.run(everything)
    for tables, wanted in answers:
        assert_whole(tables, wanted)
        assert tables["momentum_buffer"], "state is there from the second step on"
        assert {row["merged"] for rows in tables.values() for row in rows} == {"1"}
        local = {row["name"]: row for row in tables["grad_reduced"] if row["step"] == "0"}
        assert local["up.weight"]["coverage"].endswith("over ranks 0-1")
    assert answers[0][0]["grad_reduced"][0]["coverage"] != answers[1][0]["grad_reduced"][0]["coverage"]
    report = merge_directory(output_dir, output_dir / "merged")
    assert (report.incomplete, report.differing, report.problems) == (0, [], [])
    offline = {signal: table(str(output_dir / "merged"), signal) for signal in SHARED}
    for signal in SHARED:
        live = {(row["name"], row["step"]): row for row in answers[0][0][signal]}
        assert {(row["name"], row["step"]) for row in offline[signal]} == set(live)
        for row in offline[signal]:
            for op in OPS:
                online = float(live[row["name"], row["step"]][f"global_{op}"])
                tolerance = 1e-5 * float(row["norm"])
                assert float(row[op]) == pytest.approx(online, rel=2e-5, abs=tolerance), (signal, row["name"], op)


def test_replicas_of_shards_are_not_added_twice(four_ranks: Ranks) -> None:
    """Two replicas of two shards each: groups of two, each of which knows the whole."""
    for rank, (tables, wanted) in enumerate(four_ranks.run(everything, (2, 2))):
        assert_whole(tables, wanted)
        ranks = ["0-1", "2-3"][rank // 2]
        assert all(row["coverage"].endswith(f"over ranks {ranks}") for row in tables["grad_reduced"])


def zero(stage: int) -> tuple[dict[str, Table], dict[str, dict[str, dict[str, float]]]]:
    """The same under DeepSpeed."""
    from tests.distributed import test_deepspeed as deepspeed

    case = deepspeed.Case(stage)
    engine = deepspeed.engine_of(case)
    monitor = deepspeed.attach(engine, case, **settings())
    deepspeed.train(engine, case, steps=1)
    monitor.stop()
    assert monitor.faults == {}
    wanted: dict[str, dict[str, dict[str, float]]] = {}
    for row, tensor in deepspeed.by_hand(case, engine.optimizer).items():
        if row.step == 0 and row.signal in SHARED:
            wanted.setdefault(row.signal, {})[row.name] = numbers(tensor)
    return {signal: table(monitor.output_directory, signal) for signal in SHARED}, wanted


@pytest.mark.parametrize("stage", [1, 3])
def test_whole_tensors_of_zero(deepspeed_ranks: Callable[[str], Ranks], stage: int) -> None:
    """Parts that begin anywhere in a tensor; whole parameters in stage 1 have no such columns."""
    found: dict[str, set[str]] = {}
    for tables, wanted in deepspeed_ranks("0.19.8").run(zero, stage):
        shared = {signal: [row for row in rows if row.get("merged")] for signal, rows in tables.items()}
        for signal, rows in shared.items():
            names = {row["name"] for row in rows}
            found.setdefault(signal, set()).update(names)
            assert_whole({signal: rows}, {signal: {name: wanted[signal][name] for name in names}})
    names = {name for name, _ in Net().named_parameters()}
    sharded = {"grad_reduced"} if stage == 1 else {"grad_reduced", "param_origin", "param_updated"}
    assert {signal for signal, those in found.items() if those == names} == sharded


def targeted() -> tuple[Table, dict[str, int]]:
    """One small tensor, which lies in the stretch of one rank alone."""
    from tests.distributed import test_deepspeed as deepspeed

    case = deepspeed.Case(1)
    engine = deepspeed.engine_of(case)
    monitor = deepspeed.attach(engine, case, **settings(targets={"norm.bias": {}}, param_distribution=False))
    deepspeed.train(engine, case, steps=3)
    monitor.stop()
    return table(monitor.output_directory, "grad_reduced"), monitor.faults


def test_ranks_without_a_part_take_part_nevertheless(deepspeed_ranks: Callable[[str], Ranks]) -> None:
    (first, _), (second, _) = answers = deepspeed_ranks("0.19.8").run(targeted)
    assert [faults for _, faults in answers] == [{}, {}]
    shapes = {tuple(row["shape"] for row in rows) for rows in (first, second)}
    assert ("[0]",) * 3 in shapes, "one of them has nothing of it"
    for one, other in zip(first, second, strict=True):
        assert one["merged"] == other["merged"] == "1"
        assert one["global_norm"] == other["global_norm"]


class Many(torch.nn.Module):
    """More tensors than there is room for at first."""

    def __init__(self) -> None:
        super().__init__()
        self.parts = torch.nn.ParameterList(torch.full((4,), float(i)) for i in range(100))

    def forward(self, x: Any) -> Any:
        return sum(part.sum() for part in self.parts) * x.mean()


def many() -> tuple[dict[str, Table], dict[str, int]]:
    model = Many()
    fully_shard(model, mesh=init_device_mesh("cpu", (dist.get_world_size(),)))
    optimizer = torch.optim.Adam(model.parameters(), LR)
    monitor = watch(model, optimizer, **settings(ops=["norm"]))
    for step in range(3):
        model(batch(step, 0)).backward()
        optimizer.step()
    monitor.stop()
    signals = (*SHARED[:3], "exp_avg", "exp_avg_sq")
    return {signal: table(monitor.output_directory, signal) for signal in signals}, monitor.faults


def test_there_is_room_for_every_row_from_the_first_step_on(two_ranks: Ranks) -> None:
    for tables, faults in two_ranks.run(many):
        assert faults == {}
        assert [len(rows) for rows in tables.values()] == [300, 300, 300, 200, 200]
        assert {row["merged"] for rows in tables.values() for row in rows} == {"1"}
        origin = {row["name"]: row for row in tables["param_origin"] if row["step"] == "0"}
        assert float(origin["parts.7"]["global_norm"]) == pytest.approx(14.0)


def several() -> tuple[int, list[Table], dict[str, int]]:
    """Tensor parallelism and ``fully_shard`` on top: groups of two and of four, which overlap."""
    from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(6, 8), torch.nn.ReLU(), torch.nn.Linear(8, 3))
    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("data", "tensor"))
    parallelize_module(model, mesh["tensor"], {"0": ColwiseParallel(), "2": RowwiseParallel()})
    fully_shard(model, mesh=mesh["data"])
    optimizer = torch.optim.SGD(model.parameters(), LR)
    calls = []
    gather = dist.ProcessGroupGloo.allgather

    def counting(self: Any, *args: Any, **kwargs: Any) -> Any:
        calls.append(self)
        return gather(self, *args, **kwargs)

    monitor = watch(model, optimizer, **settings(wg_distribution=False, mv_distribution=False))
    dist.ProcessGroupGloo.allgather = counting
    try:
        for step in range(2):
            loss_of(model(batch(step, 0, 0))).backward()
            optimizer.step()
            optimizer.zero_grad()
        monitor.stop()
    finally:
        dist.ProcessGroupGloo.allgather = gather
    return len(calls), table(monitor.output_directory, "param_updated"), monitor.faults


def test_each_of_several_groups_has_one_collective_a_step(four_ranks: Ranks) -> None:
    answers = four_ranks.run(several)
    for calls, rows, faults in answers:
        assert faults == {}
        groups = {row["coverage"].split(" over ")[1] for row in rows}
        assert len(groups) == 2, "split over all four, and the last bias over two"
        assert calls == 2 * len(groups)
        assert {row["merged"] for row in rows} == {"1"}
    for name in ("0.weight", "2.weight"):
        assert len({row["global_norm"] for _, rows, _ in answers for row in rows if row["name"] == name}) == 2  # steps


def split() -> tuple[dict[str, Table], dict[str, dict[str, dict[str, float]]]]:
    """Tensor parallelism: columns of one layer, rows of another."""
    from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

    model = torch.nn.Sequential(torch.nn.Linear(6, 8), torch.nn.ReLU(), torch.nn.Linear(8, 3))
    wanted = {name: numbers(parameter) for name, parameter in model.named_parameters()}
    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    parallelize_module(model, mesh, {"0": ColwiseParallel(), "2": RowwiseParallel()})
    optimizer = torch.optim.SGD(model.parameters(), LR)
    monitor = watch(model, optimizer, **settings(wg_distribution=False, mv_distribution=False))
    loss_of(model(batch(0, 0, 0))).backward()
    optimizer.step()
    monitor.stop()
    assert monitor.faults == {}
    return {"param_origin": table(monitor.output_directory, "param_origin")}, {"param_origin": wanted}


def seeded() -> tuple[dict[str, Table], dict[str, dict[str, dict[str, float]]]]:
    torch.manual_seed(0)
    return split()


def test_whole_tensors_of_tensor_parallelism(two_ranks: Ranks) -> None:
    """The second layer's bias is on both ranks, and counts once."""
    for tables, wanted in two_ranks.run(seeded):
        assert_whole(tables, wanted)
        covered = {row["name"]: bool(row["coverage"]) for row in tables["param_origin"]}
        assert covered == {"0.weight": True, "0.bias": True, "2.weight": True, "2.bias": False}


def counted(every: int, on: bool) -> tuple[int, list[float], list[Any], dict[str, int]]:
    """Number of collectives that the monitor started, and the result of training."""
    calls = []
    gather = dist.ProcessGroupGloo.allgather

    def counting(self: Any, *args: Any, **kwargs: Any) -> Any:
        calls.append(self)
        return gather(self, *args, **kwargs)

    model, optimizer = sharded()
    monitor = watch(model, optimizer, **settings(global_stats=on, step_interval=every))
    dist.ProcessGroupGloo.allgather = counting
    try:
        losses = train(model, optimizer, steps=4)
        monitor.stop()
    finally:
        dist.ProcessGroupGloo.allgather = gather
    return len(calls), losses, [p.detach().to_local().clone() for p in model.parameters()], monitor.faults


def test_one_collective_for_each_group_and_sampled_step(two_ranks: Ranks) -> None:
    off, each, every_other = (two_ranks.run(counted, every, on) for every, on in [(1, False), (1, True), (2, True)])
    for (none, *plain), (four, *full), (two, *half) in zip(off, each, every_other, strict=True):
        assert (none, four, two) == (0, 4, 2)
        assert plain[0] == full[0] == half[0]
        assert all(torch.equal(a, b) for a, b in zip(plain[1], full[1], strict=True))
        assert plain[2] == full[2] == half[2] == {}


def poisoned() -> Table:
    model, optimizer = sharded()
    monitor = watch(model, optimizer, **settings())
    train(model, optimizer, steps=1, poison=1)
    monitor.stop()
    return table(monitor.output_directory, "grad_reduced")


def test_nan_is_counted_over_all_parts(two_ranks: Ranks) -> None:
    for rows in two_ranks.run(poisoned):
        weight = next(row for row in rows if row["name"] == "up.weight")
        assert float(weight["global_nans"]) == 30  # of 5 x 6
        assert weight["global_norm"] == weight["global_min"] == "nan"
        assert weight["merged"] == "1"


def alone(how: str) -> tuple[Table, dict[str, int], list[float], float]:
    """A rank whose other does not take part, or no longer: what it writes, what it counts, what training comes to."""
    model, optimizer = sharded()
    other = dist.get_rank() == 1
    changed: dict[str, Any] = {
        "without": {"global_stats": not other},
        "another configuration": {"ops": OPS[:-1] if other else OPS},
        "another start": {"start_step": 1 if other else 0},
        "stops": {"global_stats_seconds": 20.0},
    }[how]
    monitor = watch(model, optimizer, **(settings(global_stats_seconds=1.0) | changed))
    losses = train(model, optimizer, steps=2)
    if how == "stops" and other:
        monitor.stop()
    losses += train(model, optimizer, steps=3)
    norm = sum(float(p.to_local().square().sum()) for p in model.parameters())
    monitor.stop()
    return table(monitor.output_directory, "grad_reduced"), monitor.faults, losses, norm


@pytest.mark.parametrize("how", ["without", "another configuration", "another start", "stops"])
def test_a_rank_without_the_other_goes_on(two_ranks: Ranks, how: str) -> None:
    plain = two_ranks.run(plainly)
    (rows, faults, losses, norm), (_, _, others, _) = two_ranks.run(alone, how)
    assert [losses, others] == [one for one, _ in plain]
    assert norm == plain[0][1]
    assert [fault for fault in faults if fault.startswith("global statistics")]
    steps = {step: [row for row in rows if row["step"] == str(step)] for step in range(5)}
    assert all(steps.values()), "this rank's own numbers are written as before"
    last = steps[4][0]
    assert not last.get("merged"), "after the first failure there is nothing of the whole"
    complete = {step for step, found in steps.items() if found[0].get("merged") == "1"}
    assert complete == ({0, 1} if how == "stops" else set())
    incomplete = {step for step, found in steps.items() if found[0].get("merged") == "0"}
    assert len(incomplete) == 1, "the step in which the other did not come says so"


def plainly() -> tuple[list[float], float]:
    model, optimizer = sharded()
    losses = train(model, optimizer, steps=2) + train(model, optimizer, steps=3)
    return losses, sum(float(p.to_local().square().sum()) for p in model.parameters())


def deserted() -> tuple[str, list[int], dict[str, int]]:
    """A rank dies; how training ends on the other, and what is written of it."""
    model, optimizer = sharded()
    with watch(model, optimizer, **settings()) as monitor:
        try:
            train(model, optimizer, steps=2)
            if dist.get_rank() == 1:
                monitor.flush()
                os._exit(3)
            train(model, optimizer, steps=2)
        except RuntimeError as error:
            ending = type(error).__name__
    rows = table(monitor.output_directory, "param_updated")
    return ending, sorted({int(row["step"]) for row in rows if row["merged"] == "1"}), monitor.faults


def test_a_rank_that_dies_leaves_the_others_to_end_by_themselves(two_ranks: Ranks) -> None:
    """Training ends with its own error; the monitor waits for no rank, and earlier rows are written."""
    (how, answer), other = two_ranks.outcomes(deserted)
    assert other == ("died", 3)
    assert how == "returned", answer
    ending, complete, faults = answer
    assert ending == "RuntimeError"
    assert complete == [0, 1]
    assert all(fault.startswith("global statistics") for fault in faults)
