"""The `alert` section of the configuration: which rules judge the values, and with what arguments."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from difflib import SequenceMatcher
from importlib.metadata import entry_points
from typing import Annotated, Any

from pydantic import AfterValidator, Field, PlainValidator, ValidationError, ValidationInfo
from pydantic_core import PydanticCustomError

from probe.core.config.errors import LONGEST_NAME, nearest
from probe.core.fields import (
    Flag,
    Form,
    Names,
    Section,
    Text,
    Variants,
    wrong,
)
from probe.core.naming import FEATURES
from probe.core.rules import GROUP, RULES, about
from probe.core.rules.about import Need

STATE_KINDS = (
    *("exp_avg", "exp_avg_sq", "max_exp_avg_sq", "momentum_buffer", "square_avg", "grad_avg", "acc_delta", "sum"),
    *("exp_inf", "ax", "mu", "eta", "prev", "step_size", "row_var", "col_var", "variance"),
    *("exp_avg_sq_row", "exp_avg_sq_col"),
)
"""Kinds of state that the optimizers of PyTorch and MindSpore keep; others may keep more."""
MISSPELT = 0.85
"""Likeness, 0 to 1, from which on a name is taken for a misspelling of another."""

RULE_ARGS: dict[str, type[Section]] = {name: rule.Args for name, rule in RULES.items()}
"""The rules that come with probe, and the model of what each takes."""
DEFAULT_RULES = tuple(name for name, rule in RULES.items() if rule.by_default)
"""What judges where a configuration names no rules: each had no false alarm in healthy runs of many kinds."""


def _known_rule(name: str) -> str:
    if name not in RULE_ARGS:
        Names((*RULE_ARGS, *(point.name for point in entry_points(group=GROUP)))).check(name)
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

    rule_name: Annotated[Text, AfterValidator(_known_rule), _RULE_NAME] = Field(
        description=f"Name of the rule. {', '.join(f'{name} {rule.finds}' for name, rule in RULES.items())}. Other "
        "names are those of installed packages with an entry point in the group `probe.rules`."
    )
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
        missing = [how for has, how in about(rule.rule_name).needs if not any(map(has, both))]
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
