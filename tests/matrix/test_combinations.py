"""Keys together: whatever is combined, training is the same, nothing fails inside, and the tables are sound."""

from __future__ import annotations

import csv
import random
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from probe.core.moments import GROUPS, OPS
from probe.core.monitor.trainer_mon import Monitor
from tests.matrix.harness import Harness, train_step
from tests.matrix.models import called_twice, noisy, residual, tiny_net, tower
from tests.matrix.watching import inputs

STEPS, START = 7, 5
SWITCHES = (
    "xy_distribution", "wg_distribution", "mv_distribution", "ur_distribution", "mg_direction", "all_xy",
    "stack_info", "squash_name", "recording_l2_features",
)  # fmt: skip
RULES: tuple[dict[str, Any], ...] = (
    {"rule_name": "AnomalyNan", "args": {"threshold": 0.5}},
    {"rule_name": "AnomalyTurbulence", "args": {"threshold": 0.1, "both_sides": True}},
    {"rule_name": "AnomalySpike", "args": {"window": 4, "warm_up": 2, "min_ratio": 1.5}},
    {"rule_name": "AnomalyVanish", "args": {"window": 4, "warm_up": 2, "steps": 1, "min_ratio": 1.5}},
    {"rule_name": "AnomalyDead", "args": {"steps": 1, "limit": 0.5}},
    {"rule_name": "AnomalyFrozen", "args": {"steps": 1}},
    {"rule_name": "AnomalyThreshold", "args": {"above": 2.0}},
)
"""With limits at which something is found."""


def combined(draw: random.Random) -> dict[str, Any]:
    """A configuration by chance."""
    config: dict[str, Any] = {key: draw.random() < 0.5 for key in SWITCHES}
    one_way = draw.choice([None, None, "forward_only", "backward_only"])
    ops = [*OPS, *GROUPS, "histogram", "shape"]
    return {
        **config,
        "param_distribution": True,
        **({one_way: True} if one_way else {}),
        "l2_targets": {"linear_hook": []},
        "monitor_mbs_grad": draw.random() < 0.3,
        "ops": draw.sample(ops, draw.randint(1, 6)),
        "eps": draw.choice([0, 1e-8, 1]),
        "ndigits": draw.choice([None, 0, 12]),
        "start_step": START + draw.choice([0, 1, 3]),
        "step_interval": draw.choice([1, 2]),
        "collect_times": draw.choice([100, 3]),
        "step_count_per_record": draw.choice([1, 5]),
        "history": draw.choice([0, 0, 2]),
        "format": ["csv", *draw.sample(["sqlite", "tensorboard", "api"], draw.randint(0, 2))],
        "alert": {"rules": draw.sample(RULES, draw.randint(0, len(RULES))), "dump": draw.random() < 0.5},
    }


def trained(framework: Harness, seed: int, config: dict[str, Any] | None) -> tuple[dict[str, bytes], Monitor | None]:
    """The weights after training that ``seed`` chooses, watched if there is a configuration."""
    draw = random.Random(seed)
    model = draw.choice([tiny_net, called_twice, residual, noisy, tower])(framework)
    kind = draw.choice(list(framework.STATE))
    more = {"momentum": 0.5} if kind == "momentum" else {}
    framework.seed()
    optimizer = framework.optimizer(kind, model, lr=2.0**-10, **more)
    loop, monitor = framework.loop(model, optimizer), None
    if config is not None:
        monitor = framework.TrainerMon(config)
        monitor.set_monitor(model, 1, optimizer, start_iteration=START)
    for _ in range(STEPS):
        train_step(loop, *inputs(framework, draw.randint(1, 3)))
    if monitor is not None:
        monitor.stop()
    return {name: array.tobytes() for name, array in framework.weights(model).items()}, monitor


@pytest.mark.parametrize("seed", range(12))
def test_any_combination(framework: Harness, seed: int) -> None:
    """The weights to the last bit, no fault, and every row once, as wide as its header, of a step to be sampled."""
    config = combined(random.Random(seed))
    plain, _ = trained(framework, seed, None)
    watched, monitor = trained(framework, seed, config)
    assert watched == plain
    assert monitor is not None
    assert monitor.faults == {}
    scheduled = range(config["start_step"], START + STEPS, config["step_interval"])[: config["collect_times"]]
    tables = [*Path(str(monitor.output_directory)).glob("*_*-*.csv")]
    assert tables or config["history"]
    for path in tables:
        with path.open(newline="", encoding="utf-8") as file:
            header, *rows = csv.reader(file, strict=True)
        assert rows, path.name
        assert {len(row) for row in rows} == {len(header)}, path.name
        assert {int(row[header.index("step")]) for row in rows} <= {*scheduled}, path.name
        about = Counter(tuple(row[: 4 if "micro_step" in header else 3]) for row in rows)
        assert set(about.values()) == {1}, path.name
