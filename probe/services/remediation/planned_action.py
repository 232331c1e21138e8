"""Vocabulary of actions: the alert, the action that is planned for it, and its execution."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar, NamedTuple, Protocol

from probe.core.alerting.redaction import redact
from probe.core.fields import Section
from probe.core.messages import printable

MOST_SHOWN = 80
"""Most characters of a wrong value that a message shows."""
Key = tuple[int | str, ...]


class RefusedAlertError(Exception):
    """Refusal of an alert before anything is done; its text is the reason."""


class FailedActionError(Exception):
    """Failure of an action that has begun; its text is the reason."""


class InterruptedActionError(Exception):
    """End of an action because the service ends; its text is the state that it leaves."""


class ActionArgsError(Exception):
    """Error of arguments that no action can be made of.

    Args:
        problems: pairs of the path of a key within the arguments and a sentence.
    """

    def __init__(self, problems: Sequence[tuple[Key, str]]) -> None:
        super().__init__("; ".join(sentence for _, sentence in problems))
        self.problems = tuple(problems)


class FiringAlert(NamedTuple):
    """Alert as Alertmanager sends it."""

    name: str
    labels: Mapping[str, str]
    starts: float
    """Time since which it fires, in seconds since the epoch."""
    fingerprint: str
    """Digest of its labels: the same for each delivery of one alert."""
    firing: bool = True
    """False in the notice that it is over."""


class Surroundings(NamedTuple):
    """All that actions may use besides their arguments."""

    programs: Mapping[str, Path | None]
    """Programs of the allow-list, by the text in the configuration; None: not installed."""
    jobs: Mapping[str, Job]
    environment: Mapping[str, str]
    """Environment of programs."""


class Job(NamedTuple):
    """Training that takes commands."""

    configuration: Path
    ranks: int | None


class Execution:
    """Time and interruption of an action that is under way.

    Args:
        seconds: longest time that it takes.
        ending: event that is set when the service ends.
        record: function that stores a sentence about the action and the identity of its process.
    """

    def __init__(self, seconds: float, ending: threading.Event, record: Callable[[str, str], None]) -> None:
        self.seconds, self.ending, self.record = seconds, ending, record
        self._until = time.monotonic() + seconds

    @property
    def left(self) -> float:
        """Seconds until the deadline, at least 0."""
        return max(0.0, self._until - time.monotonic())

    def check(self) -> None:
        """Check that the action may go on.

        Raises:
            FailedActionError: after the deadline.
            InterruptedActionError: if the service ends.
        """
        if self.ending.is_set():
            raise InterruptedActionError("the service has ended")
        if not self.left:
            raise FailedActionError(f"not finished within {self.seconds:g} s")


class PlannedAction(NamedTuple):
    """Action with everything that it needs from its alert, checked."""

    target: str
    """Name of the thing that is changed: one action at a time for each."""
    description: str
    """Description of the action, one line."""
    rehearse: Callable[[], str]
    """Return a description of all that the action would do; raises FailedActionError if it could not."""
    perform: Callable[[Execution], str]
    """Do it, and return a description of the result. Raises FailedActionError or InterruptedActionError."""


class Action(Protocol):
    """Kind of action, made of its arguments; ``live`` is false if it is only rehearsed.

    Raises:
        ActionArgsError: if it cannot be made.
    """

    Args: ClassVar[type[Section]]
    by_host: ClassVar[bool]
    """True if the action changes this machine: then the alert must be about this machine."""

    def __init__(self, args: Any, surroundings: Surroundings, live: bool) -> None: ...

    def plan(self, alert: FiringAlert) -> PlannedAction:
        """Return the action for ``alert``. This waits for nothing.

        Raises:
            RefusedAlertError: if a label is missing or wrong.
        """
        ...


def shown(value: str) -> str:
    """Return ``value`` in quotes, cut, on one line and without secrets."""
    text = printable(redact(value[: MOST_SHOWN * 4]))
    return f'"{text}"' if len(text) <= MOST_SHOWN else f'"{text[: MOST_SHOWN - 3]}..."'
