"""Process of a fixed run, which trains a small model by its arguments. Imports the package from the path alone.

python training.py FRAMEWORK CONFIGURATION OUTPUT
"""

from __future__ import annotations

import json
import os
import re
import sys
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np

STEPS, MICRO_BATCHES, WIDTH, TOKENS = 10, 2, 8, 6
FAULTY = 6
"""The step before which a weight becomes NaN, in runs with a fault."""
OPS = ["norm", "min", "max", "mean", "std", "zeros", "nans", "infs"]
EVERYTHING = {
    "wg_distribution": True,
    "param_distribution": True,
    "mv_distribution": True,
    "xy_distribution": True,
    "all_xy": True,
}
RULES = [
    {"rule_name": "AnomalyTurbulence", "args": {"threshold": 0.5}},
    {"rule_name": "AnomalyNan", "args": {"threshold": 1e6}},
    {"rule_name": "AnomalySpike", "args": {"warm_up": 2, "window": 4, "threshold": 2, "min_ratio": 1.5}},
    {"rule_name": "AnomalyVanish", "args": {"warm_up": 2, "window": 4, "min_ratio": 2, "steps": 1}},
    {"rule_name": "AnomalyDead", "args": {"limit": 0.1, "steps": 1}},
    {"rule_name": "AnomalyFrozen", "args": {"steps": 2}},
    {"rule_name": "AnomalyThreshold", "args": {"above": 1.0, "names": ["fc*"]}},
]
CONFIGURATIONS: dict[str, dict[str, Any]] = {
    "weights": {"wg_distribution": True, "param_distribution": True, "mv_distribution": True, "ops": OPS},
    "micro_batches": {**EVERYTHING, "monitor_mbs_grad": True, "ops": OPS, "step_count_per_record": 4},
    "formats": {**EVERYTHING, "format": ["csv", "tensorboard", "sqlite", "parquet", "api"], "ops": OPS},
    "distributions": {
        "wg_distribution": True,
        "ur_distribution": True,
        "mg_direction": True,
        "ops": ["norm", "histogram", "quantiles"],
        "format": ["csv", "tensorboard", "sqlite", "parquet"],
    },
    "features": {
        "recording_l2_features": True,
        "l2_targets": {
            "attention_hook": ["attention"],
            "linear_hook": ["fc1"],
            "moe_router_weight_hook": ["gate"],
            "moe_router_logit_hook": ["gate"],
        },
        "sa_order": "b,s,h,d",
        "router_top_k": 2,
    },
    "alerts": {**EVERYTHING, "ops": OPS, "alert": {"rules": RULES, "dump": True}, "fault": True},
    "deeper": {
        "wg_distribution": True,
        "on_anomaly": {"steps": 2, "arm": {"xy_distribution": True}},
        "alert": {"dump": True},
        "fault": True,
    },
    "history": {**EVERYTHING, "history": 2, "alert": {"dump": True}, "fault": True},
    "targets": {
        "xy_distribution": True,
        "targets": {"fc1": {"input": "tuple[1]:0", "output": "tensor", "output_grad": "tensor"}},
        "stack_info": True,
        "squash_name": False,
        "forward_only": True,
    },
    "schedule": {**EVERYTHING, "start_step": 2, "step_interval": 3, "collect_times": 2, "ndigits": 4, "ops": OPS},
    "structure": {"print_struct": True},
    "dynamic": {"wg_distribution": True, "dynamic_on": False},
    "resumed": {"wg_distribution": True, "param_distribution": True, "format": ["csv", "sqlite", "parquet"]},
    "program": {"wg_distribution": True},
    "shared": {
        **EVERYTHING,
        "global_stats": True,
        "cc_distribution": {"enable": True, "cc_pre_hook": True},
        "ops": OPS,
    },
}
"""Configuration of each run; ``fault`` is not part of it."""
SHARED = "shared"
"""The one for several ranks."""


def numbers(*shape: int, seed: int) -> Any:
    """Fixed random numbers, the same in both frameworks."""
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


def _torch_net() -> Any:
    import torch

    class Attention(torch.nn.Module):
        def forward(self, query: Any, key: Any, value: Any) -> Any:
            weights = torch.einsum("bshd,bthd->bhst", query, key).softmax(-1)
            return torch.einsum("bhst,bthd->bshd", weights, value)

    class Net(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.fc1, self.norm = torch.nn.Linear(WIDTH, WIDTH), torch.nn.LayerNorm(WIDTH)
            self.attention = Attention()
            self.gate, self.fc2 = torch.nn.Linear(WIDTH, 4), torch.nn.Linear(WIDTH, 1, bias=False)
            for number, parameter in enumerate(self.parameters()):
                parameter.data.copy_(torch.from_numpy(numbers(*parameter.shape, seed=number)))

        def forward(self, x: Any) -> Any:
            x = self.norm(torch.relu(self.fc1(x)))
            parts = x.view(*x.shape[:2], 2, -1)
            x = x + self.attention(parts, parts, parts).reshape(x.shape)
            return self.fc2(x) * self.gate(x).softmax(-1)

    return Net()


def _wrapped(engine: str, model: Any) -> tuple[Any, Any]:
    """The model and its optimizer, as ``engine`` wraps them."""
    import torch

    if engine == "ddp":
        model = torch.nn.parallel.DistributedDataParallel(model)
    elif engine == "fsdp2":
        from torch.distributed.fsdp import fully_shard

        model = fully_shard(model)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, weight_decay=0.1, foreach=False)
    if engine != "zero":
        return model, optimizer
    import deepspeed

    configuration = {
        "train_micro_batch_size_per_gpu": 2,
        "gradient_accumulation_steps": MICRO_BATCHES,
        "zero_optimization": {"stage": 2},
    }
    return deepspeed.initialize(model=model, optimizer=optimizer, config=configuration)[:2]  # type: ignore[no-any-return]


def pytorch(engine: str, monitor_of: Callable[[Any], Any], between: Callable[[Any, int], None], first: int = 0) -> Any:
    """Trains with PyTorch; the monitor, not yet stopped."""
    import torch

    torch.set_num_threads(1)
    rank = int(os.environ.get("RANK", "0"))

    def batch(step: int, micro_batch: int) -> Any:
        return torch.from_numpy(numbers(2, TOKENS, WIDTH, seed=1000 + 100 * rank + 10 * step + micro_batch))

    net = _torch_net()
    weight = net.fc2.weight
    model, optimizer = _wrapped(engine, net)
    monitor = monitor_of((model, optimizer))
    for step in range(first, STEPS + first):
        between(monitor, step)
        if step == FAULTY and os.environ.get("FAULT"):
            weight.data[0, 0] = float("nan")
        for micro_batch in range(MICRO_BATCHES):
            loss = model(batch(step, micro_batch)).square().mean()
            if engine == "zero":
                model.backward(loss)
                model.step()
            else:
                (loss / MICRO_BATCHES).backward()
        if engine != "zero":
            optimizer.step()
            optimizer.zero_grad()
    return monitor


def mindspore(_: str, monitor_of: Callable[[Any], Any], between: Callable[[Any, int], None], first: int = 0) -> Any:
    """Trains with MindSpore, on one process; the monitor, not yet stopped."""
    os.environ.setdefault("GLOG_v", "4")
    import mindspore as ms
    from mindspore import mint, nn, ops

    class Attention(nn.Cell):
        def construct(self, query: Any, key: Any, value: Any) -> Any:
            weights = ops.softmax(ops.matmul(query.swapaxes(1, 2), key.swapaxes(1, 2).swapaxes(2, 3)), -1)
            return ops.matmul(weights, value.swapaxes(1, 2)).swapaxes(1, 2)

    class Net(nn.Cell):
        def __init__(self) -> None:
            super().__init__()
            self.fc1, self.norm = nn.Dense(WIDTH, WIDTH), nn.LayerNorm((WIDTH,))
            self.attention = Attention()
            self.gate, self.fc2 = nn.Dense(WIDTH, 4), nn.Dense(WIDTH, 1, has_bias=False)
            for number, parameter in enumerate(self.trainable_params()):
                parameter.set_data(ms.Tensor(numbers(*parameter.shape, seed=number)))

        def construct(self, x: Any) -> Any:
            x = self.norm(mint.nn.functional.relu(self.fc1(x)))
            parts = x.view(*x.shape[:2], 2, -1)
            x = x + self.attention(parts, parts, parts).reshape(x.shape)
            return self.fc2(x) * ops.softmax(self.gate(x), -1)

    model = Net()
    optimizer = nn.AdamWeightDecay(model.trainable_params(), learning_rate=1e-3, weight_decay=0.1)
    gradients_of = ms.value_and_grad(lambda x: model(x).square().mean() / MICRO_BATCHES, None, optimizer.parameters)
    monitor = monitor_of((model, optimizer))
    for step in range(first, STEPS + first):
        between(monitor, step)
        if step == FAULTY and os.environ.get("FAULT"):
            changed = model.fc2.weight.asnumpy().copy()
            changed[0, 0] = np.nan
            model.fc2.weight.set_data(ms.Tensor(changed))
        total: Any = None
        for micro_batch in range(MICRO_BATCHES):
            seed = 1000 + 10 * step + micro_batch
            _, gradients = gradients_of(ms.Tensor(numbers(2, TOKENS, WIDTH, seed=seed)))
            total = gradients if total is None else tuple(a + b for a, b in zip(total, gradients, strict=True))
        optimizer(total)
    return monitor


TRAINING: dict[str, Callable[..., Any]] = {"pytorch": pytorch, "mindspore": mindspore}


def stamps_of(root: Path) -> list[str]:
    """The time in the name of the run's directory, as begin and end."""
    names = (re.match(r"(\w+_\d\d-\d\d-\d\d)-rank", path.name) for path in root.iterdir())
    return 2 * [next(found[1] for found in names if found)]


def train(framework: str, engine: str, name: str, root: Path) -> None:
    """One run of this process."""
    if framework == "pytorch":
        from probe.pytorch import TrainerMon
    else:
        from probe.mindspore import TrainerMon  # type: ignore[assignment]

    root.mkdir(parents=True, exist_ok=True)
    os.environ["MONITOR_OUTPUT_DIR"] = str(root)
    configuration = dict(CONFIGURATIONS[name])
    os.environ["FAULT"] = "1" if configuration.pop("fault", False) else ""
    os.environ["DYNAMIC_MONITOR"] = str(name == "dynamic")
    file = root.parent / f"{root.name}.json"
    file.write_text(json.dumps(configuration), encoding="utf-8")

    def run(first: int, configured: Any) -> None:
        def monitor_of(trained: Any) -> Any:
            monitor = TrainerMon(configured)
            monitor.set_monitor(trained[0], MICRO_BATCHES, trained[1], start_iteration=first)
            return monitor

        def between(monitor: Any, step: int) -> None:
            if name == "dynamic" and step in (2, 5, 7):
                changes = {2: {"dynamic_on": True}, 5: {"ops": ["norm", "mean"]}, 7: {"dynamic_on": False}}
                changed = json.loads(file.read_text(encoding="utf-8")) | changes[step]
                file.write_text(json.dumps(changed, indent=step), encoding="utf-8")
            if name == "program" and step == 4:
                monitor.ops = ["norm", "max"]
                monitor.reload_xy(True)

        TRAINING[framework](engine, monitor_of, between, first).stop()

    try:
        run(0, str(file))
        if name == "resumed":
            run(5, configuration | {"append_output": stamps_of(root)})
    except SystemExit as stopped:
        (root / "stopped").write_text(f"{type(stopped).__name__} {stopped}", encoding="utf-8")


def join(engine: str) -> None:
    """The process group of the ranks, and what an engine needs before it is imported."""
    if engine == "zero":
        sys.path.insert(0, str(Path(__file__).parents[1] / "distributed"))
        import_module("deepspeed_on_cpu")
    import torch.distributed as dist

    dist.init_process_group("gloo")


def main() -> None:
    framework, engine, root, *names = sys.argv[1:]
    if engine != "alone":
        join(engine)
    for name in names:
        train(framework, engine, name, Path(root) / name)


if __name__ == "__main__":
    main()
