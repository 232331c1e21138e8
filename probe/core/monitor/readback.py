"""Values that the program reads while training runs."""

from __future__ import annotations

from collections.abc import Sequence

from probe.core.histogram import HISTOGRAM
from probe.core.instrumentation.context import Run
from probe.core.instrumentation.recorder import Recorder
from probe.core.instrumentation.session import Session
from probe.core.naming import tag
from probe.core.records import Batch

Metrics = dict[str, dict[str, float]]


def values_of(run: Run, session: Session, signal: str) -> Metrics:
    """Return ``{tag: {op: value}}`` of one signal in the step in progress, or in the one that has just ended."""
    if len(run.recorder):
        ops, batches = run.settings.statistics, run.recorder.peek([signal]).batches(run.clock.step)
    elif session.last is not None:  # its ops may differ from the present ones
        step, pending, ops = session.last
        batches = [batch for batch in pending.batches(step) if batch.signal == signal]
    else:
        return {}
    return {name: values for batch in batches for name, values in _by_tag(run, batch, ops).items()}


def gradients_of(run: Run, session: Session) -> tuple[Metrics, Metrics]:
    """Return reduced and unreduced weight gradients."""
    unreduced = values_of(run, session, "grad_unreduced")
    reduced = values_of(run, session, "grad_reduced")
    if len(run.recorder):
        reduced |= values_before_update(run, session)
    return reduced, unreduced


def activations_of(run: Run, session: Session) -> tuple[Metrics, Metrics]:
    """Return activations and their gradients."""
    return values_of(run, session, "actv"), values_of(run, session, "actv_grad")


def values_before_update(run: Run, session: Session) -> Metrics:
    """Return the present gradients of the optimizers that have not updated in this step."""
    now = Recorder(run.framework.tensors, run.recorder.columns, run.settings.eps, run.faults.note)
    session.gradients_now(now)
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
