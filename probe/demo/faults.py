"""Breaks one module at one step. Nothing here is known to the monitor, and what it finds is not known here.

Attach the fault before the monitor: it is then part of the model, and the monitor's hooks see what the broken module
really gives. What counts as the first bad place:

``nan``
    A weight has a NaN when its step begins: the parameter itself, before anything is computed with it.
``overflow``
    A module's output leaves the range of float32: that module, whose inputs were still right.
``gradient``
    The backward of a module hands on a gradient that is too large by a factor of 1e4 to 1e6, and finite, although the
    one that it received was right: that module, whose own weights and inputs get the wrong gradient.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import torch

KINDS = ("nan", "overflow", "gradient")


class Injection(NamedTuple):
    """A fault: what, where and when."""

    kind: str
    place: str
    """Name of the broken module; for ``nan`` of the parameter."""
    step: int
    detail: str
    """How it is broken, in words."""
    strength: float = 0.0
    """The factor of an overflow or a gradient."""
    element: int = 0
    """Which element of the parameter becomes NaN."""


def draw(kind: str | None, model: torch.nn.Module, steps: tuple[int, int], seed: int) -> Injection:
    """A fault of ``kind``, or of any kind if it is None, at a random place and step.

    Args:
        steps: the first step at which it may happen, and the first at which it may not any more.
    """
    random = np.random.default_rng([seed, 0xFA])
    any_kind = str(random.choice(KINDS))  # drawn in any case, so that a seed means the same place for each kind
    kind = kind or any_kind
    step = int(random.integers(*steps))
    if kind == "nan":
        return _nan(model, step, random)
    if kind == "overflow":
        return Injection(kind, _pick(_computing(model), random), step, "output times 3e38", 3e38)
    factor = float(f"{10 ** random.uniform(4, 6):.2g}")
    return Injection(kind, _pick(_with_weights(model), random), step, f"gradients times {factor:.2g}", factor)


def _nan(model: torch.nn.Module, step: int, random: np.random.Generator) -> Injection:
    parameters = dict(model.named_parameters())
    place = _pick(list(parameters), random)
    element = int(random.integers(parameters[place].numel()))
    return Injection("nan", place, step, f"element {element} is NaN", element=element)


def _pick(names: list[str], random: np.random.Generator) -> str:
    return names[int(random.integers(len(names)))]


def _computing(model: torch.nn.Module) -> list[str]:
    """Modules with a forward of their own, which a mere list has not; the whole model left out."""
    return [name for name, module in model.named_modules() if name and not isinstance(module, torch.nn.ModuleList)]


def _with_weights(model: torch.nn.Module) -> list[str]:
    """Modules with parameters of their own: in the others, a part of them is where a gradient goes wrong first."""
    return [name for name, module in model.named_modules() if list(module.parameters(recurse=False))]


class Fault:
    """A fault in place. Set :attr:`step` as training goes on; it strikes in the forward of its own step."""

    def __init__(self, model: torch.nn.Module, injection: Injection) -> None:
        self.step = -1
        self._injection = injection
        if injection.kind == "nan":
            self._parameter = model.get_parameter(injection.place)
            model.register_forward_pre_hook(self._poison)
        else:
            change = _overflow if injection.kind == "overflow" else _Amplify.apply
            model.get_submodule(injection.place).register_forward_hook(
                lambda _, __, output: change(output, injection.strength) if self._strikes() else None
            )

    def _strikes(self) -> bool:
        return self.step == self._injection.step

    def _poison(self, *_: Any) -> None:
        if self._strikes():
            with torch.no_grad():
                self._parameter.view(-1)[self._injection.element] = float("nan")


def _overflow(output: torch.Tensor, factor: float) -> torch.Tensor:
    return output * factor


class _Amplify(torch.autograd.Function):
    """The same values forward, ``factor`` times the gradient backward: a backward that was written wrongly."""

    @staticmethod
    def forward(context: Any, values: torch.Tensor, factor: float) -> torch.Tensor:
        context.factor = factor
        return values.view_as(values)

    @staticmethod
    def backward(context: Any, *gradients: torch.Tensor) -> Any:
        return gradients[0] * context.factor, None
