"""Updates, directions and interpretable features where ranks share parameters out, against one process without that."""

from __future__ import annotations

import csv
import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest

from tests.distributed import test_deepspeed, test_fsdp1, test_fsdp2, test_megatron
from tests.distributed.models import Net, batch, loss_of
from tests.distributed.ranks import Ranks
from tests.distributed.sharded import Part, parts
from tests.distributed.sharded import train as train_plain
from tests.pytorch.watching import watch
from tests.required import require
from tests.tables import Row

torch = require("torch")

import torch.distributed as dist  # noqa: E402 - only where torch is

STEPS = 3
OPTIONS = ({"betas": (0.5, 0.75), "eps": 1e-2}, {"betas": (0.25, 0.875), "eps": 1e-3})
"""Of the group of matrices, and of the rest."""


class Told(NamedTuple):
    """Rows of a rank, and those that one process computes: for each step and name the vectors of the update, and
    whether each gradient agrees with its moment (1), opposes it (-1) or neither (0)."""

    rows: dict[Row, Part]
    vectors: dict[tuple[str, int, str], Any]
    agree: dict[tuple[int, str], Any]


# DeepSpeed


def groups(model: Any) -> list[dict[str, Any]]:
    return [{**group, **own} for group, own in zip(test_deepspeed.two_groups(model), OPTIONS, strict=True)]


def engine_of(stage: int, precision: str, zero: dict[str, Any]) -> Any:
    import deepspeed

    config: dict[str, Any] = {
        "train_micro_batch_size_per_gpu": 4,
        "steps_per_print": 10**9,
        "zero_allow_untested_optimizer": True,
        "gradient_clipping": 0.0,
        "zero_optimization": {"stage": stage, "stage3_param_persistence_threshold": 0, **zero},
    }
    if precision == "bf16":
        config |= {"bf16": {"enabled": True}, "data_types": {"grad_accum_dtype": "fp32"}}
    model = Net()
    optimizer = torch.optim.AdamW(groups(model), lr=0.01, foreach=False)
    engine, *_ = deepspeed.initialize(model=model, optimizer=optimizer, config=config)
    return engine


def with_deepspeed(stage: int, precision: str, zero: dict[str, Any]) -> Told:
    """Trains with DeepSpeed, and in this process alone."""
    engine, case = engine_of(stage, precision, zero), test_deepspeed.Case(stage, precision)
    off = dict.fromkeys(("xy", "wg", "mv", "param"), False)
    settings = {f"{name}_distribution": value for name, value in off.items()}
    monitor = watch(engine, engine.optimizer, 1, **settings, ur_distribution=True, mg_direction=True)
    test_deepspeed.train(engine, case, STEPS)
    monitor.stop()
    assert monitor.faults == {}
    return Told(parts(monitor.output_directory), *alone(case))


def alone(case: test_deepspeed.Case) -> tuple[dict[Any, Any], dict[Any, Any]]:
    """The same training on all ranks' data, by torch's own optimizer."""
    dtype, vectors, agree = test_deepspeed.DTYPES[case.precision], {}, {}
    master, model = Net(), Net().to(dtype)
    for parameter in master.parameters():
        parameter.data.copy_(parameter.data.to(dtype))
    optimizer = torch.optim.AdamW(groups(master), lr=0.01)
    for step in range(STEPS):
        model.load_state_dict(master.state_dict())
        each = [test_deepspeed.gradients(model, case, step, 0, rank, 1.0) for rank in range(dist.get_world_size())]
        for name, parameter in master.named_parameters():
            parameter.grad = sum(one[name] for one in each) / dist.get_world_size()
            if step:
                agree[step, name] = parameter.grad.sign() * optimizer.state[parameter]["exp_avg"].sign()
        optimizer.step()
        for name, parameter in master.named_parameters():
            options, kept = OPTIONS[parameter.dim() == 1], optimizer.state[parameter]
            m, v = (kept[kind].double() for kind in ("exp_avg", "exp_avg_sq"))
            m, v = (x / (1 - beta ** (step + 1)) for x, beta in zip((m, v), options["betas"], strict=True))
            vectors["update", step, name] = m / (v.sqrt() + options["eps"])
            vectors["ratio", step, name] = m / v.sqrt()
    return vectors, agree


class Messages(logging.Handler):
    """Log of probe."""

    def __init__(self) -> None:
        super().__init__()
        self.messages: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.messages.append(record.getMessage())

    def __enter__(self) -> None:
        logging.getLogger("probe").addHandler(self)

    def __exit__(self, *_: object) -> None:
        logging.getLogger("probe").removeHandler(self)


@pytest.fixture(params=["0.19.8", "0.16.9"])
def ranks(request: pytest.FixtureRequest, deepspeed_ranks: Callable[[str], Ranks]) -> Ranks:
    """Two processes with one version of DeepSpeed."""
    return deepspeed_ranks(request.param)


@pytest.mark.parametrize(
    ("version", "stage", "precision", "zero"),
    [
        ("0.19.8", 1, "fp32", {}),
        ("0.19.8", 2, "fp32", {}),
        ("0.19.8", 3, "fp32", {"sub_group_size": 12}),
        ("0.19.8", 1, "bf16", {}),
        ("0.16.9", 3, "fp32", {"sub_group_size": 12}),
        ("0.16.9", 1, "bf16", {}),
    ],
)
def test_parts_of_deepspeed(
    deepspeed_ranks: Callable[[str], Ranks], version: str, stage: int, precision: str, zero: dict[str, Any]
) -> None:
    """Every part has the betas and eps of its own group, also where stage 3 cuts groups into smaller ones, and counts
    its gradients that agree with its moments, also where a rank has a parameter, or all gradients, whole."""
    told = deepspeed_ranks(version).run(with_deepspeed, stage, precision, zero)
    assert_updates(told, 1e-4 if precision == "fp32" else 1e-2)
    whole = 0
    for one in told:
        held = {row: slice_of(part) for row, part in one.rows.items() if row.signal == "update" and part.numel}
        agreed = {row for row in one.rows if row.signal == "mg_direction"}
        assert agreed == {row._replace(signal="mg_direction") for row in held if row.step}
        for row in agreed:
            own = one.agree[row.step, row.name].flatten()[held[row._replace(signal="update")]]
            whole += len(own) == one.agree[row.step, row.name].numel()
            assert one.rows[row].numbers["mean"] == pytest.approx((float(own.mean()) + 1) / 2)
    assert whole or stage == 3, "some parameter lies on one rank whole"


def slice_of(part: Part) -> slice:
    """Slice of the flat tensor that a part holds."""
    where = part.coverage.partition(" at ")[2].partition(" over ")[0]
    return slice(*map(int, where.split(":"))) if where else slice(None)


def assert_updates(told: list[Told], bound: float = 1e-4) -> None:
    """Every part has the norm of that part, and parts make up wholes."""
    seen: dict[tuple[str, int, str], set[int]] = {}
    for one in told:
        for row, part in one.rows.items():
            if row.signal in ("update", "ratio") and part.numel:
                vector = one.vectors[row.signal, row.step, row.name].flatten()
                where = slice_of(part)
                assert part.numbers["norm"] == pytest.approx(float(vector[where].norm()), rel=bound), row
                seen.setdefault((row.signal, row.step, row.name), set()).update(range(len(vector))[where])
    assert {about: len(elements) for about, elements in seen.items()} == {
        about: vector.numel() for about, vector in told[0].vectors.items()
    }


# Megatron


MEGATRON = ("data, distributed optimizer, bf16, overlap",)


@pytest.mark.parametrize("name", MEGATRON)
def test_parts_of_megatron(megatron_ranks: Callable[..., Ranks], name: str, tmp_path: Path) -> None:
    """Updates of the copies that are really updated, by the betas and eps of its optimizer inside."""
    setup, processes = test_megatron.SETUPS[name], megatron_ranks(test_megatron.VERSIONS[0])
    more = {"ur_distribution": True, "mg_direction": True, "xy_distribution": False}
    watched = processes.run(test_megatron.train, setup, str(tmp_path), more)
    assert [each["faults"] for each in watched] == [{}, {}]
    rows = [test_megatron.rows(each["directory"], each["layers"]) for each in watched]
    alone = processes.run(test_megatron.alone, setup)[0]
    moments = {
        key[3]: (value, alone[("exp_avg_sq", *key[1:])]) for key, value in alone.items() if key[:2] == ("exp_avg", 1)
    }
    assert len(moments) > 20
    for parameter, (first, second) in moments.items():
        m, root = first.astype(np.float64) / (1 - 0.9), np.sqrt(second.astype(np.float64) / (1 - 0.999))
        with np.errstate(invalid="ignore"):
            vectors = {"update": m / (root + test_megatron.EPSILON), "ratio": np.where(m == 0, 0.0, m / root)}
        for signal, vector in vectors.items():
            whole = test_megatron.together([each[key] for each in rows if (key := (signal, 0, 0, parameter)) in each])
            assert test_megatron.apart(whole, vector) < 1e-3, (signal, parameter)
        assert any(("mg_direction", 1, 0, parameter) in each for each in rows)


# Features


def linear_rows(kind: str) -> tuple[list[dict[str, str]], dict[str, int]]:
    """The rows of all linear layers, and of one as a router, of one step."""
    from probe.pytorch import TrainerMon

    wraps = {"fsdp1": test_fsdp1.wrapped, "fsdp2": test_fsdp2.sharded, "zero3": lambda _: engine_of(3, "fp32", {})}
    model = wraps[kind](Net())
    optimizer = model.optimizer if kind == "zero3" else torch.optim.SGD(model.parameters(), 0.1)
    targets = {"linear_hook": [], "moe_router_weight_hook": ["up"]}
    monitor = TrainerMon({"recording_l2_features": True, "l2_targets": targets, "squash_name": False, "ndigits": 20})
    monitor.set_monitor(model, 1, optimizer)
    if kind == "zero3":
        test_deepspeed.train(model, test_deepspeed.Case(3), 1)
    else:
        train_plain(model, optimizer, 1)
    monitor.stop()
    files = Path(monitor.output_directory or "").glob("*_0-0.csv")
    lines = [line for file in files for line in csv.DictReader(file.open(encoding="utf-8"))]
    return lines, monitor.faults


def assert_linear(told: list[Any]) -> None:
    """Each rank has the numbers of the whole weights."""
    weights = {name: p.detach().double().numpy() for name, p in Net().named_parameters() if p.dim() == 2}
    for lines, faults in told:
        assert faults == {}
        rows = {line["name"]: line for line in lines}
        assert set(rows) == {"up.linear", "down.linear", "up.moe_router"}
        for name, weight in weights.items():
            row, largest = rows[name.replace("weight", "linear")], np.linalg.norm(weight, 2)
            assert float(row["kernel_norm"]) == pytest.approx(largest, rel=1e-5)
            assert float(row["sr"]) == pytest.approx(np.linalg.norm(weight) / largest, rel=1e-5)
        units = weights["up.weight"] / np.linalg.norm(weights["up.weight"], axis=1, keepdims=True)
        cosines = (units @ units.T)[~np.eye(len(units), dtype=bool)]
        assert float(rows["up.moe_router"]["router_weight_similarity"]) == pytest.approx(cosines.mean(), rel=1e-4)


@pytest.mark.parametrize("kind", ["fsdp1", "fsdp2"])
def test_weights_that_ranks_share_are_read_whole(two_ranks: Ranks, kind: str) -> None:
    """In the forward, in which they are put together."""
    assert_linear(two_ranks.run(linear_rows, kind))


def test_weights_that_deepspeed_shares_are_read_whole(ranks: Ranks) -> None:
    """As with FSDP."""
    assert_linear(ranks.run(linear_rows, "zero3"))


def split_features() -> tuple[list[Any], list[str], dict[str, int]]:
    """Of a linear layer whose weight stays split in the forward."""
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor import Replicate
    from torch.distributed.tensor.parallel import ColwiseParallel, parallelize_module

    from probe.pytorch import TrainerMon

    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    model = parallelize_module(Net(), mesh, {"up": ColwiseParallel(output_layouts=Replicate())})
    optimizer, said = torch.optim.SGD(model.parameters(), 0.1), Messages()
    monitor = TrainerMon({"recording_l2_features": True, "l2_targets": {"linear_hook": ["up"]}})
    with said:
        monitor.set_monitor(model, 1, optimizer)
        for step in range(2):
            loss_of(model(batch(step, 0, 0))).backward()
            optimizer.step()
        monitor.stop()
    return list(Path(monitor.output_directory or "").glob("linear*")), said.messages, monitor.faults


def test_weights_that_stay_split_have_no_row(two_ranks: Ranks) -> None:
    """A DTensor under tensor parallelism: without communication its norm is not known, which is logged once."""
    for files, said, faults in two_ranks.run(split_features):
        assert (files, faults) == ([], {})
        assert ["0:up: expected a whole weight" in message for message in said] == [True]
