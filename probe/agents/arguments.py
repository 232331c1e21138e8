"""Arguments of the tools; the docstring under each is its description in the tool's schema."""

from __future__ import annotations

from typing import Annotated, Literal

from annotated_types import Ge, Le, MaxLen
from pydantic import ConfigDict

from probe.core.fields import Section

MOST_WORDS = 4096
"""Characters of a text at most."""
Words = Annotated[str, MaxLen(MOST_WORDS)]
Step = Annotated[int, Ge(0), Le(1 << 40)]
LAST = 1 << 40


class ToolArguments(Section):
    """Arguments that every tool takes."""

    model_config = ConfigDict(coerce_numbers_to_str=True)


class PagedArguments(ToolArguments):
    """Part of a list."""

    limit: Annotated[int, Ge(1), Le(200)] = 20
    """Entries of the list at most."""
    offset: Step = 0
    """Entries that are left out before."""


class RunsArguments(PagedArguments):
    """Part of the list of runs, the one that changed last first."""

    text: Words = ""
    """Text in the name or the path of a run, upper or lower case."""


class OneRunArguments(ToolArguments):
    """A run."""

    run: Words = ""
    """Its number, name or path, as `runs` returns them; empty: the run that changed last."""


class SpanArguments(OneRunArguments):
    """Steps of a run."""

    first_step: Step = 0
    """First step."""
    last_step: Step = LAST
    """Last step, itself included."""


class SignalsArguments(OneRunArguments, PagedArguments):
    """Signals of a run, and with `signal` its rows."""

    signal: Words = ""
    """Signal whose rows are listed, `run` for the numbers of the run; empty: all signals, without rows."""
    text: Words = ""
    """Text in the name of a row, upper or lower case."""


class FindingsArguments(SpanArguments, PagedArguments):
    """Findings of a run that agree with all arguments."""

    signal: Words = ""
    """Signal, such as `actv`."""
    row: Words = ""
    """Row, as an answer names it."""
    rule: Words = ""
    """Rule or check, such as `AnomalyNan` or `loss-not-finite`."""
    rank: Step | None = None
    """Rank."""


class CurveArguments(SpanArguments):
    """A number over steps: of a row of a signal, or of the run, such as its loss."""

    name: Words = ""
    """Row of `signal`; without a signal a number of the run, empty: its loss. `signals` lists both."""
    signal: Words = ""
    """Signal; empty for a number of the run."""
    op: Words = ""
    """Number of a row, such as `norm`; empty: the first one of the signal."""
    ranks: Words = ""
    """Ranks such as `0-3,7`; empty: all of a row, the lowest one of a number of the run."""
    points: Annotated[int, Ge(1), Le(500)] = 60
    """Points of a curve at most; where steps are more, a point is the largest number of several."""


class HeatmapArguments(SpanArguments, PagedArguments):
    """Rows of a signal over steps; with `row`, ranks of that row over steps."""

    signal: Words
    """Signal, such as `actv`."""
    op: Words = ""
    """Number, such as `norm`; empty: the first one of the signal."""
    row: Words = ""
    """Row whose ranks are compared; empty: all rows, in the order of the model."""
    text: Words = ""
    """Text in the name of a row, upper or lower case."""
    rank: Step | None = None
    """Rank; none: all ranks together."""
    columns: Annotated[int, Ge(1), Le(100)] = 12
    """Columns at most; where steps are more, a column is several of them."""
    shown: Literal["largest", "smallest"] = "largest"
    """Number of a cell that has several."""


class RowArguments(OneRunArguments):
    """A row in a step."""

    signal: Words
    """Signal, such as `actv`."""
    row: Words
    """Row, as an answer names it."""
    step: Step
    """Step."""
    rank: Step = 0
    """Rank."""
    micro_step: Step | None = None
    """Micro step; none: the first one."""


class CompareArguments(ToolArguments):
    """Two runs."""

    run: Words
    """Number, name or path of a run, as `runs` returns them."""
    against: Words
    """The same of the run that it is compared with, such as a healthy one."""
    limit: Annotated[int, Ge(1), Le(20)] = 10
    """Rows that differ, the first ones in the order of cause, at most."""


class ExplainArguments(ToolArguments):
    """A name."""

    name: Words
    """Key of the configuration, rule, check, signal or op, as answers and configurations have it."""
