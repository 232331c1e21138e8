"""Search backwards from an incident: which row is named, and when nothing is."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from probe.core.hindsight.excursions import NormTable, medians
from probe.core.hindsight.look_back import LOOKED, Search
from probe.core.hindsight.onset import Onset, rarer

STEPS, ROWS = 300, 40
FLOOR = 0.05


def search(logs: np.ndarray, candidates: np.ndarray | None = None) -> Search:
    """Return the search from the last of some steps, whose rows are of one kind, in the order of cause."""
    number = logs.shape[1]
    table = NormTable(logs, np.zeros(number, np.int64), np.full(number, FLOOR))
    everything = np.ones(number, np.bool_)
    chosen = everything if candidates is None else candidates
    return Search(table, chosen, np.arange(number), np.ones(len(logs), np.bool_))


def healthy(seed: int = 0, steps: int = STEPS) -> np.ndarray:
    """Return rows that rise and fall together, each with noise and a slow drift of its own."""
    random = np.random.default_rng(seed)
    together = random.normal(0, 0.5, (steps, 1))
    drift = np.arange(steps)[:, None] * random.normal(0, 0.002, ROWS)
    return random.normal(0, 3, ROWS) + together + drift + random.normal(0, 0.04, (steps, ROWS))


def test_a_row_that_left_its_level_and_stayed_away_is_named_with_its_step() -> None:
    """Among rows that rise and fall together threefold from step to step, one of 2.5 times its norm from a step on."""
    logs = healthy()
    logs[-12:, 17] += np.log(2.5)
    found = search(logs).standout()
    assert found is not None
    assert (found.row, found.start) == (17, STEPS - 12)
    assert found.chance == pytest.approx(
        1 / (1 + 254)
    )  # nothing stands out before the steps that are judged, 34 to 287


def test_the_beginning_of_a_slow_growth_is_found() -> None:
    """A fifth more at each step: at most two steps from the first."""
    logs = healthy()
    logs[-20:, 5] += 0.2 * np.arange(1, 21)
    found = search(logs).standout()
    assert found is not None
    assert found.row == 5
    assert abs(found.start - (STEPS - 20)) <= 2


def test_of_rows_that_leave_together_the_first_in_the_order_of_cause_is_named() -> None:
    """What follows from it moves in the same step, by more."""
    logs = healthy()
    logs[-12:, 8] += 1.0
    logs[-12:, 20:25] += 2.0
    found = search(logs).standout()
    assert found is not None
    assert found.row == 8
    upstream = np.ones(ROWS, np.bool_)
    upstream[8] = False
    later = search(logs, upstream).standout()
    assert later is not None
    assert later.row == 20


def test_a_row_that_came_back_before_the_incident_is_not_named() -> None:
    """Nor is one that is away for two samples."""
    logs = healthy()
    logs[-12:-3, 17] += 2.0
    logs[-2:, 9] += 2.0
    assert search(logs).standout() is None


def test_an_innocent_row_that_leaps_in_healthy_steps_too_is_not_named() -> None:
    """It is away at the incident as it is at one step in seven."""
    logs = healthy()
    for start in range(40, STEPS, 35):
        logs[start : start + 5, 17] += 2.0
    logs[-4:, 17] += 2.0
    assert search(logs).standout() is None
    logs[-10:, 3] += 6.0  # further away than that row ever is
    found = search(logs).standout()
    assert found is not None
    assert found.row == 3


def test_before_incidents_that_are_invented_in_healthy_runs_nothing_stood_out() -> None:
    """In at least 95 % of them, though every row drifts and all leap together."""
    answers = []
    for seed in range(20):
        logs = healthy(seed)
        random = np.random.default_rng(1000 + seed)
        logs += np.where(np.arange(STEPS)[:, None] > 150, 1.0, 0.0)  # the loss has left a plateau
        one = search(logs)
        answers += [one.standout(int(end)) is None for end in random.integers(40, STEPS, 10)]
    assert np.mean(answers) >= 0.95


def test_a_drift_at_the_usual_pace_is_no_departure() -> None:
    """A bias that has grown by 2 % a step all along stands out against its level, and not against its pace."""
    logs = healthy()
    logs[:, 17] += 0.02 * np.arange(STEPS)
    assert search(logs).standout() is None


def test_a_row_that_has_been_away_for_longer_than_is_looked_back_is_no_cause() -> None:
    """It left its level long before; one sample less, and it is named."""
    logs = healthy()
    logs[-LOOKED - 1 :, 17] += 4.0
    assert search(logs).standout() is None
    found = search(logs[:-1]).standout()
    assert found is not None
    assert found.row == 17


def test_where_most_rows_move_the_one_that_stands_still_is_not_accused() -> None:
    """It is far from the others, and has not moved."""
    logs = healthy()
    logs[-12:] += 3.0
    logs[-12:, 17] -= 3.0
    assert search(logs).standout() is None


def test_too_short_a_history_has_no_answer() -> None:
    """A level needs 32 samples, and a departure three."""
    logs = healthy()
    logs[-5:, 17] += 2.0
    for steps, looked in ((34, 0), (35, 3), (60, 28), (STEPS, LOOKED)):
        one = search(logs[-steps:])
        assert one.looked == looked
        assert one.answer([""] * ROWS, [""] * ROWS, range(steps)).looked == looked
    assert search(logs[-34:]).standout() is None
    assert str(Onset().text()) == "too few samples before it are recorded to look back"


def test_healthy_recordings_stand_for_the_steps_that_a_short_run_lacks() -> None:
    """The share is theirs where the run has no steps of its own to compare with."""
    logs = healthy(steps=60)
    logs[-8:, 17] += 2.0

    def always(strengths: np.ndarray, _: int) -> np.ndarray:
        return np.ones(len(strengths))

    def never(strengths: np.ndarray, _: int) -> np.ndarray:
        return np.zeros(len(strengths))

    assert replace(search(logs), shipped=always).standout() is None
    found = replace(search(logs), shipped=never).standout()
    assert found is not None
    assert found.chance == pytest.approx(1 / 201)


def test_rows_that_come_and_go_are_judged_by_those_of_their_samples_that_exist() -> None:
    """A row that is absent in half of its window has no level."""
    logs = healthy()
    logs[::2, 17] = np.nan
    logs[-6:, 17] = 40.0
    assert search(logs).standout() is None


def test_medians_leave_out_what_is_absent() -> None:
    """As NumPy's do, also where nothing is left."""
    random = np.random.default_rng(3)
    values = random.normal(size=(30, 7))
    values[random.random((30, 7)) < 0.4] = np.nan
    values[4] = np.nan
    with np.testing.suppress_warnings() as quiet:
        quiet.filter(RuntimeWarning)
        assert np.array_equal(medians(values, 1), np.nanmedian(values, axis=1), equal_nan=True)
        assert np.array_equal(medians(values, 0), np.nanmedian(values, axis=0), equal_nan=True)


def test_of_the_answers_of_several_ranks_the_rarer_is_taken() -> None:
    """The same row on several ranks is one answer with all of them."""
    one = Onset(50, "a.weight", "param_origin", 7, 5, 2.0, 0.01, (0,))
    other = one._replace(ranks=(2,), chance=0.005)
    assert rarer(one, other) == other._replace(ranks=(0, 2))
    assert rarer(Onset(50), one) == rarer(one, None) == one
    assert rarer(one._replace(chance=0.005, where="b", ranks=(1,)), one) == one._replace(
        chance=0.005, where="b", ranks=(1,)
    )
    assert Onset.of(one.as_json()) == one
    assert Onset.of(None) is None
