"""DistributedDataParallel: unreduced gradients are this rank's own, reduced ones the mean; nothing else changes."""

from __future__ import annotations

from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest

from tests.distributed import sharded
from tests.distributed.models import Net, by_hand, copy_of
from tests.distributed.ranks import Ranks
from tests.pytorch.watching import assert_rows, rows_of, watch
from tests.required import require
from tests.tables import Row, Rows

torch = require("torch")

import torch.distributed as dist  # noqa: E402 - only where torch is
from torch.nn.parallel import DistributedDataParallel as DDP  # noqa: E402, N817

STEPS, LR = sharded.STEPS, sharded.LR
WEIGHTS = {"xy_distribution": False}


def halving(_: Any, bucket: Any) -> Any:
    """A user's own communication hook: the mean, after a detour through float64."""
    buffer = bucket.buffer()
    wide = buffer.double() / dist.get_world_size()
    work = dist.all_reduce(wide, async_op=True).get_future()
    return work.then(lambda done: buffer.copy_(done.value()[0]))


halving.__annotations__.clear()  # torch compares them with its classes, and they are text here


def wrapped(options: dict[str, Any], own_hook: bool) -> Any:
    """The model as users wrap it; small buckets, so that there are several."""
    model = DDP(Net(), bucket_cap_mb=1e-4, **options)
    if own_hook:
        model.register_comm_hook(None, halving)
    return model


def train(model: Any, optimizer: Any, micro_batches: int) -> list[float]:
    """The losses; all micro batches but the last leave out the reduction."""
    return sharded.train(model, optimizer, micro_batches, lambda ddp, last: nullcontext() if last else ddp.no_sync())


def watched(
    options: dict[str, Any], own_hook: bool, micro_batches: int, each: Any, inner: bool
) -> tuple[Rows, dict[Row, Any], bool]:
    """The rows, what they must be, and whether training was the same as without a monitor."""
    plain = wrapped(options, own_hook)
    losses = train(plain, torch.optim.SGD(plain.parameters(), LR, momentum=0.5), micro_batches)
    model = wrapped(options, own_hook)
    optimizer = torch.optim.SGD(model.parameters(), LR, momentum=0.5)
    monitor = watch(model.module if inner else model, optimizer, micro_batches, monitor_mbs_grad=each)
    same = losses == train(model, optimizer, micro_batches)
    rows = rows_of(monitor)
    same &= all(torch.equal(a, b) for a, b in zip(plain.parameters(), model.parameters(), strict=True))
    return rows, expected(micro_batches, each), same


def expected(micro_batches: int, each: Any) -> dict[Row, Any]:
    """By hand: the first step's gradients and parameters (later ones depend on the optimizer)."""
    (reference, *_) = by_hand(1, micro_batches, LR)
    rows: dict[Row, Any] = {}
    for name in reference.before:
        rows[Row("param_origin", 0, name)] = reference.before[name]
        rows[Row("param_updated", 0, name)] = reference.after[name]
        rows[Row("grad_reduced", 0, name)] = reference.reduced[name]
        local = [gradients[name] for gradients in reference.local]
        if each is True:
            rows |= {Row("grad_unreduced", 0, name, i): gradient for i, gradient in enumerate(local)}
        elif each == "accumulated":
            rows |= {Row("grad_unreduced", 0, name, i): sum(local[: i + 1]) for i in range(micro_batches)}
        else:
            rows[Row("grad_unreduced", 0, name)] = sum(local)
    return rows


def of_step(rows: Rows, step: int) -> Rows:
    return {row: values for row, values in rows.items() if row.step == step}


CASES = [
    pytest.param({}, False, 1, False, False, id="plain"),
    pytest.param({"gradient_as_bucket_view": True}, False, 2, False, False, id="views of buckets, no_sync"),
    pytest.param({"gradient_as_bucket_view": True}, False, 2, True, False, id="views of buckets, each micro batch"),
    pytest.param({}, False, 3, "accumulated", False, id="running sums"),
    pytest.param({}, True, 2, False, False, id="a communication hook of the user's"),
    pytest.param({"static_graph": True}, False, 1, True, False, id="static graph"),
    pytest.param({"find_unused_parameters": True}, False, 1, False, True, id="the wrapped module is given"),
]


@pytest.mark.parametrize(("options", "own_hook", "micro_batches", "each", "inner"), CASES)
def test_gradients_and_parameters(
    two_ranks: Ranks, options: dict[str, Any], own_hook: bool, micro_batches: int, each: Any, inner: bool
) -> None:
    for rows, wanted, same in two_ranks.run(watched, options, own_hook, micro_batches, each, inner):
        assert same, "losses or weights differ from those without a monitor"
        signals = ("grad_unreduced", "grad_reduced", "param_origin", "param_updated")
        assert_rows(of_step(rows, 0), wanted, signals, relative=1e-5)
        assert {row.name for row in rows if row.signal == "momentum_buffer"} == {row.name for row in wanted}
        assert {row.step for row in rows} == set(range(STEPS))
        assert {row.micro_step for row in rows if row.signal == "actv"} == set(range(micro_batches))
        assert {row.name for row in rows if row.signal == "actv_grad"} >= {"up.output", "norm.input", "down.input"}


def with_groups(first: bool) -> dict[str, set[str]]:
    """Names by signal, where the data-parallel group is known; ``first``: so is a tensor-parallel one of one rank."""
    model = DDP(Net())
    optimizer = torch.optim.SGD(model.parameters(), LR, momentum=0.5)
    from probe.pytorch import TrainerMon

    signals = ("wg_distribution", "param_distribution", "mv_distribution")
    monitor = TrainerMon(dict.fromkeys(signals, True))
    groups = [dist.new_group([rank]) for rank in range(dist.get_world_size())]
    alone = groups[dist.get_rank()]
    monitor.set_monitor(model, 1, optimizer, dp_group=alone if first else dist.group.WORLD, tp_group=alone)
    train(model, optimizer, 1)
    found: dict[str, set[str]] = {}
    for row in rows_of(monitor):
        found.setdefault(row.signal, set()).add(row.name)
    return found


def test_reduced_gradients_are_written_by_the_first_of_a_data_parallel_group(two_ranks: Ranks) -> None:
    first, second = two_ranks.run(with_groups, False)
    names = {name for name, _ in Net().named_parameters()}
    assert first.pop("grad_reduced") == names
    assert "grad_reduced" not in second
    assert first == second
    assert set(first) == {"grad_unreduced", "param_origin", "param_updated", "momentum_buffer"}


def test_groups_of_one_rank_leave_nothing_out(two_ranks: Ranks) -> None:
    first, second = two_ranks.run(with_groups, True)
    assert first == second
    assert "grad_reduced" in second


def with_groups_that_are_none() -> tuple[int, list[str]]:
    """Number of reduced gradients with the groups of the other rank, and the errors for objects that are no groups."""
    from probe.pytorch import TrainerMon

    model = DDP(Net())
    optimizer = torch.optim.SGD(model.parameters(), LR)
    said = []
    for wrong in ({"dp_group": 3}, {"tp_group": [0, 1]}):
        with pytest.raises(ValueError, match="expected a process group") as caught:
            TrainerMon({"wg_distribution": True}).set_monitor(model, 1, optimizer, **wrong)
        said.append(str(caught.value))
    other = [dist.new_group([rank]) for rank in range(2)][1 - dist.get_rank()]
    monitor = TrainerMon({"wg_distribution": True}, process_group=other)
    monitor.set_monitor(model, 1, optimizer, dp_group=other, tp_group=other)
    train(model, optimizer, 1)
    return len({row.name for row in rows_of(monitor) if row.signal == "grad_reduced"}), said


def test_groups_that_this_rank_is_not_in_and_what_is_no_group(two_ranks: Ranks) -> None:
    """``new_group`` returns a stand-in to ranks outside: each writes its own rows. Any other object is an error."""
    for names, said in two_ranks.run(with_groups_that_are_none):
        assert names == len(list(Net().parameters()))
        assert [text.rpartition("got ")[2].partition(";")[0] for text in said] == ["3", "[0, 1]"]


def with_a_split_weight() -> list[str]:
    """Parameters with a reduced gradient if one weight is marked as Megatron marks those that ranks have split."""
    from probe.pytorch import TrainerMon

    model = DDP(Net())
    next(model.parameters()).tensor_model_parallel = True
    optimizer = torch.optim.SGD(model.parameters(), LR)
    monitor = TrainerMon({"wg_distribution": True})
    monitor.set_monitor(model, 1, optimizer, tp_group=dist.group.WORLD)
    train(model, optimizer, 1)
    return sorted({row.name for row in rows_of(monitor) if row.signal == "grad_reduced"})


def test_of_a_tensor_parallel_group_each_rank_writes_what_is_split(two_ranks: Ranks) -> None:
    """The first rank writes all reduced gradients, the second that of the parameter of which it has another part."""
    first, second = two_ranks.run(with_a_split_weight)
    names = [name for name, _ in Net().named_parameters()]
    assert first == sorted(names)
    assert second == names[:1]


def raw_names() -> tuple[dict[str, str], set[str]]:
    """Manifest, and the rows of a target that is named by its raw name."""
    import json
    from pathlib import Path

    model = DDP(Net())
    optimizer = torch.optim.SGD(model.parameters(), LR)
    monitor = watch(model, optimizer, **WEIGHTS, targets={"module.up": {}, "down.weight": {}})
    train(model, optimizer, 1)
    rows = rows_of(monitor)
    manifest = json.loads((Path(monitor.output_directory) / "manifest.json").read_text(encoding="utf-8"))
    return manifest["raw_names"], {row.name for row in rows}


def test_names_are_the_users_and_the_raw_ones_are_known(two_ranks: Ranks) -> None:
    for known, named in two_ranks.run(raw_names):
        assert known["up.weight"] == "module.up.weight"
        assert known["norm"] == "module.norm"
        assert named == {"up.weight", "up.bias", "down.weight"}


def leftovers() -> bool:
    """Whether a stopped monitor leaves model and optimizer as they were."""
    model = DDP(Net())
    optimizer = torch.optim.SGD(model.parameters(), LR)

    def picture() -> list[object]:
        hooks = [{k: list(v) for k, v in vars(m).items() if "hooks" in k and v} for m in model.modules()]
        grads = [(p._backward_hooks, p._post_accumulate_grad_hooks) for p in model.parameters()]
        return [hooks, grads, sorted(vars(optimizer)), optimizer._optimizer_step_pre_hooks, sorted(vars(model))]

    train(model, optimizer, 1)
    before = repr(picture())
    monitor = watch(model, optimizer)
    during = repr(picture())
    train(model, optimizer, 1)
    monitor.stop()
    assert during != before
    return repr(picture()) == before


def test_nothing_is_left_behind(two_ranks: Ranks) -> None:
    assert two_ranks.run(leftovers) == [True, True]


def apart() -> list[bool]:
    """A rank that stops monitoring in the middle, or collects other steps, does not hold the others up."""
    model = DDP(Net())
    optimizer = torch.optim.SGD(model.parameters(), LR)
    first = dist.get_rank() == 0
    monitor = watch(model, optimizer, step_interval=1 if first else 3, wg_distribution=first)
    train(model, optimizer, 2)
    if first:
        monitor.stop()
    train(model, optimizer, 1)
    monitor.stop()
    reference = [torch.zeros_like(p) for p in model.parameters()]
    for total, parameter in zip(reference, model.parameters(), strict=True):
        total.copy_(parameter.detach())
        dist.broadcast(total, 0)
    return [torch.equal(a, b) for a, b in zip(reference, model.parameters(), strict=True)]


def test_ranks_with_other_configurations_train_on_together(two_ranks: Ranks) -> None:
    assert all(map(all, two_ranks.run(apart)))


def test_the_reference_is_gradient_descent(two_ranks: Ranks) -> None:
    """The numbers that the tests of this folder compare with are those of torch's own DDP and SGD."""
    for ours, theirs in two_ranks.run(both_ways):
        assert all(torch.allclose(ours[name], theirs[name], rtol=1e-5, atol=1e-7) for name in ours)


def both_ways() -> tuple[dict[str, Any], dict[str, Any]]:
    model = DDP(Net())
    train(model, torch.optim.SGD(model.parameters(), LR), 2)
    return by_hand(STEPS, 2, LR)[-1].after, copy_of(model.module)


def on_some_ranks() -> tuple[bool, str | None, list[float]]:
    """Only rank 1 collects; both train the same."""
    model = DDP(Net())
    optimizer = torch.optim.SGD(model.parameters(), LR)
    monitor = watch(model, optimizer, **WEIGHTS, module_ranks=[1])
    collects = monitor.monitoring
    losses = train(model, optimizer, 1)
    monitor.stop()
    return collects, monitor.output_directory, losses


def test_only_some_ranks_collect(two_ranks: Ranks, output_dir: Path) -> None:
    first, second = two_ranks.run(on_some_ranks)
    assert (first[0], second[0]) == (False, True)
    assert first[1] is None
    assert [path.name.split("-rank")[1][0] for path in output_dir.iterdir()] == ["1"]
