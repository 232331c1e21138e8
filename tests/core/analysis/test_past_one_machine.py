"""A planted fault among 24 simulated ranks: packed, read in pieces by two machines of which one is lost on the way,
and named as by one process that reads the ranks' own files."""

from __future__ import annotations

import json
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
from typer.testing import CliRunner

from probe.cli import app
from probe.cli.json_answer import head
from probe.core.analysis.diagnosis.analyse import Analysis, analyse
from probe.core.analysis.diagnosis.export import as_json
from probe.core.analysis.engines import engine_of
from probe.core.storage.packed.pack import pack
from tests import object_storage
from tests.core.analysis.test_simulated_run import assert_named
from tests.faulty_proxy import FaultyProxy, ProxiedRequest
from tests.ray_cluster import ray_cluster
from tests.required import require
from tests.simulated_run import ParallelSizes, SimulatedRun

require("duckdb")
MOST_REQUESTS = 3
READS_BEFORE_THE_LOSS = 3


class PackedRun(NamedTuple):
    """A run as its ranks have written it, the same run packed, and what is planted in it."""

    simulated: SimulatedRun
    unpacked: Path
    packed: Path
    analysis: Analysis
    """By one process, of the unpacked run."""


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> PackedRun:
    """An overflow among 24 ranks, of which some were resumed and some ended early."""
    folder = tmp_path_factory.mktemp("past one machine")
    simulated = SimulatedRun(
        ParallelSizes(dp=2, tp=4, pp=3), "overflow", 17, rows=8, resumed=0.05, dead=0.02, steps_per_file=8
    )
    simulated.write(folder / "run")
    pack(folder / "run", folder / "packed", block_bytes=70_000)  # several files
    return PackedRun(simulated, folder / "run", folder / "packed", analyse(folder / "run"))


def in_bytes(analysis: Analysis) -> bytes:
    """Text of an analysis, as ``probe anomalies --json`` prints it."""
    return json.dumps({**head("anomalies"), **as_json(analysis)}, indent=1).encode()


def test_named_from_the_packed_run(run: PackedRun) -> None:
    """Layer, rank and step are those that were planted, and the packed run gives the same bytes."""
    assert_named(run.analysis, run.simulated)
    assert in_bytes(analyse(run.packed)) == in_bytes(run.analysis)


def expected(run: SimulatedRun) -> dict[int, tuple[int, float, float]]:
    """The same of all ranks, from the values that were written: NumPy, no files."""
    found: dict[int, list[Any]] = {step: [] for step in range(run.steps)}
    for rank in range(run.sizes.ranks):
        squares = run.moments("actv", rank, range(run.last_step(rank) + 1))["sumsq"]
        for step, values in enumerate(np.sqrt(squares)):
            found[step].append(values)
    each = {step: np.concatenate(values) for step, values in found.items()}
    finite = {step: values[np.isfinite(values)] for step, values in each.items()}
    return {step: (len(each[step]), float(finite[step].sum()), float(finite[step].max())) for step in each}


@pytest.mark.skipif(find_spec("probe.core.analysis.query") is None, reason="there is no probe sql")
def test_sql_gives_the_numbers_of_numpy(run: PackedRun) -> None:
    """Two queries over pieces in two processes: number, sum and maximum of each step."""
    from probe.core.analysis.query import open_run

    of_piece = "SELECT step, count(*) AS n, sum(x) AS s, max(x) AS m FROM finite GROUP BY step"
    of_piece = f"WITH finite AS (SELECT step, CASE WHEN isfinite(norm) THEN norm END AS x FROM actv) {of_piece}"
    of_all = "SELECT step, sum(n)::BIGINT AS n, sum(s) AS s, max(m) AS m FROM mapped GROUP BY step ORDER BY step"
    with open_run(run.packed, "local", 2) as opened:
        found = opened.map_reduce(of_piece, of_all).to_pylist()
    assert opened.problems.lines() == []
    reference = expected(run.simulated)
    assert {row["step"]: (row["n"], row["m"]) for row in found} == {
        step: (number, largest) for step, (number, _, largest) in reference.items()
    }
    for row in found:
        assert row["s"] == pytest.approx(reference[row["step"]][1], rel=1e-12)


class Bucket(NamedTuple):
    """A packed run in a bucket, behind a proxy."""

    url: str
    proxy: FaultyProxy


@pytest.fixture(scope="module")
def bucket(run: PackedRun, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Bucket]:
    """The bucket; variables of this process, and of those that it starts, name the proxy and the keys."""
    require("s3fs")
    folder = tmp_path_factory.mktemp("objects")
    with (
        object_storage.seaweedfs(folder) as server,
        FaultyProxy(server.url) as proxy,
        pytest.MonkeyPatch.context() as patched,
    ):
        for name, value in object_storage.environment(proxy.url).items():
            patched.setenv(name, value)
        yield Bucket(server.put(run.packed, "packed"), proxy)


def probe(*words: str | Path, code: int = 0) -> bytes:
    """Output of a command."""
    done = CliRunner().invoke(app, list(map(str, words)))
    assert done.exit_code == code, done.output
    return done.stdout_bytes


def test_named_from_a_bucket(run: PackedRun, bucket: Bucket) -> None:
    """The bytes are those of the unpacked run, each object is asked for few times, and only the run is listed, once."""
    bucket.proxy.forget()
    assert probe("anomalies", bucket.url, "--json", code=1) == in_bytes(run.analysis) + b"\n"
    assert len(bucket.proxy.listings()) == 1
    assert max(bucket.proxy.of_objects().values()) <= MOST_REQUESTS


MAP = "SELECT step, count(*) AS n, max(norm) AS m FROM actv WHERE isfinite(norm) GROUP BY step"
REDUCE = "SELECT step, sum(n)::BIGINT AS n, max(m) AS m FROM mapped GROUP BY step ORDER BY step"


def test_by_two_machines_of_which_one_is_lost_in_the_end(run: PackedRun, bucket: Bucket) -> None:
    """``probe sql`` prints what one process prints of the ranks' own files; so does ``probe anomalies``, during which
    one of the machines is lost."""
    queries = ("--map", MAP, "--reduce", REDUCE, "--format", "csv")
    alone = ("--engine", "local", "-j", "1")
    with ray_cluster(1) as cluster, engine_of(cluster.address):
        engine = ("--engine", str(cluster.address))
        found = probe("sql", bucket.url, *queries, *engine)
        assert found == probe("sql", run.unpacked, *queries, *alone)
        (second,) = cluster.worker_nodes
        reads = 0

        def lose_one(request: ProxiedRequest) -> None:
            nonlocal reads
            reads += request.method == "GET" and request.path.endswith(".parquet")
            if reads == READS_BEFORE_THE_LOSS and second in cluster.worker_nodes:
                cluster.remove_node(second, allow_graceful=False)

        bucket.proxy.faults = lose_one
        found = probe("anomalies", bucket.url, "--json", *engine, code=1)
        assert not cluster.worker_nodes, reads
    assert found == in_bytes(run.analysis) + b"\n"
