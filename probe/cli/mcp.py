"""``probe mcp``: runs for coding agents."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

from probe.cli import refusing
from probe.cli.places import run_argument, usual_place

PLACES = "Where the ranks have written, or a folder of runs, or its URL. Else ./monitor_output, or the current folder."


def mcp(directory: Annotated[Any, run_argument(PLACES)] = None) -> None:
    """Answer the questions of a coding agent about runs, by the Model Context Protocol on standard input and output.

    It reads only, and nothing outside DIRECTORY, which may hold many runs. The agent's program starts it:
    `claude mcp add probe -- probe mcp monitor_output`. Exit code 0 when its input ends; 2 if it cannot start.
    """
    usual = usual_place()
    folder = directory or (usual if usual.is_dir() else Path.cwd())
    with refusing(ValueError, ImportError, OSError):
        from probe.agents.server import serve_until_ended

        serve_until_ended(str(folder))
