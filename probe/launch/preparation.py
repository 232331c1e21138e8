"""Preparation of a process: when the program imports a framework, its optimizers are noted as they are made.

Every process of a watched program imports this module at its start, so that it imports nothing that takes long.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import ModuleType

from probe.launch.environment import CHECKED, is_watched
from probe.launch.imports import after_import

FRAMEWORKS = ("torch", "mindspore")


def prepare(environ: Mapping[str, str]) -> None:
    """Prepare this process if its environment is that of a watched program."""
    if is_watched(environ):
        for framework in FRAMEWORKS:
            after_import(framework, note_optimizers)
        # These import the framework themselves, so that waiting for them only from then on would come too late.
        after_import("deepspeed", _note_engines)
        after_import("megatron.core.optimizer", _note_megatron)
        after_import("mindformers.tools.register", _register_callback)
        after_import("transformers.trainer_callback", _record_logs)
        if environ.get(CHECKED) == "1":
            from probe.launch.trial import prepare_trial

            prepare_trial(environ)


def note_optimizers(framework: ModuleType) -> None:
    """Note optimizers of a framework as they are made, from now on."""
    from probe.launch import made_objects

    made_objects.note_optimizers(framework)


def _note_engines(deepspeed: ModuleType) -> None:
    from probe.launch import made_objects

    made_objects.note_engines_of_deepspeed(deepspeed)


def _note_megatron(optimizer: ModuleType) -> None:
    from probe.launch import made_objects

    made_objects.note_optimizers_of_megatron(optimizer)


def _record_logs(trainer_callback: ModuleType) -> None:
    from probe.launch import made_objects

    made_objects.record_logs_of_trainer(trainer_callback)


def _register_callback(register: ModuleType) -> None:
    from probe.launch import made_objects

    made_objects.register_callback(register)
