"""Fields of ``manifest.json``, written and read; a field that is not as documented is dropped by the reader."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple, TypedDict

FILE = "manifest.json"
FACTS = {
    "framework": "framework",
    "framework_version": "its version",
    "probe": "probe",
    "world_size": "world size",
    "model": "model",
    "optimizer": "optimizer",
    "start_time": "began",
    "end_time": "ended",
}
"""Fields that describe a run to people, with their titles."""
PIPELINE = "pipeline_parallel"
DATA = "data_parallel"
"""Names of groups that readers ask for."""
OF_OPTIMIZERS = ("optimizer", "optimizer_state_names")
"""Fields that change when an optimizer replaces another."""
MOST_RANKS = 1_000_000
"""Ranks of a run at most; larger numbers in files are not used."""
REST = "rest"
"""Name of a plan that collects nothing until the configuration changes."""
MOST_CHANGES = 100
"""Number of changes of the configuration that are listed beside the newest, the latest ones."""
HIGHEST = 2**31 - 1
"""Limit of a step, a stage or a run's number: DuckDB and SQLite hold them in 32 bits."""


class RunDescription(TypedDict):
    """The fields that are known before the first step."""

    probe: str
    host: str
    """Name of the machine."""
    program: str
    """Identity that ``probe run`` gives all processes of a program; empty without it."""
    framework: str
    framework_version: str
    rank: int
    world_size: int
    groups: Mapping[str, Sequence[int]]
    """Ranks by the name of a group; the groups that contain this rank."""
    run: int
    """Number of the run, the same on all ranks."""
    first_step: int
    pp_stage: int
    """Pipeline stage."""
    model: list[str]
    """Classes."""
    optimizer: list[str]
    """Classes."""
    optimizer_state_names: list[dict[str, str]]
    raw_names: Mapping[str, str]
    """The framework's names of modules and parameters that have other names here."""
    start_time: str
    """Time such as ``2026-11-03T21:34:40+0800``."""
    time_zone: str
    directory_time_zone: str
    config: Mapping[str, object]


def identity(rank: int, run: int, first_step: int) -> dict[str, object]:
    """Return the fields by which readers distinguish runs, before the others are known."""
    return {"rank": rank, "run": run, "first_step": first_step}


def _of(field: str, otherwise: object = None) -> Any:
    """Return a property with the value of a field, or ``otherwise`` if a manifest lacks it."""
    return property(lambda manifest: manifest.get(field, otherwise))


class Manifest(dict[str, Any]):
    """Fields of a manifest that was read, without those that were not as documented."""

    config: Mapping[str, Any] = _of("config", {})
    """The configuration; empty if it is unknown."""
    rank: int | None = _of("rank")
    world_size: int | None = _of("world_size")
    pipeline_stage: int = _of("pp_stage", 0)
    """The pipeline stage; 0 if unknown."""
    host: str = _of("host", "")
    """Name of the machine; empty if unknown."""
    program: str = _of("program", "")
    """Identity of the program under ``probe run``; empty without it."""
    attachment: int = _of("run", 0)
    """Number of the run among those of a process."""
    start_time: str | None = _of("start_time")
    first_step: int | None = _of("first_step")
    last_step: int | None = _of("last_step")
    """The last step that has ended; None if the run has not ended, or no step has."""
    cost_seconds: Mapping[str, Any] = _of("cost_seconds", {})
    """Seconds by part; empty if the run has not ended."""
    findings: int | None = _of("findings")
    """The number of findings; None if the run has not ended."""
    faults: Mapping[str, int] = _of("faults", {})
    control: Mapping[str, Any] | None = _of("control")
    """The followed configuration file and the state that it requests; None if no file is followed."""

    @property
    def framework(self) -> str:
        return str(self.get("framework") or "")

    @property
    def groups(self) -> Mapping[str, tuple[int, ...]]:
        """Ranks by the name of a group; empty if none is named."""
        return {name: tuple(ranks) for name, ranks in (self.get("groups") or {}).items()}

    @property
    def ended(self) -> bool:
        """True if the run has ended."""
        return "end_time" in self

    @property
    def changes(self) -> list[dict[str, object]]:
        """Changes of the configuration."""
        return [change for change in self.get("changes", ()) if isinstance(change, dict)]

    def continued(self, first: int, resumed_at: int) -> dict[str, object]:
        """Return the fields that are kept when a run continues in the directory: when and with which step the output
        began, and the steps at which it was resumed."""
        original = {name: self[name] for name in ("run", "start_time") if name in self}
        return {**original, "first_step": min(first, resumed_at), "resumed": [*self.get("resumed", ()), resumed_at]}


class _Field(NamedTuple):
    expected: str
    fits: Callable[[object], bool]


def is_whole(value: object, low: int = 0, high: int = HIGHEST) -> bool:
    """Return whether ``value`` is a whole number from ``low`` to ``high``."""
    return isinstance(value, int) and not isinstance(value, bool) and low <= value <= high


def misfit(key: str, value: object) -> str | None:
    """Return the expectation of the field ``key`` that ``value`` does not meet; None if ``value`` fits or the field is
    unknown."""
    field = _FIELDS.get(key)
    return None if field is None or field.fits(value) else field.expected


def _is_control(value: object) -> bool:
    if not isinstance(value, Mapping):
        return False
    numbers = all(is_whole(value.get(key, 0)) for key in ("step", "changes", "process"))
    return numbers and isinstance(value.get("file", ""), str)


def _is_groups(value: object) -> bool:
    if not isinstance(value, Mapping):
        return value is None
    return all(isinstance(ranks, list) and all(map(is_whole, ranks)) for ranks in value.values())


_WHOLE = _Field(f"a whole number from 0 to {HIGHEST}", is_whole)
_FIELDS = {
    "rank": _Field(f"a whole number below {MOST_RANKS}", lambda value: is_whole(value, 0, MOST_RANKS - 1)),
    "world_size": _Field(f"at most {MOST_RANKS} ranks", lambda value: is_whole(value, 0, MOST_RANKS)),
    "run": _WHOLE,
    "start_time": _Field("a time such as 2026-11-03T21:34:40+0800", lambda value: isinstance(value, str)),
    "first_step": _WHOLE,
    "last_step": _WHOLE,
    "host": _Field("the name of a machine", lambda value: isinstance(value, str)),
    "program": _Field("the identity of a program", lambda value: isinstance(value, str)),
    "pp_stage": _WHOLE,
    "groups": _Field("ranks by the name of a group", _is_groups),
    "config": _Field("a configuration", lambda value: isinstance(value, Mapping)),
    "control": _Field("the followed file, and whole numbers for process, step and changes", _is_control),
    "changes": _Field("a list", lambda value: isinstance(value, list)),
    "cost_seconds": _Field("seconds by what took them", lambda value: isinstance(value, Mapping)),
    "findings": _WHOLE,
    "faults": _Field("counts by kind", lambda value: isinstance(value, Mapping)),
    "resumed": _Field("a list", lambda value: isinstance(value, list)),
}
