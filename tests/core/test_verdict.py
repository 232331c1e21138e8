"""The verdict: what is named, and what is not."""

from __future__ import annotations

import json
import math

from probe.core.hindsight.onset import Onset
from probe.core.records import Finding, Key
from probe.core.rules.evaluate import judged
from probe.core.verdict import JudgedFinding, Looked, united, verdict_of

LOOKED = Looked(("gradients in 24 of 202 steps", "the loss"), ("activations", "parameters"))


def finding(kind: str = "NaN", grade: str = "critical", step: int = 301, **more: object) -> JudgedFinding:
    base = JudgedFinding(grade, kind, ("head.bias",), step, step, f"{kind} at step {step}", {"norm": math.nan})  # type: ignore[arg-type]
    return base._replace(**more)


def test_nothing_found_names_what_was_looked_at_and_what_was_not() -> None:
    """Never a count of findings."""
    nothing = verdict_of([], LOOKED)
    assert nothing.lines() == [
        "nothing found in gradients in 24 of 202 steps and the loss",
        "not looked at: activations and parameters",
    ]
    assert verdict_of([], Looked((), ("gradients",))).line() == "nothing was looked at; not looked at: gradients"
    note = finding("unclipped", "note", 3, evidence={})
    noted = verdict_of([note], LOOKED)
    assert noted.line().startswith("nothing found in gradients in 24 of 202 steps and the loss, 1 note")
    assert noted.lines()[2:] == ["note (may be intended): unclipped, step 3: unclipped at step 3"]
    assert not verdict_of([note, finding()], LOOKED).noted


def test_a_place_that_the_numbers_cannot_name_is_not_named() -> None:
    """A NaN in a gradient where activations were not recorded: the layer is open, and the advice is to record them."""
    verdict = verdict_of([finding(located=False, after=296)], LOOKED, "probe anomalies out")
    assert (verdict.certainty, verdict.since, verdict.after) == ("place unknown", 301, 296)
    text = "\n".join(verdict.lines())
    assert "first seen in head.bias" in text
    assert "the layer in which it began cannot be named: steps 297 to 300 were not recorded" in text
    (line,) = verdict_of([finding(located=False)], LOOKED)._limits()
    assert line == "the layer in which it began cannot be named: activations were not recorded"
    assert '"xy_distribution": true' in text
    assert verdict.lines()[0] == "critical: NaN, first seen in head.bias, between steps 296 and 301"


def test_the_first_critical_is_the_cause_and_a_located_one_comes_first() -> None:
    """Of one step, the one with a place; earlier warnings are named as what came before."""
    loss = finding("NaN", step=300, where=("loss",), located=False)
    layer = finding("NaN", step=300, where=("blocks.0.n1",))
    spike = finding("spike", "warning", 290, evidence={"loss": 702.0})
    later = finding("NaN", step=301)
    verdict = verdict_of([later, loss, layer, spike], LOOKED)
    assert (verdict.where, verdict.since, verdict.certainty) == (("blocks.0.n1",), 300, "certain")
    assert verdict.before == ("spike at step 290 (step 290)",)
    assert (verdict.more, verdict.lines()[0]) == (3, "critical: NaN in blocks.0.n1, step 300")


def test_a_forward_of_one_rank_comes_before_the_gradients_that_it_has_spoilt_on_others() -> None:
    """By checks alone, and with rows: of the module in which the forward begins, its output."""
    gradient = finding("gradient-not-finite", step=25, where=("3",), evidence={}, ranks=(0,))
    loss = finding("loss-not-finite", step=25, where=("0", "2"), ranks=(1,))
    reduced = finding(step=25, where=("2.weight",), signal="grad_reduced", ranks=(0,))
    output = finding(step=25, where=("2.output",), signal="actv", ranks=(1,))
    assert verdict_of([gradient, loss], LOOKED).ranks == (1,)
    assert verdict_of([gradient, reduced, loss, output], LOOKED).where == ("2.output",)
    assert verdict_of([gradient, reduced, output], LOOKED).where == ("2.output",)
    number = finding(step=25, where=("loss",), located=False)
    assert verdict_of([number, reduced._replace(located=False)], LOOKED).where == ("2.weight",)


def test_a_row_of_a_module_that_the_graph_names_is_named_whichever_came_first() -> None:
    """Its output is narrower than the two modules; a row of another module leaves the graph's answer."""
    traced = finding("loss-not-finite", step=41, where=("fc1", "norm"), evidence={})
    row = finding("NaN", step=41, where=("norm.output",))
    outside = finding("NaN", step=41, where=("head.output",))
    assert verdict_of([traced, row, outside], LOOKED).where == ("norm.output",)
    between = finding("NaN", step=41, where=("act.output",))  # a module without parameters
    assert verdict_of([traced, between, row], LOOKED).where == ("act.output",)
    assert verdict_of([row, traced], LOOKED).where == ("norm.output",)
    assert verdict_of([traced, outside], LOOKED).where == ("fc1", "norm")
    assert verdict_of([traced, row._replace(since=42)], LOOKED).where == ("fc1", "norm")


def test_what_lies_beside_the_last_module_or_the_first_is_not_called_that_module() -> None:
    """A loss that divides by 0, and numbers between the input and the first module."""
    for text, head in (
        ("Inf first appears between `4` and the loss, in: division (div)", "NaN between 4 and the loss, step 300"),
        ("Inf first appears between the input and `4`", "NaN between the input and 4, step 300"),
    ):
        verdict = verdict_of([finding("NaN", step=300, where=("4",), text=text)], LOOKED)
        assert verdict.lines()[0] == f"critical: {head}"


def test_a_place_between_two_modules_is_named_as_such() -> None:
    """Not as if it began in both."""
    text = "the loss is nan: NaN first appears between `emb` and `n1`, in: division (div)"
    verdict = verdict_of([finding("loss-not-finite", where=("emb", "n1"), text=text)], LOOKED)
    assert verdict.lines()[0] == "critical: loss-not-finite between emb and n1, step 301"
    backward = "in the gradients of `emb`: in its backward, or in what lies between it and `n1`"
    verdict = verdict_of([finding("gradient-not-finite", where=("emb", "n1"), text=backward)], LOOKED)
    assert verdict.lines()[0] == "critical: gradient-not-finite between emb and n1, step 301"


def test_without_a_critical_the_first_warning_is_the_verdict() -> None:
    """With the step since when it holds, the ranks, three numbers and the remedy."""
    numbers = {"a": 1.0, "b": 2.0, "c": 3.0, "d": 4.0}
    same = finding(
        "same-data", "warning", 14, where=(), since=10, ranks=(0, 1, 2, 3), evidence=numbers, remedy="Shard it."
    )
    verdict = verdict_of([same], LOOKED, "probe anomalies out")
    assert verdict.lines() == [
        "warning: same-data, step 10 (found at 14), ranks 0-3",
        "same-data at step 14",
        "a 1, b 2, c 3",
        "next: Shard it.",
        "next: `probe anomalies out` shows more",
    ]


def test_a_verdict_with_everything_in_it_is_short_and_is_json() -> None:
    """At most eleven lines; a number that is not finite is a text."""
    full = finding(located=False, after=1, remedy="Look.")
    before = [finding("spike", "warning", step) for step in (2, 3)]
    verdict = verdict_of([full, *before, finding("x", "note", 1)], LOOKED, "probe anomalies out")
    assert len(verdict.lines()) <= 11
    parsed = json.loads(json.dumps(verdict.as_json(), allow_nan=False))
    assert (parsed["kind"], parsed["evidence"], parsed["looked"]["not_at"][0]) == (
        "NaN",
        {"norm": "nan"},
        "activations",
    )


def test_equal_findings_of_several_ranks_are_one() -> None:
    """With all their ranks."""
    one, other = finding(), finding(step=302)
    both = united([(0, one), (3, one), (3, other)])
    assert [(each.since, each.ranks) for each in both] == [(301, (0, 3)), (302, (3,))]
    assert united([(-1, one)])[0].ranks == ()


def test_the_answer_of_looking_back_is_part_of_the_verdict() -> None:
    """As a line and, if something stood out, in the one clause; without an answer there is neither."""
    onset = Onset(50, "layers.3.weight", "grad_reduced", 290, 11, 12.5, 1 / 201)
    verdict = verdict_of([finding(onset=onset)], LOOKED)
    clause = "began in layers.3.weight at step 290: 12.5 times its norm before (away for 11 samples; chance 0.5 %)"
    assert f"looking back: {clause}" in verdict.lines()
    assert verdict.line().endswith(f"; {clause}")
    assert json.loads(json.dumps(verdict.as_json()))["onset"]["step"] == 290
    nothing = verdict_of([finding(onset=Onset(50))], LOOKED)
    for without in (nothing, verdict_of([finding(onset=Onset())], LOOKED)):
        assert not any("looking back" in line for line in [*without.lines(), without.line()])
    assert verdict_of([finding()], LOOKED).onset is None


def test_of_several_ranks_the_answer_that_names_a_row_has_its_rank() -> None:
    """Another rank on which nothing stood out does not hide it."""
    onset = Onset(50, "layers.3.weight", "grad_reduced", 290, 11, 12.5, 1 / 201)
    one = united([(0, finding(onset=Onset(50))), (2, finding(onset=onset)), (3, finding())])
    assert [each.onset for each in one] == [onset._replace(ranks=(2,))]


def test_a_number_about_to_overflow_is_the_cause_of_the_nan_behind_it() -> None:
    """3e38 is finite, and the square of it in the next layer is not: the layer that made it is named, by rows and
    by the graph alike."""
    row = Finding("AnomalySpike", "actv", Key("head.proj", "output"), "norm", 3.8e39, 18.5, 301, 0, 4, "")
    huge, spike = judged(row), judged(row._replace(value=3.8e9))
    assert [(row.kind, row.grade) for row in (huge, spike)] == [("overflow", "critical"), ("Spike", "warning")]
    behind = finding(where=("head.norm.output",), signal="actv")
    assert verdict_of([huge, behind], LOOKED).where == ("head.proj.output",)
    assert verdict_of([spike, behind], LOOKED).where == ("head.norm.output",)
    traced = finding("loss-not-finite", where=("head.proj", "head.norm"))
    assert verdict_of([traced, huge, behind], LOOKED).where == ("head.proj.output",)
