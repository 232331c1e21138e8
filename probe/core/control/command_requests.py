"""Commands to a training program, as other processes request them: files in a folder beside the configuration file.

A request is never replaced by another one. Each rank acknowledges each request, in a file of its own.
"""

from __future__ import annotations

import json
import secrets
import time
from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal, NamedTuple, get_args

import annotated_types as ranges
from pydantic import Field, ValidationError

from probe.core.config.errors import problems
from probe.core.fields import Integer, Names, Number, Section
from probe.core.storage.files import json_of, replacing

SUFFIX = ".commands"
"""Ending of the folder; before it comes the name of the configuration file."""
MOST_WAITING = 100
"""Requests that a folder has room for; further ones are refused."""

State = Literal["accepted", "refused", "done", "failed"]
STATES: tuple[str, ...] = get_args(State)


class Command(Section):
    """Command to a training program."""

    name: ClassVar[str]


class RollbackCheckpoint(Command):
    """Continue from an earlier checkpoint."""

    name: ClassVar[str] = "rollback_checkpoint"
    before_step: Annotated[Integer, ranges.Ge(0)] | None = None
    """The checkpoint is older than this step; missing: the last one that the program holds to be sound."""


class ReduceLearningRate(Command):
    """Multiply the learning rate by a factor."""

    name: ClassVar[str] = "reduce_learning_rate"
    factor: Annotated[Number, ranges.Gt(0), ranges.Lt(1)] = 0.5


class ReduceBatchSize(Command):
    """Multiply the batch size by a factor."""

    name: ClassVar[str] = "reduce_batch_size"
    factor: Annotated[Number, ranges.Gt(0), ranges.Lt(1)] = 0.5


class ReduceDataloaderWorkers(Command):
    """Multiply the number of workers of the data loader by a factor."""

    name: ClassVar[str] = "reduce_dataloader_workers"
    factor: Annotated[Number, ranges.Gt(0), ranges.Lt(1)] = 0.5


class EnableGradientAccumulation(Command):
    """Accumulate gradients over more micro batches."""

    name: ClassVar[str] = "enable_gradient_accumulation"
    steps: Annotated[Integer, ranges.Ge(2)] = 2
    """Micro batches for each one of before."""


COMMANDS: dict[str, type[Command]] = {
    command.name: command
    for command in (
        RollbackCheckpoint,
        ReduceLearningRate,
        ReduceBatchSize,
        ReduceDataloaderWorkers,
        EnableGradientAccumulation,
    )
}
"""Every command, by name."""


class _Named(Section):
    """Name of a command."""

    command: Annotated[str, Names(tuple(COMMANDS))] = Field()


class CommandRequest(NamedTuple):
    """Request as it lies in the folder."""

    id: str
    """Name of its file without the ending: requests in the order of their ids are in the order of their times."""
    command: Command
    time: float
    """Seconds since the epoch."""
    sender: str


class Acknowledgement(NamedTuple):
    """Answer of one rank to one request: the latest one."""

    request: str
    rank: int
    state: State
    step: int
    """Step before which the command was given to the program."""
    text: str
    time: float


def command_of(name: str, args: Mapping[str, Any]) -> Command:
    """Return the command ``name`` with its arguments.

    Raises:
        ValueError: naming every problem.
    """
    model: type[Section] = _Named
    try:
        model.model_validate({"command": name})
        model = COMMANDS[name]
        return COMMANDS[name].model_validate(dict(args))
    except ValidationError as error:
        raise ValueError("; ".join(problems(error, model, lambda _: f"command {name}: "[:100]))) from None


def folder_of(configuration: Path) -> Path:
    """Return the folder of requests to the run that follows the file ``configuration``."""
    return configuration.with_name(configuration.name + SUFFIX)


def request(configuration: Path, command: Command, sender: str) -> str:
    """Write a request for ``command``; return its id.

    Raises:
        OSError: if it cannot be written.
        BlockingIOError: if as many requests wait as there is room for.
    """
    folder = folder_of(configuration)
    folder.mkdir(exist_ok=True)
    if sum(1 for _ in _requests(folder)) >= MOST_WAITING:
        raise BlockingIOError(f"{folder}: {MOST_WAITING} requests are there; remove those that are done")
    made = time.time()
    name = f"{int(made * 1e9):020d}-{secrets.token_hex(4)}"
    body = {"command": command.name, "args": command.model_dump(), "time": made, "sender": sender}
    with replacing(folder / f"{name}.json") as file:
        json.dump(body, file)
    return name


def requests(folder: Path) -> Iterator[CommandRequest | tuple[str, str]]:
    """Return the requests in ``folder`` in their order; of one that cannot be read, its id and the problem."""
    for path in sorted(_requests(folder)):
        try:
            found = json_of(path)
            command = command_of(str(found["command"]), found.get("args", {}))
            yield CommandRequest(path.stem, command, float(found["time"]), str(found.get("sender", ""))[:200])
        except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
            yield path.stem, f"{type(error).__name__}: {error}"[:500]


def acknowledge(folder: Path, answer: Acknowledgement) -> None:
    """Write ``answer``, in place of this rank's earlier one to the request.

    Raises:
        OSError: if it cannot be written.
    """
    with replacing(folder / f"{answer.request}.rank{answer.rank}.ack") as file:
        json.dump(answer._asdict(), file)


def acknowledgements(folder: Path, request: str) -> list[Acknowledgement]:
    """Return the answers to ``request`` by rank; one that cannot be read is left out."""
    found = []
    for path in folder.glob(f"{request}.rank*.ack"):
        with suppress(OSError, ValueError, TypeError):
            answer = Acknowledgement(**json_of(path))
            if answer.state in STATES:
                found.append(answer)
    return sorted(found, key=lambda each: each.rank)


def _requests(folder: Path) -> Iterator[Path]:
    """Return the files of requests; none if there is no folder."""
    with suppress(FileNotFoundError):
        yield from (each for each in folder.iterdir() if each.suffix == ".json" and not each.name.startswith("."))
