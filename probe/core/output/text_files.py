"""Text files that sources make, written beside training."""

from __future__ import annotations

from functools import partial

from probe.core.faults import Faults
from probe.core.instrumentation.context import Run
from probe.core.instrumentation.step_boundary import FinishedStep
from probe.core.output.delivery import WAIT_SECONDS, Delivery
from probe.core.records import TextFile
from probe.core.storage.atomic_files import replacing

LAST_SECONDS = 1.0
"""Seconds of waiting for the end of the thread after that."""


def write_text(file: TextFile, faults: Faults) -> None:
    """Write ``file`` atomically; count a failure under the file's ``where``."""
    try:
        if file.replaces or not file.path.is_file():
            with replacing(file.path) as text:
                text.write(file.text)
    except Exception as error:  # noqa: BLE001 - training goes on after any error
        faults.note(file.where, error)


class StructureOutput:
    """Receiver of the one step of ``print_struct``, for which only a file is written.

    Training is stopped after that step, and its exit code depends on the file. So each call of :meth:`write` waits
    until the file is written, or for at most ``WAIT_SECONDS``.
    """

    delivers = True
    waits_for_ranks = False
    beside = on_device = 0.0

    def __init__(self, faults: Faults) -> None:
        self._faults = faults

    def submit(self, step: FinishedStep) -> None:
        """Do nothing: the step has no rows."""

    def write(self, file: TextFile) -> None:
        """Write ``file`` on a separate thread and wait for it."""
        delivery = Delivery(1, "wait", self._faults)
        delivery.submit(partial(write_text, file, self._faults))
        if not delivery.flush(WAIT_SECONDS):
            self._faults.note(file.where, TimeoutError(f"not written within {WAIT_SECONDS:g} seconds"))
        delivery.close(LAST_SECONDS)

    def timed(self, seconds: float, own: float) -> None:
        """Do nothing: the cost is not written."""

    def succeed(self, run: Run) -> None:
        """Do nothing: no manifest names the optimizer."""
