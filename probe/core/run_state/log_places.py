"""Places in the training loop at which numbers are logged, so that each goes to the step that it is about."""

from __future__ import annotations

from typing import Literal

Place = Literal["start", "start or step", "step", "end"]
"""Before the first forward; between forward and update; after the update."""


class LogPlaces:
    """Places at which the names of a run were logged first.

    A number that is logged before an update belongs to the step in progress. After an update, and before the next
    forward, it belongs to the step that has ended; unless its name was logged first before any forward: then it is
    logged where a step begins. Where nothing shows whether a forward has begun, the first place of the name decides.
    """

    def __init__(self) -> None:
        self._first: dict[str, Place] = {}

    def is_late(self, name: str, begun: bool | None, ended: bool) -> bool:
        """Return whether a number that is logged now belongs to the step that has ended.

        Args:
            begun: whether a forward has begun since; None if unknown.
            ended: whether any step has ended in this run.
        """
        first = self._first.setdefault(name, _place(begun, ended))
        if first == "start or step" and begun:
            first = self._first[name] = "step"
        if not ended or first in ("start", "start or step"):
            return False
        return first == "end" if begun is None else not begun


def _place(begun: bool | None, ended: bool) -> Place:
    if begun:
        return "step"
    if ended:
        return "end"
    return "start or step" if begun is None else "start"
