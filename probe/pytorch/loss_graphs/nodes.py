"""Nodes of the graph of a loss, and the numbers that are read of what they have saved."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import torch
from torch.autograd.function import FunctionCtx

from probe.pytorch import operation_kinds, tensors
from probe.pytorch.dtensor import PLAIN
from probe.pytorch.saved_tensors import saved

SECONDS = 0.05
MOST_LOOKUPS = 4
KEEPS = frozenset({"View", "UnsafeView", "Reshape", "Squeeze", "Unsqueeze", "ToCopy", "Alias", "Clone"})
"""Kinds of nodes that change no number."""
PRODUCTS = frozenset({"Addmm", "Mm", "Bmm", "Baddbmm", "Linear", "Convolution"})
"""Kinds of nodes whose results are scores of any size."""
MANY = 8
"""Labels of a batch that are not one class by chance."""
MOST_LABELS = 1 << 14
"""Labels and numbers of inputs that are looked at."""


class Lookup(NamedTuple):
    """Tokens of which an embedding has the rows."""

    tokens: torch.Tensor
    """Two axes: sequences and positions, in either order."""
    padding: int
    """The token that is padding; negative if the table names none."""
    jumps: int
    """Neighbouring tokens that differ by more than 1, as those of positions and of segments never do: the position of
    their count among the numbers."""


class Graph:
    """Graph of a loss whose backward has not begun, with the numbers that are wanted of it: they are read together.

    Args:
        root: the loss.
        nodes: those of the graph but those of custom functions; the first computes ``root``.
        names: names of the parameters by identity.
    """

    def __init__(self, root: torch.Tensor, nodes: Sequence[Any], names: Mapping[int, str]) -> None:
        self.root, self.nodes = root, nodes
        self.names = names
        self.kinds = [(kind_of(node), node) for node in nodes]
        """Each node behind its kind."""
        self._wanted: list[torch.Tensor] = []
        tables = [node for kind, node in self.kinds if kind == "Embedding"]
        self.lookups = [lookup for node in tables for lookup in self._lookup(node)][:MOST_LOOKUPS]

    def want(self, tensor: torch.Tensor) -> int:
        """Add a tensor of one element to the numbers; return its position among them."""
        self._wanted.append(tensor.float())
        return len(self._wanted) - 1

    def send(self) -> Callable[[], list[float]]:
        """Start the copy of the numbers to the host; return a function that waits for it."""
        if not self._wanted:
            return list
        wait = tensors.to_host([tensors.moments(self._wanted, ("sum",), 0.0)])

        def numbers() -> list[float]:
            rows: list[float] = wait()[:, 0].tolist()
            return rows

        return numbers

    def place(self, node: Any) -> str:
        """Return the name of the parameter that is nearest before a node; empty if none is."""
        waiting, seen = deque([node]), {node}
        while waiting:
            node = waiting.popleft()
            if name := self.names.get(id(getattr(node, "variable", None))):
                return name
            followers = dict.fromkeys(follower for follower, _ in node.next_functions)  # in one order on all ranks
            waiting += [follower for follower in followers if follower is not None and follower not in seen]
            seen |= followers.keys()
        return ""

    def several_texts(self) -> Callable[[Sequence[float]], bool]:
        """Return a function of the numbers that returns whether several lookups are of tokens, as of a source and a
        target. It does not hold the graph."""
        jumps = [lookup.jumps for lookup in self.lookups]
        return lambda numbers: sum(numbers[position] > 0 for position in jumps) > 1

    def _lookup(self, table: Any) -> Iterator[Lookup]:
        tokens = saved_tensor(table, "indices")
        if tokens is not None and tokens.dim() == 2:
            jumps = ((tokens[:, 1:] - tokens[:, :-1]).abs() > 1).sum()
            yield Lookup(tokens, signed(table._saved_padding_idx), self.want(jumps))


def nodes_of(root: torch.Tensor) -> list[Any]:
    """Return the nodes of the graph of ``root`` but those of custom functions; none if the time is over."""
    deadline = time.perf_counter() + SECONDS
    waiting = [root.grad_fn] if root.grad_fn is not None else []
    seen, nodes = {*waiting}, list[Any]()
    while waiting:
        if time.perf_counter() > deadline:
            return []
        node = waiting.pop()
        if not isinstance(node, FunctionCtx):
            nodes.append(node)
        for follower, _ in node.next_functions:
            if follower is not None and follower not in seen:
                seen.add(follower)
                waiting.append(follower)
    return nodes


def kind_of(node: Any) -> str:
    """Return the kind of a node; empty for None and for that of a custom function."""
    return "" if node is None or isinstance(node, FunctionCtx) else operation_kinds.base(node.name())


def behind(node: Any) -> Any:
    """Return the node that has computed what ``node`` reads first, past those that change no number; None if there is
    none."""
    for _ in range(8):
        node = next((follower for follower, _ in node.next_functions if follower is not None), None)
        if node is None or kind_of(node) not in KEEPS:
            break
    return node


def shape_of(node: Any, output: int = 0) -> tuple[int, ...]:
    """Return the shape of a result of a node; that of a scalar's differs from it if it cannot be seen."""
    results = getattr(node, "_input_metadata", ())  # not in torch 2.4
    return tuple(map(int, results[output].shape)) if output < len(results) else (0,)


def saved_tensor(node: Any, name: str) -> torch.Tensor | None:
    """Return a tensor that a node has saved; None if there is none that can be read."""
    tensor = next((tensor for of, tensor in saved(node) if of == name), None)
    return tensor if tensor is not None and type(tensor) in PLAIN else None


def signed(number: int) -> int:
    """Return a number that torch saves without its sign."""
    return number - (1 << 64) if number >= 1 << 63 else number


def scale_of(node: Any) -> torch.Tensor | None:
    """Return the number by which a node multiplies what it reads; None of any other node."""
    kind = kind_of(node)
    number = saved_tensor(node, "other") if kind in ("Mul", "Div") and has_one_gradient(node) else None
    if number is None or number.dim():
        return None
    return number if kind == "Mul" else 1.0 / number


def has_one_gradient(node: Any) -> bool:
    """Return whether only the first of two numbers that a node reads has a gradient."""
    return len(node.next_functions) == 2 and node.next_functions[1][0] is None
