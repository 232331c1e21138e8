"""The subject of a monitor: its model and optimizers, and the run that a plan watches of them."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from probe.core.backend.protocols import FrameworkAdapter
from probe.core.config.lint import without_effect
from probe.core.config.load import dynamic
from probe.core.config.schema import Settings
from probe.core.control.on_anomaly import around, deeper
from probe.core.door import attempt
from probe.core.faults import Faults
from probe.core.instrumentation import target_aliases
from probe.core.instrumentation.clock import Clock
from probe.core.instrumentation.context import Run
from probe.core.instrumentation.named_models import NamedModels
from probe.core.instrumentation.overhead import Cost
from probe.core.instrumentation.plan import Plan
from probe.core.instrumentation.recorder import Recorder
from probe.core.instrumentation.selection import Lead, Selection, watched
from probe.core.instrumentation.signals.features.source import unknown
from probe.core.instrumentation.signals.sources import collects_nothing
from probe.core.instrumentation.signals.structure import prepare
from probe.core.launch import RANKS, WORLDS, is_unnamed, launched
from probe.core.moments import columns_for
from probe.core.monitor.arguments import Arguments

_log = logging.getLogger("probe")
MOST_CHILDREN = 8
"""Number of modules of a container that a message names."""


@dataclass(frozen=True)
class Subject:
    """The subject of a monitor, seen through a framework."""

    framework: FrameworkAdapter
    model: Any
    """The model, a list of them, or a mapping of names to models."""
    optimizer: Any
    """The optimizer, or a list of them."""
    dp_group: Any
    """The data-parallel group; None if none was passed."""
    tp_group: Any
    """The tensor-parallel group; None if none was passed."""
    first: int
    """Number of the first step."""
    main_grad: bool
    faults: Faults
    cost: Cost
    """The monitor's time, of all runs that are watched of this subject."""

    @classmethod
    def of(cls, framework: FrameworkAdapter, arguments: Arguments, main_grad: bool) -> Subject:
        """Return the subject of ``set_monitor``; names of models precede those of their parts."""
        model, optimizer = arguments["model"], arguments["optimizer"]
        if isinstance(model, Mapping):
            hooks: Any = NamedModels(framework.hooks, model)
            framework = framework._replace(hooks=hooks)
        dp_group, tp_group, first = arguments["dp_group"], arguments["tp_group"], arguments["start_iteration"]
        cost = Cost(framework.clock)
        return cls(framework, model, optimizer, dp_group, tp_group, first, main_grad, Faults(), cost)

    @property
    def is_named(self) -> bool:
        """True if models were passed with names."""
        return isinstance(self.model, Mapping)

    @property
    def models(self) -> Sequence[Any]:
        """The models, in their order."""
        return [*self.model.values()] if self.is_named else _listed(self.model)

    @property
    def optimizers(self) -> Sequence[Any]:
        """The optimizers that take the steps of those that were passed."""
        return [self.framework.parallel.acting(optimizer) for optimizer in _listed(self.optimizer)]

    def narrowed(self, models: Sequence[Any], optimizers: Sequence[Any]) -> Subject:
        """Return the subject without all other models and optimizers."""
        remaining = {id(model) for model in models}
        model = (
            {name: model for name, model in self.model.items() if id(model) in remaining}
            if self.is_named
            else [model for model in self.models if id(model) in remaining]
        )
        return replace(self, model=model, optimizer=[*optimizers])

    def check_types(self, settings: Settings) -> None:
        """Refuse models and optimizers that are of another type, or cannot be watched as ``settings`` say.

        Raises:
            ValueError: naming the expectation and the actual type.
        """
        hooked = {"xy_distribution": settings.xy_distribution or settings.print_struct}
        for model in self.models:
            self.framework.hooks.check_model(model, settings.model_copy(update=hooked))
        for optimizer in self.optimizers:
            self.framework.hooks.check_optimizer(optimizer)

    def run(self, plan: Plan, step: int, directory: Path | None = None) -> Run:
        """Return the run that ``plan`` watches from ``step`` on.

        Raises:
            ValueError: if the model, an optimizer or a group cannot be watched.
        """
        settings, hooks = plan.settings, self.framework.hooks
        self.check_types(settings)
        chunks = [(0, model) for model in self.models] if self.is_named else list(enumerate(self.models))
        optimizers = [*self.optimizers]
        settings = target_aliases.read(settings, target_aliases.there(hooks, chunks))
        needed = (*settings.statistics, "mean") if settings.global_stats else settings.statistics
        selection = Selection(settings.targets, settings.all_xy, settings.forward_only, settings.backward_only)
        if plan.purpose == "deeper" and plan.base is not None:
            selection = around(selection, plan.suspects, plan.base.settings)
        return Run(
            settings=settings,
            framework=self.framework,
            chunks=chunks,
            optimizers=optimizers,
            selection=selection,
            recorder=Recorder(self.framework.tensors, columns_for(needed), settings.eps, self.faults.note),
            faults=self.faults,
            main_grad=self.main_grad,
            clock=Clock(step),
            cost=self.cost,
            repeats=self._repeats("dp_group", self.dp_group),
            tensor_repeats=self._repeats("tp_group", self.tp_group),
            directory=directory,
            replicas=self._replicas(chunks, self.dp_group),
            asked=plan.origin != "sentinel",
        )

    def check(self, plan: Plan, run: Run, lead: Lead) -> None:
        """Raise an error for targets that match nothing; with several processes, warn only, since another rank may have
        them. With ``print_struct``, skip this: its purpose is to list the names.

        Args:
            lead: returns the beginning of a problem's sentence.
        """
        if plan.settings.on_anomaly is not None:  # it must be possible to watch deeper, too
            armed: Settings = deeper(plan.settings)
            self.run(Plan(armed, plan.schedule), run.clock.step)
        if plan.takes_part and plan.settings.print_struct:
            prepare(plan.settings, self.framework.groups.rank())
        elif plan.takes_part:
            self._check_targets(run, lead)

    def _check_targets(self, run: Run, lead: Lead) -> None:
        hooks = run.framework.hooks
        modules = [(stage, name, module) for stage, model in run.chunks for name, module in hooks.modules(model)]
        names = [name for _, name, _ in modules]
        names += [name for _, model in run.chunks for name, _ in hooks.parameters(model)]
        for stage, name, module in modules:
            run.selection.places(watched(stage, name, name, module))
        problems = [
            *run.selection.check(names, lead),
            *unknown(run.settings, [(stage, name) for stage, name, _ in modules], lead),
        ]
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

    def _replicas(self, chunks: Sequence[tuple[int, Any]], group: Any) -> tuple[int, ...]:
        """Return the ranks of the data-parallel group that was passed or, without one, that a wrapper shows; this rank
        alone if ranks train apart by intention."""
        models, loop = [model for _, model in chunks], self.framework.loop
        if loop is not None and attempt(self.faults, "replicas", loop.part_ways, models):
            return (self.framework.groups.rank(),)
        if group is not None:
            return tuple(ranks_of(self.framework, "dp_group", group))
        return tuple(self.framework.groups.replicas(models))

    def _repeats(self, name: str, group: Any) -> list[tuple[int, ...]]:
        """Return a list of ``group`` alone if this rank is in it, but not its first; else an empty list."""
        rank, ranks = self.framework.groups.rank(), [] if group is None else ranks_of(self.framework, name, group)
        return [tuple(ranks)] if rank in ranks and rank != ranks[0] else []


def ranks_of(framework: FrameworkAdapter, name: str, group: Any) -> list[int]:
    """Return the ranks of ``group``, which was passed as ``name``.

    Raises:
        ValueError: if it is not a group.
    """
    try:
        return framework.groups.ranks_of(group)
    except ValueError as error:
        raise ValueError(f"{name}: {error}; pass the group itself, or None") from None


def _listed(one_or_several: Any) -> Sequence[Any]:
    return list(one_or_several) if isinstance(one_or_several, (list, tuple)) else [one_or_several]


def _containers(run: Run, lead: Lead) -> Iterator[str]:
    """Yield a sentence for each target that only holds modules: it is never called, and has no inputs or outputs."""
    hooks = run.framework.hooks
    for stage, model in run.chunks:
        modules = dict(hooks.modules(model))
        for name, module in modules.items():
            if hooks.runs(module) or (target := run.selection.named(stage, name)) is None:
                continue
            inside = [child for child in modules if child.rpartition(".")[0] == name and child]
            listed = ", ".join(inside[:MOST_CHILDREN]) + (", ..." if len(inside) > MOST_CHILDREN else "")
            expected = f"expected a module that is called, got a {type(module).__name__}, which only holds modules"
            advice = f"name those: {listed}; or switch xy_distribution off to watch the parameters in it alone"
            yield f"{lead(('targets', target))}targets.{target}: {expected}; {advice}"


def _names_no_module(run: Run) -> bool:
    """True if activations are configured, but targets name parameters only."""
    settings = run.settings
    if not settings.xy_distribution or not settings.targets or (settings.forward_only and settings.backward_only):
        return False
    modules = ((stage, *named) for stage, model in run.chunks for named in run.framework.hooks.modules(model))
    return not any(run.selection.places(watched(stage, name, name, module)) for stage, name, module in modules)


def strangers(run: Run) -> Iterator[str]:
    """Yield a sentence if the optimizers hold parameters of something else alone. Wrappers may still put theirs in the
    place of the models' before the first step, so that nothing is refused."""
    hooks = run.framework.hooks
    parameters = [(name, parameter) for _, model in run.chunks for name, parameter in hooks.parameters(model)]
    of_models = {id(parameter): name for name, parameter in parameters}
    owned = [id(parameter) for optimizer in run.optimizers for parameter in hooks.owned(optimizer)]
    if not of_models and owned:
        yield "set_monitor: model: expected one with parameters, got none in it; pass the model that is trained"
    if of_models and not any(getattr(parameter, "requires_grad", True) for _, parameter in parameters):
        yield (
            "set_monitor: model: expected a parameter that requires a gradient, got none in it; set requires_grad of "
            "those that are trained, or pass the model that is trained"
        )
    if of_models and owned and of_models.keys().isdisjoint(owned):
        yield (
            f"set_monitor: optimizer: expected one that holds parameters of the model, such as "
            f"{next(iter(of_models.values()))}, got {type(run.optimizers[0]).__name__} with parameters of something "
            "else: pass the model and the optimizer that train together, after both are wrapped"
        )


def warnings_for(settings: Settings, ranks: int, environ: Mapping[str, str]) -> Iterator[str]:
    """Yield a sentence for each valid setting that has no effect in this run.

    Args:
        ranks: number of processes.
    """
    if not dynamic(environ):
        yield from collects_nothing(settings)
    rank, world = launched(environ, RANKS, 0), launched(environ, WORLDS, 0)
    if 0 < world <= rank:
        yield f"the environment has rank {rank} of {world}: expected 0 to {world - 1}; correct or unset the variables"
    elif not world and rank and ranks == 1:
        name, size = next(pair for pair in zip(RANKS, WORLDS, strict=True) if environ.get(pair[0], "").isdecimal())
        yield (
            f"the environment has rank {rank}, and no number of ranks: expected {size} too; start all ranks with a "
            f"launcher such as torchrun, or unset {name}"
        )
    elif is_unnamed(environ):
        yield (
            f"the environment has rank {rank} of {world}, and no name of the launch: expected MASTER_ADDR and "
            "MASTER_PORT too; without them the ranks are not known to belong together, and each sends its alerts: "
            "start all ranks with a launcher such as torchrun, or unset RANK and WORLD_SIZE"
        )
    if settings.dynamic_on and not dynamic(environ):
        yield (
            "dynamic_on has no effect, monitoring begins at start_step: to switch it while training runs, set the "
            "environment variable DYNAMIC_MONITOR=True before training begins"
        )
    if not settings.collect_times and not dynamic(environ):
        yield "collect_times is 0: nothing is collected; leave it out to collect every step"
    yield from without_effect(settings, ranks)
