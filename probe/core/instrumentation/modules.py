"""The modules of a run: what each source hooks, and what comes into a model or leaves it while training runs."""

from __future__ import annotations

import logging
from collections.abc import Iterable
from contextlib import ExitStack

from probe.core.backend.protocols import Module
from probe.core.instrumentation.context import Run
from probe.core.instrumentation.selection import TargetNames, Watched

ENDED = "modules and parameters: rows that ended, since the program took the thing out of the model"
"""Kind of loss, counted for each module and parameter."""
MOST_NAMED = 8
"""Number of names in a message."""

_log = logging.getLogger("probe")


class Modules:
    """Watched modules of ``run``, with the hooks that sources place on each."""

    def __init__(self, run: Run) -> None:
        self._run = run
        self._names = TargetNames(run.settings.squash_name)
        self._attached: dict[tuple[int, int, str], tuple[Watched, ExitStack]] = {}
        """Modules and their hooks, by the identities of model and module and the full name, which a wrapper changes."""
        self._begun = False

    def find(self) -> None:
        """Hook modules that are new since the last search; remove the hooks of those that are gone."""
        if not len(self._run.each_watched_module):
            return
        chunks = [(stage, model, [*self._run.framework.hooks.modules(model)]) for stage, model in self._run.chunks]
        present = {(id(model), id(module), str(full)) for _, model, named in chunks for full, module in named}
        removed = [self._attached.pop(key) for key in [*self._attached] if key not in present]
        for module, hooks in removed:
            self._names.release(module)
            hooks.close()
        added: list[str] = []
        for stage, model, named in chunks:
            self._names.expect(stage, (full for full, _ in named))
            for full, module in named:
                if (id(model), id(module), str(full)) not in self._attached:
                    added.append(self._attach(model, self._names.watch(stage, full, module)))
        if self._begun:
            names = {module.name for module, _ in self._attached.values()}
            _report_arrivals("modules", added)
            report_ends(self._run, "modules", (module.name for module, _ in removed if module.name not in names))
        self._begun = True

    def _attach(self, model: Module, module: Watched) -> str:
        hooks = ExitStack()
        self._attached[id(model), id(module.thing), str(module.full)] = module, hooks
        for attach in self._run.each_watched_module:
            hooks.callback(attach(model, module))
        return module.name

    def remove_hooks(self) -> None:
        """Remove the hooks of all modules."""
        for _, hooks in self._attached.values():
            hooks.close()
        self._attached.clear()


def _report_arrivals(kind: str, names: Iterable[str]) -> None:
    if listed := _listed(names):
        _log.info("%s that came into the model after set_monitor are recorded from now on: %s", kind, listed)


def report_ends(run: Run, kind: str, names: Iterable[str]) -> None:
    """Log and count things that are no longer in a model."""
    if removed := [*names]:
        _log.warning("%s are no longer in the model, and their rows end: %s", kind, _listed(removed))
        run.faults.lost(ENDED, len(removed))


def _listed(names: Iterable[str]) -> str:
    names = sorted(repr(name) for name in names)
    return ", ".join(names[:MOST_NAMED]) + (f" and {len(names) - MOST_NAMED} more" if len(names) > MOST_NAMED else "")
