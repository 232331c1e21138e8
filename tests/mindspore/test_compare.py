"""``probe compare`` on real runs: the small GPT of both frameworks, and of one weight changed."""

from __future__ import annotations

from pathlib import Path

import pytest

from probe.core.analysis.compare.compare import compare
from probe.core.analysis.compare.pairing import Options
from tests.mindspore import test_same_gpt as gpt
from tests.required import require

torch = require("torch")
require("mindspore")
require("duckdb")

CHANGED = "layers.1.mlp.fc1"


def off_by_a_hundredth(made: type, *args: object) -> object:
    """A model with one weight a hundredth larger."""
    model = made(*args)
    with torch.no_grad():
        model.get_submodule(CHANGED).weight.mul_(1.01)
    return model


@pytest.fixture(scope="module")
def runs(same_gpt: Path) -> Path:
    """``pytorch``, ``again``, ``mindspore``, and ``changed``, which is PyTorch's with one weight changed."""
    made = gpt.PytorchGpt
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("MONITOR_OUTPUT_DIR", str(same_gpt / "again"))
        gpt.train_on_pytorch()
        patch.setattr(gpt, "PytorchGpt", lambda *args: off_by_a_hundredth(made, *args))
        patch.setenv("MONITOR_OUTPUT_DIR", str(same_gpt / "changed"))
        gpt.train_on_pytorch()
    return same_gpt


def test_a_run_repeated_is_equal(runs: Path) -> None:
    """Digit for digit."""
    found = compare(runs / "pytorch", runs / "again", Options(relative=0.0))
    assert found.agrees
    assert found.rows > 1000


def test_the_frameworks_are_the_same(runs: Path) -> None:
    """Within a tenth of the tolerance, with the names that each framework gives to norms and embeddings."""
    for a, b in (("pytorch", "mindspore"), ("mindspore", "pytorch")):
        found = compare(runs / a, runs / b)
        assert found.agrees, found.first
        assert found.by_framework == found.renamed == 2 * 5 + 2  # gamma and beta of five norms, two embeddings
        assert max(largest for *_, largest in found.counts) < found.tolerance / 10


@pytest.mark.parametrize("reference", ["pytorch", "mindspore"])
def test_a_changed_weight_is_the_first_difference(runs: Path, reference: str) -> None:
    """In the table of weights, then in the forward, where the first to differ is its module's output."""
    found = compare(runs / reference, runs / "changed", most=200)
    first = found.first[0]
    assert (first.signal, first.name, first.step) == ("param_origin", f"{CHANGED}.weight", 0)
    assert next(n.difference for n in first.numbers if n.op == "norm") == pytest.approx(1 - 1 / 1.01, rel=1e-3)
    forward = next(row for row in found.first if row.signal == "actv")
    assert (forward.name, forward.step, forward.micro_step) == (f"{CHANGED}.output", 0, 0)
