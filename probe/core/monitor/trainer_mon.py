"""The public ``TrainerMon``: a configuration, and its attachment to a model."""

from __future__ import annotations

import logging
import math
import os
import weakref
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from inspect import GEN_CREATED, GEN_SUSPENDED, getgeneratorstate
from typing import Any, overload

from probe.core.backend.protocols import FrameworkAdapter, Remove
from probe.core.control.command_requests import Command
from probe.core.door import attempt
from probe.core.instrumentation.context import Listeners, Run
from probe.core.instrumentation.training_steps import TrainingSteps
from probe.core.monitor import arguments
from probe.core.monitor.attachment import Attachment
from probe.core.monitor.legacy import AssignedSettings, deprecated, main_grad_of
from probe.core.monitor.machine import machine_failed
from probe.core.monitor.process_exit import restore_handler
from probe.core.monitor.readback import Metrics, activations_of, gradients_of
from probe.core.monitor.subject import Subject, ranks_of
from probe.core.output.pipeline import SnapshotListener
from probe.core.output.run_output import FLUSH_SECONDS, Output
from probe.core.records import Finding
from probe.core.run_state.rules import RunStep
from probe.core.run_state.run_numbers import RunNumbers

_log = logging.getLogger("probe")
NEVER_SET = (
    "TrainerMon was made, and nothing was watched: call set_monitor(model, grad_acc_steps, optimizer), too; a trainer "
    "takes a ProbeCallback in its place"
)
UNWATCHED = "expected a model that is watched, got none; call set_monitor first"
REPLACED = (
    "set_monitor: a monitor of the same configuration watched this model (a cell of a notebook that ran again?): it "
    "has been stopped, with its files in %s; to watch a model twice, use different configurations"
)
_ATTACHED: weakref.WeakSet[Monitor] = weakref.WeakSet()
"""Monitors that have been attached."""
_RUNS: weakref.WeakSet[Attachment] = weakref.WeakSet()
"""Attachments that a program has made itself."""


def _nothing() -> None:
    """Have no effect."""


class Monitor(AssignedSettings):
    """Monitor of a training run.

    Args:
        config_file_path: JSON or YAML file, or a mapping with the same keys.
        process_group: the pipeline-parallel group; orders findings across its ranks.
        params_have_main_grad: whether to read ``main_grad`` if a parameter has one.
        opt_ty: without effect; old scripts may still pass it.
        param_have_main_grad: another spelling of ``params_have_main_grad``, in old scripts.

    Raises:
        ConfigError: naming every problem of the configuration.
    """

    framework: FrameworkAdapter
    automatic = False
    """True for a monitor that ends when the program attaches one of its own to the same model."""
    way = ""
    """Noun for what has attached it, such as ``callback``; empty for the program itself."""
    _wrapped: Any = None
    """Optimizer that was wrapped, in older scripts."""

    @arguments.checked("config_file_path, process_group=None, params_have_main_grad=True")
    def __init__(
        self,
        config_file_path: str | os.PathLike[str] | Mapping[str, Any] | None = None,
        process_group: Any = None,
        params_have_main_grad: bool = True,
        opt_ty: str | None = None,
        *,
        param_have_main_grad: bool | None = None,
    ) -> None:
        self._main_grad = main_grad_of(opt_ty, param_have_main_grad, params_have_main_grad)
        super().__init__(config_file_path)  # type: ignore[arg-type]  # refused there, in words
        self._process_group = process_group
        ranks_of(self.framework, "process_group", process_group)
        self._listening.start()  # there are collectives before there is a model
        weakref.finalize(self, self._listening.stop_unattached)
        self._unwatched = False
        """True if the machine failed when the monitor was to be attached: its methods have no effect."""
        self._listeners: Listeners[SnapshotListener] = Listeners()
        self._models: list[weakref.ref[Any]] = []
        self._never_set = weakref.finalize(self, _log.warning, NEVER_SET)

    @overload
    def set_monitor(
        self,
        model: Any,
        grad_acc_steps: int,
        optimizer: Any,
        dp_group: Any = None,
        tp_group: Any = None,
        start_iteration: int = 0,
    ) -> None: ...

    @overload
    def set_monitor(
        self,
        model: Any,
        optimizer: Any,
        grad_acc_steps: int = 1,
        tp_group: Any = None,
        dp_group: Any = None,
        start_iteration: int = 0,
    ) -> None: ...

    @arguments.documented
    def set_monitor(self, *args: Any, **kwargs: Any) -> None:
        """Attach to a model and its optimizer.

        Pass ``(model, grad_acc_steps, optimizer, dp_group=None, tp_group=None, start_iteration=0)`` or, with the
        optimizer in second place, ``(model, optimizer, grad_acc_steps=1, tp_group=None, dp_group=None,
        start_iteration=0)``. ``model`` may be a list of virtual pipeline stages, or a mapping of names to models, whose
        rows begin with the name: ``{"generator": generator, "critic": critic}``. ``optimizer`` may be a list: then a
        training step ends when each optimizer that takes part has stepped once. Attach before ``torch.compile``.

        Args:
            grad_acc_steps: checked only: micro batches are counted as they run, so that a step may have fewer or more.
            dp_group: data-parallel group, whose ranks hold the same reduced gradients: only its first rank writes them.
                Gradients that are sharded over its ranks (ZeRO, FSDP) are written by each rank.
            tp_group: tensor-parallel group: only its first rank writes gradients that are the same on all its ranks.
                Gradients of parameters whose attribute ``tensor_model_parallel`` is true are written by all of them.
            start_iteration: number of the first step, when a run is resumed.

        Another monitor with an equal configuration that watches the same parameters of the same model is stopped, with
        a warning; one with a different configuration watches beside this one.

        Raises:
            RuntimeError: if this monitor is attached already, before training: ``stop()`` it first. Later, this is
                logged.
            ValueError: for arguments out of range, targets that the model lacks, or a model that cannot be watched.
            OSError: if the output folder that MONITOR_OUTPUT_DIR names cannot be used.

        If the machine fails instead (the current folder is gone, the disk is full), that is
        logged and counted in ``faults``, and training goes on without the monitor.
        """
        arguments.check_bound(self, "set_monitor")
        self._never_set.detach()
        attachment = self._attachment
        if self._attached:
            text = "this monitor is attached already: expected one call before stop(), got another; call stop() first"
            if attachment is None or attachment.step == attachment.first:
                raise RuntimeError(f"set_monitor: {text}")
            self._report("set_monitor: no effect: %s", text)  # training has begun
            return
        if attachment is not None and attachment.ending:
            attachment.end()
        subject = Subject.of(self.framework, arguments.read(*args, **kwargs), self._main_grad)
        if not self.automatic:
            subject.check_types(self.settings)  # a call that is refused ends no other run
            self._replace_others(subject)
        try:
            self._attachment = Attachment(
                self._configuration, subject, self._listening, self._process_group, self._listeners
            )
        except Exception as error:
            if not machine_failed(error, os.environ):
                raise
            self._attachment, self._unwatched = None, True
            self._faults.note("set_monitor", error)
            return
        self._unwatched = False
        self._models = [weakref.ref(model) for model in subject.models]
        _ATTACHED.add(self)
        if not self.automatic:
            _RUNS.add(self._attachment)

    def _watches_any(self, models: Sequence[Any]) -> bool:
        if not self._attached:
            return False
        watched = [model for reference in self._models if (model := reference()) is not None]
        return bool(self._parts(watched) & self._parts(models))

    def _replace_others(self, subject: Subject) -> None:
        """End the automatic runs on the same models, and runs of the same configuration on the same models and
        parameters, as when a cell of a notebook runs again. Hooks keep these alive, even where no reference to their
        monitors is left."""
        for monitor in [*_ATTACHED]:
            if monitor.automatic and monitor._watches_any(subject.models):
                monitor.stop()
        for attachment in [*_RUNS]:
            run = attachment.run
            is_alike = run.framework.name == self.framework.name and attachment.planner.settings == self.settings
            if attachment.session is None or not is_alike:
                continue
            if self._roots(run.chunks) == self._roots(enumerate(subject.models)) and not (
                self._owned(run.optimizers).isdisjoint(self._owned(subject.optimizers))
            ):
                directory = attachment.output.directory if attachment.output is not None else None
                _log.warning(REPLACED, directory or "no directory")
                attachment.end()

    def _roots(self, chunks: Iterable[tuple[int, Any]]) -> list[int]:
        """Return the identities of models without what wraps them."""
        return [id(next(iter(self.framework.hooks.modules(model)), ("", model))[1]) for _, model in chunks]

    def _owned(self, optimizers: Iterable[Any]) -> set[int]:
        return {id(parameter) for optimizer in optimizers for parameter in self.framework.hooks.owned(optimizer)}

    def _parts(self, models: Sequence[Any]) -> set[int]:
        """Return the identities of models and of all modules in them, whatever wraps them."""
        hooks = self.framework.hooks
        inside = {id(module) for model in models for _, module in hooks.modules(model)}
        return inside | {id(model) for model in models}

    @arguments.reported(lambda: _nothing, needs="")
    def on_snapshot(self, listener: SnapshotListener) -> Remove:
        """Call ``listener`` with each collected step, on the delivery thread: training does not wait for it, and its
        failures are counted. Return a function that ends this."""
        if not arguments.takes_one(listener):
            text = "on_snapshot: expected a function of one argument, got %.80r: it is left out; pass one that takes a "
            self._report(f"{text}snapshot", listener)
            return _nothing
        self._listeners.add(listener)
        return lambda: self._listeners.remove(listener)

    # Numbers of the run.

    @arguments.reported(_nothing)
    def log(self, *unnamed: Any, step: int | None = None, **values: Any) -> None:
        """Record numbers of a training step, such as ``loss``, ``grad_norm``, ``batch_size``, ``tokens``
        or ``val_loss``; any name will do. Call it anywhere in a step and any number of times: the last value of a name
        counts.

        Numbers that are logged after an update and before the next forward are those of the step that has ended, except
        names that were logged before the first forward of all.

        Args:
            unnamed: without effect, with a warning: numbers need names. A call without a number is reported, too.
            step: number of the step; only that in progress and the one that ended last have an effect. Missing: the one
                that the numbers are about.
            values: numbers, or tensors of one element on any device. They are copied at once and read on another
                thread; training never waits for them. None is left out. A value that is no number is counted as a
                fault.
        """
        self._record("log", unnamed, values, step)

    @arguments.reported(_nothing)
    def log_ended(self, **values: Any) -> None:
        """Record numbers of the step that ended last, as :meth:`log` does: for callbacks after the update."""
        self._record("log_ended", (), values, self.step - 1 if self.step > self._first else None)

    def _record(self, call: str, unnamed: tuple[Any, ...], values: Mapping[str, Any], step: int | None) -> None:
        if unnamed or not values:
            expected = f"{call}: expected numbers by name, such as {call}(loss=2.5), got %.80s: not recorded"
            self._report(expected, repr(unnamed[0]) if unnamed else "none")
        if (numbers := self._numbers) is not None:
            numbers.log(values, step)

    @arguments.reported(nullcontext)
    def phase(self, name: str = "") -> AbstractContextManager[None]:
        """Return a context whose time is recorded as ``phase/{name}_seconds``, for names such as ``evaluation``,
        ``checkpoint`` and ``data``.

        While it lasts, a run counts as busy with that phase, not as one that stands still in a step.
        """
        if not isinstance(name, str) or not name:
            self._report("phase: expected a name such as evaluation, got %.80r; pass one", name)
        if (numbers := self._numbers) is None:
            return nullcontext()
        context = numbers.phase(name)
        weakref.finalize(context, self._look_at_phase, getattr(context, "gen", None), name).atexit = False
        return context

    def _look_at_phase(self, generator: Any, name: str) -> None:
        """Report a phase whose context is gone and was never entered, or never left."""
        state = generator and getgeneratorstate(generator)
        if state in (GEN_CREATED, GEN_SUSPENDED):
            lack = "not entered, and counts nothing" if state == GEN_CREATED else "not left, and counts no further"
            self._report(f"phase: %.80s was {lack}; write `with monitor.phase(...):`", name)

    @arguments.reported(_nothing)
    def promise(self, seconds: float) -> None:
        """Note that the next progress may take ``seconds``: until then the run does not count as standing still."""
        if not (number := arguments.seconds_of(seconds)) > 0:
            text = "promise: expected seconds above 0, got %.80r: it is left out; pass how long it may take"
            self._report(text, seconds)
        elif self._attachment is not None:
            self._attachment.numbers.promise(number)

    @arguments.reported(list)
    def commands(self, *accepts: type[Command]) -> list[Command]:
        """Return the commands from outside that take effect now, before a step: call it once in each step, on all
        ranks, before the forward. Each rank gets the same commands before the same step.

        Args:
            accepts: types that the program carries out, such as ``ReduceLearningRate``; others are refused. None: all
                are accepted.

        Returns:
            Commands, mostly none. Use each in a ``with`` statement, or answer it by ``done()``, ``failed()`` or
            ``refuse()``; the answer of each rank is recorded beside the request.
        """
        kinds = [kind for kind in accepts if isinstance(kind, type) and issubclass(kind, Command)]
        if len(kinds) < len(accepts):
            text = "commands: expected types such as ReduceLearningRate, got %.80r: others are left out; pass the types"
            self._report(text, accepts)
        return [] if self._attachment is None else self._attachment.commands(kinds)

    @arguments.reported(lambda: _nothing, needs="before")
    def on_run_step(self, listener: Callable[[RunStep], None]) -> Callable[[], None]:
        """Call ``listener`` with the numbers of every step, on another thread; return a function that ends this.

        Raises:
            RuntimeError: if no model is watched.
        """
        if not arguments.takes_one(listener):
            text = "on_run_step: expected a function of one argument, got %.80r: it is left out; pass one that takes "
            self._report(f"{text}a step", listener)
        elif (numbers := self._numbers) is not None:
            return numbers.listen(listener)
        elif self._attachment is None and not self._unwatched:
            raise RuntimeError(f"on_run_step: {UNWATCHED}")
        return _nothing

    def state_dict(self) -> dict[str, Any]:
        """Return what rules about the run remember, to be saved with a checkpoint: values that JSON can hold."""
        return self._attachment.numbers.state_dict() if self._attachment is not None else {}

    @arguments.reported(_nothing)
    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore what :meth:`state_dict` has returned; call it after ``set_monitor``."""
        restored = 0
        if isinstance(state, Mapping) and self._attachment is not None:
            restored = self._attachment.numbers.load_state_dict(state)
        if not isinstance(state, Mapping) or (state and not restored):
            self._report(
                "load_state_dict: expected what state_dict has returned, got %.80r: nothing is restored; pass that",
                state,
            )

    # The end.

    @arguments.reported(_nothing, needs="")
    def stop(self) -> None:
        """Remove every hook, write all pending steps and close the files. A further call does nothing; after one that
        was interrupted (Ctrl-C), it goes on with what is left, as the end of the process does.

        If this is called while a backward or an update runs (MindSpore: a forward, too), from a hook or a signal
        handler, or on another thread than the one that trains, hooks without effect stay in place. They are removed at
        the first forward after the next update, or by another call on the thread that trains.
        """
        self._end()

    close = stop

    def _end(self, error: BaseException | None = None) -> None:
        if self._attachment is not None:
            self._attachment.end("exit" if error is None else "exception", error)
        else:
            self._listening.stop()
            restore_handler()

    def __enter__(self) -> Monitor:
        if lack := self._lack("before"):
            self._report(f"with: no effect: {lack}")
        return self

    def __exit__(self, kind: object, error: BaseException | None, *_: object) -> None:
        if self._lack("") is None:  # a forked process leaves the run to its parent
            self._end(error)

    # State while it runs.

    @property
    def step(self) -> int:
        """Number of the training step in progress."""
        return self._attachment.step if self._attachment is not None else 0

    @property
    def output_directory(self) -> str | None:
        """The directory of this run's files; None before ``set_monitor`` and if nothing is written."""
        return str(self._output.directory) if self._output is not None and self._output.directory else None

    @property
    def findings(self) -> list[Finding]:
        """The first findings of the run (at most a thousand) in the steps that the delivery thread has processed."""
        return self._output.findings if self._output is not None else []

    @property
    def cost(self) -> dict[str, float]:
        """Seconds that probe itself spent: ``hooks`` and ``drain`` while training waited, ``delivery`` beside it."""
        return self._output.cost if self._output is not None else {}

    @property
    def faults(self) -> dict[str, int]:
        """Number of failures and losses inside probe, by place."""
        return self._noted.counts

    @arguments.reported(lambda: True, needs="")
    def flush(self, timeout: float = FLUSH_SECONDS) -> bool:
        """Wait until every finished step is written; return False if that takes longer than ``timeout`` seconds."""
        if math.isnan(wait := arguments.seconds_of(timeout)):
            self._report(f"flush: expected seconds, got %.80r: {FLUSH_SECONDS:g} are taken; pass a number", timeout)
            wait = FLUSH_SECONDS
        return self._attachment.flush(wait) if self._attachment is not None else True

    @arguments.reported(lambda: ({}, {}))
    def generate_wgrad_metrics(self) -> tuple[Metrics, Metrics]:
        """Return the weight gradients of this step so far, reduced and unreduced: ``{tag: {op: value}}``.

        Wait for the device. Between the end of a step and the first forward of the next, return those of the step that
        ended; before the update, read the present reduced gradients. After a step that is not sampled, return nothing.
        """
        return self._read(gradients_of, "wg_distribution")

    @arguments.reported(lambda: ({}, {}))
    def generate_xy_metrics(self) -> tuple[Metrics, Metrics]:
        """Return activations of this step so far and their gradients, as :meth:`generate_wgrad_metrics` does."""
        return self._read(activations_of, "xy_distribution")

    def _read(self, read: Callable[[Run, TrainingSteps], tuple[Metrics, Metrics]], key: str) -> tuple[Metrics, Metrics]:
        if not getattr(self.settings, key):
            self._report(f"{key}: expected true where these numbers are asked for, got false: there are none")
        if (attachment := self._attachment) is None or attachment.session is None:
            return {}, {}
        return attempt(self._noted, "read", read, attachment.run, attachment.session.steps) or ({}, {})

    def _lack(self, needs: str) -> str | None:
        if (attachment := self._attachment) is None:
            return None if needs != "run" else "" if self._unwatched else UNWATCHED
        if attachment.process != os.getpid():
            return "expected the process that trains, got one that was forked from it; call it there" if needs else ""
        if not needs or attachment.session is not None:
            return None
        return "" if self.way else "expected a run in progress, got one that has ended; call it before stop()"

    @property
    def _numbers(self) -> RunNumbers | None:
        """The numbers of the run, which are recorded from now on; None if there is no run in progress."""
        return self._attachment.listening_numbers() if self._attachment is not None else None

    @property
    def _output(self) -> Output | None:
        return self._attachment.output if self._attachment is not None else None

    @property
    def _first(self) -> int:
        """Number of the first step."""
        return self._attachment.first if self._attachment is not None else 0

    # Names of older scripts.

    def set_wrapped_optimizer(self, optimizer: Any) -> None:
        """Set the optimizer for calls of :meth:`monitor_gnorm_with_ad` without one. Deprecated: pass it to
        ``set_monitor``."""
        deprecated("set_wrapped_optimizer: pass the optimizer to set_monitor", 3)
        self._wrapped = optimizer

    def monitor_gnorm_with_ad(self, *args: Any, **kwargs: Any) -> None:
        """Attach as ``set_monitor`` does, in either order of arguments; the optimizer may be missing or None after
        :meth:`set_wrapped_optimizer`. Deprecated: call ``set_monitor``.

        Raises:
            TypeError: if there is no optimizer.
        """
        deprecated("monitor_gnorm_with_ad: call set_monitor", 3)
        self.set_monitor(**arguments.read_wrapped(self._wrapped, *args, **kwargs))


def watcher_of(models: Sequence[Any]) -> Monitor | None:
    """Return the monitor that is attached to any of ``models``, or to a part or a wrapper of one; None if none is."""
    return next((monitor for monitor in [*_ATTACHED] if monitor._watches_any(models)), None)


def narrow(monitor: Monitor, models: Sequence[Any], optimizers: Sequence[Any]) -> None:
    """Watch these alone of the models and optimizers that were passed to ``monitor``, from the next step on."""
    if monitor._attachment is not None and models and optimizers:
        monitor._attachment.narrow(models, optimizers)
        monitor._models = [weakref.ref(model) for model in models]


def close_report(monitor: Monitor) -> None:
    """Write the summary of a run, or its line, before the process ends without an end of the run."""
    if (attachment := monitor._attachment) is not None:
        attachment.reporting.close_summary()


def preflight_of(monitor: Monitor) -> str:
    """Return the line about the checks of the loop; an empty text if there are none."""
    return "" if (attachment := monitor._attachment) is None else attachment.reporting.account.preflight()
