"""Faults in a module of a PyTorch model; see :mod:`probe.demo.faults`."""

from __future__ import annotations

from typing import Any

import torch

from probe.demo.faults import Fault, FaultPlaces


def places(model: torch.nn.Module) -> FaultPlaces:
    """Places where ``model`` can break."""
    modules = list(model.named_modules())
    return FaultPlaces(
        {name: parameter.numel() for name, parameter in model.named_parameters()},
        [name for name, module in modules if name and not isinstance(module, torch.nn.ModuleList)],
        [name for name, module in modules if list(module.parameters(recurse=False))],
    )


def inject(model: torch.nn.Module, fault: Fault) -> None:
    """Make the fault a part of ``model``."""
    kind, place, _, _, strength, element = fault.injection
    if kind == "nan":
        parameter = model.get_parameter(place)
        model.register_forward_pre_hook(lambda *_: _poison(parameter, element) if fault.strikes() else None)
    else:
        change = torch.mul if kind == "overflow" else _Amplify.apply
        model.get_submodule(place).register_forward_hook(
            lambda _, __, output: change(output, strength) if fault.strikes() else None
        )


def _poison(parameter: torch.Tensor, element: int) -> None:
    with torch.no_grad():
        parameter.view(-1)[element] = float("nan")


class _Amplify(torch.autograd.Function):
    """Identity in the forward, ``factor`` times the gradient in the backward: a wrong backward."""

    @staticmethod
    def forward(context: Any, values: torch.Tensor, factor: float) -> torch.Tensor:
        context.factor = factor
        return values.view_as(values)

    @staticmethod
    def backward(context: Any, *gradients: torch.Tensor) -> Any:
        return gradients[0] * context.factor, None
