"""Dead man's switch: an address that is called as long as this server works. Whoever watches it notices the silence."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable

from probe.core.run_state.deadline_client import DeadlineClient, Unanswered, checked_address

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
        self._client = DeadlineClient("The dead man's switch", address.startswith("https"))
        self._works, self._every_seconds = works, every_seconds
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run, name="probe-dead-man", daemon=True)

    def start(self) -> None:
        """Begin."""
        self._thread.start()

    def close(self, seconds: float) -> None:
        """End within ``seconds``; the address is not called any more."""
        self._ended.set()
        self._thread.join(seconds)

    def _run(self) -> None:
        while not self._ended.is_set():
            if self._works(WORK_SECONDS):
                self._call()
            else:
                _log.warning("the dead man's address is not called: the database cannot be written")
            self._ended.wait(self._every_seconds)
        self._client.close()

    def _call(self) -> None:
        try:
            answer = self._client.request("GET", self._address, connect_seconds=CONNECT_SECONDS, seconds=CALL_SECONDS)
        except Unanswered as error:
            _log.warning("the dead man's address does not answer: %s", error)
            return
        if not 200 <= answer.status < 300:
            _log.warning("the dead man's address answers with status %d", answer.status)
