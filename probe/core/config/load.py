"""Loading of a configuration from JSON or YAML, with all problems at once."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from os import PathLike, fspath
from typing import Any

from probe.core.config.dialect import TOP, Dialect, all_keys, keys_of, not_here
from probe.core.config.errors import ConfigError, path_text
from probe.core.config.foreign import monitor_of
from probe.core.config.lint import contradictions, in_vain
from probe.core.config.schema import AlertSettings, CcDistribution, L2Targets, RuleSettings, Settings, Target
from probe.core.config.source import ConfigSource
from probe.core.language import joined, message
from probe.core.rules import RULES

logger = logging.getLogger("probe.settings")


def load(source: str | PathLike[str] | Mapping[str, Any]) -> Settings:
    """Load settings from a JSON or YAML file or a mapping; settings without effect are logged.

    Raises:
        ConfigError: with every problem at once.
    """
    settings = _validated(source)
    name = "the given mapping" if isinstance(source, Mapping) else fspath(source)
    for warning in in_vain(settings):
        logger.warning("%s: %s", name, warning)
    return settings


def assigned(settings: Settings, key: str, value: object) -> Settings:
    """Return ``settings`` with another value of ``key``, checked as a whole; settings newly without effect are logged.

    Raises:
        ConfigError: with every problem at once.
    """
    changed = _validated({**settings.model_dump(exclude_unset=True), key: value}, f"monitor.{key}")
    before = set(in_vain(settings))
    for warning in in_vain(changed):
        if warning not in before:
            logger.warning("monitor.%s: %s", key, warning)
    return changed


def _validated(source: str | PathLike[str] | Mapping[str, Any], name: str = "the given mapping") -> Settings:
    given = ConfigSource(source, name)
    if (foreign := monitor_of(given.values)) is not None:
        problem = message(
            "{source}: expected a configuration of TrainerMon, this is one of {title}; {usage}",
            source=given.name,
            title=foreign.title,
            usage=foreign.usage,
        )
        raise ConfigError(given.name, [problem])
    settings = given.validated(Settings, _without_unsupported(given.values, given.name), ConfigError, EVERYTHING.place)
    given.problems += [
        joined("", (given.lead(path), path_text(path), ": ", each)) for path, each in contradictions(settings)
    ]
    given.refuse(ConfigError)
    return settings


def _without_unsupported(values: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    """Return ``values`` without the keys of kj600 that are not supported, which are logged."""
    alert = values.get("alert")
    if not isinstance(alert, Mapping) or not (unsupported := MSPROBE.unsupported.keys() & alert.keys()):
        return values
    for key in unsupported:
        logger.warning("%s: %s", name, MSPROBE.not_supported(key, ("alert", key)))
    return {**values, "alert": {key: value for key, value in alert.items() if key not in unsupported}}


def dynamic(environ: Mapping[str, str]) -> bool:
    """Return whether monitoring may be switched on and off while training runs: `DYNAMIC_MONITOR=True`."""
    value = environ.get("DYNAMIC_MONITOR", "")
    asked = value.strip().lower()
    if asked not in ("true", "false", ""):
        logger.warning("DYNAMIC_MONITOR: expected True or False, got %r: the configuration is not followed", value)
    return asked == "true"


EVERYTHING = Dialect("probe", tuple(all_keys(Settings)))
"""Every key of this package, for messages about a key in another section."""
_TOP_KEYS = (
    *("targets", "dynamic_on", "collect_times", "start_step", "step_interval", "print_struct", "module_ranks"),
    *("ur_distribution", "xy_distribution", "all_xy", "forward_only", "backward_only", "mv_distribution"),
    *("wg_distribution", "monitor_mbs_grad", "param_distribution", "alert", "cc_distribution", "mg_direction"),
    *("format", "ops", "eps", "ndigits", "step_count_per_record", "append_output", "squash_name", "stack_info"),
    *("recording_l2_features", "l2_targets", "sa_order"),
)
_INFORM = "alert.channels sends alerts, by email with the channel apprise; the folder alerts holds each of them"
_RULE_KEYS = ("threshold",)
MSPROBE = Dialect(
    "msprobe's Monitor",
    (
        *keys_of(Settings, TOP, _TOP_KEYS),
        *keys_of(Target, "targets"),
        *keys_of(CcDistribution, "cc_distribution"),
        *keys_of(AlertSettings, "alert", ("rules", "dump")),
        *keys_of(RuleSettings, "alert.rules"),
        *(key for rule in RULES.values() for key in keys_of(rule.Args, "alert.rules.args", _RULE_KEYS)),
        *keys_of(L2Targets, "l2_targets"),
        *not_here("alert", {"inform": _INFORM}),
    ),
)
"""Keys that msprobe's documentation and its releases have. A key that is unknown, or that stands in another section, is
an error before training."""
