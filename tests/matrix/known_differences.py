"""Where a framework gives something else than the others, and why: ``(test, framework)`` to reason.

Strictly: a listed test that passes fails the suite until its line goes, and so does a line that names no test. What a
framework cannot do by construction is said in ``harness.FRAMEWORKS`` instead.
"""

from __future__ import annotations

KNOWN_DIFFERENCES: dict[tuple[str, str], str] = {
    ("test_signals.py::test_state_begins_with_the_first_update", "mindspore"): (
        "MindSpore makes the state together with the optimizer: at the first step it is there, and all zeros"
    ),
    ("test_attachment.py::test_a_parameter_that_takes_no_part", "mindspore"): (
        "MindSpore computes a gradient of zeros for a parameter that takes no part, and the optimizer applies it"
    ),
}
