"""Lines of streams: bounded, of any bytes, in blocks of any size."""

from __future__ import annotations

import random

import pytest

from probe.services.logs.lines import LineReader, LogLine
from probe.services.logs.parser import LIMIT
from tests.services.test_logs_expressions import CORPUS


def read(content: bytes, size: int, everything: bool = True) -> list[LogLine]:
    """Lines of a stream that comes in blocks of ``size`` bytes."""
    reader = LineReader(everything)
    found = [line for start in range(0, len(content), size) for line in reader.feed(content[start : start + size])]
    return [*found, *reader.end()]


def test_lines_do_not_depend_on_blocks() -> None:
    """The same lines with the same numbers, whatever the sizes of blocks, with and without the filter."""
    generator = random.Random(3)
    words = [
        b"loss: 1",
        b"nothing",
        b"ERROR x",
        b"\r 1%",
        b"CUDA out of memory",
        b"",
        b"\xff\xfe",
        b"\r\n",
        b"caf\xc3\xa9",
    ]
    content = b"".join(generator.choice(words) + generator.choice([b"\n", b" ", b"\r"]) for _ in range(2_000))
    for everything in (False, True):
        whole = [line[:4] for line in read(content, len(content), everything)]
        assert len(whole) > 100
        for size in (1, 7, 64, 1_000):
            assert [line[:4] for line in read(content, size, everything)] == whole


def test_all_lines_are_those_of_the_file() -> None:
    """Numbers count from 1, and an end without a line feed is a line too."""
    assert [(line.number, line.content) for line in read(b"a\n\nb\r\nc", 3)] == [
        (1, b"a"),
        (2, b""),
        (3, b"b"),
        (4, b"c"),
    ]


def test_only_lines_with_needles_are_looked_at() -> None:
    """Others are counted, not yielded."""
    content = b"plain\n" * 5_000 + b"loss: 1\n" + b"plain\n" * 5_000
    reader = LineReader()
    assert [(line.number, line.content) for line in reader.feed(content)] == [(5_001, b"loss: 1")]
    assert reader.number == 10_001


@pytest.mark.parametrize("size", [1_000, 65_536, 1 << 20])
def test_a_line_is_cut_to_its_limit(size: int) -> None:
    """The rest is counted, not kept, and the next line is whole."""
    long = b"loss: 1" + b"x" * 300_000 + b"\n"
    lines = read(long + long + b"loss: 2\n", size)
    assert [(line.number, len(line.content), line.cut) for line in lines] == [
        (1, LIMIT, 300_007 - LIMIT),
        (2, LIMIT, 300_007 - LIMIT),
        (3, 7, 0),
    ]


def test_memory_is_bounded_without_line_feeds() -> None:
    """A stream of 50 MB without any keeps one line of 64 KiB."""
    reader, kept = LineReader(), 0
    for _ in range(50):
        assert list(reader.feed(b"x" * 1_000_000)) == []
        kept = max(kept, sum(map(len, reader._rest)))
    assert kept == LIMIT
    assert [line.cut for line in reader.end()] == [50_000_000 - LIMIT]


def test_the_last_state_of_a_progress_bar_counts() -> None:
    """Those before it are dropped, but for messages in between."""
    states = [f"{n}%|# | {n}/100 [00:01<00:01, 2.0it/s]" for n in range(100)]
    states[50] += "\rCUDA out of memory"
    lines = read("\r".join(states).encode() + b"\n", 1_000)
    assert [line.content[:18] for line in lines] == [b"CUDA out of memory", b"99%|# | 99/100 [00"]


def test_a_progress_bar_of_hours_is_one_line() -> None:
    """Of several megabytes without a line feed the last state is kept, nothing is cut; the next line is number 2."""
    content = b"\r".join(b"%d%%|# | %d/9 [00:01<00:01, 2.0it/s]" % (n % 100, n) for n in range(100_000))
    lines = [line for line in read(content + b"\nend\n", 10_000) if b"99999/9" in line.content or line.number > 1]
    assert [(line.number, line.cut) for line in lines] == [(1, 0), (2, 0)]


def test_the_same_lines_are_found_without_re2(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of a file with all lines of the other tests, in upper and lower case."""
    content = b"\n".join([*CORPUS, *(line.upper() for line in CORPUS), b"plain", b""])
    found = read(content, 4_000, everything=False)
    assert len(found) > 100
    monkeypatch.setattr("probe.services.logs.expressions.re2_module", lambda: None)
    assert read(content, 4_000, everything=False) == found
