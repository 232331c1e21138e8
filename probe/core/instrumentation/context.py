"""The run for a source: the step in progress, the things to watch, the recorder, the hooks of sources."""

from __future__ import annotations

import logging
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Generic, Protocol, TypeVar

from probe.core.backend.protocols import (
    ForwardKind,
    FrameworkAdapter,
    Guard,
    Module,
    Optimizer,
    Parameter,
    PausableHook,
    Remove,
    Shard,
    Tensor,
    unheard,
)
from probe.core.config.schema import Settings
from probe.core.door import StepHook, attempt, count
from probe.core.faults import Faults, Misfit
from probe.core.instrumentation.clock import Clock
from probe.core.instrumentation.forwards import Forwards
from probe.core.instrumentation.overhead import Cost
from probe.core.instrumentation.recorder import Recorder
from probe.core.instrumentation.selection import Selection, Watched, named
from probe.core.records import Batch, Key, TextFile

SPLIT = "tensor_model_parallel"
"""The attribute that is true for a parameter if each tensor-parallel rank has another part, however it was split."""
CAPTURED = "hooks called while a CUDA graph was captured"
IDLE = "hooks between sampled steps"
"""Place of failures to move them."""
_log = logging.getLogger("probe")
Each = TypeVar("Each")
BeforeUpdate = Callable[[Optimizer, list[Watched], Tensor | None], None]
AfterUpdate = Callable[[Optimizer, list[Watched]], None]
GradientsNow = Callable[[Optimizer, list[Watched], Tensor | None, Recorder], None]


class PendingRows(Protocol):
    """Rows of a step whose numbers may not have arrived on the host yet."""

    def batches(self, step: int) -> list[Batch]:
        """Return the rows of ``step``; wait for the device."""


class StepCollector(Protocol):
    """Collector of rows beside the recorder's within a step."""

    def __len__(self) -> int:
        """Number of rows so far."""

    def drain(self) -> PendingRows:
        """Return the rows of the step and begin another."""


class Listeners(Generic[Each]):
    """Functions that are called at one moment, in the order in which they were added."""

    def __init__(self) -> None:
        self.all: list[Each] = []
        """The functions; another list once one is removed: a signal handler may end the run while it is read."""

    def add(self, listener: Each) -> None:
        """Call ``listener`` from now on."""
        self.all.append(listener)

    def remove(self, listener: Each) -> None:
        """Stop calling ``listener``; does nothing if it is not there."""
        self.all = [present for present in self.all if present != listener]

    @contextmanager
    def added(self, listener: Each) -> Iterator[None]:
        """Add ``listener`` on entry and remove it on exit."""
        self.add(listener)
        try:
            yield
        finally:
            self.remove(listener)

    def __iter__(self) -> Iterator[Each]:
        return iter(self.all)

    def __len__(self) -> int:
        return len(self.all)


@dataclass
class Run:
    """The run, for sources: things to watch, the recorder, the listeners of each moment, and the hooks of sources.

    Only its methods change it; sources add listeners on entry and remove them on exit.
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
    """The ranks of each group of this rank whose first rank is another: that one writes the gradients that all have."""
    tensor_repeats: list[tuple[int, ...]] = field(default_factory=list)
    """The same for the tensor-parallel group and parameters that are not split over it."""
    replicas: tuple[int, ...] = ()
    """Ranks that hold the same parameters: the data-parallel group that was passed to ``set_monitor``, or that of the
    model's wrapper; this rank alone if ranks train apart by intention."""
    directory: Path | None = None
    """The directory of this rank's files; None where nothing is written."""
    asked: bool = True
    """False for rows that the monitor collects by itself, around an incident: what lacks there is no failure."""
    before_update: Listeners[BeforeUpdate] = field(default_factory=Listeners, init=False)
    """Listeners called before updates in sampled steps, with the optimizer, its parameters and the gradients' scale."""
    every_update: Listeners[Callable[[int], None]] = field(default_factory=Listeners, init=False)
    """Listeners called before an optimizer updates, with the step's number: in every step, sampled or not, on every
    rank."""
    after_update: Listeners[AfterUpdate] = field(default_factory=Listeners, init=False)
    """Listeners called after an update in sampled steps."""
    step_ended: Listeners[Callable[[], TextFile | None]] = field(default_factory=Listeners, init=False)
    """Listeners called once the rows of a sampled step are handed over or dropped; each may return a file to write."""
    gradients_now: Listeners[GradientsNow] = field(default_factory=Listeners, init=False)
    """Functions that record the present gradients, for a program that reads them before the update."""
    each_parameter: Listeners[Callable[[Watched], Remove]] = field(default_factory=Listeners, init=False)
    """Listeners called for every watched parameter that can have a gradient, and for those added later."""
    each_watched_module: Listeners[Callable[[Module, Watched], Remove]] = field(default_factory=Listeners, init=False)
    """Listeners called for every module with the model that has it, and for those added later."""
    collectors: Listeners[StepCollector] = field(default_factory=Listeners, init=False)
    """Collectors of rows beside the recorder."""
    waited: Listeners[Callable[[], float | None]] = field(default_factory=Listeners, init=False)
    """Functions that return the seconds within collectives of the sampled step in progress; None if unknown."""
    trained: frozenset[int] = field(default=frozenset(), init=False)
    """Identities of the parameters that an optimizer updates; empty if none is known."""
    capturing: Callable[[], bool] | None = field(default=None, init=False)
    """Function that returns true while a device only records its work; None if that is never so."""
    statistics: tuple[str, ...] = field(default=(), init=False)
    """Ops that are computed."""
    resting: bool = field(default=False, init=False)
    """True if the hooks of sources are taken out, between sampled steps."""
    look: Callable[[], object] | None = field(default=None, init=False)
    """Function that each hook calls first, in steps that are not sampled, too; None while no update is compiled."""
    forwards: Forwards = field(default_factory=Forwards, init=False)
    """Forwards in progress on each thread."""
    _backward: tuple[int, bool] = field(default=(-1, True), init=False)
    _pausable: dict[PausableHook, None] = field(default_factory=dict, init=False)
    """Hooks of sources that can be taken out for a while."""

    def __post_init__(self) -> None:
        self.capturing = self.framework.capturing
        self.statistics = self.settings.statistics

    def adopt(self, optimizers: Sequence[Optimizer]) -> None:
        """Watch ``optimizers`` instead of the present ones; each replaces the one at its position."""
        self.optimizers = [*optimizers]

    def release(self) -> None:
        """Let go of models and optimizers."""
        self.chunks, self.optimizers = [], ()

    def note_trained(self, identities: frozenset[int]) -> None:
        """Set :attr:`trained`."""
        self.trained = identities

    def look_first(self, look: Callable[[], object]) -> None:
        """Set :attr:`look`."""
        self.look = look

    def write_to(self, directory: Path | None) -> None:
        """Set :attr:`directory`, which is created after this run."""
        self.directory = directory

    def each_module(self, squash: bool | None = None) -> Iterator[tuple[Module, Watched]]:
        """Yield every module of every chunk with its row name, each after the chunk that has it.

        Args:
            squash: whether names are squashed; if None, as configured.
        """
        in_use, squash = set[tuple[int, str]](), self.settings.squash_name if squash is None else squash
        for stage, model in self.chunks:
            modules = [*self.framework.hooks.modules(model)]
            for module in named(stage, modules, (full for full, _ in modules), in_use, squash):
                yield model, module

    @property
    def seen(self) -> bool:
        """True if anything of the step in progress was collected."""
        return any(map(len, (self.recorder, *self.collectors)))

    def read_each(
        self, owned: Sequence[Watched], read: Callable[[Watched], Each | None], where: str
    ) -> list[tuple[Key, Each]]:
        """Return the key of each parameter with the result of ``read``, unless that is None. A failure is counted, and
        the other parameters are read.

        Args:
            where: the place of failures, with ``{}`` for the name of the parameter.
        """
        values: list[tuple[Key, Each]] = []
        for parameter in owned:
            try:
                if (value := read(parameter)) is not None:
                    values.append((parameter.key, value))
            except Exception as error:  # noqa: BLE001 - training goes on after any error
                count(self.faults, where.format(parameter.name), error)
        return values

    def elsewhere(self, parameter: Parameter, gradient: Tensor | Shard) -> bool:
        """True if another rank of a group writes this reduced gradient of ``parameter``.

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
        """Note the running backward, and return true if it leads to parameters."""
        identity, latest = self.framework.hooks.backward_id(), self._backward
        if identity != latest[0]:  # of another thread, perhaps
            latest = self._backward = (identity, self.framework.hooks.feeds(model for _, model in self.chunks))
        if latest[1] and self.clock.backward != identity:
            self.clock.backward_began(identity)
        return latest[1]

    def captured(self) -> bool:
        """Return true, and warn once, if a CUDA graph is captured: kernels are recorded, not run; no value is read."""
        if self.capturing is None or not self.capturing():
            return False
        if CAPTURED not in self.faults.counts:
            _log.warning(
                "a CUDA graph is captured: nothing that runs in it can be recorded, neither now nor when it is replayed"
            )
        self.faults.lost(CAPTURED, 1)
        return True

    def guard(self, where: str, function: Callable[..., None]) -> Callable[..., None]:
        """Return ``function`` as a hook: timed, without effect in steps that are not sampled, and never raising."""
        return StepHook(self, where, function)

    def guard_of(self, where: str) -> Guard:
        """Return :meth:`guard` for hooks whose failures are counted under ``where``."""

        def guard(function: Callable[..., None]) -> Callable[..., None]:
            return StepHook(self, where, function)

        return guard

    def on_forward(
        self,
        module: Module,
        root: Module,
        before: Callable[[ForwardKind, Any], None] | None,
        after: Callable[[ForwardKind, Any], None] | None,
        where: str,
        *,
        dropped: Callable[[], object] = lambda: None,
        compiled_too: bool = False,
        gradients: bool = False,
    ) -> Remove:
        """Listen to forwards of ``module``, a part of ``root``, except in evaluation. Pass to both listeners the kind,
        ``training`` or ``recompute``, then to ``before`` ``(args, kwargs)`` and to ``after`` the outputs.

        Args:
            where: the place under which failures are counted.
            dropped: is called instead of ``after`` for a forward that raised.
            compiled_too: whether to listen inside compiled graphs, too, if so configured.
            gradients: whether ``after`` may listen to gradients there.
        """
        hooks = self.framework.hooks

        def began(args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
            if before is not None and (kind := hooks.forward_kind(root)):
                before(kind, (args, kwargs))

        def ended(outputs: Any) -> None:
            assert after is not None
            raised = outputs is None and sys.exc_info()[1] is not None
            if not raised and (kind := hooks.forward_kind(root)):
                after(kind, outputs)
            else:
                dropped()

        clock = self.clock
        inside = (lambda: clock.sampled) if compiled_too and self.settings.compiled == "record" else None
        leave = unheard if after is None else ended
        return self.listen(module, began, leave, where, inside=inside, gradients=gradients)

    def listen(
        self, module: Module, before: Callable[..., None], after: Callable[..., None], where: str, **options: Any
    ) -> Remove:
        """Place the hooks of a module, with the options of the framework; count a module that takes none."""
        try:
            return self.keep(self.framework.hooks.on_forward(module, before, after, self.guard_of(where), **options))
        except Misfit as misfit:
            self.faults.note("modules that take no hooks", misfit)
            return lambda: None

    # Hooks of sources between sampled steps: taken out where several steps in a row are not sampled, since a hook
    # without effect costs time, too.

    def keep(self, remove: Remove) -> Remove:
        """Note a hook that was placed; return the function that removes it."""
        if not isinstance(remove, PausableHook):
            return remove
        hook = remove
        self._pausable[hook] = None

        def remove_and_drop() -> None:
            hook()
            self._pausable.pop(hook, None)  # only now: see :meth:`remove_hooks`

        return remove_and_drop

    def remove_hooks(self) -> None:
        """Remove the hooks whose removal was interrupted."""
        while self._pausable:
            hook = next(reversed(self._pausable))
            hook()
            self._pausable.pop(hook, None)

    def move_hooks(self) -> float:
        """Put the hooks back if they rest; else take them out, if the framework lets them. Do neither in a backward,
        where frameworks iterate over them. Return the seconds in which they were taken out."""
        hooks = self.framework.hooks
        if hooks.backward_id() != -1:
            return 0.0
        if self.resting:
            self.wake()
            return 0.0
        if not hooks.may_rest():
            return 0.0
        begun = time.perf_counter()
        self.rest()
        return time.perf_counter() - begun

    def rest(self) -> None:
        """Take all hooks out, the last first: each knows the hooks before it, which are in place both times. Where what
        is compiled is recorded, all stay."""
        self.resting = True
        for hook in reversed(self._movable()):
            attempt(self.faults, IDLE, hook.rest)

    def wake(self) -> None:
        """Put all hooks back."""
        self.resting = False
        for hook in self._movable():
            attempt(self.faults, IDLE, hook.wake)

    def _movable(self) -> list[PausableHook]:
        return [] if self.settings.compiled == "record" else [*self._pausable]


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
    """Count a sampled step in which no watched module of ``signal`` ran; log the first."""
    if CAPTURED in run.faults.counts or not run.asked or run.clock.forward_was_before:
        return  # the reason is logged already, nobody asked, or the step before has the rows
    where = f"{signal}: steps in which no watched module was seen to run"
    if where not in run.faults.counts:
        _log.warning("%s: no watched module was seen to run: %s", signal, REMEDIES[run.settings.compiled])
    run.faults.lost(where, 1)
