"""The rules that judge by default, in real training: each planted fault is named, and a healthy run is silent."""

from __future__ import annotations

from typing import Any

import pytest

from tests.pytorch.watching import watch
from tests.required import require

torch = require("torch")

from torch import nn  # noqa: E402 - only where torch is

STEPS, BROKEN_AT = 40, 20
OPS = ["norm", "min", "max", "mean", "zeros", "nans"]


def model_of() -> Any:
    """Three layers with ReLU between them."""
    torch.manual_seed(3)
    layers = [nn.Linear(8, 32), nn.ReLU(), nn.Linear(32, 32), nn.ReLU(), nn.Linear(32, 4)]
    return nn.Sequential(*layers)


def findings_of(break_model: Any = lambda model: None, forgotten: str = "") -> set[tuple[str, str, str, str, int]]:
    """Findings of a training that breaks at a step; ``forgotten`` is a parameter that the optimizer never got."""
    model = model_of()
    kept = [parameter for name, parameter in model.named_parameters() if name != forgotten]
    optimizer = torch.optim.Adam(kept, 1e-3)
    with watch(model, optimizer, format="api", ops=OPS) as monitor:
        for step in range(STEPS):
            if step == BROKEN_AT:
                break_model(model)
            inputs = torch.randn(16, 8)
            (model(inputs) - inputs[:, :4].sin()).square().mean().backward()
            optimizer.step()
            optimizer.zero_grad()
    assert monitor.faults == {}
    return {(f.rule.removeprefix("Anomaly"), f.signal, str(f.key.name), f.key.part, f.step) for f in monitor.findings}


def dead(model: Any) -> None:
    """No unit of the second layer ever exceeds 0 again."""
    with torch.no_grad():
        model[2].bias.fill_(-1e3)


def cut(model: Any) -> None:
    """The gradient ends behind the first ReLU; nothing shows in the forward."""
    model[1].register_forward_hook(lambda _, __, output: output.detach() + 0 * output)


def test_a_healthy_run_is_silent() -> None:
    """All rules that judge by default."""
    assert findings_of() == set()


def test_a_dead_layer_is_named_and_what_vanishes_before_it() -> None:
    """Its output is zero from step 20 on, reported at the fifth sample, and so are the gradients of all before it."""
    found = {each for each in findings_of(dead) if each[0] != "Spike"}  # of the bias itself
    at = BROKEN_AT + 4
    assert {each for each in found if each[0] == "Dead"} == {("Dead", "actv", "3", "output", at)}
    vanished = {name for rule, signal, name, _, step in found if rule == "Vanish" and signal == "grad_reduced"}
    assert vanished == {"0.weight", "0.bias", "2.weight", "2.bias", "4.weight"}
    assert {step for rule, _, _, _, step in found if rule == "Vanish"} == {at}


def test_a_gradient_that_is_cut_off_is_named() -> None:
    """The first layer's gradients are 0 from step 20 on, and no other's."""
    found = findings_of(cut)
    assert {rule for rule, *_ in found} == {"Vanish"}
    weights = {(name, step) for _, signal, name, _, step in found if signal == "grad_reduced"}
    assert weights == {("0.weight", BROKEN_AT + 4), ("0.bias", BROKEN_AT + 4)}


@pytest.mark.parametrize("forgotten", ["2.weight", "4.bias"])
def test_a_parameter_that_the_optimizer_never_got_is_named(forgotten: str) -> None:
    """It has a gradient and stands still: named at the fifth step, and nothing else is."""
    assert findings_of(forgotten=forgotten) == {("Frozen", "param_updated", forgotten, "", 4)}
