"""Which modules of torch have a forward."""

from __future__ import annotations

import pytest

from tests.required import require

torch = require("torch")

from probe.pytorch.hooks import runs  # noqa: E402


class Called(torch.nn.ModuleList):
    """A list that is called."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x


def with_its_own() -> torch.nn.Module:
    module = torch.nn.ModuleList([])
    module.forward = lambda x: x
    return module


@pytest.mark.parametrize(
    ("module", "has"),
    [
        (torch.nn.ModuleList([]), False),
        (torch.nn.ModuleDict({}), False),
        (torch.nn.ParameterList([]), False),
        (torch.nn.Sequential(), True),
        (torch.nn.Linear(1, 1), True),
        (Called([]), True),
        (with_its_own(), True),
    ],
    ids=lambda value: type(value).__name__,
)
def test_a_container_has_no_forward(module: torch.nn.Module, has: bool) -> None:
    """Unless its class or it itself has one."""
    assert runs(module) is has
