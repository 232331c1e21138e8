"""The first cause in the files of several ranks: what follows from what goes by data, not by clocks."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from probe.core.analysis.diagnosis.analyse import Analysis, analyse
from probe.core.analysis.diagnosis.causality import Cause, Incident
from probe.core.analysis.diagnosis.evidence import Evidence
from probe.core.analysis.diagnosis.explain import kind_of, paragraph
from probe.core.analysis.diagnosis.export import as_json
from probe.core.analysis.diagnosis.located_finding import Located
from probe.core.analysis.report.findings import card
from probe.core.analysis.report.page_verdict import page_verdict
from probe.core.records import Batch, Key
from probe.core.storage.layout import cell_name
from tests.core.analysis.causes_data import Change, bad, everything_after, write_rank, write_run
from tests.core.output.sink_data import finding
from tests.required import require

pytestmark = pytest.mark.slow

require("duckdb")

nan = math.nan
STEPS, AT = 16, 12
STAGED: dict[str, Callable[[int], object]] = {"pp_stage": lambda rank: rank}


def first(analysis: Analysis) -> tuple[int, int, str, str, int]:
    """Rank, step, signal, row and micro step of the first cause."""
    assert analysis.diagnosis is not None
    finding = analysis.diagnosis.first.finding
    return finding.rank, analysis.diagnosis.first.began, finding.signal, cell_name(finding.key), finding.key.micro_step


def classes(analysis: Analysis) -> dict[int, set[str]]:
    """Classes of the findings of each rank."""
    found: dict[int, set[str]] = {}
    for located, cause in analysis.findings():
        found.setdefault(located.rank, set()).add(cause.value)
    return found


def rows_of(signal: str, ranks: tuple[int, ...], *names: str) -> list[tuple[str, int, int, str]]:
    return [(signal, rank, AT, name) for rank in ranks for name in names]


def test_a_healthy_run(tmp_path: Path) -> None:
    """There is no finding and no problem with the files."""
    write_run(tmp_path, 3, STEPS)
    analysis = analyse(tmp_path)
    assert analysis.diagnosis is None
    assert analysis.problems.lines() == []
    assert [rank.sampled for rank in analysis.judged] == [STEPS] * 3


def test_forward_through_a_pipeline(tmp_path: Path) -> None:
    """The output of stage 0 is bad in stage 1 and comes back as a gradient: stage 0 began it, whose clock is late."""
    places = rows_of("actv", (0,), "a.output:1", "b.input:1", "b.output:1") + rows_of("actv", (1,), "a.input:1")
    backward = [f"{module}.{part}:1" for module in ("b", "a") for part in ("output", "input")]
    places += rows_of("actv_grad", (0, 1), *backward) + rows_of("grad_reduced", (0, 1), "*")
    write_run(tmp_path, 2, STEPS, everything_after(AT, (0, 1), bad(*places)), micro_steps=2, **STAGED)
    analysis = analyse(tmp_path)
    assert first(analysis) == (0, AT, "actv", "a.output", 1)
    assert classes(analysis) == {0: {"initiating", "cascade"}, 1: {"cascade"}}


def test_backward_through_a_pipeline(tmp_path: Path) -> None:
    """A gradient that goes bad in the last stage is bad in the one before, which did not begin it."""
    places = rows_of("actv_grad", (1,), "b.input:0", "a.output:0", "a.input:0") + rows_of("actv_grad", (0,), "*")
    write_run(tmp_path, 2, STEPS, everything_after(AT, (0, 1), bad(*places)), micro_steps=2, **STAGED)
    analysis = analyse(tmp_path)
    assert first(analysis) == (1, AT, "actv_grad", "b.input", 0)
    assert classes(analysis)[0] == {"cascade"}


def test_forwards_of_different_micro_batches_are_ambiguous(tmp_path: Path) -> None:
    """The forward of one micro batch in stage 1 cannot reach that of another in stage 0: both are named."""
    places = [*rows_of("actv", (1,), "a.output:0"), *rows_of("actv", (0,), "b.output:1")]
    write_run(tmp_path, 2, STEPS, bad(*places), micro_steps=2, **STAGED)
    diagnosis = analyse(tmp_path).diagnosis
    assert diagnosis is not None
    assert {diagnosis.first.rank, *(rival.rank for rival in diagnosis.rivals)} == {0, 1}
    assert "This is ambiguous" in diagnosis.text


def test_an_earlier_stage_explains_a_later_one(tmp_path: Path) -> None:
    """Within one micro batch stage 0 comes first, regardless of the place in the stage and of the rank's number."""
    places = [*rows_of("actv", (0,), "a.output"), *rows_of("actv", (1,), "b.output")]
    write_run(tmp_path, 2, STEPS, bad(*places), pp_stage=lambda rank: 1 - rank)
    analysis = analyse(tmp_path)
    assert first(analysis) == (1, AT, "actv", "b.output", 0)
    assert classes(analysis) == {0: {"cascade"}, 1: {"initiating"}}


def test_gradients_of_replicas(tmp_path: Path) -> None:
    """One rank's own gradient is bad, and so are all reduced ones: the rank is named."""
    places = rows_of("grad_unreduced", (2,), "b.weight") + rows_of("grad_reduced", (0, 1, 2), "b.weight")
    write_run(tmp_path, 3, STEPS, everything_after(AT, (0, 1, 2), bad(*places)))
    analysis = analyse(tmp_path)
    assert first(analysis) == (2, AT, "grad_unreduced", "b.weight", 0)
    assert classes(analysis) == {0: {"cascade"}, 1: {"cascade"}, 2: {"initiating", "cascade"}}
    assert "reached ranks 0-1" in analysis.diagnosis.text  # type: ignore[union-attr]


def test_two_replicas_at_different_places_are_ambiguous(tmp_path: Path) -> None:
    """Two forwards of one step have no way between them: both are named."""
    places = [*rows_of("actv", (0,), "b.output"), *rows_of("actv", (1,), "a.output")]
    write_run(tmp_path, 2, STEPS, bad(*places))
    analysis = analyse(tmp_path)
    assert analysis.diagnosis is not None
    told = {analysis.diagnosis.first.finding.rank: analysis.diagnosis.first}
    told |= {rival.rank: rival for rival in analysis.diagnosis.rivals}
    assert {rank: cell_name(located.finding.key) for rank, located in told.items()} == {0: "b.output", 1: "a.output"}
    assert "This is ambiguous" in analysis.diagnosis.text
    assert "rank 0" in analysis.diagnosis.text
    assert "rank 1" in analysis.diagnosis.text


def test_the_same_place_on_all_ranks_at_once(tmp_path: Path) -> None:
    """No rank received it from another: all are named, and no other place."""
    write_run(tmp_path, 3, STEPS, everything_after(AT, (0, 1, 2), bad(*rows_of("param_origin", (0, 1, 2), "b.weight"))))
    diagnosis = analyse(tmp_path).diagnosis
    assert diagnosis is not None
    assert diagnosis.ranks == (0, 1, 2)
    assert diagnosis.rivals == ()
    assert "on ranks 0-2 in the same step" in diagnosis.text


def test_a_weight_bad_after_the_update_of_one_rank(tmp_path: Path) -> None:
    """It stays on its rank until gradients are averaged at the next step."""

    def change(signal: str, rank: int, step: int, key: Key) -> float | None:
        begun = rank == 2 and (step, signal, key.name) == (AT, "param_updated", "a.weight")
        own = rank == 2 and step == AT + 1
        reduced = step == AT + 1 and signal in ("grad_reduced", "param_updated")
        return nan if begun or own or reduced or step > AT + 1 else None

    write_run(tmp_path, 3, STEPS, change)
    analysis = analyse(tmp_path)
    assert first(analysis) == (2, AT, "param_updated", "a.weight", 0)
    assert classes(analysis) == {0: {"cascade"}, 1: {"cascade"}, 2: {"initiating", "cascade"}}


def test_a_weight_of_one_rank_is_not_in_anothers_next_forward(tmp_path: Path) -> None:
    """Before gradients are averaged nothing leads there: the other rank's activation has begun by itself."""
    write_run(tmp_path, 2, STEPS, bad(("param_updated", 0, AT, "a.weight"), ("actv", 1, AT + 1, "b.output")))
    assert classes(analyse(tmp_path)) == {0: {"initiating"}, 1: {"initiating"}}


def test_a_spike_and_the_nan_that_follows_are_one_incident(tmp_path: Path) -> None:
    """The spike, which another rule found, names the cause; the paragraph adds that it became NaN."""

    def change(signal: str, rank: int, step: int, key: Key) -> float | None:
        if step == AT and (signal, key.name, key.part) == ("actv_grad", "b", "output"):
            return 1e7
        return nan if step > AT else None

    write_run(tmp_path, 1, STEPS, change)
    analysis = analyse(tmp_path)
    assert first(analysis) == (0, AT, "actv_grad", "b.output", 0)
    assert analysis.diagnosis is not None
    assert analysis.diagnosis.kind.value == "exploding gradient"
    assert "It became NaN or Inf in a.weight (weight" in analysis.diagnosis.text
    assert analysis.others == ()


@pytest.mark.parametrize(
    ("ids", "row", "value", "kind"),
    [
        (False, "a.input", 1e7, "bad batch"),
        (False, "a.input", nan, "bad batch"),
        (False, "a.output", 1e7, "spike"),
        (True, "a.output", 1e7, "bad batch"),
        (True, "a.output", nan, "NaN"),
        (True, "b.input", 1e7, "spike"),
    ],
)
def test_bad_batches(tmp_path: Path, ids: bool, row: str, value: float, kind: str) -> None:
    """The first bad tensor is the model's input, or, for ids, the output of the first layer with a leap."""
    write_run(tmp_path, 2, STEPS, bad(("actv", 1, AT, row), ("actv", 1, AT, "b.output"), value=value), ids=ids)
    diagnosis = analyse(tmp_path).diagnosis
    assert diagnosis is not None
    assert (diagnosis.kind.value, diagnosis.ranks) == (kind, (1,))


def test_a_bad_batch_is_one_ranks(tmp_path: Path) -> None:
    """A bad input of all ranks at once is no bad batch of one."""
    write_run(tmp_path, 2, STEPS, bad(*rows_of("actv", (0, 1), "a.input"), value=1e7))
    diagnosis = analyse(tmp_path).diagnosis
    assert diagnosis is not None
    assert diagnosis.kind.value == "spike"


def test_a_finding_long_after_is_another_incident(tmp_path: Path) -> None:
    """A leap forty steps before the NaN is another incident."""

    def change(signal: str, rank: int, step: int, key: Key) -> float | None:
        if (step, signal, key.name, key.part) == (15, "actv", "a", "output"):
            return 1e6
        return nan if step >= 55 and (signal, key.name) == ("grad_reduced", "b.weight") else None

    write_run(tmp_path, 1, 58, change)
    analysis = analyse(tmp_path)
    assert first(analysis) == (0, 55, "grad_reduced", "b.weight", 0)
    assert [other.first.began for other in analysis.others] == [15]


def test_ranks_that_record_other_steps_end_alike(tmp_path: Path) -> None:
    """Rank 1 has recorded tensors until step 3 only, as its budget of time had it, and counted its steps to the end."""
    for rank, recorded in enumerate((6, 4)):
        write_rank(tmp_path, rank, range(recorded), world_size=2)
    for directory in tmp_path.glob("*-rank*"):
        rows = [f"0,step_seconds,{step},0.1,[],float64" for step in range(6)]
        (directory / "run_0-99.csv").write_text("\n".join(["vpp_stage,name,step,value,shape,dtype", *rows, ""]))
    assert not any("others go on" in note for note in analyse(tmp_path).notes)


def test_a_loss_on_the_page_has_the_step_of_its_value(tmp_path: Path) -> None:
    """Of 200 losses, each third is shown, and the first that is not finite."""
    directory = write_rank(tmp_path, 0, range(2))
    rows = [f"0,loss,{step},{'nan' if step == 151 else step},[],float64" for step in range(200)]
    (directory / "run_0-199.csv").write_text("\n".join(["vpp_stage,name,step,value,shape,dtype", *rows, ""]))
    loss = page_verdict(analyse(tmp_path))["loss"]
    assert [step for step, value in loss if value == "nan"] == [151]
    assert all(value in (step, "nan") for step, value in loss)
    assert loss[-1] == [199, 199.0]


def test_a_lost_peer_and_the_unfinished_step_are_no_cause(tmp_path: Path) -> None:
    """Rank 1 ends at step 20; rank 0's buffers when it gives up in step 21 are teardown."""
    ended = ("grad_reduced", "param_updated", "param_origin")
    write_rank(tmp_path, 1, range(AT + 1), world_size=2)
    exchange = Batch(
        "other", AT + 1, (Key("all_reduce.ranks0-1.t.py[3]", "post"),), ((4,),), ("f",), np.arange(1),
        {"sumsq": np.array([nan]), "min": np.array([nan]), "max": np.array([nan])},
    )  # fmt: skip
    write_rank(
        tmp_path, 0, range(AT + 2), world_size=2, leave_out=lambda signal, step: step == AT + 1 and signal in ended,
        extra=lambda rank, step: [exchange] if step == AT + 1 else [],
    )  # fmt: skip
    analysis = analyse(tmp_path)
    assert classes(analysis) == {0: {"teardown"}}
    assert analysis.diagnosis is not None
    assert analysis.diagnosis.kind.value == "end of the run"
    assert f"rank 1 ends at step {AT}, others go on to step {AT + 1}" in analysis.notes


def test_nan_that_ends_a_run_is_its_cause(tmp_path: Path) -> None:
    """The script gave up in the forward: the step is unfinished, and its NaN is what began it."""
    ended = ("actv_grad", "grad_unreduced", "grad_reduced", "param_updated", "param_origin")
    write_rank(
        tmp_path, 0, range(AT + 1), bad(("actv", 0, AT, "b.output")),
        leave_out=lambda signal, step: step == AT and signal in ended,
    )  # fmt: skip
    analysis = analyse(tmp_path)
    assert first(analysis) == (0, AT, "actv", "b.output", 0)
    assert analysis.diagnosis is not None
    assert analysis.diagnosis.kind.value == "NaN"
    assert "unfinished" in analysis.diagnosis.text


def test_what_an_unfinished_step_makes_small_is_no_cause(tmp_path: Path) -> None:
    """A gradient that had not come together when the run ended."""
    write_rank(
        tmp_path, 0, range(AT + 1), bad(("grad_unreduced", 0, AT, "a.weight"), value=1e-9),
        leave_out=lambda signal, step: step == AT and signal in ("grad_reduced", "param_updated"),
    )  # fmt: skip
    assert classes(analyse(tmp_path)) == {0: {"teardown"}}


def exchanges(steps: range, gave: tuple[int, ...], got: tuple[int, ...]) -> Callable[[int, int], list[Batch]]:
    """Rows of an all-reduce: finite except on ranks that sent or received NaN in ``steps``."""

    def rows(rank: int, step: int) -> list[Batch]:
        keys = tuple(Key("all_reduce.ranks0-2.train.py[7]", part) for part in ("pre", "post"))
        spoilt = [step in steps and rank in gave, step in steps and rank in got]
        values = np.array([nan if each else 1.0 for each in spoilt])
        columns = {"sumsq": values, "min": values, "max": values}
        return [Batch("other", step, keys, ((4,),) * 2, ("f",) * 2, np.arange(2), columns)]

    return rows


def test_nan_through_a_collective_in_the_forward(tmp_path: Path) -> None:
    """Ranks that run the same program had it from the one in which it was earlier in the program."""
    places = [
        *rows_of("actv", (1,), "a.output", "b.input", "b.output"),
        *rows_of("actv", (0, 2), "b.input", "b.output"),
    ]
    change = everything_after(AT, (0, 1, 2), bad(*places))
    for rank in range(3):
        extra = exchanges(range(AT, STEPS), (1,), (0, 1, 2))
        write_rank(tmp_path, rank, range(STEPS), change, world_size=3, extra=extra)
    analysis = analyse(tmp_path)
    assert first(analysis) == (1, AT, "actv", "a.output", 0)
    assert classes(analysis) == {0: {"cascade"}, 1: {"initiating", "cascade"}, 2: {"cascade"}}
    assert not analysis.diagnosis.rivals  # type: ignore[union-attr]


def test_ranks_that_gave_nan_from_the_same_place_are_both_named(tmp_path: Path) -> None:
    """A collective explains what comes later in the program, not what is at the same place before it."""
    places = [*rows_of("actv", (1, 2), "a.output"), *rows_of("actv", (0, 1, 2), "b.input")]
    change = everything_after(AT, (0, 1, 2), bad(*places))
    for rank in range(3):
        extra = exchanges(range(AT, STEPS), (1, 2), (0, 1, 2))
        write_rank(tmp_path, rank, range(STEPS), change, world_size=3, extra=extra)
    diagnosis = analyse(tmp_path).diagnosis
    assert diagnosis is not None
    assert (diagnosis.ranks, diagnosis.rivals) == ((1, 2), ())


def test_who_gave_nothing_bad_explains_nothing(tmp_path: Path) -> None:
    """NaN that a rank kept for itself is not the cause of what others got from a third."""
    change = bad(
        *rows_of("actv", (0,), "a.output"), *rows_of("actv", (1,), "b.input"), *rows_of("actv", (2,), "b.output")
    )
    for rank in range(3):
        extra = exchanges(range(AT, AT + 1), (1,), (0, 1, 2))
        write_rank(tmp_path, rank, range(STEPS), change, world_size=3, extra=extra)
    analysis = analyse(tmp_path)
    assert classes(analysis) == {0: {"initiating", "cascade"}, 1: {"initiating", "cascade"}, 2: {"cascade"}}
    assert "This is ambiguous" in analysis.diagnosis.text  # type: ignore[union-attr]


def dump(root: Path, rank: int, **fields: object) -> None:
    """Write the findings of a rank's own rules while it ran."""
    tag = f"0:all_reduce.ranks0-2.train.py[7].pre/rank{rank}/other"
    message = f"Rule AnomalyCommNan reports anomaly signal in ('{tag}', 'nonfinite') at step {AT}, current value 4.0."
    values = {"rank": rank, "step": AT, "micro_step": 0, "pp_stage": 0, "vpp_stage": 0, "call_id": 5, "tag_name": tag}
    path = root / "anomaly_detected" / f"rank{rank}" / "anomaly.json"
    path.parent.mkdir(parents=True)
    path.write_text(json.dumps({"x": {**values, "message": message, "group_mates": [rank], **fields}}))


def test_who_gave_nan_by_its_own_account_comes_first(tmp_path: Path) -> None:
    """AnomalyCommNan saw the order of calls, which files lack: of two ranks that sent NaN, it names one."""
    places = [*rows_of("actv", (1, 2), "a.output"), *rows_of("actv", (0, 1, 2), "b.input")]
    change = everything_after(AT, (0, 1, 2), bad(*places))
    for rank in range(3):
        extra = exchanges(range(AT, STEPS), (1, 2), (0, 1, 2))
        write_rank(tmp_path, rank, range(STEPS), change, world_size=3, extra=extra)
    dump(tmp_path, 1)
    analysis = analyse(tmp_path)
    assert analysis.diagnosis is not None
    assert (analysis.diagnosis.ranks, analysis.diagnosis.rivals) == ((1,), ())
    live = [located for located, _ in analysis.findings() if located.live]
    assert [(located.finding.rule, located.rank) for located in live] == [("AnomalyCommNan", 1)]


def test_dumps_of_other_runs_are_left_out(tmp_path: Path) -> None:
    """Findings stay in anomaly.json over runs: of several, what the files do not confirm may be another's."""
    write_rank(tmp_path, 0, range(STEPS), time="Dec02_10-00-00", start_time="2026-12-02T10:00:00+0800")
    write_rank(tmp_path, 0, range(STEPS))
    dump(tmp_path, 0)
    analysis = analyse(tmp_path)
    assert analysis.diagnosis is None
    assert any("may belong to another run" in line for line in analysis.problems.lines())


def test_what_files_do_not_confirm_is_another_runs(tmp_path: Path) -> None:
    """A dump may be left of an earlier run: what a rule finds in no file is not of this one."""
    write_run(tmp_path, 1, STEPS)
    tag = "0:b.output:0/rank0/actv"
    message = f"Rule AnomalyNan reports anomaly signal in ('{tag}', 'norm') at step {AT}, current value nan."
    dump(tmp_path, 0, tag_name=tag, message=message)
    assert analyse(tmp_path).diagnosis is None


def test_dumped_positions_are_kept(tmp_path: Path) -> None:
    """A finding of files and dump gets the dumped call id."""
    write_run(tmp_path, 1, STEPS, bad(("actv", 0, AT, "b.output")))
    dump(tmp_path, 0, tag_name="0:b.output:0/rank0/actv", call_id=4711, message="")
    told = as_json(analyse(tmp_path))
    assert told["diagnosis"]["first"]["call_id"] == 4711
    assert told["number"] == 3


def test_without_the_collective_the_same_is_ambiguous(tmp_path: Path) -> None:
    """No recorded data lead from one rank to the others: all that began at that step are named."""
    places = [*rows_of("actv", (1,), "a.output"), *rows_of("actv", (0, 2), "b.input")]
    write_run(tmp_path, 3, STEPS, everything_after(AT, (0, 1, 2), bad(*places)))
    diagnosis = analyse(tmp_path).diagnosis
    assert diagnosis is not None
    assert diagnosis.rivals


def differing(rank: int, factor: float) -> Change:
    """From AT on, one rank has another ``b.weight``."""

    def change(signal: str, at: int, step: int, key: Key) -> float | None:
        mine = at == rank and step >= AT and signal.startswith("param") and key.name == "b.weight"
        return factor if mine and (step, signal) != (AT, "param_origin") else None

    return change


def test_one_of_three_replicas_differs(tmp_path: Path) -> None:
    """The odd one out is named, with the tensor and the step after whose update it differs."""
    write_run(tmp_path, 3, STEPS, differing(1, 1.23456))
    analysis = analyse(tmp_path)
    assert first(analysis) == (1, AT, "param_updated", "b.weight", 0)
    assert analysis.diagnosis is not None
    assert analysis.diagnosis.kind.value == "divergence of replicas"
    assert analysis.diagnosis.ranks == (1,)


def test_a_weight_that_becomes_nan_is_no_divergence_of_replicas(tmp_path: Path) -> None:
    """Although the fraction of its zeros then differs from that of its replicas."""
    for rank in range(3):
        directory = tmp_path / f"Dec03_21-34-4{rank}-rank{rank}-0000000{rank}"
        directory.mkdir()
        rows = [f"0,a.bias,{step},{float('nan') if step == 3 and rank == 1 else 0.5},"
                f"{0 if step == 3 and rank == 1 else 0.25},[4],torch.float32" for step in range(5)]  # fmt: skip
        text = "\n".join(["vpp_stage,name,step,norm,zeros,shape,dtype", *rows, ""])
        (directory / "param_origin_0-4.csv").write_text(text, encoding="utf-8")
    diagnosis = analyse(tmp_path).diagnosis
    assert diagnosis is not None
    assert (diagnosis.kind.value, diagnosis.first.rank, diagnosis.first.began) == ("NaN", 1, 3)


def test_how_long_replicas_differ_is_told(tmp_path: Path) -> None:
    """A difference is reported only as it begins: the lack of later findings does not mean that it is over."""

    def for_a_while(signal: str, rank: int, step: int, key: Key) -> float | None:
        return (
            1.23456 if rank == 1 and 10 <= step < 15 and signal == "param_origin" and key.name == "b.weight" else None
        )

    for root, change, last in (("still", differing(1, 1.23456), STEPS - 1), ("while", for_a_while, 14)):
        write_run(tmp_path / root, 3, STEPS, change)
        diagnosis = analyse(tmp_path / root).diagnosis
        assert diagnosis is not None
        assert f"The last step at which replicas differ is {last}; the run's last is {STEPS - 1}." in diagnosis.text
        assert "there are no more findings" not in diagnosis.text


def test_of_two_replicas_it_cannot_be_said_which(tmp_path: Path) -> None:
    """Both are named."""
    write_run(tmp_path, 2, STEPS, differing(1, 1.23456))
    diagnosis = analyse(tmp_path).diagnosis
    assert diagnosis is not None
    assert diagnosis.ranks == (0, 1)
    assert "ambiguous which of ranks 0-1" in diagnosis.text


def test_ranks_that_are_no_replicas_are_not_compared(tmp_path: Path) -> None:
    """Two ranks whose weights have nothing in common from the first step on; unless the run names them replicas."""
    other = {"groups": lambda _: {"data_parallel": [0, 1]}}

    def change(signal: str, rank: int, step: int, key: Key) -> float | None:
        return 1.5 + rank / 8 if signal in ("param_origin", "param_updated") else None

    write_run(tmp_path / "x", 2, STEPS, change)
    analysis = analyse(tmp_path / "x")
    assert analysis.diagnosis is None
    assert "ranks 0-1 were compared as replicas only in tensors that were equal" in analysis.notes[0]
    write_run(tmp_path / "y", 2, STEPS, change, **other)
    assert analyse(tmp_path / "y").diagnosis is not None


def test_pipeline_stages_are_no_replicas(tmp_path: Path) -> None:
    """Stages hold other weights under the same names."""

    def change(signal: str, rank: int, step: int, key: Key) -> float | None:
        return 1.5 + rank / 8 if signal in ("param_origin", "param_updated") else None

    write_run(tmp_path, 2, STEPS, change, **STAGED)
    analysis = analyse(tmp_path)
    assert analysis.diagnosis is None
    assert analysis.notes == ("dead layers cannot be recognised: the op zeros was not collected",)


def test_only_the_steps_that_were_asked_for(tmp_path: Path) -> None:
    """Earlier findings are left out, although rules have learned from these steps."""
    places = [("actv", 0, AT, "b.output"), ("actv", 0, AT + 2, "a.output")]
    write_run(tmp_path, 1, STEPS, bad(*places))
    assert first(analyse(tmp_path))[1] == AT
    assert first(analyse(tmp_path, [AT + 1, AT + 2]))[1] == AT + 2


def test_evidence_is_the_row_in_the_file(tmp_path: Path) -> None:
    """The file's name and the values of the row up to the finding are given."""
    write_run(tmp_path, 1, STEPS, bad(("actv", 0, AT, "b.output"), value=1e9))
    diagnosis = analyse(tmp_path).diagnosis
    assert diagnosis is not None
    path = tmp_path / diagnosis.evidence.file
    lines = [line.split(",") for line in path.read_text().splitlines() if ",b.output," in line]
    assert diagnosis.evidence.values[-1] == (AT, float(next(line for line in lines if line[2] == str(AT))[4]))
    assert [step for step, _ in diagnosis.evidence.values] == [AT - 2, AT - 1, AT]
    assert "the module's inputs were finite, and so were its parameters" in diagnosis.text


def test_everything_is_said_in_json_too(tmp_path: Path) -> None:
    """NaN is a text there; all kept findings have their class."""
    write_run(tmp_path, 2, STEPS, bad(*rows_of("actv", (1,), "b.output")))
    told = as_json(analyse(tmp_path))
    assert told["diagnosis"]["first"]["value"] == "nan"
    assert {entry["cause"] for entry in told["kept"]} == {Cause.initiating.value}
    assert told["ranks"] == [0, 1]


@pytest.mark.parametrize(
    ("fields", "kind"),
    [
        ({"rule": "AnomalyNan", "value": nan}, "NaN"),
        ({"rule": "AnomalyNan", "value": math.inf}, "overflow"),
        ({"rule": "AnomalyNan", "value": 3.0, "op": "nans"}, "NaN"),
        ({"rule": "AnomalyNan", "value": 3.0, "op": "infs"}, "overflow"),
        ({"rule": "AnomalyNan", "value": 1e12, "expected": 1e10}, "value beyond its limit"),
        ({"rule": "AnomalySpike", "value": 1e4, "expected": 1.0}, "exploding gradient"),
        ({"rule": "AnomalySpike", "value": 1e33, "expected": 1.0}, "overflow"),
        ({"rule": "AnomalySpike", "value": 1e4, "expected": 1.0, "signal": "param_origin"}, "spike"),
        ({"rule": "AnomalySpike", "value": 1e-4, "expected": 1.0}, "collapse"),
        ({"rule": "AnomalyTurbulence", "value": 3.0, "expected": 1.0}, "drift"),
        ({"rule": "AnomalyThreshold", "value": 3.0, "expected": 1.0}, "value beyond its limit"),
        ({"rule": "AnomalyVanish", "value": 0.0, "expected": 1.0}, "vanishing gradient"),
        ({"rule": "AnomalyDead", "value": 1.0, "expected": 0.999, "signal": "actv", "op": "zeros"}, "dead layer"),
        ({"rule": "AnomalyFrozen", "value": 0.0, "signal": "param_updated", "op": "update"}, "frozen parameter"),
        ({"rule": "AnomalyReplica", "value": 2.0, "expected": 1.0, "signal": "exp_avg"}, "divergence of replicas"),
        ({"rule": "AnomalyCommNan", "value": 4.0, "signal": "other", "op": "nonfinite"}, "NaN"),
    ],
)
def test_kinds(fields: dict[str, Any], kind: str) -> None:
    """The kind follows from the rule, the number and the tensor; and there is always a place to look at next."""
    located = Located(finding(AT, **fields), AT)
    incident = Incident([(located, Cause.initiating)], number=1, by_rank={0: 1})
    named = kind_of(incident, located, [0])
    assert named.value == kind
    text = paragraph(named, incident, [located], Evidence("f.csv", "norm", ((AT, 1.0),)), [])
    assert text.startswith(f"First cause: {kind}. It began in fc.weight (")
    assert "Look next at " in text


def test_pipelines_that_dumps_tell(tmp_path: Path) -> None:
    """If only a dump names the pipeline's ranks, a stage of another pipeline is no neighbour."""
    stage = {"pp_stage": lambda rank: rank // 2}
    places = [*rows_of("actv", (0,), "b.output"), *rows_of("actv", (3,), "a.output")]
    write_run(tmp_path / "known", 4, STEPS, bad(*places), **stage)
    for rank, row, mates in ((0, "b.output", [0, 2]), (3, "a.output", [1, 3])):
        dump(tmp_path / "known", rank, tag_name=f"0:{row}:0/rank{rank}/actv", message="", group_mates=mates)
    known = analyse(tmp_path / "known")
    assert classes(known) == {0: {"initiating"}, 3: {"initiating"}}
    assert as_json(known)["diagnosis"]["first"]["group_mates"] == [0, 2]
    write_run(tmp_path / "unknown", 4, STEPS, bad(*places), **stage)
    assert classes(analyse(tmp_path / "unknown")) == {0: {"initiating"}, 3: {"cascade"}}


def test_what_a_report_gets(tmp_path: Path) -> None:
    """The paragraph, and the findings with their class in order."""
    places = [*rows_of("actv", (1,), "b.output"), *rows_of("grad_reduced", (0, 1), "a.weight")]
    write_run(tmp_path, 2, STEPS, bad(*places))
    analysis = analyse(tmp_path)
    shown = card(analysis)
    assert analysis.diagnosis is not None
    assert shown.paragraph == analysis.diagnosis.text
    told = [(mark.rank, mark.name, mark.micro_step, mark.cause) for mark in shown.findings]
    assert told == [
        (1, "b.output", 0, "initiating"),
        (0, "a.weight", None, "cascade"),
        (1, "a.weight", None, "cascade"),
    ]
    assert shown.total == 9
    assert card(analyse(tmp_path, [0])).paragraph.startswith("Nothing was found in what was judged: ")


@pytest.mark.parametrize("number", [1, 40])
def test_what_is_kept_does_not_grow_with_steps(tmp_path: Path, number: int) -> None:
    """Everything bad for a long time: as much is kept as after one step, and all is counted."""
    write_run(tmp_path, 1, AT + number, lambda signal, rank, step, key: nan if step >= AT else None)
    analysis = analyse(tmp_path)
    rows = 4 + 4 + 2 + 2 + 2 + 2
    assert len(analysis.findings()) == rows
    assert analysis.number == number * rows * 3


def test_a_tensor_that_moved_alike_must_remain_so_though_nothing_names_replicas(tmp_path: Path) -> None:
    """Of ranks that hold parts under the same names, the tensor that was equal while it changed is compared."""

    def change(signal: str, rank: int, step: int, key: Key) -> float | None:
        if signal not in ("param_origin", "param_updated"):
            return None
        if key.name.startswith("a"):
            return 1.5 + step / 64 + (rank / 8 if step >= AT else 0.0)
        return 1.5 + rank / 8

    write_run(tmp_path, 2, STEPS, change)
    diagnosis = analyse(tmp_path).diagnosis
    assert diagnosis is not None
    assert diagnosis.first.finding.rule == "AnomalyReplica"
    assert (diagnosis.first.finding.step, str(diagnosis.first.finding.key.name)[0]) == (AT, "a")
    replicas = [pair[0].finding for pair in diagnosis.incident.findings if pair[0].finding.rule == "AnomalyReplica"]
    assert {finding.key.name[0] for finding in replicas} == {"a"}
