"""fully_shard: unreduced gradients are this rank's own and whole; of all else a rank has some rows of a DTensor."""

from __future__ import annotations

import copy
import pickle
from contextlib import nullcontext
from typing import Any

import pytest

from tests.distributed.models import Net, batch, loss_of
from tests.distributed.ranks import Ranks
from tests.distributed.sharded import (
    LR,
    MICRO_BATCHES,
    Seen,
    Traces,
    assert_close,
    assert_no_traces,
    assert_seen,
    assert_whole,
    each_micro_batch,
    observed,
    parts,
    reference,
    rows_of,
    sum_of_step,
    traces,
    train,
)
from tests.pytorch.watching import rows_of as rows_after
from tests.pytorch.watching import watch
from tests.required import require
from tests.tables import Row

torch = require("torch")

import torch.distributed as dist  # noqa: E402 - only where torch is
from torch.distributed.device_mesh import init_device_mesh  # noqa: E402
from torch.distributed.fsdp import CPUOffloadPolicy, MixedPrecisionPolicy, fully_shard  # noqa: E402


def sharded(model: Any, mesh: tuple[int, ...] | None = None, **options: Any) -> Any:
    """Two units: the normalisation, and the rest; over all ranks, or within replicas."""
    names = ("replicas", "shards")[2 - len(mesh or (0,)) :]
    mesh = init_device_mesh("cpu", mesh or (dist.get_world_size(),), mesh_dim_names=names)
    for part in (model.norm, model):
        fully_shard(part, mesh=mesh, **options)
    return model


def unsynchronized(model: Any, last: bool) -> Any:
    model.set_requires_gradient_sync(last)
    return nullcontext()


def seen(
    micro_batches: int = 1,
    synchronized: bool = True,
    low: bool = False,
    offload: bool = False,
    mesh: tuple[int, ...] | None = None,
    settings: dict[str, Any] | None = None,
    **options: Any,
) -> Seen:
    if low:
        options["mp_policy"] = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
    if offload:
        options["offload_policy"] = CPUOffloadPolicy(pin_memory=False)
    return observed(
        lambda model: sharded(model, mesh, **options),
        micro_batches,
        quiet=None if synchronized else unsynchronized,
        dtype=torch.bfloat16 if low else None,
        **(settings or {}),
    )


@pytest.mark.parametrize("reshard", [True, False])
def test_gradients_parameters_and_state(two_ranks: Ranks, reshard: bool) -> None:
    ranks = two_ranks.run(seen, reshard_after_forward=reshard)
    assert_seen(ranks, sum_of_step)
    parts = {part.coverage for each in ranks for part in each.rows.values() if part.coverage}
    assert {"18 of [5, 6] at dim 0: 0/2 over ranks 0-1", "12 of [5, 6] at dim 0: 1/2 over ranks 0-1"} <= parts


@pytest.mark.parametrize(("synchronized", "each", "wanted"), MICRO_BATCHES)
def test_several_micro_batches(two_ranks: Ranks, synchronized: bool, each: Any, wanted: Any) -> None:
    assert_seen(two_ranks.run(seen, 3, synchronized, settings={"monitor_mbs_grad": each}), wanted)


def test_offloading(two_ranks: Ranks) -> None:
    assert_seen(two_ranks.run(seen, 2, offload=True), each_micro_batch)


@pytest.mark.parametrize("mesh", [(1, 2), (2, 1)])
def test_replicas_of_two_ranks(two_ranks: Ranks, mesh: tuple[int, int]) -> None:
    ranks = two_ranks.run(seen, 2, mesh=mesh)
    assert_seen(ranks, each_micro_batch)
    assert any(part.coverage for part in ranks[0].rows.values()) == (mesh == (1, 2))


def test_shards_within_replicas(four_ranks: Ranks) -> None:
    ranks = four_ranks.run(seen, 2, False, mesh=(2, 2))
    assert_seen(ranks, sum_of_step)
    for rank, each in enumerate(ranks):
        groups = {part.coverage.partition(" over ranks ")[2] for part in each.rows.values() if part.coverage}
        assert groups == {"0-1" if rank < 2 else "2-3"}


def test_ranks_without_a_row(four_ranks: Ranks) -> None:
    """Three rows over four ranks: the last has none, as its coverage shows."""
    ranks = four_ranks.run(seen)
    assert_seen(ranks, sum_of_step)
    last = ranks[3].rows[Row("grad_reduced", 0, "down.weight")]
    assert last.coverage == "0 of [3, 5] at dim 0: 3/4 over ranks 0-3"


def test_mixed_precision(two_ranks: Ranks) -> None:
    """Unreduced gradients are as the backward gives them, in bfloat16; their sum and all else is float32."""
    ranks = two_ranks.run(seen, low=True)
    assert_seen(ranks, sum_of_step)
    for each in ranks:
        assert {each.rows[row].dtype for row in rows_of(each, "grad_unreduced")} == {"torch.bfloat16"}
        assert {each.rows[row].dtype for row in rows_of(each, "grad_reduced")} == {"torch.float32"}
    ranks = two_ranks.run(seen, 2, False, low=True)
    assert_seen(ranks, sum_of_step, bound=2e-2)
    assert {ranks[0].rows[row].dtype for row in rows_of(ranks[0], "grad_unreduced")} == {"torch.float32"}


def late(swap: bool) -> tuple[dict[str, int], dict[Any, Any], Any]:
    """A model whose parameters are replaced after the monitor was attached; ``swap``: the optimizer gets the others."""
    model = Net()
    optimizer = torch.optim.SGD(model.parameters(), LR)
    replaced = list(model.parameters())
    monitor = watch(model, optimizer)
    sharded(model)
    if swap:
        optimizer.param_groups[0]["params"] = list(model.parameters())
    train(model, optimizer, 1)
    assert not any(old._post_accumulate_grad_hooks for old in replaced), "what was replaced is let go at once"
    monitor.stop()
    return monitor.faults, parts(monitor.output_directory), reference(1)


def test_parameters_that_are_replaced_after_attaching_are_found(two_ranks: Ranks) -> None:
    ranks = two_ranks.run(late, True)
    for faults, rows, wanted in ranks:
        assert faults == {}
        for name, gradient in wanted.local[0].items():
            assert_close(rows[Row("grad_unreduced", 0, name)].numbers, gradient, name)
    for name, gradient in ranks[0][2].reduced.items():
        assert_whole([rows[Row("grad_reduced", 0, name)] for _, rows, _ in ranks], gradient, name)


def test_an_optimizer_of_replaced_parameters_is_told(two_ranks: Ranks) -> None:
    for faults, rows, wanted in two_ranks.run(late, False):
        assert faults["parameters: ValueError"] == len(wanted.before)
        assert {row.name for row in rows if row.signal == "grad_unreduced"} == wanted.before.keys()


def clipped() -> tuple[dict[Any, Any], Any, float]:
    """Gradients that are clipped between backward and update; the norm that they had."""
    model = sharded(Net())
    optimizer = torch.optim.SGD(model.parameters(), LR)
    monitor = watch(model, optimizer, xy_distribution=False)
    loss_of(model(batch(0, 0))).backward()
    norm = torch.nn.utils.clip_grad_norm_(model.parameters(), 0.01).full_tensor()
    optimizer.step()
    monitor.stop()
    assert monitor.faults == {}
    return parts(monitor.output_directory), reference(1), float(norm)


def test_clipping_is_seen(two_ranks: Ranks) -> None:
    ranks = two_ranks.run(clipped)
    for name, gradient in ranks[0][1].reduced.items():
        scaled = gradient * (0.01 / ranks[0][2])
        assert_whole([rows[Row("grad_reduced", 0, name)] for rows, _, _ in ranks], scaled, name)


def left(used: bool) -> Traces:
    from torch.distributed.fsdp._fully_shard import _fsdp_collectives, _fsdp_param, _fsdp_param_group, _fsdp_state

    def inside(model: Any) -> list[Any]:
        state = model._get_fsdp_state()
        groups = [module._get_fsdp_state()._fsdp_param_groups[0] for module in (model.norm, model)]
        stored = [each for group in groups for each in group.fsdp_params]
        unsharded = [each._unsharded_param for each in stored if hasattr(each, "_unsharded_param")]
        return [state, *groups, *stored, *unsharded]

    modules = [_fsdp_collectives, _fsdp_param, _fsdp_param_group, _fsdp_state]
    classes = [_fsdp_param.FSDPParam, _fsdp_param_group.FSDPParamGroup, _fsdp_state.FSDPState]
    return traces(lambda: sharded(Net()), inside, [*modules, *classes, dist], used=used)


@pytest.mark.parametrize("used", [True, False], ids=["attached while training", "attached before training"])
def test_nothing_is_left_behind_and_no_collective_added(two_ranks: Ranks, used: bool) -> None:
    assert_no_traces(two_ranks.run(left, used))


def unused_steps() -> tuple[set[int], bool]:
    """Steps with rows where every second one is sampled, and whether hooks answered on the others."""
    model = sharded(Net())
    optimizer = torch.optim.SGD(model.parameters(), LR)
    monitor = watch(model, optimizer, step_interval=2)
    train(model, optimizer, 1)
    (group,) = model._get_fsdp_state()._fsdp_param_groups
    assert not any("to_unsharded" in vars(stored) for stored in group.fsdp_params), "replaced for the first time alone"
    spent = (
        monitor._attachment.run.cost.hooks
    )  # set to zero where a sampled step ends; hooks add to it while they are at work
    monitor.stop()
    return {row.step for row in parts(monitor.output_directory)}, spent == 0


def test_steps_that_are_not_sampled_do_nothing(two_ranks: Ranks) -> None:
    assert two_ranks.run(unused_steps) == [({0}, True), ({0}, True)]


def with_group() -> set[str]:
    """Which reduced gradients a rank writes under HSDP, where the data-parallel group is known."""
    from probe.pytorch import TrainerMon

    model = Net()
    fully_shard(model, mesh=init_device_mesh("cpu", (2, 2), mesh_dim_names=("replicas", "shards")))
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    monitor = TrainerMon({"wg_distribution": True, "ops": ["norm"]})
    monitor.set_monitor(model, 1, optimizer, dp_group=dist.group.WORLD)
    loss_of(model(batch(0, 0))).backward()
    optimizer.step()
    return {row.name for row in rows_after(monitor) if row.signal == "grad_reduced"}


def test_the_second_replica_repeats_what_the_first_has(four_ranks: Ranks) -> None:
    """With ``dp_group``, its reduced gradients are left out."""
    first, second, *others = four_ranks.run(with_group)
    assert first == second != set()
    assert others == [set(), set()]


def objects_of(model: Any) -> list[Any]:
    """``fully_shard``'s own objects of a model: a state, a group and one for each parameter."""
    groups = [part._get_fsdp_state()._fsdp_param_group for part in (model.norm, model)]
    return [*groups, *(stored for group in groups for stored in group.fsdp_params)]


def copied() -> tuple[list[str], set[int], list[bool]]:
    """What lies in the objects of a watched model before its first forward that did not, the steps with unreduced
    gradients, and whether copies and pickles of them and their methods are as without a monitor."""
    model = sharded(Net())
    optimizer = torch.optim.SGD(model.parameters(), LR)
    held = [set(vars(each)) for each in objects_of(model)]
    plain = pickle.dumps([each.mp_policy for each in objects_of(model)[:2]])
    monitor = watch(model, optimizer)
    foreign = [name for each, names in zip(objects_of(model), held, strict=True) for name in set(vars(each)) - names]
    alike = [pickle.dumps([each.mp_policy for each in objects_of(model)[:2]]) == plain]
    for each in objects_of(model)[2:]:
        twin = copy.copy(each)
        alike += [twin.to_unsharded.__self__ is twin, vars(twin).keys() == vars(each).keys()]
        method = pickle.loads(pickle.dumps(type(each).to_unsharded))
        alike += [method is type(each).to_unsharded, copy.deepcopy(method) is method]
        alike += [copy.deepcopy(each._sharding_spec) == each._sharding_spec]
    train(model, optimizer, 1)
    foreign += [name for each in objects_of(model)[2:] for name in vars(each) if name == "to_unsharded"]
    monitor.stop()
    return foreign, {row.step for row in parts(monitor.output_directory)}, alike


def test_copies_of_what_fully_shard_has_are_as_without_a_monitor(two_ranks: Ranks) -> None:
    """Nothing of this package lies in ``fully_shard``'s objects, before the first forward either."""
    for foreign, steps, alike in two_ranks.run(copied):
        assert foreign == []
        assert 0 in steps
        assert all(alike)


def replaced() -> bool:
    """Whether the method of the class is torch's own again after each stand-in is made."""
    from torch.distributed.fsdp._fully_shard._fsdp_param import FSDPParam

    own = FSDPParam.to_unsharded
    model = sharded(Net())
    optimizer = torch.optim.SGD(model.parameters(), LR)
    monitor = watch(model, optimizer)
    watched = FSDPParam.to_unsharded is not own
    train(model, optimizer, 1)
    again = FSDPParam.to_unsharded is own
    monitor.stop()
    return watched and again


def test_the_class_has_its_method_again_when_every_stand_in_is_there(two_ranks: Ranks) -> None:
    """From the first step on nothing of torch's is replaced."""
    assert two_ranks.run(replaced) == [True, True]
