"""`probe view`: errors before it begins, each with what to do."""

from __future__ import annotations

import socket
from pathlib import Path

import pytest
from typer.testing import CliRunner

from probe.cli import app
from tests.required import require

require("starlette")
require("uvicorn")
require("duckdb")


def refused(*options: object) -> str:
    """The only line of a server that does not start."""
    done = CliRunner().invoke(app, ["view", "--no-browser", *map(str, options)])
    assert (done.exit_code, done.stdout) == (2, "")
    assert len(done.stderr.splitlines()) == 1
    return done.stderr


def test_a_place_that_is_no_folder_is_an_error(tmp_path: Path) -> None:
    """With what was expected."""
    (tmp_path / "file").write_text("")
    assert "this is a file" in refused(tmp_path / "file")
    assert "there is none of this name" in refused(tmp_path / "missing")


def test_an_address_that_cannot_be_listened_at_is_an_error(tmp_path: Path) -> None:
    """A port that is taken, and one that is none."""
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        assert "another program listens there" in refused(tmp_path, "--listen", f"127.0.0.1:{port}")
    assert "expected HOST:PORT" in refused(tmp_path, "--listen", "127.0.0.1:http")
    assert "expected a port from 0 to 65535, got 70000" in refused(tmp_path, "--listen", "127.0.0.1:70000")


@pytest.mark.parametrize(
    ("text", "parsed"),
    [
        ("127.0.0.1:8090", ("127.0.0.1", 8090)),
        ("[::1]:8090", ("::1", 8090)),
        ("0.0.0.0", ("0.0.0.0", 0)),
        (":8090", ("127.0.0.1", 8090)),
        ("::1", ("::1", 0)),
    ],
)
def test_addresses_are_parsed(text: str, parsed: tuple[str, int]) -> None:
    """With and without a port, of both versions."""
    from probe.services.web.listening import parsed_address

    assert parsed_address(text) == parsed
