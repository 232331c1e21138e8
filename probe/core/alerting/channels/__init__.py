"""Channels of alerts: one a file."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar, Protocol

from probe.core.fields import Section
from probe.core.records import Alert


class Channel(Protocol):
    """Sender of alerts to one place, called on the thread of alerts alone."""

    Args: ClassVar[type[Section]]
    """Model of its arguments in the configuration."""
    sends: ClassVar[str]
    """Clause about the channel, for the reference of the configuration, such as ``writes lines to standard error``."""

    def send(self, alerts: Sequence[Alert], timeout: float) -> None:
        """Send ``alerts`` as one message within ``timeout`` seconds.

        Raises:
            Exception: if they were not received.
        """


class AlertSender(Protocol):
    """Receiver of alerts, which never blocks and never raises."""

    def send(self, alert: Alert) -> None:
        """Send ``alert``."""

    def resolve(self, key: str, text: str) -> None:
        """Send a notice that the matter called ``key`` has ended, if an alert about it was sent."""

    def close(self, seconds: float) -> None:
        """Send what is pending within ``seconds``, and end."""


CHANNELS: dict[str, type[Channel]] = {}
"""Channels by their names in a configuration. To add one, write a file with its class, and add a line here."""
