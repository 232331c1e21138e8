"""Processes for the tests of this folder."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

from tests.distributed.ranks import Ranks
from tests.required import require

NEWEST_DEEPSPEED, NEWEST_MEGATRON = "0.19.8", "0.16.1"
"""Of older versions all ranks are forked from one process, since their import takes long."""


def _ranks(size: int) -> Iterator[Ranks]:
    require("torch")
    ranks = Ranks(size)
    yield ranks
    ranks.close()


@pytest.fixture(scope="session")
def two_ranks() -> Iterator[Ranks]:
    """Two processes on gloo."""
    yield from _ranks(2)


@pytest.fixture(scope="session")
def four_ranks() -> Iterator[Ranks]:
    """Four processes on gloo."""
    yield from _ranks(4)


@pytest.fixture(scope="session")
def deepspeed_ranks() -> Iterator[Callable[[str], Ranks]]:
    """Two processes with DeepSpeed of a version, started when they are asked for."""
    require("torch")
    offline = {"HF_HUB_OFFLINE": "1", "TRANSFORMERS_OFFLINE": "1", "HF_HUB_DISABLE_TELEMETRY": "1"}
    prepare, started = "tests.distributed.deepspeed_on_cpu", dict[str, Ranks]()

    def ranks(version: str) -> Ranks:
        if version not in started:
            packages = [f"deepspeed-{version}"]
            if version == NEWEST_DEEPSPEED:  # the path of those of `test_run_parallel`, which are forked with them
                packages += [f"megatron-core-{NEWEST_MEGATRON}"]
            alike = version != NEWEST_DEEPSPEED
            started[version] = Ranks(2, packages=packages, prepare=prepare, alike=alike, environment=offline)
        return started[version]

    yield ranks
    for each in started.values():
        each.close()


@pytest.fixture(scope="session")
def megatron_ranks() -> Iterator[Callable[..., Ranks]]:
    """Processes with Megatron-Core of a version, started when they are asked for: two, or as many as wanted. Those of
    another version end then."""
    require("torch")
    started: dict[int, tuple[str, Ranks]] = {}

    def end() -> None:
        for _, each in started.values():
            each.close()
        started.clear()

    def ranks(version: str, size: int = 2) -> Ranks:
        if started and version not in {running for running, _ in started.values()}:
            end()
        if size not in started:
            packages = [f"megatron-core-{version}"]
            prepare, alike = "tests.distributed.megatron_cpu", version != NEWEST_MEGATRON
            started[size] = version, Ranks(size, packages=packages, prepare=prepare, alike=alike)
        return started[size][1]

    yield ranks
    end()
