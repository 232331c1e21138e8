"""Signal handlers of a monitor that has ended on another thread than the main one."""

from __future__ import annotations

import signal
import subprocess
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from probe.core.backend.patch import Shared
from probe.core.control.config_follower import Toggle
from probe.core.monitor import process_exit
from probe.core.monitor.process_exit import Endings, restore_handler
from tests.quick_python import quick_python
from tests.user_scripts import COMMANDS

ROOT = Path(__file__).resolve().parents[3]


class Owner:
    """Handlers of the end of the process."""

    def __init__(self) -> None:
        self.flushed = 0

    def ended(self, interrupted: bool) -> None:
        raise AssertionError(f"the process has not ended: {interrupted}")

    def flush(self) -> None:
        self.flushed += 1


@pytest.fixture(params=[signal.SIGTERM, signal.SIGUSR1])
def came(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[list[int]]:
    """The signals that a handler of the user's has got; the first entry is the number of the signal."""
    fresh = Shared(process_exit._install)  # another test may have left a monitor attached
    monkeypatch.setattr(process_exit, "_live", fresh)
    seen = [int(request.param)]
    before = signal.signal(request.param, lambda number, _: seen.append(number))
    yield seen
    signal.signal(request.param, before)


def ended_elsewhere(number: int) -> Any:
    """Return the handler of a signal after the monitor's has ended on another thread."""
    owner = Owner()
    watching = Endings(owner.ended, owner.flush) if number == signal.SIGTERM else Toggle()
    thread = threading.Thread(target=watching.remove)
    thread.start()
    thread.join()
    return owner


def test_the_signal_goes_to_the_handler_before_ours(came: list[int]) -> None:
    """It comes there once, nothing of ours reacts, and from then on the handler is the one that was found."""
    (number,) = came
    users = signal.getsignal(number)
    owner = ended_elsewhere(number)
    assert signal.getsignal(number) is not users  # only the main thread can put it back
    signal.raise_signal(number)
    assert came == [number, number]
    assert owner.flushed == 0
    assert signal.getsignal(number) is users


@pytest.mark.parametrize("came", [signal.SIGTERM], indirect=True)
def test_the_handler_is_put_back_on_the_main_thread(came: list[int]) -> None:
    """By the next thing that is asked there; another monitor finds the user's handler and puts that back."""
    users = signal.getsignal(signal.SIGTERM)
    ended_elsewhere(signal.SIGTERM)
    restore_handler()
    assert signal.getsignal(signal.SIGTERM) is users
    ended_elsewhere(signal.SIGTERM)
    signal.signal(signal.SIGTERM, users)
    owner = Owner()
    another = Endings(owner.ended, owner.flush)
    signal.raise_signal(signal.SIGTERM)
    assert (owner.flushed, len(came)) == (1, 2)
    another.remove()
    assert signal.getsignal(signal.SIGTERM) is users


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGUSR1])
def test_a_process_still_dies_of_the_signal(number: int) -> None:
    """If there was no handler before ours, the signal ends the process."""
    script = f"""
import signal
from tests.core.monitor.test_process_exit import ended_elsewhere
ended_elsewhere({int(number)})
signal.raise_signal({int(number)})
"""
    process = subprocess.run([quick_python(*COMMANDS), "-c", script], cwd=ROOT, check=False)
    assert process.returncode == -number
