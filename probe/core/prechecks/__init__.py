"""Prechecks: judges of the first few updates of a program, for ``probe check``; a file for each kind of facts."""

from __future__ import annotations

from probe.core.prechecks.causality import NotCausal, SamplesMixed, UnshiftedLabels
from probe.core.prechecks.inputs import SameBatch, SameDropout, SameInputs, UnnormalizedInputs
from probe.core.prechecks.loaders import SampleOrder, SamplesRepeated, WorkerNumbers
from probe.core.prechecks.losses import (
    BroadcastLoss,
    IgnoredLabels,
    InitialLoss,
    NotLogProbabilities,
    SoftmaxTwice,
    SummedLoss,
    UndividedAccumulation,
)
from probe.core.prechecks.outputs import ActivationGrowth, DeadUnits, OutputDtype, SaturatedUnits
from probe.core.prechecks.parameters import (
    ExplodingGradient,
    Initialisation,
    ReplicasApart,
    SymmetricUnits,
    VanishingGradient,
)
from probe.core.prechecks.precheck import Precheck
from probe.core.prechecks.schedules import ScheduleAhead

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
"""Prechecks by name, in the order in which findings are listed. To add one, write its class, and add a line here."""
