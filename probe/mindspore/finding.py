"""Models and optimizers of a program of MindSpore that is watched as it is; :mod:`probe.launch.watch` decides."""

from __future__ import annotations

import atexit
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

from mindspore import nn

from probe.core.backend.live_objects import instances
from probe.core.door import Remove, replace
from probe.launch.watch import ScriptWatch
from probe.mindspore import hooks
from probe.mindspore.adapter import TrainerMon
from probe.mindspore.oddities import options


class CellFinder:
    """See :class:`probe.launch.model_search.Finder`."""

    framework = "mindspore"
    monitor = TrainerMon
    called = nn.Cell
    step = "__call__"

    def trains(self, model: Any) -> bool:
        return not isinstance(model, nn.Optimizer)

    def parameters(self, model: Any) -> Iterable[Any]:
        return (parameter for _, parameter in hooks.parameters(model))

    def owned(self, optimizer: Any) -> Iterable[Any]:
        return hooks.owned(optimizer)

    def models(self) -> list[Any]:
        return [cell for cell in instances(nn.Cell) if not isinstance(cell, nn.Optimizer)]

    def chosen(self, model: Any, wanted: frozenset[int], parents: Callable[[Any], list[Any]]) -> Any:  # noqa: ARG002
        """Return the network inside cells that hold it beside its optimizer or its loss."""
        while True:
            children = [child for _, child in _children(model)]
            if not any(isinstance(child, nn.Optimizer | nn.LossBase) for child in children):
                return model
            inner = [
                child
                for child in children
                if not isinstance(child, nn.Optimizer)
                and wanted <= {id(parameter) for parameter in self.parameters(child)}
            ]
            if not inner:
                return model
            model = inner[0]

    def before_tracing(self, models: Sequence[Any]) -> list[Any]:
        return [*models]

    def have_gradients(self, parameters: Iterable[Any]) -> bool:  # noqa: ARG002
        return False

    def is_compiled_inside(self) -> bool:
        return False

    def replace_call(self, replacement: Callable[..., Any]) -> Remove:
        return replace(nn.Cell, "__call__", replacement)

    def made_steps(self, optimizer: Any) -> int:
        step = getattr(optimizer, "global_step", None)
        return int(step.asnumpy().reshape(-1)[0]) if step is not None else 0

    def settings(self, optimizer: Any) -> str:
        groups = [*options(optimizer)]
        if getattr(optimizer, "dynamic_lr", False):  # the rate is that of a step
            groups = [{name: value for name, value in group.items() if name != "lr"} for group in groups]
        return repr(groups)


def _children(model: Any) -> Iterator[tuple[str, Any]]:
    yield from getattr(model, "_cells", {}).items()


WATCH = ScriptWatch(CellFinder())
"""Watch of this process; it is made with its first optimizer."""
atexit.register(WATCH.ended)
