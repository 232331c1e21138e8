"""The `alert` section of the configuration: which rules judge the values, and with what arguments."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from difflib import SequenceMatcher
from importlib.metadata import entry_points
from typing import Annotated, Any

from pydantic import AfterValidator, Field, PlainValidator, ValidationError, ValidationInfo, field_validator
from pydantic_core import PydanticCustomError

from probe.core.config.errors import LONGEST_NAME, nearest
from probe.core.fields import (
    Flag,
    Form,
    Integer,
    Names,
    Number,
    Section,
    Text,
    Threshold,
    Variants,
    not_empty,
    wrong,
)
from probe.core.moments import OPS
from probe.core.naming import FEATURES

RULES_GROUP = "probe.rules"
"""The entry point group by which third parties add rules."""


STATE_KINDS = (
    *("exp_avg", "exp_avg_sq", "max_exp_avg_sq", "momentum_buffer", "square_avg", "grad_avg", "acc_delta", "sum"),
    *("exp_inf", "ax", "mu", "eta", "prev", "step_size", "row_var", "col_var", "variance"),
    *("exp_avg_sq_row", "exp_avg_sq_col"),
)
"""Kinds of state that the optimizers of PyTorch and MindSpore keep; others may keep more."""
MISSPELT = 0.85
"""Likeness, 0 to 1, from which on a name is taken for a misspelling of another."""
_Ops = Annotated[tuple[Annotated[Text, Names(tuple(OPS))], ...], AfterValidator(not_empty)]


def _not_more_than_window(warm_up: int, info: ValidationInfo) -> int:
    window = info.data.get("window", warm_up)
    if warm_up > window:
        raise wrong(f"an integer 2..{window} (not more than window; 10 if missing)")
    return warm_up


class TurbulenceArgs(Section):
    """Deviation from the history mean."""

    threshold: Threshold
    """Relative deviation from the history mean that is reported, as a fraction: 0.5 means more than half above it.
    Judges the ops norm and mean."""
    both_sides: Flag = False
    """Whether values below (1 - threshold) times the history mean are reported too."""


class NanArgs(Section):
    """NaN, infinity and excess."""

    threshold: Threshold | None = None
    """Magnitude above which a value is reported, in the unit of the op. NaN and infinity are reported in any case."""


class CommNanArgs(Section):
    """NaN and infinity given to other ranks."""


class SpikeArgs(Section):
    """Robust deviation from the recent past."""

    window: Integer = Field(32, ge=4, le=10_000)
    """Number of latest samples of each value that its median and spread are taken from."""
    warm_up: Integer = Field(10, ge=2, le=10_000, validate_default=True)
    """Number of samples of a value before it is judged. Not more than window."""
    threshold: Number = Field(5.0, gt=0)
    """Robust z-score that is reported: the distance from the median in units of 1.4826 times the median absolute
    deviation, both of the logarithm of the magnitude."""
    min_ratio: Number = Field(30.0, gt=1)
    """Factor by which a magnitude must differ from the median as well, upwards or downwards, so that changes which
    healthy runs show do not alarm. Gradients, extremes (min and max), which hang on one element, and second moments
    (exp_avg_sq, ...), which are made of squares, must differ by the square of it."""
    cool_down: Integer = Field(10, ge=0)
    """Number of samples after a report during which the same value is not reported again."""
    ops: _Ops = ("norm", "min", "max")
    """Ops that are judged, of those that are collected. Means swing a hundredfold in healthy runs, so they are left
    out."""

    @field_validator("warm_up")
    @classmethod
    def _within_window(cls, warm_up: int, info: ValidationInfo) -> int:
        return _not_more_than_window(warm_up, info)


class VanishArgs(Section):
    """Gradients that have become vanishingly small."""

    window: Integer = Field(32, ge=4, le=10_000)
    """Number of latest samples of each gradient's norm that its median is taken from."""
    warm_up: Integer = Field(10, ge=2, le=10_000, validate_default=True)
    """Number of samples of a gradient before it is judged. Not more than window."""
    min_ratio: Number = Field(1e3, gt=1)
    """Factor by which a norm must be below its median, and by which it must have fallen more than that gradient of the
    same kind that has kept most of its size. A norm of exactly 0 has fallen by any factor."""
    steps: Integer = Field(5, ge=1, le=10_000)
    """Number of samples in a row in which a gradient must be that small before it is reported."""

    @field_validator("warm_up")
    @classmethod
    def _within_window(cls, warm_up: int, info: ValidationInfo) -> int:
        return _not_more_than_window(warm_up, info)


class DeadArgs(Section):
    """Outputs of modules that are zero. Needs the op zeros and xy_distribution."""

    limit: Number = Field(0.999, gt=0, le=1)
    """Fraction of an output's elements below eps from which it counts as zero."""
    steps: Integer = Field(5, ge=1, le=10_000)
    """Number of samples in a row that must be zero before an output is reported, and of those that must have been
    otherwise before. An output of which every element is zero from its first sample on is reported as well."""


class FrozenArgs(Section):
    """Parameters that get gradients and do not move. Needs param_distribution and wg_distribution; of ops, min or max,
    and one of norm, mean and std."""

    steps: Integer = Field(5, ge=1, le=10_000)
    """Number of sampled steps in a row in which a parameter must stand still, while others move, before it is
    reported."""


class ReplicaArgs(Section):
    """Data-parallel replicas whose parameters differ. Needs global_stats, and param_distribution or mv_distribution."""


class ThresholdArgs(Section):
    """Limits of the user's own. At least one of above and below is needed."""

    above: Number | None = None
    """Value, in the unit of the op and with its sign, above which a value is reported."""
    below: Number | None = Field(None, validate_default=True)
    """Value below which a value is reported."""
    ops: _Ops = ("norm",)
    """Ops that are judged, of those that are collected."""
    signals: tuple[Text, ...] = ()
    """Signals that are judged, such as actv, grad_reduced or exp_avg: what CSV files are called by. Empty: all."""
    names: tuple[Text, ...] = ()
    """Patterns of the rows that are judged, by their names in CSV files: `*` stands for anything, `?` for a character,
    as in `layers.*.attention.output`. Empty: all."""

    @field_validator("below")
    @classmethod
    def _one_at_least(cls, below: float | None, info: ValidationInfo) -> float | None:
        if below is None and "above" in info.data and info.data["above"] is None:
            raise wrong("a number, here or as above")
        return below


RULE_ARGS: dict[str, type[Section]] = {
    "AnomalyTurbulence": TurbulenceArgs,
    "AnomalyNan": NanArgs,
    "AnomalySpike": SpikeArgs,
    "AnomalyCommNan": CommNanArgs,
    "AnomalyVanish": VanishArgs,
    "AnomalyDead": DeadArgs,
    "AnomalyFrozen": FrozenArgs,
    "AnomalyReplica": ReplicaArgs,
    "AnomalyThreshold": ThresholdArgs,
}
"""The rules that come with probe, and the model of what each takes."""


DEFAULT_RULES = ("AnomalyNan", "AnomalySpike", "AnomalyVanish", "AnomalyDead", "AnomalyFrozen")
"""What judges where a configuration names no rules: each had no false alarm in healthy runs of many kinds."""


def _known_rule(name: str) -> str:
    if name not in RULE_ARGS:
        Names((*RULE_ARGS, *(point.name for point in entry_points(group=RULES_GROUP)))).check(name)
    return name


def _args_of_rule(value: object, info: ValidationInfo) -> Any:
    """The model of the rule named beside it; a third party's rule gets a plain dict."""
    model = RULE_ARGS.get(info.data.get("rule_name", ""))
    if model is None:
        if isinstance(value, Mapping):
            return dict(value)
        raise wrong("a mapping")
    try:
        return model.model_validate(value)
    except ValidationError as error:
        raise PydanticCustomError("inside", "see error", {"model": model, "error": error}) from None


_RULE_NAME = Form("name", ", ".join(RULE_ARGS), f"one of {', '.join(RULE_ARGS)}")


class Rule(Section):
    """One alert rule."""

    rule_name: Annotated[Text, AfterValidator(_known_rule), _RULE_NAME]
    """Name of the rule. AnomalyTurbulence compares with the history mean, AnomalyNan finds NaN, infinity and too large
    values, AnomalySpike finds leaps against the recent past, AnomalyCommNan finds the rank from which NaN or infinity
    went to others (it needs cc_distribution), AnomalyVanish finds gradients that have become
    vanishingly small, AnomalyDead outputs that are zero, AnomalyFrozen parameters that do not move, AnomalyReplica
    data-parallel replicas whose parameters differ, AnomalyThreshold what is beyond limits of the user's own. Other
    names are those of installed packages with an entry
    point in the group `probe.rules`."""
    args: Annotated[Any, PlainValidator(_args_of_rule), Variants(RULE_ARGS)] = Field({}, validate_default=True)
    """What the rule takes. A third party's rule gets this mapping as it is."""


class Alert(Section):
    """Automatic alerts."""

    rules: tuple[Rule, ...] = tuple(Rule(rule_name=name, args={}) for name in DEFAULT_RULES)
    """Rules that judge every collected value. For one value the first rule that matches is reported. A rule
    judges only the signals and ops that are collected. Missing: AnomalyNan, AnomalySpike, AnomalyVanish, AnomalyDead
    and AnomalyFrozen with their defaults. An empty list: none."""
    dump: Flag = False
    """Whether findings are also written to `anomaly_detected/rank{rank}/anomaly.json` in the output directory."""


def _has(settings: Any, *ops: str) -> bool:
    return not {*ops}.isdisjoint(settings.statistics)


Need = tuple[Callable[[Any], bool], str]
"""Whether settings have something, and how users switch it on."""

NEEDS: dict[str, tuple[Need, ...]] = {
    "AnomalyTurbulence": ((lambda s: _has(s, "norm", "mean"), "one of the ops norm and mean"),),
    "AnomalyCommNan": ((lambda s: s.cc_distribution.enable, "cc_distribution.enable"),),
    "AnomalyVanish": (
        (lambda s: s.wg_distribution or s.xy_distribution, "wg_distribution or xy_distribution"),
        (lambda s: _has(s, "norm"), "the op norm"),
    ),
    "AnomalyDead": (
        (lambda s: s.xy_distribution and not s.backward_only, "xy_distribution without backward_only"),
        (lambda s: _has(s, "zeros"), "the op zeros"),
    ),
    "AnomalyFrozen": (
        (lambda s: s.param_distribution and s.wg_distribution, "param_distribution and wg_distribution"),
        (lambda s: _has(s, "min", "max"), "the op min or max"),
        (lambda s: _has(s, "norm", "mean", "std"), "one of the ops norm, mean and std"),
    ),
    "AnomalyReplica": (
        (lambda s: s.global_stats, "global_stats, or `probe anomalies` afterwards"),
        (lambda s: s.param_distribution or s.mv_distribution, "param_distribution or mv_distribution"),
    ),
}
"""What the rules that judge one kind of data only cannot do without: whether settings have it, and how users switch it
on."""


def _xy(without: str) -> Need:
    return lambda s: s.xy_distribution and not getattr(s, without), f"xy_distribution without {without}"


def _feature(hook: str) -> Need:
    return lambda s: s.recording_l2_features and getattr(s.l2_targets, hook) is not None, f"l2_targets.{hook}"


SIGNAL_NEEDS: dict[str, Need] = {
    "actv": _xy("backward_only"),
    "actv_grad": _xy("forward_only"),
    **dict.fromkeys(("grad_unreduced", "grad_reduced"), (lambda s: s.wg_distribution, "wg_distribution")),
    **dict.fromkeys(("param_origin", "param_updated"), (lambda s: s.param_distribution, "param_distribution")),
    **dict.fromkeys(("update", "ratio"), (lambda s: s.ur_distribution, "ur_distribution")),
    "mg_direction": (lambda s: s.mg_direction, "mg_direction"),
    "other": (lambda s: s.cc_distribution.enable, "cc_distribution.enable"),
    **{hook: _feature(hook) for hook in FEATURES},
}
"""What every fixed signal cannot do without."""
_OF_STATE: Need = (lambda s: s.mv_distribution, "mv_distribution")


def contradictions(settings: Any) -> Iterator[tuple[tuple[int | str, ...], str]]:
    """Names of signals that do not exist: the path of each, and what is wrong.

    An optimizer may keep state of any name: with mv_distribution only those are refused that are nearly a known one.
    """
    known = (*SIGNAL_NEEDS, *STATE_KINDS)
    any_state = any(_OF_STATE[0](each) for each in _with_armed(settings))
    for number, rule in enumerate(settings.alert.rules):
        for position, signal in enumerate(getattr(rule.args, "signals", ())):
            close = nearest(signal, known)
            alike = close is not None and SequenceMatcher(None, signal.casefold(), close).ratio() > MISSPELT
            if signal not in known and (alike or not any_state):
                hint = f"; did you mean {close}?" if close else "; name one of these, or switch on mv_distribution"
                sentence = f"expected one of {', '.join(known)}, got {json.dumps(signal[:LONGEST_NAME])}{hint}"
                yield ("alert", "rules", number, "args", "signals", position), sentence


def unjudged(settings: Any) -> Iterator[str]:
    """The rules that a configuration names but gives nothing, or not all, to judge, each with what it lacks."""
    if "rules" not in settings.alert.model_fields_set:
        return  # those that judge by default take what there is
    both = _with_armed(settings)
    for rule in settings.alert.rules:
        missing = [how for has, how in NEEDS.get(rule.rule_name, ()) if not any(map(has, both))]
        ops, signals = _unmet_ops(rule.args, settings), _unmet_signals(rule.args, both)
        if ops and len(ops) == len(rule.args.ops):
            missing.append(f"one of the ops {', '.join(ops)}" if len(ops) > 1 else f"the op {ops[0]}")
        if signals and len(signals) == len(rule.args.signals):
            missing += dict.fromkeys(signals.values())
        if missing:
            yield f"the rule {rule.rule_name} judges nothing: it needs {', and '.join(missing)}"
        elif lacking := [*(f"the op {op}" for op in ops if "ops" in rule.args.model_fields_set), *signals.values()]:
            yield f"the rule {rule.rule_name} does not judge all that it names: it needs {', and '.join(lacking)}"


def _with_armed(settings: Any) -> tuple[Any, ...]:
    """The settings, and what they become when on_anomaly looks deeper."""
    if settings.on_anomaly is None:
        return (settings,)
    arm = settings.on_anomaly.arm
    return settings, settings.model_copy(update={name: True for name, on in arm if on is True})


def _unmet_ops(args: Any, settings: Any) -> list[str]:
    return [op for op in getattr(args, "ops", ()) if op not in settings.statistics]


def _unmet_signals(args: Any, both: tuple[Any, ...]) -> dict[str, str]:
    """The signals that a rule names and nothing collects, each with what it needs."""
    needs = {signal: SIGNAL_NEEDS.get(signal, _OF_STATE) for signal in getattr(args, "signals", ())}
    return {signal: f"{how} (for {signal})" for signal, (has, how) in needs.items() if not any(map(has, both))}
