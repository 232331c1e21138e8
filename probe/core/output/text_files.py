"""Files of text that sources make, written beside training."""

from __future__ import annotations

from functools import partial

from probe.core.faults import Faults
from probe.core.instrumentation.context import Run
from probe.core.instrumentation.step_boundary import FinishedStep
from probe.core.output.delivery import WAIT_SECONDS, Delivery
from probe.core.records import TextFile
from probe.core.storage.atomic_files import replacing

LAST_SECONDS = 1.0
"""How long the thread is waited for after that."""


def write_text(file: TextFile, faults: Faults) -> None:
    """Writes ``file`` in one move; a failure is counted where the file says."""
    try:
        if file.replaces or not file.path.is_file():
            with replacing(file.path) as text:
                text.write(file.text)
    except Exception as error:  # noqa: BLE001 - whatever it is, training goes on
        faults.note(file.where, error)


class StructureOutput:
    """Receiver of the one step of ``print_struct``, of which nothing but a file is written.

    The exit code of training, which is stopped after that step, depends on the file. So each call of :meth:`write`
    returns when the file is written, or when it has taken too long.
    """

    delivers = True
    waits_for_ranks = False
    beside = on_device = 0.0

    def __init__(self, faults: Faults) -> None:
        self._faults = faults

    def submit(self, step: FinishedStep) -> None:
        """Does nothing: the step has no rows."""

    def write(self, file: TextFile) -> None:
        """Writes ``file`` on a thread of its own and waits for it."""
        delivery = Delivery(1, "wait", self._faults)
        delivery.submit(partial(write_text, file, self._faults))
        if not delivery.flush(WAIT_SECONDS):
            self._faults.note(file.where, TimeoutError(f"not written within {WAIT_SECONDS:g} seconds"))
        delivery.close(LAST_SECONDS)

    def timed(self, seconds: float, own: float) -> None:
        """Counts nothing."""

    def succeed(self, run: Run) -> None:
        """Does nothing: no manifest names the optimizer."""
