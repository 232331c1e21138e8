"""Configuration of InternEvo's monitor: the block ``monitor = dict(alert=dict(...))``."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping
from os import PathLike
from typing import Annotated, Any

from pydantic import AfterValidator

from probe.core.alerting.channels.address import Url
from probe.core.config.dialect import Dialect, keys_of, not_here
from probe.core.config.errors import ConfigError, nearest
from probe.core.config.source import ConfigSource
from probe.core.fields import Flag, Section, Text, not_blank
from probe.core.language import message

ROOT, ALERT = "monitor", "alert"
_log = logging.getLogger("probe.settings")


class InternEvoConfigError(ConfigError):
    """Error of a block ``monitor`` that cannot be used."""

    advice = message("Correct these and start again; docs/guides/coming_from.md describes the keys.")


class MonitorAlertSection(Section):
    """Section ``monitor.alert``."""

    enable_feishu_alert: Flag = False
    """Send alerts to Feishu."""
    feishu_alert_address: Url = None
    """Webhook of the bot."""
    light_monitor_address: Annotated[Text, AfterValidator(not_blank)] | None = None
    """Address of the heartbeat server."""

    @property
    def alert_address(self) -> str | None:
        """Webhook for alerts; None if they are not enabled."""
        return self.feishu_alert_address if self.enable_feishu_alert else None


class _Block(Section):
    alert: MonitorAlertSection = MonitorAlertSection()
    """Alerts and heartbeats."""


class _Whole(Section):
    monitor: _Block = _Block()
    """The block; a mapping may also be the block itself."""


INTERNEVO = Dialect(
    "InternEvo's monitor",
    (
        *keys_of(_Whole),
        *keys_of(_Block, ROOT),
        *keys_of(MonitorAlertSection, f"{ROOT}.{ALERT}"),
        *not_here(ROOT, {"tensorboard": "TrainerMon writes event files with the format tensorboard"}),
        *not_here(
            f"{ROOT}.{ALERT}",
            {"alert_file_path": "all ranks send an alert once, by the folder alerts of the output directory"},
        ),
    ),
    ambiguous=(ROOT, ALERT, "tensorboard"),
    sections=(),
)
"""Keys of the block, each with its section and its effect."""


def read_monitor_config(source: str | PathLike[str] | Mapping[str, Any]) -> MonitorAlertSection:
    """Read the block ``monitor`` of a mapping, or of a JSON or YAML file. A mapping may also be the block itself.

    Other sections beside ``monitor`` belong to the program.

    Raises:
        InternEvoConfigError: with every problem at once.
    """
    given = ConfigSource(source)
    values, block = given.values, _block(given)
    if ROOT not in values and ALERT not in values:
        text = "%s: expected the section monitor with alert in it, got none: no alert will be sent; add it"
        _log.warning(text, given.name)
    at = (ROOT,) if ROOT not in values and ALERT in values else ()
    for _, sentence in INTERNEVO.misplaced(values, (ROOT, f"{ROOT}.{ALERT}"), at):
        _log.warning("%s: %s", given.name, sentence)
    whole = {ROOT: _without_unsupported(block, given)}
    alert = given.validated(_Whole, whole, InternEvoConfigError, INTERNEVO.place).monitor.alert
    for sentence in _in_vain(alert):
        _log.warning("%s: %s", given.name, sentence)
    return alert


def _in_vain(alert: MonitorAlertSection) -> Iterator[str]:
    """Yield a sentence for each key without an effect beside the other."""
    if alert.enable_feishu_alert and alert.feishu_alert_address is None:
        yield "monitor.alert.enable_feishu_alert has no effect without feishu_alert_address"
    if alert.feishu_alert_address is not None and not alert.enable_feishu_alert:
        yield "monitor.alert.feishu_alert_address has no effect: enable_feishu_alert is false; set it to true"


def _block(given: ConfigSource) -> Any:
    """Return the block of a whole configuration; that is empty if it has none. A key that resembles it is a problem."""
    values = given.values
    if ROOT in values:
        return values[ROOT]
    if ALERT in values:
        return values
    meant = {key: nearest(key, (ROOT, ALERT)) for key in values}
    given.problems += [
        f"{given.lead((key,))}{key}: unknown key; did you mean {close}?" for key, close in meant.items() if close
    ]
    return {}


def _without_unsupported(block: Any, given: ConfigSource, at: tuple[str, ...] = (ROOT,)) -> Any:
    """Return ``block`` without the keys that are not supported; those with a value are logged."""
    if not isinstance(block, Mapping):
        return block
    rest = dict(block)
    section = ".".join(at)
    for key in INTERNEVO.unsupported.keys() & rest.keys():
        if section in INTERNEVO.places[key] and rest.pop(key):
            _log.warning("%s: %s", given.name, INTERNEVO.not_supported(key, (*at, key)))
    if at == (ROOT,) and ALERT in rest:
        rest[ALERT] = _without_unsupported(rest[ALERT], given, (*at, ALERT))
    return rest
