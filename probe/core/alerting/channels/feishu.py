"""Channel ``feishu``: messages of a custom bot in a group of Feishu or Lark.

Format, signature and limits: "Custom bot usage guide", https://open.feishu.cn/document/client-docs/bot-v3/add-custom-bot
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import json
import threading
import time
from collections import deque
from collections.abc import Sequence
from typing import ClassVar

from probe.core.alerting.channels.address import SecretAddressArgs, read_server
from probe.core.alerting.channels.exchange import (
    NotReceived,
    Refusal,
    ask,
    json_object,
    post,
    require_client,
)
from probe.core.alerting.channels.message import fitting, paragraphs, subject
from probe.core.fields import Section
from probe.core.http_client import Answer
from probe.core.records import Alert

LARGEST = 20_000
"""Most bytes of a request; Feishu refuses those above 20 KB."""
RATES = ((5, 1.0), (100, 60.0))
"""Most messages in a time in seconds."""
ADVICE = {
    9499: "the message or the address is not accepted",
    11232: "too many messages",
    19001: "the address is not that of a bot",
    19021: "secret_file or secret_variable does not hold the bot's secret, or this host's clock is wrong by an hour",
    19022: "the bot does not accept this host's IP address",
    19024: "the bot requires a keyword: add one that each message has, such as alert",
}
"""Causes of some codes of errors."""
LATER = (11232,)
"""Codes that are not about the message."""
NEVER = (19002,)
"""Codes of a message that is never accepted: its parameters are wrong."""


class FeishuArgs(SecretAddressArgs):
    """Bot of Feishu; the secret is that of its signature verification."""


class Feishu:
    """Sender of rich-text messages to a webhook."""

    Args: ClassVar[type[Section]] = FeishuArgs
    sends: ClassVar[str] = "sends messages to a custom bot of Feishu or Lark, whose webhook is the url"

    def __init__(self, args: FeishuArgs) -> None:
        require_client("feishu")
        self._server, self._rate = read_server(args), MessageRate(RATES)

    def check(self, timeout: float) -> None:
        """Check that the server answers."""
        ask(self._server, timeout)

    def send(self, alerts: Sequence[Alert], timeout: float) -> None:
        """Send ``alerts`` as one message; a code of an error within an answer of status 200 counts as failure."""
        self.deliver(subject(alerts), paragraphs(alerts), timeout)

    def deliver(self, title: str, parts: Sequence[str], timeout: float) -> Answer:
        """Send a message of paragraphs, cut to the size that Feishu accepts, and return the answer.

        Raises:
            NotReceived: as for :meth:`send`.
        """
        end = time.monotonic() + timeout
        self._rate.wait(timeout)
        head = self._signature(int(time.time()))
        fit = fitting(parts, lambda some: len(_body(head, title, some)) <= LARGEST)
        received = post(self._server, self._server.url, _body(head, title, fit), end - time.monotonic())
        answer = json_object(received.body)
        code = answer.get("code", answer.get("StatusCode"))
        if code != 0 or isinstance(code, bool):
            advice = f" ({ADVICE[code]})" if isinstance(code, int) and code in ADVICE else ""
            refusal: Refusal = "none" if code in LATER else "final" if code in NEVER else "refused"
            raise NotReceived(f"code {code}: {str(answer.get('msg', ''))[:200]}{advice}", refusal=refusal)
        return received

    def _signature(self, now: int) -> dict[str, str]:
        secret = self._server.secret
        return {"timestamp": str(now), "sign": signature(secret, now)} if secret else {}


def _body(head: dict[str, str], title: str, parts: Sequence[str]) -> bytes:
    """Return the request with a paragraph for each line of ``parts``, a blank line between two alerts."""
    lines = "\n\n".join(parts).split("\n")
    post = {"title": title, "content": [[{"tag": "text", "text": line}] for line in lines]}
    whole = {**head, "msg_type": "post", "content": {"post": {"zh_cn": post}}}
    return json.dumps(whole, ensure_ascii=False).encode("utf-8", "replace")


def signature(secret: str, timestamp: int) -> str:
    """Sign an empty message with the key ``timestamp``, a line break, ``secret`` (HMAC-SHA256, base64)."""
    return base64.b64encode(hmac.new(f"{timestamp}\n{secret}".encode(), b"", hashlib.sha256).digest()).decode()


class MessageRate:
    """Limit of messages in windows of time."""

    def __init__(self, rates: Sequence[tuple[int, float]]) -> None:
        self._rates = rates
        self._sent: deque[float] = deque(maxlen=max(number for number, _ in rates))
        self._lock = threading.Lock()

    def wait(self, most: float) -> None:
        """Wait until a message may be sent, and count it.

        Raises:
            NotReceived: if that takes longer than ``most`` seconds; nothing is counted then.
        """
        with self._lock:
            seconds = self._seconds()
            if seconds > most:
                raise NotReceived(f"held back for {seconds:.3g} s: the receiver's limit of messages", seconds)
            self._sent.append(time.monotonic() + seconds)
        time.sleep(seconds)

    def _seconds(self) -> float:
        now = time.monotonic()
        times = [self._sent[-number] + window - now for number, window in self._rates if len(self._sent) >= number]
        return max(0.0, *times, 0.0)
