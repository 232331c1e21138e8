"""Updates that the hooks of the watched optimizers do not see: those by optimizers that replace the ones passed to
``set_monitor``, and those in compiled code, in which no hook runs."""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Iterable
from typing import Any
from weakref import WeakSet, ref

from probe.core.backend.protocols import Optimizer
from probe.core.instrumentation.context import Run

FIRST = "optimizer: updates by one that was not known yet, which has taken the place of another"
PARTS = "optimizer: updates of parameters of the one that is watched, which takes no steps"
ENDLESS = "optimizer: steps that were given up, since no update came"
COMPILED = "optimizer: updates that were compiled, in which no hook runs"
"""Kind of loss, counted for each such update."""
PATIENCE = 3
"""Consecutive updates by an optimizer that has some of the parameters, from which on they are counted and logged."""
MICRO_STEPS, TIMES = 50, 10
"""Largest plausible number of micro batches in a step: the first, or the second times the most of any step before."""

_log = logging.getLogger("probe")


class StepMark:
    """Stand-in for an optimizer where the program passes none: the first that updates the model takes its place. Until
    then each call of :meth:`step` ends a training step.

    Args:
        parameters: the model's.
    """

    def __init__(self, parameters: Iterable[Any]) -> None:
        self.param_groups: list[dict[str, Any]] = [{"params": [*parameters], "lr": 0.0}]
        self.is_replaced = False
        """True once an optimizer has taken its place, whose updates end training steps."""

    def step(self) -> None:
        """End a training step."""


class OtherUpdates:
    """Listener to every update in the process that the framework can report. It finds updates by other optimizers of
    the parameters that a watched optimizer is expected to update; compiled updates are looked for in each hook.

    Args:
        succeed: puts an optimizer, which is about to update, in the place of the watched one with a number.
        follow: does so with one that has just updated.
        suspend: stops collecting in the step in progress, and drops its rows.
        ended_unseen: is called for each compiled update since the last hook.
    """

    def __init__(
        self,
        run: Run,
        succeed: Callable[[int, Optimizer], None],
        follow: Callable[[int, Optimizer], None],
        suspend: Callable[[], None],
        ended_unseen: Callable[[Optimizer], None],
    ) -> None:
        self._run, self._succeed, self._follow = run, succeed, follow
        self._suspend, self._ended_unseen = suspend, ended_unseen
        self.compiled: dict[int, tuple[Optimizer, Callable[[], int], int]] = {}
        """Optimizers whose update is compiled, each with a function whose result changes with each update, and its
        result in the latest hook."""
        self.over = False
        """True once updates are of no interest any more."""
        self.updates, self.updating = 0, False
        """Number of updates of watched optimizers that have ended; True while such an update runs."""
        self._others: WeakSet[Any] = WeakSet()
        """Optimizers of other parameters."""
        self._partial: WeakSet[Any] = WeakSet()
        """Optimizers of some of the parameters, which take a place once at most: later they alternate."""
        self._began: dict[int, int] = {}
        """For each running update, the number of updates of watched optimizers before it began."""
        self._alone: tuple[int, int] = (0, 0)
        """The latest update of some of the parameters, counted likewise, and the number of such updates in a row."""
        self.micro_steps = -1
        """The most micro batches in any step so far; -1 before the end of the first."""
        self.limit = math.inf
        """Largest plausible number of micro batches in a step."""
        self._warned = False

    def watch(self, run: Run) -> None:
        """Watch the optimizers of ``run`` from now on."""
        self._run = run
        if self.compiled:
            run.look_first(self.find_compiled)

    # Other optimizers.

    def listeners(self) -> tuple[Callable[..., None], Callable[..., None]]:
        """Return functions to call before and after each update in the process, until :attr:`over`. They keep nothing
        alive, since the framework has them in a table."""
        reference = ref(self)

        def began(optimizer: Optimizer, *_: object) -> None:
            if (updates := reference()) is not None and not updates.over:
                updates.began(optimizer)

        def ended(optimizer: Optimizer, *_: object) -> None:
            if (updates := reference()) is not None and not updates.over:
                updates.ended(optimizer)

        return began, ended

    def began(self, optimizer: Optimizer) -> None:
        """Note that an optimizer, watched or not, begins to update; follow one that the program has made anew."""
        self._began[id(optimizer)] = self.updates
        if self.updating or len(self._began) > 1 or optimizer in self._others:  # within another, or of another model
            return
        watched = self._run.optimizers
        if not any(type(candidate) is type(optimizer) for candidate in watched):
            return
        if any(candidate is optimizer for candidate in watched):
            return
        number, shares = self._place(self._run, optimizer)
        if shares and number is not None and type(watched[number]) is type(optimizer):
            self._succeed(number, optimizer)

    def ended(self, optimizer: Optimizer) -> None:
        """Note that an optimizer has updated. If it did so within an update of a watched optimizer or around one, it is
        a part or a wrapper of that optimizer."""
        began, run = self._began.pop(id(optimizer), None), self._run
        if self.updating or began != self.updates or optimizer in self._others:
            return
        number, shares = self._place(run, optimizer)
        if number is not None and isinstance(mark := run.optimizers[number], StepMark):
            mark.is_replaced = True
            self._follow(number, optimizer)
        elif number is not None:
            _log.warning(
                "set_monitor: optimizer: expected one that updates, got %s, which takes no steps, while %s updates its "
                "parameters: this one is followed from now on, without its first update; pass it to set_monitor",
                type(run.optimizers[number]).__name__,
                type(optimizer).__name__,
            )
            run.faults.lost(FIRST, 1)
            self._follow(number, optimizer)
        elif shares:
            self._wait(run, optimizer)
        else:
            self._others.add(optimizer)

    def _place(self, run: Run, optimizer: Optimizer) -> tuple[int | None, bool]:
        """Return the number of a watched optimizer whose parameters of the model ``optimizer`` has, too, or None; and
        whether any watched optimizer shares parameters with it."""
        hooks = run.framework.hooks
        parameters = [parameter for _, model in run.chunks for _, parameter in hooks.parameters(model)]
        present = {*map(id, parameters)}
        new = {id(parameter) for parameter in hooks.owned(optimizer)} & present
        old = [
            set() if isinstance(watched, StepMark) else {id(parameter) for parameter in hooks.owned(watched)} & present
            for watched in run.optimizers
        ]
        if not new:
            return None, False
        # first those that still have parameters in the model, then one whose parameters have all been replaced
        order = sorted(range(len(old)), key=lambda i: not old[i])
        number = next((i for i in order if old[i] <= new), None)
        if number is None and optimizer not in self._partial:  # LoRA: the new optimizer leaves out what is frozen
            self._partial.add(optimizer)
            frozen = {id(parameter) for parameter in parameters if not hooks.trainable(parameter)}
            number = next((i for i in order if not old[i] <= frozen and old[i] - frozen <= new), None)
        return number, any(not new.isdisjoint(parameters) for parameters in old)

    def _wait(self, run: Run, optimizer: Optimizer) -> None:
        """Count an update of some of the parameters; the watched optimizer may still update in this step."""
        since, times = self._alone
        self._alone = self.updates, times + 1 if since == self.updates else 1
        if self._alone[1] < PATIENCE:
            return
        run.faults.lost(PARTS, 1)
        if not self._warned:
            self._warned = True
            _log.warning(
                "another optimizer (%s) updates some of the parameters of the one that is watched, which takes no "
                "steps: its updates are not recorded. If it trains from now on, call stop(), then set_monitor with it",
                type(optimizer).__name__,
            )

    def give_up(self) -> None:
        """Stop collecting in a sampled step that has more micro batches than :attr:`limit`."""
        run = self._run
        run.faults.lost(ENDLESS, 1)
        _log.warning(
            "step %d: %d micro batches without an update by the optimizer that is watched: nothing more is recorded "
            "until it steps. If another one trains now, call stop(), then set_monitor with it",
            run.clock.step,
            run.clock.micro_step,
        )
        self._suspend()

    def step_ended(self, micro_steps: int) -> None:
        """Note the end of the step with the most micro batches so far."""
        self.micro_steps, self.limit = micro_steps, max(MICRO_STEPS, TIMES * micro_steps)

    # Compiled updates.

    def add_compiled(self, optimizer: Optimizer, updates: Callable[[], int]) -> None:
        """Look for the updates of ``optimizer`` in each hook, too."""
        self.compiled.setdefault(id(optimizer), (optimizer, updates, updates()))
        self._run.look_first(self.find_compiled)

    def seen(self, optimizer: Optimizer) -> None:
        """Note that hooks have seen an update of ``optimizer``. On Python 3.13 torch traces an update with hooks, and
        runs it as it is nevertheless, but for the arithmetic (2.13)."""
        if (entry := self.compiled.get(id(optimizer))) is not None:
            self.compiled[id(optimizer)] = (*entry[:2], entry[1]())

    def find_compiled(self) -> None:
        """Report each compiled update since the last hook."""
        for identity, (optimizer, updates, before) in [*self.compiled.items()]:
            if (now := updates()) != before:
                self.compiled[identity] = (optimizer, updates, now)
                self._note_compiled(optimizer)

    def _note_compiled(self, optimizer: Optimizer) -> None:
        if COMPILED not in self._run.faults.counts:
            _log.warning(
                "the update of %s is compiled by torch.compile, where no hook runs: its steps are counted at the next "
                "forward or backward that a hook sees, and gradients after reduction, parameters and state are not "
                "recorded; to record them call optimizer.step() outside of what is compiled",
                type(optimizer).__name__,
            )
        self._run.faults.lost(COMPILED, 1)
        self._ended_unseen(optimizer)
