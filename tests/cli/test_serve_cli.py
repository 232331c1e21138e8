"""`probe serve`: clear errors before it begins, and an end by signals."""

from __future__ import annotations

import os
import signal
import socket
import sqlite3
import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

from probe.cli import app
from tests.required import require
from tests.services.server_process import ROOT, batch, serving

require("starlette")
require("uvicorn")

TOKEN = "a-token-of-24-characters"


def refused(*options: object, environment: dict[str, str] | None = None) -> str:
    """The only line of a server that does not start."""
    done = CliRunner().invoke(app, ["serve", "--port", "0", *map(str, options)], env=environment)
    assert (done.exit_code, done.stdout) == (2, "")
    assert len(done.stderr.splitlines()) == 1
    return done.stderr


def test_without_a_token_only_this_machine_is_served(tmp_path: Path) -> None:
    """Any other address needs a token; a short one is refused, and is not in the message."""
    database = ("--database", tmp_path / "a.sqlite")
    assert "expected a token" in refused(*database, "--host", "0.0.0.0")
    assert "expected a token" in refused(*database, "--host", "::")
    short = refused(*database, environment={"PROBE_SERVER_TOKEN": "pass1234"})
    assert "at least 16" in short
    assert "pass1234" not in short
    spaces = refused(*database, "--token-file", secret(tmp_path / "token", b"two words of a token"))
    assert "without spaces" in spaces
    assert "words" not in spaces
    assert not (tmp_path / "a.sqlite").exists()


def test_files_that_cannot_be_read_are_errors(tmp_path: Path) -> None:
    """Each with the option, and none of the content."""
    assert "--token-file" in refused("--token-file", tmp_path / "missing")
    lines = refused("--token-file", secret(tmp_path / "lines", b"secret\nlines\n"))
    assert "expected one line" in lines
    assert "secret" not in lines
    assert "expected UTF-8" in refused("--dead-man-file", secret(tmp_path / "bytes", b"\xff\xfe"))
    assert "missing.json" in refused("--config", tmp_path / "missing.json")
    (tmp_path / "wrong.json").write_text('{"alert": {"group_seconds": -1}}')
    assert "group_seconds" in refused("--config", tmp_path / "wrong.json")
    assert "dead man's address" in refused("--dead-man", "nowhere", "--database", tmp_path / "a.sqlite")


def test_a_port_that_is_taken_is_an_error(tmp_path: Path) -> None:
    """With what to do."""
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        assert f"--listen 127.0.0.1:{port}: cannot listen: another program" in refused(
            "--port", port, "--database", tmp_path / "a.sqlite"
        )
    assert "cannot listen" in refused(
        "--host", "127.0.0.1.1", "--database", tmp_path / "a.sqlite", "--token-file", _token(tmp_path)
    )


def _token(folder: Path) -> Path:
    return secret(folder / "good", TOKEN.encode())


def secret(file: Path, content: bytes) -> Path:
    """A file that its owner alone can read."""
    file.touch(0o600)
    file.write_bytes(content)
    return file


def test_a_database_that_cannot_be_used_is_an_error(tmp_path: Path) -> None:
    """No SQLite, another program's, a folder, and one in a place where nothing can be."""
    (tmp_path / "text").write_text("no database " * 100)
    with sqlite3.connect(tmp_path / "other") as connection:
        connection.execute("CREATE TABLE other (a)")
    connection.close()
    (tmp_path / "folder").mkdir()
    for name, reason in (
        ("text", "file is not a database"),
        ("other", "expected a database of this server"),
        ("folder", "cannot be written"),
        ("text/inside", "cannot be written"),
    ):
        message = refused("--database", tmp_path / name)
        assert str(tmp_path / name) in message
        assert reason in message


def test_missing_packages_are_named(tmp_path: Path) -> None:
    """With the command that installs them."""
    hiding = "import sys; sys.modules['uvicorn'] = None; from probe.cli import app; app(['serve', '--port', '0'])"
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run(
        [sys.executable, "-c", hiding], cwd=tmp_path, env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 2
    assert 'needs uvicorn, of the extra "services"' in done.stderr
    assert list(tmp_path.iterdir()) == []


@pytest.mark.slow
def test_ctrl_c_ends_it_with_everything_committed(tmp_path: Path) -> None:
    """Exit code 0, no file of SQLite's left beside the database, and one server a file."""
    with serving(tmp_path / "a.sqlite", "--token-file", str(_token(tmp_path))) as first:
        server = first._replace(token=TOKEN)
        assert server.post(batch())[0] == 200
        assert "another server uses it" in refused("--database", tmp_path / "a.sqlite")
        assert server.end(signal.SIGINT) == 0
        assert server.errors.read_text() == ""
    assert sorted(path.name for path in tmp_path.glob("a.sqlite*")) == ["a.sqlite", "a.sqlite-lock"]
