"""The signals ``actv`` and ``actv_grad``: inputs and outputs of modules, and the gradients of both."""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import count
from typing import Any, NamedTuple

from probe.core.backend.protocols import Module, OutOfReach, Parameter, Remove, Tensor, Tensors
from probe.core.backend.pytree import children, kind, leaves, numbered
from probe.core.instrumentation.context import Run, note_unseen
from probe.core.instrumentation.selection import Watched
from probe.core.records import Key

Part = tuple[str, Tensor]
Record = Callable[[str, str, Tensor, int, int], None]
"""Function that receives the signal, the part, the tensor, the micro step and the call."""
_log = logging.getLogger("probe")

LEFT = "activations: {} are left alone"
"""Kind of loss of tensors in what cannot be read without effect or without bound; counted once a module."""
LEFT_REMEDY = (
    "tensors in them are not recorded; reading a class of the program's own might change it, unless it is a dataclass "
    "or named tuple, or registered (torch.utils._pytree.register_pytree_node)"
)
COMPILED = "activations: gradients of inputs of modules inside compiled graphs"


@contextmanager
def activations(run: Run) -> Iterator[None]:
    """Attach to every watched module of every chunk."""
    listeners: dict[ActivationListener, None] = {}

    def attach(model: Module, module: Watched) -> Remove:
        if not (places := run.selection.places(module)):
            return lambda: None
        listener = ActivationListener(run, module, places, recording(run, module, model))
        remove = run.on_forward(
            module.thing,
            model,
            listener.before,
            listener.after,
            f"module {module.full!r}",
            dropped=listener.drop,
            compiled_too=True,
            gradients="output_grad" in places,
        )
        listeners[listener] = None

        def gone() -> None:
            listeners.pop(listener, None)
            remove()

        return gone

    def end_step() -> None:
        run.forwards.clear()
        ran = [(listener.inner, listener.drop_step()) for listener in listeners]
        if run.framework.hooks.has_compiled():  # hooks of the whole model are outside the graph: they run in any case
            ran = [pair for pair in ran if pair[0]] or ran
        if ran and not any(called for _, called in ran):
            note_unseen(run, "activations")

    with run.each_watched_module.added(attach), run.step_ended.added(end_step):
        yield


class _Opened(NamedTuple):
    """A forward that has begun."""

    step: int
    micro_step: int
    call: int
    names: list[str]
    """Parts of the inputs whose gradients are recorded."""
    edges: Any
    """Places in the graph at which these gradients arrive."""


class ActivationListener:
    """One module's forward and backward within a step.

    Args:
        record: receives the tensors.
    """

    def __init__(self, run: Run, module: Watched, places: dict[str, Any], record: Record) -> None:
        self._run, self._module, self._places = run, module, places
        self._record = record
        self._tensors, self._hooks = run.framework.tensors, run.framework.hooks
        self._guard = run.guard_of(f"gradient of module {module.full!r}")
        self._misfits: set[str] = set()
        self.inner = bool(module.full)
        """True if this is a module of a model, not the whole model."""
        self._wants_gradients = "input_grad" in places or "output_grad" in places
        self.drop_step()

    def drop_step(self) -> bool:
        """Drop the rest of a step; return true if the module ran in it."""
        ran = bool(getattr(self, "_calls", None))
        self._calls: dict[tuple[str, int], Iterator[int]] = {}
        self._to_come: dict[int | None, deque[int]] = {}
        return ran

    def before(self, kind_: str, inputs: tuple[tuple[Any, ...], dict[str, Any]]) -> None:
        """Read inputs before the module may change them in place."""
        if self._run.clock.searching:
            return
        micro_step = self._micro_step(kind_)
        call = self._call(kind_, micro_step)
        parts = input_parts(self._tensors, inputs, self._leave)
        if kind_ == "training" and "input" in self._places:
            for part, tensor in self._select("input", inputs[0], parts):
                self._record("actv", part, tensor, micro_step, call)
        names: list[str] = []
        edges = None
        if "input_grad" in self._places and self._arms(kind_):
            watched = self._select("input_grad", inputs[0], parts)
            names = [part for part, _ in watched]
            try:
                edges = self._hooks.watch_inputs([tensor for _, tensor in watched])
            except OutOfReach as out:
                self._miss(out.rows)
        opened = _Opened(self._run.clock.step, micro_step, call, names, edges)
        self._run.forwards.begin(self, self._module.thing, micro_step, opened, not self.inner)

    def after(self, kind_: str, outputs: Any) -> None:
        """Read outputs, and place hooks for gradients in the graph that this forward has built."""
        opened, clock = self._run.forwards.end(self), self._run.clock
        if type(opened) is not _Opened or opened.step != clock.step or clock.searching:
            return
        _, micro_step, call, names, edges = opened
        parts = output_parts(self._tensors, outputs, self._leave)
        if kind_ == "training" and "output" in self._places:
            for part, tensor in self._select("output", outputs, parts):
                self._record("actv", part, tensor, micro_step, call)
        if not self._wants_gradients or not self._arms(kind_):
            return
        if "output_grad" in self._places:
            for part, tensor in self._select("output_grad", outputs, parts):
                self._hooks.on_tensor_gradient(tensor, self._guard(self._listen(part, call, micro_step)))
        if edges is not None:
            listeners = [self._listen(part, call, micro_step) for part in names]
            self._hooks.on_input_gradients(edges, [tensor for _, tensor in parts], listeners, self._guard)

    def drop(self) -> None:
        """Keep nothing of a forward that raised."""
        self._run.forwards.end(self)

    def _miss(self, rows: int) -> None:
        if COMPILED not in self._run.faults.counts:
            _log.warning("gradients of inputs are not recorded inside compiled graphs; those of outputs are")
        self._run.faults.lost(COMPILED, rows)

    def _call(self, kind_: str, micro_step: int) -> int:
        """Return the number of this call in its micro step.

        Gradient checkpointing runs a part of the model without a graph and recomputes it in the backward, the last part
        first: the recomputed call has the number of the first one.
        """
        waiting = self._to_come.get(self._hooks.recomputed_by()) if kind_ == "recompute" and self._to_come else None
        if waiting and self._hooks.differentiates():
            return waiting.popleft()
        call = next(self._calls.setdefault((kind_, micro_step), count()))  # no other thread gets the same one
        if kind_ == "training" and not self._hooks.differentiates():
            self._to_come.setdefault(self._hooks.recomputed_by(), deque()).append(call)
        return call

    def _micro_step(self, kind_: str) -> int:
        """Return the micro step of a forward that begins."""
        clock = self._run.clock
        if kind_ != "training":
            return clock.backward_step(self._hooks.backward_id())
        around, began = self._run.forwards.micro_step, clock.forward_began(whole=False)
        return began if around is None else around

    def _arms(self, kind_: str) -> bool:
        """True if this forward builds the graph that will be differentiated; one that saves memory builds none."""
        return self._hooks.differentiates() and (kind_ == "training" or bool(self._to_come))

    def _listen(self, part: str, call: int, micro_step: int) -> Callable[[Tensor], None]:
        """Return a function that records a gradient, unless the step has ended meanwhile."""
        run, record, step = self._run, self._record, self._run.clock.step

        def listen(gradient: Tensor) -> None:
            clock = run.clock
            if clock.step == step and not clock.searching and run.in_training_backward():
                record("actv_grad", part, gradient, micro_step, call)

        return listen

    def _select(self, place: str, value: Any, parts: list[Part]) -> list[Part]:
        """Return the parts that the place's element selector selects; without a selector, all."""
        selector = self._places[place]
        if selector is None:
            return parts
        elements = children(value)
        container = kind(value)
        alone = len(elements) == 1 and (container == "tensor" or place.endswith("_grad") or place == "input")
        # for inputs and gradients, files of earlier tools have tuple or list, independent of the module
        alike = selector.kind == container or (place != "output" and {selector.kind, container} == {"tuple", "list"})
        fits = alike and selector.length in (None, len(elements))
        if not fits and not (alone and selector.kind in ("tensor", "tuple", "list") and selector.length in (None, 1)):
            self._misfit(place, selector, f"{container}[{len(elements)}]" if container != "tensor" else container)
            return []
        selected = {id(leaf) for leaf in leaves(elements[selector.index or 0])}
        return [(part, tensor) for part, tensor in parts if id(tensor) in selected]

    def _leave(self, thing: str) -> None:
        """Count and log what is not read of arguments and outputs, once."""
        if thing in self._misfits:
            return
        self._misfits.add(thing)
        if (where := LEFT.format(thing)) not in self._run.faults.counts:
            _log.warning("%s, of module %r first: %s", where, self._module.full, LEFT_REMEDY)
        self._run.faults.lost(where, 1)

    def _misfit(self, place: str, selector: Any, container: str) -> None:
        if place not in self._misfits:
            self._misfits.add(place)
            _log.warning(
                "targets.%s.%s: expected %s, the module got %s; nothing is recorded there",
                self._module.full,
                place,
                selector,
                container,
            )


def recording(run: Run, module: Watched, model: Module) -> Record:
    """Return a function that records tensors of ``module``, a part of ``model``. It keeps their keys, since rules and
    writers compare those of a step with those of the step before."""
    recorder, hooks = run.recorder, run.framework.hooks
    keys: dict[tuple[str, int, int], Key] = {}

    def parameters() -> list[Parameter]:
        return [parameter for _, parameter in hooks.parameters(module.thing)] or [
            parameter for _, parameter in hooks.parameters(model)
        ]

    def record(signal: str, part: str, tensor: Tensor, micro_step: int, call: int) -> None:
        place = part, micro_step, call
        if (key := keys.get(place)) is None:
            key = keys[place] = Key(module.name, part, micro_step, call, module.stage)
        scale = None
        if signal == "actv_grad":
            key, scale = recorder.next_call(signal, key), hooks.loss_scale(parameters)
        recorder.record(signal, key, tensor, micro_stepped=True, scale=scale, shared=scale is None)

    return record


def input_parts(
    tensors: Tensors, inputs: tuple[tuple[Any, ...], dict[str, Any]], leave: Callable[[str], object] = lambda _: None
) -> list[Part]:
    """Return the tensor arguments in order, keyword arguments after positional ones.

    Args:
        leave: as of :func:`probe.core.backend.pytree.leaves`.
    """
    args, kwargs = inputs
    if len(args) == 1 and not kwargs and tensors.is_tensor(args[0]):
        return [("input", args[0])]
    values = [x for x in leaves((*args, *kwargs.values()), leave) if tensors.is_tensor(x)]
    return numbered(values, tensors.is_tensor, "input")


def output_parts(tensors: Tensors, outputs: Any, leave: Callable[[str], object] = lambda _: None) -> list[Part]:
    """Return the tensors of ``outputs`` in order; ``leave`` as in :func:`input_parts`."""
    if tensors.is_tensor(outputs):
        return [("output", outputs)]
    return numbered(leaves(outputs, leave), tensors.is_tensor, "output")
