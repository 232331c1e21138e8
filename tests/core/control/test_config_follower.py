"""The configuration file as two ranks follow it: what each takes up, and at which step."""

from __future__ import annotations

import json
import logging
import os
from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import Any

import pytest

from probe.core.config import parse
from probe.core.config.load import load
from probe.core.control.config_follower import LOG, Control, follow
from probe.core.faults import Faults

AHEAD = 3
"""Steps after which all ranks have seen what is written."""
OFF: dict[str, Any] = {"dynamic_on": False}
ON: dict[str, Any] = {"dynamic_on": True, "collect_times": 100}
Edits = dict[int, dict[str, Any]]
Taken = dict[int, tuple[bool, tuple[str, ...]]]
"""Collecting and ops, by the step from which on they hold."""


class Rank:
    """Rank that counts the steps it collects, as a monitor does."""

    def __init__(self, path: Path, rank: int, read: str | None = None) -> None:
        text = path.read_text() if read is None else read
        self.faults, self.taken = Faults(), Taken()
        settings, content = load(json.loads(text)), text.encode()
        self.control = Control(path, settings, content, 0, False, rank == 0, self.faults, lambda: AHEAD)
        self._left = 0

    def step(self, number: int) -> None:
        """``number`` is about to begin."""
        if self.collecting and not self._left:
            self.control.finish()
        settings = self.control.poll(number, idle=not self._left)
        if settings is not None:
            self._left = settings.collect_times if settings.dynamic_on else 0
            self.taken[number] = settings.dynamic_on, settings.ops
            self.collecting = settings.dynamic_on
        self.collecting = bool(self._left)
        self._left -= self.collecting

    collecting = False


def two_ranks(folder: Path, steps: int, edits: Edits, late: int, start: dict[str, Any]) -> tuple[Rank, Rank, str]:
    """Both ranks after ``steps`` steps, and the file; ``edits`` are made during the steps of these numbers.

    The second rank sees every state of the file ``late`` steps late. A key that is edited to None is taken out.
    """
    paths = folder / "seen.json", folder / "seen_late.json"
    states = [json.dumps(start)]
    for path in paths:
        path.write_text(states[0])
    ranks = [Rank(path, number) for number, path in enumerate(paths)]
    for step in range(1, steps):
        if step - 1 in edits:
            values = json.loads(paths[0].read_text()) | edits[step - 1]
            paths[0].write_text(json.dumps({key: value for key, value in values.items() if value is not None}))
        ranks[0].step(step)
        states.append(paths[0].read_text())
        shown = states[max(len(states) - 1 - late, 0)]
        if paths[1].read_text() != shown:
            paths[1].write_text(shown)
        ranks[1].step(step)
    return ranks[0], ranks[1], paths[0].read_text()


@pytest.mark.parametrize("late", [0, 1, 2])
@pytest.mark.parametrize(
    ("edits", "taken"),
    [
        ({2: ON, 4: {"ops": ["max"]}}, {6: (True, ("norm",)), 10: (True, ("max",))}),
        ({2: ON, 5: {"ops": ["max"]}}, {6: (True, ("norm",)), 10: (True, ("max",))}),
        (
            {2: ON, 4: {"ops": ["min"]}, 8: {"ops": ["max"]}},
            {6: (True, ("norm",)), 10: (True, ("min",)), 14: (True, ("max",))},
        ),
        ({2: ON | {"apply_at_step": 15}, 4: {"ops": ["max"]}}, {15: (True, ("max",))}),
        ({2: ON | {"apply_at_step": 15}, 4: {"apply_at_step": None}}, {8: (True, ("norm",))}),
    ],
)
def test_two_changes_in_a_row_take_effect_on_all_ranks(tmp_path: Path, edits: Edits, taken: Taken, late: int) -> None:
    """Each at a step of its own, also where the second comes before the first holds."""
    one, other, _ = two_ranks(tmp_path, 24, edits, late, OFF)
    assert one.taken == other.taken == taken
    assert one.faults.counts == other.faults.counts == {}


@pytest.mark.parametrize("late", [0, 1])
def test_a_change_that_waits_for_its_step_outlives_the_end_of_collecting(tmp_path: Path, late: int) -> None:
    """The first rank does not write ``dynamic_on: false`` over it."""
    edits = {1: ON | {"collect_times": 3}, 6: {"ops": ["max"], "collect_times": 2}}
    one, other, text = two_ranks(tmp_path, 20, edits, late, OFF)
    assert one.taken == {5: (True, ("norm",)), 10: (True, ("max",))}
    assert json.loads(text)["dynamic_on"] is False
    assert {step: on for step, (on, _) in other.taken.items() if step <= 10} == {5: True, 10: True}
    *_, text = two_ranks(tmp_path, 11, edits, late, OFF)
    assert json.loads(text)["dynamic_on"] is True


def alone(path: Path, read: str | None = None) -> Control:
    """A run of one rank that has read ``read`` (None: what is there)."""
    text = path.read_text() if read is None else read
    return Control(path, load(json.loads(text)), text.encode(), 0, True, True, Faults(), lambda: 0)


def test_what_was_changed_before_training_began_is_taken_up(tmp_path: Path) -> None:
    """While a large model was made, or between two attachments."""
    path = tmp_path / "monitor.json"
    path.write_text(json.dumps(ON))
    control = alone(path, read=json.dumps(OFF))
    settings = control.poll(1, idle=True)
    assert settings is not None
    assert settings.dynamic_on
    assert control.content == path.read_bytes()


def test_a_change_in_the_last_step_is_not_written_over(tmp_path: Path) -> None:
    """The change takes effect, as any other."""
    path = tmp_path / "monitor.json"
    path.write_text(json.dumps(ON))
    control = alone(path)
    assert control.poll(1, idle=True) is not None
    path.write_text(json.dumps(ON | {"ops": ["max"]}))
    control.finish()
    settings = control.poll(2, idle=True)
    assert settings is not None
    assert (settings.dynamic_on, settings.ops) == (True, ("max",))


def test_a_file_replaced_while_it_is_read_is_one_change(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its new content is not taken as that of the old file, and then once more as that of a file touched at rest."""
    path = write(tmp_path / "monitor.json", ON)
    control = alone(path)
    assert control.poll(1, idle=True) is not None
    read = parse.content

    def replaced(name: str) -> bytes:
        monkeypatch.setattr(parse, "content", read)
        write(tmp_path / "new.json", OFF).replace(path)
        return read(name)

    monkeypatch.setattr(parse, "content", replaced)
    taken: list[bool] = []
    for step in range(2, 6):
        settings = control.poll(step, idle=bool(taken))
        taken += [] if settings is None else [settings.dynamic_on]
    assert taken == [False]


def test_a_step_is_kept_while_the_file_is_away(tmp_path: Path) -> None:
    """Some editors take it away for a moment."""
    one, other = Rank(write(tmp_path / "a.json", ON), 0), Rank(write(tmp_path / "b.json", ON), 1)
    (tmp_path / "a.json").unlink()
    for rank in (one, other):
        rank.step(1)
        rank.step(2)
    assert list(one.taken) == list(other.taken) == [1]
    assert one.faults.counts == {"control: FileNotFoundError": 1}


def write(path: Path, values: dict[str, Any]) -> Path:
    path.write_text(json.dumps(values))
    return path


def test_where_the_step_cannot_be_written_no_rank_begins(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The warning has the remedy; and all ranks begin together once the file can be written."""
    first = Rank(write(tmp_path / "a.json", OFF), 0)
    write(tmp_path / "a.json", ON)
    (tmp_path / f".a.json.{os.getpid()}.tmp").mkdir()  # in the way of what is written
    first.step(1)
    first.step(2)
    assert first.taken == {}
    assert json.loads((tmp_path / "a.json").read_text()) == ON
    assert first.faults.counts == {"control: OSError": 2}
    (tmp_path / f".a.json.{os.getpid()}.tmp").rmdir()
    for step in range(3, 8):
        first.step(step)
    assert list(first.taken) == [3 + AHEAD]
    assert json.loads((tmp_path / "a.json").read_text()) == ON | {"apply_at_step": 3 + AHEAD}


def test_a_broken_file_that_is_put_back_changes_nothing(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """The same mistake made again is logged again."""
    path = write(tmp_path / "monitor.json", ON)
    control = alone(path)
    assert control.poll(1, idle=True) is not None
    for broken in ("{", json.dumps(ON), "{", json.dumps(ON)):
        path.write_text(broken)
        assert control.poll(2, idle=False) is None
    assert sum("cannot be used" in record.message for record in caplog.records) == 2


def test_whether_a_signal_switches_may_change(tmp_path: Path) -> None:
    """The key changes as any other."""
    import signal

    before = signal.getsignal(signal.SIGUSR1)
    path = write(tmp_path / "monitor.json", OFF)
    control = alone(path)
    write(path, OFF | {"toggle_on_signal": True})
    control.poll(1, idle=True)
    assert signal.getsignal(signal.SIGUSR1) != before
    os.kill(os.getpid(), signal.SIGUSR1)
    settings = control.poll(2, idle=True)
    assert settings is not None
    assert settings.dynamic_on
    write(path, OFF)
    control.poll(3, idle=False)
    assert signal.getsignal(signal.SIGUSR1) == before
    control.close()
    assert signal.getsignal(signal.SIGUSR1) == before


@pytest.mark.parametrize(("at", "warned"), [(4, False), (5, False), (6, True)])
def test_a_step_that_is_over_when_training_begins_is_not_waited_for(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, at: int, warned: bool
) -> None:
    """A step left in the file by an earlier run counts only if it is still to come; then it is logged."""
    path = tmp_path / "probe.json"
    path.write_text(json.dumps(ON | {"apply_at_step": at}))
    settings, content = load(json.loads(path.read_text())), path.read_bytes()
    with caplog.at_level(logging.WARNING, logger="probe.control"):
        control = Control(path, settings, content, 5, True, True, Faults(), lambda: AHEAD)
    assert [f"begins at step {at}" in record.getMessage() for record in caplog.records] == [True] * warned
    assert control.poll(6, idle=True) is not None


class Place:
    """Groups of a rank, of which the follower asks for its number and how many there are."""

    def __init__(self, rank: int, ranks: int) -> None:
        self._rank, self._ranks = rank, ranks

    def rank(self) -> int:
        return self._rank

    def world_size(self) -> int:
        return self._ranks


class SharingRank(Rank):
    """Rank that reads the same file as the others, at its own speed."""

    def __init__(self, path: Path, rank: int, ranks: int) -> None:
        self.faults, self.taken, self.number = Faults(), Taken(), 0
        settings, content = load(json.loads(path.read_text())), path.read_bytes()
        groups: Any = Place(rank, ranks)
        self.control: Any = follow(path, settings, content, 0, groups, self.faults, lambda: AHEAD)
        self._left = 0

    def next_step(self) -> None:
        """Begin the next step."""
        self.number += 1
        self.step(self.number)


@pytest.fixture
def dynamic(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DYNAMIC_MONITOR", "True")


def whole(path: Path, text: str, _: Random) -> None:
    path.with_suffix(".new").write_text(text)
    path.with_suffix(".new").replace(path)


def half(path: Path, text: str, random: Random) -> None:
    path.write_text(text[: random.randrange(1, len(text))])


def garbage(path: Path, _: str, random: Random) -> None:
    path.write_bytes(random.randbytes(40))


def away(path: Path, _: str, __: Random) -> None:
    path.unlink(missing_ok=True)


WAYS: tuple[Callable[[Path, str, Random], None], ...] = (whole, whole, whole, half, garbage, away)


@pytest.mark.usefixtures("dynamic")
@pytest.mark.parametrize("seed", range(20))
def test_edits_that_follow_each_other_hold_on_all_ranks_alike(tmp_path: Path, seed: int) -> None:
    """Ranks of unlike speed follow a file that is replaced, half written, spoilt and deleted at any moment; each takes
    the same changes at the same steps."""
    random, path = Random(seed), write(tmp_path / "monitor.json", OFF)
    ranks = [SharingRank(path, number, 3) for number in range(3)]
    for _ in range(400):
        slowest, leader = min(rank.number for rank in ranks), ranks[0].number
        # another rank is a step behind what has been announced for it, at most
        able = [rank for rank in ranks if rank.number <= min(slowest + 2, leader + AHEAD - 1)]
        random.choice(able).next_step()
        if random.random() < 0.4:
            values = {"dynamic_on": random.random() < 0.8, "ops": random.sample(["norm", "min", "max", "mean"], 2)}
            random.choice(WAYS)(path, json.dumps(values | {"collect_times": random.choice([3, 100])}), random)
    last = min(rank.number for rank in ranks)
    one, *others = ({step: taken for step, taken in rank.taken.items() if step <= last} for rank in ranks)
    assert len(one) > 5
    assert all(other == one for other in others)
    assert not [name for rank in ranks for name in rank.faults.counts if "Timeout" in name]


@pytest.mark.usefixtures("dynamic")
def test_a_rank_that_reads_a_change_after_its_step_counts_it(tmp_path: Path) -> None:
    """It takes the change at once; later ones hold at their steps."""
    path = write(tmp_path / "monitor.json", OFF)
    first, other = SharingRank(path, 0, 2), SharingRank(path, 1, 2)
    for _ in range(8):
        other.next_step()
    whole(path, json.dumps(ON), Random())
    for _ in range(9):
        first.next_step()
    other.next_step()
    whole(path, json.dumps(ON | {"ops": ["max"]}), Random())
    for _ in range(9):
        first.next_step()
        other.next_step()
    assert list(first.taken) == [1 + AHEAD, 10 + AHEAD]
    assert list(other.taken) == [9, 10 + AHEAD]
    assert (first.faults.counts, other.faults.counts) == ({}, {"control: TimeoutError": 1})


@pytest.mark.usefixtures("dynamic")
def test_an_edit_during_the_announcement_of_another_is_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The step of the first is not written over the second, which has a step of its own."""
    path = write(tmp_path / "monitor.json", OFF)
    first, other = SharingRank(path, 0, 2), SharingRank(path, 1, 2)
    whole(path, json.dumps(ON), Random())
    link = os.link

    def edited(*places: Any) -> None:
        link(*places)
        monkeypatch.setattr(os, "link", link)
        whole(path, json.dumps(ON | {"ops": ["max"]}), Random())

    monkeypatch.setattr(os, "link", edited)
    for _ in range(10):
        first.next_step()
        other.next_step()
    assert first.taken == other.taken == {4: (True, ("norm",)), 8: (True, ("max",))}


@pytest.mark.usefixtures("dynamic")
def test_without_a_log_a_step_in_the_file_counts(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Where nothing can be written beside the file, all ranks read the step that the user names, and a log line says
    so."""
    path = write(tmp_path / "monitor.json", OFF)
    path.with_name(path.name + LOG).touch()  # in the way of the folder
    first, other = SharingRank(path, 0, 2), SharingRank(path, 1, 2)
    assert ["cannot be logged beside it" in record.getMessage() for record in caplog.records] == [True]
    whole(path, json.dumps(ON | {"apply_at_step": 4}), Random())
    for _ in range(6):
        first.next_step()
        other.next_step()
    assert list(first.taken) == list(other.taken) == [4]
    assert first.faults.counts == other.faults.counts == {}


@pytest.mark.usefixtures("dynamic")
def test_the_log_of_an_earlier_run_does_not_count(tmp_path: Path) -> None:
    """A run that is begun again starts with its file, and reads what is announced from then on."""
    path = write(tmp_path / "monitor.json", OFF)
    for ops in (["min"], ["max"]):
        ranks = [SharingRank(path, number, 2) for number in range(2)]
        for rank in ranks:
            rank.next_step()
        whole(path, json.dumps(ON | {"ops": ops}), Random())
        for _ in range(6):
            for rank in ranks:
                rank.next_step()
        assert ranks[0].taken == ranks[1].taken
        assert ranks[0].taken[2 + AHEAD] == (True, tuple(ops))
        whole(path, json.dumps(OFF), Random())
