"""Faults in a cell of a MindSpore model; see :mod:`probe.demo.faults`."""

from __future__ import annotations

import numpy as np
from mindspore import Tensor, nn

from probe.demo.faults import Fault, FaultPlaces


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
                values = weight.asnumpy().copy()
                values.flat[injection.element] = np.nan
                weight.set_data(Tensor(values))

        model.register_forward_pre_hook(poison)
        return
    amplify = _Amplify(injection.strength)

    def replace(_: nn.Cell, __: object, output: Tensor) -> Tensor:
        if not fault.strikes():
            return output
        return amplify(output) if injection.kind == "gradient" else output * injection.strength

    dict(model.cells_and_names())[injection.place].register_forward_hook(replace)


class _Amplify(nn.Cell):
    """Identity in the forward, ``factor`` times the gradient in the backward: a wrong ``bprop``."""

    def __init__(self, factor: float) -> None:
        super().__init__()
        self.factor = factor

    def construct(self, values: Tensor) -> Tensor:
        return values * 1.0

    def bprop(self, values: Tensor, out: Tensor, gradient: Tensor) -> tuple[Tensor]:  # noqa: ARG002 - as MindSpore calls it
        return (gradient * self.factor,)
