"""The demonstration on MindSpore: it trains what PyTorch's trains, breaks it alike, and names what was broken."""

from __future__ import annotations

import re
import subprocess
import sys

import numpy as np
import pytest
from typer.testing import CliRunner

from probe.cli import app
from probe.demo import recipe
from probe.demo.faults import KINDS, Fault, Injection, draw
from probe.demo.recipe import Size
from tests.required import require

mindspore = require("mindspore")

from probe.demo.mindspore import begin, inject, places  # noqa: E402
from probe.demo.mindspore.model import Gpt  # noqa: E402

STEPS = 24
SMALL = Size(layers=1, width=8, heads=2, context=8)
TOKENS = mindspore.tensor(np.arange(16).reshape(2, 8), mindspore.int32)


@pytest.fixture
def demo(tmp_path, monkeypatch):
    """Runs ``probe demo --framework mindspore`` with few steps on small batches; gives the result."""
    monkeypatch.setattr(recipe, "BATCH", 2)

    def run(*arguments):
        common = ["--framework", "mindspore", "--steps", str(STEPS), "--output", str(tmp_path)]
        return CliRunner().invoke(app, ["demo", *common, *arguments], catch_exceptions=False)

    return run


@pytest.mark.parametrize("kind", KINDS)
def test_the_broken_layer_and_step_are_named(demo, kind):
    """The table's two columns agree, and the command succeeds."""
    result = demo("--seed", "1", "--fault", kind)
    assert result.exit_code == 0, result.output
    layer, broken = re.search(r"│ layer +│ (\S+) +│ (\S+) +│", result.output).groups()
    assert broken.startswith(layer)
    assert re.search(r"step +│ 20 +│ 20 ", result.output)
    assert "match: the layer and step" in result.output


def test_a_healthy_run_has_no_finding(demo):
    """Nothing is broken, nothing is found, the command succeeds."""
    result = demo("--seed", "2", "--fault", "none")
    assert result.exit_code == 0, result.output
    assert "nothing was broken and nothing was found" in result.output


def test_a_missing_mindspore_is_named_with_its_remedy():
    """Without MindSpore the command ends with 2 and says how to install it; PyTorch is not asked for."""
    code = "import sys; sys.modules.update(mindspore=None, torch=None); from probe.cli import main; main()"
    command = [sys.executable, "-c", code, "demo", "--framework", "mindspore"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert "pip install mindspore" in done.stderr


def test_both_frameworks_train_the_same(monkeypatch):
    """One seed gives equal losses, and the same faults at the same places, on PyTorch and on MindSpore."""
    require("torch")
    from probe.demo import pytorch

    monkeypatch.setattr(recipe, "BATCH", 2)
    ours, theirs = begin(3), pytorch.begin(3)
    data = list(recipe.batches(4, 3))
    assert [ours.step(*each) for each in data] == pytest.approx([theirs.step(*each) for each in data], rel=1e-5)
    here, there = places(ours.model), pytorch.places(theirs.model)
    assert here.computing == there.computing
    assert here.weighted == there.weighted
    assert list(here.parameters.values()) == list(there.parameters.values())
    assert [draw("overflow", here, (20, 60), n) for n in range(9)] == [
        draw("overflow", there, (20, 60), n) for n in range(9)
    ]


def gradients(model):
    """Of the sum of the squared outputs, by parameter."""
    parameters = model.trainable_params()
    found = mindspore.grad(lambda tokens: model(tokens).square().sum(), None, parameters)(TOKENS)
    return {held.name: each.asnumpy() for held, each in zip(parameters, found, strict=True)}


def test_an_amplified_gradient_begins_at_its_module():
    """Only the module's own gradients and those before it grow, and only when the fault strikes; outputs stay."""
    model = Gpt(SMALL)
    healthy, output = gradients(model), model(TOKENS).asnumpy()
    fault = Fault(Injection("gradient", "final_norm", 5, "", strength=1e4))
    inject(model, fault)
    fault.step = 4
    for name, values in gradients(model).items():
        np.testing.assert_array_equal(values, healthy[name])
    fault.step = 5
    np.testing.assert_array_equal(model(TOKENS).asnumpy(), output)
    for name, values in gradients(model).items():
        factor = 1.0 if name.startswith("output") else 1e4
        np.testing.assert_allclose(values, healthy[name] * factor, rtol=1e-4, atol=factor * 1e-7)


def test_an_overflow_begins_at_its_module():
    """The module gives infinity, though what it got was right."""
    model = Gpt(SMALL)
    fault = Fault(Injection("overflow", "layers.0.mlp.fc1", 5, "", strength=3e38))
    inject(model, fault)
    fault.step = 5
    broken = model.layers[0].mlp.fc1
    assert np.isinf(broken(mindspore.ops.ones((1, 8)) * 1e3).asnumpy()).any()
    assert np.isnan(model(TOKENS).asnumpy()).any()


def test_a_nan_is_in_the_weight_before_it_is_used():
    """One element of the parameter, from its own step on."""
    model = Gpt(SMALL)
    fault = Fault(Injection("nan", "output.weight", 5, "", element=9))
    inject(model, fault)
    for step, nans in ((4, 0), (5, 1), (6, 1)):
        fault.step = step
        gradients(model)
        assert np.isnan(model.output.weight.asnumpy()).sum() == nans
    assert np.isnan(model.output.weight.asnumpy().flat[9])
    assert np.isnan(model(TOKENS).asnumpy()).any()
