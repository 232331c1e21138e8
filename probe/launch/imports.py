"""Functions that are called when the program has imported a module."""

from __future__ import annotations

import sys
from collections.abc import Callable
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from importlib.util import find_spec
from types import ModuleType
from typing import Any

AfterImport = Callable[[ModuleType], None]


def after_import(name: str, function: AfterImport) -> None:
    """Call ``function`` with the module ``name`` once it has been imported; at once if it has been already. What it
    raises is reported, and the import goes on."""
    if (module := sys.modules.get(name)) is not None:
        _call(function, module)
        return
    finder = next((candidate for candidate in sys.meta_path if isinstance(candidate, _Finder)), None)
    if finder is None:
        finder = _Finder()
        sys.meta_path.insert(0, finder)
    finder.functions.setdefault(name, []).append(function)


def _call(function: AfterImport, module: ModuleType) -> None:
    from probe.core.door import attempt  # these take as long as the start of a process: only where there is a framework
    from probe.launch.failures import FAILURES

    attempt(FAILURES, "import", function, module)


class _Finder(MetaPathFinder):
    """Finder of modules that are waited for: it leaves them to the other finders, and adds to their loaders."""

    def __init__(self) -> None:
        self.functions: dict[str, list[AfterImport]] = {}

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> ModuleSpec | None:  # noqa: ARG002
        functions = self.functions.pop(name, None)
        if functions is None:
            return None
        try:
            spec = find_spec(name)
        finally:
            self.functions[name] = functions
        if spec is None or spec.loader is None or not hasattr(spec.loader, "exec_module"):
            return None
        spec.loader = _Loader(spec.loader, self.functions)
        return spec


class _Loader(Loader):
    """Loader of a module, after which functions are called; in all else the one that it stands for."""

    def __init__(self, loader: Any, functions: dict[str, list[AfterImport]]) -> None:
        self._own, self._functions = loader, functions

    def __getattr__(self, name: str) -> Any:
        return getattr(self._own, name)

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        made: ModuleType | None = self._own.create_module(spec)
        return made

    def exec_module(self, module: ModuleType) -> None:
        assert module.__spec__ is not None
        module.__spec__.loader = module.__loader__ = self._own
        self._own.exec_module(module)
        for function in self._functions.pop(module.__name__, ()):
            _call(function, module)
