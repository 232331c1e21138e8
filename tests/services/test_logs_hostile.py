"""Hostile log lines: nothing is raised, time and output stay bounded, and the output is JSON."""

from __future__ import annotations

import json
import random
import time

import pytest

from probe.services.logs import TrainingLogParser
from probe.services.logs.json_lines import as_line
from tests.services.test_logs_expressions import CORPUS

PARSER = TrainingLogParser()


def checked(line: str) -> dict[str, object]:
    """The record of a line after a passage through JSON."""
    text = as_line(PARSER.parse_log_line(line))
    assert "\n" not in text
    assert len(text.splitlines()) == 1
    record: dict[str, object] = json.loads(text.encode("utf-8"), parse_constant=pytest.fail)
    assert {
        "timestamp",
        "raw_message",
        "level",
        "component",
        "metrics",
        "anomalies",
        "structured_data",
    } <= record.keys()
    return record


HOSTILE = [
    "[" * 100_000,
    '{"a":' * 20_000,
    '{"a": ' + "[" * 500 + "]" * 500 + "}",
    '{"a": ' + "9" * 10_000 + "}",
    '{"metrics": {"loss": ' + "9" * 4_000 + "}}",
    '{"loss": 1e999, "step": -1e999, "timestamp": 1e300, "rank": 1e99}',
    '{"timestamp": ' + "9" * 400 + ', "rank": ' + "9" * 400 + "}",
    '{"loss": NaN, "level": ["x"], "component": {}, "rank": "-1", "metrics": [1], "labels": 3}',
    '{"a": "\\ud800", "\\udfff": 1}',
    "loss: " + "9" * 5_000,
    "loss: 1" + "e9" * 1_000,
    "step " + "9" * 18 + " Xid",
    "NVRM: Xid (PCI:0000:3b:00): 9999, " * 50,
    "a=1 " * 20_000,
    "loss=1 " * 10_000,
    "'loss': 1, " * 6_000 + "{'",
    "loss nan " * 7_000,
    "no nan in loss avoid OOM " * 2_600,
    "\ud800\udfff\x00\x1b[31m\u2028\u202e\x85",
    "2024-99-99 99:99:99 2024-02-31 10:00:00 Feb 31 10:00:00 E9999 10:00:00.1 ]",
    "GPU 9999: ....GB / ....GB",
    "100%|" + "#" * 60_000 + "| 1/",
    "%|" * 30_000,
    "| lm loss: " * 6_000,
    "iteration 1 | lm loss: x | : | | :: | lm loss: 1e400 |",
    "rank" * 15_000,
    "elapsed time per iteration (ms): 1 | " + "avg " * 25_000 + "loss: 3 |",
    '{"' + "a " * 50_000 + 'loss": 3}',
    '{"log": "' * 12_000,
    "train " * 16_000 + "loss: 1",
    "received " * 11_000 + "sigterm",
    "1.5 loss, 0.2 lr, 3.0 mem used, 5 s",
    "",
]


@pytest.mark.parametrize("line", HOSTILE, ids=range(len(HOSTILE)))
def test_hostile_lines_are_parsed_in_bounded_time(line: str) -> None:
    """Nesting, sizes, repetitions and characters that parsers stumble over."""
    begin = time.process_time()
    checked(line)
    assert time.process_time() - begin < 5


def test_json_that_is_nested_deeply_is_text() -> None:
    """Whoever reads the output could not process it."""
    for depth, expected in ((60, True), (70, False)):
        record = checked('{"loss": 1, "a": ' + "[" * depth + "]" * depth + "}")
        assert bool(record["structured_data"]) is expected
        assert record["metrics"] == {"loss": 1}


def test_random_lines_are_parsed() -> None:
    """Random bytes, and real lines that are cut, joined and changed at random."""
    generator = random.Random(16)
    for number in range(900):
        line = generator.randbytes(generator.randrange(120))
        if number % 3:
            first, second = generator.choice(CORPUS), generator.choice(CORPUS)
            line = (
                first[: generator.randrange(len(first) + 1)]
                + line[: number % 8]
                + second[generator.randrange(len(second) + 1) :]
            )
        checked(line.decode("utf-8", "surrogateescape"))
        checked(line.decode("latin-1"))


def test_half_of_each_line_is_parsed() -> None:
    """Programs that are killed leave lines cut anywhere."""
    for line in CORPUS[::4]:
        for end in range(0, len(line), 5):
            checked(line[:end].decode("utf-8", "replace"))
