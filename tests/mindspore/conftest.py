"""Fixtures of tests on MindSpore."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.distributed.ranks import Ranks
from tests.mindspore.processes import MindSporeRanks


@pytest.fixture
def graph_mode() -> Iterator[None]:
    """MindSpore's other mode, for one test."""
    import mindspore

    mindspore.set_context(mode=mindspore.GRAPH_MODE)
    try:
        yield
    finally:
        mindspore.set_context(mode=mindspore.PYNATIVE_MODE)


@pytest.fixture(scope="session")
def same_gpt(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of the same small GPT on each framework, in ``pytorch`` and ``mindspore``; beside them the losses."""
    from tests.mindspore import test_same_gpt as gpt

    root = tmp_path_factory.mktemp("same_gpt")
    with pytest.MonkeyPatch.context() as patch:
        for name, train in (("pytorch", gpt.train_on_pytorch), ("mindspore", gpt.train_on_mindspore)):
            patch.setenv("MONITOR_OUTPUT_DIR", str(root / name))
            losses = train()
            (root / f"{name}.json").write_text(json.dumps(losses))
    return root


@pytest.fixture(scope="session")
def two_ranks() -> Iterator[Ranks]:
    """Two processes in MindSpore's group."""
    ranks = MindSporeRanks(2)
    yield ranks
    ranks.close()
