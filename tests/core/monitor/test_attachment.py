"""Objects of an attachment in a running program: of how many classes they are, and that none is left at the end."""

from __future__ import annotations

import gc
from collections import Counter
from pathlib import Path

import numpy as np
import pytest

from tests.matrix import numpy_harness
from tests.matrix.numpy_framework import Tensor, TrainerMon
from tests.matrix.watching import EVERYTHING

ROOMS = tuple(f"probe.core.{room}" for room in ("monitor", "control", "distributed", "instrumentation", "output"))
BESIDE = ("probe.core.output.sinks", "probe.core.output.metrics", "probe.core.instrumentation.signals.")
"""Writers and sources: a user who has configured one knows its name."""
MOST_CLASSES = 28
CONFIG = {**EVERYTHING, "history": 3, "max_overhead": 0.5, "format": ["csv"], "run": {"enable": True}}


def objects() -> Counter[str]:
    """The number of objects in the process of each class of the rooms; the interpreter knows them all."""
    gc.collect()
    kinds = Counter(map(type, gc.get_objects())).items()
    names = ((f"{kind.__module__}.{kind.__qualname__}", n) for kind, n in kinds if isinstance(kind.__module__, str))
    return Counter({name: n for name, n in names if name.startswith(ROOMS) and not name.startswith(BESIDE)})


def test_an_attachment_has_objects_of_few_classes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A running monitor consists of a limited number of classes, values included; its end leaves no object of any."""
    monkeypatch.setenv("MONITOR_OUTPUT_DIR", str(tmp_path))
    gc.freeze()  # what other tests have imported need not be looked through
    before = objects()
    model = numpy_harness.linear(np.ones((2, 3)), np.ones(2))
    optimizer = numpy_harness.optimizer("momentum", model, lr=0.1)
    loop = numpy_harness.loop(model, optimizer)
    monitor = TrainerMon(CONFIG)
    monitor.set_monitor(model, 1, optimizer)
    for _ in range(3):
        loop.micro_batch(Tensor(np.ones((4, 3))))
        loop.update()
    loop.micro_batch(Tensor(np.ones((4, 3))))
    assert monitor.flush()  # no step is on its way
    made = objects() - before
    assert {"probe.core.monitor.attachment.Attachment", "probe.core.instrumentation.schedule.Pace"} <= {*made}
    assert len(made) <= MOST_CLASSES, sorted(made)
    monitor.stop()
    del monitor
    assert objects() - before == Counter()
