"""Loading of a configuration from JSON or YAML, with all problems at once."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from itertools import islice
from os import PathLike, fspath
from typing import Any

from pydantic import ValidationError

from probe.core.config.errors import MOST_SHOWN, ConfigError, path_text, problems
from probe.core.config.foreign import monitor_of
from probe.core.config.lint import contradictions, in_vain
from probe.core.config.msprobe import EVERYTHING, MSPROBE
from probe.core.config.parse import path_of, read
from probe.core.config.schema import Settings
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
    values, found = source, list[str]()
    lead: Callable[[tuple[int | str, ...]], str] = lambda _: ""  # noqa: E731
    if not isinstance(source, Mapping):
        name = path_of(source)
        values, found, lines = read(source)
        lead = lines.lead
    assert isinstance(values, Mapping)
    if (foreign := monitor_of(values)) is not None:
        problem = message(
            "{source}: expected a configuration of TrainerMon, this is one of {title}; {usage}",
            source=name,
            title=foreign.title,
            usage=foreign.usage,
        )
        raise ConfigError(name, [problem])
    values = _without_unsupported(values, name)
    try:
        settings = Settings.model_validate(dict(values))
    except ValidationError as error:
        count = len(found) + error.error_count()
        found += islice(problems(error, Settings, lead, place=EVERYTHING.place), max(MOST_SHOWN - len(found), 0))
        raise ConfigError(name, found[:MOST_SHOWN], max(count - MOST_SHOWN, 0)) from None
    found += [joined("", (lead(path), path_text(path), ": ", each)) for path, each in contradictions(settings)]
    if found:
        raise ConfigError(name, found[:MOST_SHOWN], len(found[MOST_SHOWN:]))
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
