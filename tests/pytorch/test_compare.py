"""``probe compare`` on one training run in two precisions."""

from __future__ import annotations

from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest

from probe.core.analysis.compare.compare import compare
from probe.core.analysis.compare.pairing import Options
from probe.demo.recipe import Size, batches
from tests.required import require

torch = require("torch")
require("duckdb")

from probe.demo.pytorch.training import Gpt  # noqa: E402
from probe.pytorch import TrainerMon  # noqa: E402

SIZE = Size(layers=2, width=32, heads=4, context=16)
SEED, STEPS = 5, 4
EVERYTHING = {
    "wg_distribution": True,
    "param_distribution": True,
    "mv_distribution": True,
    "xy_distribution": True,
    "all_xy": True,
    "ops": ["norm", "min", "max", "mean", "zeros", "std"],
    "squash_name": False,
}


def train(root: Path, precision: Any) -> Path:
    """A few steps of the small GPT."""
    model = Gpt(SIZE, SEED)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    with pytest.MonkeyPatch.context() as patch, TrainerMon(EVERYTHING, params_have_main_grad=False) as monitor:
        patch.setenv("MONITOR_OUTPUT_DIR", str(root))
        monitor.set_monitor(model, 1, optimizer)
        for tokens, targets in batches(STEPS, SIZE.context, SEED):
            with precision:
                logits = model(torch.from_numpy(tokens)).flatten(0, 1)
            torch.nn.functional.cross_entropy(logits.float(), torch.from_numpy(targets).flatten()).backward()
            optimizer.step()
            optimizer.zero_grad()
    assert monitor.faults == {}
    return root


def test_bfloat16_is_the_same_as_float32(tmp_path: Path) -> None:
    """Automatic mixed precision is within its tolerance, by far not within that of float32, and the result names its
    dtype."""
    single = train(tmp_path / "float32", nullcontext())
    mixed = train(tmp_path / "bfloat16", torch.autocast("cpu", torch.bfloat16))
    found = compare(single, mixed)
    assert found.agrees, found.first
    assert found.dtype == "bfloat16"
    strict = compare(single, mixed, Options(relative=1e-3))
    assert (strict.first[0].step, strict.first[0].signal) == (0, "actv")
    assert strict.first[0].name == "layers.0.attention.qkv.output"  # the first matrix product
