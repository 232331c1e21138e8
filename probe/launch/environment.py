"""Environment of a program that is watched."""

from __future__ import annotations

import os
import time
from collections.abc import Mapping
from pathlib import Path

CONFIG = "PROBE_CONFIG"
"""Variable with the path of the configuration, or with a name of :data:`NAMED`. Processes without it are left alone."""
WATCHED = "PROBE_RUN_ID"
"""Variable with the identity of the program: that of ``probe.core.launch``, which not every process is to import."""
CHECKED = "PROBE_CHECK"
"""Variable that is 1 in the processes of ``probe check``, by which a program knows that it is only tried."""
SWITCH = "PROBE_RUN"
"""Variable that is 0 where nothing is to be watched."""
DEFAULT, DEEP, LIGHT = "default", "deep", "light"
DEFAULTS: Mapping[str, object] = {
    "wg_distribution": True,
    "ops": ["norm", "min", "max", "nans"],
    "max_overhead": 0.01,
    "format": ["csv"],
    "step_count_per_record": 100,
    "sentinel": {"enable": True},
}
"""Configuration without a file: gradients and alerts, within a hundredth of the time of training, and the sentinel."""
NAMED: Mapping[str, Mapping[str, object]] = {
    DEFAULT: DEFAULTS,
    DEEP: {
        **DEFAULTS,
        "xy_distribution": True,
        "all_xy": True,
        "param_distribution": True,
        "max_overhead": None,
    },
    LIGHT: {"format": ["csv"], "step_count_per_record": 100, "sentinel": {"enable": True}},
}
"""Configurations without a file: the usual one; activations and parameters too, at every step; the sentinel alone."""
SITE = Path(__file__).resolve().parent / "site"
"""Folder of the ``sitecustomize`` that prepares each process."""
_PATH = "PYTHONPATH"


def watched(environ: Mapping[str, str], config: Path | str | None) -> dict[str, str]:
    """Return ``environ`` with what the processes of a watched program need; what the program has set stays.

    Args:
        config: a file, or a name of :data:`NAMED`; None for the one that ``environ`` names, else for :data:`DEFAULTS`.
    """
    others = environ[_PATH].split(os.pathsep) if environ.get(_PATH) else []
    paths = [str(SITE), *(path for path in others if path != str(SITE))]
    source = environ.get(CONFIG, DEFAULT) if config is None else str(config)
    if isinstance(config, Path):
        source = str(config.resolve())
    identity = environ.get(WATCHED) or f"{time.time_ns():x}"
    return {**environ, CONFIG: source, WATCHED: identity, _PATH: os.pathsep.join(paths)}


def is_watched(environ: Mapping[str, str]) -> bool:
    """Return whether the processes of an environment are watched."""
    return CONFIG in environ and environ.get(SWITCH) != "0"


def configuration(environ: Mapping[str, str]) -> Path | Mapping[str, object]:
    """Return the configuration that an environment names."""
    source = environ[CONFIG]
    return NAMED[source] if source in NAMED else Path(source)


def flags(original: list[str]) -> list[str]:
    """Return the flags of an interpreter, such as ``-O`` and ``-X dev``, from its command line."""
    flag_words: list[str] = []
    words = iter(original[1:])
    for word in words:
        if not word.startswith("-") or word in ("-m", "-c", "-"):
            break
        flag_words.append(word)
        if word in ("-X", "-W"):
            flag_words.append(next(words, ""))
    return flag_words
