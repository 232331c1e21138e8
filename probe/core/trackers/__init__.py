"""Trackers of experiments, one a file, each imported when it is used."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import NamedTuple, Protocol

from probe.core.errors import missing

Cell = str | int | float
"""Cell of a table."""


class TrackedRow(NamedTuple):
    """Values of one step, by the name of their series; those of one step may come in several rows."""

    step: int
    time: float
    """Seconds since the epoch."""
    values: Mapping[str, float]


class Notice(NamedTuple):
    """Message to the people who look at a run."""

    title: str
    text: str
    critical: bool
    step: int


class TrackedTable(NamedTuple):
    """Table of a run; a later one with its name replaces it."""

    name: str
    columns: tuple[str, ...]
    rows: Sequence[tuple[Cell, ...]]


class TrackerTarget(NamedTuple):
    """Run of a tracker to which a run of probe belongs."""

    project: str
    run: str
    """Name of the run, if none is active that is joined."""
    facts: Mapping[str, Cell]
    """Facts about the run, such as its job."""
    joins: bool = True
    """True if an active run of this process is joined."""


class TrackerEnded(Exception):  # noqa: N818 - nothing has failed
    """End of a run of the program's, after which its tracker takes nothing; the text says so."""


class Tracker(Protocol):
    """A run in a tracker. All methods are called on one thread, in order, and may raise.

    It is made on the training thread, before training: a run of the program's is active there, if it has one.
    """

    def begin(self) -> None:
        """Join the active run of the program, if the tracker has one, else begin a run."""

    def log(self, rows: Sequence[TrackedRow]) -> None:
        """Log ``rows``, in the order of their steps."""

    def alert(self, notice: Notice) -> None:
        """Send ``notice`` as the tracker's own alert; one without alerts keeps it as text."""

    def table(self, table: TrackedTable) -> None:
        """Show ``table``."""

    def summary(self, texts: Mapping[str, Cell]) -> None:
        """Set facts of the run, by name."""

    def artifact(self, path: Path) -> None:
        """Keep the file ``path``, such as a report, with the run."""

    def end(self) -> None:
        """Finish a run that :meth:`begin` has begun, and leave one that it has joined."""


class TrackerPlace(NamedTuple):
    """Class of a tracker, imported when it is made."""

    path: str
    """Its module and class."""
    package: str
    """The package that it needs; also the extra of `setup.py`."""


TRACKERS: dict[str, TrackerPlace] = {
    "wandb": TrackerPlace("probe.core.trackers.wandb:WandbTracker", "wandb"),
    "mlflow": TrackerPlace("probe.core.trackers.mlflow:MlflowTracker", "mlflow"),
    "swanlab": TrackerPlace("probe.core.trackers.swanlab:SwanlabTracker", "swanlab"),
    "trackio": TrackerPlace("probe.core.trackers.trackio:TrackioTracker", "trackio"),
}
"""Every tracker. To add one, write a file with its class, and add a line here."""


def check_tracker(name: str, purpose: str) -> None:
    """Check that the package of a tracker is installed, without importing it.

    Raises:
        ImportError: if it is missing; the text says how to install it.
    """
    package = TRACKERS[name].package
    if find_spec(package) is None:
        raise ImportError(missing(purpose, package, name))


def new_tracker(name: str, target: TrackerTarget) -> Tracker:
    """Return the tracker called ``name``; nothing is begun yet.

    Then its package is imported, on this thread: what it registers for the end of the process is so registered before
    the monitor's own, and at the end of a short run an import would come too late.
    """
    module, _, attribute = TRACKERS[name].path.partition(":")
    made: Tracker = getattr(import_module(module), attribute)(target)
    import_module(TRACKERS[name].package)
    return made
