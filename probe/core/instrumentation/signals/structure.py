"""Inputs and outputs of every module, in a file from which users make ``targets`` (``print_struct``)."""

from __future__ import annotations

import json
import logging
import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from errno import EACCES
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple

from probe.core.backend.protocols import ForwardKind, Tensor
from probe.core.backend.pytree import DEPTH, MOST, children, keys, kind
from probe.core.config.schema import Settings
from probe.core.errors import TrainingStopped
from probe.core.faults import Faults
from probe.core.instrumentation.context import Run
from probe.core.instrumentation.selection import PLACES, Watched
from probe.core.instrumentation.signals.activations import ActivationListener, Part, input_parts, output_parts
from probe.core.records import TextFile
from probe.core.storage.run_directory import advised, output_root, rank_folder

FOLDER, FILE = "module_struct", "module_struct.json"
NOTHING = str(type(None))
"""The text in place of a tensor: for an input that is None, or a gradient that was not computed."""
ENDING = "print_struct: training is stopped as configured"
FAILED = "print_struct"
"""The place of faults that leave a rank without its file."""

_log = logging.getLogger("probe")
Tree = dict[str, Any]
"""A container as in the file, with a :class:`Leaf` in place of each text."""


class Leaf(NamedTuple):
    """The content of one place of a container."""

    part: str
    """Part of the tensor in activations; empty if the content is not a tensor."""
    text: str


def path_of(root: Path, rank: int) -> Path:
    """The file of ``rank``."""
    return root / FOLDER / rank_folder(rank) / FILE


def _root(settings: Settings) -> Path:
    return output_root(os.environ, settings.output_dir).absolute()


def prepare(settings: Settings, rank: int) -> None:
    """Make the folder of the file, so that an error is raised before the first step.

    Raises:
        OSError: naming the folder.
    """
    root = _root(settings)
    folder = path_of(root, rank).parent
    with advised(root):
        folder.mkdir(parents=True, exist_ok=True)
        if not os.access(folder, os.W_OK):
            raise PermissionError(EACCES, os.strerror(EACCES), str(folder))


@contextmanager
def structure(run: Run) -> Iterator[None]:
    """Read the first training forward of every module and the backward through it; make the file at the end of the
    step."""
    path, looks = path_of(_root(run.settings), run.framework.groups.rank()), dict[str, _Look]()
    with ExitStack() as attached:
        for model, module in run.each_module(squash=False):
            look = looks[f"{module.stage}:{module.full}"] = _Look(run, module)
            remove = run.on_forward(
                module.thing,
                model,
                look.before,
                look.after,
                f"module {module.full!r}",
                dropped=look.drop,
                compiled_too=True,
                gradients=True,
            )
            attached.callback(remove)
        with run.step_ended.added(lambda: _file(path, looks, run.faults)):
            yield


def ending(settings: Settings, faults: Faults, rank: int, writes: bool) -> TrainingStopped:
    """Log and return the exception that ends training after the step; its exit code is 1 if this rank ``writes`` and
    could not write its file."""
    stop = TrainingStopped(f"{ENDING}; the structure of the model is in {path_of(_root(settings), rank)}")
    if not writes:
        stop = TrainingStopped(f"{ENDING}; module_ranks leaves rank {rank} out")
    elif any(place.startswith(FAILED) for place in faults.counts):
        stop = TrainingStopped("print_struct: training is stopped; the structure of the model could not be written", 1)
    _log.warning("%s", stop)
    return stop


def _file(path: Path, looks: Mapping[str, _Look], faults: Faults) -> TextFile | None:
    where = f"{FAILED}: {path}"
    try:
        modules = {name: look.found() for name, look in looks.items()}
        text = json.dumps(modules, ensure_ascii=False, indent=2) + "\n"
    except Exception as error:  # noqa: BLE001 - training is to be stopped on every rank all the same
        faults.note(where, error)
        return None
    if not any(modules.values()):
        _log.warning("no module was seen to run: compiled (torch.compile), or in evaluation mode?")
    return TextFile(path, text, where)


class _Look:
    """One module: the form of the inputs and outputs of its first call, and their gradients."""

    def __init__(self, run: Run, module: Watched) -> None:
        self._clock, self._tensors = run.clock, run.framework.tensors
        self._listener = ActivationListener(run, module, dict.fromkeys(PLACES), self._note_gradient)
        self._trees: dict[str, Tree] = {}
        self._gradients: dict[str, str] = {}
        self._first: int | None = None
        """The micro step of the first forward."""

    def before(self, kind_: ForwardKind, inputs: tuple[tuple[Any, ...], dict[str, Any]]) -> None:
        """Read the inputs of a forward that begins."""
        looks = kind_ == "training" and not self._clock.searching
        if looks and "input" not in self._trees:
            args, kwargs = inputs
            leaf = self._leaves(input_parts(self._tensors, inputs))
            self._trees["input"] = _tree(args, leaf)
            keywords = {name: _tree(value, leaf, DEPTH - 1) for name, value in kwargs.items()}
            if keywords := {name: tree for name, tree in keywords.items() if _holds(tree)}:
                self._trees["input"]["keywords"] = keywords
        self._listener.before(kind_, inputs)
        if looks and self._first is None:
            self._first = self._clock.micro_step  # which the forward may have begun

    def after(self, kind_: ForwardKind, outputs: Any) -> None:
        """Read the outputs of a forward that has ended."""
        if kind_ == "training" and "output" not in self._trees and not self._clock.searching:
            self._trees["output"] = _tree(outputs, self._leaves(output_parts(self._tensors, outputs)))
        self._listener.after(kind_, outputs)

    def drop(self) -> None:
        """Keep nothing of a forward that raised."""
        self._listener.drop()

    def found(self) -> dict[str, Any]:
        """Return the module's entry; empty if it has not run."""
        entry = {place: _filled(tree, lambda leaf: leaf.text) for place, tree in self._trees.items()}
        for place, tree in self._trees.items():
            as_tuple = {"config": "tuple[1]", "0": tree["tensor"]} if tree["config"] == "tensor" else tree
            entry[f"{place}_grad"] = _filled(as_tuple, lambda leaf: self._gradients.get(leaf.part, NOTHING))
        return entry

    def _note_gradient(self, signal: str, part: str, tensor: Tensor, micro_step: int, call: int) -> None:
        """Note the gradients of the first forward, which is call 0 of its micro step."""
        if signal == "actv_grad" and (micro_step, call) == (self._first, 0):
            self._gradients[part] = self._text(tensor)

    def _text(self, tensor: Tensor) -> str:
        shape, dtype, _ = self._tensors.describe(tensor)
        return f"size={tuple(shape)}, dtype={dtype}"

    def _leaves(self, parts: list[Part]) -> Callable[[object], Leaf]:
        """Return a function that makes the leaf of each value in turn; ``parts`` are the tensors among the values."""
        names = (part for part, _ in parts)

        def leaf(value: object) -> Leaf:
            if self._tensors.is_tensor(value):
                return Leaf(next(names, ""), self._text(value))  # beyond the elements that are searched
            return Leaf("", str(type(value)))

        return leaf


def _tree(value: object, leaf: Callable[[object], Leaf], depth: int = DEPTH) -> Tree:
    """Return the form of ``value`` in the syntax of element selectors, ``depth`` levels deep."""
    inner = _inner(value, leaf, depth)
    return {"config": "tensor", "tensor": inner} if isinstance(inner, Leaf) else inner


def _inner(value: object, leaf: Callable[[object], Leaf], depth: int) -> Tree | Leaf:
    elements = children(value) if depth else [value]
    if len(elements) == 1 and elements[0] is value:
        return leaf(value)
    named = keys(value)
    inside = {str(number): _inner(element, leaf, depth - 1) for number, element in enumerate(islice(elements, MOST))}
    return {"config": f"{kind(value)}[{len(elements)}]", **({"keys": named} if named else {}), **inside}


def _holds(tree: Tree | Leaf) -> bool:
    """True if ``tree`` contains a tensor."""
    if isinstance(tree, Leaf):
        return bool(tree.part)
    return any(_holds(inner) for inner in tree.values() if isinstance(inner, Leaf | dict))


def _filled(tree: Tree, text: Callable[[Leaf], str]) -> dict[str, Any]:
    """Return ``tree`` with a text for each leaf."""
    return {
        name: text(inner) if isinstance(inner, Leaf) else _filled(inner, text) if isinstance(inner, dict) else inner
        for name, inner in tree.items()
    }
