"""Attach, count steps, deliver, detach. The one place that owns the step counter and every hook."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from functools import partial
from typing import Any

from probe.core.cost import Spent
from probe.core.framework import Optimizer, Tensor
from probe.core.recorder import Pending, Recorder
from probe.core.records import Batch, Snapshot
from probe.core.run import Run
from probe.core.run_output import Output
from probe.core.schedule import Schedule
from probe.core.selection import Names, Watched
from probe.core.sources import Source
from probe.core.turns import Turns

REPLACED = (
    "the optimizer updates a parameter that the model has no more: another has taken the place of {!r}; make the "
    "optimizer after what replaces parameters (fully_shard, parallelize_module)"
)
STRANGE = (
    "the optimizer updates none of the model's parameters, so that their updates are not seen: give set_monitor the "
    "model and the optimizer that train together, after both are wrapped"
)
Judge = Callable[[Sequence[Batch]], list[Any]]
Between = Callable[[int], None]
Apart = Callable[[int], list[Batch]]
"""Gives those rows of a step that another recorder has collected."""


class Session:
    """One monitored run between attaching and detaching.

    Args:
        run: what is watched; its clock, recorder and lists of listeners are this session's from now on.
        output: gets every sampled step on its thread; None if this rank takes no part.
        between: called between steps with the number of the one to begin; may call :meth:`change`.
    """

    def __init__(
        self, run: Run, schedule: Schedule, start: int, output: Output | None, between: Between | None = None
    ) -> None:
        self._hooks = run.framework.hooks
        self._attached: dict[int, ExitStack] = {}
        """The hooks of each parameter."""
        self._sources = ExitStack()
        """Every other hook than those that count steps."""
        self._take(run, schedule, output)
        self._between = between
        self._turns = Turns(run.optimizers)
        self._looked = False
        self._ended, self._delivered, self._on_device = time.perf_counter(), 0.0, 0.0
        """When the last step ended; how long the delivery thread and the device had worked by the last sampled one."""
        self._own = 0.0
        """Seconds that the monitor took between the last step and the one in progress."""
        self._outcome = "applied"
        self._stack = ExitStack()
        self._retire_with: Callable[[], None] | None = None
        self._detached = False
        self.last: tuple[int, Pending, Sequence[str]] | None = None
        """The step that ended last and its ops, if it was sampled and nothing of the next has been seen."""
        run.clock.begin(start, schedule.samples(start))

    def _take(self, run: Run, schedule: Schedule, output: Output | None) -> None:
        """Begins to watch ``run``, of which nothing is known yet."""
        self._run, self._schedule, self._output = run, schedule, output
        self._names = Names(run.settings.squash_name)
        self._known: dict[int, Watched] = {}
        self._waiting: list[Watched] = []
        self._owned: dict[int, list[Watched]] = {}
        self._census: list[int] = []
        self._wrapping = True
        """Whether a wrapper may put other parameters in their places before training begins."""

    def change(self, run: Run, schedule: Schedule, output: Output | None, sources: Sequence[Source]) -> None:
        """Watches ``run`` instead, which has the same model and optimizers, from the step about to begin.

        Called between steps.

        Raises:
            Exception: if a hook cannot be placed; none is then.
        """
        clock = self._run.clock
        self._sources.close()
        self._take(run, schedule, output)
        run.clock.begin(clock.step, False)
        self._place(sources)

    def at_once(self, act: Callable[[int], None]) -> None:
        """Calls ``act`` with the number of the step in progress, which may :meth:`change` what is watched in it, if
        nothing of that step has been seen: between an update and the next forward."""
        run = self._run
        seen = self._looked or any(map(len, (run.recorder, run.collectives or (), *run.apart)))
        if self._detached or (run.clock.sampled and seen):
            return
        step = run.clock.step
        self._guarded("control", lambda: act(step))
        self._run.clock.begin(step, self._samples(step))

    def _place(self, sources: Sequence[Source]) -> None:
        """Places the hooks of ``sources`` and those of parameters, or none."""
        try:
            self._sources.callback(self._unhook_parameters)
            for source in sources:
                self._sources.enter_context(source(self._run))
            self._find_parameters()
            if sources:
                self._look_at_each_forward()
        except BaseException:
            self._sources.close()
            raise

    def attach(self, sources: Sequence[Source]) -> None:
        """Places every hook; if one cannot be placed, all are taken away again and the error goes on."""
        try:
            self._stack.callback(self._run.framework.prepare(self._run.settings))
            self._stack.callback(self._sources.close)
            self._place(sources)
            for optimizer in self._run.optimizers:
                self._stack.callback(self._hooks.on_step(optimizer, self))
        except BaseException:
            self.detach()
            raise

    def detach(self) -> None:
        """Takes every hook away; afterwards model, optimizer and framework are as they were found."""
        self._detached = True
        self._run.clock.sampled = False
        self._stack.close()

    def retire(self, remove: Callable[[], None]) -> None:
        """Calls ``remove`` at the next forward, where hooks may be taken away safely: the hooks of the step that has
        just ended are still being iterated."""
        self._retire_with = remove

    @property
    def schedule(self) -> Schedule:
        """Which steps are sampled."""
        return self._schedule

    @property
    def finished(self) -> bool:
        """Whether nothing more will be sampled."""
        return self._schedule.finished

    # What the optimizer's hooks call.

    def before(self, optimizer: Optimizer, scale: Tensor | None) -> None:
        """Gradients are as they will be applied."""
        if self._detached:  # somebody has wrapped what called us, so that it could not be taken away
            return
        if self._turns.ends_by(optimizer):
            self._guarded("end of step", self._end)
        if (collectives := self._run.collectives) is not None:
            self._guarded("collectives", lambda: collectives.before_update(self._run.clock.step))
        if not self._run.clock.sampled or self._run.captured():
            return
        begun = self._run.cost.begin()
        self._guarded("parameters", self._look)
        for listen in self._run.before_update:
            self._guarded("before the update", partial(listen, optimizer, self._of(optimizer), scale))
        if len(self._run.optimizers) > 1:
            self._run.updated.update(id(parameter.thing) for parameter in self._of(optimizer))
        self._run.cost.end(begun)

    def after(self, optimizer: Optimizer, outcome: str) -> None:
        """The update was applied or skipped; the step ends when every optimizer has had its turn."""
        if self._detached:
            return
        if self._run.clock.sampled and not self._run.captured():
            begun = self._run.cost.begin()
            for listen in self._run.after_update:
                self._guarded("after the update", partial(listen, optimizer, self._of(optimizer)))
            self._run.cost.end(begun)
        self._outcome = outcome
        if self._turns.take(optimizer):
            self._guarded("end of step", self._end)

    def searching(self, on: bool) -> None:
        """Between these two, a closure is evaluated again within an update."""
        self._run.clock.searching = on and not self._detached

    def failed(self, where: str, error: Exception) -> None:
        """Counts what an adapter could not do."""
        self._run.faults.note(where, error)

    @property
    def sampled(self) -> bool:
        """Whether the step in progress is sampled."""
        return self._run.clock.sampled

    def gradients_now(self, into: Recorder) -> None:
        """Records what those optimizers would be given now that have not updated in this step."""
        for optimizer in self._run.optimizers:
            if not self._turns.taken(optimizer):
                for record in self._run.gradients_now:
                    record(into, optimizer, self._of(optimizer), self._hooks.held_scale(optimizer))

    def _end(self) -> None:
        """Hands a sampled step over and begins the next."""
        run, step = self._run, self._run.clock.step
        self.last = None
        sampled, hooks, handing = run.clock.sampled, run.cost.hooks, time.perf_counter()
        captured = sampled and run.captured()
        try:
            if captured:
                self._drop()
            elif sampled:
                self._hand_over(self._outcome)
        finally:
            self._schedule.ended(step, sampled)
            self._time(sampled, hooks, handing)
            self._turns.clear()
            self._looked = False
            run.clock.begin(step + 1, False)
            if (between := self._between) is not None:
                self._guarded("control", lambda: between(step + 1))
            self._own = time.perf_counter() - self._ended
            self._run.clock.begin(step + 1, self._samples(step + 1))
        if self._schedule.finished and self._retire_with is not None:
            self._arm_retirement()

    def _time(self, sampled: bool, hooks: float, handing: float) -> None:
        """How long the step has taken, and what of that was the monitor's: ``hooks``, all since ``handing``, and what
        was done before it began."""
        now = time.perf_counter()
        took, own, self._ended = now - self._ended, self._own + hooks + now - handing, now
        if self._output is not None:
            self._output.timed(took, own)
        if (pace := self._schedule.pace) is not None:
            pace.step(took, own, sampled)
            if sampled and self._output is not None:
                delivered, self._delivered = self._delivered, self._output.delivery.seconds
                on_device, self._on_device = self._on_device, self._output.on_device.seconds
                pace.sampled(own + self._on_device - on_device, self._delivered - delivered)

    def _samples(self, step: int) -> bool:
        """Whether ``step`` is to be sampled; in a forked child, which has no delivery thread, none is."""
        return self._schedule.samples(step) and (self._output is None or self._output.delivery.here)

    def flush_partial(self) -> None:
        """Delivers what was seen of a step that will never end."""
        run = self._run
        if run.clock.sampled and any(map(len, (run.recorder, run.collectives or (), *run.apart))):
            self._guarded("end of step", lambda: self._hand_over("partial"))

    def _hand_over(self, outcome: str) -> None:
        run, begun = self._run, self._run.cost.begin()
        step, now = run.clock.step, time.time()
        try:
            pending = run.recorder.drain()
            collecting = [*run.apart, *([run.collectives] if run.collectives is not None else [])]
            apart = [each.drain() for each in collecting]
        finally:
            self._drop()
        self.last = (step, pending, run.settings.statistics)
        spent = run.cost.take(begun)
        if (output := self._output) is not None:
            about = partial(_snapshot, run, output, pending, apart, step, now, spent, outcome)
            output.delivery.submit(lambda: output.writer.write(about()))

    def _drop(self) -> None:
        """Forgets what was seen of the step."""
        for listen in self._run.step_ended:
            self._guarded("end of step", listen)
        self._run.updated.clear()
        self._run.recorder.clear()

    def _arm_retirement(self) -> None:
        remove, self._retire_with = self._retire_with, None
        _, model = self._run.chunks[0]
        if remove is not None:
            self._stack.callback(self._hooks.at_next_forward(model, remove))

    def _guarded(self, where: str, function: Callable[[], None]) -> None:
        try:
            function()
        except Exception as error:  # noqa: BLE001 - nothing of ours may raise into training
            self._run.faults.note(where, error)

    # Parameters, including those that come later.

    def _look_at_each_forward(self) -> None:
        for _, model in self._run.chunks:
            remove = self._run.on_forward(
                model, model, lambda *_: self._look(), lambda *_: None, lambda f: self._run.guard("parameters", f)
            )
            self._sources.callback(remove)

    def _look(self) -> None:
        if not self._looked:
            self._looked = True
            self._find_parameters()

    def _unhook_parameters(self) -> None:
        for attached in self._attached.values():
            attached.close()
        self._attached.clear()

    def _find_parameters(self) -> None:
        """Watches parameters that are new since the last look, and hooks those that have become trainable."""
        for parameter in self._run.parameters:
            self._run.framework.parallel.check_again(parameter.thing)
        census = [id(parameter) for optimizer in self._run.optimizers for parameter in self._hooks.owned(optimizer)]
        if census != self._census or self._wrapping:
            self._wrapping = self._census != census
            self._census = census
            self._watch_new()
            self._share_out()
            if not self._wrapping and census and self._known and not self._known.keys() & set(census):
                self._run.faults.note("optimizer", ValueError(STRANGE))
        still: list[Watched] = []
        for parameter in self._waiting:
            if self._hooks.trainable(parameter.thing):
                for attach in self._run.attachers:
                    self._attached.setdefault(id(parameter.thing), ExitStack()).callback(attach(parameter))
            else:
                still.append(parameter)
        self._waiting = still

    def _watch_new(self) -> None:
        there = [(stage, [*self._hooks.parameters(model)]) for stage, model in self._run.chunks]
        self._forget_but({id(thing): (stage, full) for stage, named in there for full, thing in named})
        for stage, named in there:
            self._names.expect(stage, (full for full, _ in named))
            for full, thing in named:
                if id(thing) in self._known:
                    continue
                watched = self._known[id(thing)] = self._names.watch(stage, full, thing)
                if self._run.selection.watches(watched):
                    self._run.parameters.append(watched)
                    self._waiting.append(watched)

    def _forget_but(self, found: dict[int, tuple[int, str]]) -> None:
        """Lets go of parameters that the model has no more, unless an optimizer updates them and no others have taken
        their places (as ``fully_shard`` and ``parallelize_module`` have it)."""
        names, owned = set(found.values()), set(self._census)
        for identity, known in [*self._known.items()]:
            replaced = (known.stage, known.full) in names
            if identity in found or (identity in owned and not replaced):
                continue
            if identity in owned:
                self._run.faults.note("parameters", ValueError(REPLACED.format(known.full)))
            self._names.release(self._known.pop(identity))
            self._attached.pop(identity, ExitStack()).close()
        self._run.parameters[:] = [each for each in self._run.parameters if id(each.thing) in self._known]
        self._waiting = [each for each in self._waiting if id(each.thing) in self._known]

    def _share_out(self) -> None:
        """Which optimizer's step each parameter belongs to; what none updates goes with the first."""
        mine = {id(p): id(o) for o in reversed(self._run.optimizers) for p in self._hooks.owned(o)}
        first = id(self._run.optimizers[0])
        self._owned = {id(optimizer): [] for optimizer in self._run.optimizers}
        for parameter in self._run.parameters:
            self._owned[mine.get(id(parameter.thing), first)].append(parameter)

    def _of(self, optimizer: Optimizer) -> list[Watched]:
        return self._owned.get(id(optimizer), [])


def _snapshot(
    run: Run, output: Output, pending: Pending, apart: list[Apart], step: int, now: float, spent: Spent, outcome: str
) -> Snapshot:
    """On the delivery thread: waits for the device."""
    batches, rank = pending.batches(step), run.framework.groups.rank()
    for rows in apart:
        batches += rows(step)
    batches = output.globally(step, batches)
    cost = {"hooks": spent.hooks, "drain": spent.drain} | output.measured(spent)
    scalars = {"probe/overhead": output.overhead}
    return Snapshot(step, rank, now, batches, run.settings.statistics, scalars=scalars, cost=cost, outcome=outcome)
