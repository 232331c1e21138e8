"""The two positional orders of ``set_monitor``: the documented one, and the one in the existing tool's code."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from inspect import Parameter, Signature
from operator import index
from typing import Any, NamedTuple, TypeVar, get_type_hints

_ADVICE = "call set_monitor(model, grad_acc_steps, optimizer, dp_group=None, tp_group=None, start_iteration=0)"


class Attachment(NamedTuple):
    """The arguments of ``set_monitor``, in the documented order."""

    model: Any
    grad_acc_steps: int = 1
    optimizer: Any = None
    dp_group: Any = None
    tp_group: Any = None
    start_iteration: int = 0


_EXISTING = ("model", "optimizer", "grad_acc_steps", "tp_group", "dp_group", "start_iteration")
"""The order in the existing tool's code."""


Function = TypeVar("Function", bound=Callable[..., None])
_KIND = Parameter.POSITIONAL_OR_KEYWORD


def documented(set_monitor: Function) -> Function:
    """Make ``help`` and ``inspect.signature`` show the documented signature of the method ``set_monitor``."""
    hints, optional = get_type_hints(Attachment), Attachment._fields[3:]
    defaults = {name: Attachment._field_defaults[name] if name in optional else Parameter.empty for name in hints}
    shown = [Parameter(name, _KIND, default=defaults[name], annotation=hint) for name, hint in hints.items()]
    signature = Signature([Parameter("self", _KIND), *shown], return_annotation=None)
    set_monitor.__signature__ = signature  # type: ignore[attr-defined]
    return set_monitor


def read(*args: Any, **kwargs: Any) -> Attachment:
    """Return the arguments by name; an optimizer in second place means the existing tool's order.

    Raises:
        TypeError: for a missing, repeated or unknown argument.
        ValueError: for a value out of range.
    """
    return _checked(_named(_EXISTING if len(args) > 1 and _steps(args[1]) else Attachment._fields, args, kwargs))


def read_wrapped(optimizer: Any, /, *args: Any, **kwargs: Any) -> Attachment:
    """Return the arguments as :func:`read`; if the optimizer is missing or None, use ``optimizer``.

    Raises:
        TypeError: as :func:`read`; also if there is no optimizer.
        ValueError: as :func:`read`.
    """
    existing = len(args) > 1 and (args[1] is None or _steps(args[1]))
    attachment = _named(_EXISTING if existing else Attachment._fields, args, kwargs)
    return _checked(attachment._replace(optimizer=optimizer if attachment.optimizer is None else attachment.optimizer))


def _named(order: Sequence[str], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Attachment:
    defaults = Attachment._field_defaults
    parameters = [Parameter(name, _KIND, default=defaults.get(name, Parameter.empty)) for name in order]
    try:
        bound = Signature(parameters).bind(*args, **kwargs)
    except TypeError as error:
        raise TypeError(f"set_monitor: {error}; {_ADVICE}") from None
    return Attachment(**bound.arguments)


def _checked(attachment: Attachment) -> Attachment:
    if attachment.optimizer is None:
        raise TypeError(f"set_monitor: the optimizer is missing; {_ADVICE}")
    for name, value in (("model", attachment.model), ("optimizer", attachment.optimizer)):
        if isinstance(value, (list, tuple, dict)) and not value:
            raise ValueError(
                f"set_monitor: {name}: expected one or a list of them, got an empty {type(value).__name__}; {_ADVICE}"
            )
    if isinstance(attachment.model, dict):
        for key in attachment.model:
            if not isinstance(key, str) or not key or key != key.strip(".") or ":" in key:
                raise ValueError(f"set_monitor: model: expected names such as 'generator', got {key!r}; {_ADVICE}")
    return attachment._replace(
        grad_acc_steps=_count("grad_acc_steps", attachment.grad_acc_steps, 1),
        start_iteration=_count("start_iteration", attachment.start_iteration, 0),
    )


def _steps(value: Any) -> bool:
    """True if ``value`` is one or several optimizers: with ``step()`` or, in MindSpore, called with the gradients."""
    each = value if isinstance(value, (list, tuple)) else [value]
    return bool(each) and all(callable(one) or callable(getattr(one, "step", None)) for one in each)


def _count(name: str, value: Any, least: int) -> int:
    """Return ``value`` as an integer; it may be an integer of NumPy or of a framework, from a checkpoint."""
    try:
        number = None if isinstance(value, bool) else index(value)
    except TypeError:
        number = None
    if number is None or number < least:
        raise ValueError(f"set_monitor: {name}: expected an integer of at least {least}, got {value!r}; {_ADVICE}")
    return number
