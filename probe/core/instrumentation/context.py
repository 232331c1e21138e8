"""The run as a source sees it: the step in progress, the things to watch, the place to record."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, Generic, Protocol, TypeVar

from probe.core.backend.protocols import (
    ForwardKind,
    FrameworkAdapter,
    Module,
    Optimizer,
    Parameter,
    Remove,
    Shard,
    Tensor,
)
from probe.core.config.schema import Settings
from probe.core.faults import Faults
from probe.core.instrumentation.overhead import Cost
from probe.core.instrumentation.recorder import Recorder
from probe.core.instrumentation.selection import Selection, TargetNames, Watched
from probe.core.records import Batch, Key, Outcome, TextFile

SPLIT = "tensor_model_parallel"
"""The attribute, true of a parameter of which each tensor-parallel rank has another part, however it was split."""
CAPTURED = "hooks called while a CUDA graph was captured"
_log = logging.getLogger("probe")
Each = TypeVar("Each")
BeforeUpdate = Callable[[Optimizer, list[Watched], Tensor | None], None]
AfterUpdate = Callable[[Optimizer, list[Watched]], None]
GradientsNow = Callable[[Recorder, Optimizer, list[Watched], Tensor | None], None]


@dataclass
class Clock:
    """The position of the run. On steps that are not sampled, hooks test ``sampled`` and nothing else."""

    step: int = 0
    sampled: bool = False
    micro_step: int = 0
    """Of the forwards that run now."""
    searching: bool = False
    """Whether a closure is being evaluated again within an update: line search, no training data."""
    outcome: Outcome = "applied"
    """Of the update that listeners after it are called for: ``applied``, ``skipped`` or ``unknown``."""
    updated: set[int] = field(default_factory=set)
    """Identities of the parameters whose optimizer has updated in this step while others have not yet."""
    _reached: int | None = None
    """The micro step of the forward whose outputs the latest backward has reached."""
    _passed: dict[int, int] = field(default_factory=dict)
    """Number of micro batches that have gone forward through each chunk of a pipeline."""
    _forward: bool = False
    _whole: bool = False
    _backward: bool = False
    _backward_id: int | None = None

    def begin(self, step: int, sampled: bool) -> None:
        """Begins another training step."""
        self.step, self.sampled, self.micro_step = step, sampled, 0
        self._forward = self._whole = self._backward = False
        self._backward_id = self._reached = None
        self._passed = {}

    @property
    def backward_step(self) -> int:
        """The micro step of gradients that come now: that of the forward whose outputs the backward has reached or, if
        none was seen, the one in progress."""
        return self.micro_step if self._reached is None else self._reached

    def forward_began(self, whole: bool, pipeline: int | None = None) -> None:
        """Notes a forward of the whole model or, where that is never called, of a module: the first after a backward
        begins another micro batch.

        A pipeline runs several micro batches forward before the first backward: every forward of ``pipeline``, the
        chunk that it runs, is another one.
        """
        if self._whole and not whole:
            return
        self._whole = whole
        self._reached = None
        if pipeline is not None:
            self.micro_step = self._passed.get(pipeline, 0)
            self._passed[pipeline] = self.micro_step + 1
        elif self._backward:
            self.micro_step += 1
        self._backward = False
        self._forward = True

    def backward_reached(self, micro_step: int) -> None:
        """Notes that the running backward has reached the outputs of a forward of ``micro_step``."""
        self._reached = micro_step

    def backward_began(self, identity: int) -> None:
        """Notes a gradient; where no forward is seen, each backward is a micro batch."""
        if not self._forward and self._backward_id not in (None, identity):
            self.micro_step += 1
        self._backward_id, self._backward = identity, True


class PendingRows(Protocol):
    """Rows of a step that may still be on their way to the host."""

    def batches(self, step: int) -> list[Batch]:
        """The rows of ``step``; waits for the device."""


class StepCollector(Protocol):
    """Collects rows of its own kind within a step."""

    def __len__(self) -> int:
        """Number of rows so far."""

    def drain(self) -> PendingRows:
        """Ends the step's collection and begins another."""


class Listeners(Generic[Each]):
    """Functions that are called at one moment, in the order in which they were added."""

    def __init__(self) -> None:
        self._added: list[Each] = []

    def add(self, listener: Each) -> None:
        """Calls ``listener`` from now on."""
        self._added.append(listener)

    def remove(self, listener: Each) -> None:
        """Calls ``listener`` no more; harmless if it is not there."""
        self._added = [each for each in self._added if each != listener]

    @contextmanager
    def added(self, listener: Each) -> Iterator[None]:
        """Adds ``listener`` on entry and removes it on exit."""
        self.add(listener)
        try:
            yield
        finally:
            self.remove(listener)

    def __iter__(self) -> Iterator[Each]:
        return iter(self._added)  # a list that :meth:`remove` replaces: a signal handler may end the run meanwhile

    def __len__(self) -> int:
        return len(self._added)


@dataclass
class Run:
    """The run, for sources: things to watch, the recorder, and the moments at which listeners are called.

    Its methods alone change it; sources add listeners on entry and remove them on exit.
    """

    settings: Settings
    framework: FrameworkAdapter
    chunks: list[tuple[int, Any]]
    """Model chunks by virtual pipeline stage."""
    optimizers: Sequence[Optimizer]
    selection: Selection
    recorder: Recorder
    faults: Faults
    main_grad: bool
    clock: Clock = field(default_factory=Clock)
    cost: Cost = field(default_factory=Cost)
    repeats: list[tuple[int, ...]] = field(default_factory=list)
    """The ranks of each group in which another rank than this one, the first, writes the gradients that all of them
    have."""
    tensor_repeats: list[tuple[int, ...]] = field(default_factory=list)
    """The same for the tensor-parallel group and parameters that are not split over it."""
    replicas: tuple[int, ...] = ()
    """The data-parallel group that was passed to ``set_monitor``: ranks that hold the same parameters."""
    directory: Path | None = None
    """The directory of this rank's files; None where nothing is written."""
    before_update: Listeners[BeforeUpdate] = field(default_factory=Listeners, init=False)
    """Called in sampled steps, with the optimizer, its parameters and the scale of their gradients."""
    every_update: Listeners[Callable[[int], None]] = field(default_factory=Listeners, init=False)
    """Called before an optimizer updates, with the step's number: in every step, sampled or not, on every rank."""
    after_update: Listeners[AfterUpdate] = field(default_factory=Listeners, init=False)
    """Called in sampled steps."""
    step_ended: Listeners[Callable[[], TextFile | None]] = field(default_factory=Listeners, init=False)
    """Called once the rows of a sampled step are handed over or dropped; may return a file, to be written elsewhere."""
    gradients_now: Listeners[GradientsNow] = field(default_factory=Listeners, init=False)
    """Record the gradients that are held now, if a program asks for them before the update."""
    each_parameter: Listeners[Callable[[Watched], Remove]] = field(default_factory=Listeners, init=False)
    """Called for every watched parameter that can have a gradient, and for those that come later."""
    collectors: Listeners[StepCollector] = field(default_factory=Listeners, init=False)
    """Collect rows beside the recorder."""
    trained: frozenset[int] = field(default=frozenset(), init=False)
    """Identities of the parameters that an optimizer updates; empty if none is known to."""
    _backward: tuple[int, bool] = field(default=(-1, True), init=False)

    def adopt(self, optimizers: Sequence[Optimizer]) -> None:
        """Watches ``optimizers`` instead of those before, each in the place of one."""
        self.optimizers = [*optimizers]

    def note_trained(self, identities: frozenset[int]) -> None:
        """Sets :attr:`trained`."""
        self.trained = identities

    def write_to(self, directory: Path | None) -> None:
        """Sets :attr:`directory`, which is made from what this run collects."""
        self.directory = directory

    def each_module(self, squash: bool | None = None) -> Iterator[tuple[Module, Watched]]:
        """Every module of every chunk under its row name, each with the chunk that it is in.

        Args:
            squash: whether names are squashed; None: as configured.
        """
        names = TargetNames(self.settings.squash_name if squash is None else squash)
        for stage, model in self.chunks:
            modules = [*self.framework.hooks.modules(model)]
            names.expect(stage, (full for full, _ in modules))
            for full, module in modules:
                yield model, names.watch(stage, full, module)

    @property
    def seen(self) -> bool:
        """Whether anything of the step in progress was collected."""
        return any(map(len, (self.recorder, *self.collectors)))

    def read_each(
        self, owned: Sequence[Watched], read: Callable[[Watched], Each | None], where: str
    ) -> list[tuple[Key, Each]]:
        """The key of each parameter with the result of ``read``, unless that is None; a failure is counted, and the
        others are read all the same.

        Args:
            where: the place of failures, in which ``{}`` stands for the name of the parameter.
        """
        found: list[tuple[Key, Each]] = []
        for parameter in owned:
            try:
                if (value := read(parameter)) is not None:
                    found.append((parameter.key, value))
            except Exception as error:  # noqa: BLE001 - whatever it is, training goes on
                self.faults.note(where.format(parameter.name), error)
        return found

    def elsewhere(self, parameter: Parameter, gradient: Tensor | Shard) -> bool:
        """Whether another rank of a group writes this reduced gradient of ``parameter``.

        Replicated gradients are written by the group's first rank, sharded ones by every rank; of identical sets of
        shards (HSDP) only by the first set.
        """
        repeats = self.repeats if getattr(parameter, SPLIT, False) else self.repeats + self.tensor_repeats
        if not repeats:
            return False
        coverage = gradient.coverage if type(gradient) is Shard else self.framework.tensors.describe(gradient)[2]
        sharing = {*coverage.ranks} if coverage else set[int]()
        return any(len(sharing & {*ranks}) <= 1 or ranks[0] not in sharing for ranks in repeats)

    def in_training_backward(self) -> bool:
        """Whether the running backward leads to parameters; notes that it runs."""
        identity = self.framework.hooks.backward_id()
        if identity != self._backward[0]:
            self._backward = (identity, self.framework.hooks.feeds(model for _, model in self.chunks))
        if self._backward[1]:
            self.clock.backward_began(identity)
        return self._backward[1]

    def captured(self) -> bool:
        """Whether nothing can be read, since a CUDA graph is captured: kernels are recorded, not run. Logged once."""
        if not self.framework.capturing():
            return False
        if CAPTURED not in self.faults.counts:
            _log.warning(
                "a CUDA graph is captured: nothing that runs in it can be recorded, neither now nor when it is replayed"
            )
        self.faults.lost(CAPTURED, 1)
        return True

    def guard(
        self, where: str, function: Callable[..., None], skip: Callable[[], bool] | None = None
    ) -> Callable[..., None]:
        """``function`` for use as a hook: skipped on steps that are not sampled, timed, and unable to raise.

        Args:
            skip: called first; if it returns true, the hook does nothing.
        """
        clock, cost, faults, captured = self.clock, self.cost, self.faults, self.captured

        def hook(*args: Any) -> None:
            try:
                if (skip is not None and skip()) or not clock.sampled or captured():
                    return
                begun = cost.begin()
                try:
                    function(*args)
                finally:
                    cost.end(begun)
            except Exception as error:  # noqa: BLE001 - nothing of ours may raise into training
                try:
                    faults.note(where, error)
                except Exception:  # noqa: BLE001 - at the end of the stack nothing can be called
                    faults.uncounted += 1

        return hook

    def on_forward(
        self,
        module: Module,
        root: Module,
        before: Callable[[ForwardKind, Any], None] | None,
        after: Callable[[ForwardKind, Any], None] | None,
        where: str,
        *,
        compiled_too: bool = False,
        gradients: bool = False,
    ) -> Remove:
        """Listens to forwards of ``module``, a part of ``root``, that are not evaluation. Both listeners get the kind,
        ``training`` or ``recompute``; then ``before`` gets ``(args, kwargs)``, and ``after`` the outputs.

        Args:
            where: the place at which failures are counted.
            compiled_too: whether to listen inside compiled graphs, where the settings ask for that.
            gradients: whether ``after`` may listen to gradients there.
        """
        hooks = self.framework.hooks

        def began(args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
            if before is not None and (kind := hooks.forward_kind(root)):
                before(kind, (args, kwargs))

        def ended(outputs: Any) -> None:
            if after is not None and (kind := hooks.forward_kind(root)):
                after(kind, outputs)

        clock, guard = self.clock, partial(self.guard, where)
        inside = (lambda: clock.sampled) if compiled_too and self.settings.compiled == "record" else None
        return hooks.on_forward(module, began, ended, guard, inside=inside, gradients=gradients)


REMEDIES = {
    "skip": (
        "compiled (torch.compile, mindspore.jit), or in evaluation mode? Inside what torch.compile compiles, "
        'compiled: "record" listens'
    ),
    "record": (
        "compiled by torch.compile and run before set_monitor, or in evaluation mode? Call set_monitor before the "
        "first forward"
    ),
}
"""Advice, by the setting ``compiled``."""


def note_unseen(run: Run, signal: str) -> None:
    """Counts a sampled step in which no module of ``signal`` was seen to run; the first is logged."""
    if CAPTURED in run.faults.counts:
        return  # the reason, and logged already
    where = f"{signal}: steps in which no watched module was seen to run"
    if where not in run.faults.counts:
        _log.warning("%s: no watched module was seen to run: %s", signal, REMEDIES[run.settings.compiled])
    run.faults.lost(where, 1)
