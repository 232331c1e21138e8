"""Every metric of a rank: its name, type, help text and labels.

Names follow the conventions of Prometheus: a prefix, base units, the unit last, ``_total`` for counters
(https://prometheus.io/docs/practices/naming/). The exporter of the node adds the labels ``job`` and ``rank``.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, NamedTuple

from probe.core.moments import OPS
from probe.core.naming import (
    BATCH_SIZE,
    BATCH_TOKENS,
    GRAD_NORM,
    LEARNING_RATE,
    LOSS,
    LOSS_SCALE,
    MODEL_TFLOPS,
    OUTSIDE_SECONDS,
    STEP_SECONDS,
    THROUGHPUT,
    TOKENS_PER_SECOND,
    VAL_LOSS,
)

Kind = Literal["gauge", "counter"]


class Metric(NamedTuple):
    """Family of series."""

    name: str
    about: str
    """Help text: one sentence with the unit."""
    labels: tuple[str, ...] = ()
    kind: Kind = "gauge"


class Series(NamedTuple):
    """One series: a metric and the values of its labels."""

    metric: str
    labels: tuple[str, ...] = ()


STEP = Metric("probe_training_step", "Number of the last finished step.")
STEPS = Metric("probe_training_steps_total", "Finished steps since the process began.", kind="counter")
SKIPPED = Metric("probe_training_skipped_steps_total", "Steps whose update a scaler has skipped.", kind="counter")
LAST_STEP = Metric("probe_training_last_step_timestamp_seconds", "Time at which the last step ended, in Unix time.")
PHASE_SECONDS = Metric("probe_training_phase_seconds_total", "Seconds spent in a phase.", ("phase",), "counter")
NUMBER = Metric("probe_training_number", "Last value of a number that the program logs under a name.", ("name",))
FINDINGS = Metric("probe_findings_total", "Findings by rule.", ("rule",), "counter")
FAULTS = Metric("probe_faults_total", "Errors inside the monitor, from which training went on.", kind="counter")
OVERHEAD = Metric("probe_overhead_ratio", "Time of the monitor as a part of the time that training takes without it.")
DROPPED = Metric("probe_series_dropped", "Series that were left out, since a rank has a limited number of them.")

NUMBERS = {
    LOSS: Metric("probe_training_loss", "Loss of the last step."),
    GRAD_NORM: Metric("probe_training_gradient_norm", "Norm of all gradients in the last step."),
    LEARNING_RATE: Metric("probe_training_learning_rate", "Learning rate of the last step."),
    LOSS_SCALE: Metric("probe_training_loss_scale", "Factor by which a scaler has multiplied the loss."),
    BATCH_SIZE: Metric("probe_training_batch_size_samples", "Samples of the last step."),
    BATCH_TOKENS: Metric("probe_training_batch_size_tokens", "Tokens of the last step."),
    VAL_LOSS: Metric("probe_training_validation_loss", "Last loss on validation data."),
    "accuracy": Metric("probe_training_accuracy", "Last accuracy, as the program logs it."),
    STEP_SECONDS: Metric("probe_training_step_seconds", "Seconds that the last step took."),
    OUTSIDE_SECONDS: Metric(
        "probe_training_outside_collectives_seconds", "Seconds of the last sampled step outside of collectives."
    ),
    THROUGHPUT: Metric("probe_training_throughput_samples_per_second", "Samples a second in the last step."),
    TOKENS_PER_SECOND: Metric("probe_training_throughput_tokens_per_second", "Tokens a second in the last step."),
    MODEL_TFLOPS: Metric(
        "probe_training_model_flops_per_second", "Floating-point operations of the model a second in the last step."
    ),
}
"""Metrics of numbers of the run, by the name under which they are logged."""
FACTORS = {MODEL_TFLOPS: 1e12}
"""Factors from a number of the run to the base unit of its metric."""

TENSORS = {
    op: Metric(
        f"probe_tensor_{op}",
        f"Op {op} of a tensor in the last sampled step, of several readings the largest in magnitude.",
        ("signal", "layer"),
    )
    for op in OPS
}
"""Metrics of tensors, by op."""

METRICS: dict[str, Metric] = {
    metric.name: metric
    for metric in (
        *(STEP, STEPS, SKIPPED, LAST_STEP, PHASE_SECONDS, NUMBER, FINDINGS, FAULTS, OVERHEAD, DROPPED),
        *NUMBERS.values(),
        *TENSORS.values(),
    )
}
"""Every metric that a rank makes, by name."""

RANK_INFO = Metric(
    "probe_rank_info",
    "Identity of a rank; its value is 1.",
    ("host", "pid", "ranks", "gpu_uuid"),
)
RANK_UP = Metric("probe_rank_up", "1 while the process of a rank exists, 0 after it has gone without having ended.")
PHASE = Metric("probe_training_phase", "1 for the phase in which a rank is.", ("phase",))
SINCE = Metric("probe_training_progress_age_seconds", "Seconds since the last sign of progress of a rank.")
BUDGET = Metric(
    "probe_training_step_budget_seconds", "Longest time without progress that is no reason for an alert in this phase."
)
SHOWN_BY_NODE: tuple[Metric, ...] = (RANK_INFO, RANK_UP, PHASE, SINCE, BUDGET)
"""Metrics of a rank that the exporter of its node makes from the rank's process and from its progress file."""


def metrics_of(series: Sequence[Series]) -> list[Metric]:
    """Return the metrics of ``series``, each once, in the order of the catalogue."""
    used = {item.metric for item in series}
    return [metric for name, metric in METRICS.items() if name in used]
