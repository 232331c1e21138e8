"""Check of the global norm: spikes, NaN and infinity, and the file that remembers them over a restart."""

from __future__ import annotations

import json
import logging
import math
import threading
from collections.abc import Mapping
from pathlib import Path

from probe.core.storage.files import json_of, replacing
from probe.core.transformers.log_lines import positional

FILE = "abnormal_global_norm.json"
RESTART = "TREError occurred......"
"""Beginning of the error by which launchers recognize a run to be started again from its last checkpoint."""
_log = logging.getLogger("probe.transformers")
Norms = dict[str, list[float | str]]


class NormRecord:
    """File with the abnormal global norms of each step.

    Every rank reads it when training begins and adds its own, so that ranks without a common file system agree, too.
    """

    def __init__(self, directory: Path) -> None:
        self.path = directory.absolute() / FILE
        self.norms = self._stored()
        """Norms by step: those of earlier runs, and this rank's own."""

    def __contains__(self, step: int) -> bool:
        return str(step) in self.norms

    def add(self, step: int, norm: float) -> None:
        """Remember ``norm`` and write the file, in one move."""
        mine = self.norms.setdefault(str(step), [])
        mine.append(norm if math.isfinite(norm) else str(norm))
        stored = self._stored()  # another rank may have written since
        whole = stored | {key: max(values, stored.get(key, []), key=len) for key, values in self.norms.items()}
        self.path.parent.mkdir(parents=True, exist_ok=True)
        with replacing(self.path) as file:
            json.dump(whole, file)

    def _stored(self) -> Norms:
        """Return the content of the file; nothing if there is none, or none that can be read."""
        if not self.path.exists():
            return {}
        try:
            found = json_of(self.path)
        except (OSError, ValueError) as error:
            _log.warning("%s cannot be read and will be replaced: %s", self.path, error)
            return {}
        pairs = found.items() if isinstance(found, Mapping) else ()
        return {str(step): list(values) for step, values in pairs if isinstance(values, list)}


class NormCheck:
    """Check of the loss and the global norm of each step, on the thread where they arrive; training asks for the
    verdict one step later, so that the device always has a step to do.

    Args:
        threshold: least global norm that is abnormal; None: not checked.
        skip_count: number of consecutive abnormal norms at which training ends, if updates are skipped; 0: not counted.
        finite: whether NaN and infinity of the loss and the global norm end training.
    """

    def __init__(self, threshold: float | None, record: NormRecord | None, skip_count: int, finite: bool) -> None:
        self._threshold, self._record, self._skip_count, self._finite = threshold, record, skip_count, finite
        self._consecutive = 0
        self._error: tuple[int, Exception] | None = None
        """The first abnormal step, and the error that ends training."""
        self._ends = False
        """True once a step ends training: later ones will be done again."""
        self._judged = 0
        """Number of the latest step that was judged."""
        self._news = threading.Condition()

    def judge(self, step: int, loss: float | None, norm: float | None) -> None:
        """Judge the numbers of ``step``, unless an earlier one ends training: then it will be done again."""
        error: Exception | None = None
        try:
            error = None if self._ends else self._verdict(step, loss, norm)
        finally:
            with self._news:
                self._judged = step
                if error is not None:
                    self._error, self._ends = (step, error), True
                self._news.notify_all()

    def wait(self, step: int, timeout: float) -> bool:
        """Wait until ``step`` is judged; return False if that takes longer than ``timeout`` seconds."""
        with self._news:
            return self._news.wait_for(lambda: self._judged >= step, timeout)

    def take(self, step: int) -> Exception | None:
        """Return the error that ends training, once, if ``step`` or an earlier one was abnormal: so every rank ends at
        the same step, though the numbers of later steps may be there."""
        with self._news:
            if self._error is None or self._error[0] > step:
                return None
            (_, error), self._error = self._error, None
            return error

    def _verdict(self, step: int, loss: float | None, norm: float | None) -> Exception | None:
        for name, value in (("loss", loss), ("global_norm", norm)):
            if self._finite and value is not None and not math.isfinite(value):
                return ValueError(f"There is {value} in {name} of step {step}, terminate training.")
        if norm is None or self._threshold is None:
            return None
        abnormal = not norm < self._threshold  # NaN is, too
        if self._skip_count:
            return self._counted(step, norm, abnormal)
        return self._recorded(step, norm) if abnormal else None

    def _counted(self, step: int, norm: float, abnormal: bool) -> Exception | None:
        self._consecutive = self._consecutive + 1 if abnormal else 0
        if not abnormal:
            return None
        sentence = f"the global norm {positional(norm)} of step {step} is not below {self._threshold}, "
        sentence += f"{self._consecutive} consecutive times"
        if self._consecutive < self._skip_count:
            _log.info("%s", sentence)
            return None
        return ValueError(f"{sentence}: training ends")

    def _recorded(self, step: int, norm: float) -> Exception | None:
        if self._record is None:
            return None
        sentence = f"the global norm {positional(norm)} of step {step} is not below {self._threshold}"
        known = step in self._record
        self._record.add(step, norm)
        if known:
            _log.info("%s again: training continues", sentence)
            return None
        _log.info("%s: training ends", sentence)
        return RuntimeError(f"{RESTART} {sentence}; it is recorded in {self._record.path}")
