"""What a feature raises of a module that has not what it is about."""

from __future__ import annotations


class Misfit(Exception):  # noqa: N818 - nothing has failed
    """What was expected, and what came."""
