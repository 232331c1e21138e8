"""Channel ``console``: the program's own log."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import ClassVar

from probe.core.alerting.channels.message import details, heading
from probe.core.fields import Section
from probe.core.records import Alert

LEVELS = {"info": logging.INFO, "warning": logging.WARNING, "critical": logging.CRITICAL}
"""Levels of logging by severity; that of a matter that has ended is INFO."""

_log = logging.getLogger("probe.alerts")


class ConsoleArgs(Section):
    """No arguments."""


class Console:
    """Writer to the logger ``probe``."""

    Args: ClassVar[type[Section]] = ConsoleArgs
    sends: ClassVar[str] = "writes to the logger `probe`, to standard error if the program has set up no logging"

    def __init__(self, args: ConsoleArgs) -> None:
        pass

    def check(self, timeout: float) -> None:
        """Do nothing: it has no address."""

    def send(self, alerts: Sequence[Alert], timeout: float) -> None:  # noqa: ARG002 - the protocol's
        """Log one message for each alert."""
        for alert in alerts:
            level = LEVELS["info" if alert.resolved else alert.severity]
            _log.log(level, "alert: %s\n%s", heading(alert), details(alert))
