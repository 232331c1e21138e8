"""Models that are nested so deep that Python's recursion limit is near."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

from probe.core.faults import LOG
from tests import user_scripts
from tests.pytorch.watching import watch
from tests.quick_python import quick_python
from tests.required import require

torch = require("torch")


class Around(torch.nn.Module):
    """A module that only calls the one inside."""

    def __init__(self, inner: Any) -> None:
        super().__init__()
        self.inner = inner

    def forward(self, x: Any) -> Any:
        return self.inner(x)


def nested(levels: int) -> Any:
    model = torch.nn.Linear(2, 2)
    for _ in range(levels):
        model = Around(model)
    return model


def runs(levels: int, hooked: bool) -> bool:
    """Whether a forward comes to its end with an empty hook on every module, or without any."""
    model = nested(levels)
    for module in model.modules() if hooked else ():
        module.register_forward_pre_hook(lambda *_: None)
    try:
        model(torch.ones(1, 2))
    except RecursionError:
        return False
    return True


def deepest(hooked: bool) -> int:
    """The most levels with which :func:`runs`."""
    works, fails = 1, 1000
    while fails - works > 1:
        middle = (works + fails) // 2
        works, fails = (middle, fails) if runs(middle, hooked) else (works, middle)
    return works


def watched(start_step: int) -> dict[str, int]:
    """The faults of a run whose model is as deep as one with an empty hook can be."""
    levels = deepest(hooked=True) - 1
    assert levels < deepest(hooked=False)
    model = nested(levels)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    monitor = watch(model, optimizer, squash_name=False, start_step=start_step, format=["api"])
    model(torch.ones(1, 2)).sum().backward()
    optimizer.step()
    monitor.stop()
    return monitor.faults


def test_as_deep_as_with_an_empty_hook() -> None:
    """A watched model can be nested as deep as one with hooks that do nothing, which torch needs one more frame a level
    for; where the monitor itself comes to the limit, it counts that. In a process of its own, since finalizers of what
    other tests have left may run at the limit, too."""
    program = "from tests.pytorch.test_deep_models import watched; print(*watched(0), sep='\\n'); watched(1)"
    environment = os.environ | {"PYTHONPATH": str(Path(__file__).parents[2])}
    command = [quick_python(*user_scripts.TORCH), "-c", program]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    faults = [fault for fault in done.stdout.split("\n") if fault]
    at_the_limit = ("RecursionError", "ArgumentError", LOG)  # the second is what ctypes makes of the first
    assert all(fault.endswith(at_the_limit) for fault in faults)
    assert faults or sys.version_info >= (3, 12)  # from there on calls within C have a limit of their own
