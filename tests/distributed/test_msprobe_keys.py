"""Every key of msprobe's documented configuration changes what two ranks record, by the table of the dialect."""

from __future__ import annotations

import csv
import json
import os
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from probe.core.config.load import MSPROBE, load
from tests.distributed.ranks import Ranks
from tests.required import require

torch = require("torch")

import torch.distributed as dist  # noqa: E402 - only where torch is

Config = dict[str, Any]
WHOLE: Config = {
    "targets": {
        "layers.0": {
            "input": "tuple[2]:0", "output": "tensor", "input_grad": "tuple[2]:0", "output_grad": "tuple[1]:0",
        },
    },
    "dynamic_on": False, "start_step": 0, "collect_times": 100000000, "step_interval": 1, "print_struct": False,
    "module_ranks": [0, 1, 2, 3], "ur_distribution": True, "xy_distribution": True, "all_xy": True,
    "forward_only": False, "backward_only": False, "mv_distribution": True, "param_distribution": True,
    "wg_distribution": True, "monitor_mbs_grad": True, "cc_distribution": {"enable": True, "cc_codeline": []},
    "alert": {"rules": [{"rule_name": "AnomalyTurbulence", "args": {"threshold": 0.5}}], "dump": False},
    "format": "csv", "ops": ["min", "max", "norm", "zeros", "nans", "mean"], "eps": 1e-8, "ndigits": 12,
    "step_count_per_record": 1, "append_output": [], "squash_name": True,
}  # fmt: skip
"""The page's detailed configuration, with a module of this model."""
FURTHER: tuple[Config, ...] = (
    {"targets": {}, "format": "csv", "stack_info": True},
    {
        "l2_targets": {"attention_hook": ["0:attention"], "linear_hook": ["0:layers.0.fc"]},
        "recording_l2_features": True,
        "sa_order": "b,s,h,d",
    },
    {"alert": {"rules": [{"rule_name": "AnomalyNan", "args": {"threshold": 1e10}}], "dump": True}},
    {"wg_distribution": True, "mg_direction": True},
    {"cc_distribution": {"enable": True, "cc_codeline": [r"train.py\[23\]"], "cc_pre_hook": True, "cc_log_only": True}},
)
"""Its other samples, as far as they have other keys."""

WITHOUT_EFFECT = {"alert.inform"}
"""Keys of its predecessor that are left out with a warning."""
WG: Config = {"wg_distribution": True, "alert": {"rules": []}}
XY: Config = {"xy_distribution": True, "alert": {"rules": []}}
L2: Config = {"recording_l2_features": True, "alert": {"rules": []}}
ATTENTION: Config = L2 | {"l2_targets": {"attention_hook": ["0:attention"]}}
NAN: Config = {"rule_name": "AnomalyNan"}
TURBULENT: Config = {"rule_name": "AnomalyTurbulence", "args": {"threshold": 0.5}}
ONE = {"targets": {"layers.0.fc": {}}}


def cc(**keys: object) -> Config:
    return {"cc_distribution": {"enable": True, **keys}, "alert": {"rules": []}}


def judged(*rules: Config, dump: bool = True) -> Config:
    return {"wg_distribution": True, "alert": {"rules": list(rules), "dump": dump}}


def placed(**selectors: str) -> Config:
    return XY | {"targets": {"layers.0": {"output": "tensor", **selectors}}}


PAIRS: dict[str, tuple[Config, Config]] = {
    "targets": (WG, WG | ONE),
    "targets.input": (placed(), placed(input="tuple[2]:0")),
    "targets.output": (
        XY | {"targets": {"layers.0": {"input": "tuple[2]:0"}}},
        XY | {"targets": {"layers.0": {"input": "tuple[2]:0", "output": "tensor"}}},
    ),
    "targets.input_grad": (placed(), placed(input_grad="tuple[2]:0")),
    "targets.output_grad": (placed(), placed(output_grad="tuple[1]:0")),
    "collect_times": (WG, WG | {"collect_times": 1}),
    "start_step": (WG, WG | {"start_step": 1}),
    "step_interval": (WG, WG | {"step_interval": 2}),
    "print_struct": (WG, WG | {"print_struct": True}),
    "module_ranks": (WG, WG | {"module_ranks": [0]}),
    "ur_distribution": (WG, WG | {"ur_distribution": True}),
    "xy_distribution": (WG, WG | {"xy_distribution": True}),
    "all_xy": (XY | ONE, XY | ONE | {"all_xy": True}),
    "forward_only": (XY, XY | {"forward_only": True}),
    "backward_only": (XY, XY | {"backward_only": True}),
    "mv_distribution": (WG, WG | {"mv_distribution": True}),
    "wg_distribution": (XY, XY | {"wg_distribution": True}),
    "monitor_mbs_grad": (WG, WG | {"monitor_mbs_grad": True}),
    "param_distribution": (WG, WG | {"param_distribution": True}),
    "mg_direction": (WG, WG | {"mg_direction": True}),
    "alert": (WG, judged(TURBULENT)),
    "alert.rules": (judged(), judged(TURBULENT)),
    "alert.rules.rule_name": (judged(NAN), judged(TURBULENT)),
    "alert.rules.args": (judged(NAN), judged(NAN | {"args": {"threshold": 1}})),
    "alert.rules.args.threshold": (judged(TURBULENT), judged({**TURBULENT, "args": {"threshold": 1e10}})),
    "alert.dump": (judged(TURBULENT, dump=False), judged(TURBULENT)),
    "cc_distribution": (WG, WG | {"cc_distribution": {"enable": True}}),
    "cc_distribution.enable": (WG | {"cc_distribution": {"enable": False}}, WG | {"cc_distribution": {"enable": True}}),
    "cc_distribution.cc_codeline": (cc(), cc(cc_codeline=[r"train.py\[23\]"])),
    "cc_distribution.cc_pre_hook": (cc(), cc(cc_pre_hook=True)),
    "cc_distribution.cc_log_only": (cc(), cc(cc_log_only=True)),
    "format": (WG, WG | {"format": "tensorboard"}),
    "ops": (WG, WG | {"ops": ["norm", "min"]}),
    "eps": (WG | {"ops": ["zeros"]}, WG | {"ops": ["zeros"], "eps": 0.5}),
    "ndigits": (WG, WG | {"ndigits": 12}),
    "step_count_per_record": (WG, WG | {"step_count_per_record": 5}),
    "squash_name": (WG, WG | {"squash_name": False}),
    "stack_info": (XY, XY | {"stack_info": True}),
    "recording_l2_features": (ATTENTION | {"recording_l2_features": False}, ATTENTION),
    "l2_targets": (L2 | WG, ATTENTION | WG),
    "l2_targets.attention_hook": (L2 | {"l2_targets": {"linear_hook": []}}, ATTENTION),
    "l2_targets.linear_hook": (ATTENTION, {**ATTENTION, "l2_targets": {"linear_hook": ["0:layers.0.fc"]}}),
    "l2_targets.moe_router_weight_hook": (ATTENTION, {**L2, "l2_targets": {"moe_router_weight_hook": ["0:router"]}}),
    "l2_targets.moe_router_logit_hook": (ATTENTION, {**L2, "l2_targets": {"moe_router_logit_hook": ["0:router"]}}),
    "sa_order": (ATTENTION, ATTENTION | {"sa_order": "b,s,h,d"}),
}  # fmt: skip
"""Two configurations for each key that differ in it alone, by its path."""
BY_RUN = {"dynamic_on", "append_output"}
"""Keys whose effect needs more than a run: a variable, or an earlier run."""


class Block(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.fc = torch.nn.Linear(4, 4)

    def forward(self, x: Any, y: Any) -> Any:
        return self.fc(x) + y


class Attention(torch.nn.Module):
    def forward(self, q: Any, k: Any) -> Any:
        return (q * k).sum((1, 2))


class Net(torch.nn.Module):
    """A block, an attention without parameters, and a router of experts."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = torch.nn.ModuleList([Block()])
        self.stem = torch.nn.ModuleDict({"layers": torch.nn.ModuleList([torch.nn.Linear(4, 4)])})
        self.attention, self.router = Attention(), torch.nn.Linear(4, 2)

    def forward(self, x: Any) -> Any:
        x = self.layers[0](x, x) + self.stem["layers"][0](x)
        q = x.reshape(2, 3, 2, 4)
        return self.attention(q, q + 1).sum() + self.router(x).sum()


def train(config: Config, start: int = 0) -> None:
    """Four steps of two micro batches; gradients of the last one are 50 times as large."""
    from probe.pytorch import TrainerMon, TrainingStopped

    torch.manual_seed(1)
    model = Net()
    optimizer = torch.optim.Adam(model.parameters(), 0.01)
    data = torch.randn(4, 12, 4, generator=torch.Generator().manual_seed(2), requires_grad=True)
    with TrainerMon(config) as monitor:
        monitor.set_monitor(model, grad_acc_steps=2, optimizer=optimizer, start_iteration=start)
        try:
            for step in range(4):
                for _ in range(2):
                    (model(data[step]) * (50.0 if step == 3 else 1.0)).backward()
                for parameter in model.parameters():
                    dist.all_reduce(parameter.grad)
                optimizer.step()
                optimizer.zero_grad()
        except TrainingStopped:
            pass


def recorded(root: Path, rank: int) -> dict[str, object]:
    """The rows of this rank's tables by name, without times; the names of findings; of other files their kind."""
    files: dict[str, object] = {}
    for path in root.rglob("*"):
        if not path.is_file() or f"rank{rank}" not in str(path.relative_to(root)):
            continue
        if path.suffix == ".csv":
            with path.open(encoding="utf-8", newline="") as file:
                files[path.name] = [{**row, "seconds": None} for row in csv.DictReader(file)]
        elif path.name in ("module_struct.json", "anomaly.json") or "tfevents" in path.name:
            is_finding = path.name == "anomaly.json"
            files[path.name.partition(".")[0]] = sorted(json.loads(path.read_bytes())) if is_finding else True
    return files


def outputs(config: Config, environ: Mapping[str, str] | None = None) -> dict[str, object]:
    """What a run with a configuration has written on this rank."""
    rank, before = dist.get_rank(), dict(os.environ)
    with tempfile.TemporaryDirectory() as folder:
        os.environ.update({"MONITOR_OUTPUT_DIR": folder, **(environ or {})})
        try:
            train(config)
        finally:
            os.environ.clear()
            os.environ.update(before)
        return recorded(Path(folder), rank)


def all_outputs(configs: list[Config]) -> list[dict[str, object]]:
    return [outputs(config) for config in configs]


def dynamic(value: bool) -> dict[str, object]:
    """Output where the configuration is followed from a file."""
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "monitor.json"
        file.write_text(json.dumps({**WG, "dynamic_on": value}), encoding="utf-8")
        return outputs(file, {"DYNAMIC_MONITOR": "True"})  # type: ignore[arg-type]


def appended(continued: bool) -> int:
    """Number of this rank's directories after a run and its continuation."""
    before = dict(os.environ)
    with tempfile.TemporaryDirectory() as folder:
        os.environ["MONITOR_OUTPUT_DIR"] = folder
        try:
            train(WG)
            dist.barrier()
            stamps = sorted(path.name.partition("-rank")[0] for path in Path(folder).glob("*-rank*"))
            train(WG | ({"append_output": [stamps[0], stamps[-1]]} if continued else {}), start=4)
            return len(list(Path(folder).glob(f"*-rank{dist.get_rank()}-*")))
        finally:
            os.environ.clear()
            os.environ.update(before)


@pytest.fixture(scope="module")
def by_config(two_ranks: Ranks) -> dict[str, object]:
    """Outputs of both ranks by configuration."""
    configs = {repr(config): config for pair in PAIRS.values() for config in pair}
    results = zip(*two_ranks.run(all_outputs, list(configs.values())), strict=True)
    return dict(zip(configs, results, strict=True))


@pytest.mark.parametrize("path", sorted({key.path for key in MSPROBE.keys} - BY_RUN - WITHOUT_EFFECT))
def test_a_key_changes_what_is_recorded(path: str, by_config: dict[str, object]) -> None:
    """Two runs that differ in the key alone have other rows or files."""
    without, with_key = (by_config[repr(config)] for config in PAIRS[path])
    assert without != with_key


def test_the_same_configuration_records_the_same(two_ranks: Ranks, by_config: dict[str, object]) -> None:
    """So that a difference is the key's."""
    for config in (WG, XY, cc(), ATTENTION, judged(TURBULENT)):
        assert tuple(two_ranks.run(outputs, config)) == by_config[repr(config)] != ({}, {})


def test_keys_that_need_more_than_a_run_have_their_effect(two_ranks: Ranks) -> None:
    """A followed file collects if `dynamic_on` is true; a continued run goes on in its rank's directory."""
    assert two_ranks.run(dynamic, False) == [{}, {}]
    assert all(two_ranks.run(dynamic, True))
    assert two_ranks.run(appended, False) == [2, 2]
    assert two_ranks.run(appended, True) == [1, 1]


def paths(values: object, at: str = "") -> Iterator[str]:
    """Every key of a configuration, with neither names of modules nor positions."""
    if at == "targets":
        values = list(values.values())  # type: ignore[attr-defined] # a mapping
        at = "targets:"
    if isinstance(values, list):
        for value in values:
            yield from paths(value, at)
    elif isinstance(values, dict):
        for name, value in values.items():
            path = f"{at}.{name}".lstrip(".")
            yield path.replace("targets:", "targets")
            yield from paths(value, path)


def test_every_key_of_the_documented_samples_is_in_the_table() -> None:
    """And every sample is a configuration here as it stands."""
    sampled = {path for sample in (WHOLE, *FURTHER) for path in paths(sample)}
    assert sampled <= {key.path for key in MSPROBE.keys}
    assert {key.path for key in MSPROBE.keys} - sampled - WITHOUT_EFFECT <= {
        "l2_targets.moe_router_weight_hook", "l2_targets.moe_router_logit_hook"
    }  # fmt: skip
    for sample in (WHOLE, *FURTHER):
        load(sample)
