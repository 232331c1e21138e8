"""Ranks against their data-parallel peers, row by row, over files that a run has written."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from typer.testing import CliRunner

from probe.cli import app
from probe.core.analysis.diagnosis.analyse import Analysis, analyse
from probe.core.analysis.diagnosis.check_findings import check_entries
from probe.core.analysis.diagnosis.peers import BatchSizes, SignalPeers
from probe.core.checks.peer_ratios import SAME, UNLIKE, PeerRatios, log_ratios
from probe.core.records import Batch, Key
from tests.core.analysis.causes_data import Change, nothing, write_run
from tests.core.analysis.cut_engine import CutEngine
from tests.required import require

require("duckdb")

STEPS = 32


def named(ranks: int) -> Callable[[int], dict[str, list[int]]]:
    return lambda _: {"data_parallel": [*range(ranks)]}


def times(rank: int, steps: range, factor: float, *rows: tuple[str, str]) -> Change:
    """Rows (``actv``, ``b.output``) of a rank that are ``factor`` times 1.5 in some steps."""

    def change(signal: str, of: int, step: int, key: Key) -> float | None:
        name = f"{key.name}.{key.part}" if key.part else key.name
        return 1.5 * factor if of == rank and step in steps and (signal, name) in rows else None

    return change


def analysed(root: Path, ranks: int, change: Change = nothing, steps: int = STEPS, **more: Any) -> Analysis:
    write_run(root, ranks, steps, change, **{"groups": named(ranks), **more})
    return analyse(root)


def departed(analysis: Analysis) -> list[dict[str, Any]]:
    """Findings about ranks unlike their peers, as machines get them."""
    return [entry for entry in check_entries(analysis.of_checks) if entry["kind"] == UNLIKE]


@pytest.mark.parametrize(("ranks", "blamed"), [(4, 2), (2, [0, 1])])
def test_a_row_that_departs_names_step_row_and_rank(ranks: int, blamed: Any, tmp_path: Path) -> None:
    """Of three ranks and more the odd one, of two both; the first row in the order of execution."""
    rows = ("grad_unreduced", "b.weight"), ("actv", "b.output"), ("actv_grad", "b.output")
    (entry,) = departed(analysed(tmp_path, ranks, times(min(2, ranks - 1), range(30, 31), 500.0, *rows)))
    assert (entry["grade"], entry["where"], entry["rank"], entry["step"]) == ("warning", "b.output", blamed, 30)
    assert "norm of b.output" in entry["text"]
    assert "3 rows do so in this step" in entry["text"]


def test_a_row_far_below_its_peers_departs(tmp_path: Path) -> None:
    """As one far above."""
    (entry,) = departed(analysed(tmp_path, 3, times(1, range(25, STEPS), 1 / 50, ("grad_unreduced", "a.weight"))))
    assert (entry["where"], entry["rank"], entry["step"]) == ("a.weight", 1, 25)
    assert "below what is usual" in entry["text"]


def test_other_data_alone_are_silent(tmp_path: Path) -> None:
    """Nor is a rank that was always unlike its peers, or one that departs before 16 steps show what is usual."""
    assert departed(analysed(tmp_path / "healthy", 3)) == []
    always = times(1, range(STEPS), 50.0, ("actv", "b.output"))
    assert departed(analysed(tmp_path / "always", 3, always)) == []
    early = times(1, range(15, 16), 50.0, ("actv", "b.output"))
    assert departed(analysed(tmp_path / "early", 3, early)) == []


def test_what_all_ranks_do_is_silent(tmp_path: Path) -> None:
    """A leap of a whole step is no departure from peers."""

    def change(signal: str, rank: int, step: int, key: Key) -> float | None:
        return 1e3 if step == 30 and signal != "param_origin" else None

    assert departed(analysed(tmp_path, 3, change)) == []


def test_a_shorter_batch_on_one_rank_is_silent() -> None:
    """Its numbers differ as they would with wrong ones, but its activations have fewer elements."""

    def batch(rank: int, step: int, size: int, times: float) -> Batch:
        norm = times * np.random.default_rng([rank, step]).uniform(1, 1.1, 1) * np.sqrt(size)
        columns = {"sumsq": norm**2}
        return Batch("actv", step, (Key("a", "output"),), ((size, 32),), ("torch.float32",), np.arange(1), columns)

    def judged(short: int) -> list[Any]:
        sizes, peers = BatchSizes(3), SignalPeers("actv", (0, 1, 2))
        found: list[Any] = []
        for step in range(40):
            odd = step == 30
            own = [batch(r, step, short if odd and r == 1 else 8, 9.0 if odd and r == 1 else 1.0) for r in range(3)]
            found += peers.judge(own) if sizes.are_usual({"actv": own}) else []
        return found

    assert judged(short=2) == []
    assert [departure.rank for departure in judged(short=8)] == [1]


def test_ranks_of_unknown_role_are_not_judged(tmp_path: Path) -> None:
    """Nothing names groups, or each rank is in one of its own."""
    wrong = times(1, range(30, 31), 500.0, ("actv", "b.output"))
    assert departed(analysed(tmp_path / "unnamed", 3, wrong, groups=lambda _: {})) == []
    alone = analysed(tmp_path / "alone", 3, wrong, groups=lambda rank: {"data_parallel": [rank]})
    assert departed(alone) == []


def test_peers_are_those_of_the_group(tmp_path: Path) -> None:
    """Ranks of two groups are compared within each."""
    groups = [[0, 2, 4], [1, 3, 5]]
    wrong = times(3, range(30, 31), 500.0, ("actv", "b.output"))
    (entry,) = departed(analysed(tmp_path, 6, wrong, groups=lambda rank: {"data_parallel": groups[rank % 2]}))
    assert entry["rank"] == 3


def test_an_episode_is_one_finding(tmp_path: Path) -> None:
    """Departures without ten quiet steps between them; later ones are another."""

    def change(signal: str, rank: int, step: int, key: Key) -> float | None:
        wrong = {20: 1e3, 25: 1e5, 40: 1e9}
        return wrong.get(step) if (signal, rank, key) == ("actv", 1, Key("a", "output")) else None

    assert [entry["step"] for entry in departed(analysed(tmp_path, 3, change, 50))] == [20, 40]


def test_a_reduced_gradient_that_one_rank_has_lost_departs(tmp_path: Path) -> None:
    """Zero on one rank, and a number on the others, which were always equal."""
    lost = times(1, range(30, 31), 0.0, ("grad_reduced", "b.weight"))
    (entry,) = departed(analysed(tmp_path, 3, lost))
    assert (entry["where"], entry["rank"], entry["step"]) == ("b.weight", 1, 30)


def test_ranks_that_see_the_same_data_are_found(tmp_path: Path) -> None:
    """Own gradients and activations are equal on all ranks in five steps in a row; in fewer, that is none."""

    def same(steps: range) -> Change:
        def change(signal: str, rank: int, step: int, key: Key) -> float | None:
            wanted = signal in ("actv", "actv_grad", "grad_unreduced") and step in steps
            return float(np.random.default_rng([step, len(signal)]).uniform(1, 2)) if wanted else None

        return change

    def found(root: Path, steps: range) -> list[tuple[str, Any, int]]:
        entries = check_entries(analysed(root, 2, same(steps), 20).of_checks)
        return [(entry["kind"], entry["rank"], entry["step"]) for entry in entries]

    assert found(tmp_path / "five", range(7, 12)) == [(SAME, [0, 1], 7)]
    assert found(tmp_path / "four", range(7, 11)) == []


def test_a_departure_is_no_all_clear(tmp_path: Path) -> None:
    """The lines for people have it, and do not state that nothing was found; the exit code is 1."""
    write_run(tmp_path, 3, STEPS, times(1, range(30, 31), 20.0, ("actv", "b.output")), groups=named(3))
    done = CliRunner().invoke(app, ["anomalies", str(tmp_path)])
    assert done.exit_code == 1
    assert "Nothing was found" not in done.stdout
    assert "warning: rank-unlike-peers, rank 1, step 30: rank 1 departs from its peers" in done.stdout


def test_an_engine_has_the_same_findings(tmp_path: Path) -> None:
    """Each group is read as one piece."""
    analysis = analysed(tmp_path, 4, times(1, range(30, 31), 500.0, ("actv", "b.output")))
    assert departed(analysis)
    assert departed(analyse(tmp_path, engine=CutEngine(4))) == departed(analysis)


def test_ratios_and_departures_are_those_by_hand() -> None:
    """Compared with NumPy's medians, for two to five ranks and before and after the window is full."""
    random = np.random.default_rng(1)
    for ranks in (2, 3, 4, 5):
        logs = random.normal(size=(7, ranks))
        peers = [np.median(np.delete(logs, n, axis=1), axis=1) for n in range(ranks)]
        np.testing.assert_allclose(log_ratios(logs), logs - np.stack(peers, axis=1))
    ratios, series = PeerRatios(3, window=8, fewest=5, floor=0.01), random.normal(size=(20, 2, 3))
    for step, values in enumerate(series):
        departures = ratios.departures(np.arange(2), values)
        ratios.hold(np.arange(2), values)
        past = series[max(0, step - 8) : step]
        if len(past) < 5:
            assert np.isnan(departures.distances).all()
            continue
        usual = np.median(past, axis=0)
        scatter = 1.4826 * np.median(np.abs(past - usual), axis=0) * (1 + 8 / len(past))
        np.testing.assert_allclose(departures.distances, values - usual, atol=1e-6)
        np.testing.assert_allclose(departures.scatter, np.maximum(scatter, 0.01), rtol=1e-5)
        np.testing.assert_allclose(departures.farthest, np.abs(past - usual).max(axis=0), rtol=1e-5)
    assert math.isclose(float(log_ratios(np.log(np.array([[4.0, 1.0]])))[0, 0]), math.log(4))
