"""Log lines of MindSpore Transformers, which other tools parse: the same fields in the same order.

Numbers stand in positional notation: readers search for digits, a point and digits, which ``1e-05`` and ``[1.]`` are
not, and no number that is not zero is shown as zero.
"""

from __future__ import annotations

import logging
import math
import sys
from datetime import timedelta
from typing import NamedTuple

import numpy as np

LOGGER = "probe.transformers"
STYLES = ("1.6", "1.9")
"""Releases whose lines differ: the loss has three decimal places or six, other numbers four or as many as they need."""
LOSS_PLACES = {"1.6": 3, "1.9": 6}
NORM_PLACES = 4
SHOWN = 4
"""Least number of significant digits of a number with few decimal places."""
BAR = 50
"""Characters of the progress bar."""
_FORM = "%(asctime)s - %(name)s - %(levelname)s - %(message)s"


class Position(NamedTuple):
    """Position of a step in training."""

    epoch: int
    epochs: int
    step: int
    """Number of the step in its epoch, from 1."""
    steps: int
    """Number of steps in an epoch; 0: unknown."""

    @classmethod
    def of(cls, step: int, epochs: int, steps: int) -> Position:
        """Return the position of ``step``, counted over all epochs from 1. An epoch beyond ``epochs`` is one more."""
        if steps <= 0:
            return cls(1, epochs, step, 0)
        epoch = (step - 1) // steps + 1
        return cls(epoch, max(epoch, epochs), (step - 1) % steps + 1, steps)

    @property
    def text(self) -> str:
        return f"Epoch:[{self.epoch:3d}/{self.epochs:3d}], step:[{self.step:5d}/{self.steps:5d}]"

    @property
    def done(self) -> float:
        """Fraction of training that is done; 0 if the number of steps is unknown."""
        return ((self.epoch - 1) * self.steps + self.step) / (self.epochs * self.steps) if self.steps else 0.0

    @property
    def remaining(self) -> int:
        """Number of steps that remain; 0 if unknown."""
        return max((self.epochs - self.epoch + 1) * self.steps - self.step, 0) if self.steps else 0


class LossLine(NamedTuple):
    """Numbers of the lines of ``MFLossMonitor``; a number that is None is not known."""

    position: Position
    loss: float
    mean_loss: float | None
    """Mean of the epoch so far; None if the dataset is sunk, where it is not shown."""
    seconds: float
    learning_rate: float | None
    overflow: bool
    loss_scale: float | None
    global_norm: float | None
    teraflops: float | None
    """Model TFLOP/s of a device."""
    throughput: float
    """Samples a second and device; 0: unknown."""


def loss_lines(line: LossLine, style: str) -> tuple[str, str]:
    """Return the line of numbers and that of the progress."""
    places = LOSS_PLACES[style]
    loss = fixed(line.loss, places)
    mean = "" if line.mean_loss is None else f"loss:[{loss}/{fixed(line.mean_loss, places)}]"
    rate = "" if line.learning_rate is None else f"lr: {short(line.learning_rate)}, "
    scale = line.loss_scale
    numbers = (
        f"{{ {line.position.text}, {mean or f'loss: {loss}'}, per_step_time: {_milliseconds(line.seconds)}ms, {rate}"
        f"overflow cond: {line.overflow}, loss_scale: {'unavailable' if scale is None else positional(scale)}, "
        f"global_norm: {'None' if line.global_norm is None else f'[{positional(line.global_norm)}]'}"
    )
    if line.teraflops is not None:
        numbers += f", train_throughput_per_npu: {line.teraflops:.3f}T"
    return numbers, _progress(line)


def _progress(line: LossLine) -> str:
    percent = 100.0 * line.position.done
    bar = "█" * int(BAR * percent / 100)
    left = line.position.remaining * line.seconds
    remaining = timedelta(seconds=int(left) if math.isfinite(left) else 0)
    return f"  {percent:4.1f}% |{bar:<{BAR}}| {line.throughput:.5f} samples/s/p  {remaining} }}"


def state_line(position: Position, tag: str, value: float, style: str) -> str:
    """Return the line of one number of ``TrainingStateMonitor``."""
    return f"{position.text} {tag}: {digits(value, NORM_PLACES) if style == '1.6' else positional(value)}"


def positional(value: float) -> str:
    """Return the shortest text that reads back as the same float32, without an exponent."""
    if not math.isfinite(value):
        return str(float(value))
    with np.errstate(over="ignore", under="ignore"):
        single = np.float32(value)
    lost = not np.isfinite(single) or (single == 0.0) != (value == 0.0)
    return str(np.format_float_positional(np.float64(value) if lost else single, unique=True, trim="0"))


def short(value: float) -> str:
    """Return the shortest text that reads back as the same float32, with an exponent where it is shorter."""
    return str(np.float32(value)) if math.isfinite(value) else str(float(value))


def fixed(value: float, places: int) -> str:
    """Return ``value`` with ``places`` decimal places; with more if it would read as zero."""
    text = f"{value:5.{places}f}"
    return text if not math.isfinite(value) or value == 0.0 or float(text) != 0.0 else digits(value, places)


def digits(value: float, places: int) -> str:
    """Return ``value`` with at least ``places`` decimal places and at least four significant digits."""
    if not math.isfinite(value) or value == 0.0:
        return f"{value:.{places}f}"
    return f"{value:.{max(places, SHOWN - 1 - math.floor(math.log10(abs(value))))}f}"


def _milliseconds(seconds: float) -> int:
    return int(seconds * 1000) if math.isfinite(seconds) else 0


def logger() -> logging.Logger:
    """Return the logger of the lines. If the program has set up no logging, they go to standard output, as those of the
    tool do."""
    found = logging.getLogger(LOGGER)
    if found.level == logging.NOTSET:
        found.setLevel(logging.INFO)
    if not logging.getLogger().handlers and not found.handlers:
        handler = logging.StreamHandler(sys.stdout)
        handler.setFormatter(logging.Formatter(_FORM))
        found.addHandler(handler)
    return found
