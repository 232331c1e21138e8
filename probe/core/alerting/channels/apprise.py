"""Channel ``apprise``: mail, Slack, DingTalk, WeCom, Teams, PagerDuty and a hundred more, through Apprise.

Their URLs: https://github.com/caronc/apprise/wiki
"""

from __future__ import annotations

import logging
import time
from collections.abc import Sequence
from typing import Any, ClassVar

from pydantic import model_validator

from probe.core.alerting.channels.address import AddressError, Name, at_most_one, read_value
from probe.core.alerting.channels.exchange import NotReceived
from probe.core.alerting.channels.message import MOST_TEXT, highest, paragraphs, subject
from probe.core.alerting.redaction import describe_error, install, register, register_address
from probe.core.errors import missing
from probe.core.fields import Section
from probe.core.messages import shortened
from probe.core.records import Alert

MOST_BODY = 4 * MOST_TEXT
"""Most characters of a message; Apprise divides or cuts it further as each service requires."""
_TYPES = {"info": "info", "warning": "warning", "critical": "failure"}


class AppriseArgs(Section):
    """URLs of Apprise."""

    url_file: Name | None = None
    """File that holds URLs of Apprise, one a line. One of url_file and url_variable is required."""
    url_variable: Name | None = None
    """Environment variable that holds URLs of Apprise, one a line or divided by spaces."""

    @model_validator(mode="after")
    def _one_place(self) -> Any:
        at_most_one(self, ("url_file", "url_variable"), needed=True)
        return self


class AppriseServices:
    """Sender through Apprise, to each of its services in turn."""

    Args: ClassVar[type[Section]] = AppriseArgs
    sends: ClassVar[str] = "sends through Apprise: mail, Slack, DingTalk, WeCom, Teams, PagerDuty and many more"

    def __init__(self, args: AppriseArgs) -> None:
        urls = [word for word in _lines(read_value(args, "url")) if word]
        register(*urls)
        for url in urls:
            register_address(url)
        self._services = _opened(urls, "url_file" if args.url_file is not None else "url_variable")
        self._accepted: list[set[tuple[str, float, bool]]] = [set() for _ in self._services]

    def check(self, timeout: float) -> None:
        """Do nothing: Apprise can only send."""

    def send(self, alerts: Sequence[Alert], timeout: float) -> None:
        """Send ``alerts`` to every service; a further attempt leaves out those that accepted them."""
        install()  # the loggers of its plugins exist from here on
        end, failed = time.monotonic() + timeout, list[str]()
        for number, (service, accepted) in enumerate(zip(self._services, self._accepted, strict=True), 1):
            unsent = [alert for alert in alerts if _identity(alert) not in accepted]
            if unsent and (reason := _failure(service, unsent, end)):
                failed.append(f"service {number} of {len(self._services)}: {reason}")
            else:
                accepted |= set(map(_identity, unsent))
        if failed:
            raise NotReceived("; ".join(failed), refusal="refused")  # Apprise only logs why
        for accepted in self._accepted:
            accepted.clear()


def _lines(text: str) -> list[str]:
    """Return the URLs of ``text``; a line that begins with ``#`` is a comment."""
    return [word for line in text.splitlines() if not line.lstrip().startswith("#") for word in line.split()]


def _opened(urls: Sequence[str], key: str) -> list[Any]:
    try:
        import apprise
    except ImportError:
        raise AddressError([("", missing("the channel apprise", "apprise", "alerts"))]) from None
    if not urls:
        raise AddressError([(key, "expected URLs of Apprise, got none")])
    install()
    services = [apprise.Apprise.instantiate(url, suppress_exceptions=True) for url in urls]
    wrong = [str(number) for number, service in enumerate(services, 1) if service is None]
    if wrong:
        raise AddressError([(key, f"expected URLs that Apprise can parse; number {', '.join(wrong)} is none")])
    return services


def _identity(alert: Alert) -> tuple[str, float, bool]:
    return alert.key, alert.time, alert.resolved


def _failure(service: Any, alerts: Sequence[Alert], end: float) -> str:
    """Send to one service; return the reason of a failure, which Apprise only logs, or an empty text."""
    if time.monotonic() >= end:
        return "no time left"
    import apprise

    body = shortened("\n\n".join(paragraphs(alerts)), MOST_BODY)
    kind = _TYPES[highest(alerts)] if not all(alert.resolved for alert in alerts) else "success"
    capture: Any = apprise.LogCapture
    with capture(level=logging.WARNING, fmt="%(message)s") as log:
        try:
            sent = service.notify(body=body, title=subject(alerts), notify_type=apprise.NotifyType(kind))
        except Exception as error:  # noqa: BLE001 - of a plugin; its text is redacted
            return describe_error(error)
        return "" if sent else " ".join(log.getvalue().split())[:300] or "not sent"
