"""Which ranks a verdict names, and as what stacks are read."""

from __future__ import annotations

import sysconfig

import pytest

from probe.services.watcher.node import RunningClock
from probe.services.watcher.stacks import RankStacks, StackFrame, StackThread, parse_faulthandler
from probe.services.watcher.verdict import RankView, judge, long_phase, place, stack_text

TORCH = "/env/lib/python3.11/site-packages/torch"
ALL_REDUCE = [
    StackFrame("all_reduce", f"{TORCH}/distributed/distributed_c10d.py", 3000),
    StackFrame("wrapper", f"{TORCH}/distributed/c10d_logger.py", 81),
    StackFrame("train", "/home/me/train.py", 12),
]
LOADER = [
    StackFrame("Queue.get", f"{sysconfig.get_path('stdlib')}/queue.py", 171),
    StackFrame("_try_get_data", f"{TORCH}/utils/data/dataloader.py", 1100),
    StackFrame("train", "/home/me/train.py", 10),
]


def view(rank: int, frames: list[StackFrame], step: int = 5, phase: str = "step", state: str = "") -> RankView:
    stacks = RankStacks("py-spy", [StackThread("MainThread", True, False, frames)])
    return RankView(rank, step, phase, 70.0, state, stacks)


def test_the_rank_outside_the_collective_is_named() -> None:
    """Most wait in all_reduce; the one in the loader keeps them waiting, although it comes first."""
    verdict = judge([view(0, LOADER), view(1, ALL_REDUCE), view(2, ALL_REDUCE), view(3, ALL_REDUCE)])
    assert verdict.culprits == (0,)
    assert verdict.line == (
        "3 of 4 ranks wait in all_reduce (torch/distributed/distributed_c10d.py:3000, called at train.py:12) after "
        "step 5; rank 0 does not: it is in _try_get_data (torch/utils/data/dataloader.py:1100, called at train.py:10) "
        "after step 5"
    )


@pytest.mark.parametrize(
    ("views", "culprits"),
    [
        ([view(0, LOADER), view(1, ALL_REDUCE)], (0,)),
        ([view(0, ALL_REDUCE, state="stopped by a signal"), view(1, LOADER)], (0,)),
        ([view(0, ALL_REDUCE), view(1, ALL_REDUCE, step=4), view(2, ALL_REDUCE)], (1,)),
        ([view(0, ALL_REDUCE), view(1, ALL_REDUCE)], ()),
        ([view(0, LOADER), view(1, LOADER[2:]), view(2, LOADER)], (1,)),
        ([view(0, ALL_REDUCE), view(1, ALL_REDUCE, phase="data"), view(2, ALL_REDUCE)], (1,)),
        ([view(0, LOADER)], ()),
        ([view(0, []), view(1, ALL_REDUCE)], (0,)),
    ],
    ids=["one each", "stopped", "behind", "all the same", "another place", "another phase", "alone", "no stacks"],
)
def test_the_odd_ones(views: list[RankView], culprits: tuple[int, ...]) -> None:
    """Stopped ranks come first, then those outside collectives, behind, in another place, in another phase."""
    assert judge(views).culprits == culprits


def test_functions_that_are_named_like_collectives_are_none() -> None:
    """A wait in the program's own code is no collective."""
    own = [StackFrame("wait_for_disk", "/home/me/train.py", 3)]
    assert judge([view(0, own), view(1, ALL_REDUCE)]).culprits == (0,)


def test_a_place_is_the_innermost_call_of_the_program_or_a_package() -> None:
    """Neither Python's own library nor probe is named where anything else can be."""
    assert place(view(0, LOADER)).startswith("_try_get_data (torch/utils/data/dataloader.py:1100")
    assert place(view(0, LOADER[2:])) == "train (train.py:10)"
    assert place(view(0, [])) == "an unknown place"


def test_phases_are_seen_from_the_stack() -> None:
    """A save, an evaluation and a compilation are seen; other names, also activation checkpointing, are not."""
    names = {
        "save_checkpoint": "checkpoint",
        "Trainer._save": "checkpoint",
        "evaluate": "evaluation",
        "Loop.validation_step": "evaluation",
        "compile_fx": "compile",
        "save_for_backward": "",
        "checkpoint": "",
        "train_and_evaluate": "",
        "saved_tensors": "",
        "load_batch": "",
        "evaluator": "",
    }
    seen = {name: long_phase(view(0, [StackFrame(name, "/home/me/train.py", 1), *LOADER])) for name in names}
    assert seen == names


def test_stacks_of_faulthandler_are_read() -> None:
    """Threads with and without names, the training thread by its id."""
    text = (
        "Current thread 0x00007f01 (most recent call first):\n"
        '  File "/a/b.py", line 3 in work\n'
        "\n"
        "Thread 0x00007f02 [MainThread] (most recent call first):\n"
        '  File "/a/c d.py", line 5 in step\n'
        '  File "/a/c d.py", line ??? in <module>\n'
    )
    assert parse_faulthandler(text, 0x7F02) == [
        StackThread("", False, False, [StackFrame("work", "/a/b.py", 3)]),
        StackThread(
            "MainThread", True, False, [StackFrame("step", "/a/c d.py", 5), StackFrame("<module>", "/a/c d.py", 0)]
        ),
    ]


def test_a_text_of_stacks_begins_with_the_training_thread() -> None:
    """Facts, then the training thread, then the others."""
    threads = [StackThread("loader", False, True, LOADER[1:2]), StackThread("MainThread", True, False, ALL_REDUCE[2:])]
    stopped = view(0, [])._replace(stacks=RankStacks("py-spy", threads), state="stopped by a signal")
    assert stack_text(stopped, "node7", 42).splitlines() == [
        "rank 0, process 42 on node7, py-spy",
        "phase step, last finished step 5, 70.0 s without progress, stopped by a signal",
        "",
        "Thread MainThread (training)",
        "    train (/home/me/train.py:12)",
        "",
        "Thread loader (holds the lock)",
        f"    _try_get_data ({TORCH}/utils/data/dataloader.py:1100)",
    ]


def test_time_in_which_the_watcher_did_not_run_is_left_out() -> None:
    """Of a machine that was frozen for a minute, only the time before and after counts, for the ranks of that time."""
    second = 10**9
    clock = RunningClock(0.5, 0)
    for half in range(1, 11):
        clock.look(half * second // 2)
    clock.look(65 * second)
    clock.look(65 * second + second // 2)
    assert clock.excused(0, 66 * second) == 60 * second
    assert clock.excused(35 * second, 66 * second) == 30 * second
    assert clock.excused(65 * second, 66 * second) == 0
    clock.restart(100 * second)
    clock.look(101 * second)
    assert clock.excused(65 * second, 101 * second) == 0
