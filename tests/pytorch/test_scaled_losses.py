"""Several loss scales in one program: each row has the scale of its own graph."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from tests.pytorch.toys import TinyNet, X
from tests.pytorch.watching import read, watch
from tests.required import require

torch = require("torch")

from probe.pytorch import scaled_graphs  # noqa: E402

SCALES = (16.0, 1024.0, 4.0)
Losses = list[Any]
WAYS: dict[str, Callable[[list[Any], Losses], Any]] = {
    "scaled before the backwards": lambda scalers, losses: [
        scaled.backward() for scaled in [scaler.scale(loss) for scaler, loss in zip(scalers, losses, strict=True)]
    ],
    "one after the other": lambda scalers, losses: [
        scaler.scale(loss).backward() for scaler, loss in zip(scalers, losses, strict=True)
    ],
    "backwards in the other order": lambda scalers, losses: [
        scaled.backward() for scaled in [s.scale(x) for s, x in zip(scalers, losses, strict=True)][::-1]
    ],
    "one backward of the sum": lambda scalers, losses: sum(
        scaler.scale(loss) for scaler, loss in zip(scalers, losses, strict=True)
    ).backward(),
    "checkpointed": lambda scalers, losses: [
        scaler.scale(torch.utils.checkpoint.checkpoint(lambda loss: loss * 1.0, loss, use_reentrant=True)).backward()
        for scaler, loss in zip(scalers, losses, strict=True)
    ],
}


def gradients(model: Any, of: Callable[[Any], Any]) -> dict[str, float]:
    """The norms of the gradients of the loss ``of`` the model, without a monitor."""
    found = torch.autograd.grad(of(model), [*model.parameters()])
    return {name: float(g.norm()) for (name, _), g in zip(model.named_parameters(), found, strict=True)}


@pytest.mark.parametrize("unscales", [False, True], ids=["", "unscaled before the step"])
@pytest.mark.parametrize("way", WAYS)
def test_each_model_has_the_scale_of_its_own_scaler(way: str, unscales: bool) -> None:
    """Three models with a scaler each, in the first steps: gradients before and after reduction are unscaled."""
    models = [TinyNet() for _ in SCALES]
    optimizers = [torch.optim.SGD(model.parameters(), lr=0.0) for model in models]
    scalers = [torch.amp.GradScaler("cpu", init_scale=scale) for scale in SCALES]
    truth = [gradients(model, lambda model: model(X).square().sum()) for model in models]
    monitor = watch(dict(zip("abc", models, strict=True)), optimizers, mv_distribution=False)
    for _ in range(2):
        WAYS[way](scalers, [model(X).square().sum() for model in models])
        for scaler, optimizer in zip(scalers, optimizers, strict=True):
            if unscales:
                scaler.unscale_(optimizer)
            scaler.step(optimizer)
            scaler.update()
            optimizer.zero_grad()
    monitor.stop()
    assert monitor.faults == {}
    rows = read(monitor.output_directory)
    for signal in ("grad_unreduced", "grad_reduced"):
        got = {(row.step, row.name): values["norm"] for row, values in rows.items() if row.signal == signal}
        expected = {
            (step, f"{letter}.{name}"): norm
            for step in range(2)
            for letter, named in zip("abc", truth, strict=True)
            for name, norm in named.items()
        }
        assert got == pytest.approx(expected, rel=1e-4), signal
    outputs = {row: values["norm"] for row, values in rows.items() if row.signal == "actv_grad"}
    relus = {row.name[0]: norm for row, norm in outputs.items() if row.name.endswith("relu.output") and not row.step}
    assert relus == pytest.approx(dict.fromkeys("abc", relus["a"]), rel=1e-4), "a module without parameters"


def test_an_unscaled_loss_beside_a_scaled_one_has_no_scale() -> None:
    """The backward of an auxiliary loss that no scaler has multiplied is recorded as it is."""
    model = TinyNet()
    optimizer, scaler = torch.optim.SGD(model.parameters(), lr=0.0), torch.amp.GradScaler("cpu", init_scale=64.0)
    truth = gradients(model, lambda model: model(X).square().sum())
    monitor = watch(model, optimizer, mv_distribution=False, monitor_mbs_grad=True)
    scaled, plain = scaler.scale(model(X).square().sum()), model(X).square().sum()
    plain.backward()
    scaled.backward()
    scaler.step(optimizer)
    scaler.update()
    monitor.stop()
    rows = read(monitor.output_directory)
    norms = [
        values["norm"] for row, values in rows.items() if (row.signal, row.name) == ("grad_unreduced", "fc.weight")
    ]
    assert norms == pytest.approx([truth["fc.weight"]] * 2, rel=1e-4)


def test_a_gradient_that_autograd_grad_returns_is_no_micro_batch() -> None:
    """With a gradient penalty, a parameter has the row of the backward that its optimizer receives, and no other."""
    model = TinyNet()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
    monitor = watch(model, optimizer, mv_distribution=False, monitor_mbs_grad=True)
    loss = model(X).square().sum()
    inner = torch.autograd.grad(loss, [*model.parameters()], create_graph=True)
    (loss + 0.1 * sum(g.square().sum() for g in inner)).backward()
    truth = {name: float(parameter.grad.norm()) for name, parameter in model.named_parameters()}
    optimizer.step()
    monitor.stop()
    rows = {
        row: values["norm"] for row, values in read(monitor.output_directory).items() if row.signal == "grad_unreduced"
    }
    assert {row.name: norm for row, norm in rows.items()} == pytest.approx(truth, rel=1e-4)
    assert len(rows) == len(truth)


def test_a_backward_that_failed_is_forgotten_with_the_run() -> None:
    """The stack is not searched at every gradient for a backward that has no end."""
    model, scaler = TinyNet(), torch.amp.GradScaler("cpu", init_scale=16.0)
    monitor = watch(model, torch.optim.SGD(model.parameters(), lr=0.0))
    loss = model(X)
    loss.register_hook(lambda _: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        scaler.scale(loss.square().sum()).backward()
    assert scaled_graphs.BACKWARDS
    monitor.stop()
    assert not scaled_graphs.BACKWARDS
