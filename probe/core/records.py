"""What flows from the hooks to the files: frozen, without behaviour of its own, knowing no framework."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal, NamedTuple

import numpy as np
import numpy.typing as npt

from probe.core.moments import derive

Array = npt.NDArray[np.float64]

Outcome = Literal["applied", "skipped", "unknown", "partial"]
"""End of a step: its update was applied, skipped (a gradient scaler), may be either; or the run ended within it."""


class Key(NamedTuple):
    """Which tensor a row is about. Two rows of one signal and step never share a key."""

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
    """Which elements of a tensor that several ranks share this rank's row is about."""

    shape: tuple[int, ...]
    """Of the whole tensor."""
    part: str
    """Which elements, as users read it (``0:1024``, ``rows 0:32``): rows of equal parts are about the same elements,
    rows of other parts about others."""
    ranks: tuple[int, ...]
    """Who hold the parts of one whole, this rank among them, in ascending order."""
    term: bool = False
    """Whether the ranks hold terms of a sum, each of the whole shape, instead of parts: their moments do not merge."""

    def text(self, numel: int) -> str:
        """Of a row about ``numel`` elements: ``1024 of [64, 32] at 0:1024 over ranks 0-1``."""
        where = "term" if self.term else "at"
        return f"{numel} of {list(self.shape)} {where} {self.part} over ranks {ranks_text(self.ranks)}"


def ranks_text(ranks: Sequence[int]) -> str:
    """``0-3`` for 0, 1, 2, 3; ``0-6:2`` for 0, 2, 4, 6; else all of them, ``0,1,5``."""
    step = ranks[1] - ranks[0] if len(ranks) > 1 else 0
    if len(ranks) > 1 and step > 0 and list(ranks) == [*range(ranks[0], ranks[-1] + 1, step)]:
        return f"{ranks[0]}-{ranks[-1]}" + (f":{step}" if step > 1 else "")
    return ",".join(map(str, ranks))


@dataclass(frozen=True)
class Batch:
    """All rows of one signal at one step, as columns."""

    signal: str
    """What is measured; also the prefix of the CSV file: ``actv``, ``grad_reduced``, ``exp_avg``, ..."""
    step: int
    keys: tuple[Key, ...]
    shapes: tuple[tuple[int, ...], ...]
    dtypes: tuple[str, ...]
    """The framework's own spelling, such as ``torch.float32``."""
    order: npt.NDArray[np.int64]
    """Call ids: the position of each reading in the order of this step's execution, over all signals."""
    columns: Mapping[str, Array]
    """Moments (see :mod:`probe.core.moments`), and whatever a signal adds; each of ``len(keys)``."""
    micro_stepped: bool = False
    """Whether ``micro_step`` tells rows apart here (activations; unreduced gradients of each micro batch)."""
    coverage: tuple[Coverage | None, ...] = ()
    """What each row covers of a tensor that ranks share, None for a whole tensor; empty if all are whole."""
    distribution: bool = False
    """Whether the histograms are written even where no op asks for them."""

    def op(self, name: str) -> Array:
        """The column of an op such as ``norm``; ``len(self)`` float64 values.

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
    """Whether it takes the place of a file that is there."""


class Finding(NamedTuple):
    """One thing a rule found in one value."""

    rule: str
    signal: str
    key: Key
    op: str
    value: float
    expected: float
    """What the rule compared with (a history mean, a median, a threshold); NaN if nothing."""
    step: int
    rank: int
    order: int
    """Call id of the reading."""
    message: str
    micro_stepped: bool = False


@dataclass(frozen=True)
class Snapshot:
    """Everything one step gave, as the sinks get it."""

    step: int
    rank: int
    time: float
    """Seconds since the epoch at the end of the step."""
    batches: Sequence[Batch]
    ops: Sequence[str]
    """The ops to write, in the order of the columns."""
    findings: Sequence[Finding] = ()
    """In causal order: the first is the first bad thing of this step."""
    scalars: Mapping[str, float] = field(default_factory=dict)
    cost: Mapping[str, float] = field(default_factory=dict)
    """What probe itself spent on this step, in seconds: ``hooks`` and ``drain`` on the training thread."""
    outcome: Outcome = "applied"
    """``applied``, ``skipped`` (by a gradient scaler) or ``partial`` (the run ended inside the step)."""
