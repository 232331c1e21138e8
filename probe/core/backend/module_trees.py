"""Trees of modules, walked without running code of the user's."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, NamedTuple
from weakref import WeakKeyDictionary

CONTAINERS = (list, tuple, dict)
"""Kinds of containers that register nothing."""
LEVELS = 2
"""Levels of modules whose mode is looked at, below the first."""
_active: WeakKeyDictionary[Any, bool] = WeakKeyDictionary()


class ModuleTree(NamedTuple):
    """Attributes in which a framework keeps what a module registers."""

    kind: type
    parameters: str
    children: str
    others: tuple[str, ...] = ()

    def resting(
        self, models: Iterable[Any], is_active: Callable[[Any], bool], is_trained: Callable[[Any], bool]
    ) -> tuple[str, ...]:
        """Return the names of parts in evaluation mode, to the third level of models in training mode, that have
        dropout or batch statistics, are made of other modules, and are not frozen.

        Args:
            is_active: returns whether a part computes otherwise in training; asked once a part.
            is_trained: returns whether a part is not frozen.
        """
        names = list[str]()
        for model in models:
            waiting = [("", model, 0)] if model.training else []
            while waiting:
                prefix, module, level = waiting.pop()
                for name, child in vars(module).get(self.children, {}).items():
                    if child is None or not vars(child).get(self.children):
                        continue
                    if child.training and level < LEVELS:
                        waiting.append((f"{prefix}{name}.", child, level + 1))
                    elif not child.training:
                        if child not in _active:
                            _active[child] = is_active(child)
                        names += [f"{prefix}{name}"] if _active[child] and is_trained(child) else []
        return tuple(names)

    def unregistered(self, model: Any, is_own: Callable[[Any], bool]) -> dict[int, tuple[str, Any]]:
        """Return the parameters of modules that plain containers of ``model`` hold, by identity, with the names that
        they would have if these were registered.

        Args:
            is_own: returns whether a thing is a parameter of the program that requires a gradient.
        """
        names: dict[int, tuple[str, Any]] = {}
        registers = (self.parameters, self.children, *self.others)
        seen, waiting = set[int](), list[tuple[str, Any, bool]]([("", model, True)])
        while waiting:
            prefix, thing, registered = waiting.pop()
            if id(thing) in seen:
                continue
            seen.add(id(thing))
            if isinstance(thing, self.kind):
                inside = vars(thing)
                members = (*inside.get(self.parameters, {}).items(), *inside.get(self.children, {}).items())
                waiting += ((f"{prefix}{name}.", value, registered) for name, value in members)
                inner = ((name, value) for name, value in inside.items() if name not in registers)
                waiting += ((f"{prefix}{name}.", value, False) for name, value in inner if type(value) in CONTAINERS)
            elif type(thing) in CONTAINERS:
                rows = thing.items() if type(thing) is dict else enumerate(thing)
                waiting += ((f"{prefix}{key}.", value, False) for key, value in rows)
            elif not registered and is_own(thing):
                names[id(thing)] = prefix.removesuffix("."), thing
        return names

    def ties(self, model: Any) -> tuple[tuple[str, ...], ...]:
        """Return the names that stand for one parameter of ``model``, for each parameter with several."""
        names: dict[int, list[str]] = {}
        seen, waiting = set[int](), [("", model)]
        while waiting:
            prefix, module = waiting.pop(0)
            if id(module) in seen:
                continue
            seen.add(id(module))
            inside = vars(module)
            for name, parameter in inside.get(self.parameters, {}).items():
                if parameter is not None:
                    names.setdefault(id(parameter), []).append(f"{prefix}{name}")
            for name, child in inside.get(self.children, {}).items():
                if child is not None:
                    waiting.append((f"{prefix}{name}.", child))
        return tuple(sorted(tuple(sorted(aliases)) for aliases in names.values() if len(aliases) > 1))
