"""The walk of one weight gradient through the files of the package, from its hook to its row in a CSV file."""

from __future__ import annotations

import csv
import sys
import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import NamedTuple

import probe.pytorch
from tests.required import require

torch = require("torch")

PACKAGE = f"{Path(probe.__file__).parent}/"
MOST_FILES = 20
MOST_RETURNS = 2
SAMPLED = 2
"""Number of the step that is followed: earlier ones lay out the files."""

Place = tuple[str, str]
"""File below the package, and function."""
PARTS: tuple[Place, ...] = (
    ("pytorch/engines/native.py", "accumulated"),  # a gradient has been accumulated
    ("core/instrumentation/session.py", "_hand_over"),  # the step has ended
    ("core/output/run_output.py", "<lambda>"),  # the delivery thread takes it
)
"""Functions with which the parts of the walk begin."""
AROUND: dict[Place, str] = {
    ("core/door.py", "attempt"): "the guard of all that others call",
    ("core/output/global_exchange.py", "write"): "the order of the steps",
}
"""Functions that only call the next one: their files are no part of the walk."""
APART: dict[Place, str] = {
    ("core/instrumentation/context.py", "backward_began"): "the number of the micro batch",
    ("core/instrumentation/context.py", "__iter__"): "listeners",
    ("core/instrumentation/overhead.py", "take"): "the monitor's own time",
    ("core/instrumentation/overhead.py", "part"): "the monitor's own time",
    ("core/instrumentation/session.py", "_drop"): "the beginning of the next step",
    ("core/output/sinks/anomaly.py", "write"): "another sink",
    ("core/output/sinks/overhead.py", "write"): "another sink",
    ("core/monitor/reporting.py", "found"): "alerts and heartbeats",
    ("core/rules/evaluate.py", "find"): "rules, which change no row",
    ("pytorch/hooks.py", "backward_id"): "the number of the micro batch",
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
        if place in AROUND or file == here.file:
            return here
        if file not in here.entered:
            self.files.append(file)
            here.entered[file] = Stay(file, {})
        return here.entered[file]


@contextmanager
def profiling(walk: Walk) -> Iterator[None]:
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
    monitor.stop()
    return walk


def test_a_gradient_enters_few_files_on_its_way_to_its_row(output_dir: Path) -> None:
    """From hook to CSV row a gradient enters at most twenty files, and none more than twice again."""
    files = walked().files
    (path,) = output_dir.rglob(f"grad_unreduced_{SAMPLED}-{SAMPLED}.csv")
    row = next(csv.DictReader(path.open(encoding="utf-8")))
    assert row["name"] == "1.bias"
    assert float(row["norm"]) == float(f"{8**0.5:.6g}")  # each of two elements is the number of samples, 2
    assert {"pytorch/engines/native.py", "core/output/sinks/csv.py"} <= {*files}
    assert len({*files}) <= MOST_FILES, files
    assert max(Counter(files).values()) <= 1 + MOST_RETURNS, files


def test_the_walk_meets_every_function_that_it_leaves_out() -> None:
    """What is counted apart is called on the way: nothing else is excused."""
    assert {*AROUND, *APART} <= walked().places
