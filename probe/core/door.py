"""The door: whatever a framework, an optimizer, a process or a signal calls of this package enters through it.

Behind it nothing raises into training and nothing is traced or compiled: a compiler that traces a hook sees a function
without effect. What lies in an object of the user's copies and pickles as if it were not there. In a forked child, the
hooks of its parent have no effect.
"""

from __future__ import annotations

import functools
import inspect
import itertools
import operator
import os
import time
import weakref
from collections.abc import Callable
from contextlib import nullcontext
from types import CodeType, FunctionType
from typing import Any, Protocol, TypeVar

Result = TypeVar("Result")
Function = TypeVar("Function", bound=Callable[..., Any])
Remove = Callable[[], None]
Arguments = tuple[tuple[Any, ...], dict[str, Any]]

_ABSENT = object()


class FaultCounter(Protocol):
    """Counter of failures, such as :class:`probe.core.faults.Faults`."""

    uncounted: int
    """Failures at the end of the stack, where :meth:`note` cannot be called."""

    def note(self, where: str, error: BaseException) -> None:
        """Count a failure by its place and kind, and log it."""


class Meter(Protocol):
    """Measurement of the work in hooks."""

    clock: Any
    """Clock of a device; None if there is none: then only ``hooks`` counts."""
    hooks: float
    """Seconds on the host so far."""

    def begin(self) -> Any:
        """Begin a piece of work; return its beginning."""

    def end(self, begun: Any) -> None:
        """End a piece of work."""


class SampledStep(Protocol):
    """State of the step in progress, which a :class:`StepHook` reads first."""

    sampled: bool


def attempt(faults: FaultCounter, where: str, function: Callable[..., Result], *args: Any) -> Result | None:
    """Return the result of ``function``; None if it raises, which ``faults`` counts under ``where``."""
    try:
        return function(*args)
    except Exception as error:  # noqa: BLE001 - nothing of ours may raise into training; it is counted
        count(faults, where, error)
        return None


def succeeds(faults: FaultCounter, where: str, function: Callable[..., object], *args: Any) -> bool:
    """Return whether ``function`` returns; if it raises, ``faults`` counts that under ``where``."""
    try:
        function(*args)
    except Exception as error:  # noqa: BLE001 - nothing of ours may raise into training; it is counted
        count(faults, where, error)
        return False
    return True


def count(faults: FaultCounter, where: str, error: BaseException) -> None:
    """Count a failure of the package itself; never raises."""
    try:
        faults.note(where, error)
    except Exception:  # noqa: BLE001 - at the end of the stack nothing can be called
        faults.uncounted += 1


def _never() -> bool:
    return False


def _never_skipped(_: CodeType, __: bool) -> None:
    """Compile nothing: there is no compiler."""


_process = os.getpid()
_compiling: Callable[[], bool] = _never
_skip: Callable[[CodeType, bool], object] = _never_skipped
_entrances: dict[CodeType, bool] = {}
"""Code of the functions through which frameworks enter, and whether what it calls is of this package alone."""
_numbers = itertools.count(1)
_reports: weakref.WeakValueDictionary[int, Traced] = weakref.WeakValueDictionary()


def _renew() -> None:
    global _process  # noqa: PLW0603 - a fact of the process
    _process = os.getpid()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_renew)


def keep_compilers_out(compiling: Callable[[], bool], skip: Callable[[CodeType, bool], object]) -> None:
    """Keep the code of the door out of a framework's compiler: traced calls of it do nothing, and it is not compiled.

    Args:
        compiling: returns whether a compiler traces; the compiler evaluates it as a constant.
        skip: marks the code of a function that is never to be compiled by itself; if the second argument is true,
            nor is what it calls.
    """
    global _compiling, _skip
    _compiling, _skip = compiling, skip
    for code, with_calls in _entrances.items():
        skip(code, with_calls)


def compiling() -> bool:
    """Return whether a compiler traces. What a framework calls evaluates this first, and then has no effect."""
    return _compiling()


def entrance(function: Function) -> Function:
    """Mark a function that a framework calls, so that no compiler compiles it by itself, nor what it calls."""
    return _marked(function, True)


def passage(function: Function) -> Function:
    """Mark a function that replaces one of a framework or of the program and calls it, so that no compiler compiles it
    by itself. What it calls is compiled as without it; its own work goes through :func:`attempt`."""
    return _marked(function, False)


def _marked(function: Function, with_calls: bool) -> Function:
    if (code := function.__code__) not in _entrances:
        _entrances[code] = with_calls
        _skip(code, with_calls)
    return function


for _function in (attempt, succeeds, count):
    entrance(_function)


class Traced:
    """Report that a compiler has traced a hook, whose calls will not be seen.

    Args:
        report: is called at each tracing; must not raise.
    """

    def __init__(self, report: Callable[[], object]) -> None:
        self.number, self.report = next(_numbers), report
        _reports[self.number] = self


def note_tracing(number: int) -> int:
    """Call the :class:`Traced` of this number. A compiler evaluates this function while it traces, and keeps the
    result as a constant."""
    traced = _reports.get(number)
    if traced is not None:
        traced.report()
    return number


note_tracing._dynamo_marked_constant = True  # type: ignore[attr-defined]  # torch.compiler.assume_constant_result


class Placed:
    """Object that lies in the user's: it copies and unpickles as a function without effect."""

    __slots__ = ()

    def __reduce__(self) -> tuple[Any, ...]:
        """Return a callable that ignores its arguments, and can be unpickled without this package."""
        return getattr, (nullcontext(), "__exit__")

    @property
    def __name__(self) -> str:
        """Attribute that torch.jit.script reads to compile the hook."""
        raise AttributeError(
            "the model is watched by probe, whose hooks torch.jit.script cannot take: stop() the monitor"
        )


class TracedHook(Placed):
    """Hook that a compiler traces: it becomes a part of the graph.

    Args:
        function: takes care of its own failures.
    """

    __slots__ = ("_function",)

    def __init__(self, function: Callable[..., Any]) -> None:
        self._function = function

    @entrance
    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self._function(*args, **kwargs)


class Hook(Placed):
    """Hook that a framework calls.

    Args:
        faults: counter of what the hook raises.
        where: the place under which it is counted.
        function: receives the framework's arguments; its result is returned.
        traced: is called if a compiler traces the hook.
    """

    __slots__ = ("__weakref__", "_faults", "_function", "_process", "_traced", "_traced_number", "_where")

    def __init__(
        self, faults: FaultCounter, where: str, function: Callable[..., Any], traced: Traced | None = None
    ) -> None:
        self._faults, self._where, self._function, self._traced = faults, where, function, traced
        self._traced_number = 0 if traced is None else traced.number
        self._process = _process

    @entrance
    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        if _compiling():
            if self._traced_number:
                note_tracing(self._traced_number)
            return None
        if self._process != _process:
            return None
        try:
            return self._function(*args, **kwargs)
        except Exception as error:  # noqa: BLE001 - nothing of ours may raise into training; it is counted
            count(self._faults, self._where, error)
            return None


class StepHook(Placed):
    """Hook without effect in steps that are not sampled, and whose work is measured.

    Args:
        room: the run behind the hook.
    """

    __slots__ = ("__weakref__", "_function", "_process", "_room", "_where")

    def __init__(self, room: Room, where: str, function: Callable[..., Any]) -> None:
        self._room, self._where, self._function, self._process = room, where, function, _process

    @entrance
    def __call__(self, *args: Any, **kwargs: Any) -> None:
        if not _compiling():
            self.enter(*args, **kwargs)

    @entrance
    def enter(self, *args: Any, **kwargs: Any) -> None:
        """Do what a call does where no compiler traces."""
        room = self._room
        try:
            if room.look is not None and self._process == _process:
                room.look()
            if not room.clock.sampled or self._process != _process or (room.capturing is not None and room.captured()):
                return
            cost = room.cost
            begun = time.perf_counter() if cost.clock is None else cost.begin()
            try:
                self._function(*args, **kwargs)
            finally:
                if type(begun) is float:
                    cost.hooks += time.perf_counter() - begun
                else:
                    cost.end(begun)
        except Exception as error:  # noqa: BLE001 - nothing of ours may raise into training; it is counted
            count(room.faults, self._where, error)


class Room(Protocol):
    """Run behind a :class:`StepHook`."""

    @property
    def look(self) -> Callable[[], object] | None:
        """Function that is called first, in steps that are not sampled, too; None if there is nothing to look for."""

    @property
    def clock(self) -> SampledStep:
        """The step in progress."""

    @property
    def cost(self) -> Meter:
        """The cost of hooks."""

    @property
    def faults(self) -> FaultCounter:
        """The counter of failures."""

    @property
    def capturing(self) -> Callable[[], bool] | None:
        """None if :meth:`captured` is never true."""

    def captured(self) -> bool:
        """Return whether nothing can be read now."""


def weakly(hook: Callable[..., None]) -> Callable[..., None]:
    """Return a function that calls ``hook`` as long as another reference to it exists. The garbage collector does not
    see some references from a tensor to its hooks (torch 2.13, MindSpore 2.10): a hook that refers to the tensor would
    leak both."""
    return _Weak(hook)


class _Weak(Placed):
    __slots__ = ("_hook",)

    def __init__(self, hook: Callable[..., None]) -> None:
        self._hook = weakref.ref(hook)

    @entrance
    def __call__(self, *args: Any) -> None:
        if not _compiling() and (hook := self._hook()) is not None:
            (hook.enter if type(hook) is StepHook else hook)(*args)


class Around:
    """Method of one object, with listeners before and after it; copies of the object have its own method again.

    Args:
        owner: the object, whose attribute ``name`` this replaces.
        faults: counter of what the listeners raise.
        before: receives the arguments as a tuple and a dict; may return others.
        after: receives the result.
        traced: is called if a compiler traces the method.
    """

    def __init__(
        self,
        owner: object,
        name: str,
        faults: FaultCounter,
        before: Callable[[tuple[Any, ...], dict[str, Any]], Arguments | None],
        after: Callable[[Any], object],
        traced: Traced | None = None,
    ) -> None:
        self._owner, self._attribute, self._faults = owner, name, faults
        self._before, self._after, self.traced = before, after, traced
        self._traced_number = 0 if traced is None else traced.number
        self._process = _process
        self._replaced = vars(owner).get(name, _ABSENT)
        self._original: Callable[..., Any] = getattr(owner, name)
        functools.update_wrapper(self, self._original, updated=())

    @passage
    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        if _compiling():
            if self._traced_number:
                note_tracing(self._traced_number)
            return self._original(*args, **kwargs)
        return self.call(self._original, args, kwargs)

    @passage
    def call(self, original: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Call ``original`` between the listeners."""
        if self._process != _process:
            return original(*args, **kwargs)
        changed = attempt(self._faults, "optimizer", self._before, args, kwargs)
        if changed is not None:
            args, kwargs = changed
        result = original(*args, **kwargs)
        attempt(self._faults, "optimizer", self._after, result)
        return result

    def place(self) -> Remove:
        """Put this in the place of the method: on the owner's class, for this owner alone, so that nothing lies in the
        object; on the object where it has a method of its own, or its class cannot be changed."""
        method = inspect.getattr_static(type(self._owner), self._attribute, None)
        if self._replaced is _ABSENT and isinstance(method, FunctionType):
            try:
                return _dispatch(type(self._owner), self._attribute).add(self._owner, self)
            except (AttributeError, TypeError):  # a class without a dict that can be changed
                pass
        return replace(self._owner, self._attribute, self)

    def __reduce__(self) -> tuple[Any, ...]:
        """Return the attribute of a copy of the owner: the method of its class, or a copy of its own attribute."""
        if self._replaced is _ABSENT:
            return getattr, (self._owner, self._attribute)
        return operator.getitem, ([self._replaced], 0)


class _Dispatch:
    """Method of a class that calls the :class:`Around` of some of its objects."""

    def __init__(self, kind: type, name: str) -> None:
        self._key, self._arounds = (kind, name), dict[int, list[Around]]()
        self._traced = traced = Traced(self._report)
        original, arounds = getattr(kind, name), self._arounds

        @functools.wraps(original)
        @passage
        def method(owner: Any, *args: Any, **kwargs: Any) -> Any:
            if _compiling():
                note_tracing(traced.number)
                return original(owner, *args, **kwargs)
            if (placed := arounds.get(id(owner))) is None:
                return original(owner, *args, **kwargs)
            return _through([*placed], functools.partial(original, owner), args, kwargs)

        self._restore = replace(kind, name, method)

    def _report(self) -> None:
        for around in itertools.chain(*self._arounds.values()):
            if around.traced is not None:
                around.traced.report()

    def add(self, owner: object, around: Around) -> Remove:
        """Call ``around`` in place of the method of ``owner``."""
        identity = id(owner)
        self._arounds.setdefault(identity, []).append(around)

        def remove() -> None:
            placed = self._arounds.get(identity, [])
            if around not in placed:
                return
            placed.remove(around)
            if not placed:
                del self._arounds[identity]
            if not self._arounds:
                _dispatches.pop(self._key, None)
                self._restore()

        return remove


_dispatches: dict[tuple[type, str], _Dispatch] = {}


def _dispatch(kind: type, name: str) -> _Dispatch:
    if (kind, name) not in _dispatches:
        _dispatches[kind, name] = _Dispatch(kind, name)
    return _dispatches[kind, name]


@passage
def _through(arounds: list[Around], original: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Call ``original`` between the listeners of all ``arounds``, those of the last outermost."""
    if not arounds:
        return original(*args, **kwargs)
    around = arounds.pop()
    return around.call(lambda *args, **kwargs: _through(arounds, original, args, kwargs), args, kwargs)


def replace(owner: object, name: str, replacement: object) -> Remove:
    """Set an attribute of an object, class or module.

    Returns:
        A function that restores the original object, or deletes the attribute if it was inherited; if other code has
        replaced the attribute since, the function does nothing.
    """
    before = vars(owner).get(name, _ABSENT)
    setattr(owner, name, replacement)

    def restore() -> None:
        if vars(owner).get(name) is not replacement:
            return
        if before is _ABSENT:
            delattr(owner, name)
        else:
            setattr(owner, name, before)

    return restore
