"""Listeners inside graphs of ``torch.compile``: operators in the graph call them with tensors.

A traced hook puts two operators of this module into the graph: one receives the tensors of a forward, the other, placed
by ``Tensor.register_hook``, a gradient. They change nothing, and the compiler does not drop them (``has_side_effect``).
Each receives the *place* of its module as a tensor, not as a number: for another number, torch compiles a graph again,
so that blocks could no longer share one graph. See decision 4.
"""

from __future__ import annotations

import functools
import importlib.util
import itertools
import sys
import threading
from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from typing import Any
from weakref import WeakValueDictionary

import torch
from torch.autograd.function import FunctionCtx

from probe.core.backend.call_stack import callers
from probe.core.backend.patch import Shared, Undo
from probe.core.backend.protocols import Guard, Listen, Remove
from probe.core.backend.pytree import DEPTH
from probe.core.backend.versions import is_at_least
from probe.core.config.schema import Settings
from probe.core.door import TracedHook
from probe.launch import compilers
from probe.pytorch.compiled_args import left_out, read, written

Waiting = tuple[int, int, int, int]
"""Place, site in the code, number of the tensor among the outputs, and the call of the compiled graph."""

OLDEST_THAT_RECORDS = "2.13"
"""First version of torch that compiles hooks as expected here (2.10 leaves them out of the graph; the versions in
between were not tested)."""
RECORDS = is_at_least(str(torch.__version__), OLDEST_THAT_RECORDS)
GRADIENTS = importlib.util.find_spec("torch._higher_order_ops.register_hook") is not None
"""True if this version traces ``Tensor.register_hook`` without breaking the graph (2.13 does)."""
MOST_WAITING = 50_000
"""Maximal number of listeners that wait for a gradient; the oldest, whose backward never ran, are dropped."""


class CompiledCall:
    """Forward that runs inside a compiled graph."""

    def __init__(self, key: tuple[int, int], tensors: list[torch.Tensor], needing: str, differentiates: bool) -> None:
        self.differentiates = differentiates
        self._key = key
        self._numbers = {id(tensor): number for number, tensor in enumerate(tensors) if needing[number] == "+"}
        self._expected: set[int] = set()

    def needing(self, tensors: Sequence[torch.Tensor]) -> int:
        """Return the number of ``tensors`` that will have a gradient."""
        return sum(id(tensor) in self._numbers for tensor in tensors)

    def expect(self, tensor: torch.Tensor, listen: Listen) -> None:
        """Listen to the gradient of an output, if it will have one.

        Raises:
            RuntimeError: if the forward to which a gradient belongs cannot be determined.
        """
        if (number := self._numbers.get(id(tensor))) is None:
            return
        if (call := graph_call()) is None:
            raise RuntimeError(
                "compiled by a backend that does not differentiate whole graphs (such as 'eager'), so that gradients "
                "inside cannot be distinguished; expected inductor, aot_eager or another on top of AOTAutograd"
            )
        key = (*self._key, number, call)
        if number not in self._expected:
            self._expected.add(number)
            _waiting[key] = []  # an earlier call without a backward may have had this identity
            _waiting.move_to_end(key)
        _waiting[key].append(listen)
        while len(_waiting) > MOST_WAITING:
            _waiting.popitem(last=False)


class _Running(threading.local):
    call: CompiledCall | None = None


RUNNING = _Running()
"""The compiled forward whose listeners are being called on this thread, if any."""
_listeners: WeakValueDictionary[int, Callable[..., None]] = WeakValueDictionary()
"""Functions that the graph calls, by the number of the place; the removal functions of their hooks keep them alive."""
_waiting: OrderedDict[Waiting, list[Listen]] = OrderedDict()
_places, _sites = itertools.count(), itertools.count()


def check() -> None:
    """Refuse a version of torch that cannot record inside compiled graphs.

    Raises:
        ValueError: with the expected and the installed version, and the remedy.
    """
    if not RECORDS:
        raise ValueError(
            f'set_monitor: compiled: "record" needs torch {OLDEST_THAT_RECORDS} or later, this is '
            f'{torch.__version__}; "skip" records all but what is compiled'
        )


def prepare(settings: Settings) -> Remove:
    """Make graphs check for added and removed hooks, until the last monitor with ``compiled: "record"`` stops. By
    default torch omits that check; what was compiled without it is compiled again at its next call, since the graph of
    another model of the same class would be used for this one."""
    return _hook_guards.listen(settings) if settings.compiled == "record" else lambda: None


def _guard_hooks() -> Iterator[Undo]:
    from torch._dynamo import config  # slow to import, and only needed where something is compiled

    before, config.skip_nnmodule_hook_guards = config.skip_nnmodule_hook_guards, False
    yield functools.partial(setattr, config, "skip_nnmodule_hook_guards", before)
    compiler = sys.modules.get("torch._dynamo.convert_frame")
    for reference in compiler.input_codes.seen if before and compiler is not None else ():
        if (code := reference()) is not None:
            torch._C._dynamo.eval_frame.reset_code(code)


_hook_guards: Shared[Settings] = Shared(_guard_hooks)


def running() -> CompiledCall | None:
    """Return the compiled forward whose listeners are being called, if any."""
    return RUNNING.call


def is_graph(context: FunctionCtx) -> bool:
    """Return whether this autograd function is a compiled graph."""
    return type(context).__name__.startswith("CompiledFunction")


def graph_call() -> int | None:
    """Return the identity of one forward and backward of the running compiled graph, if it is differentiated as one.

    AOTAutograd (torch 2.13) runs both in an autograd function whose argument ``ctx`` is the only object that they
    share; operators inside find it only on the stack.
    """
    for frame in callers():
        if frame.f_code.co_name in ("forward", "backward"):
            context = frame.f_locals.get("ctx")
            if isinstance(context, FunctionCtx) and is_graph(context):
                return id(context)
    return None


def on_forward(
    module: torch.nn.Module,
    before: Callable[..., None],
    after: Callable[..., None],
    guard: Guard,
    wanted: Callable[[], bool],
    gradients: bool,
) -> Remove:
    """Listen to forwards, compiled or not, while ``wanted``; if ``gradients``, ``after`` may listen to those of the
    outputs."""
    number = next(_places)
    place = torch.tensor(number, dtype=torch.int64, device="cpu")
    gradients = gradients and GRADIENTS
    began, ended = guard(before), guard(after)

    def enter(_: torch.nn.Module, args: Any, kwargs: Any = None, place: torch.Tensor = place) -> None:
        kwargs = kwargs or {}
        if not torch.compiler.is_compiling():
            began(args, kwargs)
        elif torch.compiler.is_dynamo_compiling() and not torch.compiler.is_exporting():
            _trace((args, kwargs), place, ended=False, gradients=False)

    def leave(_: torch.nn.Module, __: Any, outputs: Any, place: torch.Tensor = place) -> None:
        if not torch.compiler.is_compiling():
            ended(outputs)
        elif torch.compiler.is_dynamo_compiling() and not torch.compiler.is_exporting():
            _trace(outputs, place, ended=True, gradients=gradients)

    _evaluate_while_tracing()
    listener = guard(functools.partial(_call, before, after, wanted))

    def remove_listener() -> None:
        if _listeners.get(number) is listener:  # held weakly there: until now, this function keeps it alive
            del _listeners[number]

    with ExitStack() as placed:
        _listeners[number] = listener
        placed.callback(remove_listener)
        placed.callback(module.register_forward_pre_hook(TracedHook(enter), with_kwargs=True).remove)
        # not always_call: graphs would depend on the hook's number, so that blocks could not share one (torch 2.13)
        placed.callback(module.register_forward_hook(TracedHook(leave)).remove)
        return placed.pop_all().close


@functools.cache
def _evaluate_while_tracing() -> None:
    """Mark the functions that the compiler calls instead of the graph; import the compiler, which takes a second."""
    for function in (_next_site, left_out):
        torch.compiler.assume_constant_result(function)


compilers.keep_out(torch)


# The traced part: plain code that the compiler traces without breaking the graph.


def _trace(values: Any, place: torch.Tensor, *, ended: bool, gradients: bool) -> None:
    """Put the operators into the graph."""
    tensors: list[torch.Tensor] = []
    form, site = written(values, tensors, DEPTH), _next_site()
    needing = "".join(["+" if tensor.requires_grad else "-" for tensor in tensors])
    differentiates = torch.is_grad_enabled()
    _forward([tensor.detach() for tensor in tensors], place, form, needing, ended, site, differentiates)
    if not gradients or not differentiates:
        return
    for number, tensor in enumerate(tensors):
        if tensor.requires_grad and not isinstance(tensor, torch.nn.Parameter):

            def receive(gradient: torch.Tensor, number: int = number) -> None:
                _gradient(gradient, place, site, number)

            tensor.register_hook(receive)


def _next_site() -> int:
    """Return a new number for a site in the code: a module may be called twice in one graph."""
    return next(_sites)


# The running part: called by the compiled graph.


def _reached(
    tensors: list[torch.Tensor],
    place: torch.Tensor,
    form: str,
    needing: str,
    ended: bool,
    site: int,
    differentiates: bool,
) -> None:
    """Call the listeners as an eager hook would."""
    number = int(place)
    if (listener := _listeners.get(number)) is not None:
        listener(tensors, (number, site), form, needing, ended, differentiates)


def _call(
    before: Callable[..., None],
    after: Callable[..., None],
    wanted: Callable[[], bool],
    tensors: list[torch.Tensor],
    key: tuple[int, int],
    form: str,
    needing: str,
    ended: bool,
    differentiates: bool,
) -> None:
    if not wanted():
        return
    detached = [tensor.detach() for tensor in tensors]  # the graph may reuse the object for another purpose
    values = read(form, detached)
    outside, RUNNING.call = RUNNING.call, CompiledCall(key, detached, needing, differentiates)
    try:
        if ended:
            after(values)
        else:
            before(*values)
    finally:
        RUNNING.call = outside


def _arrived(gradient: torch.Tensor, place: torch.Tensor, site: int, number: int) -> None:
    """Call the listeners that wait for this gradient."""
    if not _waiting or (call := graph_call()) is None:
        return
    with _differentiable():
        for listen in _waiting.pop((int(place), site, number, call), ()):
            listen(gradient.detach())


def _differentiable() -> Any:
    """Return a context in which autograd records operators. Inside another operator it does not, so that the node at
    which a parameter's gradient arrives cannot be found."""
    excluded = torch._C._dispatch_tls_local_exclude_set()
    for key in (torch._C.DispatchKey.AutogradCPU, torch._C.DispatchKey.ADInplaceOrView):
        excluded = excluded.remove(key)
    return torch._C._ForceDispatchKeyGuard(torch._C._dispatch_tls_local_include_set(), excluded)


def _operator(name: str, parameters: str, function: Callable[..., None]) -> Callable[..., None]:
    """Return ``function`` as an operator that a graph keeps although its result is unused, and that CUDA graphs leave
    out. ``custom_op`` is not used: its checks take several times as long as the call."""
    tags = [tag for tag in (getattr(torch.Tag, "cudagraph_unsafe", None),) if tag is not None]
    _library.define(f"{name}({parameters}) -> ()", tags=tags)
    _library.impl(name, function, "CompositeExplicitAutograd")
    torch.library.register_fake(f"probe::{name}", lambda *_: None, lib=_library)
    operator: Callable[..., None] = getattr(torch.ops.probe, name).default
    torch.fx.has_side_effect(operator)
    return operator


_library = torch.library.Library("probe", "FRAGMENT")
_forward = _operator(
    "forward",
    "Tensor[] tensors, Tensor place, str form, str needing, bool ended, int site, bool differentiates",
    _reached,
)
_gradient = _operator("gradient", "Tensor gradient, Tensor place, int site, int number", _arrived)
