"""Recording of a trial: the first few updates of a program of torch, after which its process ends."""

from __future__ import annotations

import atexit
import math
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from probe.core.checks.loss_calls import LossCall
from probe.core.door import Remove, attempt
from probe.core.faults import Faults
from probe.core.language import packed
from probe.core.monitor.trainer_mon import preflight_of, watcher_of
from probe.core.prechecks.judgement import judged
from probe.core.prechecks.trial import Accumulation, OutputFacts, Trial
from probe.launch.found_run import FoundRun
from probe.launch.model_search import ModelSearch, named
from probe.launch.trial import end_process, write_trial
from probe.pytorch import loss_scale, training_loop
from probe.pytorch.dtensor import local
from probe.pytorch.engines.native import on_every_step
from probe.pytorch.finding import FINDER, WATCH
from probe.pytorch.prechecks.calls import CallWatch
from probe.pytorch.prechecks.causality import tried
from probe.pytorch.prechecks.digests import norm_of
from probe.pytorch.prechecks.loaders import LoaderWatch
from probe.pytorch.prechecks.losses import loss_call, relation, watch_losses
from probe.pytorch.prechecks.parameters import ParameterWatch
from probe.pytorch.prechecks.schedules import ScheduleWatch

MOST_TIMES = 4
"""Times the updates that one optimizer may make while another has none."""
FLUSH_SECONDS = 10.0
SOME = 20
"""Gradients that are compared before and after the program has changed them."""
CLOSE = 0.02


def begin(folder: Path, steps: int) -> None:
    """Record this process, in which torch has just been imported."""
    TrialRecorder(folder, steps).begin()


class TrialRecorder:
    """TrialRecorder of this process.

    Args:
        folder: for what is seen.
        steps: number of updates after which the process ends.
    """

    def __init__(self, folder: Path, steps: int) -> None:
        self._folder, self._steps, self._process = folder, steps, os.getpid()
        self.faults = Faults()
        self._runs: list[FoundRun] = []
        self._counts: dict[int, int] = {}
        """Updates by the identity of the optimizer."""
        self._optimizers: dict[int, Any] = {}
        self._models: dict[str, torch.nn.Module] = {}
        self._values: list[float] = []
        """Roots of the backwards since the last update."""
        self._norm, self._clipped = math.nan, False
        self._time_axis = 1
        self._finished = False
        self._placed: list[Remove] = []
        self.losses: list[LossCall] = []
        self._accumulations: list[Accumulation] = []
        self._calls = CallWatch(lambda: self._updates, self.faults)
        self._parameters, self._schedules = ParameterWatch(), ScheduleWatch()
        self._loaders = LoaderWatch(folder, self.faults)

    @property
    def _updates(self) -> int:
        return max(self._counts.values(), default=0)

    def begin(self) -> None:
        """Record from now on, until the process ends."""
        watch_losses(self._lost, self.faults)
        self._calls.begin()
        self._schedules.begin()
        self._loaders.begin()
        self._placed = [  # listeners are not kept alive otherwise
            on_every_step(self._updating, self._updated, self.faults),
            training_loop.on_backward(self._began, self._ended_backward, self.faults),
            training_loop.on_total_norm(lambda _: None, self._total_norm, self.faults),
        ]
        WATCH.listen = self._attached
        atexit.register(self._exit)

    def _attached(self, run: FoundRun | str) -> None:
        if isinstance(run, FoundRun):
            self._runs.append(run)

    # What the program does.

    def _lost(self, name: str, arguments: dict[str, Any], result: torch.Tensor) -> None:
        tokens = self._calls.tokens
        call = loss_call(name, arguments, result, self._updates, tokens)
        self.losses.append(call)
        if call.relation == "next" and tokens is not None:
            labels = arguments["target"].detach()
            self._time_axis = relation(labels, labels == arguments["ignore_index"], tokens)[1]

    def _began(self, root: torch.Tensor | None, _: object) -> None:
        if self._values and not self._norm_of_some():  # cleared: a scaler has skipped the update
            self._values = []
        value = math.nan if root is None else float(root.detach())
        scale = None if root is None else loss_scale.scale_of(root)
        self._values.append(value if scale is None else value / float(scale))

    def _ended_backward(self) -> None:
        self._norm = self._norm_of_some()

    def _norm_of_some(self) -> float:
        gradients = [
            local(parameter.grad)
            for optimizer in self._optimizers.values() or [watched for run in self._runs for watched in run.optimizers]
            for parameter in [*FINDER.owned(optimizer)][:SOME]
            if parameter.grad is not None and not parameter.grad.is_sparse
        ]
        return math.hypot(*map(norm_of, gradients))

    def _total_norm(self, total: float | torch.Tensor, factor: Callable[[float], float]) -> None:
        self._clipped |= factor(float(total)) != 1.0

    def _updating(self, optimizer: Any, *_: object) -> None:
        if self._is_elsewhere:
            return
        if id(optimizer) not in self._optimizers:
            self._optimizers[id(optimizer)] = optimizer
            self._counts[id(optimizer)] = 0
            models = self._models_of(optimizer)
            self._models |= models
            attempt(self.faults, "parameters", self._parameters.note, models, self._calls.entered)
        number, ratio = len(self._values), self._norm_of_some() / self._norm if self._norm else math.nan
        self._accumulations.append(
            Accumulation(
                values=tuple(self._values),
                divided_later=number > 1 and abs(ratio * number - 1) < CLOSE,
                normalises=training_loop.normalises(optimizer) and not self._clipped,
            )
        )
        self._parameters.updating(FINDER.owned(optimizer))
        self._schedules.updating(optimizer)

    def _updated(self, optimizer: Any, *_: object) -> None:
        if self._is_elsewhere or id(optimizer) not in self._counts:
            return
        self._values, self._clipped = [], False
        self._counts[id(optimizer)] += 1
        fewest, most = min(self._counts.values()), self._updates
        if fewest >= self._steps or most >= MOST_TIMES * self._steps:
            self._end()

    @property
    def _is_elsewhere(self) -> bool:
        return os.getpid() != self._process or self._finished

    def _models_of(self, optimizer: Any) -> dict[str, torch.nn.Module]:
        """Return the models that an optimizer updates, by name; one alone has an empty name."""
        for run in self._runs:
            if any(optimizer is watched for watched in run.optimizers):
                return run.models
        models = ModelSearch(FINDER, None).of(optimizer)
        return {"": models[0]} if len(models) == 1 else named(models)

    # The end.

    def _end(self) -> None:
        """Write what was seen, and end the process at once: no code of the program runs any more, such as one that
        writes a checkpoint."""
        self._finish()
        end_process(self._folder, os.environ, self.faults)

    def _exit(self) -> None:
        if not self._is_elsewhere:
            attempt(self.faults, "end", self._finish)

    def _finish(self) -> None:
        self._finished = True
        trial = self._trial()
        if not trial.updates and not trial.calls:
            return
        preflight = attempt(self.faults, "preflight", self._preflight) or ""
        judgements = judged(trial, self.faults)
        findings = [{**finding._asdict(), "text": packed(finding.text)} for finding in judgements]
        values = {
            "trial": trial.as_json(),
            "findings": findings,
            "preflight": packed(preflight),
            "faults": dict(self.faults.counts),
        }
        write_trial(self._folder, trial.rank, values)

    def _preflight(self) -> str:
        """Return the line about the checks of the loop, once all updates have been judged."""
        monitors = [run.monitor for run in self._runs]
        if not monitors and (monitor := watcher_of([*self._models.values()])) is not None:
            monitors = [monitor]
        for monitor in monitors:
            monitor.flush(FLUSH_SECONDS)
        return preflight_of(monitors[-1]) if monitors else ""

    def _trial(self) -> Trial:
        is_parallel = dist.is_available() and dist.is_initialized()
        trial = Trial(
            rank=dist.get_rank() if is_parallel else int(os.environ.get("RANK", "0")),
            world=dist.get_world_size() if is_parallel else int(os.environ.get("WORLD_SIZE", "1")),
            data_parallel=any(_is_replicated(model) for model in self._models.values()),
            updates=self._updates,
            losses=self.losses,
            calls=self._calls.calls,
            accumulations=self._accumulations,
            dropout=self._calls.dropout,
        )
        trial.parameters = attempt(self.faults, "parameters", self._parameters.rows) or []
        attempt(self.faults, "outputs", self._add_outputs, trial)
        backwards = min((len(row.values) for row in self._accumulations), default=0)
        rows = attempt(self.faults, "schedules", self._schedules.rows, backwards, trial.world, sys._getframe())
        trial.schedules = rows or []
        trial.loaders = attempt(self.faults, "loaders", self._loaders.rows) or []
        trial.workers = attempt(self.faults, "workers", self._loaders.workers) or []
        self._add_causality(trial)
        return trial

    def _add_outputs(self, trial: Trial) -> None:
        names = {
            id(module): ".".join(filter(None, (prefix, name.replace("_orig_mod.", "")))).removeprefix("module.")
            for prefix, model in self._models.items()
            for name, module in model.named_modules()
        }
        entered = self._calls.entered.values()
        last = max((order for order, module in entered if [*module.parameters(recurse=False)]), default=-1)
        for seen in sorted(self._calls.outputs, key=lambda seen: seen.order):
            if name := names.get(id(seen.module)):
                kind, hidden = type(seen.module).__name__, seen.order < last
                row = OutputFacts(name, kind, seen.rms, seen.zeros, seen.saturated, hidden, seen.dtype)
                trial.outputs.append(row)

    def _add_causality(self, trial: Trial) -> None:
        """Call the first model with tokens again: nothing comes after it."""
        call = self._calls.held
        if call is None:
            trial.unseen["not-causal"] = "no model got tokens along two axes"
            return
        answer = attempt(self.faults, "forward with other tokens", tried, call, self._time_axis)
        if answer is None or isinstance(answer, str):
            trial.unseen["not-causal"] = answer or "the model could not be called again"
        else:
            trial.causality = answer


def _is_replicated(model: torch.nn.Module) -> bool:
    return isinstance(model, torch.nn.parallel.DistributedDataParallel)
