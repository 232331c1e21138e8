"""One message to a webhook of Feishu, sent and answered before the call returns."""

from __future__ import annotations

import json
import logging
import os
import threading
from typing import Any, NamedTuple

from probe.core.alerting.channels.feishu import Feishu, FeishuArgs
from probe.core.alerting.channels.message import MOST_TEXT, MOST_TITLE, clipped
from probe.core.alerting.redaction import describe_error, redact
from probe.core.internevo.recipients import checked_webhook, signed
from probe.core.messages import shortened, writable

SECONDS = 10.0
"""Longest time in seconds of a call."""
_log = logging.getLogger("probe.alerts")
_channels: dict[tuple[str, ...], Feishu] = {}
"""Channels by their addresses and the source of their secret: the limits of messages hold across calls."""
_lock = threading.Lock()


class FeishuResponse(NamedTuple):
    """Answer of Feishu that a message is accepted."""

    status_code: int
    text: str

    @property
    def ok(self) -> bool:
        """True: a message that was not accepted has no answer."""
        return 200 <= self.status_code < 300

    def json(self) -> Any:
        """Parse the text."""
        return json.loads(self.text)


def send_feishu_msg_with_webhook(webhook: str | None, title: str, message: str) -> FeishuResponse | None:
    """Send a message to Feishu, and wait for the answer, 10 seconds at most. Nothing is raised.

    It is signed with the secret in the variable PROBE_FEISHU_SECRET, if that has one. Secrets in title and message are
    masked, and what exceeds Feishu's size is cut.

    Args:
        webhook: address of the bot; empty or None: nothing is sent.

    Returns:
        The response; None if the message was not accepted, which is logged with the reason.
    """
    if not webhook:
        return None
    try:
        content = shortened(redact(writable(message)), MOST_TEXT)
        subject = clipped(" ".join(redact(writable(title)).split()), MOST_TITLE)
        received = _channel(webhook).deliver(subject, [content], SECONDS)
        return FeishuResponse(received.status, received.body.decode("utf-8", "replace"))
    except Exception as error:  # noqa: BLE001 - whatever it is, training goes on
        _log.warning("the message was not sent to Feishu: %s", describe_error(error))
        return None


def _channel(webhook: str) -> Feishu:
    address = checked_webhook(webhook, "webhook")
    secret = signed(os.environ)
    with _lock:
        return _channels.setdefault((address, *secret.values()), Feishu(FeishuArgs(url=address, **secret)))
