"""What a rule states about itself, beside how it judges; and the fields that the arguments of several rules share."""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated, Any, ClassVar

from pydantic import AfterValidator, ValidationInfo

from probe.core.fields import Names, Section, Text, not_empty, wrong
from probe.core.moments import OPS

Need = tuple[Callable[[Any], bool], str]
"""Whether settings have something, and how users switch it on."""
Ops = Annotated[tuple[Annotated[Text, Names(tuple(OPS))], ...], AfterValidator(not_empty)]


class About:
    """The defaults of a rule's statements."""

    Args: ClassVar[type[Section]]
    """The model of its arguments in the configuration."""
    title: ClassVar[str] = ""
    """A finding in two or three words, such as ``Frozen parameter``."""
    kind: ClassVar[str] = ""
    """The member of :class:`probe.core.analysis.diagnosis.explain.Kind` that its findings mean; empty if that depends
    on the value."""
    finds: ClassVar[str] = ""
    """The rule in a clause, for the reference of the configuration."""
    needs: ClassVar[tuple[Need, ...]] = ()
    """What it cannot judge without."""
    by_default: ClassVar[bool] = False
    """Whether it judges where a configuration names no rules."""
    judges_size: ClassVar[bool] = False
    """Whether a finding says that a number is too large, too small or not finite."""
    compares: ClassVar[bool] = False
    """Whether the value of a finding is the result of a comparison, and not a number of the tensor."""
    collects: ClassVar[frozenset[str]] = frozenset()
    """What is collected for it, besides what the configuration says: ``collective inputs``, ``replicas``."""


def has_op(settings: Any, *ops: str) -> bool:
    """Whether any of ``ops`` is computed."""
    return not {*ops}.isdisjoint(settings.statistics)


def not_more_than_window(warm_up: int, info: ValidationInfo) -> int:
    """Validates ``warm_up`` against ``window``, which stands before it."""
    window = info.data.get("window", warm_up)
    if warm_up > window:
        raise wrong(f"an integer 2..{window} (not more than window; 10 if missing)")
    return warm_up
