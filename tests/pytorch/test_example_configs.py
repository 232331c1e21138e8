"""Every example configuration trains a small GPT for three steps and writes what it promises."""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from probe.core.config.load import load
from probe.demo.pytorch.training import Gpt
from probe.demo.recipe import Size
from probe.pytorch import TrainerMon, TrainingStopped
from tests.core.output.test_metrics_writers import Collector
from tests.pytorch.runs import directory_of, header, manifest, tables, watching
from tests.required import require

torch = require("torch")

CONFIGS = Path(__file__).resolve().parents[2] / "resources" / "configs"
STEPS = 3
WEIGHTS, ACTIVATIONS = ("grad_reduced", "grad_unreduced"), ("actv", "actv_grad")
STATE = ("exp_avg", "exp_avg_sq")
CLOCKS = "run_0-99"
"""Numbers of the run, which differ from one to the next."""


def each_step(*signals: str, steps: range = range(STEPS)) -> set[str]:
    """Files that hold one step each."""
    return {f"{signal}_{step}-{step}" for signal in signals for step in steps}


PROMISED: dict[str, set[str]] = {
    "activations": each_step(*ACTIVATIONS),
    "activations_of_targets": each_step(*ACTIVATIONS),
    "alert_layers": each_step(*WEIGHTS, *ACTIVATIONS, "param_origin", "param_updated"),
    "alert_nan": each_step(*WEIGHTS),
    "alert_spike": each_step(*WEIGHTS, *ACTIVATIONS),
    "alert_turbulence": each_step(*WEIGHTS),
    "collectives": set(),  # one process sends nothing
    "dynamic": each_step(*WEIGHTS),
    "everything": each_step(*WEIGHTS, *ACTIVATIONS, "param_origin", "param_updated")
    | each_step(*STATE, steps=range(1, STEPS)),
    "features": each_step("linear_hook"),
    "format_api": set(),
    "format_csv": each_step(*WEIGHTS),
    "format_list": each_step(*WEIGHTS),
    "format_otlp": each_step(*WEIGHTS) | {CLOCKS},
    "format_parquet": set(),
    "format_prometheus": each_step(*WEIGHTS) | {CLOCKS},
    "format_sqlite": set(),
    "format_tensorboard": set(),
    "histograms": each_step(*WEIGHTS),
    "incidents": set(),  # nothing was found
    "micro_batch_gradients": each_step(*WEIGHTS),
    "optimizer_state": each_step(*STATE, steps=range(1, STEPS)),
    "ranks": each_step(*WEIGHTS),
    "resumed": each_step(*WEIGHTS),
    "schedule": each_step(*WEIGHTS, steps=range(2, 3)),
    "stacks": {"stack_info"},
    "statistics": each_step(*WEIGHTS),
    "steps_per_file": {f"{signal}_0-4" for signal in WEIGHTS},
    "structure": set(),
    "updates": each_step("update", "ratio") | each_step("mg_direction", steps=range(1, STEPS)),
    "weight_gradients": each_step(*WEIGHTS),
    "weights": each_step("param_origin", "param_updated"),
    "whole_tensors": each_step(*WEIGHTS, "param_origin", "param_updated"),
}
"""The tables that each example leads to."""
OTHERS = {
    "format_sqlite": {"monitor_metrics.db"},
    "format_parquet": {f"{signal}_0-9.parquet" for signal in WEIGHTS},
}
"""Other files that examples lead to."""
EVENTS = {"format_list", "format_tensorboard", "everything"}


def train(config: Any, spoil: bool = False) -> TrainerMon:
    """Three steps of two micro batches; ``spoil`` makes a weight NaN before the last."""
    model = Gpt(Size(layers=1, width=8, heads=2, context=8))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    tokens = torch.randint(256, (2, 9), generator=torch.Generator().manual_seed(0))
    with watching(config, model, optimizer, 2) as monitor:
        for step in range(STEPS):
            if spoil and step == STEPS - 1:
                with torch.no_grad():
                    model.layers[0].mlp.fc1.weight[0, 0] = math.nan
            for _ in range(2):
                logits = model(tokens[:, :-1])
                torch.nn.functional.cross_entropy(logits.flatten(0, 1), tokens[:, 1:].flatten()).backward()
            optimizer.step()
            optimizer.zero_grad()
    return monitor


def test_every_example_is_tested_and_comes_in_both_languages() -> None:
    """No file stands there without a test, and none lacks its twin."""
    assert Counter(path.stem for path in CONFIGS.iterdir()) == dict.fromkeys(PROMISED, 2)
    assert {path.suffix for path in CONFIGS.iterdir()} == {".json", ".yaml"}


@pytest.fixture(scope="module")
def outputs(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[[str], Path]]:
    """Trains by the JSON file of an example, once; gives the folder of its output."""
    folder = tmp_path_factory.mktemp("examples")

    def trained(name: str) -> Path:
        if name not in done:
            done.add(name)
            patch.setenv("MONITOR_OUTPUT_DIR", str(folder / name))
            train(CONFIGS / f"{name}.json")
        return folder / name

    done = set[str]()
    with pytest.MonkeyPatch.context() as patch:
        yield trained


@pytest.mark.parametrize("name", sorted(PROMISED.keys() - {"structure"}))
def test_examples(outputs: Callable[[str], Path], monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    """The JSON file writes the promised tables, and nothing goes wrong. The YAML file means the very same."""
    collector = Collector()
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", collector.address.removesuffix("/v1/metrics"))
    root = outputs(name)
    collector.shutdown()
    assert bool(collector.bodies) == (name == "format_otlp")
    one, other = (load(CONFIGS / f"{name}{ending}").model_dump(mode="json") for ending in (".json", ".yaml"))
    assert one == other
    written = tables(root) if root.exists() else {}
    assert not root.exists() or manifest(root)["config"] == one
    assert len(list(root.glob("*/events.out.tfevents.*"))) == (name in EVENTS)
    assert {path.name for path in root.glob("*/*") if path.suffix in (".db", ".parquet")} == OTHERS.get(name, set())
    assert set(written) == PROMISED[name]
    assert all(written.values())


@pytest.mark.parametrize("ending", [".json", ".yaml"])
def test_structure_example_ends_training_and_leaves_the_structure(output_dir: Path, ending: str) -> None:
    """Its one file is there, and nothing else."""
    with pytest.raises(TrainingStopped):
        train(CONFIGS / f"structure{ending}")
    (file,) = (path for path in output_dir.rglob("*") if path.is_file())
    assert "0:layers.0.mlp.fc1" in json.loads(file.read_text(encoding="utf-8"))


def test_statistics_has_every_op(outputs: Callable[[str], Path]) -> None:
    """The example of all numbers writes each of them, in its order."""
    ops = ["min", "max", "mean", "norm", "zeros", "nans", "infs", "std", "id"]
    columns = header(directory_of(outputs("statistics")) / "grad_reduced_0-0.csv")
    assert columns == ["vpp_stage", "name", "step", *ops, "shape", "dtype"]


def test_micro_batch_gradients_are_of_each_micro_batch(outputs: Callable[[str], Path]) -> None:
    """Each parameter has a row for both micro batches."""
    rows = tables(outputs("micro_batch_gradients"))["grad_unreduced_1-1"]
    assert set(Counter(row["name"] for row in rows).values()) == {2}


def test_targets_of_the_example(outputs: Callable[[str], Path]) -> None:
    """Only the modules and places that it lists are written."""
    found = tables(outputs("activations_of_targets"))
    once = ["layers.0.norm1.input", "layers.0.attention.input", "layers.0.attention.output", "layers.0.mlp.fc1.output"]
    both = ["final_norm.input", "final_norm.output"]
    assert [row["name"] for row in found["actv_0-0"] if row["micro_step"] == "1"] == once + both
    gradients = ["final_norm.output", "final_norm.input", "layers.0.mlp.fc1.output"]
    assert [row["name"] for row in found["actv_grad_0-0"] if row["micro_step"] == "0"] == gradients


def test_optimizer_state_of_the_example(outputs: Callable[[str], Path]) -> None:
    """Only parameters of the modules that it lists are written."""
    names = [row["name"] for row in tables(outputs("optimizer_state"))["exp_avg_1-1"]]
    assert {name.rpartition(".")[0] for name in names} == {
        *("embedding", "layers.0.attention.qkv", "layers.0.attention.projection", "layers.0.mlp.fc1", "output")
    }


def test_steps_per_file_of_the_example(outputs: Callable[[str], Path]) -> None:
    """All steps stand in one file."""
    assert {row["step"] for row in tables(outputs("steps_per_file"))["grad_reduced_0-4"]} == {"0", "1", "2"}


def test_api_example_leaves_no_file(outputs: Callable[[str], Path]) -> None:
    """It writes nothing at all."""
    assert not outputs("format_api").exists()


@pytest.mark.parametrize("name", ["alert_nan", "alert_spike", "everything"])
def test_alert_examples_find_a_nan(output_dir: Path, name: str) -> None:
    """Those that look for NaN find one in a weight at its step, and dump it; in a healthy run they find none."""
    healthy = train(CONFIGS / f"{name}.json")
    assert not [finding for finding in healthy.findings if finding.rule == "AnomalyNan"]
    spoilt = train(CONFIGS / f"{name}.yaml", spoil=True)
    bad = [finding for finding in spoilt.findings if finding.rule == "AnomalyNan"]
    assert bad
    assert {finding.step for finding in bad} == {STEPS - 1}
    assert (output_dir / "anomaly_detected" / "rank0" / "anomaly.json").exists()
