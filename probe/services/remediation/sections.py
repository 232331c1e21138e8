"""Sections whose model depends on the name next to them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pydantic import ValidationError
from pydantic_core import PydanticCustomError

from probe.core.fields import Section, wrong


def section_within(model: type[Section] | None, value: object) -> Any:
    """Validate ``value`` with ``model``; without one, since the name next to it is unknown, it stays as it is.

    Raises:
        PydanticCustomError: of the kind that :func:`probe.core.config.errors.problems` unfolds.
    """
    if not isinstance(value, Mapping | Section):
        raise wrong("a mapping")
    if model is None or isinstance(value, model):
        return value
    try:
        return model.model_validate(value)
    except ValidationError as error:
        raise PydanticCustomError("inside", "see error", {"model": model, "error": error}) from None
