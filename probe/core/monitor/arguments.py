"""The two positional orders of ``set_monitor``: the documented one, and the one in the existing tool's code."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from functools import wraps
from inspect import Parameter, Signature, signature
from operator import index
from typing import Any, TypeVar, cast

Arguments = Mapping[str, Any]
"""The arguments of ``set_monitor``, all of them, by name."""
Function = TypeVar("Function", bound=Callable[..., None])
Called = TypeVar("Called", bound=Callable[..., Any])

_ADVICE = "call set_monitor(model, grad_acc_steps, optimizer, dp_group=None, tp_group=None, start_iteration=0)"
NAMES = ("model", "grad_acc_steps", "optimizer", "dp_group", "tp_group", "start_iteration")
"""The documented order."""
_EXISTING = ("model", "optimizer", "grad_acc_steps", "tp_group", "dp_group", "start_iteration")
"""The order in the existing tool's code."""
_DEFAULTS = {"grad_acc_steps": 1, "optimizer": None, "dp_group": None, "tp_group": None, "start_iteration": 0}
_LEAST = {"grad_acc_steps": 1, "start_iteration": 0}
"""Least values of the numbers."""
_KIND = Parameter.POSITIONAL_OR_KEYWORD


def documented(set_monitor: Function) -> Function:
    """Make ``help`` and ``inspect.signature`` show the documented signature of the method ``set_monitor``."""
    parameters = [Parameter("self", _KIND)]
    for name in NAMES:
        default = _DEFAULTS[name] if name in NAMES[3:] else Parameter.empty
        parameters.append(Parameter(name, _KIND, default=default, annotation=int if name in _LEAST else Any))
    set_monitor.__signature__ = Signature(parameters, return_annotation=None)  # type: ignore[attr-defined]
    return set_monitor


def checked(call: str) -> Callable[[Function], Function]:
    """Make the ``__init__`` of a monitor refuse arguments that it does not take with the ``call`` that is meant."""

    def refuse(init: Function) -> Function:
        parameters = signature(init)

        @wraps(init)
        def __init__(self: Any, *args: Any, **kwargs: Any) -> None:  # noqa: N807
            try:
                parameters.bind(self, *args, **kwargs)
            except TypeError as error:
                name = type(self).__name__
                raise TypeError(f"{name}: {error}; call {name}({call})") from None
            init(self, *args, **kwargs)

        return __init__  # type: ignore[return-value]

    return refuse


def reported(result: Callable[[], object], needs: str = "run") -> Callable[[Called], Called]:
    """Make a method of a monitor report a call that has no effect, and return ``result()``: training goes on.

    Args:
        needs: ``run`` if a call has an effect in a run in progress alone, ``before`` if before it, too; else empty.
    """

    def decorate(method: Called) -> Called:
        name, (_, *parameters) = method.__name__, signature(method).parameters.values()
        call = f"{name}({', '.join(str(parameter.replace(annotation=Parameter.empty)) for parameter in parameters)})"

        @wraps(method)
        def reporting(self: Any, *args: Any, **kwargs: Any) -> Any:
            check_bound(self, name)
            lack = self._lack(needs)
            try:
                if lack is None:
                    return method(self, *args, **kwargs)
            except TypeError as error:
                if error.__traceback__ is None or error.__traceback__.tb_next is not None:
                    raise  # not by the call itself
                lack = f"expected {call}, got {str(error).partition('() ')[2]}; correct the call"
            if lack:
                self._report(f"{name}: no effect: {lack}".replace("%", "%%"))
            return result()

        return cast("Called", reporting)

    return decorate


def check_bound(monitor: object, name: str) -> None:
    """Raise TypeError if a method was called on the class of monitors, with ``monitor`` in the place of one."""
    if not hasattr(monitor, "_lack"):
        got = f"got the class, and {type(monitor).__name__} in the place of one"
        raise TypeError(f"{name}: expected a monitor, {got}; write monitor = TrainerMon(...); monitor.{name}(...)")


def takes_one(function: object) -> bool:
    """Return whether ``function`` can be called with one argument, as far as its signature can be read."""
    try:
        signature(function).bind(None)  # type: ignore[arg-type]  # what is no function raises TypeError
    except ValueError:
        pass
    except TypeError:
        return False
    return True


def seconds_of(value: Any) -> float:
    """Return ``value`` as a number; NaN if it is none."""
    try:
        return float(value)
    except (TypeError, ValueError, OverflowError):
        return math.nan


def read(*args: Any, **kwargs: Any) -> Arguments:
    """Return the arguments by name; an optimizer in second place means the existing tool's order.

    Raises:
        TypeError: for a missing, repeated or unknown argument.
        ValueError: for a value out of range.
    """
    return _checked(_named(_EXISTING if len(args) > 1 and _steps(args[1]) else NAMES, args, kwargs))


def read_wrapped(optimizer: Any, /, *args: Any, **kwargs: Any) -> Arguments:
    """Return the arguments as :func:`read`; if the optimizer is missing or None, use ``optimizer``.

    Raises:
        TypeError: as :func:`read`; also if there is no optimizer.
        ValueError: as :func:`read`.
    """
    existing = len(args) > 1 and (args[1] is None or _steps(args[1]))
    arguments = _named(_EXISTING if existing else NAMES, args, kwargs)
    return _checked(arguments if arguments["optimizer"] is not None else {**arguments, "optimizer": optimizer})


def _named(order: Sequence[str], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Arguments:
    parameters = [Parameter(name, _KIND, default=_DEFAULTS.get(name, Parameter.empty)) for name in order]
    try:
        bound = Signature(parameters).bind(*args, **kwargs)
    except TypeError as error:
        raise TypeError(f"set_monitor: {error}; {_ADVICE}") from None
    return {**_DEFAULTS, **bound.arguments}


def _checked(arguments: Arguments) -> Arguments:
    model, optimizer = arguments["model"], arguments["optimizer"]
    if optimizer is None:
        raise TypeError(f"set_monitor: the optimizer is missing; {_ADVICE}")
    for name, value in (("model", model), ("optimizer", optimizer)):
        if isinstance(value, type):
            raise ValueError(
                f"set_monitor: {name}: expected an object, got the class {value.__name__}; make one; {_ADVICE}"
            )
        if isinstance(value, (list, tuple, dict)) and not value:
            raise ValueError(
                f"set_monitor: {name}: expected one or a list of them, got an empty {type(value).__name__}; {_ADVICE}"
            )
        if isinstance(value, list | tuple) and len({*map(id, value)}) < len(value):
            raise ValueError(f"set_monitor: {name}: expected each {name} once, got one more than once; {_ADVICE}")
    if isinstance(model, dict):
        for key in model:
            if not isinstance(key, str) or not key or key != key.strip(".") or ":" in key:
                raise ValueError(f"set_monitor: model: expected names such as 'generator', got {key!r}; {_ADVICE}")
    return {**arguments, **{name: _count(name, arguments[name], least) for name, least in _LEAST.items()}}


def _steps(value: Any) -> bool:
    """True if ``value`` is one or several optimizers: with ``step()`` or, in MindSpore, called with the gradients."""
    optimizers = value if isinstance(value, (list, tuple)) else [value]
    return bool(optimizers) and all(callable(item) or callable(getattr(item, "step", None)) for item in optimizers)


def _count(name: str, value: Any, least: int) -> int:
    """Return ``value`` as an integer; it may be an integer of NumPy or of a framework, from a checkpoint."""
    try:
        number = None if isinstance(value, bool) else index(value)
    except TypeError:
        number = None
    if number is None or number < least:
        raise ValueError(f"set_monitor: {name}: expected an integer of at least {least}, got {value!r}; {_ADVICE}")
    return number
