"""The sentinel leaves training as it is, and its numbers are right."""

from __future__ import annotations

import copy
import gc
import json
import os
import pickle
import random
import subprocess
import sys
import weakref
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests import user_scripts
from tests.pytorch.sentinel_loops import LOOPS, Attach, batches, net, update
from tests.quick_python import quick_python
from tests.required import require, require_compiled

torch = require("torch")

from probe.pytorch import TrainerMon  # noqa: E402
from probe.pytorch.modes import unseen  # noqa: E402

SETTINGS: dict[str, Any] = {
    "format": "api",
    "alert": {"rules": []},
    "sentinel": {"enable": True},
    "step_interval": 1000,
}


@contextmanager
def watched(**settings: Any) -> Iterator[Attach]:
    """An attachment of monitors with the sentinel; nothing has failed when they end."""
    with ExitStack() as monitors:

        def attach(models: Any, optimizers: Any) -> None:
            monitor = monitors.enter_context(TrainerMon(SETTINGS | settings))
            monitor.set_monitor(models, 1, optimizers)
            monitors.callback(lambda: faults.append(monitor.faults))

        faults: list[Any] = []
        yield attach
    assert faults
    assert all(counts == {} for counts in faults)


def numbers(parameter: Any) -> bytes:
    """The numbers of a parameter."""
    plain = parameter.detach().as_subclass(torch.Tensor).contiguous()
    return bytes(plain.view(-1).view(torch.uint8).numpy().tobytes())


def bits(trained: list[Any]) -> list[Any]:
    """What a loop returns, weights as bytes."""
    return [
        [hash(numbers(parameter)) for parameter in each.parameters()] if isinstance(each, torch.nn.Module) else each
        for each in trained
    ]


def generators() -> int:
    """A number that stands for the states of all generators of random numbers."""
    states = torch.get_rng_state().numpy().tobytes(), random.getstate(), str(np.random.get_state())
    return hash(states)


def seed() -> None:
    torch.manual_seed(0)
    random.seed(0)
    np.random.seed(0)


@pytest.mark.parametrize("name", LOOPS)
def test_a_training_is_the_same_with_and_without(name: str) -> None:
    """Weights to the bit, the states of the generators, what a mode and a class of tensors of the user's see; nothing
    fails."""
    seed()
    without = bits(LOOPS[name](lambda _, __: None)), generators()
    seed()
    with watched() as attach:
        within = bits(LOOPS[name](attach)), generators()
    assert within == without


FAULTS = {
    "no_gradient": {"nothing-to-apply"},
    "scaled": {"loss-not-finite"},
    "in_a_mode": {"loss-not-finite", "gradient-not-finite"},
}
"""What has to be found, by the loop that does it."""


@pytest.mark.parametrize("name", LOOPS)
def test_nothing_is_found_where_nothing_is_wrong(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No warning, and no more than there is."""
    monkeypatch.setenv("MONITOR_OUTPUT_DIR", str(tmp_path))
    with watched(format="csv") as attach:
        LOOPS[name](attach)
    lines = [json.loads(line) for path in tmp_path.glob("*/checks.jsonl") for line in path.read_text().splitlines()]
    assert {line["check"] for line in lines if line["grade"] != "note"} <= FAULTS.get(name, set())
    assert FAULTS.get(name, set()) <= {line["check"] for line in lines}


def test_reading_is_no_part_of_a_transformation() -> None:
    """Within nested functions of ``torch.func`` a tensor of the program gives tensors with numbers, and the
    transformation goes on as before."""
    weight, sums = torch.arange(4.0), []

    def loss(x: Any) -> Any:
        with unseen():
            doubled = weight * 2
            assert doubled.data_ptr()  # a wrapper has no storage, which raises
            sums.append(float(doubled.sum()))
        return (x * weight).sum()

    x = torch.ones(3, 4)
    rows = torch.func.vmap(torch.func.grad(loss))(x)
    assert sums == [12.0]
    assert torch.equal(rows, weight.expand(3, 4))


def entrances() -> list[Any]:
    """What of torch the sentinel replaces."""
    owners = (
        (torch.autograd, "_engine_run_backward"),
        (torch.nn.utils.clip_grad, "_get_total_norm"),
        (torch.nn.utils.clip_grad, "_clip_grads_with_norm_"),
        (torch.nn.utils, "get_total_norm"),
        (torch.nn.utils, "clip_grads_with_norm_"),
    )
    return [
        *(getattr(owner, name) for owner, name in owners),
        vars(torch.utils.checkpoint.CheckpointFunction).get("apply"),
    ]


def trained(steps: int = 2) -> tuple[Any, Any]:
    """A model and its optimizer, after some updates."""
    model = net()
    optimizer = torch.optim.Adam(model.parameters(), 0.01)
    train(model, optimizer, steps)
    return model, optimizer


def train(model: Any, optimizer: Any, steps: int = 2) -> None:
    for x in batches(steps=steps):
        update(optimizer, model(x).pow(2).mean())


def test_stop_leaves_torch_as_it_was() -> None:
    """With the last monitor every function is torch's own again."""
    before = entrances()
    model, optimizer = trained()
    monitors = [TrainerMon(SETTINGS) for _ in range(2)]
    for monitor in monitors:
        monitor.set_monitor(model, 1, optimizer)
        train(model, optimizer)
    assert all(now is not then for now, then in zip(entrances(), before, strict=True))
    monitors[0].stop()
    train(model, optimizer)
    monitors[1].stop()
    assert entrances() == before
    assert monitors[0].faults == monitors[1].faults == {}


def test_no_hook_lies_on_the_model_in_steps_that_are_not_sampled() -> None:
    """Neither on forwards nor on parameters nor on saved tensors: those of the optimizer suffice."""
    model, optimizer = trained()
    monitor = TrainerMon(SETTINGS)
    monitor.set_monitor(model, 1, optimizer)
    train(model, optimizer, 3)
    hooks = [
        hooks
        for module in model.modules()
        for name, hooks in vars(module).items()
        if name.endswith("hooks") and not name.startswith("_state_dict")
    ]
    assert not any(hooks)
    assert all(parameter._backward_hooks is None for parameter in model.parameters())
    assert all(not parameter._post_accumulate_grad_hooks for parameter in model.parameters())
    monitor.stop()


def test_what_is_dropped_without_stop_is_freed() -> None:
    """Model, optimizer and monitor: nothing of torch keeps them alive, and backwards of others go on."""
    model, optimizer = trained()
    monitor = TrainerMon(SETTINGS)
    monitor.set_monitor(model, 1, optimizer)
    train(model, optimizer)
    model(next(batches())).sum().backward()
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)  # norms that no update will take
    references = [
        weakref.ref(thing) for thing in (model, optimizer, monitor, *model.parameters(), model[0].weight.grad)
    ]
    del model, optimizer, monitor
    gc.collect()
    assert [reference() for reference in references] == [None] * len(references)
    trained()


def test_gradients_are_not_kept_alive() -> None:
    """Neither between the clip and the update, nor after it."""
    model, optimizer = trained()
    monitor = TrainerMon(SETTINGS)
    monitor.set_monitor(model, 1, optimizer)
    train(model, optimizer)
    optimizer.zero_grad()
    for ending in (lambda: None, optimizer.step):
        model(next(batches())).sum().backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        references = [weakref.ref(parameter.grad) for parameter in model.parameters()]
        ending()
        optimizer.zero_grad()
        assert [reference() for reference in references] == [None] * len(references)
    monitor.stop()


def test_copies_and_pickles() -> None:
    """A copy of model and optimizer trains as they do; nothing of the monitor is in it."""
    model, optimizer = trained()
    with watched() as attach:
        attach(model, optimizer)
        train(model, optimizer)
        copied = copy.deepcopy((model, optimizer)), pickle.loads(pickle.dumps((model, optimizer)))
        states = []
        for pair in ((model, optimizer), *copied):
            torch.manual_seed(0)
            train(*pair)
            states.append(bits([pair[0]]))
    assert states[1] == states[2] == states[0]


@pytest.mark.skipif(not hasattr(os, "fork"), reason="a system without fork")
def test_a_forked_child_trains_on(tmp_path: Path) -> None:
    """In a child, whose hooks have no effect, backwards are remembered by nobody, and nothing is written."""
    script = tmp_path / "train.py"
    script.write_text(CHILD, encoding="utf-8")
    command = [quick_python(*user_scripts.TORCH), script]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert (done.returncode, done.stdout) == (0, "{}\n"), done.stderr


CHILD = """
import os, sys
import torch
from probe.pytorch import TrainerMon

model = torch.nn.Linear(4, 2)
optimizer = torch.optim.SGD(model.parameters(), 0.1)
monitor = TrainerMon({"format": "api", "alert": {"rules": []}, "sentinel": {"enable": True}})
monitor.set_monitor(model, 1, optimizer)

def train(steps):
    for _ in range(steps):
        model(torch.ones(3, 4)).sum().backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()

train(3)
if (pid := os.fork()) == 0:
    train(20)
    import gc
    from probe.core.sentinel.sentinel import Sentinel
    (sentinel,) = [each for each in gc.get_objects() if type(each) is Sentinel]
    remembered = [len(watched.backwards) for watched in sentinel._optimizers.all()]
    os._exit(1 if any(remembered) or monitor.faults else 0)
_, status = os.waitpid(pid, 0)
train(3)
monitor.stop()
print(monitor.faults)
sys.exit(os.waitstatus_to_exitcode(status))
"""


def test_a_step_like_the_one_before_runs_no_function_of_numpy() -> None:
    """On the thread that trains: between the operators of torch, the first ones take longer than all that is read."""
    require_compiled()
    called: list[str] = []
    folder = str(Path(np.__file__).parent)

    def follow(frame: Any, event: str, function: Any) -> None:
        if event == "call" and frame.f_code.co_filename.startswith(folder):
            called.append(frame.f_code.co_name)
        elif event == "c_call":
            owner = getattr(function, "__module__", None) or type(getattr(function, "__self__", None)).__module__
            called.extend([function.__name__] if str(owner).startswith("numpy") else [])

    torch.manual_seed(0)
    model = net()
    optimizer = torch.optim.SGD(model.parameters(), 0.01)
    with watched() as attach:
        attach(model, optimizer)
        for number in range(15):
            sys.setprofile(follow if number == 12 else None)
            optimizer.zero_grad()
            model(torch.ones(4, 8)).square().mean().backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
    sys.setprofile(None)
    assert called == []
