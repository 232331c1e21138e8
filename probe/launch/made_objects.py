"""Objects that a framework makes for the program: optimizers, wrappers of models, engines. Functions of the framework
are replaced to note them; a compiler traces each to the function that it replaces."""

from __future__ import annotations

import atexit
import functools
import os
import sys
from collections.abc import Callable
from importlib import import_module
from types import ModuleType
from typing import Any

from probe.core.backend.live_objects import instances
from probe.core.door import attempt, compiling, passage, replace
from probe.launch import compilers
from probe.launch.failures import FAILURES, unwatched

FINDERS = {"torch": "probe.pytorch.finding", "mindspore": "probe.mindspore.finding"}
"""Frameworks, each with the module that finds models; it is imported with the first optimizer."""

NO_OPTIMIZER = (
    "nothing was watched: parameters have gradients, and no optimizer of torch was made; "
    "to watch the training, let an optimizer update them, such as torch.optim.SGD(model.parameters(), lr)"
)

_prepared: set[str] = set()
"""Frameworks whose optimizers are noted as they are made."""


def note_optimizers(framework: ModuleType) -> None:
    """Note optimizers of a framework as they are made, from now on."""
    if framework.__name__ in _prepared:
        return
    _prepared.add(framework.__name__)
    if framework.__name__ == "torch":
        compilers.keep_out(framework)
    for owner in _optimizers(framework):
        note_made(owner, _made_by(framework.__name__))
    if framework.__name__ == "torch":
        for wrapper in (framework.nn.parallel.DistributedDataParallel, framework.nn.DataParallel):
            note_made(wrapper, _wrapped)
        atexit.register(_ended, framework, os.getpid())


def register_callback(_: ModuleType) -> None:
    """Make MindSpore Transformers know our callback, which registers itself."""
    import_module("probe.mindspore.callbacks")


def record_logs_of_trainer(trainer_callback: ModuleType) -> None:
    """Record what the Trainer of Hugging Face logs, unless a callback of ours in the program does so."""
    owner = trainer_callback.CallbackHandler
    original: Callable[..., Any] = owner.on_log

    @passage
    @functools.wraps(original)
    def on_log(handler: Any, args: Any, state: Any, control: Any, logs: Any, *more: Any, **named: Any) -> Any:
        attempt(FAILURES, "logs of the Trainer", _record_logs, handler, logs)
        return original(handler, args, state, control, logs, *more, **named)

    replace(owner, "on_log", on_log)


def _record_logs(handler: Any, logs: Any) -> None:
    from probe.core.monitor.trainer_mon import watcher_of

    ours = import_module("probe.pytorch.callbacks.huggingface")
    monitor = watcher_of([handler.model])
    has_callback = any(isinstance(callback, ours.HuggingFaceCallback) for callback in handler.callbacks)
    if monitor is not None and monitor.automatic and not has_callback:
        monitor.log_ended(**ours.numbers_of(logs))


def _optimizers(framework: ModuleType) -> list[type]:
    """Return the classes from which all optimizers of a framework are derived."""
    if framework.__name__ == "torch":
        return [framework.optim.Optimizer]
    experimental = getattr(getattr(framework, "experimental", None), "optim", None)
    candidates = [getattr(framework.nn, "Optimizer", None), getattr(experimental, "Optimizer", None)]
    return [candidate for candidate in candidates if candidate is not None]


def note_made(owner: type, made: Callable[[Any], None]) -> None:
    """Call ``made`` with each object of a class after its ``__init__``."""
    original: Callable[..., None] = owner.__init__  # type: ignore[misc]

    @passage
    @functools.wraps(original)
    def __init__(self: Any, *args: Any, **kwargs: Any) -> None:  # noqa: N807
        if compiling():
            return original(self, *args, **kwargs)
        original(self, *args, **kwargs)
        attempt(FAILURES, "made", made, self)
        return None

    owner.__init__ = __init__  # type: ignore[misc]


def _made_by(framework: str) -> Callable[[Any], None]:
    def made(optimizer: Any) -> None:  # a function, since a compiler that traces its caller cannot take a partial
        _finding(framework).made(optimizer)

    return made


def _finding(framework: str) -> Any:
    return import_module(FINDERS[framework]).WATCH


def _wrapped(wrapper: Any) -> None:
    if (finding := sys.modules.get(FINDERS["torch"])) is not None:  # else there is no optimizer yet
        finding.WATCH.wrapped(wrapper)


def _noting(original: Callable[..., Any], made: Callable[[Any, tuple[Any, ...], dict[str, Any]], None]) -> Any:
    """Return a function that calls ``made`` with what ``original`` has returned, and its arguments."""

    @passage
    @functools.wraps(original)
    def call(*args: Any, **kwargs: Any) -> Any:
        if compiling():
            return original(*args, **kwargs)
        result = original(*args, **kwargs)
        attempt(FAILURES, "made", made, result, args, kwargs)
        return result

    return call


def note_engines_of_deepspeed(module: ModuleType) -> None:
    """Note what ``deepspeed.initialize`` makes, from now on."""

    def made(result: Any, *_: Any) -> None:
        engine, optimizer = result[0], result[1]
        if optimizer is not None:
            _finding("torch").paired(engine, optimizer)

    module.initialize = _noting(module.initialize, made)  # type: ignore[attr-defined]


def note_optimizers_of_megatron(module: ModuleType) -> None:
    """Note the optimizers that Megatron-Core makes, from now on."""

    def made(optimizer: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        chunks = kwargs.get("model_chunks", args[1] if len(args) > 1 else None)
        _finding("torch").paired(chunks, optimizer)

    module.get_megatron_optimizer = _noting(module.get_megatron_optimizer, made)  # type: ignore[attr-defined]


def _ended(framework: ModuleType, process: int) -> None:
    """Report a training that updates its parameters without an optimizer, at the end of the process."""
    if os.getpid() == process and FINDERS[framework.__name__] not in sys.modules:
        attempt(FAILURES, "end", _report_gradients, framework.nn.Parameter)


def _report_gradients(parameter: type) -> None:
    if any(made.grad is not None for made in instances(parameter)):
        unwatched(NO_OPTIMIZER)
