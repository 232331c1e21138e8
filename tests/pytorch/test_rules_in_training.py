"""The rules that judge by default, in real training: each planted fault is named, and a healthy run is silent."""

from __future__ import annotations

import math
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from probe.core.analysis.diagnosis.analyse import analyse
from probe.core.rules.evaluate import word
from probe.core.rules.skipped import IN_TRAINING
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


def half(monitored: Any, broken: dict[int, float]) -> Any:
    """The monitor of a training in float16 with a scaler that begins at too large a scale; in some steps a gradient is
    overwritten after the scaler has looked at it."""
    model = model_of()
    optimizer = torch.optim.AdamW(model.parameters(), 1e-3)
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**22, growth_interval=8)
    generator = torch.Generator().manual_seed(2)
    with monitored(model, optimizer) as monitor:
        for step in range(STEPS):
            inputs = torch.randn(16, 8, generator=generator)
            optimizer.zero_grad()
            with torch.autocast("cpu", torch.float16):
                loss = (model(inputs).float() - inputs[:, :4].sin()).square().mean()
            scaler.scale(loss).backward()
            scaler.unscale_(optimizer)
            if step in broken:
                model[2].weight.grad[0, 0] = broken[step]
            scaler.step(optimizer)
            scaler.update()
    assert scaler.get_scale() < 2.0**22
    return monitor


@pytest.mark.parametrize("formats", [["csv"], ["sqlite"], ["parquet"]])
def test_steps_that_a_scaler_skips_are_no_findings(formats: list[str]) -> None:
    """Neither while training runs nor by its files: the scale is halved, and growth is tried, again and again."""
    monitor = half(lambda *of: watch(*of, format=formats, ops=OPS), {})
    assert (monitor.findings, monitor.faults) == ([], {})
    assert analyse(Path(monitor.output_directory)).diagnosis is None


def test_a_true_nan_comes_first() -> None:
    """Once an update with it is applied, it is the first cause, live and by the files; skipped steps are none."""
    monitor = half(lambda *of: watch(*of, format="csv", ops=OPS), {BROKEN_AT: math.nan})
    first = monitor.findings[0]
    assert (first.signal, str(first.key.name), first.step) == ("grad_reduced", "2.weight", BROKEN_AT)
    diagnosis = analyse(Path(monitor.output_directory)).diagnosis
    assert diagnosis is not None
    assert (diagnosis.first.finding.signal, diagnosis.first.finding.step) == ("grad_reduced", BROKEN_AT)


def test_scaling_that_fails_again_and_again_is_found_where_it_began() -> None:
    """Activations leave the range of float16: after five skipped updates in a row, the first of them is the cause."""
    model = model_of()
    optimizer = torch.optim.AdamW(model.parameters(), 1e-3)
    scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)
    with watch(model, optimizer, format="csv", ops=OPS) as monitor:
        for step in range(STEPS):
            if step == BROKEN_AT:
                model[1].register_forward_hook(lambda _, __, output: output * 1e9)
            optimizer.zero_grad()
            with torch.autocast("cpu", torch.float16):
                loss = model(torch.randn(16, 8)).float().square().mean()
            scaler.scale(loss).backward()
            scaler.step(optimizer)
            scaler.update()
    assert monitor.findings[0].step == BROKEN_AT + IN_TRAINING - 1
    diagnosis = analyse(Path(monitor.output_directory)).diagnosis
    assert diagnosis is not None
    assert diagnosis.first.began == BROKEN_AT
    assert diagnosis.first.finding.signal == "actv"


def test_nothing_that_moves_is_named() -> None:
    """An optimizer of other parameters than those that train."""
    model = model_of()
    others = torch.nn.Parameter(torch.zeros(3))
    optimizer = torch.optim.SGD([{"params": [others], "lr": 0.1}])
    optimizer.add_param_group({"params": [*model.parameters()], "lr": 0.0})
    with watch(model, optimizer, format="api", ops=OPS) as monitor:
        for _ in range(8):
            model(torch.randn(16, 8)).square().mean().backward()
            optimizer.step()
    assert {(f.rule, f.step) for f in monitor.findings} == {("AnomalyFrozen", 4)}
    assert len(monitor.findings) == len([*model.parameters()])


@pytest.mark.parametrize(("factor", "kinds"), [(1e6, set()), (math.nan, {"NaN"})])
def test_of_an_interrupted_step_only_numbers_that_are_not_finite_are_judged(factor: float, kinds: set[str]) -> None:
    """Its gradients may lack a backward, as those of a discriminator after the generator's."""
    model = model_of()
    optimizer = torch.optim.Adam(model.parameters(), 1e-3)
    with suppress(KeyboardInterrupt), watch(model, optimizer, format="api", ops=OPS) as monitor:
        for step in range(STEPS):
            inputs = torch.randn(16, 8)
            error = (model(inputs) - inputs[:, :4].sin()).square().mean()
            (error * (factor if step == STEPS - 1 else 1)).backward()
            if step == STEPS - 1:
                raise KeyboardInterrupt
            optimizer.step()
            optimizer.zero_grad()
    assert {word(found.rule, found.op, found.value) for found in monitor.findings} == kinds
