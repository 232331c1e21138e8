"""Watch of calls of models for training: what they get, the order in which their modules are called, and outputs."""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable
from typing import Any, NamedTuple

import torch

from probe.core.door import FaultCounter, attempt, compiling, passage
from probe.core.prechecks.trial import InputFacts, ModelCall
from probe.pytorch.finding import FINDER
from probe.pytorch.prechecks.digests import device_generator_digest, digest, some, tensors_in

FEWEST = 16
"""Numbers of an input at least whose mean and deviation count."""
LIMITS: dict[str, tuple[float, float]] = {"Sigmoid": (0.0, 1.0), "Tanh": (-1.0, 1.0)}
NEAR = 0.01
"""Distance from a limit, by the span between both, at which a unit is saturated."""
TOKENS = "input_ids", "tokens", "idx", "x", "src", "inputs"
"""Names of arguments that are tokens, before others."""


class SeenOutput(NamedTuple):
    """Output of a module at its first call."""

    order: int
    module: torch.nn.Module
    rms: float
    zeros: float
    saturated: float
    dtype: str


class HeldCall(NamedTuple):
    """Outermost call of a model with copies of all that it got."""

    model: torch.nn.Module
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    tokens: torch.Tensor
    """Tokens in the copies, of two axes."""


class CallWatch:
    """Watch of calls, until the process ends.

    Args:
        update: returns the number of updates so far.
    """

    def __init__(self, update: Callable[[], int], faults: FaultCounter) -> None:
        self._update, self._faults = update, faults
        self._inside = threading.local()
        self.calls: list[ModelCall] = []
        self.tokens: torch.Tensor | None = None
        """Tokens of the latest call; None if it got none."""
        self.held: HeldCall | None = None
        """First call with tokens."""
        self.entered: dict[int, tuple[int, torch.nn.Module]] = {}
        """Order in which modules were called first, by identity."""
        self.outputs: list[SeenOutput] = []
        self._seen: set[int] = set()
        """Identities of the modules in these, which are kept."""
        self.dropout = 0
        """Digest of the state of the generator at the first call of a model with active dropout."""

    def begin(self) -> None:
        """Watch from now on."""
        FINDER.replace_call(self._calling(torch.nn.Module.__call__))

    def _calling(self, original: Callable[..., Any]) -> Callable[..., Any]:
        inside = self._inside

        @passage
        @functools.wraps(original)
        def __call__(model: Any, *args: Any, **kwargs: Any) -> Any:  # noqa: N807
            if compiling():
                return original(model, *args, **kwargs)
            depth = getattr(inside, "depth", 0)
            inside.depth = depth + 1
            try:
                attempt(self._faults, "call", self._entered, model, args, kwargs, depth)
                result = original(model, *args, **kwargs)
            finally:
                inside.depth = depth
            attempt(self._faults, "call", self._left, model, result)
            return result

        return __call__

    def _entered(self, model: torch.nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], depth: int) -> None:
        if not FINDER.trains(model):
            return
        if not self._update():
            self.entered.setdefault(id(model), (len(self.entered), model))
        if not depth and next(model.parameters(), None) is not None:
            self._outermost(model, args, kwargs)

    def _outermost(self, model: torch.nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        passed = [*tensors_in(args), *tensors_in(kwargs)]
        self.calls.append(ModelCall(self._update(), digest(passed), tuple(_facts(passed))))
        self.tokens = _tokens(args, kwargs)
        if self.tokens is not None and self.held is None:
            args, kwargs = _copied(args), _copied(kwargs)
            if (tokens := _tokens(args, kwargs)) is not None:
                self.held = HeldCall(model, args, kwargs, tokens)
        if not self.dropout and any(_drops(module) for module in model.modules()):
            self.dropout = device_generator_digest(model)

    def _left(self, model: torch.nn.Module, result: Any) -> None:
        if self._update() or not FINDER.trains(model) or id(model) in self._seen:
            return
        output = next(tensors_in(result), None)
        if output is None or not output.is_floating_point() or not output.numel():
            return
        part = some(output).double()
        order = self.entered.get(id(model), (len(self.entered), model))[0]
        rms, zeros = float(part.pow(2).mean().sqrt()), float((part == 0).double().mean())
        owns = next(model.parameters(recurse=False), None) is not None
        dtype = str(output.dtype) if owns else ""
        self._seen.add(id(model))
        self.outputs.append(SeenOutput(order, model, rms, zeros, _saturated(part, type(model).__name__), dtype))


def _saturated(numbers: torch.Tensor, kind: str) -> float:
    """Return the share of numbers near a limit of the function of a module."""
    limits = LIMITS.get(kind)
    if limits is None:
        return 0.0
    near = NEAR * (limits[1] - limits[0])
    return float(((numbers < limits[0] + near) | (numbers > limits[1] - near)).double().mean())


def _facts(tensors: list[torch.Tensor]) -> list[InputFacts]:
    facts = []
    for tensor in tensors:
        if tensor.is_floating_point() and tensor.numel() >= FEWEST and not tensor.requires_grad:
            part = some(tensor).double()
            facts.append(InputFacts(float(part.mean()), float(part.std()), float(part.pow(2).mean().sqrt())))
    return facts


def _tokens(args: tuple[Any, ...], kwargs: dict[str, Any]) -> torch.Tensor | None:
    """Return the tensor of tokens among arguments: whole numbers along two axes, not only 0 and 1."""
    named = [kwargs[name] for name in TOKENS if name in kwargs]
    for tensor in tensors_in([*named, args, kwargs]):
        is_whole = not tensor.is_floating_point() and tensor.dtype not in (torch.bool, torch.complex64)
        if is_whole and tensor.dim() == 2 and min(tensor.shape) > 0 and int(tensor.max()) > 1:
            return tensor.detach()
    return None


def _copied(values: Any) -> Any:
    """Return arguments with copies of their tensors."""
    if issubclass(type(values), torch.Tensor):
        return values.detach().clone()
    if type(values) in (list, tuple):
        return type(values)(_copied(value) for value in values)
    if isinstance(values, dict):
        return {name: _copied(value) for name, value in values.items()}
    return values


def _drops(module: torch.nn.Module) -> bool:
    if not module.training:
        return False
    if isinstance(module, torch.nn.modules.dropout._DropoutNd):
        return module.p > 0
    return isinstance(module, torch.nn.RNNBase | torch.nn.MultiheadAttention) and module.dropout > 0
