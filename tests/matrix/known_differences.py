"""Where a framework gives something else than the others, and why: ``(test, framework)`` to reason.

Strictly: a listed test that passes fails the suite until its line goes, and so does a line that names no test. What a
framework cannot do by construction is said in ``harness.FRAMEWORKS`` instead.
"""

from __future__ import annotations

KNOWN_DIFFERENCES: dict[tuple[str, str], str] = {}
