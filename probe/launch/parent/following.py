"""One program with its parent, from its start to the end of both."""

from __future__ import annotations

from collections.abc import Sequence

from probe.core.messages import complain
from probe.launch.environment import WATCHED, is_watched
from probe.launch.parent.board_folder import BoardFolder, board_for, local_ranks
from probe.launch.parent.program import END_SECONDS, Program, end_as, end_within, inherited_descriptors
from probe.launch.parent.vigil import Vigil


def follow(command: Sequence[str], environ: dict[str, str], reports: bool = True) -> None:
    """Start a program, wait for it, report about it and end as it does. Return only if it was not started: then the
    caller replaces itself by the program.

    Args:
        environ: environment of the program, to which the name of the board is added.
        reports: whether to report that nothing was watched of a program that has ended well.
    """
    started = _started(command, environ)
    if started is None:
        return
    program, board = started
    vigil = Vigil(board.path, environ[WATCHED], local_ranks(environ))
    status = program.wait(vigil.look)
    try:
        end_within(END_SECONDS, status)
        vigil.report(reports and not status)
        board.remove()
    finally:
        end_as(status)


def _started(command: Sequence[str], environ: dict[str, str]) -> tuple[Program, BoardFolder] | None:
    inherited = inherited_descriptors()
    board: BoardFolder | None = None
    try:
        if not is_watched(environ) or (board := board_for(environ)) is None:
            return None
        return Program(command, environ, inherited), board
    except Exception as error:  # noqa: BLE001 - whatever it is, the program runs
        if board is not None:
            board.remove()
        if not isinstance(error, OSError):
            complain(f"the program runs without a process that waits for it: {error}", "warning")
        return None
