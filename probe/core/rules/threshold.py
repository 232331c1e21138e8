"""Rule about values beyond limits that the user has set."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from fnmatch import fnmatchcase
from typing import Annotated

import numpy as np
import numpy.typing as npt
from pydantic import AfterValidator, Field, ValidationInfo, field_validator

from probe.core.fields import Names, Number, Section, Text, not_empty, wrong
from probe.core.moments import OPS, moment_of
from probe.core.naming import COLUMNS, RUN_NUMBERS, VALUE, row_name
from probe.core.records import Array, Batch, Finding, Key
from probe.core.rules.about import About
from probe.core.rules.reporter import Reporter

Mask = npt.NDArray[np.bool_]

OF_RUN = (*RUN_NUMBERS, VALUE)
"""Names that stand for numbers of the run."""
OF_SIGNALS = tuple(dict.fromkeys(column for columns in COLUMNS.values() for column in columns))
OF_WHOLE_TENSORS = (*(f"global_{op}" for op in OPS), "merged", "copies", "agreeing")
"""Columns that ``global_stats`` adds."""
ANY = (*OPS, *OF_SIGNALS, *OF_WHOLE_TENSORS, *OF_RUN)
AnyOps = Annotated[tuple[Annotated[Text, Names(ANY)], ...], AfterValidator(not_empty)]


class ThresholdArgs(Section):
    """Limits of the user's own. At least one of above and below is needed."""

    above: Number | None = None
    """Value, in the unit of the op and with its sign, above which a value is reported."""
    below: Number | None = Field(None, validate_default=True)
    """Value below which a value is reported."""
    ops: AnyOps = ("norm",)
    """Numbers that are judged, of those that are recorded: ops; columns of features, such as entropy or load_max, and
    of collectives, such as seconds; global_norm and its like; and numbers of the run, such as loss or learning_rate,
    at every step. value stands for every number of the run that names choose, those that the program logs under names
    of its own included."""
    signals: tuple[Text, ...] = ()
    """Signals that are judged, such as actv, grad_reduced or exp_avg, by the prefixes of CSV files; run for numbers of
    the run. Empty: all."""
    names: tuple[Text, ...] = ()
    """Patterns of the rows that are judged, by their names in CSV files: `*` stands for anything, `?` for a character,
    as in `layers.*.attention.output`. Empty: all."""

    @field_validator("below")
    @classmethod
    def _one_at_least(cls, below: float | None, info: ValidationInfo) -> float | None:
        if below is None and "above" in info.data and info.data["above"] is None:
            raise wrong("a number, here or as above")
        if below is not None and (above := info.data.get("above")) is not None and below > above:
            raise wrong(f"at most above, {above:g}: every value is above one or below the other")
        return below


class AnomalyThreshold(About):
    """Report values above ``args.above`` or below ``args.below``, with their sign and in the unit of the op.

    Only the ops, signals and rows that ``args`` name are judged, at every sampled step: the rule has no memory. Inf is
    judged; NaN is neither above nor below anything, and left to ``AnomalyNan``. Numbers of the run are judged by
    :class:`probe.core.run_state.rules.threshold.RunThreshold`.
    """

    Args = ThresholdArgs
    title = "Value beyond its limit"
    why = "You know limits of your model that no other rule does."
    source = "https://prometheus.io/docs/prometheus/latest/configuration/alerting_rules/"
    sees = "the ops, signals and rows that you name"
    kind = "limit"
    judges_size = True
    finds = "finds values beyond limits that the user sets"

    def __init__(self, args: ThresholdArgs, rank: int, ops: Sequence[str]) -> None:
        self._above: float = np.inf if args.above is None else args.above
        self._below: float = -np.inf if args.below is None else args.below
        self._ops = [op for op in args.ops if op in ops or (op not in OPS and op not in OF_RUN)]
        self._signals = frozenset(args.signals)
        self._patterns: tuple[str, ...] = tuple(args.names) or ("*",)
        self._latest: dict[str, tuple[tuple[Key, ...], Mask]] = {}
        self._limits = {side: Reporter("AnomalyThreshold", rank, f"limit {side}") for side in ("above", "below")}

    def judge(self, batch: Batch) -> Iterator[Finding]:
        if self._signals and batch.signal not in self._signals:
            return
        named = self._named(batch)
        for op in self._ops:
            if moment_of(op) in batch.columns:
                values = batch.op(op)
                yield from self._findings(batch, op, values, named & (values > self._above), "above", self._above)
                yield from self._findings(batch, op, values, named & (values < self._below), "below", self._below)

    def _findings(
        self, batch: Batch, op: str, values: Array, beyond: Mask, side: str, limit: float
    ) -> Iterator[Finding]:
        at = np.flatnonzero(beyond)
        yield from self._limits[side].findings(batch, op, at, values[at], np.full(len(at), limit))

    def _named(self, batch: Batch) -> Mask:
        """Return the mask of the rows whose names are judged."""
        keys, mask = self._latest.get(batch.signal, ((), None))
        if mask is None or keys != batch.keys:
            names = map(row_name, batch.keys)
            mask = np.array(
                [any(fnmatchcase(name, pattern) for pattern in self._patterns) for name in names], dtype=bool
            )
            self._latest[batch.signal] = (batch.keys, mask)
        return mask
