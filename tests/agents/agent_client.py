"""A coding agent: the client of the protocol's own package, with the server in a process of its own."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

from tests.forks import ROOT
from tests.quick_python import quick_python
from tests.required import require
from tests.user_scripts import COMMANDS

MODULES = (*COMMANDS, "mcp.server", "mcp.server.stdio", "probe.agents.server")


class AgentClient(NamedTuple):
    """A session with the server."""

    portal: Any
    client: Any

    def tools(self) -> dict[str, Any]:
        """The tools by name."""
        return {tool.name: tool for tool in self.portal.call(self.client.list_tools).tools}

    def call(self, tool: str, **arguments: Any) -> tuple[dict[str, Any], bool]:
        """The answer, and whether it is an error: one text, which is the JSON of the structured answer. The client
        refuses one that is not as the tool's schema."""
        result = self.portal.call(self.client.call_tool, tool, arguments)
        (content,) = result.content
        assert json.loads(content.text) == result.structured_content
        assert len(content.text) <= 20_000
        assert content.text.isprintable()
        return result.structured_content, result.is_error

    def ask(self, tool: str, **arguments: Any) -> dict[str, Any]:
        """The answer of a call that succeeds; the call is repeated as long as the analysis takes."""
        while True:
            answer, failed = self.call(tool, **arguments)
            assert not failed, answer
            if answer.get("state") != "running":
                return answer
            assert answer["ask"] == "the same call again"

    def refused(self, tool: str, **arguments: Any) -> dict[str, Any]:
        """What a refused call should have had."""
        answer, failed = self.call(tool, **arguments)
        assert failed, answer
        error: dict[str, Any] = answer["error"]
        return error


@contextmanager
def asking(runs: Path, folder: Path) -> Iterator[AgentClient]:
    """A client of ``probe mcp`` over the runs in a folder.

    Args:
        folder: where the server keeps its cache.
    """
    mcp = require("mcp")
    from anyio.from_thread import start_blocking_portal

    environment = {"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1", "XDG_CACHE_HOME": str(folder)}
    server = mcp.StdioServerParameters(
        command=quick_python(*MODULES), args=["-m", "probe", "mcp", str(runs)], env=environment, cwd=folder
    )
    client = mcp.Client(mcp.stdio_client(server, errlog=sys.__stderr__))  # else what was sys.stderr at its first import
    with start_blocking_portal() as portal, portal.wrap_async_context_manager(client) as session:
        yield AgentClient(portal, session)
