"""Inputs that the graph of a loss shows: batches and the order of the loader, tables and their rows, masks of dropout,
parameters that nobody watches."""

from __future__ import annotations

import math
import weakref
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch.utils.data import DataLoader, Sampler, SequentialSampler
from torch.utils.data.dataloader import _BaseDataLoaderIter

from probe.core.backend.live_objects import instances
from probe.core.checks.loss_calls import KEPT
from probe.pytorch.loss_graphs.nodes import MANY, MOST_LABELS, Graph, behind, has_one_gradient, saved_tensor
from probe.pytorch.reached import reached

FEWEST_DROPPED, MOST_DROPPED = 64, 4096
"""Numbers of a result of dropout by which its mask is known, least and most."""
FEWEST_ROWS = 8
"""Rows of a table at least that is no table of kinds."""
CHANNELS, LIGHT, BYTE = 4, 100, 255
"""Channels of an image at most, and its lightest number: at least, and at most."""
INPUTS = {"Convolution": ("input", 0), "Addmm": ("mat1", 1), "Mm": ("self", 0)}
"""Inputs of layers, by the kind of the node: the name under which it has saved them, and their place among what it
reads."""

BEGUN: weakref.WeakValueDictionary[int, Sampler[Any]] = weakref.WeakValueDictionary()
"""Samplers of loaders that have begun to be read since something has listened, by identity."""

STREAMS: weakref.WeakSet[DataLoader[Any]] = weakref.WeakSet()
"""Loaders of iterable data sets with several workers that have begun to be read since something has listened."""


def in_order() -> bool:
    """Return whether all loaders of the program read their samples in their order."""
    loaders = (vars(thing) for thing in reached() if issubclass(type(thing), DataLoader))
    samplers = [getattr(loader.get("batch_sampler"), "sampler", loader.get("sampler")) for loader in loaders]
    samplers += BEGUN.values()
    if not samplers:  # the loader has no name, and has begun before the watch
        begun = map(vars, instances(_BaseDataLoaderIter))
        samplers = [getattr(part.get("_index_sampler"), "sampler", None) for part in begun]
    return bool(samplers) and all(type(sampler) is SequentialSampler for sampler in samplers)


def batch(graph: Graph) -> tuple[int, int, int] | None:
    """Return address and version of the memory of which the inputs are a small part, and where they begin in it; None
    if they have a memory of their own."""
    return next((place for kind, node in graph.kinds if (place := _batch(kind, node)) is not None), None)


def one_row(graph: Graph) -> Callable[[Sequence[float]], tuple[str, ...]]:
    """Return a function of the numbers that returns the names of the tables of which one row is looked up at all places
    of all samples."""
    tables = [*_tables(graph)]
    return lambda numbers: tuple(place for least, most, place in tables if numbers[least] == numbers[most])


def dropped(graph: Graph) -> Callable[[Sequence[float]], tuple[float, float] | None]:
    """Return a function of the numbers that returns two by which the mask of a dropout is known again: the sum of the
    places that are kept, and how many are not; None if there is no dropout."""
    mask = next((mask for kind, node in graph.kinds if (mask := _mask(kind, node)) is not None), None)
    sums = [] if mask is None else [(mask * torch.arange(len(mask), device=mask.device)).sum(), (~mask).sum()]
    positions = [graph.want(number) for number in sums]
    return lambda numbers: (
        (numbers[positions[0]], numbers[positions[1]]) if positions and numbers[positions[1]] else None
    )


def pixels(graph: Graph) -> Callable[[Sequence[float]], str | None]:
    """Return a function of the numbers that returns the name of the weights of the first convolution of images, if
    these are whole numbers as the bytes of images; None if there is no such convolution, or a norm behind it."""
    normed = {behind(node) for kind, node in graph.kinds if kind.endswith("Norm")}
    for kind, node in graph.kinds:
        images = saved_tensor(node, "input") if kind == "Convolution" and node.next_functions[0][0] is None else None
        if images is not None and _are_images(images) and node not in normed:
            few = images[:1].flatten()[:MOST_LABELS]  # of all images in channels_last it would be a copy
            least, most, broken = map(graph.want, (*few.aminmax(), (few != few.round()).sum()))
            place = graph.names.get(id(getattr(node.next_functions[1][0], "variable", None)), "")
            return lambda numbers: (
                place if numbers[least] >= 0 and LIGHT <= numbers[most] <= BYTE and not numbers[broken] else None
            )
    return lambda _: None


def norm_of_one_sample(graph: Graph) -> str | None:
    """Return the place of a batch norm in training that gets one sample; None if there is none. An instance norm is one
    of a sample, too, but with weights that were repeated, or none."""
    norms = [node for kind, node in graph.kinds if kind.endswith("BatchNorm") and _has_leaf(node, 1)]
    trained = (node for node in norms if getattr(node, "_saved_training", False))
    samples = ((node, saved_tensor(node, "input")) for node in trained)
    return next((graph.place(node) for node, inputs in samples if inputs is not None and len(inputs) == 1), None)


def foreign(graph: Graph) -> tuple[Callable[[], object], ...]:
    """Return references to the parameters that have no name, of a graph that has others, too."""
    names = graph.names
    leaves = [leaf for node in graph.nodes if (leaf := getattr(node, "variable", None)) is not None]
    is_model = any(id(leaf) in names for leaf in leaves)
    unknown = (leaf for leaf in leaves if is_model and id(leaf) not in names and isinstance(leaf, torch.nn.Parameter))
    return tuple(map(weakref.ref, unknown))


def noise(factors: torch.Tensor | None) -> torch.Tensor | None:
    """Return which of the first factors keep a number, if they are those of dropout: 0, and what makes up for it."""
    if factors is None or not factors.is_cpu or not factors.is_floating_point() or factors.numel() < MANY:
        return None
    if not factors.is_contiguous():
        return None
    few = factors.view(-1)[:MOST_DROPPED]
    mask, scale = few != 0, float(few.amax())
    if scale <= 1 or not bool(((few == scale) | ~mask).all()):
        return None
    share, number = 1 / scale, len(few)
    deviation = math.sqrt(share * (1 - share) / number)
    return mask if abs(float(mask.float().mean()) - share) <= 5 * deviation else None


def _are_images(inputs: torch.Tensor) -> bool:
    return inputs.dim() == 4 and inputs.shape[1] <= CHANNELS and inputs.is_floating_point() and inputs.numel() > 0


def _has_leaf(node: Any, place: int) -> bool:
    """Return whether a parameter is what a node reads at some place."""
    return len(node.next_functions) > place and hasattr(node.next_functions[place][0], "variable")


def _batch(kind: str, node: Any) -> tuple[int, int, int] | None:
    name, place = INPUTS.get(kind, ("", 0))
    if not name or len(node.next_functions) <= place or node.next_functions[place][0] is not None:
        return None
    inputs = saved_tensor(node, name)
    if inputs is None or inputs.layout is not torch.strided:
        return None
    memory = inputs.untyped_storage()
    if memory.nbytes() < 2 * inputs.numel() * inputs.element_size():
        return None
    return memory.data_ptr(), inputs._version, int(inputs.storage_offset())


def _tables(graph: Graph) -> Iterator[tuple[int, int, str]]:
    """Yield the least and the greatest row that is looked up in a table, as positions of numbers, with its place.
    Tables have more rows than a sequence has positions; those of kinds have few."""
    for kind, node in graph.kinds:
        rows = saved_tensor(node, "indices") if kind == "Embedding" else None
        if rows is None or rows.numel() < MANY:
            continue
        if int(node._saved_weight_sym_argsize_0) >= max(FEWEST_ROWS, rows.shape[-1]) and rows.dim() <= 2:
            least, most = rows.aminmax()
            # one row for all samples may be their class
            least = least if rows.dim() == 2 else least.new_zeros(())
            yield graph.want(least), graph.want(most), graph.place(node)
            if graph.lookups and rows.dim() == 2 and len(rows) >= KEPT <= rows.shape[1]:
                least, most = (rows - torch.arange(len(rows), device=rows.device)[:, None]).aminmax()
                yield graph.want(least), graph.want(most), graph.place(node)


def _mask(kind: str, node: Any) -> torch.Tensor | None:
    """Return which of the first numbers a dropout keeps; None if a node is no dropout, or a small one."""
    if kind == "NativeDropout":
        mask = saved_tensor(node, "result1")
    elif kind == "Mul" and has_one_gradient(node):  # on a CPU
        mask = noise(saved_tensor(node, "other"))
    else:
        return None
    return None if mask is None or mask.numel() < FEWEST_DROPPED else mask.flatten()[:MOST_DROPPED]
