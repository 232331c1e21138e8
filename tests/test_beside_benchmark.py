"""Benchmarks beside other tools: scores, votes, leads and harm are those of their definitions."""

from __future__ import annotations

import json
import math
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from tests.required import require

BENCHMARKS = Path(__file__).resolve().parent.parent / "benchmarks"


@pytest.fixture
def benchmark(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Modules of the benchmarks, whose folder is on the path as for their scripts."""
    require("torch")
    monkeypatch.syspath_prepend(str(BENCHMARKS / "faults"))
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    import _beside_recordings
    import _beside_scores
    import beside
    import bit_flips
    import divergence
    import hindsight
    import tails

    return SimpleNamespace(
        recordings=_beside_recordings,
        scores=_beside_scores,
        beside=beside,
        flips=bit_flips,
        divergence=divergence,
        hindsight=hindsight,
        tails=tails,
    )


@pytest.mark.torch
def test_a_z_score_is_that_of_numpy(benchmark: Any) -> None:
    """Against the mean and deviation of the window before it; what is not finite is infinite, and not remembered."""
    series = np.random.default_rng(0).normal(size=60).tolist()
    scores = benchmark.scores.z_scores([*series, math.nan, 9.0])
    window = np.array(series[10:])
    assert scores[:50] == [0.0] * 50
    assert scores[60] == math.inf
    assert scores[61] == pytest.approx((9.0 - window.mean()) / window.std())
    assert benchmark.scores.alarms(scores) == [60, 61]


@pytest.mark.torch
@pytest.mark.parametrize(
    ("faulty", "healthy", "found"),
    [([80], [], True), ([90], [], True), ([91], [], False), ([79], [], False), ([80], [3], False)],
)
def test_an_alarm_counts_as_a_finding_of_ours_does(
    benchmark: Any, faulty: list[int], healthy: list[int], found: bool
) -> None:
    """From the step in which the fault acts to the tenth after it, and only if the twin has none."""
    case = benchmark.beside.Case((), "rows", (), start=80)
    assert benchmark.beside.vote(case, faulty, healthy).found is found
    assert not benchmark.beside.vote(case, faulty, healthy, "does not run").found


@pytest.mark.torch
def test_shares_have_intervals_over_families(benchmark: Any) -> None:
    """Three cases of one report are found and one of another is not: a share of three quarters, from none to all."""
    module = benchmark.beside
    known = {name: module.Case((name[0],), "rows", ()) for name in ("a1", "a2", "a3", "b")}
    votes = {name: [module.Vote(name != "b", 0, "")] for name in known}
    exported = module.exported(known, {"tool": votes})
    assert exported["shares"] == {"tool": {"value": 0.75, "low": 0.0, "high": 1.0}}
    assert exported["votes"] == {"tool": votes}
    assert "| tool | 3 of 4 (75 %, 0 to 100) | 3 of 4 |" in module.summary(known, {"tool": votes})


@pytest.mark.torch
def test_numbers_of_a_recording(benchmark: Any, tmp_path: Path) -> None:
    """The loss as it was logged; the norm of all gradients from those of the parameters."""
    folder = tmp_path / "files" / "Jan01_00-00-00-rank0-aaaa"
    folder.mkdir(parents=True)
    head = "vpp_stage,name,step,value,shape,dtype\n"
    (folder / "run_0-99.csv").write_text(f"{head}0,loss,0,2.5,[],float64\n0,loss,2,1.5,[],float64\n")
    rows = "".join(f"0,{name},0,{norm},[],float32\n" for name, norm in (("a", 3), ("b", 4)))
    (folder / "grad_reduced_0-0.csv").write_text("vpp_stage,name,step,norm,shape,dtype\n" + rows)
    (numbers,) = benchmark.recordings.numbers_of(tmp_path)
    assert json.dumps(numbers) == json.dumps({"losses": [2.5, math.nan, 1.5], "norms": [5.0, math.nan, math.nan]})


@pytest.mark.torch
@pytest.mark.parametrize(
    ("alarms", "steps"),
    [([], 0), ([95], 5), ([40, 60, 80, 95], 60), ([40, 70, 95], 5), ([100, 101], 0), ([60], 0)],
)
def test_a_lead_is_that_of_the_chain_which_is_open(benchmark: Any, alarms: list[int], steps: int) -> None:
    """Each alarm follows the one before within 20 steps, and the last is so near to the divergence in step 100."""
    assert benchmark.divergence.lead(alarms, 100) == steps


@pytest.mark.torch
def test_a_run_has_diverged_where_its_loss_has_doubled(benchmark: Any) -> None:
    """The mean of five losses against its minimum so far, or a loss that is not finite."""
    run = benchmark.divergence.Run
    assert run([2.0] * 20 + [4.4] * 6, [], []).end == 24
    assert run([2.0] * 20 + [math.inf], [], []).end == 20
    assert run([4.0, 3.0, 2.0, 2.1, 2.2], [], []).end is None


@pytest.mark.torch
def test_harm_is_what_leaves_the_band_of_the_twins(benchmark: Any) -> None:
    """By five standard deviations of theirs, on either side, or by not being finite."""
    band = [1.0, 1.1, 1.2]
    spread = float(np.std(band))
    values = [1.1, 1.2 + 4.9 * spread, 1.2 + 5.1 * spread, 1.0 - 5.1 * spread, math.nan]
    assert [benchmark.flips.leaves(value, band) for value in values] == [False, False, True, True, True]


@pytest.mark.torch
@pytest.mark.parametrize(("ranks", "right"), [([2], True), ([[2]], True), ([2, 3], False), ([[0, 1, 2, 3]], False)])
def test_a_rank_is_right_if_no_other_is_named_with_it(benchmark: Any, ranks: list[Any], right: bool) -> None:
    """By the first finding in time, and those of the same kind in the same step."""
    flip = benchmark.flips.Flip("activation", "layers.1.attn.q", 30, 30, rank=2)
    run = benchmark.flips.Run([1.0] * 50, [1.0] * 50, [])
    names = {"grade": "warning", "kind": "rank-unlike-peers", "where": "layers.2.mlp"}
    findings = [{**names, "rank": rank, "step": 31} for rank in ranks]
    later = {**names, "kind": "replicas-differ", "rank": 0, "step": 33}
    result = benchmark.flips.judge(flip, run, [run, run], [*findings, later])
    assert (result.found, result.layer, result.rank, result.harmful) == (True, True, right, False)


@pytest.mark.torch
@pytest.mark.parametrize(
    ("onset", "began", "answer"),
    [
        (("layers.1.mlp.down.input", 92, 0.01), 95, ("layers.1.mlp.down.input", 92)),
        (("", -1, 1.0), 90, ("layers.1.mlp.down.weight", 90)),
        (("", -1, 1.0), 99, ("", -1)),
    ],
)
def test_a_planted_onset_is_named_by_looking_back_or_by_a_rule(
    benchmark: Any, onset: tuple[str, int, float], began: int, answer: tuple[str, int]
) -> None:
    """A rule that finds the row before the loss is not finite leaves nothing to look for; one at that step does not."""
    first = {"name": "layers.1.mlp.down.weight", "began": began}
    analysis = {"diagnosis": {"first": first, "onset": dict(zip(("where", "step", "chance"), onset, strict=True))}}
    judged = benchmark.hindsight.answer_of("gradient", 0, analysis)
    assert (judged.where, judged.step, judged.is_placed) == (*answer, bool(answer[0]))


@pytest.mark.torch
@pytest.mark.parametrize("command", [["tails", "--write"], ["hindsight", "--recordings"], ["hindsight", "--planted"]])
def test_a_benchmark_without_recordings_fails(
    benchmark: Any, command: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing was judged: no table is printed, and that of the package stays."""
    module, table = getattr(benchmark, command[0]), tmp_path / "table.py"
    monkeypatch.setattr(benchmark.tails, "TARGET", table)
    monkeypatch.setattr("sys.argv", [*command, str(tmp_path)])
    assert module.main() == 1
    assert not table.exists()
