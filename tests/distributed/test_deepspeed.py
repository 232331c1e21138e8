"""DeepSpeed ZeRO: what each rank writes of its parts is the unsharded tensor's, and training does not notice."""

from __future__ import annotations

import csv
import re
from collections import Counter
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest

from probe.core.moments import merge
from tests.distributed.models import Net, batch, loss_of
from tests.distributed.ranks import Ranks
from tests.pytorch.watching import numbers, watch
from tests.required import require
from tests.tables import OPS, Row

torch = require("torch")

import torch.distributed as dist  # noqa: E402 - only where torch is

STEPS, LR = 3, 0.01
STATES = ("exp_avg", "exp_avg_sq")
DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}
SCALE_POWER = 8
"""Of the loss scale that fp16 begins with."""


class Case(NamedTuple):
    """One way of training."""

    stage: int
    precision: str = "fp32"
    micro_batches: int = 1
    overlap: bool = False
    accumulates_in: str | None = None
    each: bool | str = False
    """``monitor_mbs_grad``."""
    given: str = "optimizer"
    """Which optimizer the monitor gets."""
    raw: bool = False
    """Whether the monitor gets the model itself, not the engine."""

    @property
    def apart(self) -> bool:
        """Whether each micro batch is reduced by itself."""
        return self.stage >= 2

    def __str__(self) -> str:
        return "-".join(str(value) for value in self)


NEWEST, OLDER = "0.19.8", "0.16.9"


@pytest.fixture(params=[NEWEST, OLDER])
def ranks(request: pytest.FixtureRequest, deepspeed_ranks: Callable[[str], Ranks]) -> Ranks:
    """Two processes with one version of DeepSpeed."""
    return deepspeed_ranks(request.param)


# What runs in the processes.


def two_groups(model: Any) -> list[dict[str, Any]]:
    """Matrices, and the rest: of neither can two ranks share the elements evenly."""
    matrices = [p for p in model.parameters() if p.dim() == 2]
    return [{"params": matrices}, {"params": [p for p in model.parameters() if p.dim() == 1]}]


def adamw(model: Any) -> Any:
    return torch.optim.AdamW(two_groups(model), lr=LR, eps=1e-3, foreach=False)


def engine_of(case: Case) -> Any:
    """The model as users hand it to DeepSpeed."""
    import deepspeed

    zero = {"stage": case.stage, "overlap_comm": case.overlap, "reduce_bucket_size": 40}
    if case.stage == 3:
        zero["stage3_param_persistence_threshold"] = 0
    config: dict[str, Any] = {
        "train_micro_batch_size_per_gpu": 4,
        "gradient_accumulation_steps": case.micro_batches,
        "steps_per_print": 10**9,
        "zero_allow_untested_optimizer": True,
        "gradient_clipping": 0.0,
        "zero_optimization": zero,
    }
    if case.precision != "fp32":
        config[case.precision] = {"enabled": True}
    if case.precision == "fp16":
        config["fp16"] |= {"initial_scale_power": SCALE_POWER, "hysteresis": 1}
    if case.accumulates_in:
        config["data_types"] = {"grad_accum_dtype": case.accumulates_in}
    model = Net()
    engine, *_ = deepspeed.initialize(model=model, optimizer=adamw(model), config=config)
    return engine


def train(engine: Any, case: Case, steps: int = STEPS, factor: float = 1.0) -> list[float]:
    """The losses."""
    losses = []
    for step in range(steps):
        for i in range(case.micro_batches):
            loss = loss_of(engine(batch(step, i).to(DTYPES[case.precision]))) * factor
            engine.backward(loss)
            engine.step()
            losses.append(loss.item())
    return losses


def weights(engine: Any) -> list[Any]:
    """Parameters that this rank holds; the padding of the parts of stage 3 was never set."""
    held = []
    for p in engine.module.parameters():
        if hasattr(p, "ds_tensor"):
            here = p.ds_numel - p.partition_numel() * dist.get_rank()
            p = p.ds_tensor[:here]  # noqa: PLW2901
        held.append(p.detach().clone())
    return held


def attach(engine: Any, case: Case, **settings: Any) -> Any:
    """Monitor attached as ``case`` describes."""
    optimizers = {
        "engine": engine,
        "optimizer": engine.optimizer,
        "inner": getattr(engine.optimizer, "optimizer", engine.optimizer),
    }
    model = engine.module if case.raw else engine
    return watch(model, optimizers[case.given], case.micro_batches, monitor_mbs_grad=case.each, **settings)


class Line(NamedTuple):
    """One row of a file."""

    values: dict[str, float]
    coverage: str


def lines_of(monitor: Any) -> dict[Row, Line]:
    """Everything a monitor wrote, with what each row covers; any fault fails."""
    monitor.stop()
    assert monitor.faults == {}, monitor.faults
    lines: dict[Row, Line] = {}
    for path in sorted(Path(monitor.output_directory).glob("*.csv")):
        with path.open(newline="", encoding="utf-8") as file:
            for line in csv.DictReader(file):
                micro_step = int(line.get("micro_step") or 0)
                row = Row(path.stem.rpartition("_")[0], int(line["step"]), line["name"], micro_step)
                assert row not in lines, f"{row} twice"
                lines[row] = Line({op: float(line[op]) for op in OPS}, line.get("coverage") or "")
    return lines


def collectives() -> int:
    """How many there have been in all process groups."""
    groups = dist.distributed_c10d._world.pg_map
    return sum(group._get_sequence_number_for_group() for group in groups)


class Told(NamedTuple):
    """Results of a rank."""

    lines: dict[Row, Line]
    expected: dict[Row, Any]
    same: bool
    collectives: tuple[int, int]
    optimizer: str


def watched(case: Case) -> Told:
    """Trains twice, the second time under a monitor."""
    plain = engine_of(case)
    begin = collectives()
    losses = train(plain, case)
    needed = collectives() - begin
    engine = engine_of(case)
    monitor = attach(engine, case, xy_distribution=False)
    begin = collectives()
    same = losses == train(engine, case)
    took = collectives() - begin
    lines = lines_of(monitor)
    same &= all(torch.equal(a, b) for a, b in zip(weights(plain), weights(engine), strict=True))
    return Told(lines, by_hand(case, engine.optimizer), same, (needed, took), type(engine.optimizer).__name__)


def by_hand(case: Case, theirs: Any) -> dict[Row, Any]:
    """The same training in this process alone, on all ranks' data; rows are of whole tensors."""
    dtype, world = DTYPES[case.precision], dist.get_world_size()
    master, model = Net(), Net().to(dtype)
    optimizer, rows = begun(master, dtype, theirs), {}
    applied = 1.0 / 2**SCALE_POWER if forgets_to_scale(theirs) else 1.0
    for step in range(STEPS):
        model.load_state_dict(master.state_dict())
        each = [
            [gradients(model, case, step, i, rank, applied) for i in range(case.micro_batches)] for rank in range(world)
        ]
        rows |= unreduced(case, step, each[dist.get_rank()])
        for name, parameter in master.named_parameters():
            parameter.grad = sum(one[name] for local in each for one in local) / world
            rows[Row("grad_reduced", step, name)] = parameter.grad.clone()
            rows[Row("param_origin", step, name)] = parameter.detach().clone().to(dtype)
            for kind in STATES if optimizer.state else ():
                rows[Row(kind, step, name)] = optimizer.state[parameter][kind].clone()
        optimizer.step()
        for name, parameter in master.named_parameters():
            rows[Row("param_updated", step, name)] = parameter.detach().clone().to(dtype)
    return rows


def begun(master: Any, dtype: Any, theirs: Any) -> Any:
    """An optimizer that stands where DeepSpeed's begins: at the values that the model holds and, where there is a copy
    of each parameter, after a step without gradients."""
    for parameter in master.parameters():
        parameter.data.copy_(parameter.data.to(dtype))
    optimizer = adamw(master)
    if hasattr(theirs, "initialize_optimizer_states") and hasattr(theirs, "fp32_groups"):
        for parameter in master.parameters():
            parameter.grad = torch.zeros_like(parameter)
        optimizer.step()
    return optimizer


def forgets_to_scale(optimizer: Any) -> bool:
    """True if the engine does not multiply the loss by the scale that the optimizer divides by: in 0.19.8, fp16 without
    ZeRO. Applied and recorded gradients are that much too small."""
    from deepspeed.runtime.base_optimizer import ZeROOptimizer
    from deepspeed.runtime.engine import DeepSpeedEngine

    scales = isinstance(optimizer, ZeROOptimizer) or hasattr(DeepSpeedEngine, "_do_optimizer_backward")
    return getattr(optimizer, "loss_scale", 1) != 1 and not scales


def gradients(model: Any, case: Case, step: int, micro_batch: int, rank: int, applied: float) -> dict[str, Any]:
    """Contribution of one micro batch: DeepSpeed divides by their number."""
    data = batch(step, micro_batch, rank).to(DTYPES[case.precision])
    found = torch.autograd.grad(loss_of(model(data)) / case.micro_batches, list(model.parameters()))
    return {
        name: gradient.float() * applied for (name, _), gradient in zip(model.named_parameters(), found, strict=True)
    }


def unreduced(case: Case, step: int, local: list[dict[str, Any]]) -> dict[Row, Any]:
    """Rows as ``case.each`` asks, where the stage holds a sum."""
    rows = {}
    for name in local[0]:
        each = [one[name] for one in local]
        if case.apart or case.each is True:
            rows |= {Row("grad_unreduced", step, name, i): gradient for i, gradient in enumerate(each)}
        elif case.each == "accumulated":
            rows |= {Row("grad_unreduced", step, name, i): sum(each[: i + 1]) for i in range(len(each))}
        else:
            rows[Row("grad_unreduced", step, name)] = sum(each)
    return rows


# Comparing.

BOUND = {"fp32": 1e-5, "bf16": 2e-2, "fp16": 4e-3}
"""Of every op, relative to the tensor's root mean square (the norm: to the norm); of squares, twice that."""


def close(found: Mapping[str, float], tensor: Any, bound: float, whole: Any) -> list[str]:
    """Problems of the numbers of ``tensor``, part of ``whole``."""
    wanted, wrong = numbers(tensor), []
    size = numbers(whole)["norm"] / max(whole.numel(), 1) ** 0.5
    for op in OPS:
        unit = size * tensor.numel() ** 0.5 if op == "norm" else size
        if not abs(found[op] - wanted[op]) <= bound * unit + 1e-12:
            wrong.append(f"{op}: {found[op]}, expected {wanted[op]} within {bound * unit}")
    return wrong[:1]


def part_of(line: Line) -> tuple[int, int] | None:
    """Which elements of the flattened tensor; None for a whole tensor."""
    if not line.coverage:
        return None
    found = re.fullmatch(r"(\d+) of \[[\d, ]*\] at (\d+):(\d+) over ranks 0-1", line.coverage)
    assert found, line.coverage
    count, start, end = (int(text) for text in found.groups())
    assert count == end - start
    return start, end


def merged(lines: list[Line]) -> dict[str, float]:
    """The whole tensor's numbers from those of its parts."""
    parts = [part_of(line) for line in lines]
    counts = [part[1] - part[0] for part in parts if part is not None]
    moments = [
        {
            "min": line.values["min"],
            "max": line.values["max"],
            "sum": line.values["mean"] * count,
            "sumsq": line.values["norm"] ** 2,
            "nans": line.values["nans"],
            "infs": line.values["infs"],
        }
        for line, count in zip(lines, counts, strict=True)
    ]
    whole = merge(moments, counts)
    return whole | {"mean": whole["sum"] / sum(counts), "norm": float(np.sqrt(whole["sumsq"]))}


def wrong(told: list[Told], bound: float) -> list[str]:
    """Every row that is not as by hand, and every tensor whose parts do not make it up."""
    found: list[str] = []
    together: dict[Row, dict[tuple[int, int], Line]] = {}
    for rank, one in enumerate(told):
        for row, line in one.lines.items():
            part = part_of(line)
            found += [f"rank {rank} {row} {what}" for what in compared(row, line, part, one.expected, bound)]
            if part is not None:
                together.setdefault(row, {})[part] = line
        missing = {row for row in one.expected if row.signal not in ("grad_reduced", *STATES)} - one.lines.keys()
        found += [f"rank {rank} {row}: missing" for row in sorted(missing)]
    for row, parts in together.items():
        tensor, edges = told[0].expected[row], sorted(parts)
        if [0, *(end for _, end in edges)] != [*(start for start, _ in edges), tensor.numel()]:
            found.append(f"{row}: parts {edges} of {tensor.numel()}")
        found += [
            f"{row} merged {what}" for what in close(merged([*parts.values()]), tensor, bound_of(row, bound), tensor)
        ]
    nowhere = set(told[0].expected) - set(told[0].lines) - set(told[1].lines)
    return found + [f"{row}: on no rank" for row in sorted(nowhere) if row.signal != "grad_unreduced"]


def compared(
    row: Row, line: Line, part: tuple[int, int] | None, expected: Mapping[Row, Any], bound: float
) -> list[str]:
    """Problems of one row."""
    tensor = expected.get(row)
    if tensor is None:
        return ["is one too many"]
    if part is not None and part[0] == part[1]:
        return [] if part == (0, 0) and line.values["norm"] == 0 else [f"is empty: {line}"]
    piece = tensor if part is None else tensor.flatten()[slice(*part)]
    return close(line.values, piece, bound_of(row, bound), tensor)


def bound_of(row: Row, bound: float) -> float:
    return 2 * bound if row.signal == "exp_avg_sq" else bound


CASES = [
    Case(0),
    Case(0, "bf16", 2, raw=True),
    Case(0, "fp16", 2, given="inner"),
    Case(1, "fp32", 2, each="accumulated", raw=True),
    Case(1, "bf16", 1, overlap=True, given="inner"),
    Case(1, "bf16", 2, accumulates_in="fp32", each="accumulated"),
    Case(1, "fp16", 2, given="engine"),
    Case(2, "fp32", 2, overlap=True, given="inner", raw=True),
    Case(2, "bf16", 1, given="engine"),
    Case(2, "bf16", 2, accumulates_in="fp32", each=True),
    Case(2, "fp16", 1),
    Case(3, "fp32", 2, overlap=True, given="inner"),
    Case(3, "bf16", 2, each=True, raw=True),
    Case(3, "fp16", 1, given="engine"),
]


OLDER_CASES = [case for case in CASES if case.raw or case.accumulates_in == "fp32"]
"""Those that the older version is tried with: one of each stage, and what bf16 adds up in."""
TRIED = [*((NEWEST, case) for case in CASES), *((OLDER, case) for case in OLDER_CASES)]


@pytest.mark.parametrize(("ranks", "case"), TRIED, indirect=["ranks"], ids=str)
def test_every_row_is_the_unsharded_tensors(ranks: Ranks, case: Case) -> None:
    """Gradients, parameters and state of every step, part by part and merged, against one process without DeepSpeed;
    training is bit for bit the same, with as many collectives."""
    told = ranks.run(watched, case)
    for one in told:
        assert one.same, "losses or weights differ from those without a monitor"
        assert one.collectives[0] == one.collectives[1] > 0
        signals = Counter(row.signal for row in one.lines)
        assert {"grad_unreduced", "grad_reduced", "param_origin", "param_updated", *STATES} == set(signals)
    problems = wrong(told, BOUND[case.precision])
    assert not problems, f"{told[0].optimizer}: {len(problems)} wrong\n" + "\n".join(problems[:20])


# What else must be so.


def picture(engine: Any) -> str:
    """Everything that listening could have changed."""
    optimizer, modules = engine.optimizer, list(engine.modules())
    parts = [engine, optimizer, getattr(optimizer, "optimizer", None), type(optimizer), type(engine), torch.optim.AdamW]
    hooks = [{k: list(v) for k, v in vars(m).items() if "hooks" in k and v} for m in modules]
    grads = [
        (list((p._backward_hooks or {}).values()), list((p._post_accumulate_grad_hooks or {}).values()))
        for p in engine.module.parameters()
    ]
    functions = [{k: v for k, v in vars(type(part)).items() if callable(v)} for part in parts]
    return repr([[sorted(vars(part)) for part in parts if part is not None], hooks, grads, functions])


def left_behind(stage: int) -> tuple[bool, bool, dict[str, set[str]]]:
    """Whether a stopped monitor leaves all as it was, whether there was anything to leave, and the names it wrote."""
    case = Case(stage, "bf16", 1)
    engine = engine_of(case)
    train(engine, case, 1)
    before = picture(engine)
    monitor = attach(engine, case)
    during = picture(engine)
    train(engine, case, 1)
    names: dict[str, set[str]] = {}
    for row in lines_of(monitor):
        names.setdefault(row.signal, set()).add(row.name)
    return picture(engine) == before, during != before, names


@pytest.mark.parametrize("stage", [0, 2, 3])
def test_nothing_is_left_behind(ranks: Ranks, stage: int) -> None:
    """Objects, classes and the order of hooks are as found; activations are there under the user's names."""
    for same, other_before, names in ranks.run(left_behind, stage):
        assert same
        assert other_before
        assert names["actv"] >= {"up.input", "norm.output", "down.output"}
        assert names["actv_grad"] >= {"up.output", "norm.input", "down.input"}


def with_group(stage: int) -> set[str]:
    """Which reduced gradients a rank writes, where the data-parallel group is known."""
    from probe.pytorch import TrainerMon

    case = Case(stage)
    engine = engine_of(case)
    monitor = TrainerMon({"wg_distribution": True, "ops": OPS})
    monitor.set_monitor(engine, 1, engine.optimizer, dp_group=dist.group.WORLD)
    train(engine, case, 1)
    return {row.name for row in lines_of(monitor) if row.signal == "grad_reduced"}


@pytest.mark.parametrize("stage", [0, 1, 3])
def test_parts_of_gradients_are_not_taken_for_copies(ranks: Ranks, stage: int) -> None:
    """With ``dp_group``, whole reduced gradients are written by its first rank, parts by each that has one."""
    first, second = ranks.run(with_group, stage)
    every = {name for name, _ in Net().named_parameters()}
    assert first | second == every
    if stage == 0:
        assert second == set()
    if stage == 3:
        assert first == second


def frozen(case: Case) -> tuple[dict[str, set[str]], dict[str, int]]:
    """Rows of a model whose normalisation is not trained, and the faults."""
    import deepspeed

    config = {
        "train_micro_batch_size_per_gpu": 4,
        "zero_allow_untested_optimizer": True,
        "zero_optimization": {"stage": case.stage, "stage3_param_persistence_threshold": 0},
    }
    if case.precision != "fp32":
        config[case.precision] = {"enabled": True}
    model = Net()
    model.norm.requires_grad_(False)
    trained = [p for p in model.parameters() if p.requires_grad]
    engine, *_ = deepspeed.initialize(model=model, optimizer=torch.optim.AdamW(trained, lr=LR), config=config)
    monitor = attach(engine, case, xy_distribution=False)
    train(engine, case, 2)
    names: dict[str, set[str]] = {}
    for row in lines_of(monitor):
        names.setdefault(row.signal, set()).add(row.name)
    return names, monitor.faults


@pytest.mark.parametrize("case", [Case(0, "bf16"), Case(1), Case(3)], ids=str)
def test_a_frozen_parameter_has_no_state_and_hides_no_others(ranks: Ranks, case: Case) -> None:
    trained = {name for name, _ in Net().named_parameters() if not name.startswith("norm")}
    for names, faults in ranks.run(frozen, case):
        assert faults == {}
        assert names["exp_avg"] == names["exp_avg_sq"] == names["grad_reduced"] == trained
        assert names["param_origin"] == trained | {"norm.weight", "norm.bias"}


def on_disk() -> str:
    """Error of a monitor for state that is kept on NVMe."""
    engine = engine_of(Case(3))
    engine.optimizer.swap_optimizer = True
    try:
        attach(engine, Case(3))
    except ValueError as error:
        return str(error)
    return ""


def test_state_on_disk_is_refused(ranks: Ranks) -> None:
    for said in ranks.run(on_disk):
        assert "NVMe" in said
        assert 'set the device to "cpu"' in said


def norms_of_each_step(case: Case) -> tuple[list[float], list[float]]:
    """The norm of this rank's part of all gradients at each step, as the sentinel has it, and of the whole by hand."""
    engine = engine_of(case)
    quiet = {"step_interval": 1000, "run": {"enable": True}, "sentinel": {"enable": True}}
    monitor = attach(engine, case, xy_distribution=False, **quiet)
    train(engine, case)
    monitor.stop()
    assert monitor.faults == {}
    found = {}
    for path in Path(monitor.output_directory).glob("run_*.csv"):
        with path.open(newline="", encoding="utf-8") as file:
            found |= {int(row["step"]): row["value"] for row in csv.DictReader(file) if row["name"] == "gradient_norm"}
    rows = by_hand(case, engine.optimizer)
    whole = [[g for row, g in rows.items() if (row.signal, row.step) == ("grad_reduced", n)] for n in range(STEPS)]
    truth = [float(sum(g.double().square().sum() for g in each)) ** 0.5 for each in whole]
    return [float(found[step]) for step in range(STEPS)], truth


@pytest.mark.parametrize("case", [Case(1), Case(3), Case(2, "fp16", 2)], ids=str)
def test_the_sentinel_has_the_norm_of_this_ranks_part_at_every_step(
    deepspeed_ranks: Callable[[str], Ranks], case: Case
) -> None:
    """Of steps that are not sampled, too, without the loss scale; the parts make up the whole."""
    told = deepspeed_ranks(NEWEST).run(norms_of_each_step, case)
    together = np.sqrt(sum(np.square(parts) for parts, _ in told))
    np.testing.assert_allclose(together, told[0][1], rtol=5e-3 if case.precision == "fp16" else 1e-4)
