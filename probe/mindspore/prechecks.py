"""Recording of a trial of a program of MindSpore: the checks of its loop over the first few updates, after which its
process ends. What prechecks judge is recorded with torch alone."""

from __future__ import annotations

import atexit
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from probe.core.door import attempt
from probe.core.faults import Faults
from probe.core.language import packed
from probe.core.monitor.trainer_mon import preflight_of
from probe.core.prechecks.trial import Trial
from probe.core.run_state.rules import RunStep
from probe.launch.found_run import FoundRun
from probe.launch.trial import end_process, write_trial
from probe.mindspore import groups
from probe.mindspore.finding import WATCH

REASON = "not applicable on MindSpore: calls of its models and losses are not recorded, only the loop is checked"


def begin(folder: Path, steps: int) -> None:
    """Record this process, in which MindSpore has just been imported."""
    recorder = TrialRecorder(folder, steps)
    WATCH.listen = recorder.attached
    atexit.register(recorder.exit)


class TrialRecorder:
    """Recorder of this process; see :func:`probe.launch.trial.prepare_trial`."""

    def __init__(self, folder: Path, steps: int) -> None:
        self._folder, self._steps, self._process = folder, steps, os.getpid()
        self._faults, self._updates, self._finished = Faults(), 0, False
        self._run: FoundRun | None = None

    def attached(self, run: FoundRun | str) -> None:
        """Count the steps of a run, on the thread that has judged them."""
        if isinstance(run, FoundRun):
            self._run = run
            run.monitor.on_run_step(self._stepped)

    def _stepped(self, _: RunStep) -> None:
        self._updates += 1
        if self._updates >= self._steps and not self._finished and os.getpid() == self._process:
            self._finish()
            end_process(self._folder, os.environ, self._faults)

    def exit(self) -> None:
        """Write what was seen of a program that has ended by itself."""
        if self._run is not None and not self._finished and os.getpid() == self._process:
            attempt(self._faults, "end", self._finish)

    def _finish(self) -> None:
        self._finished = True
        trial = Trial(groups.rank(), groups.world_size(), updates=self._updates, unrecorded=REASON)
        monitor = None if self._run is None else self._run.monitor
        preflight = "" if monitor is None else preflight_of(monitor)
        write_trial(self._folder, trial.rank, _values(trial, preflight, self._faults.counts))


def _values(trial: Trial, preflight: str, faults: Mapping[str, int]) -> dict[str, Any]:
    return {"trial": trial.as_json(), "findings": [], "preflight": packed(preflight), "faults": dict(faults)}
