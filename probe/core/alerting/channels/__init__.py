"""Channels of alerts: one a file."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar, Protocol, runtime_checkable

from probe.core.alerting.channels.alertmanager import Alertmanager
from probe.core.alerting.channels.apprise import AppriseServices
from probe.core.alerting.channels.console import Console
from probe.core.alerting.channels.feishu import Feishu
from probe.core.alerting.channels.file import File
from probe.core.alerting.channels.http import Http
from probe.core.fields import Section
from probe.core.records import Alert


class Channel(Protocol):
    """Sender of alerts to one place. Each attempt has a thread of its own, one at a time for a channel."""

    Args: ClassVar[type[Section]]
    """Model of its arguments in the configuration."""
    sends: ClassVar[str]
    """Clause about the channel, for the reference of the configuration, such as ``writes lines to standard error``."""

    def __init__(self, args: Any) -> None:
        """Read the address and the secrets, and register them (:mod:`probe.core.alerting.redaction`).

        Raises:
            AddressError: if they cannot be used (:mod:`probe.core.alerting.channels.address`).
        """

    def check(self, timeout: float) -> None:
        """Check within ``timeout`` seconds that the address answers, without sending a message.

        Raises:
            Exception: if it does not.
        """

    def send(self, alerts: Sequence[Alert], timeout: float) -> None:
        """Send ``alerts`` as one message within ``timeout`` seconds.

        Raises:
            NotReceived: if they were not received (:mod:`probe.core.alerting.channels.exchange`); with the time before
                which a further attempt would be in vain, if the receiver has set one, and with what it says about the
                message.
            Exception: for any other reason.
        """


@runtime_checkable
class RenewingChannel(Protocol):
    """Channel whose receiver takes a matter for ended unless its alert is sent again."""

    def renewal_seconds(self) -> float:
        """Return the time in seconds after which a lasting alert is sent again."""


class AlertSender(Protocol):
    """Receiver of alerts, which never blocks and never raises."""

    def send(self, alert: Alert) -> object:
        """Send ``alert``."""

    def resolve(self, key: str, text: str) -> object:
        """Send a notice that the matter called ``key`` has ended, if an alert about it was sent."""

    def close(self, seconds: float) -> object:
        """Send what is pending within ``seconds``, and end."""


ALSO = {
    **dict.fromkeys(("email", "mail", "smtp", "slack", "dingtalk", "wecom", "wechat", "teams", "discord"), "apprise"),
    "lark": "feishu",
    "webhook": "http",
    "prometheus": "alertmanager",
    "stdout": "console",
    "log": "console",
}
"""Names that users may write for the channel that sends there."""
CHANNELS: dict[str, type[Channel]] = {
    "feishu": Feishu,
    "apprise": AppriseServices,
    "alertmanager": Alertmanager,
    "http": Http,
    "console": Console,
    "file": File,
}
"""Channels by their names in a configuration. To add one, write a file with its class, and add a line here."""
