"""Typed fields: the only way of a label into a command."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Annotated, Any

from pydantic import AfterValidator, model_validator

from probe.core.fields import Integer, Names, Section, Text, not_blank, wrong
from probe.services.remediation.planned_action import FiringAlert, RefusedAlertError, shown

_DIGITS = re.compile(r"-?[0-9]{1,15}")
_GPU_INDEX = re.compile(r"[0-9]{1,3}")
_GPU = re.compile(r"GPU-[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}")
_HOST = re.compile(
    r"(?=.{1,253}\Z)[A-Za-z0-9]([A-Za-z0-9-]{0,61}[A-Za-z0-9])?(\.[A-Za-z0-9]([A-Za-z0-9-]{0,61}[A-Za-z0-9])?)*"
)

Label = Annotated[Text, AfterValidator(not_blank)]


class FieldSettings(Section):
    """Field of a command that a label fills."""

    label: Label
    """Label with the value."""
    type: Annotated[Text, Names(("integer", "name", "gpu", "host"))]
    """`integer`: from least to most. `name`: one of names. `gpu`: an index or a UUID of an NVIDIA GPU. `host`: a name
    of a host. Any other value refuses the alert."""
    least: Integer | None = None
    """With integer: the smallest value."""
    most: Integer | None = None
    """With integer: the largest value."""
    names: tuple[Label, ...] = ()
    """With name: every value that is admitted."""

    @model_validator(mode="after")
    def _complete(self) -> Any:
        bounded = self.least is not None and self.most is not None and self.least <= self.most
        if self.type == "integer" and not bounded:
            raise wrong("least and most, the smallest and the largest value of an integer")
        if self.type == "name" and not self.names:
            raise wrong("names, a list of every value of a name")
        if any(name.startswith("-") for name in self.names):
            raise wrong("names that programs do not take for options: none begins with -")
        return self


def value_of(field: FieldSettings, alert: FiringAlert) -> str:
    """Return the checked value of ``field``.

    Raises:
        RefusedAlertError: if the label is missing or has another form.
    """
    value = label_of(alert, field.label)
    return _CHECKS[field.type](field, value)


def label_of(alert: FiringAlert, label: str) -> str:
    """Return the value of a label.

    Raises:
        RefusedAlertError: if the alert has none.
    """
    value = alert.labels.get(label, "")
    if not value:
        raise RefusedAlertError(f"label {label}: missing")
    return value


def gpu_of(alert: FiringAlert, labels: tuple[str, ...]) -> str:
    """Return the index or UUID of a GPU from the first of ``labels`` that the alert has.

    Raises:
        RefusedAlertError: if it has none, or a value of another form.
    """
    label = next((name for name in labels if alert.labels.get(name)), labels[-1])
    return _gpu(FieldSettings(label=label, type="gpu"), label_of(alert, label))


def one_of(alert: FiringAlert, label: str, names: Mapping[str, object]) -> str:
    """Return the value of a label if it is one of ``names``.

    Raises:
        RefusedAlertError: if it is not.
    """
    return _name(FieldSettings(label=label, type="name", names=tuple(names)), label_of(alert, label))


def _refusal(field: FieldSettings, expected: str, value: str) -> RefusedAlertError:
    return RefusedAlertError(f"label {field.label}: expected {expected}, got {shown(value)}")


def _integer(field: FieldSettings, value: str) -> str:
    assert field.least is not None
    assert field.most is not None
    if _DIGITS.fullmatch(value) and field.least <= int(value) <= field.most:
        return str(int(value))
    raise _refusal(field, f"an integer from {field.least} to {field.most}", value)


def _name(field: FieldSettings, value: str) -> str:
    for name in field.names:
        if name == value:
            return name
    raise _refusal(field, f"one of {', '.join(field.names)}"[:300], value)


def _gpu(field: FieldSettings, value: str) -> str:
    if _GPU_INDEX.fullmatch(value):
        return str(int(value))
    if _GPU.fullmatch(value):
        return value
    raise _refusal(field, "the index or the UUID of a GPU", value)


def _host(field: FieldSettings, value: str) -> str:
    if _HOST.fullmatch(value):
        return value
    raise _refusal(field, "the name of a host", value)


_CHECKS: dict[str, Callable[[FieldSettings, str], str]] = {
    "integer": _integer,
    "name": _name,
    "gpu": _gpu,
    "host": _host,
}
