"""Several models with names, which stand before the names of their modules and parameters."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from probe.core.naming import Name


class NamedModels:
    """Hooks of a framework for several models: the name of a model precedes those of its modules and parameters. Every
    other function is the framework's own.

    Args:
        models: the models by name.
    """

    def __init__(self, hooks: Any, models: Mapping[str, Any]) -> None:
        self._hooks = hooks
        self._names = {id(model): name for name, model in models.items()}

    def __getattr__(self, name: str) -> Any:
        return getattr(self._hooks, name)

    def modules(self, model: Any) -> Iterator[tuple[str, Any]]:
        """Yield every module of ``model`` with its name."""
        return self._named(model, self._hooks.modules(model))

    def parameters(self, model: Any) -> Iterator[tuple[str, Any]]:
        """Yield every parameter of ``model`` with its name."""
        return self._named(model, self._hooks.parameters(model))

    def _named(self, model: Any, things: Iterator[tuple[str, Any]]) -> Iterator[tuple[str, Any]]:
        prefix = self._names.get(id(model))
        for name, thing in things:
            yield (name if prefix is None else _joined(prefix, name)), thing


def _joined(prefix: str, name: str) -> str:
    if not name:
        return prefix
    joined = f"{prefix}.{name}"
    return Name(joined, f"{prefix}.{name.raw}") if isinstance(name, Name) else joined
