"""Checks of the training loop: one a file, all of them on at every step."""

from __future__ import annotations

from probe.core.checks.at_the_end import RateRises, UpdatesCease
from probe.core.checks.check import Check, CheckFinding, JudgedUpdate, NotApplicable
from probe.core.checks.checkpoint_cut import CheckpointCut
from probe.core.checks.clip_after_update import ClipAfterUpdate
from probe.core.checks.clip_before_unscale import ClipBeforeUnscale
from probe.core.checks.clip_each_backward import ClipEachBackward
from probe.core.checks.clip_of_nothing import ClipOfNothing
from probe.core.checks.constant_clip import ConstantClip
from probe.core.checks.dtype_unlike import DtypeUnlike
from probe.core.checks.expert_layers import RouterCollapse, RouterUntrained
from probe.core.checks.first_numbers import AlikeUnits, BeginsWrong
from probe.core.checks.frozen_moves import FrozenMoves
from probe.core.checks.gradient_apart import GradientApart
from probe.core.checks.gradient_fades import GradientFades
from probe.core.checks.gradient_gone import GradientGone
from probe.core.checks.gradient_leap import GradientLeap
from probe.core.checks.gradient_not_finite import GradientNotFinite
from probe.core.checks.gradients_discarded import GradientsDiscarded
from probe.core.checks.graph_axes import (
    ExchangedAxes,
    InvertedMask,
    InvertedWeights,
    MixedSamples,
    OneClass,
    SoftmaxAxis,
)
from probe.core.checks.graph_inputs import (
    BatchesTwice,
    DataWritten,
    DropoutRepeats,
    MadeInForward,
    MovingGoal,
    NegatedLoss,
    NoGradientTerm,
    OneRow,
    OneSample,
    PixelsUnscaled,
    UnusedForwards,
)
from probe.core.checks.habits import (
    AddsToAnother,
    ClippedAlone,
    FirstBatch,
    GraphsKept,
    LoadedItself,
    LoadedNothing,
    MasksDrawnAnew,
    OtherSchedule,
    PartsClipped,
    PenaltyConstant,
    PlateauOfMaximum,
    SeedRepeats,
)
from probe.core.checks.held_twice import HeldTwice
from probe.core.checks.inputs_zero import InputsZero
from probe.core.checks.loss_form import (
    AllIgnored,
    DoubleSoftmax,
    ExchangedArguments,
    LogarithmMissing,
    PairwiseLoss,
    RectifiedScores,
)
from probe.core.checks.loss_leap import LossLeap
from probe.core.checks.loss_not_finite import LossNotFinite
from probe.core.checks.loss_unbounded import LossUnbounded
from probe.core.checks.no_better_than_guess import NoBetterThanGuess
from probe.core.checks.no_gradient import BeginningCut, NoGradient
from probe.core.checks.not_held import Forgotten, NotHeld
from probe.core.checks.not_registered import NotRegistered, UnusedLoss
from probe.core.checks.nothing_moves import NothingMoves
from probe.core.checks.nothing_to_apply import NothingToApply
from probe.core.checks.oddities import (
    AlwaysDrops,
    BetasExchanged,
    CopyStays,
    DecayTooLarge,
    FrozenNormDrifts,
    NormMomentum,
    OneMemory,
    RoundedAway,
    ScheduleRests,
)
from probe.core.checks.optimizer_remade import OptimizerRemade
from probe.core.checks.order_repeated import OrderRepeated
from probe.core.checks.parameter_stuck import ParameterStuck
from probe.core.checks.parameters_replaced import ParametersReplaced
from probe.core.checks.rate_zero import RateZero
from probe.core.checks.rates_part import RatesPart
from probe.core.checks.root_not_trained import EvaluatedInTraining, RootNotTrained
from probe.core.checks.scaled_update import ScaledUpdate
from probe.core.checks.scaling_fails import ScalingFails
from probe.core.checks.schedule_restarted import ScheduleRestarted
from probe.core.checks.schedule_returns import ScheduleReturns
from probe.core.checks.stale_gradient import StaleGradient
from probe.core.checks.state_restarted import StateRestarted
from probe.core.checks.step_scale import StepScale
from probe.core.checks.tie_broken import TieBroken
from probe.core.checks.token_losses import CopiedLabels, LateLabels, PaddingLearnt, PaddingRead, ReadsAhead
from probe.core.checks.turning_unstable import TurningUnstable
from probe.core.checks.undivided_accumulation import AddedMeans, LossTimesRanks
from probe.core.checks.unfrozen_not_held import UnfrozenNotHeld
from probe.core.checks.unreduced_accumulation import UnreducedAccumulation
from probe.core.checks.update_without_backward import UpdateWithoutBackward
from probe.core.checks.written_between_updates import WrittenBetweenUpdates

__all__ = ["CHECKS", "Check", "CheckFinding", "JudgedUpdate", "NotApplicable"]

CHECKS: dict[str, type[Check]] = {
    "loss-not-finite": LossNotFinite,
    "gradient-not-finite": GradientNotFinite,
    "scaling-fails": ScalingFails,
    "nothing-to-apply": NothingToApply,
    "nothing-moves": NothingMoves,
    "parameters-replaced": ParametersReplaced,
    "stale-gradient": StaleGradient,
    "update-without-backward": UpdateWithoutBackward,
    "gradients-discarded": GradientsDiscarded,
    "undivided-accumulation": AddedMeans,
    "loss-times-ranks": LossTimesRanks,
    "clip-before-unscale": ClipBeforeUnscale,
    "clip-after-update": ClipAfterUpdate,
    "clip-of-nothing": ClipOfNothing,
    "clip-each-backward": ClipEachBackward,
    "scaled-update": ScaledUpdate,
    "not-registered": NotRegistered,
    "loss-unused": UnusedLoss,
    "unreduced-accumulation": UnreducedAccumulation,
    "parameter-stuck": ParameterStuck,
    "frozen-moves": FrozenMoves,
    "parameters-forgotten": Forgotten,
    "beginning-cut": BeginningCut,
    "rates-part": RatesPart,
    "step-out-of-scale": StepScale,
    "frozen-norm-drifts": FrozenNormDrifts,
    "norm-momentum": NormMomentum,
    "one-memory": OneMemory,
    "betas-exchanged": BetasExchanged,
    "decay-too-large": DecayTooLarge,
    "copy-stays": CopyStays,
    "always-drops": AlwaysDrops,
    "rounded-away": RoundedAway,
    "tie-broken": TieBroken,
    "written-between-updates": WrittenBetweenUpdates,
    "root-not-trained": RootNotTrained,
    "evaluated-in-training": EvaluatedInTraining,
    "rate-zero": RateZero,
    "schedule-ahead": ScheduleReturns,
    "schedule-of-another": OtherSchedule,
    "schedule-rests": ScheduleRests,
    "warm-up-unfinished": RateRises,
    "schedule-restarted": ScheduleRestarted,
    "plateau-of-maximum": PlateauOfMaximum,
    "unfrozen-not-held": UnfrozenNotHeld,
    "state-restarted": StateRestarted,
    "optimizer-remade": OptimizerRemade,
    "gradient-gone": GradientGone,
    "inputs-zero": InputsZero,
    "no-better-than-guess": NoBetterThanGuess,
    "loss-leap": LossLeap,
    "loss-unbounded": LossUnbounded,
    "gradient-leap": GradientLeap,
    "turning-unstable": TurningUnstable,
    "gradient-apart": GradientApart,
    "gradient-fades": GradientFades,
    "checkpoint-cut": CheckpointCut,
    "checkpoint-random": MasksDrawnAnew,
    "clip-of-parts": PartsClipped,
    "clip-before-reduction": ClippedAlone,
    "gradients-of-another": AddsToAnother,
    "graphs-kept": GraphsKept,
    "penalty-constant": PenaltyConstant,
    "seed-repeats": SeedRepeats,
    "loads-itself": LoadedItself,
    "loads-nothing": LoadedNothing,
    "first-batch-only": FirstBatch,
    "initialisation": BeginsWrong,
    "symmetric-units": AlikeUnits,
    "router-untrained": RouterUntrained,
    "router-collapse": RouterCollapse,
    "softmax-twice": DoubleSoftmax,
    "not-log-probabilities": LogarithmMissing,
    "broadcast-loss": PairwiseLoss,
    "arguments-exchanged": ExchangedArguments,
    "ignored-labels": AllIgnored,
    "not-causal": ReadsAhead,
    "unshifted-labels": CopiedLabels,
    "labels-shifted-twice": LateLabels,
    "padding-counted": PaddingLearnt,
    "padding-read": PaddingRead,
    "data-written": DataWritten,
    "loss-negated": NegatedLoss,
    "rectified-scores": RectifiedScores,
    "made-in-forward": MadeInForward,
    "one-row": OneRow,
    "norm-of-one-sample": OneSample,
    "pixels-unscaled": PixelsUnscaled,
    "forwards-unused": UnusedForwards,
    "updates-cease": UpdatesCease,
    "dropout-repeats": DropoutRepeats,
    "samples-repeated": BatchesTwice,
    "term-without-gradient": NoGradientTerm,
    "goal-not-detached": MovingGoal,
    "same-order": OrderRepeated,
    "one-class-batches": OneClass,
    "class-weights": InvertedWeights,
    "axes-exchanged": ExchangedAxes,
    "samples-as-sequence": MixedSamples,
    "mask-inverted": InvertedMask,
    "softmax-axis": SoftmaxAxis,
    "no-gradient": NoGradient,
    "not-held": NotHeld,
    "held-twice": HeldTwice,
    "dtype-unlike": DtypeUnlike,
    "constant-clip": ConstantClip,
}
"""Checks by name, in the order in which the findings with one update are listed. To add one, write a file with its
class, and add a line here."""
