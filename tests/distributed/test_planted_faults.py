"""Faults planted in real runs, their place, rank and step drawn by chance, named from the files of all ranks."""

from __future__ import annotations

import json
import logging
import os
import random
import shutil
from collections.abc import Iterator
from datetime import datetime, timedelta
from pathlib import Path

import pytest

from probe.core.analysis.diagnosis.analyse import Analysis, analyse
from probe.core.analysis.diagnosis.causality import Cause
from probe.core.naming import row_name
from probe.core.rules.evaluate import module_of
from tests.distributed.planting import Fault, draw, train
from tests.distributed.ranks import Ranks
from tests.required import require

require("duckdb")

KINDS = {
    "nan weight": "NaN",
    "overflow": "overflow",
    "gradient": "exploding gradient",
    "dead": "dead layer",
    "frozen": "frozen parameter",
    "replica": "divergence of replicas",
    "all-reduce": "NaN",
    "bad batch": "bad batch",
}
EVERYWHERE = ("dead", "frozen")
"""Faults that are on all data-parallel ranks alike."""


def drawn(first: int, *kinds: str) -> list[tuple[str, int]]:
    """Each kind with the seed of one of two draws: of those of another test, with the other one."""
    return [(kind, 1 + (first + number) % 2) for number, kind in enumerate(kinds)]


@pytest.fixture(scope="module")
def three_ranks() -> Iterator[Ranks]:
    """Three processes on gloo: the fewest among which one can be the odd one out."""
    ranks = Ranks(3)
    yield ranks
    ranks.close()


def run(ranks: Ranks | None, fault: Fault, seed: int, way: str, output: Path) -> Analysis:
    """Trains, skews the clocks, shuffles the files, and analyses."""
    os.environ["MONITOR_OUTPUT_DIR"] = str(output)
    if ranks is None:
        train(fault, seed, way)
    else:
        ranks.run(train, fault, seed, way)
    skew(output, seed)
    return analyse(output)


@pytest.fixture
def output(tmp_path: Path) -> Iterator[Path]:
    before = os.environ.get("MONITOR_OUTPUT_DIR")
    yield tmp_path / "out"
    if before is None:
        os.environ.pop("MONITOR_OUTPUT_DIR", None)
    else:
        os.environ["MONITOR_OUTPUT_DIR"] = before


def skew(output: Path, seed: int) -> None:
    """Gives each rank a clock that is wrong by up to some days, and writes its files again in any order."""
    chance = random.Random(seed)
    for directory in sorted(output.glob("*-rank*")):
        away = timedelta(seconds=chance.randrange(-400_000, 400_000))
        path = directory / "manifest.json"
        manifest = json.loads(path.read_text())
        began = datetime.strptime(manifest["start_time"], "%Y-%m-%dT%H:%M:%S%z") + away
        path.write_text(json.dumps(manifest | {"start_time": began.strftime("%Y-%m-%dT%H:%M:%S%z")}))
        moved = output / f"{began:%b%d_%H-%M-%S}-rank{directory.name.partition('-rank')[2]}"
        moved.mkdir(exist_ok=True)
        files = list(directory.iterdir())
        chance.shuffle(files)
        for file in files:
            shutil.copy(file, moved / file.name)
        if moved != directory:
            shutil.rmtree(directory)


def assert_named(analysis: Analysis, fault: Fault, everywhere: bool = False) -> None:
    """Kind, place, rank and step are those that were planted, and nothing else began anything in its incident."""
    diagnosis = analysis.diagnosis
    assert diagnosis is not None, f"{fault}: nothing was found"
    finding, told = diagnosis.first.finding, f"{fault}\n{diagnosis.text}"
    assert diagnosis.kind.value == KINDS[fault.kind], told
    assert diagnosis.first.began == fault.step, told
    assert fault.place in (module_of(finding), row_name(finding.key)), told
    assert everywhere or diagnosis.ranks == (fault.rank,), told
    assert not diagnosis.rivals, told
    assert not analysis.others, told
    assert analysis.problems.lines() == []
    for located in diagnosis.incident.of(Cause.initiating):
        assert located.began >= fault.step, told
        assert everywhere or located.rank == fault.rank, told


@pytest.mark.parametrize(
    ("kind", "seed"), drawn(0, "nan weight", "overflow", "gradient", "dead", "frozen", "bad batch")
)
def test_one_process(kind: str, seed: int, output: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Each fault is named, with module, step and kind; and what is bad at once, in the log of its very step."""
    fault = draw(kind, seed, 1)
    with caplog.at_level(logging.WARNING, "probe.anomaly"):
        analysis = run(None, fault, seed, "alone", output)
    assert_named(analysis, fault)
    if kind not in EVERYWHERE:
        said = next(record.getMessage() for record in caplog.records if "First bad" in record.getMessage())
        assert f"at step {fault.step}" in said
        module = fault.place.removesuffix(".weight").removesuffix(".bias")
        assert f"in module {module} is" in said or (not module and "in the root module is" in said)


@pytest.mark.parametrize(
    ("kind", "seed"), drawn(1, "nan weight", "overflow", "gradient", "dead", "frozen", "bad batch", "replica")
)
def test_data_parallel(three_ranks: Ranks, kind: str, seed: int, output: Path) -> None:
    """The rank is named as well, although the gradients of all ranks are bad in the same step."""
    fault = draw(kind, seed, 3)
    analysis = run(three_ranks, fault, seed, "ddp", output)
    assert_named(analysis, fault, everywhere=kind in EVERYWHERE)
    if kind in EVERYWHERE:
        assert analysis.diagnosis is not None
        assert analysis.diagnosis.ranks == (0, 1, 2)


@pytest.mark.parametrize("seed", [1, 2])
def test_through_an_all_reduce(three_ranks: Ranks, seed: int, output: Path) -> None:
    """NaN of one rank that a sum in the forward brings to all is that rank's."""
    fault = draw("all-reduce", seed, 3)
    assert_named(run(three_ranks, fault, seed, "reduced", output), fault)


@pytest.mark.parametrize(
    ("kind", "seed"), drawn(2, "overflow", "nan weight", "dead", "gradient", "frozen", "bad batch")
)
def test_pipeline(two_ranks: Ranks, kind: str, seed: int, output: Path) -> None:
    """The stage is named, whether the fault goes forward to the next or backward to the one before."""
    fault = draw(kind, seed, 2, staged=True)
    assert_named(run(two_ranks, fault, seed, "pipeline", output), fault)


@pytest.mark.parametrize(
    ("way", "kind", "seed"),
    [("accumulated", "overflow", 1), ("fsdp", "overflow", 2), ("fsdp", "gradient", 1), ("tensor", "overflow", 2)],
)
def test_other_ways_in_which_ranks_train_together(
    two_ranks: Ranks, way: str, kind: str, seed: int, output: Path
) -> None:
    """Averages of an earlier micro batch, parameters and layers that are shared out: the rank is named."""
    fault = draw(kind, seed, 2)
    assert_named(run(two_ranks, fault, seed, way, output), fault)


@pytest.mark.parametrize(
    ("way", "seed"),
    [("alone", 1), ("ddp", 3), ("reduced", 4), ("pipeline", 5), ("accumulated", 6), ("tensor", 7)],
)
def test_healthy_runs_give_none(two_ranks: Ranks, way: str, seed: int, output: Path) -> None:
    """No finding at all."""
    fault = draw("none", seed, 2)
    analysis = run(None if way == "alone" else two_ranks, fault, seed, way, output)
    assert analysis.diagnosis is None, analysis.diagnosis.text if analysis.diagnosis else ""
    assert analysis.problems.lines() == []
