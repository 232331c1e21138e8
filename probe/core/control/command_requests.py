"""Commands to a training program, as other processes request them: files in a folder beside the configuration file.

A request is never replaced by another one. Each rank acknowledges each request, in a file of its own.
"""

from __future__ import annotations

import json
import secrets
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal, NamedTuple, get_args

import annotated_types as ranges
from pydantic import Field, PrivateAttr, ValidationError

from probe.core.config.errors import problems
from probe.core.fields import Integer, Names, Number, Section
from probe.core.storage.files import json_of, replacing

SUFFIX = ".commands"
"""Ending of the folder; before it comes the name of the configuration file."""
MOST_WAITING = 100
"""Requests that a folder has room for; further ones are refused."""

MOST_TEXT = 500
"""Characters of an answer's text."""

State = Literal["accepted", "refused", "done", "failed"]
STATES: tuple[str, ...] = get_args(State)
"""States of a command on a rank. It is accepted when the program gets it; of several other answers the first counts."""


class Command(Section):
    """Command to a training program, which answers it: by :meth:`done`, :meth:`failed` or :meth:`refuse`, or by a
    ``with`` statement, at whose end it counts as done, or as failed if an exception leaves it."""

    name: ClassVar[str]
    _answer: Callable[[State, str], None] | None = PrivateAttr(None)

    def __new__(cls, *unnamed: Any, **values: Any) -> Command:
        """Refuse wrong arguments of a program in words; what validates a configuration passes none."""
        if unnamed:
            text = f"{cls.__name__}: expected arguments by name, got {unnamed[0]!r:.80}"
            raise TypeError(f"{text}; write {', '.join(f'{name}=...' for name in cls.model_fields)}")
        if values:
            _validated(cls, values)
        return super().__new__(cls)

    def received(self, answer: Callable[[State, str], None]) -> Command:
        """Return a copy whose answers go to ``answer``."""
        copy = self.model_copy()
        copy._answer = answer
        return copy

    def done(self, text: str = "") -> None:
        """Answer that the program has carried the command out."""
        self._say("done", text)

    def failed(self, text: str = "") -> None:
        """Answer that the program could not carry the command out."""
        self._say("failed", text)

    def refuse(self, text: str = "") -> None:
        """Answer that the program does not carry the command out."""
        self._say("refused", text)

    def _say(self, state: State, text: str) -> None:
        if self._answer is not None:
            self._answer(state, str(text)[:MOST_TEXT])

    def __eq__(self, value: object) -> bool:
        return type(value) is type(self) and isinstance(value, Command) and value.model_dump() == self.model_dump()

    def __hash__(self) -> int:
        return hash((type(self), *self.model_dump().values()))

    def __enter__(self) -> Command:
        return self

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if error is None:
            self.done()
        else:
            self.failed(f"{type(error).__name__}: {error}")


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
    try:
        _Named.model_validate({"command": name})
    except ValidationError as error:
        raise ValueError("; ".join(problems(error, _Named, lambda _: f"command {name}: "[:100]))) from None
    return _validated(COMMANDS[name], args)


def _validated(kind: type[Command], args: Mapping[str, Any]) -> Command:
    try:
        return kind.model_validate(dict(args))
    except ValidationError as error:
        raise ValueError("; ".join(problems(error, kind, lambda _: f"command {kind.name}: "))) from None


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
    if len(waiting(folder)) >= MOST_WAITING:
        raise BlockingIOError(f"{folder}: {MOST_WAITING} requests wait for an answer; remove those that are not needed")
    made = time.time()
    name = f"{int(made * 1e9):020d}-{secrets.token_hex(4)}"
    body = {"command": command.name, "args": command.model_dump(), "time": made, "sender": sender}
    with replacing(folder / f"{name}.json") as file:
        json.dump(body, file)
    return name


def waiting(folder: Path) -> list[str]:
    """Return the ids of the requests that no rank has answered, in their order."""
    answered = {path.name.partition(".rank")[0] for path in folder.glob("*.ack")}
    return sorted(path.stem for path in _requests(folder) if path.stem not in answered)


def read_request(folder: Path, request: str) -> CommandRequest:
    """Return the request of an id.

    Raises:
        OSError: if it cannot be read.
        ValueError: if it is no request.
    """
    contents = json_of(folder / f"{request}.json")
    try:
        command = command_of(str(contents["command"]), contents.get("args", {}))
        return CommandRequest(request, command, float(contents["time"]), str(contents.get("sender", ""))[:200])
    except (KeyError, TypeError, AttributeError) as error:
        raise ValueError(f"{request}: expected a request, got {type(error).__name__}: {error}"[:MOST_TEXT]) from None


def acknowledge(folder: Path, answer: Acknowledgement) -> None:
    """Write ``answer``, in place of this rank's earlier one to the request.

    Raises:
        OSError: if it cannot be written.
    """
    with replacing(folder / f"{answer.request}.rank{answer.rank}.ack") as file:
        json.dump(answer._asdict(), file)


def acknowledgements(folder: Path, request: str) -> list[Acknowledgement]:
    """Return the answers to ``request`` by rank; one that cannot be read is left out."""
    answers = []
    for path in folder.glob(f"{request}.rank*.ack"):
        with suppress(OSError, ValueError, TypeError):
            answer = Acknowledgement(**json_of(path))
            if answer.state in STATES:
                answers.append(answer)
    return sorted(answers, key=lambda answer: answer.rank)


def _requests(folder: Path) -> Iterator[Path]:
    """Return the files of requests; none if there is no folder."""
    with suppress(FileNotFoundError):
        yield from (path for path in folder.iterdir() if path.suffix == ".json" and not path.name.startswith("."))
