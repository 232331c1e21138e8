"""The public ``TrainerMon``, over a session: the only place that knows the names of the existing tools' interface."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from typing import Any, overload

from probe.core.instrumentation.session import Session
from probe.core.monitor import attachment
from probe.core.monitor.legacy import Legacy
from probe.core.monitor.process_exit import Endings, put_back
from probe.core.monitor.readback import gradients_of, values_of
from probe.core.output.run_output import FLUSH_SECONDS
from probe.core.records import Finding

_log = logging.getLogger("probe")
UNSTEPPED = (
    "no training step was seen: the optimizer that set_monitor was given has taken none; give it the one that trains, "
    "after it is wrapped"
)
Metrics = dict[str, dict[str, float]]


class Monitor(Legacy):
    """Watches a training run as configured.

    Args:
        config_file_path: JSON or YAML file, or a mapping with the same keys.
        process_group: the pipeline-parallel group; orders findings across its ranks.
        params_have_main_grad: whether to read ``main_grad`` where a parameter has one.
        opt_ty: without effect; old scripts may still pass it.
        param_have_main_grad: another spelling of ``params_have_main_grad``, in old scripts.

    Raises:
        ConfigError: naming every problem of the configuration.
    """

    def __init__(
        self,
        config_file_path: str | os.PathLike[str] | Mapping[str, Any],
        process_group: Any = None,
        params_have_main_grad: bool = True,
        opt_ty: str | None = None,
        *,
        param_have_main_grad: bool | None = None,
    ) -> None:
        super().__init__(config_file_path, process_group, params_have_main_grad, opt_ty, param_have_main_grad)
        self._endings: Endings | None = None
        self._ended_at: int | None = None
        self._leaving: Session | None = None
        """Whose hooks are still in place, without effect."""

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

    @attachment.shown(attachment.documented)
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
            tp_group: tensor-parallel group: of gradients that are the same on its ranks, likewise. Those of parameters
                whose attribute ``tensor_model_parallel`` is true are not.
            start_iteration: number of the first step, when a run is resumed.

        Raises:
            RuntimeError: if this monitor is attached already; ``stop()`` it first.
            ValueError: for arguments out of range, targets that the model lacks, or a model that cannot be watched.
        """
        if self._session is not None:
            raise RuntimeError("set_monitor: this monitor is attached already; call stop() before attaching again")
        given = attachment.read(*args, **kwargs)
        self._begin(given)
        self._endings = Endings(self._end_quietly, self.flush)
        if self._switch is None and self._session is not None:
            self._session.retire(lambda: self._end_quietly(False))

    # The end.

    def stop(self) -> None:
        """Takes every hook away, writes what is pending and closes the files. Calling it again is harmless.

        Called while a backward or an update runs (MindSpore: a forward, too), from a hook or a signal handler, or on
        another thread than the one that trains, it leaves hooks that do nothing: they are taken away at the first
        forward after the next update, or when it is called again on the thread that trains.
        """
        self._end(partial=False)

    close = stop

    def _end(self, partial: bool) -> None:
        session, self._session = self._session, None
        if session is None or self._run is None:
            self._stop_listening()
            self.flush()  # a signal may come while the first call still waits for the files
            put_back()
            if self._leaving is not None:
                self._try(self._detach, self._leaving)
            return
        self._ended_at = self._run.clock.step
        if not partial and self._ended_at == self._given.start_iteration:
            _log.warning(UNSTEPPED)
        with ExitStack() as ending:  # each, whatever becomes of the others
            if self._output is not None:
                ending.callback(self._try, self._output.close, partial)
            if self._endings is not None:
                ending.callback(self._try, self._endings.forget)
            ending.callback(self._try, self._say_no_more)
            if self._switch is not None:
                ending.callback(self._try, self._switch.close)
            ending.callback(self._try, self._stop_listening)
            ending.callback(self._try, self._detach, session)
            if partial:
                self._try(session.flush_partial)

    def _detach(self, session: Session) -> None:
        self._leaving = session
        if session.detach():
            self._leaving = None

    def _try(self, function: Callable[..., object], *args: object) -> None:
        """What fails is counted: training goes on, or the process ends for a reason of its own."""
        try:
            function(*args)
        except Exception as error:  # noqa: BLE001
            self._faults.note("end of the run", error)

    def _end_quietly(self, partial: bool) -> None:
        self._try(self._end, partial)

    def __del__(self) -> None:
        """Ends a run whose model, optimizer and monitor are dropped without ``stop()``; they hold each other alive.
        Waits for nothing, since it may run anywhere, on the delivery thread, too."""
        session, output = getattr(self, "_session", None), getattr(self, "_output", None)
        if session is None or (output is not None and not output.delivery.here):
            return
        self._session = None
        with ExitStack() as ending:
            if output is not None:
                ending.callback(self._try, output.let_go)
            if self._endings is not None:
                ending.callback(self._try, self._endings.forget)
            if self._switch is not None:
                ending.callback(self._try, self._switch.close)
            ending.callback(self._try, self._say_no_more)
            ending.callback(self._try, self._stop_listening)
            ending.callback(self._try, session.detach, True)

    def __enter__(self) -> Monitor:
        return self

    def __exit__(self, kind: object, *_: object) -> None:
        self._end(partial=kind is not None)

    # What a program may ask.

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
        return self._output.flush(timeout) if self._output is not None else True

    def generate_wgrad_metrics(self) -> tuple[Metrics, Metrics]:
        """Weight gradients of this step so far, reduced and unreduced: ``{tag: {op: value}}``.

        Waits for the device. Between the end of a step and the first forward of the next, gives the step that ended;
        before the update, reduced gradients are those held now. Empty after a step that is not sampled.
        """
        return gradients_of(self._run, self._session)

    def generate_xy_metrics(self) -> tuple[Metrics, Metrics]:
        """Activations of this step so far and their gradients, as :meth:`generate_wgrad_metrics` gives gradients."""
        return values_of(self._run, self._session, "actv"), values_of(self._run, self._session, "actv_grad")
