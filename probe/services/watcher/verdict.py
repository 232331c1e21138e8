"""Verdict on a standstill: the call in which most ranks wait, and the ranks that do not."""

from __future__ import annotations

import re
import sysconfig
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import probe
from probe.core.language import Message, joined, message
from probe.core.messages import in_number
from probe.services.watcher.stacks import RankStacks, StackFrame

_OURS = str(Path(probe.__file__).parent)
_STANDARD = sysconfig.get_path("stdlib")
_PACKAGES = ("site-packages", "dist-packages")
_COLLECTIVES = re.compile(
    r"^_*(all_?reduce|all_?gather|all_?to_?all|reduce_?scatter|reduce|broadcast|barrier|monitored_barrier|gather|scatter|"
    r"send|recv|i?send|i?recv|batch_isend_irecv|synchronize_?\w*|wait_?\w*)(_|$|[A-Z])",
    re.IGNORECASE,
)
_COMMUNICATION = re.compile(
    r"distributed|communication|comm_func|mpi4py|horovod|deepspeed/comm|hcom|nccl|megatron/core"
)
_LONG = (
    (
        "checkpoint",
        re.compile(r"^_*(save(?!_for_backward|d)|dump_checkpoint|load_(checkpoint|state_dict|pretrained))(_|$)"),
    ),
    ("evaluation", re.compile(r"^_*(evaluat(e|ion)(_\w+)?|validat(e|ion)(_\w+)?|eval(_\w+)?|test_(step|loop|epoch))$")),
    ("compile", re.compile(r"^_*(compile(_\w+)?|compile_fx\w*|inductor\w*)$")),
)
"""Phases by the names of functions on the stack of a program that does not mark them."""


class RankView(NamedTuple):
    """Rank at a standstill."""

    rank: int
    step: int
    phase: str
    seconds: float
    """Time since its last sign of progress."""
    state: str
    """Clause about a process that cannot run; empty for any other."""
    stacks: RankStacks


class StandstillVerdict(NamedTuple):
    """Outcome of a look at the stacks of all ranks of a node."""

    line: str
    culprits: tuple[int, ...]
    """Ranks that do not wait as most do; empty if none differs."""


def place(view: RankView) -> str:
    """Return the innermost call that is neither probe's nor of Python's own library, with its file and line."""
    frames = view.stacks.training
    frame = next((frame for frame in frames if not _inner(frame.file)), frames[0] if frames else None)
    if frame is None:
        return message("an unknown place")
    callers = (frame for frame in frames if not _inner(frame.file) and not _installed(frame.file))
    caller = next(callers, frame)
    return message(
        "{function} ({file}:{line})" if caller == frame else "{function} ({file}:{line}, called at {caller})",
        function=frame.function,
        file=_short(frame.file),
        line=frame.line,
        caller=f"{_short(caller.file)}:{caller.line}",
    )


def long_phase(view: RankView) -> str:
    """Return the phase that the functions on the stack show, for a program that marks none; empty if none."""
    for frame in view.stacks.training:
        if not _inner(frame.file) or frame.file.endswith("pickle.py"):
            for phase, pattern in _LONG:
                if pattern.match(frame.function.rpartition(".")[2]):
                    return phase
    return ""


def judge(views: Sequence[RankView]) -> StandstillVerdict:
    """Name the call in which most ranks wait, and the odd ranks: the stopped ones; if there are none, those outside of
    a collective while others are in one; then those behind by a step; then the few in another function or phase.
    """
    odd = _odd_ones(views)
    rest = [view for view in views if view not in odd]
    common = Counter(map(_function, rest)).most_common(1)
    first = next((view for view in rest if common and _function(view) == common[0][0]), None)
    sentences: list[str] = []
    if first:
        number = common[0][1]
        alone = len(views) == 1 or number == 1
        group = message(
            "rank {rank}" if alone else "{number} of {all} ranks", rank=first.rank, number=number, all=len(views)
        )
        where = first.state or message("waits in {place}" if number == 1 else "wait in {place}", place=place(first))
        sentences.append(message("{group} {where}{when}", group=group, where=where, when=_when(first)))
    sentences += [_sentence(view, bool(first)) for view in odd[:4]]
    if len(odd) > 4:
        sentences.append(in_number(len(odd) - 4, "{number} more rank as these", "{number} more ranks as these"))
    return StandstillVerdict(joined("; ", sentences), tuple(view.rank for view in odd))


def _sentence(view: RankView, contrast: bool) -> Message:
    state: str = message("is in {place}", place=place(view))
    if view.state:
        stopped = view.state.startswith("stopped")
        state = message(
            "is {state}, in {place}" if stopped else "{state}, in {place}", state=view.state, place=place(view)
        )
    whole = "rank {rank} does not: it {state}{when}" if contrast else "rank {rank} {state}{when}"
    return message(whole, rank=view.rank, state=state, when=_when(view))


def _odd_ones(views: Sequence[RankView]) -> list[RankView]:
    ways = (
        [view for view in views if view.state.startswith("stopped")],
        [view for view in views if not _collective(view)],
        [view for view in views if view.step < max(peer.step for peer in views)],
        _minority(views, [_function(view) for view in views]),
        _minority(views, [view.phase for view in views]),
    )
    return next((odd for odd in ways if 0 < len(odd) < len(views)), [])


def _minority(views: Sequence[RankView], marks: Sequence[str]) -> list[RankView]:
    common, number = Counter(marks).most_common(1)[0]
    few = [view for view, mark in zip(views, marks, strict=True) if mark != common]
    return few if number > len(few) else []


def _collective(view: RankView) -> bool:
    """Return true if the training thread is in a call that waits for other ranks."""
    return any(
        _COLLECTIVES.match(frame.function.rpartition(".")[2]) and _COMMUNICATION.search(frame.file)
        for frame in view.stacks.training
    )


def _when(view: RankView) -> Message:
    """Return the step and phase of a rank, if they say anything."""
    phase = message(" in the phase {phase}", phase=view.phase)
    if view.step < 0:
        return message(" before the end of its first step") if view.phase == "start" else phase
    step = message(" after step {step}", step=view.step)
    return step if view.phase == "step" else joined("", [step, phase])


def _function(view: RankView) -> str:
    return place(view).partition(" (")[0]


def _inner(file: str) -> bool:
    return file.startswith((_OURS, "<frozen")) or (file.startswith(_STANDARD) and not _installed(file))


def _installed(file: str) -> bool:
    return any(f"/{name}/" in file for name in _PACKAGES)


def _short(file: str) -> str:
    for name in _PACKAGES:
        if f"/{name}/" in file:
            return file.rpartition(f"/{name}/")[2]
    return Path(file).name


def stack_text(view: RankView, host: str, pid: int) -> str:
    """Return the text of a rank's file: facts in the first lines, then every thread, the training thread first."""
    source = view.stacks.source or f"no stacks: {view.stacks.problem}"
    lines = [
        f"rank {view.rank}, process {pid} on {host}, {source}",
        f"phase {view.phase}, last finished step {view.step}, {view.seconds:.1f} s without progress"
        + (f", {view.state}" if view.state else ""),
    ]
    for thread in sorted(view.stacks.threads, key=lambda thread: not thread.trains):
        notes = [note for note, true in (("training", thread.trains), ("holds the lock", thread.locks)) if true]
        lines += ["", f"Thread {thread.name}".rstrip() + (f" ({', '.join(notes)})" if notes else "")]
        lines += [f"    {_line(frame)}" for frame in thread.frames]
    return "\n".join(lines) + "\n"


def _line(frame: StackFrame) -> str:
    return f"{frame.function} ({frame.file}:{frame.line})"
