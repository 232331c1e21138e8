"""Commands to a program: requests, the step before which it gets them, and answers."""

from __future__ import annotations

import json
import os
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from probe.core.control import commands as commands_of_runs
from probe.core.control.command_requests import (
    COMMANDS,
    MOST_WAITING,
    Acknowledgement,
    Command,
    EnableGradientAccumulation,
    ReduceBatchSize,
    ReduceLearningRate,
    RollbackCheckpoint,
    acknowledgements,
    command_of,
    folder_of,
    request,
    waiting,
)
from probe.core.control.commands import CommandInbox
from probe.core.distributed.announcements import FolderNotices, Notices
from probe.core.faults import Faults
from tests.core.distributed.test_announcements import Kept, exchanged, ranks
from tests.waiting import wait_for

SECONDS = 120.0


@pytest.fixture(autouse=True)
def quick_looks(monkeypatch: pytest.MonkeyPatch) -> None:
    """The folder is looked at a hundred times a second, so that no test waits for a look."""
    monkeypatch.setattr(commands_of_runs, "LOOK_SECONDS", 0.01)


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "monitor.json"


def inbox(
    file: Path,
    rank: int = 0,
    ahead: int | Callable[[], int] = 0,
    first: int = 0,
    began: float = 0.0,
    notices: Notices | None = None,
) -> CommandInbox:
    """Commands as one rank gets them; announcements lie in a folder that all ranks see."""
    steps = ahead if callable(ahead) else lambda: ahead
    notices = notices or FolderNotices(file.parent / "announced", rank)
    return CommandInbox(folder_of(file), rank, rank == 0, steps, notices, first, began, Faults())


def states(file: Path, name: str) -> list[tuple[int, str, int]]:
    """Answers of the ranks to a request: rank, state, step."""
    return [(each.rank, each.state, each.step) for each in acknowledgements(folder_of(file), name)]


def test_two_commands_in_a_row_both_arrive_in_their_order(file: Path) -> None:
    """A later request overwrites none; each is accepted when the program gets it, then has the program's answer."""
    commands = inbox(file)
    names = [request(file, command_of("reduce_learning_rate", {"factor": factor}), "test") for factor in (0.5, 0.25)]
    got: list[Command] = []
    wait_for(lambda: got.extend(commands.due(7, ())) or len(got) == 2)
    assert got == [ReduceLearningRate(factor=0.5), ReduceLearningRate(factor=0.25)]
    wait_for(lambda: states(file, names[1]) == [(0, "accepted", 7)])
    with got[0]:
        pass
    with pytest.raises(ArithmeticError), got[1]:
        raise ArithmeticError("no")
    got[1].done()
    commands.close()
    assert states(file, names[0]) == [(0, "done", 7)]
    assert states(file, names[1]) == [(0, "failed", 7)]
    assert acknowledgements(folder_of(file), names[1])[0].text == "ArithmeticError: no"
    assert waiting(folder_of(file)) == []


def test_all_ranks_get_a_command_before_the_same_step(file: Path) -> None:
    """The first rank announces a step ahead; a rank that is a step behind gets it before that step, too."""
    ranks = [inbox(file, rank, ahead=3, first=1) for rank in range(2)]
    name = request(file, RollbackCheckpoint(before_step=4), "test")
    got: list[list[int]] = [[], []]
    step = 0

    def turn() -> bool:
        nonlocal step
        for rank, at in ((0, step), (1, step - 1)):
            if at >= 0 and ranks[rank].due(at, ()):
                got[rank].append(at)
        step += 1
        time.sleep(0.01)
        return bool(got[0] and got[1])

    wait_for(turn)
    assert got[0] == got[1]
    assert len(got[0]) == 1
    for each in ranks:
        each.close()
    assert [answer[:2] for answer in states(file, name)] == [(0, "accepted"), (1, "accepted")]


def test_nothing_is_announced_before_every_rank_has_begun(file: Path) -> None:
    """A rank that attaches later has its announcements from then on: none may lie there before the first step ends."""
    lead = inbox(file, ahead=2, first=1)
    request(file, ReduceBatchSize(), "test")
    wait_for(lambda: not lead._thread.found.empty())
    assert lead.due(0, ()) == []
    late = inbox(file, 1, ahead=2, first=1)
    for rank in (lead, late):
        assert rank.due(1, ()) == rank.due(2, ()) == []
    assert lead.due(3, ()) == late.due(3, ()) == [ReduceBatchSize()]
    for rank in (lead, late):
        rank.close()


def test_a_command_is_announced_when_the_one_before_was_read_back(file: Path) -> None:
    """A store keeps one announcement at a place: of two that are sent at one time the second would be lost."""
    store, (notices,) = Kept(), ranks(1)
    commands, got = inbox(file, notices=notices), list[Command]()
    for factor in (0.5, 0.25):
        request(file, ReduceLearningRate(factor=factor), "test")
    wait_for(lambda: commands._thread.found.qsize() == 2)
    for step in range(4):
        got += commands.due(step, ())
        exchanged(store, notices)
    commands.close()
    assert got == [ReduceLearningRate(factor=0.5), ReduceLearningRate(factor=0.25)]


def test_a_later_command_comes_in_no_earlier_step(file: Path) -> None:
    """Also if fewer steps are needed by then, since steps have become slower; neither counts as too late."""
    steps = iter([5, 0])
    commands = inbox(file, ahead=lambda: next(steps))
    request(file, ReduceBatchSize(), "test")
    wait_for(lambda: commands.due(0, ()) or commands._pending)
    request(file, RollbackCheckpoint(), "test")
    wait_for(lambda: commands.due(1, ()) or len(commands._pending) == 2)
    assert [commands.due(step, ()) for step in range(2, 6)] == [[], [], [], [ReduceBatchSize(), RollbackCheckpoint()]]
    commands.close()
    assert commands._faults.counts == {}


def test_files_that_are_no_answers_and_hidden_files_are_left_out(file: Path) -> None:
    """Halves, states that there are none of, and copies that another program is about to rename."""
    name = request(file, ReduceBatchSize(), "test")
    folder = folder_of(file)
    (folder / f".{name}.json").write_text((folder / f"{name}.json").read_text())
    assert waiting(folder) == [name]
    answer = Acknowledgement(name, 0, "done", 1, "", 0.0)._asdict()
    for rank, content in enumerate((answer, {**answer, "state": "perhaps"}, {**answer, "more": 1}, [1])):
        (folder / f"{name}.rank{rank}.ack").write_text(json.dumps(content))
    (folder / f"{name}.rank9.ack").write_text('{"request": ')
    assert states(file, name) == [(0, "done", 1)]


def test_types_that_the_program_does_not_take_are_refused(file: Path) -> None:
    """The answer lists those that it takes; the program does not see the others."""
    commands = inbox(file)
    name = request(file, EnableGradientAccumulation(steps=4), "test")
    wait_for(lambda: commands.due(3, (ReduceLearningRate, RollbackCheckpoint)) or states(file, name))
    commands.close()
    assert states(file, name) == [(0, "refused", 3)]
    text = acknowledgements(folder_of(file), name)[0].text
    assert text == "the program accepts reduce_learning_rate, rollback_checkpoint"


def test_requests_from_before_the_run_are_refused(file: Path) -> None:
    """They were meant for another one: a rollback that waits since yesterday rolls nothing back."""
    name = request(file, RollbackCheckpoint(), "test")
    commands = inbox(file, began=time.time() + 1)
    wait_for(lambda: states(file, name))
    assert commands.due(0, ()) == []
    commands.close()
    assert states(file, name) == [(0, "refused", -1)]


def test_commands_whose_step_never_comes_are_refused_at_the_end(file: Path) -> None:
    """Whoever asked learns that the run has ended."""
    commands = inbox(file, ahead=1000)
    name = request(file, RollbackCheckpoint(), "test")
    wait_for(lambda: commands.due(5, ()) or commands._pending)
    commands.close()
    assert states(file, name) == [(0, "refused", -1)]
    assert "ended" in acknowledgements(folder_of(file), name)[0].text


@pytest.mark.parametrize(
    "content",
    [
        *("", "{", "[]", "null", '{"command": "rm -rf"}', '{"command": "rollback_checkpoint", "args": 3, "time": 1}'),
        *('{"command": "reduce_learning_rate", "args": {"factor": 2}, "time": 1}', '{"command": ["a"], "time": {}}'),
        *('{"command": "rollback_checkpoint", "args": {}, "time": -9e999}', "[" * 100_000),
    ],
)
def test_a_file_that_is_no_request_is_refused(file: Path, content: str) -> None:
    """Whatever lies in the folder, the program gets no command of it, and the requests after it arrive."""
    folder = folder_of(file)
    folder.mkdir()
    (folder / "00000000000000000001-abc.json").write_text(content)
    commands = inbox(file, began=5.0)
    request(file, ReduceBatchSize(), "test")
    got: list[Command] = []
    wait_for(lambda: got.extend(commands.due(1, ())) or got)
    commands.close()
    assert got == [ReduceBatchSize()]
    assert states(file, "00000000000000000001-abc") in ([(0, "refused", -1)], [(0, "refused", 1)])


def test_a_folder_has_room_for_a_limited_number(file: Path) -> None:
    """Requests that nobody answers do not fill a disk; answered ones do not count."""
    names = [request(file, RollbackCheckpoint(), "test") for _ in range(MOST_WAITING)]
    with pytest.raises(BlockingIOError, match="wait for an answer"):
        request(file, RollbackCheckpoint(), "test")
    (folder_of(file) / f"{names[0]}.rank0.ack").write_text(
        json.dumps(Acknowledgement(names[0], 0, "done", 1, "", 0.0)._asdict())
    )
    request(file, RollbackCheckpoint(), "test")


@pytest.mark.parametrize(
    ("name", "args", "problem"),
    [
        ("reduce_learning", {}, r"expected one of .*did you mean reduce_learning_rate"),
        ("reduce_learning_rate", {"factor": 1.5}, "factor: expected a number"),
        ("reduce_learning_rate", {"factor": float("nan")}, "factor: expected a number"),
        ("reduce_learning_rate", {"rate": 0.5}, "rate: unknown key"),
        ("enable_gradient_accumulation", {"steps": 1}, "steps: expected an integer"),
        ("rollback_checkpoint", {"before_step": "5; rm"}, "before_step: expected an integer"),
    ],
)
def test_wrong_commands_are_refused_before_they_are_sent(name: str, args: dict[str, object], problem: str) -> None:
    """The error names the argument, and says what was expected."""
    with pytest.raises(ValueError, match=problem):
        command_of(name, args)


def test_every_command_has_defaults() -> None:
    """Each can be sent by its name alone."""
    assert {type(command_of(name, {})) for name in COMMANDS} == set(COMMANDS.values())


def test_a_forked_child_gets_none(file: Path) -> None:
    """A worker of a data loader neither reads announcements nor answers."""
    commands = inbox(file)
    request(file, RollbackCheckpoint(), "test")
    wait_for(lambda: not commands._thread.found.empty())
    child = os.fork()
    if child == 0:
        os._exit(len(commands.due(1, ())))
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert commands.due(1, ()) == [RollbackCheckpoint()]
    commands.close()
    assert not any(thread.name == "probe-commands" and thread.is_alive() for thread in threading.enumerate())
