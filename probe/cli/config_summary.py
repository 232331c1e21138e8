"""Summaries of configurations for people; those of other monitors are read by their own readers."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

from probe.core.config.foreign import INTERNEVO, MONITOR_V2, TRANSFORMERS, ForeignMonitor
from probe.core.config.parse import read
from probe.core.config.schema import Settings
from probe.core.internevo.configuration import ALERT, ROOT, InternEvoConfigError, read_monitor_config
from probe.core.language import message
from probe.core.messages import plural
from probe.core.monitor_v2.configuration import ModuleSection, read_monitor_v2
from probe.core.transformers.configuration import read_configuration

MOST_NAMED = 20
"""Most targets that a summary names."""
Summary = Iterator[tuple[str, str]]
"""Pairs of a heading and a text."""


_ADVICE = {
    False: "set monitor_on of monitor_config to True",
    True: "name places, log or tensorboard, by keys of monitor_config such as local_norm_format",
}


def _of_transformers(file: Path) -> Summary:
    config = read_configuration(file)
    state, loss = config.state, config.loss
    places = {key.removesuffix("_format"): where for key, where in state.formats.items() if where}
    recorded = [f"{name} ({', '.join(where)})" for name, where in places.items()] if state.monitor_on else []
    recorded += ["throughput_linearity"] if state.monitor_on and state.throughput_baseline is not None else []
    recorded += ["loss, learning-rate, global norm and throughput (MFLossMonitor)"] if loss is not None else []
    yield "records", ", ".join(recorded) or f"nothing: {_ADVICE[state.monitor_on]}, or list MFLossMonitor in callbacks"
    if state.monitor_on:
        chosen = ", ".join(state.target)
        yield "of", f"parameters {'without' if state.invert else 'with'} {chosen} in their names"
        yield "steps", f"every {state.step_interval}"
    ends = [
        *(["at spikes of the global norm"] if state.check_for_global_norm else []),
        *(["at NaN in loss and global norm"] if config.checks_nan else []),
        *(["at many spikes in succession"] if config.skips_spikes and state.monitor_on else []),
        *(["after the first step (print_struct)"] if state.print_struct else []),
    ]
    if ends:
        yield "ends", " and ".join(ends)
    yield "events in", "no files" if config.tensorboard is None else str(config.tensorboard.tensorboard_dir)


def _of_monitor_v2(file: Path) -> Summary:
    config = read_monitor_v2(file)
    module = config.monitors.enabled.get("module")
    for heading, text in summary(Settings.model_validate(config.settings({}))):
        if heading == "of" and isinstance(module, ModuleSection) and module.targets:
            yield heading, f"modules with {' or '.join(module.targets)} in their names"
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
    yield "alerts", "to Feishu" if alert.alert_address else "none: set enable_feishu_alert and feishu_alert_address"
    yield "heartbeats", "to light_monitor_address" if alert.light_monitor_address else "none: set light_monitor_address"


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
    yield "collects", ", ".join(collected) or "nothing: switch on xy_, wg_, param_ or mv_distribution"
    yield "of", _named(settings)
    yield "numbers", ", ".join((*settings.statistics, "shape", "dtype"))
    last = f", at most {settings.collect_times} of them" if settings.collect_times != 100_000_000 else ""
    budget = "" if settings.max_overhead is None else f", or less often, within {settings.max_overhead:g} of the time"
    yield "steps", f"from {settings.start_step}, every {settings.step_interval}{last}{budget}"
    yield "ranks", ", ".join(map(str, settings.module_ranks)) or "all"
    yield "writes", _written(settings)
    yield "alerts", ", ".join(rule.rule_name for rule in settings.alert.rules) or "none"
    if settings.alert.channels:
        yield "sends to", ", ".join(f"{each.channel} (from {each.severity} on)" for each in settings.alert.channels)


def _named(settings: Settings) -> str:
    names, more = [*settings.targets][:MOST_NAMED], len(settings.targets) - MOST_NAMED
    named = (", ".join(names) or "every module and parameter") + (f" and {more} more" if more > 0 else "")
    every = names and settings.all_xy and settings.xy_distribution and not settings.print_struct
    return f"{named}; inputs and outputs of every module (all_xy)" if every else named


def _collected(settings: Settings) -> Iterator[str]:
    collectives = settings.cc_distribution
    if settings.print_struct:
        yield "the structure of the model, once; training is then stopped"
        return
    if collectives.enable and collectives.cc_log_only:
        yield "the calls of collective communication, which are logged once; training is then stopped"
        return
    values = settings.xy_distribution and not settings.backward_only
    gradients = settings.xy_distribution and not settings.forward_only
    signals = {
        "parameters before and after the update": settings.param_distribution,
        "module inputs and outputs": values,
        "gradients of module inputs and outputs": gradients,
        f"weight gradients{' of each micro batch' if settings.monitor_mbs_grad else ''}": settings.wg_distribution,
        "optimizer state": settings.mv_distribution,
        "updates and ratios of Adam": settings.ur_distribution,
        "agreement of gradients and momentum": settings.mg_direction,
        "relative size of updates": settings.relative_update,
        f"features ({', '.join(_features(settings))})": settings.recording_l2_features and any(_features(settings)),
        "collective communication": collectives.enable,
        "call stacks of modules": settings.stack_info and "csv" in settings.formats,
    }
    yield from (what for what, switched_on in signals.items() if switched_on)


def _features(settings: Settings) -> Iterator[str]:
    """Features with modules: an empty list means every module to linear_hook, and none to the others."""
    return (hook for hook, names in settings.l2_targets if names or (hook == "linear_hook" and names is not None))


def _written(settings: Settings) -> str:
    digits = "6 significant digits" if settings.ndigits is None else f"{settings.ndigits} decimal places"
    steps = settings.step_count_per_record
    csv = f"csv ({steps} {plural(steps, 'step')} a file, {digits})"
    incidents = (
        f"; only around findings, {settings.history} {plural(settings.history, 'step')} before and after"
        if settings.history
        else ""
    )
    return ", ".join(csv if name == "csv" else name for name in settings.formats) + incidents
