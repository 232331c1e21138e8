"""Dynamic start and stop in two processes: all switch at one step, however late the file shows itself to some."""

from __future__ import annotations

import csv
import json
import os
import shutil
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from probe.cli import app
from probe.core.storage.directories import last_run
from probe.core.storage.plans import PlanDifference, plan_differences
from probe.core.storage.problems import Problems
from tests.distributed.models import Net, batch, loss_of
from tests.distributed.ranks import Ranks
from tests.required import require

torch = require("torch")

import torch.distributed as dist  # noqa: E402 - only where torch is
from torch.distributed.fsdp import fully_shard  # noqa: E402

CONFIG = {"wg_distribution": True, "format": "api", "dynamic_on": False, "dynamic_seconds": 0}


def train(
    folder: str, steps: int, edits: dict[int, dict[str, Any]], delay: int
) -> tuple[list[int], dict[str, int], str]:
    """The steps that this rank has collected, what failed, and the file at the end.

    The second rank sees every state of the file ``delay`` steps late.
    """
    from probe.pytorch import TrainerMon

    os.environ["DYNAMIC_MONITOR"] = "True"
    leads = dist.get_rank() == 0
    own = Path(folder) / ("monitor.json" if leads else "seen_late.json")
    own.write_text(json.dumps(CONFIG))
    model = torch.nn.parallel.DistributedDataParallel(Net())
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    collected = []
    with TrainerMon(own) as monitor:
        monitor.set_monitor(model, 1, optimizer)
        for step in range(steps):
            if leads and step in edits:
                values = json.loads(own.read_text()) | edits[step]
                own.write_text(json.dumps(values))
            dist.barrier()
            if not leads:
                shutil.copy(Path(folder) / "monitor.json", Path(folder) / f"state{step}.json")
                if step >= delay:
                    (Path(folder) / f"state{step - delay}.json").replace(own)
            dist.barrier()
            loss_of(model(batch(step, dist.get_rank()))).backward()
            optimizer.step()
            optimizer.zero_grad()
            if monitor.generate_wgrad_metrics()[0]:
                collected.append(step)
    os.environ.pop("DYNAMIC_MONITOR")
    return collected, monitor.faults, own.read_text()


ON = {"dynamic_on": True, "collect_times": 3}


def test_all_ranks_begin_at_the_step_that_the_first_one_names(two_ranks: Ranks, tmp_path: Path) -> None:
    """An edit during step 2, which the other rank sees a step later: both begin at the step written into the file."""
    (one, faults, text), (other, more, _) = two_ranks.run(train, str(tmp_path), 12, {2: ON}, 1)
    assert one == other == [5, 6, 7]
    assert faults == more == {}
    assert json.loads(text) == CONFIG | ON | {"dynamic_on": False, "apply_at_step": 5}


def test_a_second_change_has_a_step_of_its_own(two_ranks: Ranks, tmp_path: Path) -> None:
    """The step of an earlier change, still in the file, is not taken for that of the next."""
    edits = {1: ON, 9: {"dynamic_on": True, "collect_times": 1}}
    (one, faults, _), (other, more, _) = two_ranks.run(train, str(tmp_path), 16, edits, 1)
    assert one == other == [4, 5, 6, 12]
    assert faults == more == {}


def test_a_step_that_the_user_names_holds_for_all(two_ranks: Ranks, tmp_path: Path) -> None:
    """Nothing is written where nothing is missing."""
    edits = {1: ON | {"apply_at_step": 8}}
    (one, _, text), (other, _, _) = two_ranks.run(train, str(tmp_path), 14, edits, 3)
    assert one == other == [8, 9, 10]
    assert json.loads(text)["apply_at_step"] == 8


def test_a_rank_that_sees_it_too_late_says_so(two_ranks: Ranks, tmp_path: Path) -> None:
    """It begins as soon as it can, and counts the fault; training goes on."""
    (one, faults, _), (other, more, _) = two_ranks.run(train, str(tmp_path), 16, {2: ON}, 6)
    assert one == [5, 6, 7]
    assert faults == {}
    assert len(other) == 3
    assert other[0] > 8
    assert more == {"control: TimeoutError": 1}


@pytest.mark.parametrize("delay", [0, 1])
def test_switching_off_holds_for_all(two_ranks: Ranks, tmp_path: Path, delay: int) -> None:
    """``dynamic_on: false`` while collecting ends it at one step."""
    edits = {1: ON | {"collect_times": 100}, 6: {"dynamic_on": False}}
    (one, faults, _), (other, more, _) = two_ranks.run(train, str(tmp_path), 14, edits, delay)
    assert one == other == [4, 5, 6, 7, 8]
    assert faults == more == {}


def test_a_first_rank_that_takes_no_part_ends_it_all_the_same(two_ranks: Ranks, tmp_path: Path) -> None:
    """After ``collect_times`` steps of the others it writes ``dynamic_on: false``, and they can be begun again."""
    edits = {1: ON | {"module_ranks": [1]}, 9: {"dynamic_on": True, "module_ranks": []}}
    (one, faults, text), (other, more, _) = two_ranks.run(train, str(tmp_path), 18, edits, 0)
    assert (one, other) == ([12, 13, 14], [4, 5, 6, 12, 13, 14])
    assert faults == more == {}
    assert json.loads(text)["dynamic_on"] is False


def sharing(folder: str, actions: list[int | dict[str, Any]]) -> dict[str, int]:
    """The faults of this rank, whose model is its own. Both ranks follow one file.

    Args:
        actions: done one after the other: a number is a step of that rank, values are an edit of the file.
    """
    from probe.pytorch import TrainerMon

    os.environ["DYNAMIC_MONITOR"], os.environ["MONITOR_OUTPUT_DIR"] = "True", f"{folder}/out"
    file, rank = Path(folder) / "monitor.json", dist.get_rank()
    if rank == 0:
        file.write_text(json.dumps(CONFIG | {"format": "csv"}))
    dist.barrier()
    model = Net()
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    with TrainerMon(file) as monitor:
        monitor.set_monitor(model, 1, optimizer)
        for action in actions:
            dist.barrier()
            if action == rank:
                loss_of(model(batch(0, 0))).backward()
                optimizer.step()
                optimizer.zero_grad()
            elif isinstance(action, dict) and rank == 0:
                (Path(folder) / "new.json").write_text(json.dumps(CONFIG | {"format": "csv"} | action))
                (Path(folder) / "new.json").replace(file)
        dist.barrier()
    del os.environ["DYNAMIC_MONITOR"], os.environ["MONITOR_OUTPUT_DIR"]
    return monitor.faults


def collected(folder: Path) -> list[dict[int, tuple[str, ...]]]:
    """The ops of each rank by step."""
    ranks: list[dict[int, tuple[str, ...]]] = [{}, {}]
    for path in (folder / "out").glob("*-rank*/grad_reduced_*.csv"):
        with path.open(newline="") as rows:
            for row in csv.DictReader(rows):
                ops = tuple(name for name in row if name in ("norm", "min", "max"))
                ranks[int(path.parent.name.split("-rank")[1].split("-")[0])][int(row["step"])] = ops
    return ranks


MAX, MIN = ({"dynamic_on": True, "ops": [op]} for op in ("max", "min"))
TURN = [0, 1]


def test_edits_in_a_row_hold_on_both_ranks_at_the_same_steps(two_ranks: Ranks, tmp_path: Path) -> None:
    """Also one that is replaced before the second rank has seen it."""
    actions = [*TURN, MAX, 0, MIN, 1, *TURN * 8, {"dynamic_on": False}, 0, MAX, 1, *TURN * 8]
    faults = two_ranks.run(sharing, str(tmp_path), actions)
    one, other = collected(tmp_path)
    assert one == other
    assert set(one.values()) == {("max",), ("min",)}
    assert faults == [{}, {}]
    assert plan_differences(last_run(tmp_path / "out", Problems())) == []


def test_where_ranks_differ_is_counted_and_said(two_ranks: Ranks, tmp_path: Path) -> None:
    """A rank that is far ahead of the first one reads a change after its step: it counts a fault, and readers name the
    steps."""
    actions = [*TURN, *[1] * 7, MAX, *[0] * 8, *TURN * 4]
    faults = two_ranks.run(sharing, str(tmp_path), actions)
    one, other = collected(tmp_path)
    assert (min(one), min(other)) == (4, 9)
    assert faults == [{}, {"control: TimeoutError": 1}]
    run = last_run(tmp_path / "out", Problems())
    assert plan_differences(run) == [PlanDifference(4, 8, (1,))]
    result = CliRunner().invoke(app, ["anomalies", str(tmp_path / "out")])
    assert "ranks 1 collected by another configuration than the others at steps 4-8" in " ".join(result.output.split())


def merging(folder: str, steps: int, edits: dict[int, dict[str, Any]]) -> tuple[list[int], dict[str, int]]:
    """The steps of which this rank knows whole tensors, whose other half the other rank holds."""
    from probe.pytorch import TrainerMon

    os.environ["DYNAMIC_MONITOR"], os.environ["MONITOR_OUTPUT_DIR"] = "True", f"{folder}/out"
    file = Path(folder) / "monitor.json"
    values = CONFIG | {"format": "csv", "global_stats": True, "global_stats_seconds": 20, "module_ranks": [1]}
    if dist.get_rank() == 0:
        file.write_text(json.dumps(values))
    dist.barrier()
    model = Net()
    for part in (model.up, model):
        fully_shard(part)
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    with TrainerMon(file) as monitor:
        monitor.set_monitor(model, 1, optimizer)
        for step in range(steps):
            if dist.get_rank() == 0 and step in edits:
                file.write_text(json.dumps(json.loads(file.read_text()) | edits[step]))
            dist.barrier()
            loss_of(model(batch(step, dist.get_rank()))).backward()
            optimizer.step()
            optimizer.zero_grad()
            monitor.flush()
            dist.barrier()
    found = set()
    for path in Path(monitor.output_directory or folder).glob("grad_reduced_*.csv"):
        with path.open(newline="") as rows:
            found |= {int(row["step"]) for row in csv.DictReader(rows) if row.get("merged") == "1"}
    del os.environ["DYNAMIC_MONITOR"], os.environ["MONITOR_OUTPUT_DIR"]
    return sorted(found), monitor.faults


def test_ranks_that_came_later_merge_with_those_that_were_there(two_ranks: Ranks, tmp_path: Path) -> None:
    """However many changes each of them has seen before."""
    edits = {
        1: ON | {"collect_times": 2, "global_stats": False},
        7: {"dynamic_on": True, "module_ranks": [], "global_stats": True},
        13: {"dynamic_on": True, "collect_times": 1},
    }
    (one, faults), (other, more) = two_ranks.run(merging, str(tmp_path), 19, edits)
    assert one == other == [10, 11, 16]
    assert faults == more == {}


def dig(steps: int, bad: dict[int, int]) -> tuple[list[int], dict[str, int]]:
    """The steps in which this rank has collected activations; ``bad`` has the rank with NaN in its data by step."""
    from probe.pytorch import TrainerMon

    config = {
        "param_distribution": True,
        "format": "api",
        "dynamic_seconds": 0,
        "alert": {"rules": [{"rule_name": "AnomalySpike", "args": {"warm_up": 2, "window": 4, "cool_down": 1}}]},
        "on_anomaly": {"arm": {"xy_distribution": True}, "steps": 2, "cool_down": 3},
    }
    model = torch.nn.parallel.DistributedDataParallel(Net())
    optimizer = torch.optim.SGD(model.parameters(), 0.0)
    deep = []
    with TrainerMon(config) as monitor:
        monitor.set_monitor(model, 1, optimizer)
        for step in range(steps):
            if bad.get(step) == dist.get_rank():
                with torch.no_grad():
                    next(model.parameters()).mul_(1e6)
            loss_of(model(batch(step, dist.get_rank()))).backward()
            optimizer.step()
            optimizer.zero_grad()
            if bad.get(step) == dist.get_rank():
                with torch.no_grad():
                    next(model.parameters()).div_(1e6)
            if monitor.generate_xy_metrics()[0]:
                deep.append(step)
            monitor.flush()
            dist.barrier()
    return deep, monitor.faults


def test_what_one_rank_finds_makes_all_look_deeper(two_ranks: Ranks) -> None:
    """At one step, for as long; and not again before the rest is over, whoever finds something then."""
    (one, faults), (other, more) = two_ranks.run(dig, 24, {5: 1, 8: 0, 16: 0})
    assert one == other
    assert len(one) == 4
    assert one[0] > 6
    assert one[2] > 16
    assert faults == more == {}


def paced(steps: int) -> tuple[list[int], dict[str, int]]:
    """The steps that this rank has collected within a budget that a toy never keeps."""
    from probe.pytorch import TrainerMon

    config = {
        "wg_distribution": True,
        "format": "api",
        "dynamic_seconds": 0,
        "global_stats": True,
        "max_overhead": 0.05,
    }
    model = Net()
    for part in (model.up, model):
        fully_shard(part)
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    collected = []
    with TrainerMon(config) as monitor:
        monitor.set_monitor(model, 1, optimizer)
        for step in range(steps):
            dist.barrier()
            loss_of(model(batch(step, dist.get_rank()))).backward()
            optimizer.step()
            optimizer.zero_grad()
            if monitor.generate_wgrad_metrics()[0]:
                collected.append(step)
    return collected, monitor.faults


def test_within_a_budget_ranks_that_merge_their_numbers_sample_the_same_steps(two_ranks: Ranks) -> None:
    """Else ``global_stats`` would end."""
    (one, faults), (other, more) = two_ranks.run(paced, 60)
    assert one == other
    assert len(one) < 40
    assert faults == more == {}
