"""Parameters of a trial: their numbers before the first update, and the norms of their gradients at each."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import Any

import torch

from probe.core.prechecks.trial import ParameterFacts
from probe.pytorch.dtensor import local
from probe.pytorch.prechecks.digests import digest, norm_of
from probe.pytorch.tensors import is_tensor


class ParameterWatch:
    """Trainable parameters, noted before the first update."""

    def __init__(self) -> None:
        self._rows: dict[int, ParameterFacts] = {}
        self._parameters: dict[int, torch.nn.Parameter] = {}
        self._gradients: dict[int, list[float]] = {}

    def note(self, models: Mapping[str, torch.nn.Module], order: Mapping[int, tuple[int, Any]]) -> None:
        """Note the parameters of models, by name.

        Args:
            order: order in which modules were called first, by identity.
        """
        for prefix, model in models.items():
            for place, module in model.named_modules():
                for name, parameter in module.named_parameters(recurse=False):
                    if parameter.requires_grad and id(parameter) not in self._rows:
                        whole = ".".join(filter(None, (prefix, place.replace("_orig_mod.", ""), name)))
                        called = order.get(id(module), (-1, None))[0]
                        self._parameters[id(parameter)] = parameter
                        self._rows[id(parameter)] = _row(whole.removeprefix("module."), module, parameter, called)

    def updating(self, parameters: Iterable[torch.nn.Parameter]) -> None:
        """Take the norms of gradients that an update is about to apply."""
        for parameter in parameters:
            gradient = parameter.grad
            norm = math.nan
            if gradient is not None:
                part = local(gradient)
                norm = norm_of(part.coalesce().values() if part.is_sparse else part)
            self._gradients.setdefault(id(parameter), []).append(norm)

    def rows(self) -> list[ParameterFacts]:
        """Return the facts of all parameters."""
        return [
            row._replace(gradients=tuple(self._gradients.get(identity, ()))) for identity, row in self._rows.items()
        ]


def _row(name: str, module: torch.nn.Module, parameter: torch.nn.Parameter, order: int) -> ParameterFacts:
    part = local(parameter).detach()
    empty = part.numel() == 0 or not is_tensor(part)
    # units of a grouped convolution get different inputs
    several = not empty and part.dim() > 1 and len(part) > 1 and getattr(module, "groups", 1) == 1
    return ParameterFacts(
        name=name,
        kind=type(module).__name__,
        shape=tuple(part.shape),
        least=math.nan if empty else float(part.min()),
        most=math.nan if empty else float(part.max()),
        equal_rows=several and bool((part == part[:1]).all()),
        order=order,
        gradients=(),
        digest=0 if empty else digest([part]),
    )
