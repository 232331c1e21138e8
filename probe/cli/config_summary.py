"""Summaries of configurations for people; those of other monitors are read by their own readers."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

from probe.core.config.foreign import INTERNEVO, MONITOR_V2, TRANSFORMERS, ForeignMonitor
from probe.core.config.parse import read
from probe.core.config.schema import Settings
from probe.core.internevo.configuration import ALERT, ROOT, InternEvoConfigError, read_monitor_config
from probe.core.language import joined, message
from probe.core.messages import counted
from probe.core.monitor_v2.configuration import ModuleSection, read_monitor_v2
from probe.core.transformers.configuration import read_configuration

MOST_NAMED = 20
"""Most targets that a summary names."""
Summary = Iterator[tuple[str, str]]
"""Pairs of a heading and a text."""


HEADINGS = ("records", "of", "steps", "ends", "events in", "directory", "alerts", "heartbeats", "collects", "numbers",
            "ranks", "writes", "sends to")  # fmt: skip
"""Headings of summaries."""
_ADVICE = {
    False: message("nothing: set monitor_on of monitor_config to True, or list MFLossMonitor in callbacks"),
    True: message(
        "nothing: name places, log or tensorboard, by keys of monitor_config such as local_norm_format, "
        "or list MFLossMonitor in callbacks"
    ),
}


def _of_transformers(file: Path) -> Summary:
    config = read_configuration(file)
    state, loss = config.state, config.loss
    places = {key.removesuffix("_format"): where for key, where in state.formats.items() if where}
    recorded = [f"{name} ({', '.join(where)})" for name, where in places.items()] if state.monitor_on else []
    recorded += ["throughput_linearity"] if state.monitor_on and state.throughput_baseline is not None else []
    if loss is not None:
        recorded.append(message("loss, learning-rate, global norm and throughput (MFLossMonitor)"))
    yield "records", joined(", ", recorded) if recorded else _ADVICE[state.monitor_on]
    if state.monitor_on:
        chosen = ", ".join(state.target)
        named = (
            "parameters without {names} in their names" if state.invert else "parameters with {names} in their names"
        )
        yield "of", message(named, names=chosen)
        yield "steps", message("every {interval}", interval=state.step_interval)
    ends = [
        *([message("at spikes of the global norm")] if state.check_for_global_norm else []),
        *([message("at NaN in loss and global norm")] if config.checks_nan else []),
        *([message("at many spikes in succession")] if config.skips_spikes and state.monitor_on else []),
        *([message("after the first step (print_struct)")] if state.print_struct else []),
    ]
    if ends:
        yield "ends", joined(message(" and "), ends)
    yield "events in", message("no files") if config.tensorboard is None else str(config.tensorboard.tensorboard_dir)


def _of_monitor_v2(file: Path) -> Summary:
    config = read_monitor_v2(file)
    module = config.monitors.enabled.get("module")
    for heading, text in summary(Settings.model_validate(config.settings({}))):
        if heading == "of" and isinstance(module, ModuleSection) and module.targets:
            yield heading, message("modules with {names} in their names", names=joined(message(" or "), module.targets))
        else:
            yield heading, text
    yield "directory", config.output_dir


def _of_internevo(file: Path) -> Summary:
    alert = read_monitor_config(file)
    if not {ROOT, ALERT} & read(file).values.keys():
        problem = message(
            "{file}: expected an assignment such as monitor = dict(alert=dict(enable_feishu_alert=True, ...)), found "
            "none; add it, or check the file that has it (_base_ is not followed)",
            file=file,
        )
        raise InternEvoConfigError(str(file), [problem])
    no_alerts, no_heartbeats = (
        "none: set enable_feishu_alert and feishu_alert_address",
        "none: set light_monitor_address",
    )
    yield "alerts", message("to Feishu" if alert.alert_address else no_alerts)
    yield "heartbeats", message("to light_monitor_address" if alert.light_monitor_address else no_heartbeats)


SUMMARIES: Mapping[ForeignMonitor, Callable[[Path], Summary]] = {
    TRANSFORMERS: _of_transformers,
    MONITOR_V2: _of_monitor_v2,
    INTERNEVO: _of_internevo,
}
"""Functions that read a file and sum it up, by monitor."""


def foreign_summary(monitor: ForeignMonitor, file: Path) -> list[tuple[str, str]]:
    """Return the summary of a file.

    Raises:
        ConfigError: with every problem at once, in the monitor's own words.
    """
    return list(SUMMARIES[monitor](file))


def summary(settings: Settings) -> Iterator[tuple[str, str]]:
    """Summary of a configuration, in pairs of a heading and a text."""
    collected = list(_collected(settings))
    nothing = message("nothing: switch on xy_, wg_, param_ or mv_distribution")
    yield "collects", joined(", ", collected) if collected else nothing
    yield "of", _named(settings)
    yield "numbers", ", ".join((*settings.statistics, "shape", "dtype"))
    steps = [message("from {start}, every {interval}", start=settings.start_step, interval=settings.step_interval)]
    if settings.collect_times != 100_000_000:
        steps.append(message("at most {number} of them", number=settings.collect_times))
    if settings.max_overhead is not None:
        steps.append(message("or less often, within {share:g} of the time", share=settings.max_overhead))
    yield "steps", joined(", ", steps)
    yield "ranks", ", ".join(map(str, settings.module_ranks)) or message("all")
    yield "writes", _written(settings)
    yield "alerts", ", ".join(rule.rule_name for rule in settings.alert.rules) or message("none")
    if settings.alert.channels:
        chosen = "{channel} (from {severity} on)"
        channels = settings.alert.channels
        yield "sends to", joined(", ", [message(chosen, channel=c.channel, severity=c.severity) for c in channels])


def _named(settings: Settings) -> str:
    names, more = [*settings.targets][:MOST_NAMED], len(settings.targets) - MOST_NAMED
    named = ", ".join(names) or message("every module and parameter")
    named = message("{names} and {rest} more", names=named, rest=more) if more > 0 else named
    every = names and settings.all_xy and settings.xy_distribution and not settings.print_struct
    return message("{names}; inputs and outputs of every module (all_xy)", names=named) if every else named


def _collected(settings: Settings) -> Iterator[str]:
    collectives = settings.cc_distribution
    if settings.print_struct:
        yield message("the structure of the model, once; training is then stopped")
        return
    if collectives.enable and collectives.cc_log_only:
        yield message("the calls of collective communication, which are logged once; training is then stopped")
        return
    values = settings.xy_distribution and not settings.backward_only
    gradients = settings.xy_distribution and not settings.forward_only
    gradients_text = "weight gradients of each micro batch" if settings.monitor_mbs_grad else "weight gradients"
    features = message("features ({names})", names=", ".join(_features(settings)))
    signals = {
        message("parameters before and after the update"): settings.param_distribution,
        message("module inputs and outputs"): values,
        message("gradients of module inputs and outputs"): gradients,
        message(gradients_text): settings.wg_distribution,
        message("optimizer state"): settings.mv_distribution,
        message("updates and ratios of Adam"): settings.ur_distribution,
        message("agreement of gradients and momentum"): settings.mg_direction,
        message("relative size of updates"): settings.relative_update,
        features: settings.recording_l2_features and any(_features(settings)),
        message("collective communication"): collectives.enable,
        message("call stacks of modules"): settings.stack_info and "csv" in settings.formats,
    }
    yield from (what for what, switched_on in signals.items() if switched_on)


def _features(settings: Settings) -> Iterator[str]:
    """Features with modules: an empty list means every module to linear_hook, and none to the others."""
    return (hook for hook, names in settings.l2_targets if names or (hook == "linear_hook" and names is not None))


def _written(settings: Settings) -> str:
    digits = "6 significant digits" if settings.ndigits is None else "{number} decimal places"
    csv = message(
        "csv ({steps} a file, {digits})",
        steps=counted(settings.step_count_per_record, "step"),
        digits=message(digits, number=settings.ndigits),
    )
    formats = joined(", ", [csv if name == "csv" else name for name in settings.formats])
    if not settings.history:
        return formats
    around = "{formats}; only around findings, {steps} before and after"
    return message(around, formats=formats, steps=counted(settings.history, "step"))
