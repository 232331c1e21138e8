"""The public ``TrainerMon``, over a session: the only place that knows the names of the existing tools' interface."""

from __future__ import annotations

import logging
import os
import sys
import warnings
import weakref
from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from probe.core import collectives, signatures
from probe.core.control import Control, follow
from probe.core.endings import Endings
from probe.core.faults import Faults
from probe.core.framework import FrameworkAdapter
from probe.core.metrics import gradients_of, values_of
from probe.core.moments import columns_for
from probe.core.recorder import Recorder
from probe.core.records import Finding
from probe.core.run import Clock, Run
from probe.core.run_output import FLUSH_SECONDS, Output
from probe.core.schedule import Schedule
from probe.core.selection import Selection, watched
from probe.core.session import Session
from probe.core.settings import Settings, load, not_built_yet
from probe.core.sources import chosen

_log = logging.getLogger("probe")
NEVER = sys.maxsize
"""A step that no training comes to."""
Metrics = dict[str, dict[str, float]]


class Monitor:
    """Watches a training run as configured.

    Args:
        config_file_path: JSON or YAML file, or a mapping with the same keys.
        process_group: the pipeline-parallel group; orders findings across its ranks.
        params_have_main_grad: whether to read ``main_grad`` where a parameter has one.
        opt_ty: without effect; old scripts may still pass it.

    Raises:
        ConfigError: naming every problem of the configuration.
    """

    framework: FrameworkAdapter

    def __init__(
        self,
        config_file_path: str | os.PathLike[str] | Mapping[str, Any],
        process_group: Any = None,
        params_have_main_grad: bool = True,
        opt_ty: str | None = None,
    ) -> None:
        if opt_ty is not None:
            warnings.warn("opt_ty has no effect: leave it out", DeprecationWarning, stacklevel=2)
        self.settings = load(config_file_path)
        self._path = None if isinstance(config_file_path, Mapping) else Path(config_file_path).expanduser().absolute()
        if unbuilt := not_built_yet(self.settings, os.environ):
            _log.warning("accepted, but without effect in this version: %s", ", ".join(unbuilt))
        self._process_group, self._main_grad = process_group, params_have_main_grad
        self._faults = Faults()
        self._collectives = collectives.of_configuration(self.settings, self.framework, self._faults)
        if self._collectives is not None:
            weakref.finalize(self, self._collectives.stop)  # a monitor that is dropped without stop() listens no more
        self._run: Run | None = None
        self._session: Session | None = None
        self._output: Output | None = None
        self._endings: Endings | None = None
        self._ended_at: int | None = None
        self._switch: Control | None = None
        self._on = False
        """In dynamic mode: whether anything is collected."""

    def set_monitor(self, *args: Any, **kwargs: Any) -> None:
        """Attaches to a model and its optimizer.

        Takes ``(model, grad_acc_steps, optimizer, dp_group=None, tp_group=None, start_iteration=0)``, or, with an
        optimizer in second place, ``(model, optimizer, grad_acc_steps=1, tp_group=None, dp_group=None,
        start_iteration=0)``. ``model`` may be a list of virtual pipeline stages, ``optimizer`` a list: a training step
        then ends when each that takes part has stepped once. Attach before ``torch.compile``.

        Args:
            grad_acc_steps: checked only: micro batches are counted as they run, so that a step may have fewer or more.
            dp_group: data-parallel group, whose ranks hold the same reduced gradients: only its first rank writes them.
                Gradients that its ranks share out among them (ZeRO, FSDP) are written by each.
            tp_group: tensor-parallel group: of gradients that are the same on its ranks, likewise.
            start_iteration: number of the first step, when a run is resumed.

        Raises:
            RuntimeError: if this monitor is attached already; ``stop()`` it first.
            ValueError: for arguments out of range, targets that the model lacks, or a model that cannot be watched.
        """
        if self._session is not None:
            raise RuntimeError("set_monitor: this monitor is attached already; call stop() before attaching again")
        given = signatures.read(*args, **kwargs)
        self._faults, self._output = Faults(), None
        run = self._new_run(given, given.start_iteration)
        self._switch = follow(self._path, self.settings, given.start_iteration, self.framework.groups, self._faults)
        collects = self._takes_part() and self._switch is None
        follows = self._path if self._switch else None
        with ExitStack() as undo:
            if self._takes_part():
                self._output = Output(run, self._process_group, given.start_iteration, follows)
                undo.callback(self._discard_output)
            schedule = Schedule(NEVER) if self._switch else self._schedule()
            session = Session(run, schedule, given.start_iteration, self._output, self._between)
            undo.callback(session.detach)
            session.attach(chosen(self.settings) if collects else [])
            self._check_targets(run)
            undo.pop_all()
        if self._switch is None:
            self._listen(run)
        else:
            self._stop_listening()
        self._run, self._session, self._given, self._on = run, session, given, False
        self._endings = Endings(self._end_quietly, self.flush)
        if self._switch is None:
            session.retire(lambda: self._end_quietly(False))

    def _between(self, step: int) -> None:
        """In dynamic mode: before ``step`` begins. Collecting is switched on and off here."""
        session, switch = self._session, self._switch
        if session is None or switch is None:
            return
        if self._on and session.finished:
            switch.finish()
            self._turn_off(session, step)
        settings = switch.poll(step, idle=not self._on)
        if settings is not None and settings.dynamic_on:
            self._turn_on(session, settings, step)
        elif settings is not None:
            self._turn_off(session, step)

    def _turn_off(self, session: Session, step: int) -> None:
        self._on = False
        self._stop_listening()
        self._run = self._new_run(self._given, step)
        session.change(self._run, Schedule(NEVER), self._output, [])
        if self._output is not None:
            self._output.rest(step)

    def _turn_on(self, session: Session, settings: Settings, step: int) -> None:
        """From ``step`` on, collects what ``settings`` say; what they name wrongly is told, and nothing changes."""
        before, self.settings = self.settings, settings
        try:
            run = self._new_run(self._given, step)
            self._check_targets(run)
            if self._takes_part() and self._output is None:  # module_ranks has changed
                self._output = Output(run, self._process_group, step, self._path)
        except BaseException:
            self.settings = before
            raise
        if not self._takes_part() or self._output is None:
            return self._turn_off(session, step)
        self._stop_listening()
        self._output.change(run)
        self._run = run
        session.change(
            run, Schedule(step, settings.step_interval, settings.collect_times), self._output, chosen(settings)
        )
        self._listen(run)
        self._on = True
        return None

    def _schedule(self) -> Schedule:
        settings = self.settings
        if settings.cc_distribution.enable and settings.cc_distribution.cc_log_only:
            return Schedule(NEVER)  # counts steps on every rank, to stop on all in the same one
        times = settings.collect_times if self._takes_part() else 0
        return Schedule(settings.start_step, settings.step_interval, times)

    def _listen(self, run: Run) -> None:
        """Gives ``run`` the collectives heard so far and those to come."""
        if self._collectives is None:  # stopped, and attached again
            self._collectives = collectives.of_configuration(self.settings, self.framework, self._faults)
        if self._collectives is not None:
            run.collectives = self._collectives
            self._collectives.attach(run, self._takes_part())

    def _new_run(self, given: signatures.Attachment, step: int) -> Run:
        chunks = list(enumerate(given.model if isinstance(given.model, (list, tuple)) else [given.model]))
        optimizers = list(given.optimizer) if isinstance(given.optimizer, (list, tuple)) else [given.optimizer]
        optimizers = [self.framework.parallel.acting(optimizer) for optimizer in optimizers]
        for _, model in chunks:
            self.framework.hooks.check_model(model, self.settings)
        for optimizer in optimizers:
            self.framework.hooks.check_optimizer(optimizer)
        settings = self.settings
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
            repeats=list(self._repeats(given.dp_group, given.tp_group)),
            replicas=tuple(self.framework.groups.ranks_of(given.dp_group)) if given.dp_group is not None else (),
        )

    def _repeats(self, *groups: Any) -> Iterator[tuple[int, ...]]:
        """The groups in which another rank is first."""
        rank = self.framework.groups.rank()
        for ranks in (self.framework.groups.ranks_of(group) for group in groups if group is not None):
            if rank in ranks and rank != ranks[0]:
                yield tuple(ranks)

    def _takes_part(self) -> bool:
        ranks = self.settings.module_ranks
        return not ranks or self.framework.groups.rank() in ranks

    def _check_targets(self, run: Run) -> None:
        """A target that names nothing is an error; with several processes another rank may have it."""
        if not self._takes_part():
            return
        names = [name for _, model in run.chunks for name, _ in run.framework.hooks.modules(model)]
        names += [name for _, model in run.chunks for name, _ in run.framework.hooks.parameters(model)]
        for stage, model in run.chunks:
            for name, module in run.framework.hooks.modules(model):
                run.selection.places(watched(stage, name, name, module))
        if problems := run.selection.check(names):
            if self.framework.groups.world_size() > 1:
                _log.warning("not on this rank: %s", "; ".join(problems))
            else:
                raise ValueError("\n".join(problems))

    # The end.

    def stop(self) -> None:
        """Takes every hook away, writes what is pending and closes the files. Calling it again is harmless."""
        self._end(partial=False)

    close = stop

    def _end(self, partial: bool) -> None:
        session, self._session = self._session, None
        if session is None or self._run is None:
            self._stop_listening()
            self.flush()  # a signal may come while the first call still waits for the files
            return
        self._ended_at = self._run.clock.step
        with ExitStack() as ending:  # each, whatever becomes of the others
            if self._output is not None:
                ending.callback(self._output.close)
            if self._endings is not None:
                ending.callback(self._endings.forget)
            if self._switch is not None:
                ending.callback(self._switch.close)
            ending.callback(self._stop_listening)
            ending.callback(session.detach)
            if partial:
                session.flush_partial()

    def _stop_listening(self) -> None:
        listening, self._collectives = self._collectives, None
        if listening is not None:
            listening.stop()

    def _discard_output(self) -> None:
        output, self._output = self._output, None
        if output is not None:
            output.discard()

    def _end_quietly(self, partial: bool) -> None:
        try:
            self._end(partial)
        except Exception as error:  # noqa: BLE001 - training goes on, or the process ends for a reason of its own
            self._faults.note("end of the run", error)

    def __enter__(self) -> Monitor:
        return self

    def __exit__(self, kind: object, *_: object) -> None:
        self._end(partial=kind is not None)

    # What a program may ask.

    @property
    def monitoring(self) -> bool:
        """Whether anything will still be collected."""
        if self._session is None or not self._takes_part() or self._session.finished:
            return False
        return self._switch is None or self._on

    @property
    def step(self) -> int:
        """Number of the training step in progress."""
        if self._session is not None and self._run is not None:
            return self._run.clock.step
        return self._ended_at or 0

    @property
    def output_directory(self) -> str | None:
        """Where this run's files are; None before ``set_monitor`` and where nothing is written."""
        return str(self._output.directory) if self._output is not None and self._output.directory else None

    @property
    def findings(self) -> list[Finding]:
        """The first findings of the run (at most a thousand), as far as the delivery thread has come."""
        return list(self._output.writer.findings) if self._output is not None else []

    @property
    def cost(self) -> dict[str, float]:
        """Seconds that probe itself spent: ``hooks`` and ``drain`` while training waited, ``delivery`` beside it."""
        return self._output.cost if self._output is not None else {}

    @property
    def faults(self) -> dict[str, int]:
        """What failed or was lost inside probe, counted by place."""
        return self._faults.counts

    def flush(self, timeout: float = FLUSH_SECONDS) -> bool:
        """Waits until every finished step is written; False if that took longer than ``timeout`` seconds."""
        return self._output.delivery.flush(timeout) if self._output is not None else True

    def generate_wgrad_metrics(self) -> tuple[Metrics, Metrics]:
        """Weight gradients of this step so far, reduced and unreduced: ``{tag: {op: value}}``.

        Waits for the device. Between the end of a step and the first forward of the next, gives the step that ended;
        before the update, reduced gradients are those held now. Empty after a step that is not sampled.
        """
        return gradients_of(self._run, self._session)

    def generate_xy_metrics(self) -> tuple[Metrics, Metrics]:
        """Activations of this step so far and their gradients, as :meth:`generate_wgrad_metrics` gives gradients."""
        return values_of(self._run, self._session, "actv"), values_of(self._run, self._session, "actv_grad")
