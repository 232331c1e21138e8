"""The demonstration on MindSpore: it trains what PyTorch's trains, breaks it alike, and names what was broken."""

from __future__ import annotations

import re
import subprocess
import sys
from functools import partial

import numpy as np
import pytest
from typer.testing import CliRunner

from probe.cli import app
from probe.demo import recipe, training
from probe.demo.diagnosis import name_first_bad
from probe.demo.faults import KINDS, Fault, Injection, draw
from probe.demo.recipe import Size
from probe.demo.report import matches
from probe.demo.training import DemoPlan, run
from tests.required import require

mindspore = require("mindspore")

from probe.demo.mindspore import begin, inject, places  # noqa: E402
from probe.demo.mindspore.training import Gpt  # noqa: E402

STEPS = 24
SMALL = Size(layers=2, width=48, heads=2, context=16)
SHALLOW = SMALL._replace(layers=1)
TOKENS = mindspore.tensor(np.arange(16).reshape(2, 8), mindspore.int32)


@pytest.fixture(autouse=True)
def small_batches(monkeypatch):
    """Four sequences each."""
    monkeypatch.setattr(recipe, "BATCH", 4)


def train(kind, tmp_path):
    """A short run of a small model, and what the monitor names."""
    outcome = run(DemoPlan("mindspore", 1, kind, STEPS, tmp_path, ["csv"], SHALLOW), lambda _: None)
    assert outcome.faults == {}
    return outcome.injection, name_first_bad(outcome.findings), min(finding.step for finding in outcome.findings)


@pytest.mark.parametrize("kind", sorted(set(KINDS) - {"nan"}))  # which the command's own test breaks
def test_the_broken_layer_and_step_are_named(kind, tmp_path):
    """Whatever is broken, the monitor names the place and the step; in the healthy steps before nothing is found."""
    injection, diagnosis, first = train(kind, tmp_path)
    assert (injection.kind, injection.step) == (kind, 20)
    assert first >= 20
    assert matches(injection, diagnosis), f"broken {injection}, named {diagnosis}"


def test_the_command_shows_it(tmp_path, monkeypatch):
    """``probe demo --framework mindspore`` succeeds; the table's two columns agree."""
    monkeypatch.setattr(training, "DemoPlan", partial(DemoPlan, size=SHALLOW))
    options = ["--framework", "mindspore", "--steps", str(STEPS), "--output", str(tmp_path)]
    result = CliRunner().invoke(app, ["demo", *options, "--seed", "1", "--fault", "nan"], catch_exceptions=False)
    assert result.exit_code == 0, result.output
    layer, broken = re.search(r"│ layer +│ (\S+) +│ (\S+) +│", result.output).groups()
    assert broken.startswith(layer)
    assert re.search(r"step +│ 20 +│ 20 ", result.output)
    assert "match: the layer and step" in result.output


def test_a_missing_mindspore_is_named_with_its_remedy():
    """Without MindSpore the command ends with 2 and prints how to install it; PyTorch is not needed."""
    code = "import sys; sys.modules.update(mindspore=None, torch=None); from probe.cli import main; main()"
    command = [sys.executable, "-c", code, "demo", "--framework", "mindspore"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert "pip install mindspore" in done.stderr


def test_both_frameworks_train_the_same():
    """One seed gives equal losses, and the same faults at the same places, on PyTorch and on MindSpore."""
    require("torch")
    from probe.demo import pytorch

    ours, theirs = begin(SMALL, 3), pytorch.begin(SMALL, 3)
    data = list(recipe.batches(8, SMALL.context, 3))
    losses, same = ([training.step(*each, lambda **_: None) for each in data] for training in (ours, theirs))
    assert losses == pytest.approx(same, rel=1e-5)
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
        np.testing.assert_allclose(values, healthy[name] * factor, rtol=1e-3, atol=factor * 1e-4)


def test_an_overflow_begins_at_its_module():
    """The module returns infinity, although its input was right."""
    model = Gpt(SMALL)
    healthy = model(TOKENS).asnumpy()
    fault = Fault(Injection("overflow", "layers.0.mlp.fc1", 5, "", strength=3e38))
    inject(model, fault)
    fault.step = 5
    broken = model.layers[0].mlp.fc1
    assert np.isinf(broken(mindspore.ops.ones((1, SMALL.width)) * 1e3).asnumpy()).any()
    assert (model(TOKENS).asnumpy() != healthy).any()


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
