"""Entry point by which Lightning gets a callback from a program that is watched without a line of code."""

from __future__ import annotations

import os
from importlib import import_module
from typing import Any

from probe.launch.environment import is_watched

MODULE = "probe.pytorch.callbacks.lightning"
"""Module of the callback; it is imported if there is something to watch."""


def callbacks() -> list[Any]:
    """Return a callback if the environment names a configuration (``PROBE_CONFIG``), else none."""
    if not is_watched(os.environ):
        return []
    from probe.core.door import attempt
    from probe.launch.failures import FAILURES

    made = attempt(FAILURES, "callback", _made)
    return [] if made is None else [made]


def _made() -> Any:
    return import_module(MODULE).LightningCallback.of_environment()
