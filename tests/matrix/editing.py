"""A configuration file that is edited while a toy of any framework trains."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from probe.core.monitor.trainer_mon import Monitor
from tests.matrix.harness import Harness, train_step
from tests.matrix.models import tiny_net
from tests.matrix.watching import inputs, rows_of

FILE = """// watched by hand
{
    "param_distribution": true, // all of them
    "ops": ["%s"],
    "squash_name": false,
    "dynamic_on": %s,
    "collect_times": %d // then rest
}
"""
Edits = dict[int, Callable[[Path], object]]


def config(path: Path, on: bool = False, times: int = 100, op: str = "norm") -> Path:
    path.write_text(FILE % (op, json.dumps(on), times), encoding="utf-8")
    return path


def rewriting(**values: Any) -> Callable[[Path], None]:
    """An edit by hand: the values of some keys."""

    def edit(path: Path) -> None:
        lines = path.read_text(encoding="utf-8").splitlines()
        for key, value in values.items():
            at = next((n for n, line in enumerate(lines) if f'"{key}"' in line), None)
            if at is None:
                lines.insert(2, f'    "{key}": {json.dumps(value)},')
            else:
                comma = "," if lines[at].split("//")[0].rstrip().endswith(",") else ""
                lines[at] = f'    "{key}": {json.dumps(value)}{comma}'
        path.write_text("\n".join(lines) + "\n", encoding="utf-8")

    return edit


@contextmanager
def training(framework: Harness, path: Path, steps: int, edits: Edits) -> Iterator[Monitor]:
    """A run of ``steps`` steps; ``edits`` happen to the file during the steps of these numbers."""
    model = tiny_net(framework)
    optimizer = framework.optimizer("momentum", model, lr=0.01, momentum=0.5)
    loop = framework.loop(model, optimizer)
    with framework.TrainerMon(path) as monitor:
        monitor.set_monitor(model, 1, optimizer)
        for step in range(steps):
            if step in edits:
                edits[step](path)
            train_step(loop, *inputs(framework, 1))
        yield monitor


def collected(framework: Harness, path: Path, steps: int, edits: Edits) -> list[int]:
    """The steps that a run has written."""
    with training(framework, path, steps, edits) as monitor:
        pass
    assert monitor.faults == {}
    return sorted({row.step for row in rows_of(monitor)}) if monitor.output_directory else []
