"""Walk over the graph of a step whose loss is not finite, before its backward: the first value that is not finite, by
the tensors that its nodes have saved.

A node is placed by the parameters that the nodes around it use, so that no forward hook is needed. Nothing of the
user's runs, nothing that has hooks is unpacked (:mod:`probe.pytorch.saved_tensors`), and no number on a device is read.
Of activation checkpointing whole segments stay unknown, and of a compiled graph all but what it keeps; then only the
modules around are known.

MindSpore has no counterpart, as nodes of its graph do not show the numbers that they keep. There inputs and labels are
looked at, and the flags of hooks that are on anyway, and otherwise the next step, of which more is collected.
"""

from __future__ import annotations

import heapq
import math
import time
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, NamedTuple

import torch
from torch.autograd.function import FunctionCtx

from probe.core.checks.beginning import Beginning
from probe.core.checks.parameter_use import ParameterUse
from probe.core.checks.value_graph import CERTAIN, Operation, State, StepValue, beginning
from probe.pytorch import host_moments, operation_kinds
from probe.pytorch.dtensor import distinct
from probe.pytorch.modes import unseen
from probe.pytorch.saved_tensors import readable, saved

SECONDS = 0.2
"""Time that a walk may take."""
SURVEY_SECONDS = 0.05
"""Time that the walk over the graph of a healthy step may take."""
NODES = 20_000
"""Nodes that are visited, at most."""
_FUNCTION: Any = torch._C._FunctionBase
_RESULTS = ("result", "output", "out", "logsumexp", "inner", "total_weight")
"""Beginnings of the names under which a node saves what it has computed itself."""
_STATISTICS = ("running_mean", "running_var")
"""Buffers that a normalization writes in training, and does not read."""


class ForwardSpan(NamedTuple):
    """Forward of a module, by the numbers of the nodes that were made in it."""

    module: str
    first: int
    end: int


def first_not_finite(
    root: torch.Tensor,
    names: Mapping[int, str],
    sequence_floor: int = 0,
    spans: Iterable[ForwardSpan] = (),
    seconds: float = SECONDS,
) -> Beginning | None:
    """Return the beginning of the numbers that are not finite in ``root``, a loss whose backward has not begun; None if
    it is finite, on a device or has no graph. The call takes up to ``seconds``: it is for once an incident.

    Args:
        names: names of the parameters by identity; also of buffers, and of the stand-ins that an engine puts into the
            model for its forward.
        sequence_floor: number of the first node of the step; older ones are not visited.
        spans: forwards of modules, if hooks have seen them.
    """
    deadline = time.perf_counter() + seconds
    with torch._C.DisableTorchFunction(), unseen(), torch.no_grad():
        if root.grad_fn is None or not readable(root):
            return None
        graph = StepGraph(root, names, sequence_floor, deadline, spans)
        result = beginning(graph, graph.root)
        return None if result is None else result._replace(unread=graph.unread)


def uses(root: torch.Tensor, names: Mapping[int, str], seconds: float = SURVEY_SECONDS) -> dict[str, ParameterUse]:
    """Return the operation that used each parameter last, of the graph of a loss whose backward has not begun, and
    under an empty name that of any other leaf; nothing if the time is over before the end of the graph. No saved tensor
    is touched."""
    by_name: dict[str, ParameterUse] = {}
    deadline = time.perf_counter() + seconds
    waiting = [root.grad_fn] if root.grad_fn is not None else []
    seen = {*waiting}
    while waiting:
        if time.perf_counter() > deadline:
            return {}
        node = waiting.pop()
        for follower, _ in node.next_functions:
            if follower is None:
                continue
            if (leaf := _copied_leaf(follower)) is not None:
                _note(by_name, names.get(id(leaf), ""), node, leaf.dim())
            elif follower not in seen:
                seen.add(follower)
                waiting.append(follower)
    return by_name


def _copied_leaf(node: Any) -> torch.Tensor | None:
    """Return the leaf of which ``node`` is the value or a mere copy; None if it computes something."""
    while not hasattr(type(node), "variable"):
        others = [follower for follower, _ in node.next_functions if follower is not None]
        if len(others) != 1 or operation_kinds.base(_name(node)) not in operation_kinds.COPIES:
            return None
        node = others[0]
    leaf: torch.Tensor = node.variable
    return leaf


def _note(by_name: dict[str, ParameterUse], name: str, node: Any, dimensions: int) -> None:
    """Note that ``node`` uses a parameter of some dimensions, unless a later operation does."""
    if name in by_name and by_name[name].order >= _order(node):
        return
    results = getattr(node, "_input_metadata", ())  # not in torch 2.4
    by_name[name] = ParameterUse(_order(node), str(results[0].dtype) if results else "", dimensions)


class StepGraph:
    """Graph of one step as :mod:`probe.core.checks.value_graph` sees it. Tensors are read when they are asked for."""

    def __init__(
        self,
        root: torch.Tensor,
        names: Mapping[int, str],
        floor: int,
        deadline: float,
        spans: Iterable[ForwardSpan] = (),
    ) -> None:
        self.operations: list[Operation] = []
        self.values: list[StepValue] = []
        self.unread, self.cut = 0, False
        self._names, self._floor, self._deadline = names, floor, deadline
        self._spans = sorted(spans, key=lambda span: span.end - span.first)
        self._tensors: dict[int, torch.Tensor] = {}
        self._states: dict[int, State] = {}
        self._numbers: dict[object, int] = {}
        self._held: list[dict[str, torch.Tensor]] = []
        """Tensors that each node has saved, by name."""
        self._own: list[list[str]] = []
        """Names of those that no other node reads."""
        self._leaves: dict[int, tuple[Any, torch.Tensor | None]] = {}
        """Nodes, kept so that their identities last, and the parameter that each is only a copy of."""
        nodes = self._visited(root.grad_fn)
        self._kinds = [operation_kinds.base(_name(node)) for node in nodes]
        self._at = {id(node): number for number, node in enumerate(nodes)}
        self.root = self._value(root.grad_fn, root.output_nr)
        self._tensors[self.root] = root
        for kind, node in zip(self._kinds, nodes, strict=True):
            self._add(kind, node)

    def state(self, value: int) -> State:
        """Return the numbers of a value."""
        if (state := self._states.get(value)) is None:
            tensor = self._tensors.get(value)
            state = self._states[value] = "unknown" if tensor is None else self._read(tensor)
        return state

    def doubt(self, operation: int, spoilt: State) -> int:
        """Return how probable it is that an operation makes such numbers out of finite ones."""
        kind, tensors = self._kinds[operation], self._held[operation]
        if any(self._read(tensors[name]) not in ("finite", "unknown") for name in self._own[operation]):
            return CERTAIN
        if kind == "Div" and "other" in tensors:
            return CERTAIN if _has_zero(tensors["other"]) else 0 if spoilt == "nan" else 3
        if kind in ("Log", "Log2", "Log10") and "self" in tensors:
            least = _least(tensors["self"])
            return CERTAIN if least < 0 or (least == 0 and spoilt != "nan") else 0
        if kind.startswith("NllLoss") and spoilt == "nan" and "total_weight" in tensors:
            return CERTAIN if _has_zero(tensors["total_weight"]) else 0
        factors = [tensors[name] for name in operation_kinds.FACTORS.get(kind, ()) if name in tensors]
        return 0 if len(factors) == 2 and _cannot_overflow(*factors) else operation_kinds.doubt(kind, spoilt)

    def confines(self, operation: int, spoilt: State) -> bool:
        """Return whether such numbers may be meant where they enter an operation."""
        return operation_kinds.confines(self._kinds[operation], spoilt)

    def expired(self) -> bool:
        """Return whether the time is over."""
        late = time.perf_counter() > self._deadline
        self.cut = self.cut or late
        return late

    def _visited(self, root: Any) -> list[Any]:
        """Return the nodes that compute something, the latest first. Half of the time is left for reading."""
        now = time.perf_counter()
        until = now + (self._deadline - now) / 2
        pending, seen, nodes = [(-_order(root), 0, root)], {id(root)}, []
        while pending and not self.cut:
            *_, node = heapq.heappop(pending)
            nodes.append(node)
            for follower, _ in node.next_functions:
                if follower is None or self._leaf(follower) is not None:
                    continue
                if id(follower) not in seen and _order(follower) >= self._floor:
                    seen.add(id(follower))
                    heapq.heappush(pending, (-_order(follower), len(seen), follower))
            self.cut = bool(pending) and (len(nodes) >= NODES or time.perf_counter() > until)
        return nodes

    def _leaf(self, node: Any) -> torch.Tensor | None:
        """Return the leaf of which ``node`` is the value or a mere copy; None if it computes something."""
        if (entry := self._leaves.get(id(node))) is None:
            if hasattr(type(node), "variable"):
                leaf = node.variable
            else:
                others = [follower for follower, _ in node.next_functions if follower is not None]
                copies = len(others) == 1 and operation_kinds.base(_name(node)) in operation_kinds.COPIES
                leaf = self._leaf(others[0]) if copies and _order(node) >= self._floor else None
            entry = self._leaves[id(node)] = node, leaf
        return entry[1]

    def _add(self, kind: str, node: Any) -> None:
        """Add the operation of ``node`` with the values that it reads."""
        inputs = {
            self._value(producer, output): None for producer, output in node.next_functions if producer is not None
        }
        tensors: dict[str, torch.Tensor] = {}
        results: list[str] = []
        trains = bool(getattr(node, "_saved_training", False) or getattr(node, "_saved_train", False))
        for number, (name, tensor) in enumerate(saved(node)):
            if tensor is None:
                self.unread += 1
            elif not (trains and name in _STATISTICS):
                key = f"{name} {number}" if name in tensors else name
                tensors[key] = tensor
                results += [key] if self._is_own(name, tensor, inputs) else []
        parameters = dict.fromkeys(name for value in inputs if (name := self.values[value].name))
        order = _order(node)
        module = next((span.module for span in self._spans if span.first <= order < span.end), "")
        self.operations.append(Operation(operation_kinds.title(kind), order, (*inputs,), (*parameters,), module))
        self._held.append(tensors)
        self._own.append(results)

    def _is_own(self, name: str, tensor: torch.Tensor, inputs: dict[int, None]) -> bool:
        """Assign a saved tensor to the value that it holds; return whether it is none that another node reads, but a
        part of the result of the node that saved it, or a constant."""
        maker = tensor.grad_fn
        if maker is not None:
            if (value := self._numbers.get((id(maker), tensor.output_nr))) is not None:
                self._tensors.setdefault(value, tensor)
            return False
        name_of_tensor = self._names.get(id(tensor)) or self._names.get(id(tensor._base))
        if not name_of_tensor and (name.startswith(_RESULTS) or tensor.dim() == 0):
            return True
        inputs[self._leaf_value(tensor, name_of_tensor or "")] = None
        return False

    def _value(self, node: Any, output: int) -> int:
        """Return the number of an output of a node."""
        key = id(node), output
        if (number := self._numbers.get(key)) is None:
            if (leaf := self._leaf(node)) is not None:
                number = self._leaf_value(leaf, self._names.get(id(leaf), ""))
            else:
                number = len(self.values)
                self.values.append(StepValue(self._at.get(id(node)), ""))
            self._numbers[key] = number
        return number

    def _leaf_value(self, leaf: torch.Tensor, name: str) -> int:
        """Return the number of a value that is no operation's."""
        if (number := self._numbers.get(id(leaf))) is None:
            number = self._numbers[id(leaf)] = len(self.values)
            self.values.append(StepValue(None, name))
            self._tensors[number] = leaf
        return number

    def _read(self, tensor: torch.Tensor) -> State:
        """Return the numbers of a tensor."""
        tensor = getattr(tensor, "_local_tensor", tensor)
        if not (tensor.is_floating_point() or tensor.is_complex()) or not tensor.numel():
            return "finite"
        try:
            return self._numbers_of(tensor) if readable(tensor) else self._missing()
        except RuntimeError:  # a dtype that torch cannot compare, such as one of 8 bits
            return self._missing()

    def _missing(self) -> State:
        self.unread += 1
        return "unknown"

    def _numbers_of(self, tensor: torch.Tensor) -> State:
        """Return the numbers of a tensor in host memory, piece by piece, up to the first NaN."""
        state: State = "finite"
        for piece in _pieces(tensor):
            if self.expired():
                return "unknown"
            rows = host_moments.in_one_pass([piece], ("min", "max"), 0.0)
            low, high = rows()[0].tolist() if rows is not None else map(torch.Tensor.item, torch.aminmax(piece))
            if math.isnan(low):
                return "nan"
            if high == math.inf:
                state = "inf"
            elif low == -math.inf and state == "finite":
                state = "-inf"
        return state


def _pieces(tensor: torch.Tensor) -> Iterator[torch.Tensor]:
    """Yield flat parts that together hold each number of ``tensor``."""
    tensor = tensor.detach()
    if tensor.is_complex():
        tensor = torch.view_as_real(tensor.conj() if tensor.is_conj() else tensor)
    return host_moments.pieces(distinct(tensor)[0])


def _least(tensor: torch.Tensor) -> float:
    """Return the least number of a tensor; NaN if its numbers cannot be compared."""
    if not readable(tensor) or tensor.is_complex() or not tensor.numel():
        return math.nan
    return min(piece.min().item() for piece in _pieces(tensor))


def _largest(tensor: torch.Tensor) -> float:
    """Return the largest magnitude in a tensor; NaN if it cannot be known."""
    if not readable(tensor) or tensor.is_complex() or not tensor.numel():
        return math.nan
    return max(max(-low.item(), high.item()) for low, high in map(torch.aminmax, _pieces(tensor)))


def _cannot_overflow(one: torch.Tensor, other: torch.Tensor) -> bool:
    """Return whether sums of products of two tensors are finite: as many as the smaller one has numbers, at most."""
    limits = [torch.finfo(tensor.dtype).max for tensor in (one, other) if tensor.is_floating_point() and tensor.dim()]
    terms = min(one.numel(), other.numel())
    return bool(limits) and _largest(one) * _largest(other) * terms < min(limits)


def _has_zero(tensor: torch.Tensor) -> bool:
    """Return whether any number of a tensor is 0."""
    return readable(tensor) and any(int(piece.count_nonzero()) < piece.numel() for piece in _pieces(tensor))


def _order(node: Any) -> int:
    """Return the number that autograd has given to a node. A custom function may hide the method."""
    return int(_FUNCTION._sequence_nr(node) if isinstance(node, FunctionCtx) else node._sequence_nr())


def _name(node: Any) -> str:
    return type(node).__name__ if isinstance(node, FunctionCtx) else node.name()
