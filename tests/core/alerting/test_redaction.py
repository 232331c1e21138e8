"""No secret is in any text: each channel's own, in every spelling, in messages, tracebacks and files."""

from __future__ import annotations

import importlib
import io
import json
import logging
import re
import time
from pathlib import Path
from typing import Any
from urllib.parse import quote, quote_plus

import pytest

from probe.core.alerting import redaction
from probe.core.alerting.redaction import LOGGERS, describe_error, install, redact, secrets_of, shown_address
from probe.core.config.load import load
from probe.core.faults import Faults
from probe.core.messages import lines
from tests.core.alerting.receivers import Receiver, alert, alerts_to, serving
from tests.required import require
from tests.waiting import free_port, wait_for

require("httpx")
SECRETS = {
    "feishu": "https://open.feishu.cn/open-apis/bot/v2/hook/9f8e7d6c-5b4a-4321-8fed-0123456789ab",
    "http": "https://me:p%40ss%2Fw0rd@hooks.example.com/in/T0KEN1234?key=v4lu3v4lu3",
    "alertmanager": "https://alerts.example.com/prefix/Pr1vat3Pr1vat3",
    "apprise": "dingtalk://A1b2C3d4E5f6G7h8/13900000000",
}
PARTS = {
    "feishu": ["9f8e7d6c-5b4a-4321-8fed-0123456789ab"],
    "http": ["p%40ss%2Fw0rd", "p@ss/w0rd", "p%40ss%2fw0rd", "T0KEN1234", "v4lu3v4lu3"],
    "alertmanager": ["Pr1vat3Pr1vat3"],
    "apprise": ["A1b2C3d4E5f6G7h8", "a1b2c3d4e5f6g7h8"],
}
SECRET = 'se"cret/of\\the bot'


def chained(secret: str) -> BaseException:
    """An exception whose text, cause and context hold the secret."""
    try:
        try:
            try:
                raise OSError(f"first {secret}")
            except OSError as error:
                raise RuntimeError(f"second {secret}") from error
        except RuntimeError:
            raise ValueError(f"third {secret}")  # noqa: B904 - a context
    except ValueError as error:
        return error


@pytest.mark.parametrize("name", SECRETS)
def test_secrets_of_each_channel_are_in_no_log_and_no_traceback(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The whole address, its parts, the secret; plain, percent-encoded, as JSON and as repr; in chained exceptions."""
    if name == "apprise":
        require("apprise")
    monkeypatch.setenv("ADDRESS", SECRETS[name])
    monkeypatch.setenv("SECRET", SECRET)
    more = {} if name == "apprise" else {"secret_variable": "SECRET"}
    alerts_to([{"channel": name, "args": {"url_variable": "ADDRESS", **more}}])
    spellings = [SECRETS[name], quote(SECRETS[name], safe=""), *PARTS[name]]
    if more:
        spellings += [
            SECRET,
            quote(SECRET),
            quote(SECRET, safe=""),
            quote_plus(SECRET),
            json.dumps(SECRET)[1:-1],
            repr(SECRET)[1:-1],
        ]
    stream = io.StringIO()
    handler = logging.StreamHandler(stream)
    loggers = [logging.getLogger(each) for each in ("probe", "probe.new." + name, "httpx", "httpcore.connection")]
    install()
    for logger in loggers:
        logger.addHandler(handler)
    try:
        for spelling in spellings:
            for logger in loggers:
                logger.error("got %s", spelling, exc_info=chained(spelling))
            Faults().note("alerts", chained(spelling))
            stream.write(redact(spelling) + describe_error(chained(spelling)) + lines("error", spelling))
    finally:
        for logger in loggers:
            logger.removeHandler(handler)
    written = stream.getvalue()
    assert written.count("got ***") >= len(spellings)
    assert "third" in written
    assert "first" in written
    for spelling in spellings:
        assert spelling not in written


KNOWN = {
    "Authorization: Bearer abc.def-123": "Authorization: Bearer ***",
    "{'authorization': 'Basic dXNlcjpwYXNz'}": "{'authorization': 'Basic ***'}",
    "GET https://x.example/send?a=1&access_token=0f9&b=2": "GET https://x.example/send?a=1&access_token=***&b=2",
    "https://qyapi.weixin.qq.com/cgi-bin/webhook/send?key=77-88": "https://qyapi.weixin.qq.com/cgi-bin/webhook/send?key=***",
    "POST /open-apis/bot/v2/hook/abc-def HTTP/1.1": "POST /open-apis/bot/v2/hook/*** HTTP/1.1",
    "https://hooks.slack.com/services/T00/B00/XX": "https://hooks.slack.com/services/***",
    "https://discord.com/api/webhooks/12/ab": "https://discord.com/api/webhooks/***",
    "smtp://me:word@mail.example:25": "smtp://***@mail.example:25",
    "AWS_SECRET_ACCESS_KEY=ab/cd+ef": "AWS_SECRET_ACCESS_KEY=***",
    "environ({'HF_TOKEN': 'x', 'WANDB_API_KEY': '0f9'})": "environ({'HF_TOKEN': '***', 'WANDB_API_KEY': '***'})",
    "HF_TOKEN=hf_x1 python train.py": "HF_TOKEN=*** python train.py",
    r"body {\"client_secret\": \"a b\", \"n\": 1}": r'body {\"client_secret\": \"***", \"n\": 1}',
    '{"token": "0f9", "tokens": "512"}': '{"token": "***", "tokens": "512"}',
    "X-Api-Key: 0f9a8b7c": "X-Api-Key: ***",
    "argv: serve --api-key 0f9a8b7c --port 1": "argv: serve --api-key *** --port 1",
    "Set-Cookie: session=0f9; Path=/": "Set-Cookie: session=***",
    "clone with ghp_0f9a8b7c6d5e4f3a2b1c failed": "clone with ghp_*** failed",
    "https://s3.example/x?X-Amz-Signature=0f9&n=2": "https://s3.example/x?X-Amz-Signature=***&n=2",
    "args.password: expected a text, got 12345678; pad_token='<pad>', eos_token: 2, sk-learn, --token-file k1": None,
    "loss 9 at step 3 in layers.3.mlp, https://docs.example/alerts?page=2": None,
}


@pytest.mark.parametrize("text", KNOWN)
def test_known_forms_are_redacted_though_nobody_registered_them(text: str) -> None:
    """Headers, tokens in queries, webhooks, passwords in addresses; other texts stay as they are."""
    assert redact(text) == (KNOWN[text] or text)


def test_ordinary_words_of_an_address_are_no_secrets() -> None:
    """An address without a token registers nothing, so that messages stay readable."""
    assert list(secrets_of("http://alertmanager.example:9093/alerts/webhook")) == []
    assert "T0KEN1234" in set(secrets_of(SECRETS["http"]))


def test_a_manifest_has_no_address(tmp_path: Path) -> None:
    """The configuration as JSON has scheme and host; in Python it keeps the address."""
    settings = load({"alert": {"channels": [{"channel": "http", "args": {"url": SECRETS["http"]}}]}})
    assert settings.model_dump()["alert"]["channels"][0]["args"]["url"] == SECRETS["http"]
    dumped = settings.model_dump(mode="json")["alert"]["channels"][0]["args"]["url"]
    assert dumped == "https://hooks.example.com/***"
    assert shown_address("http://a:9093") == "http://a:9093"


def test_a_whole_delivery_leaves_no_secret_behind(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Two channels, one refused, every library's log at DEBUG: neither log nor spool has address or secret."""
    require("apprise")
    token = "Unkn0wnT0ken99"
    secret, urls = tmp_path / "secret", tmp_path / "urls"
    secret.write_text("b3arer-of-tests")
    urls.write_text(f"json://127.0.0.1:{free_port()}/{token}X")
    for name in LOGGERS:
        caplog.set_level(logging.DEBUG, name)
    with serving(Receiver((500, {}, f"no such hook {token}".encode()))) as receiver:
        args: dict[str, Any] = {"url": receiver.url(f"/in/{token}"), "secret_file": str(secret)}
        channels = [{"channel": "http", "args": args}, {"channel": "apprise", "args": {"url_file": str(urls)}}]
        alerts, faults = alerts_to(channels, tmp_path)
        alerts.start()
        later = logging.getLogger("probe.later")  # a module that is imported while training runs
        alerts.send(alert("a", text=f"see {receiver.url(f'/in/{token}')} and b3arer-of-tests"))
        wait_for(lambda: receiver.requests and len(faults.counts) == 2)
        alerts.close(1)
        assert receiver.requests[0].headers["authorization"] == "Bearer b3arer-of-tests"
        later.error("of a later module: %s", token)
        assert "***" in receiver.requests[0].body["alerts"][0]["text"]
    assert len(faults.counts) == 2
    files = "".join(path.read_text() for path in (tmp_path / "alerts").iterdir())
    formatted = "".join(logging.Formatter().format(record) for record in caplog.records)
    assert "Spike of a" in files
    assert any(record.name.startswith("httpcore") for record in caplog.records)
    assert "of a later module: ***" in formatted
    for text in (files, formatted, caplog.text, json.dumps(faults.counts)):
        assert token not in text
        assert "b3arer" not in text


parse = importlib.import_module("re._parser" if hasattr(re, "_parser") else "sre_parse")


def repetitions(parsed: Any) -> list[int]:
    """Bounds of all repetitions in an expression."""
    bounds: list[int] = []
    for operation, argument in parsed:
        if str(operation) in ("MAX_REPEAT", "MIN_REPEAT"):
            bounds += [int(argument[1]), *repetitions(argument[2])]
        elif str(operation) == "SUBPATTERN":
            bounds += repetitions(argument[3])
        elif str(operation) == "BRANCH":
            bounds += [bound for branch in argument[1] for bound in repetitions(branch)]
        elif "ASSERT" in str(operation):
            bounds += repetitions(argument[1])
    return bounds


def test_every_repetition_of_the_forms_is_bounded() -> None:
    """A form that reads on without a bound at each of its beginnings takes quadratic time."""
    bounds = [bound for form, _ in redaction._FORMS for bound in repetitions(parse.parse(form.pattern))]
    assert len(bounds) > len(redaction._FORMS)
    assert max(bounds) <= 65_536


ATTACKS = (
    "a.",
    "a-",
    "x+",
    "://",
    "a://",
    "authorization:",
    "authorization ",
    "bearer ",
    "token =",
    "?key=",
    " ",
    "secret_",
    "--api-key ",
)


@pytest.mark.parametrize("unit", ATTACKS)
def test_a_long_text_is_redacted_in_time(unit: str) -> None:
    """Half a million characters, as a traceback with the names of all parameters may have; quadratic would be hours."""
    begin = time.process_time()
    redact(unit * (500_000 // len(unit)))
    assert time.process_time() - begin < 30


def test_secrets_of_the_longest_forms_leave_no_rest() -> None:
    """A token of thousands of characters, and a scheme of any length before a password."""
    assert redact(f"Authorization: Bearer {'t0' * 10_000} next") == "Authorization: Bearer *** next"
    assert redact(f"{'x' * 100}://me:p4ssword@host") == f"{'x' * 100}://***@host"
