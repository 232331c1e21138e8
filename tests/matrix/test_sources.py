"""Sources attach on entry and detach on exit."""

from __future__ import annotations

import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest

from probe.core.config.load import load
from probe.core.errors import TrainingStopped
from probe.core.faults import Faults
from probe.core.instrumentation.context import Listeners, Run
from probe.core.instrumentation.recorder import Recorder
from probe.core.instrumentation.schedule import Schedule
from probe.core.instrumentation.selection import Selection
from probe.core.instrumentation.session import Session
from probe.core.instrumentation.signals.sources import SOURCES, Source
from probe.core.instrumentation.signals.structure import structure
from probe.core.moments import columns_for
from tests.matrix.harness import Harness, train_step
from tests.matrix.models import tiny_net
from tests.matrix.watching import ACTIVATIONS, EVERYTHING, LR, MOMENTUM, inputs, watching

EACH: dict[str, Source] = {**{name: source for name, (_, source) in SOURCES.items()}, "structure": structure}
CONFIG: dict[str, Any] = {
    **EVERYTHING,
    "ur_distribution": True,
    "mg_direction": True,
    "recording_l2_features": True,
    "l2_targets": {"linear_hook": ["fc"]},
    "ops": ["norm"],
    "format": ["csv", "tensorboard"],
}


def run_of(framework: Harness, model: Any, optimizer: Any, directory: Path) -> Run:
    """A run that collects everything."""
    settings, adapter, faults = load(CONFIG), framework.TrainerMon.framework, Faults()
    return Run(
        settings=settings,
        framework=adapter,
        chunks=[(0, model)],
        optimizers=[optimizer],
        selection=Selection({}, True, False, False),
        recorder=Recorder(adapter.tensors, columns_for(settings.statistics), settings.eps, faults.note),
        faults=faults,
        main_grad=False,
        directory=directory,
    )


def listeners(run: Run) -> int:
    """The number of listeners of ``run``, of all kinds together."""
    there = [getattr(run, field.name) for field in fields(run)]
    registered = [len(each) for each in there if isinstance(each, Listeners)]
    assert len(registered) > 5
    return sum(registered)


@pytest.mark.parametrize("name", EACH)
def test_a_source_leaves_nothing_behind(
    framework: Harness, name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Entered, used for a step and left, a source has no listener at the run and no hook at model and optimizer."""
    monkeypatch.setenv("MONITOR_OUTPUT_DIR", str(tmp_path))
    model = tiny_net(framework)
    optimizer = framework.optimizer("momentum", model, lr=LR, momentum=MOMENTUM)
    loop = framework.loop(model, optimizer)
    train_step(loop, *inputs(framework))  # frameworks themselves leave something behind
    before = framework.picture([model], [optimizer])
    run = run_of(framework, model, optimizer, tmp_path)
    with EACH[name](run):
        entered = listeners(run), framework.picture([model], [optimizer]) == before
    assert entered != (0, True)
    assert (listeners(run), framework.picture([model], [optimizer])) == (0, before)
    session = Session(run, Schedule(), 0, None)
    session.attach([EACH[name]])
    train_step(loop, *inputs(framework))
    assert (run.clock.step, run.faults.counts) == (1, {})
    assert session.detach()
    after = framework.picture([model], [optimizer])
    assert (listeners(run), {key: after[key] for key in before}) == (0, before)


def test_a_source_that_cannot_be_placed_takes_those_before_it_away(framework: Harness, tmp_path: Path) -> None:
    """An error of one source leaves no listener of another."""

    def failing(_: Run) -> Any:
        raise ValueError("cannot be placed")

    model = tiny_net(framework)
    optimizer = framework.optimizer("momentum", model, lr=LR, momentum=MOMENTUM)
    run = run_of(framework, model, optimizer, tmp_path)
    with pytest.raises(ValueError, match="cannot be placed"):
        Session(run, Schedule(), 0, None).attach([*EACH.values(), failing])
    assert listeners(run) == 0


class Opened:
    """The files that are opened and the threads that do so, as the interpreter reports both."""

    listening: list[tuple[str, str]] | None = None
    hooked = False

    @classmethod
    @contextmanager
    def files(cls) -> Iterator[list[tuple[str, str]]]:
        if not cls.hooked:
            sys.addaudithook(cls.note)  # stays for the life of the process
        cls.hooked, cls.listening = True, []
        try:
            yield cls.listening
        finally:
            cls.listening = None

    @classmethod
    def note(cls, event: str, args: tuple[Any, ...]) -> None:
        if event == "open" and cls.listening is not None:
            cls.listening.append((str(args[0]), threading.current_thread().name))


@pytest.mark.parametrize(
    ("config", "file"),
    [({"stack_info": True, **ACTIVATIONS}, "stack_info.csv"), ({"print_struct": True}, "module_struct.json")],
)
def test_no_source_opens_a_file_on_the_training_thread(framework: Harness, config: dict[str, Any], file: str) -> None:
    """Files that a source makes are opened by the delivery thread alone."""
    model = tiny_net(framework)
    optimizer = framework.optimizer("momentum", model, lr=LR, momentum=MOMENTUM)
    with Opened.files() as opened, watching(framework, config, model, optimizer), suppress(TrainingStopped):
        train_step(framework.loop(model, optimizer), *inputs(framework))
    assert {thread for path, thread in opened if file in path} == {"probe-delivery"}
