"""The sentinel of a run, if it is configured and the framework shows what it needs."""

from __future__ import annotations

import weakref
from collections.abc import Callable
from pathlib import Path

from probe.core.config.schema import Settings
from probe.core.faults import Faults
from probe.core.instrumentation.session import Session
from probe.core.run_state.run_numbers import RunNumbers
from probe.core.sentinel.sentinel import Sentinel
from probe.core.sentinel.update_judge import UpdateJudge


def attached(
    session: Session,
    settings: Settings,
    numbers: RunNumbers,
    directory: Callable[[], Path | None],
    faults: Faults,
) -> UpdateJudge | None:
    """Attach a sentinel to ``session`` until its end; return the judge of its updates, None without a sentinel.

    Args:
        directory: a method that returns the directory of this rank's files; the thread of ``numbers``, which calls it,
            does not keep its object alive.
    """
    loop = session.run.framework.loop
    if not settings.sentinel.enable or loop is None or not numbers.active:
        return None
    method = weakref.WeakMethod(directory)

    def folder() -> Path | None:
        return None if (call := method()) is None else call()

    judge = UpdateJudge(numbers, folder, faults)
    sentinel = Sentinel(session, loop, judge.receive)
    session.remove_at_end(sentinel.attach())
    session.show_updates(sentinel)
    return judge
