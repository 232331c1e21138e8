"""Configuration of InternEvo's monitor: the block ``monitor = dict(alert=dict(...))``."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping
from itertools import islice
from os import PathLike
from typing import Annotated, Any

from pydantic import AfterValidator, ValidationError

from probe.core.alerting.channels.address import Url
from probe.core.config.dialect import Dialect, keys_of, not_here
from probe.core.config.errors import MOST_SHOWN, ConfigError, nearest, problems
from probe.core.config.parse import path_of, read
from probe.core.fields import Flag, Section, Text, not_blank
from probe.core.language import message

ROOT, ALERT = "monitor", "alert"
Path = tuple[int | str, ...]
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
    found, name = list[str](), "the given mapping"
    lead: Callable[[Path], str] = lambda _: ""  # noqa: E731
    if isinstance(source, Mapping):
        values = dict(source)
    else:
        name = path_of(source)
        values, found, lines = read(source)
        lead = lines.lead
    block = _block(values, found, lead)
    at = (ROOT,) if ROOT not in values and ALERT in values else ()
    for sentence in INTERNEVO.misplaced(values, (ROOT, f"{ROOT}.{ALERT}"), at):
        _log.warning("%s: %s", name, sentence)
    try:
        config = _Whole.model_validate({ROOT: _without_unsupported(block)})
    except ValidationError as error:
        count = len(found) + error.error_count()
        place = INTERNEVO.place
        found += islice(problems(error, _Whole, lead, place=place), max(MOST_SHOWN - len(found), 0))
        raise InternEvoConfigError(name, found[:MOST_SHOWN], max(count - MOST_SHOWN, 0)) from None
    if found:
        raise InternEvoConfigError(name, found[:MOST_SHOWN], len(found[MOST_SHOWN:]))
    alert = config.monitor.alert
    for sentence in _in_vain(alert):
        _log.warning("%s: %s", name, sentence)
    return alert


def _in_vain(alert: MonitorAlertSection) -> Iterator[str]:
    """Yield a sentence for each key without an effect beside the other."""
    if alert.enable_feishu_alert and alert.feishu_alert_address is None:
        yield "monitor.alert.enable_feishu_alert has no effect without feishu_alert_address"
    if alert.feishu_alert_address is not None and not alert.enable_feishu_alert:
        yield "monitor.alert.feishu_alert_address has no effect: enable_feishu_alert is false; set it to true"


def _block(values: Mapping[str, Any], found: list[str], lead: Callable[[Path], str]) -> Any:
    """Return the block of a whole configuration; that is empty if it has none. A key that resembles it is a problem."""
    if ROOT in values:
        return values[ROOT]
    if ALERT in values:
        return values
    meant = {key: nearest(key, (ROOT, ALERT)) for key in values}
    found += [f"{lead((key,))}{key}: unknown key; did you mean {close}?" for key, close in meant.items() if close]
    return {}


def _without_unsupported(block: Any, at: tuple[str, ...] = (ROOT,)) -> Any:
    """Return ``block`` without the keys that are not supported; those with a value are logged."""
    if not isinstance(block, Mapping):
        return block
    rest = dict(block)
    section = ".".join(at)
    for key in INTERNEVO.unsupported.keys() & rest.keys():
        if section in INTERNEVO.places[key] and rest.pop(key):
            _log.warning("%s", INTERNEVO.not_supported(key, (*at, key)))
    if at == (ROOT,) and ALERT in rest:
        rest[ALERT] = _without_unsupported(rest[ALERT], (*at, ALERT))
    return rest
