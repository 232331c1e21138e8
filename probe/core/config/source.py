"""Source of a configuration: a file or a mapping, with the problems that were found in it so far."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import islice
from os import PathLike
from typing import Any, TypeVar

from pydantic import BaseModel, ValidationError

from probe.core.config.errors import MOST_SHOWN, Belonging, ConfigError, Path, problems
from probe.core.config.parse import path_of, read

Model = TypeVar("Model", bound=BaseModel)


class ConfigSource:
    """Values of a file or a mapping.

    Args:
        name: name of a mapping in messages.

    Raises:
        ConfigError: if there is no file, or no mapping in it.
    """

    def __init__(self, source: str | PathLike[str] | Mapping[str, Any], name: str = "the given mapping") -> None:
        self.problems = list[str]()
        """Lines of problems, each led by the file, its line and the path of a key."""
        self._lines = None
        if isinstance(source, Mapping):
            self.name, self.values = name, dict(source)
        else:
            self.name = path_of(source)
            self.values, self.problems, self._lines = read(source)

    def lead(self, path: Path) -> str:
        """Text ``file:line: `` for the key at ``path``; empty for a mapping."""
        return self._lines.lead(path) if self._lines is not None else ""

    def validated(
        self,
        model: type[Model],
        values: Mapping[str, Any],
        error: type[ConfigError],
        place: Belonging,
    ) -> Model:
        """Return ``values`` as a model.

        Args:
            place: returns words about the section in which a key belongs.

        Raises:
            ConfigError: of the type ``error``, with every problem at once.
        """
        try:
            config = model.model_validate(dict(values))
        except ValidationError as mistakes:
            count = len(self.problems) + mistakes.error_count()
            self.problems += islice(
                problems(mistakes, model, self.lead, place=place), max(MOST_SHOWN - len(self.problems), 0)
            )
            raise error(self.name, self.problems[:MOST_SHOWN], max(count - MOST_SHOWN, 0)) from None
        self.refuse(error)
        return config

    def refuse(self, error: type[ConfigError]) -> None:
        """Raise an error if there are problems.

        Raises:
            ConfigError: of the type ``error``.
        """
        if self.problems:
            raise error(self.name, self.problems[:MOST_SHOWN], len(self.problems[MOST_SHOWN:]))
