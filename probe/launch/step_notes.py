"""Notes of optimizers' steps, taken from outside."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

from probe.core.backend.patch import Undo
from probe.core.door import Around, FaultCounter, attempt, compiling, passage, replace


class StepNotes:
    """Steps of optimizers, before and after.

    The class's method is replaced, and the object's own: schedulers of learning rates give an optimizer one, which
    calls the method that the class had then.

    Args:
        method: name of the method that updates; empty if there is none, and nothing to note.
        inside: returns whether a compiler compiles what its caller calls; such a step is noted while it can still be
            compiled with hooks.
        faults: counter of what the two functions below raise.
        before: called with the optimizer, and whether its step evaluates a closure or will be compiled.
        after: called with the optimizer.
    """

    def __init__(
        self,
        method: str,
        inside: Callable[[], bool],
        faults: FaultCounter,
        before: Callable[[Any, bool], None],
        after: Callable[[Any], None],
    ) -> None:
        self._method, self._inside, self.faults = method, inside, faults
        self._before, self._after = before, after
        self._undos: dict[int, Undo] = {}
        """By identity of the class or object; an undo refers to it."""
        self._running: set[int] = set()

    def note(self, optimizer: Any) -> None:
        """Note the steps of an optimizer, and of others of its class, from now on."""
        self._replace(type(optimizer))
        if self._method in getattr(optimizer, "__dict__", {}):
            self._replace(optimizer)

    def forget(self) -> None:
        """Note no more steps, and put the methods back."""
        for undo in self._undos.values():
            undo()
        self._undos.clear()

    def _replace(self, owner: Any) -> None:
        original = getattr(owner, self._method, None) if self._method else None
        if id(owner) in self._undos or not callable(original):
            return
        call = self._of_class(original) if isinstance(owner, type) else _StepOfObject(self, owner, self._method)
        self._undos[id(owner)] = replace(owner, self._method, call)

    def _of_class(self, original: Callable[..., Any]) -> Callable[..., Any]:
        @passage
        @functools.wraps(original)
        def step(optimizer: Any, *args: Any, **kwargs: Any) -> Any:
            if compiling():
                return original(optimizer, *args, **kwargs)
            return self.noted(optimizer, functools.partial(original, optimizer), args, kwargs)

        return step

    @passage
    def noted(self, optimizer: Any, original: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Call ``original``, a method of ``optimizer``, as a step that is noted once."""
        if not self._undos or id(optimizer) in self._running:  # another may have kept this method
            return original(*args, **kwargs)
        self._running.add(id(optimizer))
        try:
            early = callable(args[0] if args else kwargs.get("closure")) or self._inside()
            attempt(self.faults, "step", self._before, optimizer, early)
            result = original(*args, **kwargs)
        finally:
            self._running.discard(id(optimizer))
        attempt(self.faults, "step", self._after, optimizer)
        return result


class _StepOfObject(Around):
    """Method of one optimizer, whose calls are noted; copies of the optimizer have its own again."""

    def __init__(self, notes: StepNotes, optimizer: Any, method: str) -> None:
        super().__init__(optimizer, method, notes.faults, lambda *_: None, lambda _: None)
        self._notes = notes
        functools.update_wrapper(self, self._original)  # with the mark by which schedulers know their own wrapper

    @passage
    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        if compiling():
            return self._original(*args, **kwargs)
        return self._notes.noted(self._owner, self._original, args, kwargs)
