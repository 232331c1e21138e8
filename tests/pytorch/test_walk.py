"""The walk of one weight gradient through the files of the package, from its hook to its row in a CSV file."""

from __future__ import annotations

import csv
import multiprocessing.spawn
import sys
import threading
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import NamedTuple

import pytest

import probe.pytorch
from tests import user_scripts
from tests.quick_python import quick_python
from tests.required import require

torch = require("torch")

PACKAGE = f"{Path(probe.__file__).parent}/"
OF_CUDA = torch.backends.cuda.is_built()
"""Whether hooks ask if a CUDA graph is captured, with a device or without: a file more on the way, two in a step."""
MOST_FILES = 16 + OF_CUDA
MOST_RETURNS = 2
STEP_FILES, STEP_CROSSINGS, STEP_RETURNS = (28, 86, 40) if OF_CUDA else (26, 71, 30)
"""Most files of a whole sampled step of one weight, calls from one of them into another, and those of them into a file
that the same part of the step has entered before."""
SAMPLED = 2
"""Number of the step that is followed: earlier ones lay out the files."""

Place = tuple[str, str]
"""File below the package, and function."""
PARTS: tuple[Place, ...] = (
    ("pytorch/engines/native.py", "accumulated"),  # a gradient has been accumulated
    ("core/instrumentation/training_steps.py", "_hand_over"),  # the step has ended
    ("core/output/run_output.py", "_deliver"),  # the delivery thread takes it
)
"""Functions with which the parts of the walk begin."""
APART: dict[Place, str] = {
    ("core/instrumentation/clock.py", "backward_began"): "the number of the micro batch",
    ("core/instrumentation/overhead.py", "take"): "the monitor's own time",
    ("core/instrumentation/overhead.py", "part"): "the monitor's own time",
    ("core/instrumentation/training_steps.py", "_drop"): "the beginning of the next step",
    ("core/output/sinks/anomaly.py", "write"): "another sink",
    ("core/output/sinks/overhead.py", "write"): "another sink",
    ("core/rules/evaluate.py", "find"): "rules, which change no row",
}
"""Functions that are not about the gradient: neither they nor the functions that they call are followed."""


class Stay(NamedTuple):
    """Stay in a file until it returns. The files that it calls are entered once each, however often it calls them."""

    file: str
    entered: dict[str, Stay]


class Walk:
    """Record of the files that the gradient of one parameter enters."""

    def __init__(self) -> None:
        self.files: list[str] = []
        """Each file whenever it is entered, in order; not when a call returns to it."""
        self.places: set[Place] = set()
        """Functions that were called in the walk or beside it."""
        self.following = False
        self.output = Path()
        """The folder of the run."""
        self._begun: set[Place] = set()
        self._stacks: dict[int, list[Stay | None]] = {}
        """Stays of the calls in progress on each thread; None for calls that are not followed."""

    def profile(self, frame: FrameType, event: str, _: object) -> None:
        """Follow calls and returns of functions of the package; for :func:`sys.setprofile`."""
        file = frame.f_code.co_filename
        if not self.following or event not in ("call", "return") or not file.startswith(PACKAGE):
            return
        stack = self._stacks.setdefault(threading.get_ident(), [])
        place = file[len(PACKAGE) :], frame.f_code.co_name
        if stack and event == "return":
            stack.pop()
        elif event == "call" and (stack or (place in PARTS and place not in self._begun)):
            self._begun.add(place)
            stack.append(self._stay(place, stack[-1] if stack else Stay("", {})))

    def _stay(self, place: Place, here: Stay | None) -> Stay | None:
        if here is None:
            return None
        self.places.add(place)
        file, _ = place
        if place in APART:
            return None
        if file == here.file:
            return here
        if file not in here.entered:
            self.files.append(file)
            here.entered[file] = Stay(file, {})
        return here.entered[file]


class Crossings:
    """Record of a whole step: files, calls from one into another, and those into a file that was entered before.

    Its parts are the gradients and the update on the training thread, and its delivery.
    """

    def __init__(self) -> None:
        self.files: set[str] = set()
        self.crossings = self.returns = 0
        self.following = False
        self.part = ""
        """Part of the step on the training thread."""
        self._stacks: dict[str, list[str]] = {}
        """Files of the calls in progress, by part."""
        self._entered: dict[str, set[str]] = {}

    def profile(self, frame: FrameType, event: str, _: object) -> None:
        """Follow calls and returns of functions of the package; for :func:`sys.setprofile`."""
        file = frame.f_code.co_filename
        if not self.following or event not in ("call", "return") or not file.startswith(PACKAGE):
            return
        part = self.part if threading.current_thread() is threading.main_thread() else "delivery"
        stack, entered = self._stacks.setdefault(part, []), self._entered.setdefault(part, set())
        if event == "return":
            del stack[-1:]
            return
        if part == "flush" or (part == "delivery" and not stack and frame.f_code.co_name != "_deliver"):
            return
        if not stack or stack[-1] != file:
            self.crossings += 1
            self.returns += file in entered
        entered.add(file)
        self.files.add(file)
        stack.append(file)


@contextmanager
def profiling(walk: Walk | Crossings) -> Iterator[None]:
    """Pass ``walk`` the calls on this thread and on threads that start within the context."""
    before = sys.getprofile()
    threading.setprofile(walk.profile)
    sys.setprofile(walk.profile)
    try:
        yield
    finally:
        sys.setprofile(before)
        threading.setprofile(None)


def walked() -> Walk:
    """The walk of the gradient that a backward accumulates first, in a sampled step of a small model."""
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(4, 3), torch.nn.Linear(3, 2))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    monitor = probe.pytorch.TrainerMon({"wg_distribution": True, "format": "csv", "ops": ["norm", "max"]})
    walk = Walk()
    with profiling(walk):
        monitor.set_monitor(model, 1, optimizer)
        for step in range(SAMPLED + 1):
            assert monitor.flush()
            walk.following = step == SAMPLED
            optimizer.zero_grad()
            model(torch.ones(2, 4)).sum().backward()
            optimizer.step()
        assert monitor.flush()
        walk.following = False
    walk.output = Path(str(monitor.output_directory))
    monitor.stop()
    return walk


def both() -> tuple[Walk, Crossings]:
    """The walk of a gradient and the crossings of a step."""
    return walked(), crossings()


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> tuple[Walk, Crossings]:
    """Both, made in a new process: what other tests have left in this one lengthens the walk."""
    before = multiprocessing.spawn.get_executable()
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("MONITOR_OUTPUT_DIR", str(tmp_path_factory.mktemp("walk")))
        multiprocessing.set_executable(quick_python(*user_scripts.TORCH))
        try:
            with ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as processes:
                return processes.submit(both).result()
        finally:
            multiprocessing.set_executable(before)


def test_a_gradient_enters_few_files_on_its_way_to_its_row(recorded: tuple[Walk, Crossings]) -> None:
    """From hook to CSV row a gradient enters a limited number of files, and none more than twice again."""
    files = recorded[0].files
    (path,) = recorded[0].output.rglob(f"grad_unreduced_{SAMPLED}-{SAMPLED}.csv")
    row = next(csv.DictReader(path.open(encoding="utf-8")))
    assert row["name"] == "1.bias"
    assert float(row["norm"]) == float(f"{8**0.5:.6g}")  # each of two elements is the number of samples, 2
    assert {"pytorch/engines/native.py", "core/output/sinks/csv.py"} <= {*files}
    assert len({*files}) <= MOST_FILES, files
    assert max(Counter(files).values()) <= 1 + MOST_RETURNS, files


def test_the_walk_meets_every_function_that_it_leaves_out(recorded: tuple[Walk, Crossings]) -> None:
    """What is counted apart is called on the way: nothing else is excused."""
    assert {*APART} <= recorded[0].places


def crossings() -> Crossings:
    """Those of a sampled step of one weight, of which only the gradient is collected."""
    model = torch.nn.Linear(4, 3, bias=False)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    settings = {"wg_distribution": True, "format": "csv", "ops": ["norm"], "alert": {"rules": []}}
    monitor = probe.pytorch.TrainerMon(settings)
    step = Crossings()
    with profiling(step):
        monitor.set_monitor(model, 1, optimizer)
        for number in range(SAMPLED + 1):
            assert monitor.flush()
            step.following = number == SAMPLED
            step.part = "gradients"
            optimizer.zero_grad()
            model(torch.ones(2, 4)).sum().backward()
            step.part = "update"
            optimizer.step()
            step.part = "flush"
        assert monitor.flush()
        step.following = False
    monitor.stop()
    return step


def test_a_step_crosses_few_files(recorded: tuple[Walk, Crossings]) -> None:
    """A sampled step of one weight enters a limited number of files, with a limited number of calls between them."""
    step = recorded[1]
    assert {"core/instrumentation/training_steps.py", "core/output/sinks/csv.py"} <= {
        f[len(PACKAGE) :] for f in step.files
    }
    assert len(step.files) <= STEP_FILES, step.files
    assert step.crossings <= STEP_CROSSINGS
    assert step.returns <= STEP_RETURNS
