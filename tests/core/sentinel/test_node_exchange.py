"""Exchange of lines between nodes: what each finds of the others."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from probe.core.sentinel.node_exchange import FIRST_LINES, MOST_BYTES, MOST_ROWS, PREFIX, LeftLines, NodeExchange
from probe.core.sentinel.rank_lines import LinesHeader, RankLine

NAMES = ("embedding.weight", "head.weight")


def header(rank: int, names: tuple[str, ...] = NAMES, here: int = 1) -> LinesHeader:
    return LinesHeader(1, rank, 0, "launch", 5.0, "out", names, (0, 1), (), (), world=2, here=here)


def line(step: int, rows: int = len(NAMES)) -> RankLine:
    return RankLine(step, 0, 0.5, np.full((rows, 2), float(step)), None, np.full((rows, 2), -1.0))


def test_a_node_reads_what_the_other_has_left_once(tmp_path: Path) -> None:
    """Header and lines, and after another exchange the new ones alone; its own are not among them."""
    one, other = NodeExchange(tmp_path, "launch"), NodeExchange(tmp_path, "launch")
    one.add(header(0), [line(step) for step in range(3)])
    other.add(header(1), [line(step) for step in range(4)])
    one.leave()
    other.leave()
    ((head, lines),) = one.others()
    assert head == header(1)
    assert [each.step for each in lines] == [0, 1, 2, 3]
    np.testing.assert_array_equal(lines[3].reduced, line(3).reduced)
    np.testing.assert_array_equal(lines[3].values, line(3).values)
    assert lines[3].unreduced is None
    assert [*one.others()] == []
    other.add(header(1), [line(4)])
    other.leave()
    ((_, lines),) = one.others()
    assert [each.step for each in lines] == [4]


def test_another_launch_is_not_read(tmp_path: Path) -> None:
    """It has a folder of its own."""
    one, other = NodeExchange(tmp_path, "launch"), NodeExchange(tmp_path, "another")
    other.add(header(1), [line(0)])
    other.leave()
    assert [*one.others()] == []


def test_the_first_node_to_end_the_exchange_removes_what_was_left(tmp_path: Path) -> None:
    """The other one waits for that, and removes it in the end if nobody else does."""
    one, other = NodeExchange(tmp_path, "launch"), NodeExchange(tmp_path, "launch")
    for exchange, rank in ((one, 0), (other, 1)):
        exchange.add(header(rank), [line(0)])
        exchange.leave()
    one.end(0.0)
    other.end(60.0)
    assert [*tmp_path.glob(f"{PREFIX}*")] == []
    other.leave()
    other.end(0.0)
    assert [*tmp_path.glob(f"{PREFIX}*")] == []


def test_ranks_of_another_pace_leave_lines_of_the_same_steps() -> None:
    """All of the first ones, and then some, whose number does not grow with that of the steps."""
    slow, fast = LeftLines(header(0)), LeftLines(header(1))
    steps = range(20000)
    left = {each.step for step in steps for each in slow.add([line(step)])}
    chosen = {each.step for begin in range(0, 20000, 500) for each in fast.add([line(n) for n in steps[begin:][:500]])}
    assert {*range(FIRST_LINES)} <= left & chosen
    assert len(left & chosen & {*range(10000, 20000)}) > 0
    assert max(len(slow.text().splitlines()), len(fast.text().splitlines())) < 400


def test_the_file_of_a_rank_is_bounded() -> None:
    """Of many parameters the first are left."""
    names = tuple(map(str, range(MOST_ROWS + 10)))
    lines = LeftLines(header(0, names))
    for step in range(1000):
        lines.add([line(step, len(names))])
    assert (len(lines.header.names), lines.header.left_out) == (MOST_ROWS, 10)
    assert len(lines.text()) < 4 * MOST_BYTES
