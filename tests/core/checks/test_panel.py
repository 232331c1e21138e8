"""The panel: every check for every optimizer, failures, repeats, and the line about what was looked at."""

from __future__ import annotations

from collections.abc import Iterator
from typing import get_args

import pytest

from probe.core.checks import CHECKS, CheckFinding, JudgedUpdate
from probe.core.checks.check import CheckClass, Grade
from probe.core.checks.panel import MOST_REPEATS, CheckPanel
from probe.core.checks.rate_zero import RateZero
from probe.core.checks.stale_gradient import StaleGradient
from probe.core.faults import Faults
from tests.core.checks.updates import Training


class Failing(RateZero):
    """Check that raises."""

    def judge(self, update: JudgedUpdate) -> Iterator[CheckFinding]:
        """Raise."""
        raise ZeroDivisionError("on purpose")


class Restless(RateZero):
    """Check that finds the same at every update."""

    name = "restless"

    def judge(self, update: JudgedUpdate) -> Iterator[CheckFinding]:
        """Find it."""
        self.judged = True
        yield self.finding(update.facts, update.facts.step, "again", {})


@pytest.mark.parametrize("name", CHECKS)
def test_every_check_says_where_it_comes_from_and_what_to_do(name: str) -> None:
    """Source by link, remedy as a sentence, what it sees, and its class; its name is that of the list."""
    check = CHECKS[name]
    assert check.name == name
    assert check.kind in get_args(CheckClass)
    assert check.source.startswith("https://")
    assert check.remedy[:1].isupper()
    assert check.remedy.endswith(".")
    assert check.sees[-1:].isalpha()
    assert 1 < len(check.title.split()) <= 4
    assert check().missing()


def test_grades_follow_from_the_class() -> None:
    """What legitimate programs do is a note."""
    for name, check in CHECKS.items():
        grade: Grade = check.grade  # type: ignore[attr-defined]
        assert (grade == "note") == (check.kind == "unusual"), name


def test_healthy_training_is_silent() -> None:
    """No check finds anything in 300 healthy updates of two optimizers, and nothing fails."""
    faults = Faults()
    panel, first, second = CheckPanel(faults), Training(), Training(seed=1, optimizer=1)
    found = [finding for _ in range(300) for one in (first, second) for finding in panel.judge(one.update())]
    assert (found, faults.counts) == ([], {})
    line = panel.preflight()
    absent, unseen = (int(line.split(word)[0].split()[-1]) for word in (" not applicable", " could not be seen"))
    assert f"{len(CHECKS) - absent - unseen} hold, " in line


def test_a_failing_check_is_counted_and_the_others_judge_on() -> None:
    """Its name is with the failures, and the line does not count it among those that hold."""
    faults = Faults()
    panel = CheckPanel(faults, {"rate-zero": Failing, "stale-gradient": StaleGradient})
    training = Training(again=True)
    found = [finding.check for _ in range(9) for finding in panel.judge(training.update())]
    assert found == ["stale-gradient"]
    assert faults.counts == {"check rate-zero: ZeroDivisionError": 9}
    assert panel.preflight() == (
        "preflight: 0 hold, 1 broken (stale-gradient), 1 could not be seen (it failed, see monitor.faults: rate-zero)"
    )


def test_the_same_finding_is_repeated_a_few_times_at_most() -> None:
    """Others are counted; another optimizer does not report the same again."""
    panel = CheckPanel(Faults(), {"restless": Restless})
    training, other = Training(), Training(optimizer=1)
    assert sum(len(panel.judge(training.update())) for _ in range(9)) == MOST_REPEATS
    assert panel.judge(other.update()) == []
    assert panel.omitted == 9 - MOST_REPEATS + 1


def test_an_idle_optimizer_is_judged_by_what_others_do() -> None:
    """Alone it has nothing to apply; beside another one that may be so."""
    idle = {"there": False, "moved": False, "backwards": 0}
    panel, training, other = CheckPanel(Faults()), Training(**idle), Training(optimizer=1)
    assert [finding.check for _ in range(5) for finding in panel.judge(training.update())] == [
        "nothing-to-apply",
        "no-gradient",
    ]
    panel, training = CheckPanel(Faults()), Training(**idle)
    found = [panel.judge(one.update()) for _ in range(5) for one in (training, other)]
    assert [finding.check for findings in found for finding in findings] == ["no-gradient"]


def test_nothing_looked_at_is_not_called_sound() -> None:
    """Before the first update nothing holds; what could not be seen is named with its reason."""
    panel = CheckPanel(Faults())
    assert panel.preflight().startswith(f"preflight: 0 hold, {len(CHECKS)} could not be seen (no update so far: ")
    assert panel.preflight().endswith(", ...)")  # of many, three are named
    training = Training(rates=(float("nan"),), looked=False, loss=float("nan"), loss_seen=False)
    for _ in range(30):
        panel.judge(training.update(readable=False))
    line = panel.preflight()
    assert "no learning rate is known on the host: rate-zero" in line
    assert "no loss was seen: loss-not-finite" in line
    assert "no norm of a gradient could be read: gradient-gone" in line


def test_the_line_is_written_while_checks_are_made() -> None:
    """Another thread writes a summary as the first update is judged: it sees all checks of an optimizer, or none."""
    faults, lines = Faults(), list[str]()

    class Asking(RateZero):
        """Check that is made as the other thread asks."""

        def __init__(self) -> None:
            super().__init__()
            lines.append(panel.preflight())

    panel = CheckPanel(faults, {"stale-gradient": StaleGradient, "rate-zero": Asking})
    panel.judge(Training().update())
    panel.judge(Training(optimizer=1).update())
    assert faults.counts == {}
    assert lines[0].startswith("preflight: 0 hold, 2 could not be seen (no update so far: ")
