"""Collectives: every function that moves tensors is recorded, and works as before."""

from __future__ import annotations

import csv
import inspect
import logging
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.distributed.ranks import Ranks
from tests.required import require
from tests.tables import Rows, read

torch = require("torch")
dist = torch.distributed

from torch import nn  # noqa: E402
from torch.distributed import _functional_collectives as functional  # noqa: E402

from probe.core.instrumentation.signals.collectives import LOST_OUTPUTS  # noqa: E402
from probe.core.records import Finding  # noqa: E402
from probe.pytorch import TrainerMon, TrainingStopped  # noqa: E402

HERE = Path(__file__).name
OPS = ["min", "max", "mean", "norm", "std", "nans"]
LISTEN = {"cc_distribution": {"enable": True, "cc_pre_hook": True}, "ops": OPS}

MOVE_NOTHING = {
    *("destroy_process_group", "get_backend", "get_backend_config", "get_default_backend_for_device"),
    *("get_global_rank", "get_group_rank", "get_node_local_rank", "get_pg_count", "get_process_group_ranks"),
    *("get_rank", "get_world_size", "init_process_group", "is_backend_available", "is_gloo_available"),
    *("is_initialized", "is_mpi_available", "is_nccl_available", "is_torchelastic_launched", "is_ucc_available"),
    *("is_xccl_available", "new_group", "new_subgroups", "new_subgroups_by_enumeration", "record_comm"),
    *("shrink_group", "split_group", "supports_complex", "get_debug_level", "set_debug_level"),
    *("set_debug_level_from_env", "init_device_mesh", "is_available", "breakpoint", "register_rendezvous_handler"),
    "rendezvous",
}
"""Public functions of ``torch.distributed`` that send no tensor of the caller's."""


def calls(rank: int) -> dict[str, Callable[[], Any]]:
    """A call of each function that moves something, by its name."""
    ones, zeros = torch.ones, torch.zeros

    def two() -> list[Any]:
        return [zeros(2), zeros(2)]

    def first(here: Callable[[], Any], there: Callable[[], Any]) -> Any:
        return here() if rank == 0 else there()

    def batch() -> None:
        operations = [dist.P2POp(dist.isend, ones(2), 1 - rank), dist.P2POp(dist.irecv, zeros(2), 1 - rank)]
        for work in dist.batch_isend_irecv(operations):
            work.wait()

    found = {
        "all_reduce": lambda: dist.all_reduce(ones(2)),
        "all_reduce_coalesced": lambda: dist.all_reduce_coalesced([ones(2), ones(3)]),
        "reduce": lambda: dist.reduce(ones(2), 0),
        "broadcast": lambda: dist.broadcast(ones(2), 1),
        "all_gather": lambda: dist.all_gather(two(), ones(2)),
        "all_gather_single": lambda: dist.all_gather_single(zeros(4), ones(2)),
        "all_gather_into_tensor": lambda: dist.all_gather_into_tensor(zeros(4), ones(2)),
        "all_gather_coalesced": lambda: dist.all_gather_coalesced([[zeros(2)], [zeros(2)]], [ones(2)]),
        "gather": lambda: dist.gather(ones(2), two() if rank == 0 else None, 0),
        "scatter": lambda: dist.scatter(zeros(2), two() if rank == 0 else None, 0),
        "reduce_scatter": lambda: dist.reduce_scatter(zeros(2), two()),
        "reduce_scatter_single": lambda: dist.reduce_scatter_single(zeros(2), ones(4)),
        "reduce_scatter_tensor": lambda: dist.reduce_scatter_tensor(zeros(2), ones(4)),
        "all_to_all": lambda: dist.all_to_all(two(), two()),
        "all_to_all_single": lambda: dist.all_to_all_single(zeros(4), ones(4)),
        "send": lambda: first(lambda: dist.send(ones(2), 1), lambda: dist.recv(zeros(2), 0)),
        "recv": lambda: first(lambda: dist.recv(zeros(2), 1), lambda: dist.send(ones(2), 0)),
        "isend": lambda: first(lambda: dist.isend(ones(2), 1).wait(), lambda: dist.recv(zeros(2), 0)),
        "irecv": lambda: first(lambda: dist.irecv(zeros(2), 1).wait(), lambda: dist.send(ones(2), 0)),
        "batch_isend_irecv": batch,
        "barrier": dist.barrier,
        "monitored_barrier": dist.monitored_barrier,
        "all_gather_object": lambda: dist.all_gather_object([None, None], "a"),
        "gather_object": lambda: dist.gather_object("a", [None, None] if rank == 0 else None, 0),
        "broadcast_object_list": lambda: dist.broadcast_object_list(["a"], 0),
        "scatter_object_list": lambda: dist.scatter_object_list([None], ["a", "b"], 0),
        "send_object_list": lambda: first(
            lambda: dist.send_object_list(["a"], 1), lambda: dist.recv_object_list([None], 0)
        ),
        "recv_object_list": lambda: first(
            lambda: dist.recv_object_list([None], 1), lambda: dist.send_object_list(["a"], 0)
        ),
    }
    return {name: call for name, call in found.items() if hasattr(dist, name)}  # some are younger than others


def functional_calls(rank: int) -> dict[str, Callable[[], Any]]:
    """A call of each functional collective, and what waits for it."""
    x, out, world = torch.ones(4), torch.zeros(2), dist.group.WORLD
    found = {
        "broadcast": lambda: functional.broadcast(x, 0, world),
        "all_reduce": lambda: functional.all_reduce(x, "sum", world),
        "all_reduce_coalesced": lambda: functional.all_reduce_coalesced([x, x], "sum", world),
        "all_gather_single": lambda: functional.all_gather_single(x, 0, world),
        "all_gather_single_autograd": lambda: functional.all_gather_single_autograd(x, 0, world),
        "all_gather_tensor": lambda: functional.all_gather_tensor(x, 0, world),
        "all_gather_tensor_autograd": lambda: functional.all_gather_tensor_autograd(x, 0, world),
        "all_gather_single_coalesced": lambda: functional.all_gather_single_coalesced([x, x], world),
        "all_gather_into_tensor_coalesced": lambda: functional.all_gather_into_tensor_coalesced([x, x], world),
        "reduce_scatter_single": lambda: functional.reduce_scatter_single(x, "sum", 0, world),
        "reduce_scatter_single_autograd": lambda: functional.reduce_scatter_single_autograd(x, "sum", 0, world),
        "reduce_scatter_tensor": lambda: functional.reduce_scatter_tensor(x, "sum", 0, world),
        "reduce_scatter_tensor_autograd": lambda: functional.reduce_scatter_tensor_autograd(x, "sum", 0, world),
        "reduce_scatter_single_coalesced": lambda: functional.reduce_scatter_single_coalesced([x], "sum", [0], world),
        "reduce_scatter_tensor_coalesced": lambda: functional.reduce_scatter_tensor_coalesced([x], "sum", [0], world),
        "all_to_all_single": lambda: functional.all_to_all_single(x, None, None, world),
        "all_to_all_single_autograd": lambda: functional.all_to_all_single_autograd(x, [2, 2], [2, 2], world),
        "permute_tensor": lambda: functional.permute_tensor(x, [1, 0], world),
        "all_gather_tensor_inplace": lambda: functional.all_gather_tensor_inplace(torch.zeros(8), x, world),
        "reduce_scatter_tensor_inplace": lambda: functional.reduce_scatter_tensor_inplace(out, x, group=world),
        "all_reduce_inplace": lambda: functional.all_reduce_inplace(torch.ones(2), group=world),
        "all_to_all_inplace": lambda: functional.all_to_all_inplace(torch.zeros(4), x, group=world),
        "all_gather_inplace": lambda: functional.all_gather_inplace([torch.zeros(4), torch.zeros(4)], x, world),
    }
    return {name: call for name, call in found.items() if hasattr(functional, name)}


class Loop:
    """A model of one weight, whose steps only mark off what happens between them."""

    def __init__(self, settings: dict[str, Any], **options: Any) -> None:
        self.monitor = TrainerMon({**LISTEN, **settings})
        self.weight = nn.Linear(1, 1, bias=False)
        self.optimizer = torch.optim.SGD(self.weight.parameters(), 0.1)
        if options.get("attach", True):
            self.attach()

    def attach(self) -> None:
        self.monitor.set_monitor(self.weight, 1, self.optimizer)

    def step(self) -> None:
        self.weight(torch.ones(1)).sum().backward()
        self.optimizer.step()
        self.optimizer.zero_grad()

    def rows(self) -> list[dict[str, str]]:
        """Every row of the signal as its file has it."""
        self.monitor.stop()
        found: list[dict[str, str]] = []
        for path in Path(self.monitor.output_directory or "").glob("other_*.csv"):
            with path.open(newline="", encoding="utf-8") as file:
                found += csv.DictReader(file)
        return sorted(found, key=lambda row: int(row["step"]))


# Every function.


def hear_every(which: str) -> tuple[dict[str, set[str]], dict[str, int]]:
    """The operations that the rows of each call name."""
    loop, rank = Loop({}), dist.get_rank()
    names = []
    for name, call in (calls if which == "calls" else functional_calls)(rank).items():
        result = call()
        for tensor in result if isinstance(result, list) else [result]:
            if isinstance(tensor, torch.Tensor):
                tensor + 0  # waits
        loop.step()
        names.append(name)
    rows = loop.rows()
    heard = {name: {row["name"] for row in rows if int(row["step"]) == step} for step, name in enumerate(names)}
    return heard, loop.monitor.faults


def public_functions(module: Any) -> set[str]:
    """Names of functions that a user finds in ``module``."""
    listed = set(getattr(module, "__all__", ())) | {name for name in vars(module) if not name.startswith("_")}
    listed.discard("reduce_op")  # warns when it is looked at
    return {name for name in listed if inspect.isroutine(getattr(module, name, None))}


def test_the_calls_below_are_all_that_there_are() -> None:
    """A function that torch adds belongs to one list or the other."""
    public = public_functions(dist) | public_functions(dist.distributed_c10d) & set(dist.distributed_c10d.__all__)
    assert public - set(calls(0)) - MOVE_NOTHING == set()
    assert set(calls(0)) <= public


def test_a_function_that_takes_tensors_moves_them() -> None:
    """No function that takes a tensor is in the list of those that move nothing."""
    for name in MOVE_NOTHING & public_functions(dist):
        with suppress(ValueError):  # some are builtin
            parameters = inspect.signature(getattr(dist, name)).parameters
            assert not [parameter for parameter in parameters if "tensor" in parameter or "obj" in parameter], name


def test_every_function_is_heard(two_ranks: Ranks) -> None:
    """By the name of the function that was called, where that is not an older name of another."""
    answers = two_ranks.run(hear_every, "calls")
    for name in calls(0):
        heard = set().union(*(heard[name] for heard, _ in answers))
        alias = name.replace("into_tensor", "single").replace("scatter_tensor", "scatter_single")
        assert any(row.split(".")[0] in (name, alias) for row in heard), (name, heard)
        assert all(f".ranks0-1.{HERE}[" in row for row in heard), heard
    assert [faults for _, faults in answers] == [{}, {}]


def test_every_functional_collective_is_heard(two_ranks: Ranks) -> None:
    """Those that there are, less the parts of which their gradients are made."""
    functions = dict(inspect.getmembers(functional, inspect.isfunction))
    own = {name for name, function in functions.items() if function.__module__ == functional.__name__}
    public = {name for name in own if not name.startswith("_")}
    parts = {name for name in public if name.endswith(("_backward", "_setup_context"))}
    others = {"wait_tensor", "allow_inflight_collective_as_graph_input_ctx"}
    others |= {"isend_inplace", "irecv_inplace", "batch_p2p_ops_inplace"}  # for compilers alone
    assert public - parts - others - set(functional_calls(0)) == set()
    answers = two_ranks.run(hear_every, "functional_calls")
    for heard, faults in answers:
        assert [name for name, rows in heard.items() if not rows] == []
        assert not [fault for fault in faults if fault != LOST_OUTPUTS]


# Numbers.


def reduce_some() -> tuple[list[dict[str, str]], list[bool], bool]:
    """Sync and async calls with inputs that encode rank and call; early ones before there is a step."""
    rank, loop = dist.get_rank(), Loop({}, attach=False)
    dist.broadcast(torch.full((3,), 7.0 + rank), 1)
    loop.attach()
    for step in range(2):
        for call in range(2):
            values = torch.arange(4.0).reshape(2, 2) + 10 * rank + 100 * call + 1000 * step
            dist.all_reduce(values)
        handles = [dist.all_reduce(torch.full((n,), float(n + rank)), async_op=True) for n in (1, 5)]
        waited = [handle.wait() for handle in handles]
        loop.step()
    return loop.rows(), waited, all(type(handle) is dist.Work for handle in handles)


def assert_moments(row: dict[str, str], *tensors: Any) -> None:
    """``row`` is about all ``tensors`` together."""
    every = np.concatenate([np.ravel(np.asarray(tensor, np.float64)) for tensor in tensors])
    expected = {
        "min": every.min(), "max": every.max(), "mean": every.mean(), "std": every.std(), "nans": 0.0,
        "norm": np.sqrt((every**2).sum()), "bytes": 4 * every.size, "count": len(tensors),
    }  # fmt: skip
    assert {name: float(row[name]) for name in expected} == pytest.approx(expected, rel=1e-5)
    assert row["dtype"] == "torch.float32"


def test_rows_hold_the_moments_of_all_calls_of_a_step(two_ranks: Ranks) -> None:
    """One row a line of code and direction; several tensors of one row differ in their numbers alone."""
    answers = two_ranks.run(reduce_some)
    for rank, (rows, waited, are_works) in enumerate(answers):
        assert waited == [True, True]
        assert are_works
        header = "vpp_stage,name,step,min,max,mean,norm,std,nans,count,bytes,seconds,shape,dtype"
        assert list(rows[0]) == header.split(",")
        assert all(float(row["seconds"]) > 0 for row in rows)
        for step in range(2):
            found = [row for row in rows if int(row["step"]) == step]
            directions = {row["name"].rpartition(".")[2]: row for row in found if row["name"].startswith("broadcast")}
            expected = {"pre", "post"} if rank == 1 else {"post"}  # a buffer that is to be filled is no input
            assert set(directions) == (expected if step == 0 else set())
            if step == 0:
                assert_moments(directions["post"], [8.0, 8.0, 8.0])
            sync_pre, sync_post, async_pre, async_post = (row for row in found if row["name"].startswith("all_reduce"))
            given = [[np.arange(4.0) + 10 * r + 100 * call + 1000 * step for call in range(2)] for r in range(2)]
            assert_moments(sync_pre, *given[rank])
            assert_moments(sync_post, *(a + b for a, b in zip(*given, strict=True)))
            assert sync_pre["shape"] == "[2, 2, 2]"
            assert_moments(async_pre, *(np.full(n, n + rank) for n in (1, 5)))
            assert_moments(async_post, *(np.full(n, 2 * n + 1) for n in (1, 5)))
            assert async_post["shape"] == "[6]"


def time_one() -> tuple[float, float]:
    """Numbers of the row, and the longest time until the handle was complete."""
    loop = Loop({})
    begin = time.perf_counter()
    handle = dist.all_reduce(torch.ones(2), async_op=True)
    while not handle.is_completed():
        pass
    complete = time.perf_counter() - begin
    while time.perf_counter() - begin < 2 * complete:
        pass
    handle.wait()
    loop.step()
    (row,) = (row for row in loop.rows() if row["name"].endswith("post"))
    return float(row["seconds"]), complete


def test_seconds_end_at_completion_not_at_the_wait(two_ranks: Ranks) -> None:
    for seconds, complete in two_ranks.run(time_one):
        assert 0 < seconds <= complete * (1 + 1e-5)  # of a file with six digits


def send_objects() -> list[dict[str, str]]:
    """Two calls, each of which sends sizes first and then the bytes."""
    loop = Loop({})
    for _ in range(2):
        dist.all_gather_object([None, None], "object")
    loop.step()
    return loop.rows()


def test_an_object_collective_is_one_call(two_ranks: Ranks) -> None:
    for rows in two_ranks.run(send_objects):
        assert [(row["name"].split(".")[0], row["count"]) for row in rows] == [("all_gather_object", "2")] * 2


def leave_unwaited() -> tuple[list[str], dict[str, int]]:
    """A handle is thrown away, and a barrier makes sure that its call has ended."""
    loop = Loop({})
    dist.all_reduce(torch.ones(2), async_op=True)
    dist.barrier()
    loop.step()
    return [row["name"].rpartition(".")[2] + row["shape"] for row in loop.rows()], loop.monitor.faults


def test_what_nobody_waits_for_is_not_read_and_counted(two_ranks: Ranks) -> None:
    for rows, faults in two_ranks.run(leave_unwaited):
        assert rows == ["pre[2]", "post[0]", "post[0]"]
        assert faults == {LOST_OUTPUTS: 1}


# Which calls.


def chosen_call() -> None:
    dist.all_reduce(torch.ones(2))


def other_call() -> None:
    dist.all_reduce(torch.ones(2))


def choose() -> tuple[list[dict[str, str]], list[dict[str, str]]]:
    """Rows with ``cc_codeline``; and those of every second step, without inputs."""
    loop = Loop({"cc_distribution": {"enable": True, "cc_codeline": [r"test_collectives\.py\[\d+\] chosen_call$"]}})
    for _ in range(3):
        chosen_call()
        other_call()
        loop.step()
    first = loop.rows()
    loop = Loop({"cc_distribution": {"enable": True}, "step_interval": 2})
    for _ in range(3):
        chosen_call()
        loop.step()
    return first, loop.rows()


def test_lines_are_chosen_and_unsampled_steps_are_left_out(two_ranks: Ranks) -> None:
    line = inspect.getsourcelines(chosen_call)[1] + 1
    row = f"all_reduce.ranks0-1.{HERE}[{line}].post"
    for chosen, sampled in two_ranks.run(choose):
        assert [(r["step"], r["name"], r["count"]) for r in chosen] == [(step, row, "1") for step in "012"]
        assert [(r["step"], r["name"], r["count"]) for r in sampled] == [(step, row, "1") for step in "02"]


def fsdp2() -> Rows:
    """A unit of two layers, sharded."""
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    monitor = TrainerMon(LISTEN)
    model = fully_shard(nn.Linear(4, 4), mesh=init_device_mesh("cpu", (2,)))
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    monitor.set_monitor(model, 1, optimizer)
    model(torch.ones(2, 4)).sum().backward()
    optimizer.step()
    monitor.stop()
    return read(monitor.output_directory)


def test_what_fsdp2_sends_is_heard(two_ranks: Ranks) -> None:
    """Parameters are gathered, and gradients, the same on both ranks here, are reduced to their mean."""
    for rows in two_ranks.run(fsdp2):
        kinds = Counter(row.name.split("_single")[0].split("_into")[0].split("_tensor")[0] for row in rows)
        assert set(kinds) == {"all_gather", "reduce_scatter"}
        (scattered,) = (values for row, values in rows.items() if "reduce_scatter" in row.name and "post" in row.name)
        assert (scattered["min"], scattered["max"]) == (2.0, 2.0)


# Nothing is disturbed.


def train(listening: bool) -> tuple[list[float], list[bytes]]:
    """Losses and weights of a small model under DDP, with a collective of the script's own."""
    torch.manual_seed(0)
    monitor = TrainerMon({**LISTEN, "wg_distribution": True}) if listening else None
    model = nn.parallel.DistributedDataParallel(nn.Sequential(nn.Linear(4, 8), nn.Dropout(0.3), nn.Linear(8, 1)))
    optimizer = torch.optim.AdamW(model.parameters(), 0.1)
    if monitor is not None:
        monitor.set_monitor(model, 1, optimizer)
    torch.manual_seed(dist.get_rank())
    losses = []
    for _ in range(4):
        loss = model(torch.randn(8, 4)).square().mean()
        loss.backward()
        mean = loss.detach().clone()
        handle = dist.all_reduce(mean, async_op=True)
        optimizer.step()
        optimizer.zero_grad()
        handle.wait()
        losses.append(mean.item())
    if monitor is not None:
        monitor.stop()
        assert monitor.faults == {}
    return losses, [parameter.detach().numpy().tobytes() for parameter in model.parameters()]


def test_training_is_the_same_to_the_last_bit(two_ranks: Ranks) -> None:
    plain, heard = two_ranks.run(train, False), two_ranks.run(train, True)
    assert plain == heard
    assert plain[0][0] == plain[1][0]


def compile_one(listening: bool) -> tuple[list[float], dict[str, int]]:
    """A function with a collective of each sort, compiled whole."""
    torch._dynamo.reset()
    loop = Loop({}, attach=listening) if listening else None

    @torch.compile(fullgraph=True, backend="aot_eager")
    def doubled(x: Any) -> Any:
        x = functional.all_reduce(x * 2, "sum", dist.group.WORLD)
        dist.all_reduce(x)
        return x + 1

    result = doubled(torch.arange(3.0) + dist.get_rank())
    if loop is not None:
        loop.step()
        loop.monitor.stop()
    return result.tolist(), loop.monitor.faults if loop is not None else {}


def test_a_compiled_function_stays_whole(two_ranks: Ranks) -> None:
    for listening in (False, True):
        for result, faults in two_ranks.run(compile_one, listening):
            assert result == [5.0, 13.0, 21.0]
            assert faults == {}


def everything_of_torch() -> dict[str, Any]:
    """All attributes of the modules and classes of ``torch.distributed``, and its operators."""
    import sys

    owners = {name: module for name, module in sys.modules.items() if name.startswith("torch.distributed")}
    found = {f"{name}.{key}": value for name, owner in owners.items() for key, value in vars(owner).items()}
    for owner in (dist.ProcessGroup, dist.Work):
        found |= {f"{owner.__name__}.{key}": value for key, value in vars(owner).items()}
    for space in (torch.ops._c10d_functional, torch.ops._dtensor):
        for name, packet in vars(space).items():
            found |= {f"{name}.{key}": value for key, value in getattr(packet, "__dict__", {}).items()}
    return found


def differences(before: dict[str, Any]) -> set[str]:
    after = everything_of_torch()
    return {name for name in before.keys() | after.keys() if before.get(name) is not after.get(name)}


def listen_and_stop() -> list[set[str]]:
    """Differences while listening, and after each way to end it."""
    TrainerMon(LISTEN).stop()  # loads what is loaded on first use
    before, found = everything_of_torch(), []
    first, second = TrainerMon(LISTEN), TrainerMon(LISTEN)
    found.append(differences(before))
    first.stop()
    found.append(differences(before))
    second.close()
    second.stop()
    found.append(differences(before))
    loop = Loop({"collect_times": 1})
    for _ in range(2):
        loop.step()
    found.append(differences(before))
    loop.attach() if loop.monitor.step else None
    found.append(differences(before))
    loop.monitor.stop()
    found.append(differences(before))
    return found


def test_torch_is_as_it_was_found(two_ranks: Ranks) -> None:
    """After ``stop()`` without ``set_monitor``, of two monitors, after the last step, and when attached again."""
    for while_two, while_one, after, collected, again, stopped in two_ranks.run(listen_and_stop):
        assert {"ProcessGroup.allreduce", "Work.wait", "all_reduce._op"} <= while_two
        assert not any(name.startswith("torch.distributed.") for name in while_two), "functions stay what they are"
        assert while_one == again == while_two
        assert after == collected == stopped == set()


def fail() -> list[tuple[str, str]]:
    """Error of a call that cannot be made, with and without the monitor."""
    said = []
    for listening in (False, True):
        loop = Loop({}) if listening else None
        for call in (
            lambda: dist.all_gather_into_tensor(torch.zeros(3), torch.ones(2)),
            lambda: dist.all_reduce("no tensor"),
            lambda: dist.broadcast(torch.ones(2), 7),
        ):
            with pytest.raises(Exception, match=r".") as error:
                call()
            said.append((error.type.__name__, str(error.value)))
        if loop is not None:
            loop.monitor.stop()
            assert loop.monitor.faults == {}
    return said


def test_errors_are_those_of_torch(two_ranks: Ranks) -> None:
    for said in two_ranks.run(fail):
        assert len(said) == 6
        assert said[:3] == said[3:]


# The log.


@contextmanager
def logged(updates: list[int]) -> Iterator[list[tuple[int, str, str]]]:
    """Log about collectives: number of ``updates``, level and text."""
    records: list[tuple[int, str, str]] = []

    class Keep(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            records.append((len(updates), record.levelname, record.getMessage()))

    logger, handler = logging.getLogger("probe.collectives"), Keep()
    level = logger.level
    logger.addHandler(handler)
    logger.setLevel(logging.INFO)
    try:
        yield records
    finally:
        logger.removeHandler(handler)
        logger.setLevel(level)


def log(settings: dict[str, Any]) -> list[tuple[int, str, str]]:
    """Log of four steps."""
    updates: list[int] = []
    with logged(updates) as records:
        loop = Loop(settings)
        loop.optimizer.register_step_post_hook(lambda *_: updates.append(1))
        for _ in range(4):
            chosen_call()
            loop.step()
        loop.monitor.stop()
    return records


def test_calls_are_logged_once_before_the_second_update(two_ranks: Ranks) -> None:
    """The lowest rank logs so that it is seen; the log does not need sampled steps."""
    for settings in ({}, {"start_step": 100}):
        for rank, lines in enumerate(two_ranks.run(log, settings)):
            assert {(updates, level) for updates, level, _ in lines} == {(1, "INFO" if rank else "WARNING")}
            assert len(lines) == 2
            message = lines[1][2]
            assert "all_reduce group=[0, 1] dtype=torch.float32 calls=2" in message
            assert f"{HERE}[{inspect.getsourcelines(chosen_call)[1] + 1}] chosen_call" in message
            assert f"; {__file__}[" in message, "the whole stack"


def stop_after_the_log(settings: dict[str, Any]) -> tuple[int, bool, Any, list[str], set[str]]:
    """Steps that were trained, whether the weights kept still then, the exception, files, and what stays of us."""
    before = everything_of_torch()
    loop = Loop({"cc_distribution": {"enable": True, "cc_log_only": True}, "wg_distribution": True, **settings})
    steps, kept = 0, None
    try:
        for _ in range(5):
            chosen_call()
            kept = loop.weight.weight.item()
            loop.step()
            steps += 1
    except TrainingStopped as stopped:
        code = stopped.code
    loop.monitor.stop()
    directory = loop.monitor.output_directory
    files = [path.name for path in Path(directory).glob("*.csv")] if directory else []
    return steps, kept == loop.weight.weight.item(), code, files, differences(before)


@pytest.mark.parametrize("settings", [{}, {"module_ranks": [0]}], ids=["all ranks", "one rank"])
def test_log_only_stops_all_ranks_in_the_same_step(two_ranks: Ranks, settings: dict[str, Any]) -> None:
    """Before the second update, with exit code 0, without a file; also on ranks that take no part."""
    assert two_ranks.run(stop_after_the_log, settings) == [(1, True, 0, [], set())] * 2


# NaN.


def spread_nan(rules: list[dict[str, str]]) -> tuple[list[Finding], dict[str, int]]:
    """From step 1 on the second call of a line has NaN on rank 1, which then goes round; step 3 is healthy, and in
    step 4 rank 0 gives Inf."""
    rank = dist.get_rank()
    loop = Loop({"cc_distribution": {"enable": True}, "ops": ["norm"], "alert": {"rules": rules}})
    state = torch.ones(2)
    for step in range(5):
        if step == 3:
            state = torch.ones(2)
        for call in range(3):
            if (step, call, rank) == (1, 1, 1):
                state[0] = float("nan")
            if (step, call, rank) == (4, 2, 0):
                state[1] = float("inf")
            dist.all_reduce(state)
        loop.step()
    loop.monitor.stop()
    return [f for f in loop.monitor.findings if f.rule == "AnomalyCommNan"], loop.monitor.faults


@pytest.mark.parametrize("others", [[], ["AnomalyNan", "AnomalySpike"]], ids=["alone", "with others"])
def test_the_rank_that_sent_nan_is_named(two_ranks: Ranks, others: list[str]) -> None:
    """NaN comes back to every rank, and is sent again; only where it came from is reported, once."""
    rules = [{"rule_name": name} for name in (*others, "AnomalyCommNan")]
    first, second = two_ranks.run(spread_nan, rules)
    assert [(f.rank, f.step, f.op, f.key.part, f.value) for f in second[0]] == [(1, 1, "nonfinite", "pre", 2.0)]
    assert [(f.rank, f.step, f.op, f.key.part, f.value) for f in first[0]] == [(0, 4, "nonfinite", "pre", 1.0)]
    assert "rank 1" in second[0][0].message
    assert first[1] == second[1] == {}
