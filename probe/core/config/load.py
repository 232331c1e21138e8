"""Loading of a configuration from JSON or YAML, with all problems at once."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from os import PathLike, fspath
from typing import Any

from probe.core.config.errors import ConfigError, path_text
from probe.core.config.foreign import monitor_of
from probe.core.config.lint import contradictions, in_vain
from probe.core.config.msprobe import EVERYTHING, MSPROBE
from probe.core.config.schema import Settings
from probe.core.config.source import ConfigSource
from probe.core.language import joined, message

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
