"""Tensors that two processes exchange through MindSpore's communication functions."""

from __future__ import annotations

import csv
import importlib
import inspect
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest

from tests.distributed.ranks import Ranks
from tests.mindspore.toys import ms, nn, tensor

from probe.mindspore import TrainerMon, TrainingStopped  # isort: skip

RANKS = 2
SETTINGS = {
    "cc_distribution": {"enable": True, "cc_pre_hook": True},
    "ops": ["min", "max", "mean", "norm"],
    "alert": {"rules": [{"rule_name": "AnomalyCommNan"}]},
}
HOMES = ("mindspore.communication.comm_func", "mindspore.mint.distributed.distributed")
MOVE_NOTHING = {
    *("init_process_group", "destroy_process_group", "get_rank", "get_world_size", "new_group", "get_backend"),
    *("get_global_rank", "get_process_group_ranks", "get_group_rank", "is_available", "is_initialized"),
}


def given(rank: int) -> np.ndarray:
    """Tensor that a process sends."""
    return np.array([1.0, 2.0, 3.0], np.float32) + 10 * rank


def functions() -> dict[str, Any]:
    """Every function that a loaded module of MindSpore holds, with the methods of handles."""
    found = {}
    for name, module in list(sys.modules.items()):
        if name.startswith("mindspore"):
            found |= {f"{name}.{key}": value for key, value in list(vars(module).items()) if inspect.isroutine(value)}
    found["wait"] = vars(ms._c_expression.CommHandle)["wait"]
    return found


def differences(before: dict[str, Any]) -> list[str]:
    """Which of those functions are others now; MindSpore goes on loading modules."""
    now = functions()
    return [name for name, value in before.items() if now[name] is not value]


def train() -> tuple[dict[str, Any], str]:
    """What each process has found, and where its monitor has written."""
    mint = importlib.import_module("mindspore.mint.distributed")
    rank, found = ms.communication.get_rank(), dict[str, Any]()
    before = functions()
    kept = mint.all_reduce  # by a module that was loaded earlier
    TrainerMon(SETTINGS).stop()
    found["differences without a run"] = differences(before)
    net = nn.Dense(1, 1)
    optimizer = nn.SGD(net.trainable_params(), 0.1)
    gradients = ms.value_and_grad(lambda x: net(x).sum(), None, net.trainable_params())
    monitor = TrainerMon(SETTINGS)
    found["replaced"] = mint.all_reduce is not kept
    late_module = sys.modules["mindspore_late"] = ModuleType("mindspore_late")
    late_module.all_reduce = mint.all_reduce  # type: ignore[attr-defined]
    mint.broadcast(tensor(given(rank)), 0)
    monitor.set_monitor(net, 1, optimizer)
    for step in range(3):
        values = given(rank)
        if (step, rank) == (1, 1):
            values[0] = np.nan
        total = tensor(values)
        mint.all_reduce(total)
        mint.all_reduce(total)
        late = tensor(given(rank))
        handle = mint.all_reduce(late, async_op=True)
        found["wait"] = handle.wait() is None
        parts = [tensor(np.zeros(3)), tensor(np.zeros(3))]
        mint.all_gather(parts, tensor(given(rank)))
        mint.all_gather_object([None, None], "object")
        mint.barrier()
        optimizer(gradients(tensor([[1.0]]))[1])
    found["late"] = late.asnumpy().tolist()
    monitor.stop()
    found["differences"] = differences({**before, "mindspore_late.all_reduce": kept})
    found["faults"] = monitor.faults
    found["findings"] = [(f.rule, f.rank, f.step, f.key.name.split(".")[0], f.key.part) for f in monitor.findings]
    found["failures"] = [failure(listening) for listening in (False, True)]
    found["stopped"] = stop_after_the_log(mint, net, optimizer, gradients)
    return found, str(monitor.output_directory)


def failure(listening: bool) -> list[str]:
    """Error of a call that cannot be made."""
    mint = importlib.import_module("mindspore.mint.distributed")
    monitor = TrainerMon(SETTINGS) if listening else None
    said = []
    for call in (
        lambda: mint.all_reduce("no tensor"),
        mint.all_reduce,
        lambda: mint.all_gather([], tensor([1]), "none"),
    ):
        try:
            call()
        except (TypeError, ValueError, RuntimeError) as error:
            said.append(f"{type(error).__name__}: {error}")
    if monitor is not None:
        monitor.stop()
    return said


def stop_after_the_log(mint: Any, net: Any, optimizer: Any, gradients: Any) -> int:
    """Steps that are trained with ``cc_log_only``."""
    monitor = TrainerMon({"cc_distribution": {"enable": True, "cc_log_only": True}})
    monitor.set_monitor(net, 1, optimizer)
    steps = 0
    try:
        for _ in range(4):
            mint.all_reduce(tensor(given(0)))
            optimizer(gradients(tensor([[1.0]]))[1])
            steps += 1
    except TrainingStopped:
        pass
    monitor.stop()
    return steps


@pytest.fixture(scope="module")
def heard(
    two_ranks: Ranks, tmp_path_factory: pytest.TempPathFactory
) -> list[tuple[dict[str, Any], list[dict[str, str]]]]:
    """Results of each process, and the rows that it wrote."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("MONITOR_OUTPUT_DIR", str(tmp_path_factory.mktemp("ranks")))
        found = two_ranks.run(train)
    answers = []
    for each, directory in found:
        rows: list[dict[str, str]] = []
        for path in sorted(Path(directory).glob("other_*.csv")):
            with path.open(newline="", encoding="utf-8") as file:
                rows += csv.DictReader(file)
        answers.append((each, rows))
    return answers


def test_every_function_that_moves_tensors_is_listened_to() -> None:
    """A function that MindSpore adds belongs to one list or the other."""
    from probe.mindspore.collective_functions import FUNCTIONS

    for home in HOMES:
        module = importlib.import_module(home)
        names = {name for name in vars(module) if not name.startswith("_")}
        public = importlib.import_module("mindspore.mint.distributed").__all__ if "mint" in home else module.__all__
        functions = {name for name in names & set(public) if inspect.isfunction(getattr(module, name))}
        assert functions - set(FUNCTIONS) - MOVE_NOTHING == set()
        assert len(functions) > 10


def test_rows_hold_what_was_given_and_what_was_got(heard: Any) -> None:
    """One row a line and direction; the broadcast before the run belongs to its first step."""
    own, line = [given(rank).astype(np.float64) for rank in range(RANKS)], Path(__file__).name
    expected = {
        ("all_reduce", "pre"): [(np.concatenate([own[rank]]),) for rank in range(RANKS)],
        ("all_gather", "pre"): [(own[rank],) for rank in range(RANKS)],
        ("all_gather", "post"): [(own[0], own[1])] * RANKS,
        ("broadcast", "post"): [(own[0],)] * RANKS,
    }
    for rank, (_, rows) in enumerate(heard):
        first = [row for row in rows if row["step"] == "0"]
        assert all(f".ranks0-1.{line}[" in row["name"] for row in first)
        assert {row["name"].split(".")[0] for row in first} == {
            "broadcast", "all_reduce", "all_gather", "all_gather_object", "barrier",
        }  # fmt: skip
        broadcast = [row["name"].rpartition(".")[2] for row in first if row["name"].startswith("broadcast")]
        assert broadcast == (["post"] if rank else ["pre", "post"]), "a buffer that is to be filled is no input"
        for (operation, direction), tensors in expected.items():
            found = [r for r in first if r["name"].split(".")[0] == operation and r["name"].endswith(direction)]
            every = np.concatenate(tensors[rank])
            numbers = {"min": every.min(), "max": every.max(), "mean": every.mean(), "norm": np.linalg.norm(every)}
            assert {name: float(found[0][name]) for name in numbers} == pytest.approx(numbers, rel=1e-5)
            assert (found[0]["count"], float(found[0]["bytes"]), found[0]["dtype"]) == (
                "1",
                4.0 * every.size,
                "Float32",
            )
        lines = [row for row in first if row["name"].startswith("all_reduce") and row["name"].endswith("post")]
        total = sum(own)
        assert [float(row["max"]) for row in lines] == [total.max(), 2 * total.max(), total.max()]
        assert all(float(row["seconds"]) > 0 for row in lines)


def test_the_rank_that_sent_nan_is_named(heard: Any) -> None:
    assert heard[0][0]["findings"] == []
    assert heard[1][0]["findings"] == [("AnomalyCommNan", 1, 1, "all_reduce", "pre")]


def test_nothing_is_disturbed(heard: Any) -> None:
    """Handles, errors and functions are MindSpore's own."""
    for found, _ in heard:
        assert found["wait"]
        assert found["late"] == [12.0, 14.0, 16.0]
        assert found["replaced"]
        assert found["differences"] == found["differences without a run"] == []
        assert found["faults"] == {}
        plain, listening = found["failures"]
        assert len(plain) == 3
        assert plain == listening


def test_log_only_stops_both_in_the_same_step(heard: Any) -> None:
    assert [found["stopped"] for found, _ in heard] == [1, 1]
