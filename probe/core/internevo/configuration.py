"""Configuration of InternEvo's monitor: the block ``monitor = dict(alert=dict(...))``."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from itertools import islice
from os import PathLike, fspath
from typing import Annotated, Any

from pydantic import AfterValidator, ValidationError

from probe.core.alerting.channels.address import Url
from probe.core.config.errors import MOST_SHOWN, ConfigError, nearest, path_text, problems
from probe.core.config.parse import read
from probe.core.fields import Flag, Section, Text, not_blank
from probe.core.language import message

ROOT, ALERT = "monitor", "alert"
Path = tuple[int | str, ...]
ELSEWHERE = {
    (ROOT,): {"tensorboard": "TrainerMon writes event files with the format tensorboard"},
    (ROOT, ALERT): {"alert_file_path": "all ranks send an alert once, by the folder alerts of the output directory"},
}
"""Keys that InternEvo has and that have no effect, with the feature that does the same."""
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


class _Whole(Section):
    monitor: _Block = _Block()


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
        name = fspath(source)
        values, found, lines = read(source)
        lead = lines.lead
    block = _block(values, found, lead)
    whole = {ROOT: _without_elsewhere(block) if isinstance(block, Mapping) else block}
    try:
        config = _Whole.model_validate(whole)
    except ValidationError as error:
        count = len(found) + error.error_count()
        found += islice(problems(error, _Whole, lead), max(MOST_SHOWN - len(found), 0))
        raise InternEvoConfigError(name, found[:MOST_SHOWN], max(count - MOST_SHOWN, 0)) from None
    if found:
        raise InternEvoConfigError(name, found[:MOST_SHOWN], len(found[MOST_SHOWN:]))
    alert = config.monitor.alert
    if alert.enable_feishu_alert and alert.feishu_alert_address is None:
        _log.warning("%s: monitor.alert.enable_feishu_alert has no effect without feishu_alert_address", name)
    return alert


def _block(values: Mapping[str, Any], found: list[str], lead: Callable[[Path], str]) -> Any:
    """Return the block of a whole configuration; that is empty if it has none. A key that resembles it is a problem."""
    if ROOT in values:
        return values[ROOT]
    if ALERT in values:
        return values
    meant = {key: nearest(key, (ROOT, ALERT)) for key in values}
    found += [f"{lead((key,))}{key}: unknown key; did you mean {close}?" for key, close in meant.items() if close]
    return {}


def _without_elsewhere(block: Mapping[str, Any], at: tuple[str, ...] = (ROOT,)) -> dict[str, Any]:
    """Return ``block`` without the keys of :data:`ELSEWHERE`; those with a value are logged."""
    kept = dict(block)
    for key in kept.keys() & ELSEWHERE.get(at, {}).keys():
        if kept.pop(key):
            _log.warning("%s is not supported; here, %s", path_text((*at, key)), ELSEWHERE[at][key])
    if isinstance(kept.get(ALERT), Mapping) and at == (ROOT,):
        kept[ALERT] = _without_elsewhere(kept[ALERT], (*at, ALERT))
    return kept
