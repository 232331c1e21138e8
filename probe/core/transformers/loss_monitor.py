"""Loss, learning rate, global norm and throughput of each step: the core of ``MFLossMonitor``."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Protocol

from probe.core.backend.protocols import Remove
from probe.core.naming import BATCH_SIZE, GRAD_NORM, LEARNING_RATE, LOSS, LOSS_SCALE, MODEL_TFLOPS
from probe.core.run_state.rules import RunStep
from probe.core.transformers.callback_core import CallbackCore, Presentation, StepCounter, StepNumbers
from probe.core.transformers.configuration import checked, pass_over
from probe.core.transformers.event_writer import Scalar
from probe.core.transformers.log_lines import LossLine, loss_lines
from probe.core.transformers.schema import LossSection, TensorboardSection

SECONDS_A_DAY = 86400
"""Name of the number of samples of a step."""
TAGS = {"learning-rate": LEARNING_RATE, "loss": LOSS, "grad-norm": GRAD_NORM}
"""Tags and the names of their values."""


class RunLog(Protocol):
    """Receiver of numbers of the run, such as a ``TrainerMon``."""

    def log_ended(self, **values: Any) -> None:
        """Record ``values`` of the step in progress."""


class LossMonitoring(CallbackCore):
    """Monitor of the loss.

    Args:
        learning_rate: learning rate, if no step has one.
        per_print_times: distance in steps from one line to the next.
        micro_batch_num: number of micro batches of a pipeline, by which the loss is divided.
        micro_batch_interleave_num: number of interleaved parts of a batch, by which the loss is divided.
        gradient_accumulation_steps: number of accumulated micro batches, by which the loss is divided.
        origin_epochs: number of epochs.
        dataset_size: number of steps in an epoch.
        initial_step: number of steps that were done before this run.
        global_batch_size: number of samples in a step, over all devices.
        calculate_per_token_loss: whether the loss is a mean over tokens, and not divided.
        log_style: see :class:`Presentation`.
        samples_suffix: see :class:`Presentation`.
        tensorboard: the section ``tensorboard``; None: no event files.
        flops_per_step: floating-point operations of a step on this device; None: as ``monitor`` measures them, or, in
            graph mode, as MindSpore's compiler counts them.
        sink_mode: whether only the loss of the step is shown, not the mean of the epoch.
        monitor: receives the numbers, too.
        other: further arguments of the tool; a warning names those that ask for anything.
    """

    def __init__(
        self,
        learning_rate: Any = None,
        per_print_times: int = 1,
        micro_batch_num: int = 1,
        micro_batch_interleave_num: int = 1,
        origin_epochs: int | None = None,
        dataset_size: int | None = None,
        initial_epoch: int = 0,
        initial_step: int = 0,
        global_batch_size: int = 0,
        gradient_accumulation_steps: int = 1,
        calculate_per_token_loss: bool = False,
        *,
        log_style: str = Presentation().log_style,
        samples_suffix: str = Presentation().samples_suffix,
        tensorboard: TensorboardSection | Mapping[str, Any] | None = None,
        flops_per_step: float | None = None,
        sink_mode: bool = True,
        monitor: RunLog | None = None,
        **other: Any,
    ) -> None:
        pass_over(other, "MFLossMonitor", ("check_for_nan_in_loss_and_grad",))
        super().__init__(Presentation(log_style, samples_suffix), tensorboard)
        given = {
            "per_print_times": per_print_times,
            "micro_batch_num": micro_batch_num,
            "micro_batch_interleave_num": micro_batch_interleave_num,
            "origin_epochs": origin_epochs,
            "dataset_size": dataset_size,
            "initial_epoch": initial_epoch,
            "initial_step": initial_step,
            "global_batch_size": global_batch_size,
            "gradient_accumulation_steps": gradient_accumulation_steps,
            "calculate_per_token_loss": calculate_per_token_loss,
            LEARNING_RATE: learning_rate,
        }
        self.section = checked(LossSection, given, "MFLossMonitor")
        self.counter = StepCounter(origin_epochs, dataset_size, initial_step)
        self.flops_per_step, self.sink_mode, self.monitor = flops_per_step, sink_mode, monitor
        self.pipelined = False
        """True if several pipeline stages share a batch, whose loss is then a sum over micro batches."""
        self._samples = 0.0
        """Number of samples up to the latest step."""
        self._epoch, self._losses = 0, list[float]()
        """The epoch in progress, and its losses."""
        self._counted = False
        self._model_flops: float | None = None
        """Model TFLOP of a step on this device, as the run measures them in a step that may be an earlier one."""
        listen = getattr(monitor, "on_run_step", None)
        self._unlisten: Remove = listen(self._ran) if listen is not None else lambda: None

    def step_begin(self) -> None:
        """Begin a step; without this call each begins where the one before ends."""
        self.counter.begin()

    def step_end(
        self,
        *,
        loss: Any = None,
        learning_rate: Any = None,
        grad_norm: Any = None,
        loss_scale: Any = None,
        overflow: Any = False,
        batch_size: Any = None,
        step: int | None = None,
        several: int = 1,
        **more: Any,
    ) -> None:
        """End a step with these numbers or tensors, for which training does not wait.

        Args:
            batch_size: number of samples of the step, over all devices.
            step: number of the step, from 1; None: the next.
            several: number of steps since the last call.
            more: further numbers for ``monitor.log``.
        """
        seconds = self.counter.end(step, several)
        values = {
            "loss": loss,
            LEARNING_RATE: self.section.learning_rate if learning_rate is None else learning_rate,
            GRAD_NORM: grad_norm,
            LOSS_SCALE: loss_scale,
            "overflow": overflow,
            BATCH_SIZE: batch_size if batch_size is not None else self.section.global_batch_size or None,
        }
        self.attempt("MFLossMonitor", lambda: self.hand_over(self.counter.step, seconds, values))
        if self.monitor is not None:
            logged = {name: value for name, value in values.items() if value is not None and name != "overflow"}
            log = self.monitor.log_ended
            self.attempt("MFLossMonitor: monitor.log_ended", lambda: log(**logged, **more))

    def close(self) -> None:
        """Write what is left and end the thread. A further call does nothing; a further step begins another thread."""
        self._unlisten()
        super().close()

    # On the threads of this callback and of the run.

    def _ran(self, step: RunStep) -> None:
        rate = step.values.get(MODEL_TFLOPS)
        self._model_flops = None if rate is None else rate * step.seconds

    def _receive(self, numbers: StepNumbers) -> None:
        batch = numbers.value(BATCH_SIZE) or 0.0
        if not self._counted:  # a resumed run
            self._samples, self._counted = (numbers.step - 1) * batch, True
        self._samples += batch
        loss = self._divided(numbers.value(LOSS))
        position = self.counter.position(numbers.step)
        if position.epoch != self._epoch:
            self._epoch, self._losses = position.epoch, []
        if loss is not None:
            self._losses.append(loss)
        if numbers.step % self.section.per_print_times:
            return
        throughput = batch / self.devices / numbers.seconds if numbers.seconds > 0 else 0.0
        if loss is not None:
            self._log(numbers, loss, throughput)
        self.write(list(self._scalars(numbers, loss, batch, throughput)))

    def _divided(self, loss: float | None) -> float | None:
        """Return the loss of a step from the sum over its parts."""
        if loss is None:
            return None
        section = self.section
        parts = section.micro_batch_interleave_num
        if not section.calculate_per_token_loss:
            parts *= section.gradient_accumulation_steps * (section.micro_batch_num if self.pipelined else 1)
        return loss / parts

    def _log(self, numbers: StepNumbers, loss: float, throughput: float) -> None:
        mean = sum(self._losses) / len(self._losses) if not self.sink_mode else None
        line = LossLine(
            position=self.counter.position(numbers.step),
            loss=loss,
            mean_loss=mean,
            seconds=numbers.seconds,
            learning_rate=numbers.value(LEARNING_RATE),
            overflow=bool(numbers.value("overflow")),
            loss_scale=numbers.value(LOSS_SCALE) or None,
            global_norm=numbers.value(GRAD_NORM),
            teraflops=self._teraflops(numbers),
            throughput=throughput,
        )
        for text in loss_lines(line, self.presentation.log_style):
            self.lines.info("%s", text)

    def _teraflops(self, numbers: StepNumbers) -> float | None:
        flops = self._model_flops if self.flops_per_step is None else self.flops_per_step / 1e12
        return flops / numbers.seconds if flops is not None and numbers.seconds > 0 else None

    def _scalars(self, numbers: StepNumbers, loss: float | None, batch: float, throughput: float) -> Iterator[Scalar]:
        """Yield the curves against steps, then those against samples."""
        both = {tag: loss if name == LOSS else numbers.value(name) for tag, name in TAGS.items()}
        both["batch-size"] = batch or None
        steps_only: dict[str, float | None] = {"model-flops-throughput-per-npu": self._teraflops(numbers)}
        section = self.tensorboard
        if section is not None and section.log_loss_scale_to_tensorboard:
            both["loss-scale"] = numbers.value(LOSS_SCALE)
        if section is not None and section.log_timers_to_tensorboard:
            both["iteration-time"] = numbers.seconds * 1000
            both["throughput"] = throughput or None
            steps_only["B-samples-per-day"] = throughput * self.devices * SECONDS_A_DAY / 1e9 or None
        for tag, value in (both | steps_only).items():
            if value is not None:
                yield Scalar(tag, numbers.step, value, numbers.time)
        for tag, value in both.items() if batch else ():
            if value is not None:
                yield Scalar(f"{tag}{self.presentation.samples_suffix}", int(self._samples), value, numbers.time)
