"""Simulated runs: the same files by both writers, nothing to report in healthy ones, each planted fault named."""

from __future__ import annotations

from pathlib import Path

import pytest

from probe.core.analysis.diagnosis.analyse import Analysis, analyse
from probe.core.naming import row_name
from probe.core.rules.evaluate import module_of
from probe.core.storage.layout import CSV, PARQUET
from tests.required import require
from tests.simulated_run import KINDS, ParallelSizes, SimulatedRun

require("duckdb")

SIZES = {
    "dp4 tp2 pp2": ParallelSizes(dp=4, tp=2, pp=2),
    "dp8": ParallelSizes(dp=8),
    "dp4 pp2 ep2": ParallelSizes(dp=4, pp=2, ep=2),
}


def assert_named(analysis: Analysis, run: SimulatedRun) -> None:
    """Kind, place, ranks and step are those that were planted, and nothing else began anything."""
    expected, diagnosis = run.expected, analysis.diagnosis
    assert expected is not None
    assert diagnosis is not None, f"{run}: nothing was found"
    finding, told = diagnosis.first.finding, f"{run}\n{diagnosis.text}"
    assert diagnosis.kind.value == expected.kind, told
    assert diagnosis.first.began == expected.step, told
    assert expected.place in (module_of(finding), row_name(finding.key)), told
    assert diagnosis.ranks == expected.ranks, told
    assert not diagnosis.rivals, told
    assert not analysis.others, told


@pytest.mark.parametrize(("kind", "sizes"), [*zip(KINDS, [*SIZES] * 3, strict=False)])
def test_each_fault_is_named(kind: str, sizes: str, tmp_path: Path) -> None:
    """Layer, rank and step, among ranks of which some were resumed and some ended early."""
    run = SimulatedRun(SIZES[sizes], kind, seed=len(kind), rows=20, resumed=0.1, dead=0.1)
    run.write(tmp_path)
    assert_named(analyse(tmp_path), run)


@pytest.mark.parametrize("kind", ["nan weight", "gradient", "dead"])
def test_a_fault_after_which_all_is_nan(kind: str, tmp_path: Path) -> None:
    """The first cause stays the first where every row of every rank is NaN from the next step on."""
    run = SimulatedRun(ParallelSizes(dp=4, tp=2, pp=2), kind, seed=5, rows=20, aftermath=True)
    run.write(tmp_path)
    assert_named(analyse(tmp_path), run)


@pytest.mark.parametrize("sizes", SIZES)
def test_a_healthy_run_has_no_finding(sizes: str, tmp_path: Path) -> None:
    """The default rules report nothing, whatever signals are recorded."""
    run = SimulatedRun(SIZES[sizes], rows=20, resumed=0.2, dead=0.1)
    run.write(tmp_path)
    analysis = analyse(tmp_path)
    assert analysis.diagnosis is None
    assert analysis.problems.lines() == []


@pytest.mark.parametrize(("table_format", "kind"), [(CSV, "overflow"), (PARQUET, "frozen"), (PARQUET, "all-reduce")])
def test_both_writers_write_the_same_bytes(kind: str, table_format: str, tmp_path: Path) -> None:
    """DuckDB writes the very files that the sinks write."""
    run = SimulatedRun(ParallelSizes(dp=2, tp=2), kind, rows=20, resumed=0.5, format=table_format, steps_per_file=8)
    run.write(tmp_path / "sinks", through_sinks=range(4))
    run.write(tmp_path / "duckdb")
    files = sorted(path.relative_to(tmp_path / "sinks") for path in (tmp_path / "sinks").rglob("*.*"))
    assert len(files) > 4 * 3
    assert files == sorted(path.relative_to(tmp_path / "duckdb") for path in (tmp_path / "duckdb").rglob("*.*"))
    for file in files:
        assert (tmp_path / "sinks" / file).read_bytes() == (tmp_path / "duckdb" / file).read_bytes(), file
