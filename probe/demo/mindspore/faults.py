"""Faults in a cell of a MindSpore model; see :mod:`probe.demo.faults`."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from mindspore import Parameter, Tensor, nn

from probe.demo.faults import Fault, FaultPlaces, Injection


def places(model: nn.Cell) -> FaultPlaces:
    """Places where ``model`` can break."""
    cells = {name: cell for name, cell in model.cells_and_names() if name}
    computing = [name for name, cell in cells.items() if not isinstance(cell, nn.CellList)]
    weighted = [name for name, cell in cells.items() if list(cell.parameters_and_names(expand=False))]
    return FaultPlaces({name: held.size for name, held in model.parameters_and_names()}, computing, weighted)


def inject(model: nn.Cell, fault: Fault) -> None:
    """Make the fault a part of ``model``."""
    injection = fault.injection
    if injection.kind == "nan":
        weight = dict(model.parameters_and_names())[injection.place]

        def poison(*_: object) -> None:
            if fault.strikes():
                _poison(weight, injection.element)

        model.register_forward_pre_hook(poison)
        return
    broken = _broken(injection)

    def replace(_: nn.Cell, __: object, output: Tensor) -> Tensor:
        return broken(output) if fault.strikes() else output

    dict(model.cells_and_names())[injection.place].register_forward_hook(replace)


def _poison(weight: Parameter, element: int) -> None:
    values = weight.asnumpy().copy()
    values.flat[element] = np.nan
    weight.set_data(Tensor(values))


def _broken(injection: Injection) -> Callable[[Tensor], Tensor]:
    """Function from the right output to the broken one."""
    if injection.kind == "gradient":
        return _Amplify(injection.strength)
    return lambda output: output * injection.strength


class _Amplify(nn.Cell):
    """Identity in the forward, ``factor`` times the gradient in the backward: a wrong ``bprop``."""

    def __init__(self, factor: float) -> None:
        super().__init__()
        self.factor = factor

    def construct(self, values: Tensor) -> Tensor:
        return values * 1.0

    def bprop(self, values: Tensor, out: Tensor, gradient: Tensor) -> tuple[Tensor]:  # noqa: ARG002 - as MindSpore calls it
        return (gradient * self.factor,)
