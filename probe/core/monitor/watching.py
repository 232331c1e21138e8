"""What of a model and its optimizers is watched, as settings say."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from typing import Any

from probe.core.backend.protocols import FrameworkAdapter
from probe.core.config.schema import Settings
from probe.core.control.on_anomaly import deeper
from probe.core.faults import Faults
from probe.core.instrumentation import target_aliases
from probe.core.instrumentation.context import Clock, Run
from probe.core.instrumentation.overhead import Cost
from probe.core.instrumentation.recorder import Recorder
from probe.core.instrumentation.selection import Lead, Selection, no_lead, watched
from probe.core.instrumentation.signals.features.source import unknown
from probe.core.instrumentation.signals.structure import prepare
from probe.core.moments import columns_for
from probe.core.monitor import attachment
from probe.core.output.run_output import Output

_log = logging.getLogger("probe")
MOST_CHILDREN = 8
"""Modules of a container that a message names."""


class Watching:
    """The part of a monitor that makes of its settings, and of what it is attached to, what there is to be watched."""

    framework: FrameworkAdapter
    settings: Settings
    _faults: Faults
    _main_grad: bool
    _output: Output | None

    def _new_run(self, given: attachment.Attachment, step: int, settings: Settings | None = None) -> Run:
        """What is watched from ``step`` on, as ``settings`` say; None: those that hold."""
        settings = settings or self.settings
        chunks = list(enumerate(given.model if isinstance(given.model, (list, tuple)) else [given.model]))
        optimizers = list(given.optimizer) if isinstance(given.optimizer, (list, tuple)) else [given.optimizer]
        optimizers = [self.framework.parallel.acting(optimizer) for optimizer in optimizers]
        hooked = {"xy_distribution": settings.xy_distribution or settings.print_struct}
        for _, model in chunks:
            self.framework.hooks.check_model(model, settings.model_copy(update=hooked))
        for optimizer in optimizers:
            self.framework.hooks.check_optimizer(optimizer)
        settings = target_aliases.read(settings, target_aliases.there(self.framework.hooks, chunks))
        needed = (*settings.statistics, "mean") if settings.global_stats else settings.statistics
        return Run(
            settings=settings,
            framework=self.framework,
            chunks=chunks,
            optimizers=optimizers,
            selection=Selection(settings.targets, settings.all_xy, settings.forward_only, settings.backward_only),
            recorder=Recorder(self.framework.tensors, columns_for(needed), settings.eps, self._faults.note),
            faults=self._faults,
            main_grad=self._main_grad,
            clock=Clock(step),
            cost=Cost(self.framework.clock),
            repeats=self._repeats("dp_group", given.dp_group),
            tensor_repeats=self._repeats("tp_group", given.tp_group),
            directory=self._output.directory if self._output is not None else None,
            replicas=tuple(self._ranks("dp_group", given.dp_group)) if given.dp_group is not None else (),
        )

    def _check_armed(self, given: attachment.Attachment) -> None:
        """What ``on_anomaly`` would watch must be there to be watched."""
        if self.settings.on_anomaly is not None:
            self._new_run(given, given.start_iteration, deeper(self.settings))

    def _ranks(self, name: str, group: Any) -> list[int]:
        """The ranks of the group that was given as ``name``.

        Raises:
            ValueError: if that is no group.
        """
        try:
            return self.framework.groups.ranks_of(group)
        except ValueError as error:
            raise ValueError(f"{name}: {error}; pass the group itself, or None") from None

    def _repeats(self, name: str, group: Any) -> list[tuple[int, ...]]:
        """``group``, if another rank is first in it."""
        rank, ranks = self.framework.groups.rank(), [] if group is None else self._ranks(name, group)
        return [tuple(ranks)] if rank in ranks and rank != ranks[0] else []

    def _takes_part(self) -> bool:
        ranks = self.settings.module_ranks
        return not ranks or self.framework.groups.rank() in ranks

    def _writes(self) -> bool:
        """Whether this rank has rows to write: the structure of a model is none."""
        return self._takes_part() and not self.settings.print_struct

    def _lead(self) -> Lead:
        """Gives what a problem of the settings begins with."""
        return no_lead

    def _check_targets(self, run: Run) -> None:
        """Raises for targets that match nothing; with several processes, where another rank may have them, only warns.
        Skipped with ``print_struct``, whose purpose is to list the names."""
        if self._takes_part() and self.settings.print_struct:
            prepare(self.framework.groups.rank())
        if not self._takes_part() or self.settings.print_struct:
            return
        names = [name for _, model in run.chunks for name, _ in run.framework.hooks.modules(model)]
        names += [name for _, model in run.chunks for name, _ in run.framework.hooks.parameters(model)]
        for stage, model in run.chunks:
            for name, module in run.framework.hooks.modules(model):
                run.selection.places(watched(stage, name, name, module))
        modules = [(stage, name) for stage, model in run.chunks for name, _ in run.framework.hooks.modules(model)]
        lead = self._lead()
        problems = [*run.selection.check(names, lead), *unknown(run.settings, modules, lead)]
        containers = list(_containers(run, lead)) if run.settings.xy_distribution else []
        if problems and self.framework.groups.world_size() > 1:
            _log.warning("not on this rank: %s", "; ".join(problems))
        elif problems:
            raise ValueError("\n".join(problems + containers))
        if containers:
            raise ValueError("\n".join(containers))
        if not problems and _names_no_module(run):
            _log.warning(
                "xy_distribution has no effect: targets name parameters alone; name the modules, or set all_xy to true"
            )


def _containers(run: Run, lead: Lead) -> Iterator[str]:
    """One sentence for each target that only holds modules: nothing goes in or out of it."""
    hooks = run.framework.hooks
    for stage, model in run.chunks:
        modules = dict(hooks.modules(model))
        for name, module in modules.items():
            if hooks.runs(module) or (target := run.selection.named(stage, name)) is None:
                continue
            inside = [other for other in modules if other.rpartition(".")[0] == name and other]
            listed = ", ".join(inside[:MOST_CHILDREN]) + (", ..." if len(inside) > MOST_CHILDREN else "")
            expected = f"expected a module that is called, got a {type(module).__name__}, which only holds modules"
            advice = f"name those: {listed}; or switch xy_distribution off to watch the parameters in it alone"
            yield f"{lead(('targets', target))}targets.{target}: {expected}; {advice}"


def _names_no_module(run: Run) -> bool:
    """Whether activations are asked for, and targets name parameters only."""
    settings = run.settings
    if not settings.xy_distribution or not settings.targets or (settings.forward_only and settings.backward_only):
        return False
    modules = ((stage, *named) for stage, model in run.chunks for named in run.framework.hooks.modules(model))
    return not any(run.selection.places(watched(stage, name, name, module)) for stage, name, module in modules)
