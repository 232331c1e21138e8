"""Calls of collectives that an adapter reports to core: rows, names, choices, the log."""

from __future__ import annotations

import math
import subprocess
import sys
from collections.abc import Iterator, Sequence
from types import FrameType, SimpleNamespace
from typing import Any

import numpy as np
import pytest

from probe.core.backend.call_stack import LinePatterns, Sites, stack
from probe.core.backend.protocols import FrameworkAdapter
from probe.core.config.errors import ConfigError
from probe.core.config.load import load
from probe.core.errors import TrainingStopped
from probe.core.faults import Faults
from probe.core.instrumentation.clock import Clock
from probe.core.instrumentation.context import Listeners
from probe.core.instrumentation.overhead import Cost
from probe.core.instrumentation.recorder import Recorder
from probe.core.instrumentation.signals.collectives import DISTINCT, EARLY, LOST_EARLY, CallLog, Listening
from probe.core.moments import derive
from probe.core.records import Batch, Key
from probe.core.rules.comm_nan import AnomalyCommNan
from tests.core.instrumentation.test_recorder import Array, NumPy


class Wire:
    """Collective as an adapter reports it."""

    def __init__(self) -> None:
        self.listeners: list[Any] = []

    def listen(self, listener: Any) -> Any:
        self.listeners.append(listener)
        return lambda: self.listeners.remove(listener)

    def bytes_of(self, tensor: Array) -> int:
        return int(tensor.values.nbytes)

    def send(
        self, operation: str, inputs: Sequence[Array], outputs: Sequence[Array], ranks: Sequence[int] = (0, 1)
    ) -> None:
        """A call of the line that calls this."""
        site = sys._getframe(1)
        for listener in self.listeners:
            if listener.listening and (call := listener.began(operation, ranks, inputs, site)) is not None:
                listener.ended(call, outputs)


class Run(SimpleNamespace):
    """As much of a run as is looked at."""

    def __init__(self, sampled: bool = True, step: int = 0) -> None:
        super().__init__(
            clock=Clock(step, sampled),
            recorder=Recorder(NumPy(), ("sum",), 0.0, Faults().note),
            faults=Faults(),
            cost=Cost(),
            every_update=Listeners(),
            collectors=Listeners(),
            waited=Listeners(),
        )


@pytest.fixture
def wire() -> Iterator[Wire]:
    wire = Wire()
    yield wire
    assert wire.listeners == []


def listen(wire: Wire, **settings: Any) -> Listening:
    """A monitor's ear, with ``cc_distribution`` switched on."""
    settings["cc_distribution"] = {"enable": True, **settings.pop("cc", {})}
    groups: Any = SimpleNamespace(rank=lambda: 0)
    adapter = FrameworkAdapter("numpy", "1", NumPy(), None, groups, wire)  # type: ignore[arg-type]
    listening = Listening(load(settings), adapter, Faults())
    listening.start()
    return listening


def rows(listening: Listening, step: int = 0) -> dict[tuple[str, str], dict[str, Any]]:
    """By operation and direction."""
    found: dict[tuple[str, str], dict[str, Any]] = {}
    for batch in listening.drain().batches(step):
        assert (batch.signal, batch.step) == ("other", step)
        for row, key in enumerate(batch.keys):
            about: dict[str, Any] = {name: values[row] for name, values in batch.columns.items()}
            about |= {"shape": batch.shapes[row], "dtype": batch.dtypes[row], "name": key.name}
            found[key.name.split(".")[0], key.part] = about
    return found


def test_calls_of_one_line_are_one_row(wire: Wire) -> None:
    """Extremes compare, sums add, and the shape is that of all tensors together."""
    listening = listen(wire, ops=["min", "max", "mean", "std", "norm"])
    for n in range(3):
        wire.send("all_reduce", [Array(n, n + 1.0)], [Array(2 * n, n), Array(7.0)])
    (row,) = rows(listening).values()
    every = np.array([0, 0, 7, 2, 1, 7, 4, 2, 7], float)
    assert (row["min"], row["max"], row["sum"], row["sumsq"]) == (0, 7, every.sum(), (every**2).sum())
    assert derive("std", {"m2": np.array([row["m2"]])}, [row["shape"]])[0] == pytest.approx(every.std())
    assert (row["shape"], row["dtype"], row["count"], row["bytes"]) == ((9,), "float64", 3, 72)
    assert row["seconds"] > 0
    assert rows(listening) == {}, "the next step begins empty"
    listening.stop()


def test_inputs_are_collected_if_asked_for_or_judged(wire: Wire) -> None:
    for settings, inputs in (
        ({}, set()),
        ({"cc": {"cc_pre_hook": True}}, {"pre"}),
        ({"alert": {"rules": [{"rule_name": "AnomalyCommNan"}]}}, {"pre"}),
    ):
        listening = listen(wire, **settings)
        wire.send("all_reduce", [Array(1.0, math.nan)], [Array(2.0)])
        found = rows(listening)
        assert {direction for _, direction in found} == {"post"} | inputs
        assert not inputs or found["all_reduce", "pre"]["shape"] == (2,)
        listening.stop()


def test_a_transfer_without_tensors_is_a_row_of_its_time_alone(wire: Wire) -> None:
    listening = listen(wire, ops=["min", "norm"])
    wire.send("barrier", [], [])
    (row,) = rows(listening).values()
    assert (row["count"], row["bytes"], row["shape"], row["dtype"], row["sumsq"]) == (1, 0, (0,), "", 0)
    assert math.isnan(row["min"])
    listening.stop()


@pytest.mark.parametrize(
    ("ranks", "label"),
    [
        ([3], "ranks3"),
        ([0, 1, 2], "ranks0-2"),
        ([1, 5, 9], "ranks1-9by4"),
        ([0, 1, 5], "ranks0+1+5"),
        ([1, 0], "ranks1+0"),
    ],
)
def test_groups_are_called_by_their_ranks(wire: Wire, ranks: list[int], label: str) -> None:
    listening = listen(wire)
    wire.send("all_reduce", [], [Array(1.0)], ranks)
    (row,) = rows(listening).values()
    assert row["name"].split(".")[:3] == ["all_reduce", label, "test_collectives"]
    listening.stop()


def test_what_comes_before_the_run_belongs_to_its_first_step_if_that_is_sampled(wire: Wire) -> None:
    for sampled, expected in ((True, 1), (False, 0)):
        listening = listen(wire)
        wire.send("all_reduce", [], [Array(1.0)])
        listening.attach(Run(sampled), takes_part=True)  # type: ignore[arg-type]
        assert len(rows(listening)) == expected
        listening.stop()


def test_too_many_calls_before_the_run_are_counted(wire: Wire) -> None:
    listening, run = listen(wire), Run()
    for _ in range(EARLY + 3):
        wire.send("all_reduce", [], [Array(1.0)])
    listening.attach(run, takes_part=True)  # type: ignore[arg-type]
    (row,) = rows(listening).values()
    assert row["count"] == EARLY
    assert run.faults.counts == {LOST_EARLY: 3}
    wire.send("all_reduce", [], [Array(1.0)])
    assert len(rows(listening)) == 1
    listening.stop()


def test_after_the_log_a_step_that_is_not_sampled_costs_one_test(wire: Wire) -> None:
    listening, run = listen(wire), Run(sampled=False)
    listening.attach(run, takes_part=True)  # type: ignore[arg-type]
    assert listening.listening, "the log is open"
    run.clock.step = 1
    listening.before_update(1)
    assert not listening.listening
    run.clock.sampled = True
    assert listening.listening
    listening.stop()


def test_ranks_that_take_no_part_do_not_listen(wire: Wire) -> None:
    listening = listen(wire)
    listening.attach(Run(), takes_part=False)  # type: ignore[arg-type]
    assert wire.listeners == []
    listening.stop()


def test_a_failure_of_ours_is_counted(wire: Wire) -> None:
    """A tensor that cannot be read ends nothing."""
    listening, run = listen(wire, cc={"cc_pre_hook": True}), Run()
    listening.attach(run, takes_part=True)  # type: ignore[arg-type]
    wire.send("all_reduce", [object()], [Array(1.0)])  # type: ignore[list-item]
    wire.send("all_reduce", [Array(1.0)], [object()])  # type: ignore[list-item]
    assert run.faults.counts == {"collective: AttributeError": 2}
    listening.stop()


def test_attaching_again_counts_no_failure_twice(wire: Wire) -> None:
    """Failures before the run are passed to it once; another run of the same monitor goes on with the count."""
    listening, first, second = listen(wire), Run(), Run(step=1)
    second.faults = first.faults
    first.faults.lost("rows", 3)
    for run in (first, second, second):
        listening.attach(run, True)  # type: ignore[arg-type]
    assert first.faults.counts == {"rows": 3}
    listening.stop()


def test_a_run_is_left_when_another_begins_and_at_the_end(wire: Wire) -> None:
    """Only the latest run drains collectives, and after the end none does."""
    listening, first, second = listen(wire), Run(), Run(step=1)
    listening.attach(first, takes_part=True)  # type: ignore[arg-type]
    assert [*first.collectors] == [listening]
    listening.attach(second, takes_part=True)  # type: ignore[arg-type]
    assert (len(first.collectors), len(first.every_update), [*second.collectors]) == (0, 0, [listening])
    listening.stop()
    assert (len(second.collectors), len(second.every_update)) == (0, 0)


def test_log_only_collects_nothing_and_stops_once(wire: Wire) -> None:
    listening, run = listen(wire, cc={"cc_log_only": True}), Run(step=5)
    wire.send("all_reduce", [], [Array(1.0)])
    listening.attach(run, takes_part=True)  # type: ignore[arg-type]
    listening.before_update(5)
    with pytest.raises(TrainingStopped, match="cc_log_only"):
        listening.before_update(6)
    listening.before_update(6)
    assert rows(listening) == {}
    listening.stop()


def test_an_uncaught_stop_ends_the_process_as_if_it_had_come_to_its_end() -> None:
    code = "from probe.core.errors import TrainingStopped; raise TrainingStopped('as configured')"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


# Call sites.


def test_names_of_lines_are_unique_and_hold_no_slash() -> None:
    sites = Sites()
    assert sites.name("/a/train.py", 3) == "train.py[3]"
    assert sites.name("/b/train.py", 3) == "b.train.py[3]"
    assert sites.name("/c/b/train.py", 3) == "c.b.train.py[3]"
    assert sites.name("/a/train.py", 4) == "train.py[4]"


class Counting:
    """Counts how often an expression is searched."""

    searches = 0

    def search(self, line: str) -> bool:
        self.searches += 1
        return "chosen" in line


def test_each_stack_is_searched_once() -> None:
    """Whatever an expression costs, it costs once a stack, and no more than a line's length allows."""
    lines, counting = LinePatterns(["x"]), Counting()
    lines._patterns = [counting]  # type: ignore[list-item]

    def chosen() -> bool:
        return lines.choose(stack(sys._getframe()))

    assert [chosen() for _ in range(5)] == [True] * 5
    assert counting.searches == 1
    assert not lines.choose(stack(sys._getframe()))


def frame_of(function: Any) -> FrameType:
    """A frame in ``function``, which returns it."""
    frame: FrameType = function()
    return frame


def test_expressions_search_path_line_and_function() -> None:
    def inner() -> FrameType:
        return sys._getframe()

    found = stack(frame_of(inner))
    for pattern, expected in (
        (rf"test_collectives\.py\[{found[0][1]}\] inner$", True),
        (r"^.*/tests/core/instrumentation/test_collectives", True),
        (r"test_collectives\.py\[0\]", False),
    ):
        assert LinePatterns([pattern]).choose(found) is expected


def test_a_wrong_expression_is_refused_before_training() -> None:
    with pytest.raises(ConfigError, match=r"cc_codeline.*expected a regular expression"):
        load({"cc_distribution": {"cc_codeline": ["train.py[23"]}})


def test_the_log_is_bounded() -> None:
    log = CallLog()
    for number in range(DISTINCT + 5):
        log.add(f"operation{number}", (0,), ["f"], ())
    assert len(list(log.lines())) == DISTINCT + 1
    assert list(log.lines())[-1] == "collectives: 5 more calls of other kinds"


# The rule.


def step(*bad: tuple[str, int, float, float]) -> Batch:
    """A batch of rows, each with its direction, order, and counts of NaN and Inf."""
    return Batch(
        signal="other",
        step=0,
        keys=tuple(Key(f"all_reduce{i}", part) for i, (part, *_) in enumerate(bad)),
        shapes=((4,),) * len(bad),
        dtypes=("f",) * len(bad),
        order=np.array([order for _, order, *_ in bad]),
        columns={"nans": np.array([row[2] for row in bad]), "infs": np.array([row[3] for row in bad])},
    )


HEALTHY = step(("pre", 0, 0, 0), ("post", 1, 0, 0))
GIVEN = step(("pre", 4, 1, 0), ("post", 5, 4, 0))
GOT = step(("pre", 0, 0, 0), ("post", 1, 4, 0))
GOT_THEN_GIVEN = step(("pre", 8, 2, 2), ("post", 5, 4, 0))
TWO_GIVEN = step(("pre", 6, 0, 3), ("pre", 2, 1, 0), ("post", 7, 4, 0))


@pytest.mark.parametrize(
    ("steps", "found"),
    [
        ([HEALTHY, GIVEN], [[], [("all_reduce0", 1.0)]]),
        ([GOT, GIVEN], [[], []]),
        ([GOT_THEN_GIVEN], [[]]),
        ([GIVEN, GIVEN, HEALTHY, GIVEN], [[("all_reduce0", 1.0)], [], [], [("all_reduce0", 1.0)]]),
        ([TWO_GIVEN], [[("all_reduce1", 1.0), ("all_reduce0", 3.0)]]),
    ],
    ids=["given", "got earlier", "got before", "once until healthy", "in order"],
)
def test_comm_nan_reports_what_did_not_come_from_others(
    steps: list[Batch], found: list[list[tuple[str, float]]]
) -> None:
    rule = AnomalyCommNan(None, 3, ["norm"])
    answers = [list(rule.judge(batch)) for batch in steps]
    assert [[(f.key.name, f.value) for f in findings] for findings in answers] == found
    assert {f.rank for findings in answers for f in findings} <= {3}


def test_comm_nan_judges_nothing_else() -> None:
    others = Batch("grad_reduced", 0, GIVEN.keys, GIVEN.shapes, GIVEN.dtypes, GIVEN.order, GIVEN.columns)
    assert list(AnomalyCommNan(None, 0, []).judge(others)) == []
