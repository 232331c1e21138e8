"""Preparation of a process: when the program imports a framework, its optimizers are noted as they are made.

Every process of a watched program imports this module at its start, so that it imports nothing that takes long.
"""

from __future__ import annotations

from collections.abc import Mapping
from importlib import import_module
from types import ModuleType

from probe.launch.environment import CHECKED, is_watched
from probe.launch.imports import after_import

FRAMEWORKS = ("torch", "mindspore")


def prepare(environ: Mapping[str, str]) -> None:
    """Prepare this process if its environment is that of a watched program."""
    if is_watched(environ):
        for framework in FRAMEWORKS:
            after_import(framework, note_optimizers)
        if environ.get(CHECKED) == "1":
            import_module("probe.launch.trial").prepare_trial(environ)


def note_optimizers(framework: ModuleType) -> None:
    """Note optimizers of a framework as they are made, from now on."""
    import_module("probe.launch.made_objects").note_optimizers(framework)
