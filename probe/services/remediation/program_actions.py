"""Actions that run a program of the allow-list: a lower power limit of a GPU, and commands of the user's own."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Annotated, ClassVar

import annotated_types as ranges
from pydantic import AfterValidator, Field

from probe.core.fields import Integer, Section, Text, not_empty
from probe.services.remediation.child_process import ProgramResult, run_program
from probe.services.remediation.label_fields import FieldSettings, Label, gpu_of, value_of
from probe.services.remediation.planned_action import (
    ActionArgsError,
    Execution,
    FailedActionError,
    FiringAlert,
    Key,
    PlannedAction,
    Surroundings,
)

_PLACEHOLDER = re.compile(r"\{(\w+)\}")
FOLDER = Path("/proc/driver/nvidia/gpus")
"""Folder with one of each GPU, named by its place on the bus.

https://download.nvidia.com/XFree86/Linux-x86_64/535.113.01/README/procinterface.html
"""
_UUID = re.compile(r"^GPU UUID:\s*(GPU-[0-9a-f-]{36})$", re.MULTILINE)
_EXCLUDED = re.compile(r"^GPU Excluded:\s*Yes$", re.MULTILINE)


class PowerLimitArgs(Section):
    """Arguments of lower_power_limit."""

    watts: Annotated[Integer, ranges.Ge(1), ranges.Le(10_000)]
    """New limit of the power of the GPU in watts. A limit that is as low already stays."""
    labels: Annotated[tuple[Label, ...], AfterValidator(not_empty)] = ("gpu_uuid", "gpu_id")
    """Labels with the UUID or the index of the GPU: the first that the alert has counts."""
    program: Label = "nvidia-smi"
    """nvidia-smi as it stands in programs."""


class LowerPowerLimit:
    """Lower the power limit of a GPU by nvidia-smi, which needs the rights of root."""

    Args: ClassVar[type[Section]] = PowerLimitArgs
    by_host: ClassVar[bool] = True

    def __init__(self, args: PowerLimitArgs, surroundings: Surroundings, live: bool) -> None:
        self._args, self._environment = args, surroundings.environment
        self._program = _program(args.program, ("program",), surroundings, live)

    def plan(self, alert: FiringAlert) -> PlannedAction:
        """Return the action for the GPU that the alert names."""
        gpu = gpu_of(alert, self._args.labels)
        argv = (str(self._program or self._args.program), "-i", gpu, "-pl", str(self._args.watts))

        def perform(execution: Execution) -> str:
            before = self._limit(gpu, execution)
            if before <= self._args.watts:
                return f"GPU {gpu}: its power limit of {before:g} W is not above {self._args.watts} W; nothing changed"
            _checked(argv, run_program(argv, self._environment, execution))
            return f"GPU {gpu}: power limit lowered from {before:g} W to {self._args.watts} W"

        return PlannedAction(f"gpu {gpu_uuid(gpu)}", " ".join(argv), lambda: _would_run(argv, self._program), perform)

    def _limit(self, gpu: str, execution: Execution) -> float:
        """Read the present limit of the power in watts."""
        query = (str(self._program), "-i", gpu, "--query-gpu=power.limit", "--format=csv,noheader,nounits")
        output = _checked(query, run_program(query, self._environment, execution))
        try:
            watts = float(output.text)
        except ValueError:
            watts = math.nan
        if math.isfinite(watts):
            return watts
        raise FailedActionError(f"GPU {gpu}: expected its power limit in watts, got {output.text[:100]}")


class ProgramArgs(Section):
    """Arguments of run_program."""

    argv: Annotated[tuple[Text, ...], AfterValidator(not_empty)]
    """Program as it stands in programs, and its arguments, each an element of its own; `{name}` stands for the value of
    a field. No shell reads them."""
    fields: dict[str, FieldSettings] = Field(default_factory=dict)
    """Fields by name: labels with their types."""
    target: Text | None = None
    """Name of the thing that is changed, in which `{name}` stands for the value of a field too; one action at a time
    for each. Missing: the program and all of its fields."""


class RunProgram:
    """Run a program of the allow-list."""

    Args: ClassVar[type[Section]] = ProgramArgs
    by_host: ClassVar[bool] = True

    def __init__(self, args: ProgramArgs, surroundings: Surroundings, live: bool) -> None:
        self._args, self._environment = args, surroundings.environment
        _check_placeholders(args)
        self._program = _program(args.argv[0], ("argv", 0), surroundings, live)

    def plan(self, alert: FiringAlert) -> PlannedAction:
        """Return the action with the fields that the alert fills."""
        values = {name: value_of(field, alert) for name, field in self._args.fields.items()}
        argv = (
            str(self._program or self._args.argv[0]),
            *(_filled(argument, values) for argument in self._args.argv[1:]),
        )
        target = self._target(values)

        def perform(execution: Execution) -> str:
            output = _checked(argv, run_program(argv, self._environment, execution))
            return f"{' '.join(argv)}: exit code 0{': ' if output.text else ''}{output.text}"

        return PlannedAction(target, " ".join(argv), lambda: _would_run(argv, self._program), perform)

    def _target(self, values: Mapping[str, str]) -> str:
        """Return the name of the thing that is changed: the same for a GPU by its index and by its UUID."""
        kinds = {name: field.type for name, field in self._args.fields.items()}
        names = {name: gpu_uuid(value) if kinds[name] == "gpu" else value for name, value in values.items()}
        if self._args.target is not None:
            return _filled(self._args.target, names)
        return self._args.argv[0] + "".join(f" {name}={value}" for name, value in names.items())


def _program(name: str, key: Key, surroundings: Surroundings, live: bool) -> Path | None:
    """Return the path of a program of the allow-list; None if it is not installed and nothing would be run."""
    if name not in surroundings.programs:
        programs = ", ".join(surroundings.programs) or "none"
        raise ActionArgsError([(key, f"expected one of programs ({programs}), got {name}; add it to programs")])
    path = surroundings.programs[name]
    if path is None and live:
        sentence = f"{name} is not installed; install it, write its path in programs, or set dry_run: true"
        raise ActionArgsError([(key, sentence)])
    return path


def _check_placeholders(args: ProgramArgs) -> None:
    problems: list[tuple[Key, str]] = []
    if _PLACEHOLDER.search(args.argv[0]):
        problems.append((("argv", 0), "expected the name of a program without a field"))
    texts: list[tuple[Key, str]] = [(("argv", number), argument) for number, argument in enumerate(args.argv)]
    texts += [] if args.target is None else [(("target",), args.target)]
    for key, text in texts:
        missing = [name for name in _PLACEHOLDER.findall(text) if name not in args.fields]
        problems += [(key, f"expected {{{name}}} to be one of fields; add it there") for name in missing]
    used = {name for _, text in texts for name in _PLACEHOLDER.findall(text)}
    problems += [
        (("fields", name), f"expected {{{name}}} in argv; it is not used") for name in args.fields if name not in used
    ]
    problems += [(key, "expected no NUL character") for key, text in texts if "\0" in text]
    if problems:
        raise ActionArgsError(problems)


def _filled(text: str, values: Mapping[str, str]) -> str:
    return _PLACEHOLDER.sub(lambda match: values[match[1]], text)


def _would_run(argv: Sequence[str], program: Path | None) -> str:
    return f"would run {' '.join(argv)}" + ("" if program else ", which is not installed here")


def _checked(argv: Sequence[str], result: ProgramResult) -> ProgramResult:
    if result.code == 0:
        return result
    ended = f"exit code {result.code}" if result.code > 0 else f"ended by signal {-result.code}"
    raise FailedActionError(f"{' '.join(argv)}: {ended}{': ' if result.text else ''}{result.text}")


def gpu_uuid(name: str) -> str:
    """Return the UUID of the GPU with the index or UUID ``name``; ``name`` itself if this machine has no such GPU.

    nvidia-smi counts the GPUs that the driver uses in the order of their places on the bus.
    """
    uuids = _uuids() if name.isdecimal() else []
    return next(iter(uuids[int(name) :]), "") or name if uuids else name


def _uuids() -> list[str]:
    """Return the UUIDs of the GPUs by index."""
    texts = []
    with suppress(OSError):
        texts = [(folder / "information").read_text("utf-8") for folder in sorted(FOLDER.iterdir())]
    return [match[1] if (match := _UUID.search(text)) else "" for text in texts if not _EXCLUDED.search(text)]
