"""The numbers of the sentinel, at every step, against what the loop itself has computed another way."""

from __future__ import annotations

import math
import threading
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.pytorch.runs import table
from tests.pytorch.sentinel_loops import LOOPS, STEPS, batches, net, update
from tests.required import require

torch = require("torch")

from probe.core.naming import APPLIED_NORM, BACKWARDS, GRADIENT_NORM, LOSS_ROOT  # noqa: E402
from probe.pytorch import TrainerMon, training_loop  # noqa: E402

SETTINGS: dict[str, Any] = {
    "format": "api",
    "alert": {"rules": []},
    "sentinel": {"enable": True},
    "step_interval": 1000,
}
Numbers = list[dict[str, float]]


@contextmanager
def recorded(models: Any, optimizers: Any) -> Iterator[Numbers]:
    """The numbers of the sentinel of each step, complete when the block has ended; nothing has failed."""
    numbers: Numbers = []
    monitor = TrainerMon(SETTINGS)
    monitor.set_monitor(models, 1, optimizers)
    monitor.on_run_step(lambda step: numbers.append({**step.values}))
    yield numbers
    assert monitor.flush()
    monitor.stop()
    assert monitor.faults == {}


def norm(parameters: Iterable[Any]) -> float:
    """The norm of the gradients that parameters hold, by NumPy."""
    squares = 0.0
    for parameter in parameters:
        if parameter.grad is not None:
            values = parameter.grad.detach().to_dense().resolve_conj()
            values = values if values.is_complex() else values.double()
            squares += float(np.sum(np.square(np.abs(values.numpy()))))
    return math.sqrt(squares)


def column(numbers: Numbers, name: str) -> list[float]:
    """The numbers of one name; NaN where there is none."""
    return [step.get(name, math.nan) for step in numbers]


def near(values: Iterable[float]) -> Any:
    return pytest.approx([*values], rel=1e-5, nan_ok=True)


def test_a_row_at_every_step_though_few_are_sampled(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The loss, the norm before the clip and the one after it, with rows of gradients in one of four steps."""
    monkeypatch.setenv("MONITOR_OUTPUT_DIR", str(tmp_path))
    model = net()
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    monitor = TrainerMon({"format": "csv", "wg_distribution": True, "sentinel": {"enable": True}, "step_interval": 4})
    monitor.set_monitor(model, 1, optimizer)
    truth = []
    for x in batches(steps=10):
        optimizer.zero_grad()
        loss = model(x).pow(2).mean()
        loss.backward()
        before = norm(model.parameters())
        torch.nn.utils.clip_grad_norm_(model.parameters(), 0.05)
        truth += [float(loss), 1.0, before, norm(model.parameters())]
        optimizer.step()
    monitor.stop()
    assert monitor.faults == {}
    (directory,) = (path for path in tmp_path.iterdir() if "-rank" in path.name)
    rows = [row for path in sorted(directory.glob("run_*.csv")) for row in table(path)]
    names = (LOSS_ROOT, BACKWARDS, GRADIENT_NORM, APPLIED_NORM)
    values = {(int(row["step"]), row["name"]): float(row["value"]) for row in rows if row["name"] in names}
    assert [values[step, name] for step in range(10) for name in names] == near(truth)
    assert len([*directory.glob("grad_reduced_*.csv")]) == 3


def test_micro_batches_and_a_clip_of_each_layer() -> None:
    """The sum of the losses; each gradient is measured before its own clip."""
    model = net()
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    losses, before, after = [], [], []
    with recorded(model, optimizer) as numbers:
        for x in batches():
            parts = [model(part).pow(2).mean() / 3 for part in x.chunk(3)]
            for part in parts:
                part.backward()
            losses.append(sum(float(part) for part in parts))
            before.append(norm(model.parameters()))
            for layer in (model[0], model[3]):
                torch.nn.utils.clip_grad_norm_(layer.parameters(), 0.01)
            after.append(norm(model.parameters()))
            update_only(optimizer)
    assert column(numbers, LOSS_ROOT) == near(losses)
    assert column(numbers, BACKWARDS) == [3.0] * STEPS
    assert column(numbers, GRADIENT_NORM) == near(before)
    assert column(numbers, APPLIED_NORM) == near(after)


def update_only(optimizer: Any) -> None:
    optimizer.step()
    optimizer.zero_grad(set_to_none=False)


def test_a_clip_after_each_micro_batch() -> None:
    """What is clipped and then added to is measured anew; all backwards count."""
    model = net()
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    before, after = [], []
    with recorded(model, optimizer) as numbers:
        for x in batches():
            for part in x.chunk(2):
                model(part).pow(2).mean().backward()
                last = norm(model.parameters())
                torch.nn.utils.clip_grad_norm_(model.parameters(), 0.01)
            before.append(last)
            after.append(norm(model.parameters()))
            optimizer.step()
            optimizer.zero_grad()
    assert column(numbers, BACKWARDS) == [2.0] * STEPS
    assert column(numbers, GRADIENT_NORM) == near(before)
    assert column(numbers, APPLIED_NORM) == near(after)


def test_the_two_halves_of_a_clip() -> None:
    """``get_total_norm`` and ``clip_grads_with_norm_``, also by keywords and from a generator; a norm that is computed
    once more after the clip changes nothing."""
    model = net()
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    before, after = [], []
    with recorded(model, optimizer) as numbers:
        for x in batches():
            optimizer.zero_grad()
            model(x).pow(2).mean().backward()
            before.append(norm(model.parameters()))
            gradients = [parameter.grad for parameter in model.parameters()]
            total = torch.nn.utils.get_total_norm(tensors=gradients)
            torch.nn.utils.clip_grads_with_norm_(parameters=model.parameters(), max_norm=0.01, total_norm=total)
            torch.nn.utils.get_total_norm(gradients)
            after.append(norm(model.parameters()))
            optimizer.step()
    assert after[0] < before[0] / 2
    assert column(numbers, GRADIENT_NORM) == near(before)
    assert column(numbers, APPLIED_NORM) == near(after)


def test_a_loss_under_a_scaler() -> None:
    """The loss without the scaler's factor; an overflow is Inf in the norm, and the update is skipped."""
    model = net().eval()
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)
    losses, before, after = [], [], []
    with recorded(model, optimizer) as numbers:
        for step, x in enumerate(batches()):
            optimizer.zero_grad()
            loss = model(x).pow(2).mean() * (1e37 if step == 1 else 1)
            scaler.scale(loss).backward()
            scaler.unscale_(optimizer)
            losses.append(float(loss) if step != 1 else math.inf)
            before.append(norm(model.parameters()))
            torch.nn.utils.clip_grad_norm_(model.parameters(), 0.1)
            after.append(norm(model.parameters()))
            scaler.step(optimizer)
            scaler.update()
    assert column(numbers, LOSS_ROOT) == near(losses)
    assert column(numbers, GRADIENT_NORM) == near(before)
    assert column(numbers, APPLIED_NORM)[2:] == near(after[2:])
    assert column(numbers, "skipped") == [0.0, 1.0, 0.0, 0.0]


def test_a_clip_before_unscaling() -> None:
    """Norms that still have the scaler's factor are not recorded as those of gradients: what is applied is."""
    model = net()
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)
    applied = []
    with recorded(model, optimizer) as numbers:
        for x in batches():
            optimizer.zero_grad()
            scaler.scale(model(x).pow(2).mean()).backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), 0.1)
            applied.append(norm(model.parameters()) / scaler.get_scale())
            scaler.step(optimizer)
            scaler.update()
    assert column(numbers, GRADIENT_NORM) == near(applied)
    assert column(numbers, APPLIED_NORM) == near(applied)


@pytest.mark.parametrize("factor", [math.nan, math.inf, -math.inf])
def test_a_loss_that_is_not_finite_is_recorded_as_it_is(factor: float) -> None:
    """NaN and Inf, one step later as ever."""
    model = net()
    optimizer = torch.optim.SGD(model.parameters(), 0.0)
    losses = []
    with recorded(model, optimizer) as numbers:
        for step, x in enumerate(batches()):
            loss = model(x).pow(2).mean() * (factor if step == 1 else 1.0)
            losses.append(float(loss))
            update(optimizer, loss)
    assert column(numbers, LOSS_ROOT) == near(losses)
    assert not math.isfinite(column(numbers, GRADIENT_NORM)[1])
    assert math.isfinite(column(numbers, GRADIENT_NORM)[0])


def test_a_closure_that_is_evaluated_several_times() -> None:
    """LBFGS: the first evaluation of each update."""
    model = net().eval()
    optimizer = torch.optim.LBFGS(model.parameters(), 0.1, max_iter=4, line_search_fn="strong_wolfe")
    firsts, norms = [], []
    with recorded(model, optimizer) as numbers:
        for x in batches():
            losses: list[float] = []

            def closure(x: Any = x, losses: list[float] = losses) -> Any:
                optimizer.zero_grad()
                loss = model(x).pow(2).mean()
                loss.backward()
                losses.append(float(loss))
                if len(losses) == 1:
                    norms.append(norm(model.parameters()))
                return loss

            optimizer.step(closure)
            assert len(losses) > 1
            firsts.append(losses[0])
    assert column(numbers, LOSS_ROOT) == near(firsts)
    assert column(numbers, BACKWARDS) == [1.0] * STEPS
    assert column(numbers, GRADIENT_NORM) == near(norms)


def test_two_optimizers_clipped_one_after_the_other() -> None:
    """Each has its own losses and norms; a gradient penalty is no loss of its own, nor what another's backward left
    behind."""
    generator, critic = torch.nn.Linear(8, 8), net(2)
    optimizers = [torch.optim.SGD(model.parameters(), 0.01) for model in (generator, critic)]
    truth: dict[str, list[float]] = {}
    with recorded([generator, critic], optimizers) as numbers:
        for x in batches():
            fake = generator(x.flip(0))
            mixed = (x + fake.detach()).requires_grad_()
            (slope,) = torch.autograd.grad(critic(mixed).sum(), mixed, create_graph=True)
            adverse = -critic(fake).mean()
            optimizers[0].zero_grad()
            adverse.backward()
            optimizers[1].zero_grad(set_to_none=False)
            loss = critic(fake.detach()).mean() - critic(x).mean() + (slope.norm(dim=1) - 1).pow(2).mean()
            loss.backward()
            for number, (model, own) in enumerate(((generator, adverse), (critic, loss))):
                end = f"/{number}" if number else ""
                truth.setdefault(LOSS_ROOT + end, []).append(float(own))
                truth.setdefault(GRADIENT_NORM + end, []).append(norm(model.parameters()))
                torch.nn.utils.clip_grad_norm_(model.parameters(), 0.01 * (number + 1))
                truth.setdefault(APPLIED_NORM + end, []).append(norm(model.parameters()))
                truth.setdefault(BACKWARDS + end, []).append(1.0)
            for optimizer in optimizers:
                optimizer.step()
    assert {name: column(numbers, name) for name in truth} == {name: near(values) for name, values in truth.items()}


def last_of_two(model: Any, optimizer: Any, x: Any) -> Iterator[Any]:
    """SAM: the second backward's gradient is applied."""
    model(x).pow(2).mean().backward()
    optimizer.zero_grad()
    yield model(x + 0.1).pow(2).mean()


def of_one_graph(model: Any, _: Any, x: Any) -> Iterator[Any]:
    """Two losses of a graph that is retained."""
    y = model(x)
    yield y.pow(2).mean()
    yield y.abs().mean()


def without_gradients_of_parameters(model: Any, _: Any, x: Any) -> Iterator[Any]:
    """A backward to the input alone."""
    x = x.requires_grad_()
    torch.autograd.grad(model(x).sum(), x)
    yield model(x).pow(2).mean()


@pytest.mark.parametrize("make", [last_of_two, of_one_graph, without_gradients_of_parameters])
def test_the_backwards_whose_gradients_are_applied(make: Callable[..., Iterator[Any]]) -> None:
    """Backwards whose gradients were cleared, or that reach no parameter, do not count; all others do."""
    model = net().eval()
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    losses, counts = [], []
    with recorded(model, optimizer) as numbers:
        for x in batches():
            optimizer.zero_grad()
            roots = []
            for root in make(model, optimizer, x):
                root.backward(retain_graph=True)
                roots.append(float(root))
            losses.append(sum(roots))
            counts.append(float(len(roots)))
            optimizer.step()
    assert column(numbers, LOSS_ROOT) == near(losses)
    assert column(numbers, BACKWARDS) == counts


def test_gradients_that_the_program_assigns() -> None:
    """``torch.autograd.grad`` of two tasks, and gradients that are made of both: the sum of both losses."""
    model = net().eval()
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    parameters = [*model.parameters()]
    losses, norms = [], []
    with recorded(model, optimizer) as numbers:
        for x in batches():
            y = model(x)
            roots = y[:, 0].pow(2).mean(), (y[:, 1] - 1).pow(2).mean()
            tasks = [torch.autograd.grad(root, parameters, retain_graph=True) for root in roots]
            for parameter, *gradients in zip(parameters, *tasks, strict=True):
                parameter.grad = gradients[0] - gradients[1]
            losses.append(float(sum(roots)))
            norms.append(norm(parameters))
            optimizer.step()
    assert column(numbers, LOSS_ROOT) == near(losses)
    assert column(numbers, BACKWARDS) == [2.0] * STEPS
    assert column(numbers, GRADIENT_NORM) == near(norms)


def test_updates_within_the_backward() -> None:
    """An optimizer a parameter, which updates in the backward itself: each has its loss and its norm."""
    model = net().eval()
    places = {parameter: number for number, parameter in enumerate(model.parameters())}
    optimizers = [torch.optim.SGD([parameter], 0.1) for parameter in places]
    norms: dict[int, list[float]] = {}

    def apply(parameter: Any) -> None:
        number = places[parameter]
        norms.setdefault(number, []).append(norm([parameter]))
        optimizers[number].step()
        optimizers[number].zero_grad()

    for parameter in model.parameters():
        parameter.register_post_accumulate_grad_hook(apply)
    losses = []
    with recorded(model, optimizers) as numbers:
        for x in batches():
            loss = model(x).pow(2).mean()
            losses.append(float(loss))
            loss.backward()
    for number, own in norms.items():
        end = f"/{number}" if number else ""
        assert column(numbers, LOSS_ROOT + end) == near(losses)
        assert column(numbers, BACKWARDS + end) == [1.0] * STEPS
        assert column(numbers, GRADIENT_NORM + end) == near(own)


@pytest.mark.parametrize("name", ["sparse", "complex_numbers", "in_bfloat16", "in_float64", "own_tensors"])
def test_norms_of_other_tensors(name: str) -> None:
    """Sparse, complex, of half precision, of double precision, of a class of the user's."""
    norms: list[float] = []
    numbers: Numbers = []
    monitor = TrainerMon(SETTINGS)

    def attach(model: Any, optimizer: Any) -> None:
        monitor.set_monitor(model, 1, optimizer)
        monitor.on_run_step(lambda step: numbers.append({**step.values}))
        optimizer.register_step_pre_hook(lambda *_: norms.append(norm(model.parameters())))

    LOOPS[name](attach)
    monitor.stop()
    assert monitor.faults == {}
    assert column(numbers, APPLIED_NORM) == pytest.approx(norms, rel=1e-3 if name == "in_bfloat16" else 1e-5)


def test_a_thread_leaves_the_gradients_of_another_training_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """Once both have made updates: the other thread may free a gradient while it is read."""
    read, updates, owners = training_loop.held, Counter[int](), dict[int, int]()
    readers: dict[int, set[int]] = {0: set(), 1: set()}
    monitors: list[TrainerMon] = []

    def held(parameters: Any) -> Any:
        model = owners.get(id(parameters[0])) if len(parameters) else None
        if model is not None and updates[model] > 1:
            readers[model].add(threading.get_ident())
        return read(parameters)

    def attach(model: Any, optimizer: Any) -> None:
        number = len(monitors)
        owners.update({id(parameter): number for parameter in model.parameters()})
        optimizer.register_step_post_hook(lambda *_: updates.update([number]))
        monitors.append(TrainerMon(SETTINGS))
        monitors[-1].set_monitor(model, 1, optimizer)

    monkeypatch.setattr(training_loop, "held", held)
    LOOPS["in_two_threads"](attach)
    for monitor in monitors:
        monitor.stop()
    assert [len(readers[0]), len(readers[1])] == [1, 1]
    assert readers[0].isdisjoint(readers[1])


def test_two_trainings_in_two_threads() -> None:
    """Backwards that overlap: each training has its own."""
    both: list[Numbers] = []
    monitors = []

    def attach(model: Any, optimizer: Any) -> None:
        numbers: Numbers = []
        both.append(numbers)
        monitor = TrainerMon(SETTINGS)
        monitor.set_monitor(model, 1, optimizer)
        monitor.on_run_step(lambda step: numbers.append({**step.values}))
        monitors.append(monitor)

    LOOPS["in_two_threads"](attach)
    for monitor in monitors:
        monitor.stop()
        assert monitor.faults == {}
    models = [net(0).eval(), net(3).eval()]
    for model, numbers in zip(models, both, strict=True):
        optimizer, losses = torch.optim.SGD(model.parameters(), 0.1), []
        for x in batches():
            loss = model(x).pow(2).mean()
            losses.append(float(loss))
            update(optimizer, loss)
        assert column(numbers, BACKWARDS) == [1.0] * STEPS
        assert column(numbers, LOSS_ROOT) == near(losses)
