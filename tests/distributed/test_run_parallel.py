"""``probe run`` where several processes train: DistributedDataParallel, ``fully_shard``, DeepSpeed, Megatron-Core."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.distributed.models import Net, batch, loss_of
from tests.distributed.ranks import Ranks
from tests.pytorch.watching import EVERYTHING, rows_of, watch
from tests.required import require
from tests.tables import Rows

torch = require("torch")

STEPS, MICRO_BATCHES = 3, 2


@pytest.fixture(scope="module")
def ranks() -> Iterator[Ranks]:
    """Two processes of their own: what ``probe run`` changes in them stays."""
    processes = Ranks(
        2, packages=["deepspeed-0.19.8", "megatron-core-0.16.1"], prepare="tests.distributed.deepspeed_on_cpu"
    )
    yield processes
    processes.close()


def prepared() -> Any:
    """The watch of this process, which is prepared as those of ``probe run`` are."""
    from probe.launch.preparation import prepare

    folder = Path(os.environ["MONITOR_OUTPUT_DIR"])
    folder.mkdir(parents=True, exist_ok=True)
    file = folder / f"monitor-{os.environ['RANK']}.json"
    file.write_text(json.dumps(EVERYTHING))
    if "PROBE_CONFIG" not in os.environ:
        os.environ["PROBE_CONFIG"] = str(file)
        prepare(os.environ)
    os.environ["PROBE_CONFIG"] = str(file)
    from probe.pytorch.finding import WATCH

    return WATCH


def engine(way: str) -> tuple[Any, Any]:
    """A wrapped model and its optimizer."""
    if way == "megatron":
        import tests.distributed.megatron_cpu  # noqa: F401 - before Megatron-Core
        from tests.distributed import megatron_tiny

        models, optimizer = megatron_tiny.build(distributed=True)
        return models[0], optimizer
    net = Net()
    if way == "ddp":
        net = torch.nn.parallel.DistributedDataParallel(net)
    elif way == "fsdp2":
        from torch.distributed.fsdp import fully_shard

        for part in (net.norm, net):
            fully_shard(part)
    optimizer = torch.optim.AdamW(net.parameters(), 0.1)
    if way.startswith("zero"):
        import deepspeed

        stage = {"stage": int(way[-1]), "overlap_comm": False}
        config = {
            "train_micro_batch_size_per_gpu": 4,
            "gradient_accumulation_steps": MICRO_BATCHES,
            "zero_optimization": stage,
            "zero_allow_untested_optimizer": True,
        }
        net, optimizer, *_ = deepspeed.initialize(model=net, optimizer=optimizer, config=config)
    return net, optimizer


def trained(way: str, watches: str) -> tuple[Rows, list[Any]]:
    """Rows and weights after a training that is watched by the three lines (``hand``), as it is (``alone``) or not."""
    watch_of_process = prepared()
    net, optimizer = engine(way)
    monitor = watch(net, optimizer, MICRO_BATCHES) if watches == "hand" else None
    if not watches:
        watch_of_process._rest()
    for step in range(STEPS):
        if way == "megatron":
            from tests.distributed import megatron_tiny

            megatron_tiny.step([net], optimizer, step)
            continue
        for micro in range(MICRO_BATCHES):
            loss = loss_of(net(batch(step, micro)))
            if way.startswith("zero"):
                net.backward(loss)
                net.step()
            else:
                loss.backward()
        if not way.startswith("zero"):
            optimizer.step()
            optimizer.zero_grad()
    if watches == "alone":
        monitor = watch_of_process._runs[-1].monitor
        assert monitor.monitoring
    rows = rows_of(monitor) if monitor is not None else {}
    return rows, [held(p).detach().clone() for p in net.parameters()]


def held(parameter: Any) -> Any:
    """What this rank holds of a parameter; the padding of DeepSpeed's parts was never set."""
    if not hasattr(parameter, "ds_tensor"):
        return parameter
    return parameter.ds_tensor[: parameter.ds_numel - parameter.partition_numel() * torch.distributed.get_rank()]


def compared(way: str) -> tuple[bool, bool, int]:
    """Whether rows are those of the three lines, whether weights are those without, and the number of rows."""
    sys.stderr.flush()
    (alone, weights), (hand, _), (_, plain) = (trained(way, watches) for watches in ("alone", "hand", ""))
    local = [[getattr(each, "_local_tensor", each) for each in some] for some in (weights, plain)]
    same = all(torch.equal(torch.nan_to_num(a), torch.nan_to_num(b)) for a, b in zip(*local, strict=True))
    return repr(sorted(alone.items())) == repr(sorted(hand.items())), same, len(alone)


@pytest.mark.parametrize("way", ["ddp", "fsdp2", "zero1", "zero3", "megatron"])
def test_rows_are_those_of_the_three_lines(ranks: Ranks, way: str) -> None:
    """On each rank, with accumulation; weights are those without a monitor, to the bit."""
    for rows, weights, number in ranks.run(compared, way):
        assert rows
        assert weights
        assert number > (10 if way == "megatron" else 50)
