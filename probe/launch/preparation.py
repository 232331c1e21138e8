"""Preparation of a process: when the program imports a framework, its optimizers are noted as they are made."""

from __future__ import annotations

import atexit
import functools
import gc
import os
import sys
from collections.abc import Callable, Mapping
from importlib import import_module
from types import ModuleType
from typing import Any

from probe.launch.environment import is_watched
from probe.launch.imports import after_import

FINDERS = {"torch": "probe.pytorch.finding", "mindspore": "probe.mindspore.finding"}
"""Frameworks, each with the module that finds models; it is imported with the first optimizer."""

NO_OPTIMIZER = (
    "nothing was watched: parameters have gradients, and no optimizer of torch was made; "
    "to watch the training, let an optimizer update them, such as torch.optim.SGD(model.parameters(), lr)"
)


def prepare(environ: Mapping[str, str]) -> None:
    """Prepare this process if its environment is that of a watched program."""
    if is_watched(environ):
        for framework in FINDERS:
            after_import(framework, _prepare)


_PREPARED: set[str] = set()
"""Frameworks whose optimizers are noted as they are made."""


def note_optimizers(framework: ModuleType) -> None:
    """Note optimizers of a framework as they are made, from now on."""
    if framework.__name__ not in _PREPARED:
        _prepare(framework)


def _prepare(framework: ModuleType) -> None:
    _PREPARED.add(framework.__name__)
    for owner in _optimizers(framework):
        note_made(owner, functools.partial(_made, framework.__name__))
    if framework.__name__ == "torch":
        for wrapper in (framework.nn.parallel.DistributedDataParallel, framework.nn.DataParallel):
            note_made(wrapper, _wrapped)
        after_import("megatron.core.optimizer", _prepare_megatron)
        after_import("deepspeed", _prepare_deepspeed)
        atexit.register(_ended, framework, os.getpid())
    else:
        after_import("mindformers.tools.register", _register)


def _register(_: ModuleType) -> None:
    """Make MindSpore Transformers know our callback, which registers itself."""
    guarded(lambda: import_module("probe.mindspore.callbacks"))


def _optimizers(framework: ModuleType) -> list[type]:
    """Return the classes from which all optimizers of a framework are derived."""
    if framework.__name__ == "torch":
        return [framework.optim.Optimizer]
    experimental = getattr(getattr(framework, "experimental", None), "optim", None)
    found = [getattr(framework.nn, "Optimizer", None), getattr(experimental, "Optimizer", None)]
    return [each for each in found if each is not None]


def note_made(owner: type, made: Callable[[Any], None]) -> None:
    """Call ``made`` with each object of a class after its ``__init__``."""
    original: Callable[..., None] = owner.__init__  # type: ignore[misc]

    @functools.wraps(original)
    def __init__(self: Any, *args: Any, **kwargs: Any) -> None:  # noqa: N807
        original(self, *args, **kwargs)
        guarded(lambda: made(self))

    owner.__init__ = __init__  # type: ignore[misc]


def _made(framework: str, optimizer: Any) -> None:
    _finding(framework).made(optimizer)


def _finding(framework: str) -> Any:
    return import_module(FINDERS[framework]).WATCH


def _wrapped(wrapper: Any) -> None:
    if (finding := sys.modules.get(FINDERS["torch"])) is not None:  # else there is no optimizer yet
        finding.WATCH.wrapped(wrapper)


def _prepare_deepspeed(module: ModuleType) -> None:
    original: Callable[..., Any] = module.initialize

    @functools.wraps(original)
    def initialize(*args: Any, **kwargs: Any) -> Any:
        made = original(*args, **kwargs)
        if made[1] is not None:
            guarded(lambda: _finding("torch").paired(made[0], made[1]))
        return made

    module.initialize = initialize  # type: ignore[attr-defined]


def _prepare_megatron(module: ModuleType) -> None:
    original: Callable[..., Any] = module.get_megatron_optimizer

    @functools.wraps(original)
    def get_megatron_optimizer(*args: Any, **kwargs: Any) -> Any:
        optimizer = original(*args, **kwargs)
        chunks = kwargs.get("model_chunks", args[1] if len(args) > 1 else None)
        guarded(lambda: _finding("torch").paired(chunks, optimizer))
        return optimizer

    module.get_megatron_optimizer = get_megatron_optimizer  # type: ignore[attr-defined]


def _ended(framework: ModuleType, process: int) -> None:
    """Report a training that updates its parameters without an optimizer, at the end of the process."""
    if os.getpid() == process and FINDERS[framework.__name__] not in sys.modules:
        guarded(lambda: _report_gradients(framework.nn.Parameter))


def _report_gradients(parameter: type) -> None:
    if any(parameter in type(each).__mro__ and each.grad is not None for each in gc.get_objects()):
        import_module("probe.core.messages").complain(NO_OPTIMIZER, "warning")


def guarded(work: Callable[[], object]) -> None:
    """Do ``work``; of a failure, write one line: the program runs all the same."""
    try:
        work()
    except Exception as error:  # noqa: BLE001 - nothing of ours may end the program
        text = " ".join(f"{type(error).__name__}: {error}".split())
        sys.stderr.write(f"probe: warning: this program is not watched ({text})\n")
