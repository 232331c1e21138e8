"""Files of MindSpore's ``TensorDump``, by which norms and losses leave a training that is compiled whole.

The compiler writes ``local_norm__NAME_float32_7.npy`` and the training cell of MindSpore Transformers
``device_local_norm``, ``local_loss`` and, at the end of a step, ``finish_step``; the number counts files over all
names. Before MindSpore 2.5 it stood in front: ``7_local_norm__NAME.npy``.
"""

from __future__ import annotations

import re
from bisect import bisect_left
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import numpy as np

from probe.core.door import count
from probe.core.faults import Faults

LOCAL_NORM, DEVICE_NORM, LOCAL_LOSS = "local_norm", "device_local_norm", "local_loss"
_KINDS = rf"(?P<kind>{LOCAL_NORM}|{DEVICE_NORM}|{LOCAL_LOSS}|finish_step)"
_FORMS = (
    re.compile(rf"{_KINDS}(?:__(?P<name>.+))?_[a-z]+\d+_(?P<number>\d+)\.npy"),
    re.compile(rf"(?P<number>\d+)_{_KINDS}(?:__(?P<name>.+))?\.npy"),
)


class DumpedStep(NamedTuple):
    """Numbers of one step."""

    step: int
    """Number of the step in this run, from 1."""
    norms: dict[str, float]
    """Norms of gradients by parameter."""
    device_norm: float | None
    """Norm of all of them, if it was written."""
    losses: list[float]
    """Loss of each micro batch."""


class _File(NamedTuple):
    number: int
    kind: str
    name: str
    value: float
    order: int
    """Number of files of this name up to this one."""


class DumpFolder:
    """Folder of a rank, whose new files are read and then removed; all others stay as they are.

    Without markers of steps, the n-th file of a name belongs to step n.
    """

    def __init__(self, folder: Path, faults: Faults) -> None:
        self._folder, self._faults = folder, faults
        self._old = {path.name: path.stat().st_mtime_ns for path, _ in self._files()}
        self._waiting: list[_File] = []
        self._ends = list[int]()
        self._counts = Counter[tuple[str, str]]()
        self.has_losses = False
        """True if a loss was among the files."""

    def steps(self, last: bool = False) -> Iterator[DumpedStep]:
        """Yield the steps whose files are complete, in their order.

        Args:
            last: whether no further file is awaited.
        """
        for path, match in sorted(self._files(), key=lambda file: int(file[1]["number"])):
            if self._old.get(path.name) != path.stat().st_mtime_ns:
                self._take(path, match, last)
        self._ends.sort()
        by_step: dict[int, list[_File]] = {}
        for file in self._waiting:
            step = bisect_left(self._ends, file.number) + 1 if self._ends else file.order
            by_step.setdefault(step, []).append(file)
        complete = len(self._ends) if self._ends else max(by_step, default=1) - 1
        self._waiting = [] if last else [file for step, row in by_step.items() if step > complete for file in row]
        for step in sorted(by_step):
            if last or step <= complete:
                yield _step_of(step, by_step[step])

    def _take(self, path: Path, match: re.Match[str], last: bool) -> None:
        number, kind, name = int(match["number"]), match["kind"], match["name"] or ""
        if kind == "finish_step":
            self._ends.append(number)
        else:
            try:
                value = float(np.mean(np.load(path, allow_pickle=False)))
            except (OSError, ValueError, EOFError) as error:  # it may still be in writing
                if last:
                    count(self._faults, "dumped tensor", error)
                return
            self._counts[kind, name] += 1
            self._waiting.append(_File(number, kind, name, value, self._counts[kind, name]))
            self.has_losses |= kind == LOCAL_LOSS
        path.unlink(missing_ok=True)

    def _files(self) -> list[tuple[Path, re.Match[str]]]:
        paths = self._folder.iterdir() if self._folder.is_dir() else ()
        return [(path, match) for path in paths for form in _FORMS if (match := form.fullmatch(path.name))]


def _step_of(step: int, files: list[_File]) -> DumpedStep:
    values = {kind: [file.value for file in files if file.kind == kind] for kind in (DEVICE_NORM, LOCAL_LOSS)}
    norms = {file.name: file.value for file in files if file.kind == LOCAL_NORM}
    return DumpedStep(step, norms, next(iter(values[DEVICE_NORM]), None), values[LOCAL_LOSS])
