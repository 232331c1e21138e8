"""Beginning of numbers that are not finite: the operation, parameter or input at which they first appear, and the
modules around it."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Literal, NamedTuple

from probe.core.language import Message, joined, message

Kind = Literal["operation", "parameter", "input", "backward", "unknown"]
"""Thing in which the numbers appear: ``unknown`` if only the modules around it are known."""
Spoilt = Literal["nan", "inf", "nan or inf"]
_WRITTEN = {"nan": "NaN", "inf": "Inf", "nan or inf": "NaN or Inf"}


class Beginning(NamedTuple):
    """First numbers of a step that are not finite."""

    kind: Kind
    operation: str
    """Name of the operation, such as ``division (div)``; empty if it cannot be named."""
    after: str
    """Name of the last module with parameters before it or of its own if it uses some; empty if there is none."""
    before: str
    """Name of the first module with parameters behind it or of its own if it uses some; empty if there is none."""
    value: Spoilt
    parameter: str = ""
    """Name of the parameter or buffer that is not finite itself, or whose gradient is the first that is not."""
    module: str = ""
    """Name of the module in whose forward it lies, if forwards were seen."""
    nodes: int = 0
    """Number of operations of the step that were visited."""
    unread: int = 0
    """Number of values that could not be looked at: hooks had been placed on them, they were changed since, or they are
    not in the memory of the host."""
    cut: bool = False
    """True if time or number ran out: the numbers may have begun earlier."""

    def text(self) -> str:
        """Return one sentence."""
        return f"{self.clause()}."

    def clause(self) -> Message:
        """Return the sentence without its full stop, for the language of its reader."""
        clauses = [self._subject()]
        if self.unread and self.kind == "unknown":
            clauses.append(message("values between them could not be read"))
        if self.cut:
            text = "the search was cut off after {number} operations, so it may have begun earlier"
            clauses.append(message(text, number=self.nodes))
        return joined("; ", clauses)

    def where(self) -> tuple[str, ...]:
        """Return the modules, the parameter or the input at which it begins, the likeliest first; an input by the name
        of its row."""
        if self.kind == "parameter":
            return (self.parameter,)
        if self.kind == "input":
            return (f"{self.before}.input".lstrip("."),)
        named = dict.fromkeys((self.module, self.after, self.before) if self.module else (self.after, self.before))
        return tuple(name for name in named if name)

    def _subject(self) -> Message:
        value = _WRITTEN[self.value]
        if self.kind == "parameter":
            return message("{value} is in `{name}` itself, from before this step", value=value, name=self.parameter)
        if self.kind == "backward":
            return self._behind(value)
        if self.kind == "input":
            reader = self.before or self.operation
            if not reader:
                return message("{value} is in an input of the model", value=value)
            return message("{value} is in the input of `{name}`", value=value, name=reader)
        where = self._where()
        if not self.operation:
            return message("{value} first appears {where}", value=value, where=where)
        return message("{value} first appears {where}, in: {name}", value=value, where=where, name=self.operation)

    def _behind(self, value: str) -> Message:
        """Return where the backward goes wrong: it reaches the module ``before`` first."""
        if self.after == self.before:
            text = "{value} first appears in the gradients of `{name}`, in its backward"
            return message(text, value=value, name=self.after)
        text = (
            "{value} first appears in the gradients of `{name}`: in its backward, or in what lies between it and {next}"
        )
        return message(text, value=value, name=self.after, next=_name(self.before, message("the loss")))

    def _where(self) -> Message:
        """Return the place as an adverb."""
        inside = self.module or (self.after if self.after == self.before else "")
        if inside:
            return message("in `{name}`", name=inside)
        if not self.after and not self.before:
            return message("in the model")
        first, second = _name(self.after, message("the input")), _name(self.before, message("the loss"))
        return message("between {first} and {second}", first=first, second=second)


class UsedParameter(NamedTuple):
    """Parameter with the state of its gradient."""

    name: str
    order: int
    """Number of the operation of the forward that used it last: the backward reaches the highest first."""
    finite: bool
    """True if each number of its gradient is finite."""


def frontier(parameters: Iterable[UsedParameter]) -> Beginning | None:
    """Return the place at which a backward from a finite loss goes from finite gradients to others; None if each is
    finite.

    The first gradient that is not finite is that of the parameter used latest: the backward of its module made it, or
    what lies between the module and the one that was reached just before. It lies in the module's own backward if
    another gradient of the same operation is finite.
    """
    ordered = sorted(parameters, key=lambda parameter: (-parameter.order, parameter.finite))
    first = next((parameter for parameter in ordered if not parameter.finite), None)
    if first is None:
        return None
    reached = [parameter for parameter in ordered if parameter.finite and parameter.order >= first.order]
    before = owner(reached[-1].name) if reached else ""
    return Beginning("backward", "", owner(first.name), before, "nan or inf", parameter=first.name, nodes=len(ordered))


def owner(parameter: str) -> str:
    """Return the name of the module that owns a parameter: the parameter's own if that is the model."""
    return parameter.rpartition(".")[0] or parameter


def common_owner(parameters: Iterable[str]) -> str:
    """Return the name of the innermost module that owns all of ``parameters``; empty if that is the model."""
    names = {owner(parameter) for parameter in parameters}
    if len(names) < 2:
        return next(iter(names), "")
    shared: list[str] = []
    for parts in zip(*(name.split(".") for name in names), strict=False):
        if len(set(parts)) > 1:
            break
        shared.append(parts[0])
    return ".".join(shared)


def _name(module: str, otherwise: str) -> str:
    """Return a module's name as it is written in a sentence."""
    return f"`{module}`" if module else otherwise
