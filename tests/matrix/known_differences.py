"""Differences of frameworks, with the reasons: ``(test, framework)`` to reason.

Strictly: a listed test that passes fails the suite until its line goes, and so does a line that names no test. What a
framework cannot do by construction is said in ``harness.FRAMEWORKS`` instead.
"""

from __future__ import annotations


def without(framework: str, test: str) -> str:
    """The id of a test that runs on ``framework``, as it is called here."""
    head, _, rest = test.partition("[")
    others = rest.removesuffix("]").split("-")
    others.remove(framework)
    return f"{head}[{'-'.join(others)}]" if others else head


KNOWN_DIFFERENCES: dict[tuple[str, str], str] = {
    ("test_signals.py::test_state_begins_with_the_first_update", "mindspore"): (
        "MindSpore makes the state together with the optimizer: at the first step it is there, and all zeros"
    ),
    ("test_metrics.py::test_unreduced_gradients_after_several_backwards", "mindspore"): (
        "the training script adds gradients up: until the optimizer gets their sum nobody knows it, and none is told"
    ),
    ("test_metrics.py::test_reduced_gradients_before_the_update", "mindspore"): (
        "gradients are handed to the optimizer and held by nobody before: there is nothing to be asked"
    ),
    ("test_attachment.py::test_a_parameter_that_takes_no_part", "mindspore"): (
        "MindSpore computes a gradient of zeros for a parameter that takes no part, and the optimizer applies it"
    ),
}
