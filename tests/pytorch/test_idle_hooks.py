"""Hooks between sampled steps: taken out where several steps in a row are not sampled, and put back where they were."""

from __future__ import annotations

import copy
import io
import sys
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from tests.pytorch.toys import TinyNet, X
from tests.pytorch.watching import Row, rows_of, watch
from tests.required import require

torch = require("torch")

INTERVAL, STEPS = 4, 9


@pytest.fixture(autouse=True)
def _nothing_compiled(monkeypatch: pytest.MonkeyPatch) -> None:
    """Other tests of this process may have compiled something, after which hooks stay."""
    import torch._dynamo.convert_frame as compiler

    monkeypatch.setattr(compiler, "FRAME_COUNTER", 0)


def hooked(model: Any) -> list[int]:
    """The number of hooks of each kind on a module and a parameter of the model."""
    layer = next(module for module in model.modules() if isinstance(module, torch.nn.Linear))
    places = (layer._forward_pre_hooks, layer._forward_hooks, layer.weight._post_accumulate_grad_hooks)
    return [len(hooks or ()) for hooks in places]


def train(
    interval: int = INTERVAL, each: Callable[[int, Any], None] = lambda step, model: None
) -> tuple[list[list[int]], dict[Row, Any], Any]:
    """A training with ``each`` before each step: the hooks in each step, the rows of sampled ones, the model."""
    torch.manual_seed(0)
    model = TinyNet()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.001)
    monitor = watch(model, optimizer, step_interval=interval)
    seen = []
    for step in range(STEPS):
        each(step, model)
        seen.append(hooked(model))
        model(X).square().sum().backward()
        optimizer.step()
        optimizer.zero_grad()
    rows = {row: numbers for row, numbers in rows_of(monitor).items() if row[1] % INTERVAL == 0}
    return seen, rows, model


def test_hooks_are_there_in_sampled_steps_alone() -> None:
    """The rows are those of a run whose hooks stay, and no hook is left at the end."""
    seen, rows, model = train()
    assert [step for step, hooks in enumerate(seen) if all(hooks)] == [0, 4, 8]
    assert all(hooks == [0, 0, 0] for step, hooks in enumerate(seen) if step % INTERVAL)
    staying, expected, _ = train(interval=1)
    assert all(all(hooks) for hooks in staying)
    assert rows == expected
    assert len(rows) > 50
    assert hooked(model) == [0, 0, 0]
    assert model.state_dict().keys() == TinyNet().state_dict().keys()


def test_hooks_stay_where_every_other_step_is_sampled() -> None:
    """To take them out for a single step would cost more than it saves."""
    seen, _, _ = train(interval=2)
    assert all(all(hooks) for hooks in seen)


def doubles(model: Any) -> Any:
    """Hooks of the user that change outputs and gradients; their handles."""

    def double(weight: Any) -> None:
        weight.grad.mul_(2)

    layer = next(module for module in model.modules() if isinstance(module, torch.nn.Linear))
    return [
        layer.register_forward_hook(lambda _, __, output: output * 2),
        layer.weight.register_post_accumulate_grad_hook(double),
    ]


@pytest.mark.parametrize("placed_at", [0, 2], ids=["after ours", "while ours are out"])
@pytest.mark.parametrize("removed_at", [3, 6, STEPS])
def test_hooks_of_the_user_keep_their_place(placed_at: int, removed_at: int) -> None:
    """What they change is recorded as it was before them, as if ours had stayed; their handles remove them."""

    def each(step: int, model: Any) -> None:
        if step == placed_at:
            handles.extend(doubles(model))
        if step == removed_at:
            while handles:
                handles.pop().remove()

    handles: list[Any] = []
    _, rows, _ = train(each=each)
    handles.clear()
    _, expected, _ = train(interval=1, each=each)
    assert rows == expected


@pytest.mark.parametrize("step_of_copy", [0, 2])
def test_copies_have_no_hooks(step_of_copy: int) -> None:
    """A copy that is made in between, and one that is loaded, train unwatched; the original goes on."""

    def each(step: int, model: Any) -> None:
        if step == step_of_copy:
            file = io.BytesIO()
            torch.save(model, file)
            file.seek(0)
            for other in (copy.deepcopy(model), torch.load(file, weights_only=False)):
                other(X).sum().backward()
                doubles(other)
                other(X).sum().backward()

    _, rows, _ = train(each=each)
    assert rows == train(interval=1)[1]


def test_hooks_stay_once_anything_was_compiled(monkeypatch: pytest.MonkeyPatch) -> None:
    """Graphs may depend on the hooks that a module had."""
    monkeypatch.setattr(sys.modules["torch._dynamo.convert_frame"], "FRAME_COUNTER", 1)
    assert all(all(hooks) for hooks in train()[0])


@pytest.fixture
def in_backward() -> Iterator[tuple[Any, Any, Any]]:
    """A model whose optimizer steps within the backward, in the hook of the last parameter."""
    torch.manual_seed(0)
    model = TinyNet()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.001)
    monitor = watch(model, optimizer, step_interval=INTERVAL)
    yield model, optimizer, monitor
    monitor.stop()


def test_hooks_stay_while_a_backward_iterates_over_them(in_backward: tuple[Any, Any, Any]) -> None:
    """An optimizer that steps within the backward ends the step there."""
    model, optimizer, monitor = in_backward
    first = next(iter(model.parameters()))
    first.register_post_accumulate_grad_hook(lambda _: optimizer.step())
    for _ in range(STEPS):
        assert all(hooked(model))
        model(X).square().sum().backward()
        optimizer.zero_grad()
    assert monitor.faults == {}
    assert {row[1] for row in rows_of(monitor)} == {0, 4, 8}


def test_a_step_that_begins_in_a_backward_without_hooks_is_counted(in_backward: tuple[Any, Any, Any]) -> None:
    """Hooks that are out cannot be put back there: the step is not sampled, and training goes on."""
    model, optimizer, monitor = in_backward
    first = next(iter(model.parameters()))
    for step in range(STEPS):
        if step == 3:
            first.register_post_accumulate_grad_hook(lambda _: optimizer.step())
        model(X).square().sum().backward()
        if step < 3:
            optimizer.step()
        optimizer.zero_grad()
    assert {kind: number for kind, number in monitor.faults.items() if "within a backward" in kind}
    monitor.stop()
