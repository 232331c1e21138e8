"""Findings of the checks in loops that real programs have: faults are found, and habits that resemble them are not."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.required import require

torch = require("torch")

from probe.pytorch import TrainerMon  # noqa: E402

Found = list[tuple[str, int, tuple[str, ...]]]
Loop = Callable[[Any, Any], None]
SETTINGS: dict[str, Any] = {
    "format": "csv",
    "alert": {"rules": []},
    "sentinel": {"enable": True},
    "step_interval": 1000,
}
STEPS, ONSET = 40, 20


@pytest.fixture
def found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Found]:
    """A function that runs a loop and returns check, step and places of what is more than a note."""
    monkeypatch.setenv("MONITOR_OUTPUT_DIR", str(tmp_path))

    def run(
        loop: Loop, model: Any = None, of: Callable[[Any], Any] | None = None, make: Any = torch.optim.Adam
    ) -> Found:
        torch.manual_seed(0)
        model = net() if model is None else model
        optimizer = make(model.parameters() if of is None else of(model), 1e-3)
        monitor = TrainerMon(SETTINGS)
        monitor.set_monitor(model, 1, optimizer)
        loop(model, optimizer)
        monitor.stop()
        assert monitor.faults == {}
        lines = [json.loads(line) for path in tmp_path.glob("*/checks.jsonl") for line in path.read_text().splitlines()]
        return [(line["check"], line["step"], tuple(line["where"])) for line in lines if line["grade"] != "note"]

    return run


def net() -> Any:
    """Two layers and a head."""
    layers = [torch.nn.Linear(8, 16), torch.nn.Tanh(), torch.nn.Linear(16, 16), torch.nn.Tanh(), torch.nn.Linear(16, 4)]
    return torch.nn.Sequential(*layers)


def losses(model: Any, steps: int = STEPS) -> Iterator[tuple[int, Any]]:
    """A loss a step."""
    for step in range(steps):
        x = torch.randn(16, 8)
        yield step, torch.nn.functional.cross_entropy(model(x), x[:, :4].argmax(1))


def kinds(rows: Found) -> set[str]:
    """The checks that found something."""
    return {check for check, _, _ in rows}


def cleared_past_the_framework(model: Any, optimizer: Any) -> None:
    for _, loss in losses(model):
        for parameter in model.parameters():
            if parameter.grad is not None:
                parameter.grad.data.zero_()
        loss.backward()
        optimizer.step()


def clamped_now_and_then(model: Any, optimizer: Any) -> None:
    for step, loss in losses(model):
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if step % 15 == 14:
            model[2].weight.data.clamp_(-0.1, 0.1)
            model[2].weight.data[3] = torch.randn(16) / 10


def measured_after_the_update(model: Any, optimizer: Any) -> None:
    for _, loss in losses(model):
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        torch.nn.utils.clip_grad_norm_(model.parameters(), float("inf"))


@pytest.mark.parametrize("loop", [cleared_past_the_framework, clamped_now_and_then, measured_after_the_update])
def test_habits_that_resemble_faults_are_none(loop: Loop, found: Callable[..., Found]) -> None:
    """Gradients that are cleared, and weights that are written, past the framework; norms that are only measured."""
    assert found(loop) == []


class Backtracking(torch.optim.Optimizer):  # type: ignore[misc]
    """Gradient descent by a third of the rate until the loss is less, and back to the beginning if it is not."""

    def __init__(self, parameters: Any, lr: float) -> None:
        super().__init__(parameters, {"lr": lr})

    def step(self, closure: Callable[[], Any]) -> Any:  # type: ignore[override]
        loss, (group,) = closure(), self.param_groups
        begin = [(parameter, parameter.detach().clone(), parameter.grad.clone()) for parameter in group["params"]]
        for part in range(4):
            with torch.no_grad():
                for parameter, value, gradient in begin:
                    parameter.copy_(value - group["lr"] / 3**part * gradient)
            if closure() < loss:
                return loss
        with torch.no_grad():
            for parameter, value, _ in begin:
                parameter.copy_(value)
        return loss


def searched(model: Any, optimizer: Any) -> None:
    x = torch.randn(16, 8)
    for step in range(STEPS):
        optimizer.param_groups[0]["lr"] = 0.1 if step < ONSET else 1e5

        def closure() -> Any:
            optimizer.zero_grad()
            loss = torch.nn.functional.cross_entropy(model(x), x[:, :4].argmax(1))
            loss.backward()
            return loss

        optimizer.step(closure)


def test_a_search_that_ends_is_none(found: Callable[..., Found]) -> None:
    """A line search finds nothing better from some step on, at a gradient as before, and moves nothing."""
    assert found(searched, make=Backtracking) == []


def test_gradients_of_masters_are_new_though_they_seem_untouched(found: Callable[..., Found]) -> None:
    """The gradients of copies in single precision are filled through ``grad.data``, in objects that stay."""
    working = net()

    def loop(masters: Any, optimizer: Any) -> None:
        for parameter in masters.parameters():
            parameter.grad = torch.empty_like(parameter)
        for _, loss in losses(working):
            working.zero_grad()
            loss.backward()
            for master, parameter in zip(masters.parameters(), working.parameters(), strict=True):
                master.grad.data.copy_(parameter.grad.data)
            optimizer.step()
            for master, parameter in zip(masters.parameters(), working.parameters(), strict=True):
                parameter.data.copy_(master.data)

    assert found(loop) == []


def test_a_head_that_is_exchanged_between_sampled_steps_is_found_at_once(found: Callable[..., Found]) -> None:
    """The optimizer holds the old one, whose gradients are missing."""

    def loop(model: Any, optimizer: Any) -> None:
        for step, loss in losses(model):
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            if step == ONSET - 1:
                model[4] = torch.nn.Linear(16, 4)

    assert ("parameters-replaced", ONSET, ("4",)) in found(loop)


def test_a_tie_that_breaks_between_sampled_steps_is_found_soon(found: Callable[..., Found]) -> None:
    """All parameters of the optimizer still have gradients; the search of each fourth update finds the copy."""
    model = net()
    model[2].weight = model[0].weight = torch.nn.Parameter(torch.randn(16, 16) / 4)

    def inputs(step: int, optimizer: Any) -> None:
        optimizer.zero_grad()
        x = torch.randn(16, 16)
        torch.nn.functional.cross_entropy(model(x), x[:, :4].argmax(1)).backward()
        optimizer.step()
        if step == ONSET - 1:
            model[2].weight = torch.nn.Parameter(model[2].weight.detach().clone())

    def loop(_: Any, optimizer: Any) -> None:
        for step in range(STEPS):
            inputs(step, optimizer)

    (step,) = [step for check, step, _ in found(loop, model) if check == "tie-broken"]
    assert ONSET <= step <= ONSET + 10


def test_parameters_replaced_before_training_are_found(found: Callable[..., Found]) -> None:
    """A head made anew after the optimizer was made with the old one."""

    def old_head(model: Any) -> list[Any]:
        parameters = [*model.parameters()]
        model[4] = torch.nn.Linear(16, 4)
        return parameters

    def loop(model: Any, optimizer: Any) -> None:
        for _, loss in losses(model):
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()

    assert ("parameters-replaced", 2, ("4",)) in found(loop, of=old_head)


@pytest.mark.parametrize("number", [50.0, 1e30, 1e-20])
def test_a_number_that_nothing_has_written_is_found(number: float, found: Callable[..., Found]) -> None:
    """As a flipped bit makes it: the one parameter is named, also if its moments overflow."""

    def loop(model: Any, optimizer: Any) -> None:
        for step, loss in losses(model):
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            if step == ONSET - 1:
                model[2].weight.data[3, 3] = number

    assert ("written-between-updates", ONSET, ("2.weight",)) in found(loop)


def test_gradients_cleared_to_zero_before_the_update_are_found(found: Callable[..., Found]) -> None:
    """The call to clear stands between the backward and the step."""

    def loop(model: Any, optimizer: Any) -> None:
        for _, loss in losses(model):
            loss.backward()
            optimizer.zero_grad(set_to_none=False)
            optimizer.step()

    assert kinds(found(loop)) == {"nothing-to-apply"}


def test_clipping_after_the_update_is_found(found: Callable[..., Found]) -> None:
    """It has no effect, since the gradients were applied as they were."""

    def loop(model: Any, optimizer: Any) -> None:
        for _, loss in losses(model):
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            torch.nn.utils.clip_grad_norm_(model.parameters(), 0.01)

    assert found(loop) == [("clip-after-update", 3, ())]


class Parts(torch.nn.Module):  # type: ignore[misc]
    """Two parts with dropout and batch statistics, and a head."""

    def __init__(self) -> None:
        super().__init__()
        nn = torch.nn
        self.one, self.two = (
            nn.Sequential(nn.Linear(8, 8), nn.BatchNorm1d(8), nn.Dropout(0.1), nn.Tanh()) for _ in range(2)
        )
        self.head = nn.Linear(8, 4)

    def forward(self, x: Any) -> Any:
        return self.head(self.two(self.one(x)))


@pytest.mark.parametrize("habit", ["left", "frozen", "norms", "from the beginning"])
def test_a_part_that_is_left_in_evaluation_mode_is_found(habit: str, found: Callable[..., Found]) -> None:
    """Unless it is frozen with it, its normalisation alone rests, or it has always been so."""
    model = Parts()
    onset = 0 if habit == "from the beginning" else ONSET

    def loop(model: Any, optimizer: Any) -> None:
        for step, loss in losses(model):
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            if step == onset - 1:
                (model.one[1] if habit == "norms" else model.one).eval()
                model.one.requires_grad_(habit != "frozen")

    if not onset:
        model.one.eval()
    assert found(loop, model) == ([("root-not-trained", ONSET + 2, ("one",))] if habit == "left" else [])


@pytest.mark.parametrize(
    ("kind", "every", "restored", "expected"),
    [
        (torch.optim.Adam, 1, False, [("optimizer-remade", 3)]),
        (torch.optim.Adam, 2, False, [("optimizer-remade", 6)]),
        (torch.optim.Adam, 20, False, [("state-restarted", 20)]),
        (torch.optim.SGD, 1, False, []),
        (torch.optim.Adam, 1, True, []),
    ],
)
def test_an_optimizer_that_is_made_anew(
    found: Callable[..., Found], kind: Any, every: int, restored: bool, expected: list[tuple[str, int]]
) -> None:
    """Found for each update or two, later by its state, which begins again; not if it keeps nothing, nor where the
    program puts the weights back, as inner loops do."""

    def loop(model: Any, optimizer: Any) -> None:
        weights = {name: value.clone() for name, value in model.state_dict().items()}
        for step, loss in losses(model):
            if step and step % every == 0:
                optimizer = kind(model.parameters(), 1e-3)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            if restored:
                model.load_state_dict(weights)

    assert [(check, step) for check, step, _ in found(loop, make=kind)] == expected
