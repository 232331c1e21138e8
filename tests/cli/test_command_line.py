"""The `probe` command before any of its verbs."""

from __future__ import annotations

import socket
import subprocess
import sys
from pathlib import Path

import pytest
from typer.main import get_command
from typer.testing import CliRunner

import probe
from probe.cli import VERBS, app
from probe.services.web.listening import address_asked_for
from tests.quick_python import probe_command

ROOT = Path(__file__).resolve().parents[2]


def test_the_version_is_the_packages_own() -> None:
    """`python -m probe --version` is the `probe` command, and prints the installed version."""
    command = [sys.executable, "-m", "probe", "--version"]
    assert subprocess.check_output(command, cwd=ROOT, text=True) == f"probe {probe.__version__}\n"


def test_standard_output_that_is_full_is_told_in_a_line() -> None:
    """What a command prints piece by piece, and what Python would write at the end of the process."""
    for command in (["config", "explain", "ops"], ["--version"]):
        with Path("/dev/full").open("wb") as full:
            done = subprocess.run(
                [sys.executable, "-m", "probe", *command],
                cwd=ROOT,
                stdout=full,
                stderr=subprocess.PIPE,
                text=True,
                check=False,
            )
        assert done.stderr == "probe: error: there is no space left: free some, or choose another folder\n"
        assert done.returncode == 2


OTHERS = {"alert", "attach", "config", "control", "demo", "exporter", "logs", "pack", "remediate", "run", "serve"}
"""Verbs whose first argument is no file or directory that has to be there; others have tests of their own."""


@pytest.mark.parametrize("verb", sorted(VERBS.keys() - OTHERS))
def test_what_is_not_there_is_told_in_a_line(tmp_path: Path, verb: str) -> None:
    """Wrong use, with the name that was given, and nothing else on either stream."""
    missing = str(tmp_path / "missing")
    done = CliRunner().invoke(app, [verb, missing, *([missing] if verb == "compare" else [])])
    assert done.exit_code == 2
    assert done.stdout == ""
    assert missing in done.stderr
    assert len(done.stderr.splitlines()) == 1


def test_the_list_of_verbs_says_a_sentence_of_each() -> None:
    """Whole ones, in one piece: the list shows the first paragraph as it stands."""
    group = get_command(app)
    for verb in VERBS:
        command = group.get_command(group.make_context("probe", [verb]), verb)
        first = str(command.help).partition("\n\n")[0]
        assert first.endswith("."), verb
        assert "\n" not in first, verb


LISTED = """
import sys
from probe.cli import main
from tests.quick_python import probe_command
sys.argv = ["probe", *sys.argv[1:]]
try:
    main()
finally:
    print(*[name for name in sys.modules if name.startswith("probe.cli.")])
"""


def test_help_and_a_misspelt_verb_import_no_verb() -> None:
    """Both are there at once; the list has each verb's own first sentence, the error the nearest verb."""
    listed = subprocess.run([sys.executable, "-c", LISTED, "--help"], capture_output=True, text=True, check=True)
    *_, imported = listed.stdout.split("\n")[:-1]
    assert imported == ""
    wrong = subprocess.run([sys.executable, "-c", LISTED, "anomolies"], capture_output=True, text=True, check=False)
    assert (wrong.returncode, wrong.stdout) == (2, "probe.cli.usage\n")
    assert "did you mean `probe anomalies`?" in wrong.stderr
    words = " ".join(listed.stdout.replace("│", " ").split())
    group = get_command(app)
    for verb in VERBS:
        text = group.get_command(group.make_context("probe", [verb]), verb).help
        first = " ".join(str(text).partition("\n\n")[0].replace("`", "").split())
        assert f"{verb} {first}" in words.replace("`", ""), verb


@pytest.mark.parametrize(
    ("arguments", "texts"),
    [
        (
            ["compare", "a"],
            ["probe compare: expected B: ", "`probe compare monitor_output/first monitor_output/second`"],
        ),
        (["pack", "runs"], ["probe pack: expected --out: ", "`probe pack monitor_output --out packed`"]),
        (
            ["anomalies", "--directory", "a"],
            ["no option --directory; DIRECTORY stands alone: `probe anomalies monitor_output`"],
        ),
        (["run", "--steps", "5", "a.py"], ["there is no option --steps; expected one of --config, --module, "]),
        (["config", "check", "a", "b"], ["(b); expected `probe config check [OPTIONS] FILE`"]),
        (["anomalies", "a", "b"], ["(b); expected `probe anomalies [OPTIONS] [DIRECTORY]`"]),
        (["config", "check"], ["probe config check: expected FILE: ", "`probe config check monitor.json`"]),
        (["anomalies", "--jsn", "."], ["there is no option --jsn; did you mean --json?"]),
        (["anomalies", "--zzz", "."], ["there is no option --zzz; expected one of --out, --topk, "]),
        (["anomalies", ".", "--topk", "-3"], ["--topk: expected a number of at least 1, got '-3'"]),
        (["compare", "a", "b", "--rtol", "abc"], ["--rtol: expected a number, got 'abc'"]),
        (["hlep"], ["there is no verb hlep; did you mean `probe --help`?"]),
        (["zzz"], ["there is no verb zzz; expected one of alert, anomalies, "]),
        (["serve", "--port", "99999"], ["--port: expected a number of at most 65535, got '99999'"]),
        (["logs", "prase"], ["probe logs: there is no verb prase; did you mean `probe logs parse`?"]),
        (["config", "a.json"], ["no verb a.json; expected one before it: ", "example `probe config check a.json`"]),
        (["a.py"], ["there is no verb a.py; expected one before it: alert, ", "for example `probe run a.py`"]),
        (["alert", "send"], ["probe alert: there is no verb send; expected one of test, flush"]),
        (["exporter", "--json-file"], ["probe exporter: --json-file: expected a value after it, got none"]),
        (["check", "--nnodes", "2", "a.py"], ["there is no option --nnodes", "`probe check -- torchrun --nnodes ...`"]),
        (["attach", "a.py"], ["PID...: expected a whole number, got 'a.py'; for example 4711"]),
        (["anomalies", "a", "b"], ["[DIRECTORY]`; leave out what is too many"]),
        (
            ["merge", "http://a/b"],
            ["DIRECTORY: http://a/b: expected a path, or a URL that begins with", "load it down"],
        ),
        (["logs", "parse", ".", "--language", "fr"], ["--language: expected one of en, zh, got 'fr'"]),
        (
            ["--json", "anomalies"],
            ["no option --json before a verb; its own options follow it: `probe anomalies --json`"],
        ),
        (["anomolies"], ["there is no verb anomolies; did you mean `probe anomalies`?"]),
    ],
)
def test_wrong_use_is_answered_like_any_other_error(arguments: list[str], texts: list[str]) -> None:
    """What was expected and what it is for, an example, and where more is written; exit code 2."""
    command = probe_command(*arguments)
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (2, "")
    first, *others = done.stderr.splitlines()
    assert first.startswith("probe: error: ")
    assert all(line.startswith("probe:   ") for line in others)
    assert " --help` describes" in others[-1]
    assert [text for text in texts if text not in done.stderr] == []


def test_without_arguments_the_help_is_printed() -> None:
    """Of the command and of groups of verbs."""
    for words in ([], ["config"]):
        command = probe_command(*words)
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        assert (done.returncode, done.stderr) == (2, "")
        assert "Usage: probe" in done.stdout


@pytest.mark.parametrize("verb", ["serve", "exporter", "view"])
def test_servers_name_their_address_in_one_way(verb: str, tmp_path: Path) -> None:
    """An address that is taken, and one that is none, are refused in the words of ``--listen``."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        at = f"127.0.0.1:{taken.getsockname()[1]}"
        for address, text in ((at, "another program listens there"), ("127.0.0.1:70000", "expected a port")):
            command = probe_command(verb, "--listen", address)
            done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=tmp_path)
            assert done.returncode == 2
            assert f"--listen {address}: " in done.stderr
            assert text in done.stderr


def test_older_options_of_servers_are_accepted() -> None:
    """``--host`` and ``--port`` take the place of both parts of ``--listen``, and are in no help."""
    assert address_asked_for("127.0.0.1:8765", 8765, None, None) == ("127.0.0.1", 8765)
    assert address_asked_for("127.0.0.1:8765", 8765, "0.0.0.0", 9) == ("0.0.0.0", 9)
    assert address_asked_for("0.0.0.0", 8765, None, None) == ("0.0.0.0", 8765)
    done = subprocess.run(probe_command("serve", "--help"), capture_output=True, text=True, check=True)
    assert "--listen" in done.stdout
    assert "--port" not in done.stdout
