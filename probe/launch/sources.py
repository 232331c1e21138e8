"""Configurations of monitors that trainers' callbacks attach."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from probe.core.config.load import load
from probe.core.config.parse import read
from probe.launch.environment import CONFIG, DEFAULTS, configuration

Source = str | os.PathLike[str] | Mapping[str, Any]
"""JSON or YAML file, or a mapping with the same keys."""


def configured(config: Source | None, overrides: Mapping[str, Any]) -> Source:
    """Return a valid configuration: ``config`` with ``overrides``. A file stays a file if nothing is replaced in it, so
    that its changes can be followed.

    Args:
        config: None for what ``PROBE_CONFIG`` names, else gradients and alerts.

    Raises:
        ConfigError: naming every problem.
    """
    if config is None:
        source: Source = configuration(os.environ) if CONFIG in os.environ else DEFAULTS
    else:
        source = config
    load(source)
    if not overrides:
        return source
    values = source if isinstance(source, Mapping) else read(Path(source))[0]
    merged = {**values, **overrides}
    load(merged)
    return merged
