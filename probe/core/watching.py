"""What of a model and its optimizers is watched, as settings say."""

from __future__ import annotations

import logging
from typing import Any

from probe.core import older_names, signatures
from probe.core.arming import deeper
from probe.core.cost import Cost
from probe.core.faults import Faults
from probe.core.features.source import unknown
from probe.core.framework import FrameworkAdapter
from probe.core.moments import columns_for
from probe.core.recorder import Recorder
from probe.core.run import Clock, Run
from probe.core.run_output import Output
from probe.core.selection import Selection, watched
from probe.core.settings import Settings
from probe.core.structure import prepare

_log = logging.getLogger("probe")


class Watching:
    """The part of a monitor that makes of its settings, and of what it is attached to, what there is to be watched."""

    framework: FrameworkAdapter
    settings: Settings
    _faults: Faults
    _main_grad: bool
    _output: Output | None

    def _new_run(self, given: signatures.Attachment, step: int, settings: Settings | None = None) -> Run:
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
        settings = older_names.read(settings, older_names.there(self.framework.hooks, chunks))
        needed = (*settings.statistics, "mean") if settings.global_stats else settings.statistics
        return Run(
            settings=settings,
            framework=self.framework,
            chunks=chunks,
            optimizers=optimizers,
            selection=Selection(settings.targets, settings.all_xy, settings.forward_only, settings.backward_only),
            recorder=Recorder(self.framework.tensors, columns_for(needed), settings.eps),
            faults=self._faults,
            main_grad=self._main_grad,
            clock=Clock(step),
            cost=Cost(self.framework.clock),
            repeats=self._repeats(given.dp_group),
            tensor_repeats=self._repeats(given.tp_group),
            directory=self._output.directory if self._output is not None else None,
            replicas=tuple(self.framework.groups.ranks_of(given.dp_group)) if given.dp_group is not None else (),
        )

    def _check_armed(self, given: signatures.Attachment) -> None:
        """What ``on_anomaly`` would watch must be there to be watched."""
        if self.settings.on_anomaly is not None:
            self._new_run(given, given.start_iteration, deeper(self.settings))

    def _repeats(self, group: Any) -> list[tuple[int, ...]]:
        """``group``, if another rank is first in it."""
        rank, ranks = self.framework.groups.rank(), [] if group is None else self.framework.groups.ranks_of(group)
        return [tuple(ranks)] if rank in ranks and rank != ranks[0] else []

    def _takes_part(self) -> bool:
        ranks = self.settings.module_ranks
        return not ranks or self.framework.groups.rank() in ranks

    def _writes(self) -> bool:
        """Whether this rank has rows to write: the structure of a model is none."""
        return self._takes_part() and not self.settings.print_struct

    def _check_targets(self, run: Run) -> None:
        """A target that names nothing is an error; with several processes another rank may have it. Who asks what
        there is to be named may name what he likes."""
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
        if problems := [*run.selection.check(names), *unknown(run.settings, modules)]:
            if self.framework.groups.world_size() > 1:
                _log.warning("not on this rank: %s", "; ".join(problems))
            else:
                raise ValueError("\n".join(problems))
