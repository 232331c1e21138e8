"""Combinations in which every two values meet."""

from __future__ import annotations

from itertools import product

from tests.contract.pairwise import pairs_of, pairwise

VALUES = (("a", "b", "c", "d"), (1, 2, 3, 4), ("x", "y", "z"), (True, False))


def possible(letter: str, number: int, other: str, flag: bool) -> bool:
    return not (letter == "a" and number > 2) and not (other == "x" and flag)


def test_every_two_values_meet_that_can() -> None:
    """No pair of the possible combinations is missing, and none of the others is there."""
    taken = pairwise(*VALUES, possible=possible)
    everything = [case for case in product(*VALUES) if possible(*case)]
    assert {pair for case in taken for pair in pairs_of(case)} == {
        pair for case in everything for pair in pairs_of(case)
    }
    assert set(taken) <= set(everything)


def test_few_combinations_are_taken_and_always_the_same() -> None:
    """Not much more than the two longest lists need; none twice."""
    taken = pairwise(*VALUES, possible=lambda *_: True)
    assert len(taken) == len(set(taken)) < 24
    assert taken == pairwise(*VALUES, possible=lambda *_: True)
