"""Training is as without the monitor, and afterwards everything is as it was found."""

from __future__ import annotations

import gc
import signal
import threading
import weakref
from contextlib import suppress
from typing import Any

import pytest

from tests.matrix.harness import Harness, Loop, Module, Optimizer, generators, train_step
from tests.matrix.models import noisy, tiny_net
from tests.matrix.watching import EVERYTHING, LR, MOMENTUM, inputs, rows_of, watching
from tests.tables import Row

ALL = EVERYTHING | {"monitor_mbs_grad": True, "format": ["csv", "tensorboard"]}


def made(framework: Harness, kind: str = "momentum") -> tuple[Module, Optimizer, Loop]:
    """TinyNet, its optimizer and the loop that trains it."""
    model = tiny_net(framework)
    optimizer = framework.optimizer(kind, model, lr=LR / 8, **({"momentum": MOMENTUM} if kind == "momentum" else {}))
    return model, optimizer, framework.loop(model, optimizer)


@pytest.fixture(autouse=True)
def the_process_stays_as_it_was() -> Any:
    """Threads and signal handlers come and go with the monitor."""
    before = set(threading.enumerate()), signal.getsignal(signal.SIGTERM)
    yield
    assert (set(threading.enumerate()), signal.getsignal(signal.SIGTERM)) == before


# Training is not disturbed.


def trained(framework: Harness, kind: str, config: dict[str, Any] | None) -> tuple[dict[str, bytes], list[object]]:
    """Weights and random generators after four steps with dropout and accumulation."""
    framework.seed()
    model = noisy(framework)
    optimizer = framework.optimizer(kind, model, lr=0.01, **({"momentum": 0.9} if kind == "momentum" else {}))
    loop = framework.loop(model, optimizer)
    monitor = framework.TrainerMon(config or {})
    if config is not None:
        monitor.set_monitor(model, 2, optimizer)
    for _ in range(4):
        train_step(loop, *inputs(framework, 2))
    monitor.stop()
    assert monitor.faults == {}
    assert (config is None) or rows_of(monitor)
    return {name: array.tobytes() for name, array in framework.weights(model).items()}, generators(framework)


@pytest.mark.parametrize(
    "kind", ["momentum", *(pytest.param(kind, marks=pytest.mark.needs(kind)) for kind in ("sgd", "adam"))]
)
def test_weights_are_bit_identical(framework: Harness, kind: str) -> None:
    """Weights and random generators are the same to the last bit with everything monitored and without."""
    plain, again = trained(framework, kind, None), trained(framework, kind, None)
    assert plain == again, "the comparison itself must hold still"
    assert trained(framework, kind, ALL) == plain


def test_the_generator_matters(framework: Harness) -> None:
    """Were a random number drawn in between, the comparison would see it."""
    states = []
    for draws in (False, False, True):
        framework.seed()
        model = noisy(framework)
        if draws:
            loop = framework.loop(model, framework.optimizer("momentum", model, lr=0.01, momentum=0.9))
            loop.micro_batch(*inputs(framework))
        states.append(framework.generator())
    assert states[0] == states[1] != states[2]


# Nothing stays behind.


def test_stop_leaves_everything_as_found(framework: Harness) -> None:
    """After stop() hooks, attributes and classes are as before, and stopping again changes nothing."""
    model, optimizer, loop = made(framework)
    train_step(loop, *inputs(framework))  # some attributes are made when first needed
    before = framework.picture([model], [optimizer])
    monitor = framework.TrainerMon(ALL)
    monitor.set_monitor(model, 1, optimizer)
    assert framework.picture([model], [optimizer]) != before
    for _ in range(2):
        train_step(loop, *inputs(framework, 2))
    monitor.stop()
    assert framework.picture([model], [optimizer]) == before
    monitor.stop()
    assert framework.picture([model], [optimizer]) == before
    train_step(loop, *inputs(framework))
    assert monitor.faults == {}
    assert {row.step for row in rows_of(monitor)} == {0, 1}


def test_stop_in_the_middle_of_a_step(framework: Harness) -> None:
    """Stopped between backward and update, nothing stays behind either, and training goes on."""
    model, optimizer, loop = made(framework)
    train_step(loop, *inputs(framework))
    before = framework.picture([model], [optimizer])
    with watching(framework, ALL, model, optimizer) as monitor:
        train_step(loop, *inputs(framework))
        loop.micro_batch(*inputs(framework))
    loop.update()
    train_step(loop, *inputs(framework))
    assert framework.picture([model], [optimizer]) == before
    assert {row.step for row in rows_of(monitor)} == {0}


def test_after_collect_times_everything_goes_by_itself(framework: Harness) -> None:
    """When nothing more will be collected hooks are gone within the next step, and files are complete."""
    model, optimizer, loop = made(framework)
    train_step(loop, *inputs(framework))
    before = framework.picture([model], [optimizer])
    monitor = framework.TrainerMon(ALL | {"collect_times": 2, "step_interval": 2})
    monitor.set_monitor(model, 1, optimizer)
    for _ in range(3):
        assert monitor.monitoring
        train_step(loop, *inputs(framework))
    assert not monitor.monitoring
    train_step(loop, *inputs(framework))
    assert framework.picture([model], [optimizer]) == before
    assert {row.step for row in rows_of(monitor)} == {0, 2}
    monitor.stop()
    assert monitor.faults == {}


def test_an_exception_in_the_block(framework: Harness) -> None:
    """Leaving the block by an exception detaches, and writes what was seen of the step that was interrupted."""
    model, optimizer, loop = made(framework)
    train_step(loop, *inputs(framework))
    before = framework.picture([model], [optimizer])
    with suppress(FloatingPointError), framework.TrainerMon(ALL) as monitor:
        monitor.set_monitor(model, 1, optimizer)
        train_step(loop, *inputs(framework))
        loop.micro_batch(*inputs(framework))
        raise FloatingPointError
    assert framework.picture([model], [optimizer]) == before
    rows = rows_of(monitor)
    assert Row("grad_unreduced", 1, "fc.weight") in rows
    assert Row("actv", 1, "fc.output") in rows
    assert Row("grad_reduced", 0, "fc.weight") in rows
    assert Row("grad_reduced", 1, "fc.weight") not in rows


class StumbledError(Exception):
    """Exception that a module of the user raises."""


def test_a_forward_that_raises(framework: Harness) -> None:
    """A forward of the user's that fails shows its own error; the steps after it are seen as usual."""
    fails = [False]

    def stumble(x: Any) -> Any:
        if fails[0]:
            raise StumbledError
        return x

    inner, middle = tiny_net(framework), framework.module(stumble)
    model = framework.module(lambda x: inner(middle(x)), inner=inner, middle=middle)
    optimizer = framework.optimizer("momentum", model, lr=LR / 8, momentum=MOMENTUM)
    loop = framework.loop(model, optimizer)
    with watching(framework, ALL, model, optimizer) as monitor:
        train_step(loop, *inputs(framework))
        fails[0] = True
        with pytest.raises(StumbledError):
            loop.micro_batch(*inputs(framework))
        fails[0] = False
        for _ in range(2):
            train_step(loop, *inputs(framework))
    rows = rows_of(monitor)
    assert monitor.step == 3
    assert {row.step for row in rows if row.signal == "grad_reduced"} == {0, 1, 2}
    assert {row for row in rows if row.step == 2 and row.signal.startswith("actv")} == {
        row._replace(step=2) for row in rows if row.step == 0 and row.signal.startswith("actv")
    }


def test_nothing_holds_a_stopped_monitor(framework: Harness) -> None:
    """After stop() no hook, handler or exit callback refers to the monitor."""
    model, optimizer, loop = made(framework)
    monitor = framework.TrainerMon(ALL)
    monitor.set_monitor(model, 1, optimizer)
    train_step(loop, *inputs(framework))
    monitor.stop()
    gone = weakref.ref(monitor)
    del monitor
    gc.collect()
    assert gone() is None


# Several monitors.


def test_one_monitor_after_another(framework: Harness) -> None:
    """A second monitor on the same model sees what the first would have seen, and no more."""
    model, optimizer, loop = made(framework)
    seen = []
    for _ in range(2):
        with watching(framework, EVERYTHING, model, optimizer) as monitor:
            for _ in range(2):
                train_step(loop, *inputs(framework, 2))
        seen.append(rows_of(monitor))
    first, second = seen
    assert {row for row in first if row.signal != "momentum_buffer"} == {
        row for row in second if row.signal != "momentum_buffer"
    }
    assert second[Row("param_origin", 0, "fc.weight")] == first[Row("param_updated", 1, "fc.weight")]


def test_a_second_attachment_is_an_error_until_stopped(framework: Harness) -> None:
    """set_monitor twice is refused and changes nothing; after stop() it works."""
    (model, optimizer, loop), (other, another, _) = made(framework), made(framework)
    monitor = framework.TrainerMon(EVERYTHING)
    monitor.set_monitor(model, 1, optimizer)
    before = framework.picture([model, other], [optimizer, another])
    with pytest.raises(RuntimeError, match="stop"):
        monitor.set_monitor(other, 1, another)
    assert framework.picture([model, other], [optimizer, another]) == before
    train_step(loop, *inputs(framework))
    monitor.stop()
    monitor.set_monitor(other, 1, another)
    assert monitor.step == 0
    monitor.stop()


def test_two_monitors_do_not_hear_each_other(framework: Harness) -> None:
    """Two monitors on two models with optimizers of one class each see their own; one stops without the other."""
    (ours, optimizer, loop), (theirs, another, other_loop) = made(framework), made(framework)
    for each in (loop, other_loop):
        train_step(each, *inputs(framework))
    before = framework.picture([ours, theirs], [optimizer, another])
    first, second = framework.TrainerMon(EVERYTHING), framework.TrainerMon(EVERYTHING)
    first.set_monitor(ours, 1, optimizer)
    second.set_monitor(theirs, 1, another)
    for _ in range(3):
        train_step(loop, *inputs(framework, 2))
    train_step(other_loop, *inputs(framework)[::-1])
    assert (first.step, second.step) == (3, 1)
    first.stop()
    train_step(other_loop, *(framework.tensor([[8.0, 0.0]]) for _ in range(2)))
    assert (first.step, second.step) == (3, 2)
    second.stop()
    assert framework.picture([ours, theirs], [optimizer, another]) == before
    assert {(row.step, row.micro_step) for row in rows_of(first) if row.signal == "actv"} == {
        (step, micro_step) for step in range(3) for micro_step in range(2)
    }
    others = rows_of(second)
    assert {(row.step, row.micro_step) for row in others if row.signal == "actv"} == {(0, 0), (1, 0), (1, 1)}
    assert others[Row("actv", 1, "fc.input")]["max"] == 8.0
    assert first.faults == second.faults == {}


def test_an_unmonitored_optimizer_of_the_same_class(framework: Harness) -> None:
    """Steps of another optimizer of the same class, on another model, are not counted."""
    (model, optimizer, loop), (_, _, other_loop) = made(framework), made(framework)
    with watching(framework, EVERYTHING, model, optimizer) as monitor:
        train_step(other_loop, *inputs(framework))
        assert monitor.step == 0
        train_step(loop, *inputs(framework))
        train_step(other_loop, *inputs(framework, 3))
        assert monitor.step == 1
    assert {(row.step, row.micro_step) for row in rows_of(monitor)} == {(0, 0)}
