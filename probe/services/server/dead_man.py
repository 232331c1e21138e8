"""Dead man's switch: an address that is called as long as this server works. Whoever watches it notices the silence."""

from __future__ import annotations

import logging
from collections.abc import Callable

from probe.core.faults import Faults
from probe.core.http_client import DeadlineClient, Unanswered, checked_address
from probe.core.worker import Worker

_log = logging.getLogger("probe.server")

EVERY_SECONDS = 60.0
CONNECT_SECONDS, CALL_SECONDS = 5.0, 10.0
"""Longest times in seconds to connect and of a whole call."""
WORK_SECONDS = 10.0
"""Longest time in seconds in which the server proves that it works."""


class DeadManSwitch:
    """Thread that calls ``address`` by GET every ``every_seconds`` if ``works`` returns true. The address is a secret.

    Raises:
        ValueError: if the address cannot be one.
        ImportError: if httpx is not installed.
    """

    def __init__(self, address: str, works: Callable[[float], bool], every_seconds: float = EVERY_SECONDS) -> None:
        self._address = checked_address(address, "dead man's address")
        self._client = DeadlineClient("The dead man's switch", self._address)
        self._works, self._every_seconds = works, every_seconds
        self._worker: Worker | None = None

    def start(self) -> None:
        """Begin."""
        faults = Faults("the server goes on")
        self._worker = Worker("probe-dead-man", "dead man's switch", faults, look=self._look, due=0.0)

    def close(self, seconds: float) -> None:
        """End within ``seconds``; the address is not called any more."""
        if self._worker is not None:
            self._worker.end(self._client.close)
            self._worker.join(seconds)

    def _look(self) -> float:
        if self._works(WORK_SECONDS):
            self._call()
        else:
            _log.warning("the dead man's address is not called: the database cannot be written")
        return self._every_seconds

    def _call(self) -> None:
        try:
            answer = self._client.request("GET", self._address, connect_seconds=CONNECT_SECONDS, seconds=CALL_SECONDS)
        except Unanswered as error:
            _log.warning("the dead man's address does not answer: %s", error)
            return
        if not 200 <= answer.status < 300:
            _log.warning("the dead man's address answers with status %d", answer.status)
