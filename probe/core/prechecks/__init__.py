"""Prechecks: judges of the first few updates of a program, for ``probe check``. One a file."""

from __future__ import annotations

from probe.core.prechecks.activation_growth import ActivationGrowth
from probe.core.prechecks.broadcast_loss import BroadcastLoss
from probe.core.prechecks.dead_units import DeadUnits
from probe.core.prechecks.gradient_depth import ExplodingGradient, VanishingGradient
from probe.core.prechecks.ignored_labels import IgnoredLabels
from probe.core.prechecks.initial_loss import InitialLoss
from probe.core.prechecks.initialisation import Initialisation
from probe.core.prechecks.not_causal import NotCausal
from probe.core.prechecks.not_log_probabilities import NotLogProbabilities
from probe.core.prechecks.output_dtype import OutputDtype
from probe.core.prechecks.precheck import Precheck
from probe.core.prechecks.replicas_apart import ReplicasApart
from probe.core.prechecks.same_batch import SameBatch
from probe.core.prechecks.same_dropout import SameDropout
from probe.core.prechecks.same_inputs import SameInputs
from probe.core.prechecks.sample_order import SampleOrder
from probe.core.prechecks.samples_mixed import SamplesMixed
from probe.core.prechecks.saturated_units import SaturatedUnits
from probe.core.prechecks.schedule_ahead import ScheduleAhead
from probe.core.prechecks.softmax_twice import SoftmaxTwice
from probe.core.prechecks.summed_loss import SummedLoss
from probe.core.prechecks.symmetric_units import SymmetricUnits
from probe.core.prechecks.undivided_accumulation import UndividedAccumulation
from probe.core.prechecks.unnormalized_inputs import UnnormalizedInputs
from probe.core.prechecks.unshifted_labels import UnshiftedLabels
from probe.core.prechecks.worker_numbers import SamplesRepeated, WorkerNumbers

__all__ = ["PRECHECKS", "Precheck"]

PRECHECKS: dict[str, type[Precheck]] = {
    check.name: check
    for check in (
        NotCausal,
        UnshiftedLabels,
        SamplesMixed,
        SoftmaxTwice,
        NotLogProbabilities,
        BroadcastLoss,
        IgnoredLabels,
        InitialLoss,
        SummedLoss,
        UndividedAccumulation,
        Initialisation,
        SymmetricUnits,
        ActivationGrowth,
        DeadUnits,
        SaturatedUnits,
        VanishingGradient,
        ExplodingGradient,
        OutputDtype,
        SameBatch,
        UnnormalizedInputs,
        WorkerNumbers,
        SamplesRepeated,
        SampleOrder,
        ScheduleAhead,
        ReplicasApart,
        SameDropout,
        SameInputs,
    )
}
"""Prechecks by name, in the order in which findings are listed. To add one, write a file with its class, and add a line
here."""
