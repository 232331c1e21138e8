"""Trial of a program: the facts of its first few updates, which prechecks judge. No framework is seen here."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields
from typing import Any, NamedTuple

from probe.core.checks.loss_calls import LossCall


class InputFacts(NamedTuple):
    """A tensor of floating-point numbers that a model got."""

    mean: float
    std: float
    rms: float


class ModelCall(NamedTuple):
    """Outermost call of a model for training."""

    update: int
    digest: int
    """Digest of all tensors that it got."""
    inputs: tuple[InputFacts, ...]


class OutputFacts(NamedTuple):
    """Outputs of a module in the first call of its model."""

    name: str
    kind: str
    """Name of its class."""
    rms: float
    zeros: float
    """Share of numbers that are exactly 0."""
    saturated: float
    """Share of numbers within a hundredth of a limit of the function; 0 of a function without limits."""
    hidden: bool
    """True if modules with parameters are called after it."""
    dtype: str = ""
    """Dtype of the output of a module with parameters; empty of another."""


class ParameterFacts(NamedTuple):
    """A trainable parameter."""

    name: str
    """Name in the model."""
    kind: str
    """Name of the class of its module."""
    shape: tuple[int, ...]
    least: float
    most: float
    """Least and greatest number before training."""
    equal_rows: bool
    """True if it has several rows, and all are equal."""
    order: int
    """Place of its module in the order of calls; -1 if it was not called."""
    gradients: tuple[float, ...]
    """Norm of its gradient at each update; NaN where there was none."""
    digest: int = 0
    """Digest of its numbers before training; 0 if this process has none of them."""


class ScheduleFacts(NamedTuple):
    """A schedule of learning rates."""

    kind: str
    advances: tuple[int, ...]
    """Steps of the schedule from each update to the next."""
    backwards: int
    """Backwards of an update, the least number of them."""
    horizon: int
    """Step at which it comes to its end; 0 if that is not known."""
    planned: str
    """Name under which the program holds the same number as the steps or updates that it trains; empty if none does."""
    by_processes: bool
    """True if a wrapper steps it once for each process."""
    rates: tuple[float, ...]
    """First rate at each update."""


class LoaderFacts(NamedTuple):
    """A loader of data."""

    sampler: str
    """Name of the class of its sampler; empty of a stream."""
    shuffles: bool | None
    """None if that is not known."""
    distributed: bool
    """True if its sampler divides the samples among ranks."""
    workers: int
    repeated_epoch: bool
    """True if a second epoch began with the number of the first, by which its order is drawn."""


class WorkerFacts(NamedTuple):
    """Facts that a worker process of a loader has written with its first batch."""

    loader: str
    """Identity of the loader and of its epoch."""
    worker: int
    generators: Mapping[str, int]
    """Digest of the state of each random generator that was used for the batch, by name, before it was used."""
    batch: int
    """Digest of the batch of a stream; 0 of numbered samples."""


class Causality(NamedTuple):
    """Result of a repeated forward in evaluation mode whose last tokens were replaced."""

    leak: float
    """Largest change of an output before the replaced tokens, by the largest change at them; NaN if that is 0."""
    from_tokens: int
    """Number of tokens that were not replaced."""
    mixed: float
    """Largest change in another sample of the batch, by the largest change at the tokens."""


class Accumulation(NamedTuple):
    """Backwards of one update."""

    values: tuple[float, ...]
    """Value of each root, without a scaler's factor."""
    divided_later: bool
    """True if the gradients were divided by their number before the update."""
    normalises: bool
    """True if the size of the update does not depend on that of the gradients: Adam and its like, without clipping."""


@dataclass
class Trial:
    """Facts of the first few updates of a program on one rank. Whatever could not be seen has its reason in
    ``unseen``."""

    rank: int = 0
    world: int = 1
    data_parallel: bool = False
    """True if the model is replicated over the ranks."""
    updates: int = 0
    losses: list[LossCall] = field(default_factory=list)
    calls: list[ModelCall] = field(default_factory=list)
    outputs: list[OutputFacts] = field(default_factory=list)
    parameters: list[ParameterFacts] = field(default_factory=list)
    schedules: list[ScheduleFacts] = field(default_factory=list)
    loaders: list[LoaderFacts] = field(default_factory=list)
    workers: list[WorkerFacts] = field(default_factory=list)
    accumulations: list[Accumulation] = field(default_factory=list)
    causality: Causality | None = None
    dropout: int = 0
    """Digest of the state of the generators at the first call of a model with active dropout; 0 if it has none."""
    unrecorded: str = ""
    """Reason for which nothing but the updates was recorded, as a clause; empty otherwise."""
    unseen: dict[str, str] = field(default_factory=dict)
    """Reasons for which a precheck could see nothing, by its name, as clauses."""

    def first_update(self) -> list[LossCall]:
        """Return the losses before the first update."""
        return [call for call in self.losses if not call.update]

    def as_json(self) -> dict[str, Any]:
        """Return the trial as values that JSON can hold, with NaN as Python's JSON has it."""
        return (
            asdict(self)
            | {name: [row._asdict() for row in getattr(self, name)] for name in ROWS}
            | {"causality": None if self.causality is None else self.causality._asdict()}
        )

    @classmethod
    def of(cls, values: Mapping[str, Any]) -> Trial:
        """Parse what :meth:`as_json` has returned.

        Raises:
            TypeError, KeyError, ValueError: if it is something else.
        """
        rows = {name: [_parsed(kind, row) for row in values[name]] for name, kind in ROWS.items()}
        causality = None if values["causality"] is None else Causality(**values["causality"])
        plain = {field.name: values[field.name] for field in fields(cls)}
        return cls(**{**plain, **rows, "causality": causality})


ROWS: dict[str, Any] = {
    "losses": LossCall,
    "calls": ModelCall,
    "outputs": OutputFacts,
    "parameters": ParameterFacts,
    "schedules": ScheduleFacts,
    "loaders": LoaderFacts,
    "workers": WorkerFacts,
    "accumulations": Accumulation,
}
"""Fields of a trial that are lists, by the class of their rows."""


def _parsed(kind: Any, row: Mapping[str, Any]) -> Any:
    """Return a row, whose sequences are tuples again."""
    values = {name: tuple(value) if isinstance(value, list) else value for name, value in row.items()}
    if kind is ModelCall:
        values["inputs"] = tuple(InputFacts(*facts) for facts in values["inputs"])
    return kind(**values)


def finite(values: tuple[float, ...]) -> list[float]:
    """Return those of ``values`` that are numbers."""
    return [value for value in values if math.isfinite(value)]
