"""Preparation of a process: when the program imports a framework, its optimizers are noted as they are made.

Every process of a watched program imports this module at its start, so that it imports nothing that takes long.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from importlib import import_module
from types import ModuleType

from probe.launch.environment import CHECKED, is_watched
from probe.launch.imports import after_import

FRAMEWORKS = ("torch", "mindspore")
ENGINES = {
    "deepspeed": "note_engines_of_deepspeed",
    "megatron.core.optimizer": "note_optimizers_of_megatron",
    "mindformers.tools.register": "register_callback",
}
"""Modules on top of a framework, each with the function of ``made_objects`` that is called with it. They import the
framework themselves, so that waiting for them only from then on would come too late."""


def prepare(environ: Mapping[str, str]) -> None:
    """Prepare this process if its environment is that of a watched program."""
    if is_watched(environ):
        for framework in FRAMEWORKS:
            after_import(framework, note_optimizers)
        for engine, function in ENGINES.items():
            after_import(engine, partial(_call, function))
        if environ.get(CHECKED) == "1":
            import_module("probe.launch.trial").prepare_trial(environ)


def note_optimizers(framework: ModuleType) -> None:
    """Note optimizers of a framework as they are made, from now on."""
    import_module("probe.launch.made_objects").note_optimizers(framework)


def _call(function: str, engine: ModuleType) -> None:
    getattr(import_module("probe.launch.made_objects"), function)(engine)
