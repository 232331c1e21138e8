"""Statements of a rule about itself, and fields that the arguments of several rules share."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Annotated, Any, ClassVar

from pydantic import AfterValidator, ValidationInfo

from probe.core.fields import Integer, Names, Section, Text, not_empty, wrong
from probe.core.moments import OPS
from probe.core.records import Batch, Finding

Need = tuple[Callable[[Any], bool], str]
"""Test of the settings, and how users switch on what it tests."""
Ops = Annotated[tuple[Annotated[Text, Names(tuple(OPS))], ...], AfterValidator(not_empty)]


class About:
    """Defaults of a rule's statements."""

    Args: ClassVar[type[Section]]
    """Model of its arguments in the configuration."""
    title: ClassVar[str] = ""
    """Title of a finding in two or three words, such as ``Frozen parameter``."""
    why: ClassVar[str] = ""
    """Harm of the fault: one sentence."""
    source: ClassVar[str] = ""
    """Public report of the fault, or the description of the method, by link."""
    sees: ClassVar[str] = ""
    """Numbers that it judges: one clause."""
    kind: ClassVar[str] = ""
    """Member of :class:`probe.core.analysis.diagnosis.explain.Kind` for its findings; empty if that depends on the
    value."""
    finds: ClassVar[str] = ""
    """Clause about the rule, for the reference of the configuration."""
    needs: ClassVar[tuple[Need, ...]] = ()
    """Settings without which it cannot judge."""
    by_default: ClassVar[bool] = False
    """True if it judges when a configuration names no rules."""
    judges_size: ClassVar[bool] = False
    """True if a finding means that a number is too large, too small or not finite."""
    compares: ClassVar[bool] = False
    """True if the value of a finding is the result of a comparison, and not a number of the tensor."""
    collects: ClassVar[frozenset[str]] = frozenset()
    """Data that are collected for it in addition to the configuration: ``collective inputs``, ``replicas``."""
    judge_step: ClassVar[Callable[[Any, Sequence[Batch]], Iterable[Finding]] | None] = None
    """Method that judges the batches of one step, each of another signal, in one pass; its findings are those of
    ``judge`` for each batch in turn. None if a rule has no such method."""


def has_op(settings: Any, *ops: str) -> bool:
    """Return whether any of ``ops`` is computed."""
    return not {*ops}.isdisjoint(settings.statistics)


def not_more_than_window(warm_up: int, info: ValidationInfo) -> int:
    """Validate ``warm_up`` against ``window``, which is declared before it."""
    window = info.data.get("window", warm_up)
    if warm_up > window:
        raise wrong(f"an integer 2..{window} (not more than window; 10 if missing)")
    return warm_up


WarmUp = Annotated[Integer, AfterValidator(not_more_than_window)]
