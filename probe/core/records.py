"""Records that pass from the hooks to the files: frozen, without behaviour of their own, free of frameworks."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from math import nan
from pathlib import Path
from typing import Literal, NamedTuple, get_args

import numpy as np
import numpy.typing as npt

from probe.core.moments import derive, moment_of

Array = npt.NDArray[np.float64]

Outcome = Literal["applied", "skipped", "unknown", "partial"]
"""Outcome of a step: its update was applied, skipped (by a gradient scaler), or either; or the run ended within it."""


class Update(NamedTuple):
    """Update of a step, with those just before it."""

    outcome: Outcome = "unknown"
    skips: int = 0
    """Number of skipped updates in a row, up to this one; steps that were not sampled count."""
    begun: bool = True
    """True if an update has been applied earlier in this process: a gradient scaler has had a usable scale."""
    rate: float = nan
    """Learning rate of the first optimizer's first group of parameters; NaN if unknown."""


class Key(NamedTuple):
    """Identity of the tensor of a row. Two rows of one signal and step never share a key."""

    name: str
    """Module or parameter as the user knows it, squashed if so configured; the root module is ``""``."""
    part: str = ""
    """``input``, ``output_1``, ... for activations; ``""`` for parameters."""
    micro_step: int = 0
    """Index of the micro batch within the step."""
    call: int = 0
    """Repetition within one micro step (shared and looped modules)."""
    stage: int = 0
    """Virtual pipeline stage: the index of the model chunk."""


class Coverage(NamedTuple):
    """Part of a tensor shared by several ranks that the row of one rank is about."""

    shape: tuple[int, ...]
    """Shape of the whole tensor."""
    part: str
    """Elements as users read them (``0:1024``, ``rows 0:32``): rows of equal parts are about the same elements, rows of
    other parts about others."""
    ranks: tuple[int, ...]
    """Ranks that hold the parts of one whole, this rank among them, in ascending order."""
    term: bool = False
    """True if the ranks hold terms of a sum, each of the whole shape, instead of parts: their moments do not merge."""


@dataclass(frozen=True)
class Batch:
    """All rows of one signal at one step, as columns."""

    signal: str
    """Name of the signal; also the prefix of the CSV file: ``actv``, ``grad_reduced``, ``exp_avg``, ..."""
    step: int
    keys: tuple[Key, ...]
    shapes: tuple[tuple[int, ...], ...]
    dtypes: tuple[str, ...]
    """Dtypes in the framework's own spelling, such as ``torch.float32``."""
    order: npt.NDArray[np.int64]
    """Call ids: positions of readings in the order of this step's execution, over all signals."""
    columns: Mapping[str, Array]
    """Moments (see :mod:`probe.core.moments`), and columns that a signal adds; each of ``len(keys)``."""
    micro_stepped: bool = False
    """True if rows are distinguished by ``micro_step`` (activations; unreduced gradients of each micro batch)."""
    coverage: tuple[Coverage | None, ...] = ()
    """Coverage of each row of a tensor that ranks share, None for a whole tensor; empty if all are whole."""
    distribution: bool = False
    """True if the histograms are written even if no op asks for them."""
    absent: Mapping[str, npt.NDArray[np.bool_]] = field(default_factory=dict)
    """Rows that lack a column, by its name: their number there is NaN and stands for nothing. Columns that no row lacks
    are left out; files of other writers alone have some."""

    update: Update = Update()  # noqa: RUF009 - it cannot change
    """Update of the step."""

    def has(self, name: str) -> npt.NDArray[np.bool_]:
        """Return for each row whether it has an op or a column.

        Raises:
            KeyError: as :meth:`op`.
        """
        column = moment if (moment := moment_of(name)) in self.columns else name
        if column not in self.columns:
            raise KeyError(name)
        missing = self.absent.get(column)
        return np.ones(len(self), dtype=np.bool_) if missing is None else ~missing

    def op(self, name: str) -> Array:
        """Column of an op such as ``norm``; ``len(self)`` float64 values.

        Raises:
            KeyError: if the op is unknown or its moments were not collected.
        """
        return derive(name, self.columns, self.shapes)

    def __len__(self) -> int:
        return len(self.keys)


class TextFile(NamedTuple):
    """A file beside the tables, as a source makes it once."""

    path: Path
    text: str
    where: str
    """The place at which a failure to write it is counted."""
    replaces: bool = True
    """True if it takes the place of a file that is there."""


Severity = Literal["info", "warning", "critical"]
"""Urgency of an alert: to be read some time, soon, or at once."""
SEVERITIES: tuple[str, ...] = get_args(Severity)


class Alert(NamedTuple):
    """Message to people about one matter of a run."""

    key: str
    """Identity of the matter, the same on every rank that notices it, such as ``spike loss``: two alerts with one
    key are about the same matter."""
    kind: str
    """``finding``, ``run`` (a rule about numbers of the run), ``hang``, ``gone`` (a process), ``exception``,
    ``sigterm``, ``begin``, ``end``, or ``omitted`` (a number of alerts that were counted only)."""
    severity: Severity
    title: str
    """One line."""
    text: str
    """Lines with the details."""
    labels: Mapping[str, str]
    """Facts by name: ``job``, ``rank``, ``host``, ``step``, ``rule``, ..."""
    time: float
    """Seconds since the epoch."""
    resolved: bool = False
    """True if the matter has ended."""
    lasting: bool = False
    """True if the matter is a state that is resolved when it ends: until then the alert is sent again to receivers that
    forget what is not."""
    repeated: bool = False
    """True if an earlier process has sent the alert, and its matter goes on: only those receivers get it again."""
    language: str = ""
    """Language of title and text, such as ``zh_cn``; empty for English."""


class Finding(NamedTuple):
    """Value that a rule reports."""

    rule: str
    signal: str
    key: Key
    op: str
    value: float
    expected: float
    """Value that the rule compared with (a history mean, a median, a threshold); NaN if none."""
    step: int
    rank: int
    order: int
    """Call id of the reading."""
    message: str
    micro_stepped: bool = False


@dataclass(frozen=True)
class Snapshot:
    """Everything collected in one step, as the sinks get it."""

    step: int
    rank: int
    time: float
    """Seconds since the epoch at the end of the step."""
    batches: Sequence[Batch]
    ops: Sequence[str]
    """Ops to write, in the order of the columns."""
    findings: Sequence[Finding] = ()
    """Findings in causal order: the first is the likely cause of the others in this step."""
    scalars: Mapping[str, float] = field(default_factory=dict)
    cost: Mapping[str, float] = field(default_factory=dict)
    """Time that probe itself spent on this step, in seconds: ``hooks`` and ``drain`` on the training thread."""
    outcome: Outcome = "applied"
    """``applied``, ``skipped`` (by a gradient scaler) or ``partial`` (the run ended inside the step)."""
    update: Update | None = None
    """Update of the step; None if nothing is known but its outcome."""
