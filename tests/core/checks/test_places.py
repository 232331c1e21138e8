"""Names of parameters, grouped by modules."""

from __future__ import annotations

from probe.core.checks.places import ancestors, listing


def test_the_highest_whole_module_is_named() -> None:
    """A module is named if all of its parameters are meant; otherwise its parts are."""
    whole = ["a.x.w", "a.x.b", "a.y.w", "b.w", "b.b"]
    assert ancestors(["a.x.w", "a.x.b", "a.y.w"], whole) == ("a",)
    assert ancestors(["a.x.w", "a.x.b", "b.w"], whole) == ("a.x", "b.w")
    assert ancestors([], whole) == ()
    assert ancestors(["", "w"], ["", "w"]) == ("w",)


def test_few_blocks_are_named_one_by_one() -> None:
    """A list of a few blocks is no place, one of many is."""
    few = [f"layers.{block}.{part}" for block in range(2) for part in "wb"]
    many = [f"layers.{block}.{part}" for block in range(12) for part in "wb"]
    assert ancestors(few, [*few, "head.w"]) == ("layers.0", "layers.1")
    assert ancestors(many, [*many, "head.w"]) == ("layers",)


def test_a_sentence_names_the_first_places() -> None:
    """More than five are counted."""
    assert listing(["a", "b"]) == "a, b"
    assert listing(list("abcdefg")) == "a, b, c, d, e and 2 more"
    assert listing([]) == "parameters without a name"
