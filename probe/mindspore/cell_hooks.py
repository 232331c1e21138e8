"""Python listeners on cells, in a form that graph compilation accepts.

``mindspore.jit`` compiles a cell together with the hooks of the cells inside it. A hook in plain Python breaks the
compilation or becomes a part of the graph. A hook that is a cell is called by ``__call__`` in Python, and compiled from
``construct``: the hooks here listen in ``__call__``, and their ``construct`` is empty. See decision 5.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

from mindspore import nn

from probe.core.backend.call_stack import callers
from probe.core.backend.protocols import Remove
from probe.mindspore.tensors import Deferred

ITERATING = ("_run_forward_pre_hook", "_run_forward_hook")
"""Methods of a cell that call its hooks."""


class Before(nn.Cell):
    """Hook that receives ``(args, kwargs)`` before a cell runs."""

    def __init__(self, listen: Callable[[tuple[Any, ...], dict[str, Any]], None]) -> None:
        super().__init__(auto_prefix=False)
        self.__dict__["listen"] = surfacing(listen)

    def __deepcopy__(self, _memo: dict[int, Any]) -> Any:
        """Return a listener without effect, for a copy of the cell."""
        return type(self)(_nothing)

    def __call__(self, _cell: Any, args: tuple[Any, ...], kwargs: dict[str, Any] | None = None) -> None:
        self.__dict__["listen"](args, kwargs or {})

    def construct(self, _cell: Any, _inputs: Any) -> None:
        """Do nothing when compiled."""
        return None  # noqa: RET501 - the compiler wants to see it


class After(nn.Cell):
    """Hook that receives the outputs after a cell has run."""

    def __init__(self, listen: Callable[[Any], None]) -> None:
        super().__init__(auto_prefix=False)
        self.__dict__["listen"] = surfacing(listen)

    def __deepcopy__(self, _memo: dict[int, Any]) -> Any:
        """Return a listener without effect, for a copy of the cell."""
        return type(self)(_nothing)

    def __call__(self, _cell: Any, _args: tuple[Any, ...], outputs: Any) -> None:
        self.__dict__["listen"](outputs)

    def construct(self, _cell: Any, _inputs: Any, _outputs: Any) -> None:
        """Do nothing when compiled."""
        return None  # noqa: RET501


class OfGradient(nn.Cell):
    """Hook that receives the gradient of a parameter."""

    def __init__(self, listen: Callable[[Any], None]) -> None:
        super().__init__(auto_prefix=False)
        self.__dict__["listen"] = surfacing(listen)

    def __deepcopy__(self, _memo: dict[int, Any]) -> Any:
        """Return a listener without effect, for a copy of the parameter."""
        return type(self)(_nothing)

    def __call__(self, gradient: Any) -> None:
        self.__dict__["listen"](gradient)

    def construct(self, _gradient: Any) -> None:
        """Do nothing when compiled."""
        return None  # noqa: RET501


def surfacing(function: Callable[..., None]) -> Callable[..., None]:
    """Wrap ``function`` for MindSpore: a failure of training that is noticed while reading is raised as it was."""

    def call(*args: Any) -> None:
        try:
            function(*args)
        except Deferred as deferred:
            raise deferred.error from None

    return call


def before(cell: Any, listen: Callable[[tuple[Any, ...], dict[str, Any]], None]) -> Remove:
    """Listen to the inputs of ``cell``."""
    register = cell.register_forward_pre_hook
    options = _options(register, "with_kwargs")
    if _keeps_hooks_of_its_own(cell):
        remove: Remove = register(Before(listen).__call__, **options).remove
        return remove
    return _place(cell, cell._forward_pre_hook, Before(listen), register(_nothing, **options))


def _options(register: Callable[..., Any], option: str) -> dict[str, bool]:
    """Return the option, which older versions of MindSpore (and of other packages) lack, as arguments."""
    return {option: True} if option in inspect.signature(register).parameters else {}


def after(cell: Any, listen: Callable[[Any], None], raised_too: bool = False) -> Remove:
    """Listen to the outputs of ``cell``; if ``raised_too``, and where MindSpore can, also to its end by an exception,
    with None."""
    if _keeps_hooks_of_its_own(cell):
        remove: Remove = cell.register_forward_hook(After(listen).__call__).remove
        return remove
    options = _options(cell.register_forward_hook, "always_call") if raised_too else {}
    return _place(cell, cell._forward_hook, After(listen), cell.register_forward_hook(_nothing, **options))


def _keeps_hooks_of_its_own(module: Any) -> bool:
    """Return whether ``module`` is of another package (msadapter, mindtorch). It may be a cell and yet call only the
    hooks that were registered through its own methods; it is not compiled."""
    return getattr(type(module), "register_forward_hook", None) is not nn.Cell.register_forward_hook


def _place(cell: Any, hooks: dict[Any, Any], listener: Any, handle: Any) -> Remove:
    """Replace the function that ``handle`` has placed by ``listener``: before 2.10 only functions can be registered."""
    place = next(reversed(hooks))
    hooks[place] = listener

    def remove() -> None:
        if _runs_hooks_of(cell):  # the cell iterates over this dict: removing a hook now would raise in training
            listener.__dict__["listen"] = _nothing
        elif hooks.get(place) is listener:
            handle.remove()

    return remove


def _runs_hooks_of(cell: Any) -> bool:
    return any(f.f_code.co_name in ITERATING and f.f_locals.get("self") is cell for f in callers())


def _nothing(*_: Any) -> None:
    """Do nothing: replaces the function of a listener that cannot be removed now."""
