"""Norms of gradients, weights and optimizer state, local loss and throughput: the core of ``TrainingStateMonitor``."""

from __future__ import annotations

import logging
import math
import time
import weakref
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from probe.core.backend.protocols import Remove
from probe.core.config.schema import Settings
from probe.core.errors import TrainingStopped
from probe.core.monitor.trainer_mon import Monitor
from probe.core.naming import BATCH_SIZE, GRAD_NORM, LOSS
from probe.core.records import Batch, Key, Snapshot
from probe.core.transformers.callback_core import (
    FLUSH_SECONDS,
    CallbackCore,
    Presentation,
    StepCounter,
    StepNumbers,
    folder_name,
)
from probe.core.transformers.configuration import checked, chooser, monitor_settings, pass_over
from probe.core.transformers.dump_files import DumpFolder
from probe.core.transformers.event_writer import Scalar
from probe.core.transformers.global_norm import NormCheck, NormRecord
from probe.core.transformers.schema import FORMATS, LOG, TENSORBOARD, StateSection, TensorboardSection

MOMENTS = {"exp_avg": "adam_m_norm", "exp_avg_sq": "adam_v_norm"}
"""Kinds of optimizer state, and the tags of their norms."""
WEIGHTS = "param_updated"
UPDATES_KEPT = 100
"""Number of updates whose steps are remembered until their gradients arrive."""
UNUSED = ("micro_batch_num", "tensor_model_parallel_size", "embedding_size", "use_local_norm")
"""Arguments of the tool that are not needed here."""
ENDED = "print_struct: training is stopped as configured"
_log = logging.getLogger("probe.transformers")
NEVER_ATTACHED = (
    "TrainingStateMonitor was made, and nothing was watched: call attach(model, optimizer), or pass it to train"
)


class Watch(NamedTuple):
    """The model and optimizer that are watched."""

    optimizer: Any
    parameters: Mapping[str, Any]
    """Trainable parameters by their names in tags."""
    names: Mapping[str, str]
    """Names in tags by the names that the monitor has."""


class StateMonitoring(CallbackCore):
    """Monitor of the training state.

    Args:
        origin_epochs: number of epochs.
        config: the section ``monitor_config``.
        step_interval: distance in steps from one recorded step to the next, if ``config`` does not have it.
        dataset_size: number of steps in an epoch.
        initial_step: number of steps that were done before this run.
        global_batch_size: number of samples in a step, over all devices.
        check_for_nan_in_loss_and_grad: whether NaN or infinity of the loss or the global norm ends training.
        use_skip_data_by_global_norm: whether the training cell leaves out updates at spikes of the global norm.
        log_style: see :class:`Presentation`.
        samples_suffix: see :class:`Presentation`.
        tensorboard: the section ``tensorboard``; None: no event files.
        output_dir: directory of the file with abnormal global norms.
        monitor_config: further keys of a ``TrainerMon`` configuration, such as ``{"alert": {}}``.
        other: further arguments of the tool; a warning names those that ask for anything.
    """

    monitor_class: type[Monitor]

    def __init__(
        self,
        origin_epochs: int | None = None,
        config: StateSection | Mapping[str, Any] | None = None,
        step_interval: int = 1,
        dataset_size: int | None = None,
        initial_epoch: int = 0,  # noqa: ARG002 - initial_step decides
        initial_step: int = 0,
        global_batch_size: int = 0,
        check_for_nan_in_loss_and_grad: bool = False,
        use_skip_data_by_global_norm: bool = False,
        *,
        log_style: str = Presentation().log_style,
        samples_suffix: str = Presentation().samples_suffix,
        tensorboard: TensorboardSection | Mapping[str, Any] | None = None,
        output_dir: str = "./output",
        monitor_config: Mapping[str, Any] | None = None,
        **other: Any,
    ) -> None:
        pass_over(other, "TrainingStateMonitor", UNUSED)
        super().__init__(Presentation(log_style, samples_suffix), tensorboard)
        if not isinstance(config, StateSection):
            config = checked(StateSection, {"step_interval": step_interval, **(config or {})}, "TrainingStateMonitor")
        self.state, self.global_batch_size = config, global_batch_size
        if config.check_for_global_norm and use_skip_data_by_global_norm:
            raise ValueError(
                "check_for_global_norm and use_skip_data_by_global_norm: expected one of them, got both; "
                "keep the one that suits the launcher"
            )
        self._check = _check_of(config, Path(output_dir), use_skip_data_by_global_norm, check_for_nan_in_loss_and_grad)
        self.counter = StepCounter(origin_epochs, dataset_size, initial_step)
        self._more = dict(monitor_config or {})
        self.monitor: Monitor | None = None
        """The monitor that collects gradients; None if none are recorded, and before :meth:`attach`."""
        self._dumps: DumpFolder | None = None
        """Files with the norms of gradients, where no hook sees these."""
        self._never_attached = weakref.finalize(self, _log.warning, NEVER_ATTACHED)
        self._watch: Watch | None = None
        self._chosen = chooser(config)
        self._steps: dict[int, int] = {}
        """Numbers of steps by those of the monitor, which counts updates."""
        self._remove: Remove = lambda: None
        self._submitted, self._waits = initial_step, True
        self._warned = set[str]()

    # Attaching.

    def attach(self, model: Any, optimizer: Any) -> None:
        """Watch ``model`` and ``optimizer`` from the next step on.

        Raises:
            ValueError: if what the configuration asks for cannot be watched.
        """
        self._never_attached.detach()
        hooks, parallel = self.framework.hooks, self.framework.parallel
        hooks.check_model(model, Settings.model_validate({}))
        found = [(str(name), thing) for name, thing in hooks.parameters(model) if hooks.trainable(thing)]
        names = {name: self.tag_name(name, thing) for name, thing in found}
        acting = parallel.acting(optimizer) if optimizer is not None else None
        self._watch = Watch(acting, {names[name]: thing for name, thing in found}, names)
        self._warn_of(list(names.values()))
        settings = {} if self.state.print_struct else monitor_settings(self.state, list(names.values()))
        if settings.get("targets"):
            settings["targets"] = {name: {} for name in names if self._chosen(names[name])}
        if settings and (dumps := self.dump_folder()) is not None:
            self._dumps = DumpFolder(Path(dumps) / folder_name(self.framework), self._noted)
        elif settings:
            self.monitor = self.monitor_class({**settings, **self._more})
            self.monitor.set_monitor(model, 1, optimizer, start_iteration=self.counter.initial)
            self._remove = self.monitor.on_snapshot(self._gradients)
            self._steps[self.monitor.step] = self.counter.step + 1

    def tag_name(self, name: str, parameter: Any) -> str:  # noqa: ARG002
        """Return the name of a parameter in tags."""
        return name

    def dump_folder(self) -> str | None:
        """Return the directory in which norms of gradients are found where no hook sees these; None where hooks do."""
        return None

    def _warn_of(self, names: Sequence[str]) -> None:
        state = self.state
        if (state.local_norm_format or state.optimizer_state_format) and not any(map(self._chosen, names)):
            _log.warning(
                "monitor_config.target: no parameter is chosen by %s%s; the names are such as %s",
                list(state.target), " inverted" if state.invert else "", ", ".join(names[:3]),
            )  # fmt: skip

    # Steps, on the training thread.

    def step_begin(self) -> None:
        """Begin a step; without this call each begins where the one before ends."""
        self.counter.begin()

    def step_end(
        self,
        *,
        loss: Any = None,
        grad_norm: Any = None,
        local_loss: Any = None,
        batch_size: Any = None,
        step: int | None = None,
        several: int = 1,
        **_: Any,
    ) -> None:
        """End a step with these numbers or tensors, for which training does not wait.

        Args:
            local_loss: loss of this device before any reduction, or a list with one for each micro batch, or a mapping
                of several losses by name; None: ``loss``.
            step: number of the step, from 1; None: the next.
            several: number of steps since the last call.

        Raises:
            TrainingStopped: after the first step with ``print_struct``.
            RuntimeError: one step after a spike with ``check_for_global_norm``; launchers then start the run again.
            ValueError: one step after NaN or too many spikes, if so configured.
        """
        seconds = self.counter.end(step, several)
        if self.state.print_struct:
            self.attempt("print_struct", self.log_structure)
            self.stop_training()
            return
        before, self._submitted = self._submitted, self.counter.step
        sent = self.attempt(
            "TrainingStateMonitor", lambda: self._submit(seconds, loss, grad_norm, local_loss, batch_size)
        )
        if self._check is not None and not sent:
            self._check.judge(self._submitted, None, None)
        if self._check is not None and before > self.counter.initial:
            self._end_if_bad(self._check, before)

    def _submit(self, seconds: float, loss: Any, grad_norm: Any, local_loss: Any, batch_size: Any) -> None:
        step, monitor = self.counter.step, self.monitor
        if monitor is not None:
            self._steps.pop(monitor.step - UPDATES_KEPT, None)
            self._steps[monitor.step] = step + 1
        sampled = step % self.state.step_interval == 0
        if not sampled and self._check is None:
            return
        values = {LOSS: loss, GRAD_NORM: grad_norm}
        if sampled:
            values[BATCH_SIZE] = batch_size if batch_size is not None else self.global_batch_size or None
            if self.state.local_loss_format or self.state.device_local_loss_format:
                local = loss if local_loss is None else local_loss
                named = local.items() if isinstance(local, Mapping) else [("", local)]
                values |= {_local(name): value for name, value in named}
        self.hand_over(step, seconds, values, dict(self._norms()) if sampled else None)

    def _norms(self) -> Iterator[tuple[str, list[tuple[Key, Any]]]]:
        """Yield the tensors after the update whose norms are recorded, by signal."""
        watch, hooks = self._watch, self.framework.hooks
        if watch is None:
            return
        if self.state.optimizer_state_format and watch.optimizer is not None:
            kept: dict[str, list[tuple[Key, Any]]] = {}
            for name, parameter in watch.parameters.items():
                state = hooks.state(watch.optimizer, parameter) if self._chosen(name) else {}
                for kind in MOMENTS.keys() & state.keys():
                    kept.setdefault(kind, []).append((Key(name), state[kind]))
            if not kept and any(map(self._chosen, watch.parameters)):
                self._warn_once("optimizer_state_format: the optimizer keeps no first and second moment")
            yield from sorted(kept.items())
        if self.state.weight_state_format:
            held = ((name, hooks.value(watch.optimizer, each)) for name, each in watch.parameters.items())
            yield WEIGHTS, [(Key(name), tensor) for name, tensor in held if tensor is not None]

    def log_structure(self) -> None:
        """Log the names of all trainable parameters."""
        for name in self._watch.parameters if self._watch is not None else ():
            self.lines.info("%s", name)

    def stop_training(self) -> None:
        """End training after the step in which names were logged."""
        raise TrainingStopped(ENDED)

    def _end_if_bad(self, check: NormCheck, step: int) -> None:
        """End training if ``step`` or an earlier one was abnormal."""
        if self._waits and not check.wait(step, FLUSH_SECONDS):
            self._waits = False
            _log.warning("step %d: no global norm within %.0f s; training goes on unchecked", step, FLUSH_SECONDS)
        if (error := check.take(step)) is not None:
            self.close()
            raise error

    def finish(self) -> None:
        """End the run: write what is left.

        Raises:
            Exception: as :meth:`step_end`, if the last step was abnormal.
        """
        check, last = self._check, self._submitted
        self.close()
        if check is not None and last > self.counter.initial and (error := check.take(last)) is not None:
            raise error

    def close(self) -> None:
        """End the thread and the monitor, and write what is left."""
        if self.monitor is not None:
            self.attempt("end of the run", self.monitor.stop)
        self._remove()
        if self._values is not None:
            self._values.run(lambda: self._show_dumps(last=True))
        super().close()

    @property
    def faults(self) -> dict[str, int]:
        """Number of faults inside the callback and its monitor, by place."""
        return super().faults | (self.monitor.faults if self.monitor is not None else {})

    def _warn_once(self, sentence: str) -> None:
        if sentence not in self._warned:
            self._warned.add(sentence)
            _log.warning("%s", sentence)

    # On the threads of this callback and of the monitor.

    def _receive(self, numbers: StepNumbers) -> None:
        if self._check is not None:
            norm = numbers.value(GRAD_NORM)
            if norm is None and self.state.check_for_global_norm:
                self._warn_once("check_for_global_norm: steps have no global norm; pass grad_norm")
            self._check.judge(numbers.step, numbers.value(LOSS), norm)
        if numbers.step % self.state.step_interval:
            return
        self._show_dumps()
        show = _Show(self, numbers.step, numbers.time)
        if self._dumps is None or not self._dumps.has_losses:
            self._show_losses(numbers.values, show)
        for batch in numbers.batches:
            norms = batch.op("norm").tolist()
            if batch.signal == WEIGHTS:
                show("weight_norm", _length(norms), self.state.weight_state_format)
            else:
                for key, norm in zip(batch.keys, norms, strict=True):
                    show(f"{MOMENTS[batch.signal]}/{key.name}", norm, self.state.optimizer_state_format)
        batch_size, baseline = numbers.value(BATCH_SIZE), self.state.throughput_baseline
        if baseline is not None and batch_size and numbers.seconds > 0:
            show("throughput_linearity", batch_size / self.devices / numbers.seconds / baseline, FORMATS)
        elif baseline is not None:
            self._warn_once("throughput_baseline: the number of samples is unknown; pass global_batch_size")
        show.write()

    def _show_dumps(self, last: bool = False) -> None:
        """Log and write the norms of gradients that were written to files."""
        for dumped in self._dumps.steps(last) if self._dumps is not None else ():
            step = self.counter.initial + dumped.step
            show = _Show(self, step, time.time())
            if step % self.state.step_interval == 0:
                for name, norm in dumped.norms.items():
                    if self._chosen(name):
                        show(f"local_norm/{name}", norm, self.state.local_norm_format)
                whole = dumped.device_norm
                if whole is None and dumped.norms:
                    whole = _length(list(dumped.norms.values()))
                if whole is not None:
                    show("device_local_norm", whole, self.state.device_local_norm_format)
                self._show_losses({"local_loss": dumped.losses}, show)
            show.write()

    def _show_losses(self, values: Mapping[str, Sequence[float]], show: _Show) -> None:
        for name, parts in values.items():
            if not name.startswith("local_") or not parts:
                continue
            mean = sum(parts) / len(parts)
            places = self.state.local_loss_format
            if len(parts) > 1 and LOG in places:
                for part in parts:
                    show(f"micro_{name}", part, (LOG,))
                places = tuple(place for place in places if place != LOG)
            show(name, mean, places)
            show(f"device_accum_{name}", mean, self.state.device_local_loss_format)

    def _gradients(self, snapshot: Snapshot) -> None:
        """Log and write the norms of the gradients of a step; on the monitor's thread."""
        watch = self._watch
        if watch is None:
            return
        step = self._steps.pop(snapshot.step, snapshot.step + 1)
        show = _Show(self, step, snapshot.time)
        for batch in snapshot.batches:
            if batch.signal == "grad_unreduced":
                norms = batch.op("norm").tolist()
                for tag, norm in zip(_tags(batch, watch.names), norms, strict=True):
                    if self._chosen(tag.partition("/micro_")[0]):
                        show(f"local_norm/{tag}", norm, self.state.local_norm_format)
                show("device_local_norm", _length(norms), self.state.device_local_norm_format)
        show.write()


class _Show:
    """Numbers of one step, which go to the log, to the event file, or to both."""

    def __init__(self, core: StateMonitoring, step: int, time: float) -> None:
        self._core, self._step, self._time = core, step, time
        self._position = core.counter.position(step)
        self._scalars: list[Scalar] = []

    def __call__(self, tag: str, value: float, places: Sequence[str]) -> None:
        if TENSORBOARD in places:
            self._scalars.append(Scalar(tag, self._step, value, self._time))
        if LOG in places:
            self._core.log_state(self._position, tag, value)

    def write(self) -> None:
        self._core.write(self._scalars)


def _check_of(state: StateSection, output: Path, skips: bool, finite: bool) -> NormCheck | None:
    """Return the check that ``state`` asks for, if any."""
    if not (state.check_for_global_norm or skips or finite):
        return None
    record = NormRecord(output) if state.check_for_global_norm else None
    threshold = state.global_norm_spike_threshold if state.check_for_global_norm or skips else None
    return NormCheck(threshold, record, state.global_norm_spike_count_threshold if skips else 0, finite)


def _local(name: str) -> str:
    return f"local_{name}_loss" if name else "local_loss"


def _length(norms: Sequence[float]) -> float:
    """Return the norm of all tensors together from the norms of each."""
    return math.hypot(*norms) if all(map(math.isfinite, norms)) else sum(abs(norm) for norm in norms)


def _tags(batch: Batch, names: Mapping[str, str]) -> Iterator[str]:
    """Yield the name of each row: that of its parameter, with the number of its micro batch if each has a row."""
    several = len({key.micro_step for key in batch.keys}) > 1
    for key in batch.keys:
        name = names.get(key.name, key.name)
        yield (f"{key.stage}:" if key.stage else "") + name + (f"/micro_{key.micro_step}" if several else "")
