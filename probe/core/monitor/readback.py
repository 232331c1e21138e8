"""Values that the program reads while training runs."""

from __future__ import annotations

from collections.abc import Sequence

from probe.core.histogram import HISTOGRAM
from probe.core.instrumentation.context import Run
from probe.core.instrumentation.recorder import Recorder
from probe.core.instrumentation.training_steps import TrainingSteps
from probe.core.naming import tag
from probe.core.records import Batch

Metrics = dict[str, dict[str, float]]


def values_of(run: Run, steps: TrainingSteps, signal: str) -> Metrics:
    """Return ``{tag: {op: value}}`` of one signal in the step in progress, or in the one that has just ended."""
    if len(run.recorder):
        ops, batches = run.settings.statistics, run.recorder.peek([signal]).batches(run.clock.step)
    elif steps.last is not None:  # its ops may differ from the present ones
        step, pending, ops = steps.last
        batches = [batch for batch in pending.batches(step) if batch.signal == signal]
    else:
        return {}
    return {name: values for batch in batches for name, values in _by_tag(run, batch, ops).items()}


def gradients_of(run: Run, steps: TrainingSteps) -> tuple[Metrics, Metrics]:
    """Return reduced and unreduced weight gradients."""
    unreduced = values_of(run, steps, "grad_unreduced")
    reduced = values_of(run, steps, "grad_reduced")
    if len(run.recorder):
        reduced |= values_before_update(run, steps)
    return reduced, unreduced


def activations_of(run: Run, steps: TrainingSteps) -> tuple[Metrics, Metrics]:
    """Return activations and their gradients."""
    return values_of(run, steps, "actv"), values_of(run, steps, "actv_grad")


def values_before_update(run: Run, steps: TrainingSteps) -> Metrics:
    """Return the present gradients of the optimizers that have not updated in this step."""
    now = Recorder(run.framework.tensors, run.recorder.columns, run.settings.eps, run.faults.note)
    steps.gradients_now(now)
    batches = now.drain().batches(run.clock.step)
    ops = run.settings.statistics
    return {name: values for batch in batches for name, values in _by_tag(run, batch, ops).items()}


def _by_tag(run: Run, batch: Batch, ops: Sequence[str]) -> Metrics:
    numbers = {name: batch.op(name) for name in ops if name != HISTOGRAM}
    rank = run.framework.groups.rank()
    return {
        tag(batch.signal, key, rank, batch.micro_stepped): {name: float(values[i]) for name, values in numbers.items()}
        for i, key in enumerate(batch.keys)
    }
