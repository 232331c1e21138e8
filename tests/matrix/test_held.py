"""Guarantees that held when faults were injected, and must go on holding."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import pytest

from tests.matrix.harness import Harness, train_step
from tests.matrix.models import SQUARE, tiny_net
from tests.matrix.watching import EVERYTHING, LR, MOMENTUM, inputs, watching

FORMATS = ["csv", "tensorboard", "sqlite"]


def steps(framework: Harness, config: dict[str, Any], count: int, model: Any = None) -> Path:
    """Output directory of a monitor that has watched ``count`` steps."""
    model = model or tiny_net(framework)
    optimizer = framework.optimizer("momentum", model, lr=LR / 8, momentum=MOMENTUM)
    loop = framework.loop(model, optimizer)
    with watching(framework, config, model, optimizer) as monitor:
        for _ in range(count):
            train_step(loop, *inputs(framework))
    return Path(str(monitor.output_directory))


def descriptors() -> int:
    """Number of open files of this process."""
    return len([*Path("/proc/self/fd").iterdir()])


@pytest.mark.slow
def test_attaching_again_and_again_leaks_no_descriptor_and_no_thread(framework: Harness) -> None:
    """After twenty cycles the process has the descriptors and threads that it had after the first."""
    steps(framework, EVERYTHING | {"format": FORMATS}, 1)
    before = descriptors(), threading.active_count()
    for _ in range(20):
        steps(framework, EVERYTHING | {"format": FORMATS}, 1)
    assert (descriptors(), threading.active_count()) == before


def test_no_secret_of_the_environment_is_written(framework: Harness, monkeypatch: pytest.MonkeyPatch) -> None:
    """Values of environment variables such as tokens stand in no file of the run."""
    monkeypatch.setenv("HF_TOKEN", "a-token-nobody-may-read")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "a-key-nobody-may-read")
    directory = steps(framework, EVERYTHING | {"format": FORMATS, "stack_info": True}, 2)
    written = [path for path in directory.rglob("*") if path.is_file()]
    assert {path.suffix for path in written} >= {".csv", ".json", ".db"}
    assert not [path for path in written if b"nobody-may-read" in path.read_bytes()]


@pytest.mark.needs("any name")
def test_names_that_look_like_paths_write_nowhere_else(framework: Harness, output_dir: Path) -> None:
    """A module called like a path to another folder makes no file outside of the output directory."""
    inner = framework.linear(SQUARE)
    outer = framework.module(inner, **{"../../escaped": inner})
    around = {*output_dir.parent.rglob("*")}
    directory = steps(framework, EVERYTHING | {"format": FORMATS, "stack_info": True}, 2, outer)
    assert directory.is_relative_to(output_dir)
    assert all(path.is_relative_to(output_dir) for path in {*output_dir.parent.rglob("*")} - around)
