"""Lint of a configuration: valid keys that have no effect in this combination."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Sequence
from difflib import SequenceMatcher
from typing import Any

from probe.core.config.errors import LONGEST_NAME, nearest, shown
from probe.core.config.schema import ALWAYS_WRITTEN, Settings
from probe.core.histogram import HISTOGRAM
from probe.core.language import Message, joined, message
from probe.core.messages import plural
from probe.core.moments import OPS
from probe.core.naming import COLUMNS, FEATURES, RELATIVE_UPDATE, RUN
from probe.core.rules import about
from probe.core.rules.about import Need
from probe.core.rules.threshold import OF_RUN, OF_WHOLE_TENSORS
from probe.core.storage.location import MARK

STATE_KINDS = (
    *("exp_avg", "exp_avg_sq", "max_exp_avg_sq", "momentum_buffer", "square_avg", "grad_avg", "acc_delta", "sum"),
    *("exp_inf", "ax", "mu", "eta", "prev", "step_size", "row_var", "col_var", "variance"),
    *("exp_avg_sq_row", "exp_avg_sq_col"),
)
"""Kinds of state that the optimizers of PyTorch and MindSpore keep; others may keep more."""
MISSPELT = 0.85
"""Likeness, 0 to 1, from which on a name is taken for a misspelling of another."""


def in_vain(settings: Settings) -> Iterator[str]:
    """Yield a sentence for each setting that is in vain whatever the mode, or contradicts another."""
    if settings.forward_only and settings.backward_only:
        yield message("forward_only and backward_only are both true: no activation and no gradient of one is collected")
    if not set(settings.ops) - set(ALWAYS_WRITTEN):
        yield message("ops names nothing to compute: norm is collected")
    if settings.cc_distribution.cc_log_only and not settings.cc_distribution.enable:
        yield message("cc_distribution.cc_log_only has no effect without cc_distribution.enable")
    if "$" in (settings.output_dir or ""):
        text = "output_dir: variables are not replaced: {folder} is the name of a folder; write its path"
        yield message(text, folder=settings.output_dir)
    if settings.stack_info and "csv" not in settings.formats:
        yield message("stack_info has no effect without the format csv")
    if HISTOGRAM in settings.ops and {"csv", "parquet", "tensorboard"}.isdisjoint(settings.formats):
        yield message(
            "the op histogram is written in the formats csv, parquet and tensorboard alone; quantiles are in all"
        )
    named = settings.l2_targets.linear_hook is not None or any(map(bool, settings.l2_targets.model_dump().values()))
    if settings.recording_l2_features and not named:
        yield message("recording_l2_features has no effect: l2_targets names no module")
    if named and not settings.recording_l2_features:
        yield message("l2_targets has no effect without recording_l2_features")
    yield from unjudged(settings)


def without_effect(settings: Settings, ranks: int = 0) -> Iterator[str]:
    """Yield a sentence for each key without effect beside the others, whatever the model and its optimizers.

    Args:
        ranks: number of ranks; 0 if it is not known.
    """
    if ranks and settings.module_ranks and min(settings.module_ranks) >= ranks:
        yield (
            f"module_ranks: nothing is collected: expected some of the ranks 0 to {ranks - 1}, "
            f"got {list(settings.module_ranks)}"
        )
    if settings.print_struct:
        return  # nothing else is collected
    yield from _without_rules(settings)
    yield from _without_switch(settings)
    if settings.ndigits is not None and "csv" not in settings.formats:
        yield message("ndigits has no effect without the format csv")
    if settings.step_count_per_record != 1 and {"csv", "parquet"}.isdisjoint(settings.formats):
        yield message("step_count_per_record has no effect without the format csv or parquet")
    if "eps" in settings.model_fields_set and "zeros" not in settings.statistics:
        yield message("eps has no effect without the op zeros")
    if "sa_order" in settings.model_fields_set and not settings.l2_targets.attention_hook:
        yield message("sa_order has no effect without l2_targets.attention_hook")


MOST_FILES = 1_000_000
"""Files of a run from which on file systems and readers take long to list them."""


def number_of_files(settings: Settings, ranks: int, steps: int) -> int:
    """Return about how many files of signals a run writes.

    Args:
        ranks: ranks of the run; only those in ``module_ranks`` count if it names any.
        steps: steps of the run.
    """
    formats = len({"csv", "parquet"} & set(settings.formats))
    needs = [need for signal, (need, _) in SIGNAL_NEEDS.items() if signal != RUN]
    signals = sum(need(settings) for need in needs) + 2 * _OF_STATE[0](settings)
    writing = len([rank for rank in settings.module_ranks if rank < ranks]) if settings.module_ranks else ranks
    collected = min(settings.collect_times, -(-max(0, steps - settings.start_step) // settings.step_interval))
    return formats * signals * writing * min(collected, -(-steps // settings.step_count_per_record))


def many_files(settings: Settings, ranks: int, steps: int) -> Iterator[str]:
    """Yield a sentence if a run of so many ranks and steps writes more files than is sensible."""
    number = number_of_files(settings, ranks, steps)
    if number <= MOST_FILES:
        return
    enough = settings.model_copy(update={"step_count_per_record": steps})
    advice = message("collect on fewer ranks (module_ranks) or fewer signals")
    for count in (10, 100, 1000, 10_000, 100_000):
        if number_of_files(settings.model_copy(update={"step_count_per_record": count}), ranks, steps) <= MOST_FILES:
            advice = message("set step_count_per_record to {count} or more", count=count)
            break
    else:
        if number_of_files(enough, ranks, steps) <= MOST_FILES:
            advice = message(
                "collect on fewer ranks (module_ranks) or fewer signals, or set a larger step_count_per_record"
            )
    yield message(
        "{ranks:,} ranks and {steps:,} steps make about {number:,} files, more than {most:,}: {advice}",
        ranks=ranks,
        steps=steps,
        number=number,
        most=MOST_FILES,
        advice=advice,
    )


def _without_rules(settings: Settings) -> Iterator[str]:
    if settings.alert.rules:
        return
    if settings.history:
        yield message("history writes nothing unless training ends by an exception: alert.rules is empty; name rules")
    if settings.on_anomaly is not None:
        yield message("on_anomaly has no effect without rules that find something: alert.rules is empty; name rules")
    if settings.alert.dump:
        yield message("alert.dump has no effect without rules that find something: alert.rules is empty; name rules")


def _without_switch(settings: Settings) -> Iterator[str]:
    """Yield sentences about keys that refine a signal that is not switched on."""
    arm = settings.on_anomaly.arm if settings.on_anomaly is not None else None
    if settings.monitor_mbs_grad and not (settings.wg_distribution or (arm and arm.wg_distribution)):
        yield message("monitor_mbs_grad has no effect without wg_distribution")
    if not (settings.xy_distribution or (arm and arm.xy_distribution)):
        refined = [key for key in ("all_xy", "forward_only", "backward_only") if getattr(settings, key)]
        placed = next((name for name, target in settings.targets.items() if target.model_fields_set), None)
        if refined:
            text = plural(
                len(refined),
                "{keys} has no effect without xy_distribution",
                "{keys} have no effect without xy_distribution",
            )
            yield message(text, keys=joined(" and ", refined))
        if placed is not None:
            text = "the element selectors in targets (as of {name}) have no effect without xy_distribution"
            yield message(text, name=placed)
    collectives = settings.cc_distribution
    for key in ("cc_codeline", "cc_pre_hook"):
        if getattr(collectives, key) and not collectives.enable:
            yield message("cc_distribution.{key} has no effect without cc_distribution.enable", key=key)


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
    RELATIVE_UPDATE: (lambda s: s.relative_update, "relative_update"),
    "other": (lambda s: s.cc_distribution.enable, "cc_distribution.enable"),
    **{hook: _feature(hook) for hook in FEATURES},
    "run": (lambda s: s.run.enable is not False, "run.enable"),
}
"""Setting that every fixed signal needs."""
_OF_STATE: Need = (lambda s: s.mv_distribution, "mv_distribution")


def contradictions(settings: Settings) -> Iterator[tuple[tuple[int | str, ...], str]]:
    """Yield the path of an output directory that is none, and of signal names that do not exist, each with a sentence.

    An optimizer may keep state of any name: with mv_distribution, only names close to a known one are refused.
    """
    if MARK in (settings.output_dir or ""):
        text = "expected the path of a folder, got a URL; write to a folder, and copy it there afterwards"
        yield ("output_dir",), message(text)
    elif settings.output_dir and re.search(r"[\t\n\r\f\b]", settings.output_dir):
        text = "expected the path of a folder, got {text}, with a control character; write / or two \\ in place of one"
        yield ("output_dir",), message(text, text=shown(settings.output_dir))
    known = (*SIGNAL_NEEDS, *STATE_KINDS)
    any_state = any(_OF_STATE[0](each) for each in _with_armed(settings))
    for number, rule in enumerate(settings.alert.rules):
        for position, signal in enumerate(getattr(rule.args, "signals", ())):
            close = nearest(signal, known)
            alike = close is not None and SequenceMatcher(None, signal.casefold(), close).ratio() > MISSPELT
            if signal not in known and (alike or not any_state):
                yield ("alert", "rules", number, "args", "signals", position), _unknown_signal(signal, known, close)


def _unknown_signal(signal: str, known: Sequence[str], close: str | None) -> Message:
    switch = message("; name one of these, or switch on mv_distribution")
    return message(
        "expected {expected}, got {value}{hint}",
        expected=message("one of {names}", names=", ".join(known)),
        value=json.dumps(signal[:LONGEST_NAME]),
        hint=message("; did you mean {name}?", name=close) if close else switch,
    )


def unjudged(settings: Settings) -> Iterator[str]:
    """Yield a sentence for each named rule that has nothing, or not all that it names, to judge, with its needs."""
    if "rules" not in settings.alert.model_fields_set:
        return  # default rules judge whatever is collected
    both = _with_armed(settings)
    for rule in settings.alert.rules:
        missing = [how for has, how in about(rule.rule_name).needs if not any(map(has, both))]
        ops = _unmet_ops(rule.args, settings, both)
        signals = _unmet_signals(rule.args, both)
        if ops and len(ops) == len(rule.args.ops):
            several = len(ops) > 1 and {*ops} <= {*OPS}
            missing += [f"one of the ops {', '.join(ops)}"] if several else dict.fromkeys(ops.values())
        if signals and len(signals) == len(rule.args.signals):
            missing += dict.fromkeys(signals.values())
        if missing:
            needs = joined(", and ", missing)
            yield message("the rule {name} judges nothing: it needs {needs}", name=rule.rule_name, needs=needs)
        elif lacking := [*(how for how in ops.values() if "ops" in rule.args.model_fields_set), *signals.values()]:
            text = "the rule {name} does not judge all that it names: it needs {needs}"
            yield message(text, name=rule.rule_name, needs=joined(", and ", lacking))


def _unmet_ops(args: Any, settings: Settings, both: Sequence[Settings]) -> dict[str, str]:
    """Ops, and columns that are none, that a rule names and that are not recorded, each with its need."""
    unmet = {}
    for op in getattr(args, "ops", ()):
        base = op.removeprefix("global_")
        if base in OPS and base not in settings.statistics:
            unmet[op] = f"the op {base}"
        elif op in OF_WHOLE_TENSORS and not settings.global_stats:
            unmet[op] = f"global_stats (for {op})"
        elif op not in OPS and op not in OF_WHOLE_TENSORS:
            signal = RUN if op in OF_RUN else next(signal for signal, columns in COLUMNS.items() if op in columns)
            has, how = SIGNAL_NEEDS[signal]
            unmet |= {} if any(map(has, both)) else {op: f"{how} (for {op})"}
    return unmet


def _with_armed(settings: Settings) -> tuple[Settings, ...]:
    """Settings, and those with the additions of on_anomaly."""
    if settings.on_anomaly is None:
        return (settings,)
    arm = settings.on_anomaly.arm
    return settings, settings.model_copy(update={name: True for name, on in arm if on is True})


def _unmet_signals(args: Any, both: tuple[Settings, ...]) -> dict[str, str]:
    """Signals that a rule names and that are not collected, each with its need."""
    needs = {signal: SIGNAL_NEEDS.get(signal, _OF_STATE) for signal in getattr(args, "signals", ())}
    return {signal: f"{how} (for {signal})" for signal, (has, how) in needs.items() if not any(map(has, both))}
