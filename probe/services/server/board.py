"""State of all jobs and ranks as their messages describe it: in memory, of bounded size."""

from __future__ import annotations

import hashlib
import math
from collections import deque
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Literal, NamedTuple

from probe.core.naming import GRAD_NORM, LEARNING_RATE, LOSS, STEP_SECONDS, THROUGHPUT
from probe.core.run_state.heartbeat_messages import ENDED, EVENTS, HeartbeatBatch, HeartbeatMessage, Origin, Value

MOST_JOBS = 1_000
"""Most jobs at one time."""
MOST_RANKS = 20_000
"""Most processes of all jobs at one time."""
POINTS = 300
"""Points of a curve."""
MOST_FORGOTTEN = 256
"""Most silent processes that make room at one time."""
FULL_SECONDS = 1.0
"""Time after a search for room in vain in which there is none again: each looks at every process."""
LIVE = ("alive", "waiting")
"""States in which a rank is judged by its promise."""

Liveness = Literal["alive", "waiting", "silent", "ended", "replaced"]
"""``waiting``: not seen since this server started; ``replaced``: another process has taken this rank's place."""

NUMBERS = {
    LOSS: (LOSS, "train_loss"),
    GRAD_NORM: (GRAD_NORM, "grad_norm_"),
    STEP_SECONDS: (STEP_SECONDS, "fwd_bwd_time", "step_time"),
    THROUGHPUT: (THROUGHPUT, "tgs"),
    LEARNING_RATE: (LEARNING_RATE, "lr"),
}
"""Numbers that are shown, each by the names under which runs send it; a name that ends in ``_`` is a beginning."""
TIMED_KINDS = ("init_time", "stage_time")
"""Kinds of messages whose numbers are seconds of stages."""
TIMED_ENDS = ("_time", "_seconds")
"""Ends of the names of numbers that are, in any message, seconds of stages."""
MOST_STAGES = 50
"""Most stages of a job."""
STEPS = ("step", "global_step", "batch_count")
"""Names under which runs send the number of the step."""
COUNTS = (*STEPS, "epoch")
"""Names of numbers that are no seconds, whatever the kind of the message."""


class Point(NamedTuple):
    """Point of the curves of a job."""

    step: float
    loss: float
    grad_norm: float | None
    step_seconds: float | None
    """None where it was not sent."""


@dataclass
class RankSummary:
    """State of one process."""

    origin: Origin
    received: float
    """Time of the last message, by this server's monotonic clock."""
    promise: float = math.inf
    deadline: float = math.inf
    """Time by the same clock at which it is silent if no message has come."""
    state: Liveness = "alive"
    number: int = -1
    """Highest number of its messages so far: after its end, a message that was sent again is no sign of life."""
    step: float = math.nan
    phase: str = ""
    numbers: dict[str, float] = field(default_factory=dict)


@dataclass
class JobView:
    """State of one launch of a job."""

    id: str
    job: str
    launch: str
    ranks: dict[tuple[int, str], RankSummary] = field(default_factory=dict)
    """Processes by rank and run."""
    runs: dict[int, list[str]] = field(default_factory=dict)
    """Processes of each rank, in the order of their first messages."""
    curve: deque[Point] = field(default_factory=lambda: deque(maxlen=POINTS))
    stages: dict[str, float] = field(default_factory=dict)
    """Seconds of stages by name: those of the process that stands for the job, before there is one of any."""
    leader: tuple[int, str] | None = None
    """Process whose numbers stand for the job: that of the lowest rank that has a loss."""
    events: int = 0
    """Findings and exceptions since this server started."""

    @property
    def world(self) -> int:
        """Number of ranks that the job has by its own account."""
        return max((rank.origin.world for rank in self.ranks.values()), default=0)

    @property
    def received(self) -> float:
        """Time of the last message."""
        return max((rank.received for rank in self.ranks.values()), default=0.0)

    def of(self, *states: str) -> list[RankSummary]:
        """Return the processes in one of ``states``, in the order of their ranks."""
        return [self.ranks[key] for key in sorted(key for key, rank in self.ranks.items() if rank.state in states)]


class RunBoard:
    """State of all jobs."""

    def __init__(self, keep_seconds: float) -> None:
        self._keep_seconds = keep_seconds
        self._jobs: dict[tuple[str, str], JobView] = {}
        self._number, self._swept, self._full_until = 0, -math.inf, -math.inf

    @property
    def jobs(self) -> Iterable[JobView]:
        """All jobs."""
        return self._jobs.values()

    @property
    def ranks(self) -> int:
        """Number of processes."""
        return self._number

    def job(self, identity: str) -> JobView | None:
        """Return the job with the id ``identity``."""
        return next((job for job in self._jobs.values() if job.id == identity), None)

    def view_of(self, origin: Origin) -> JobView | None:
        """Return the job of ``origin``."""
        return self._jobs.get((origin.job, origin.launch))

    def admit(self, origin: Origin, now: float, late: bool = False) -> RankSummary | None:
        """Return the state of a process, made if it is new; None if there are too many that live. A new process takes
        the place of others with its rank, unless it is ``late``, which means ended."""
        job = self._jobs.get((origin.job, origin.launch))
        key = (origin.rank, origin.run)
        if job is not None and (rank := job.ranks.get(key)) is not None:
            return rank
        if self._is_full(job):
            self._make_room(job, now)
            if self._is_full(job):
                return None
        if job is None:
            identity = hashlib.sha256(f"{origin.job}\0{origin.launch}".encode()).hexdigest()[:16]
            job = self._jobs[origin.job, origin.launch] = JobView(identity, origin.job, origin.launch)
        runs = job.runs.setdefault(origin.rank, [])
        for earlier in [] if late else [job.ranks[origin.rank, run] for run in runs]:
            if earlier.state != "ended":
                earlier.state, earlier.deadline = "replaced", math.inf
        runs.append(origin.run)
        self._number += 1
        rank = job.ranks[key] = RankSummary(origin, now)
        return rank

    def receive(self, rank: RankSummary, batch: HeartbeatBatch, now: float) -> None:
        """Note that a process lives, before anything is stored: a full disk here is no silence there. Of one that has
        ended or was replaced only a message that is newer than all before is a sign of life."""
        newest = max(message.number for message in batch.messages)
        is_new, rank.number = newest > rank.number, max(newest, rank.number)
        if batch.late:
            rank.state, rank.deadline = "ended", math.inf
            return
        if rank.state in ("ended", "replaced") and not is_new:
            return
        promises = [message.promise for message in batch.messages if message.promise is not None]
        rank.promise = promises[-1] if promises else rank.promise
        rank.received, rank.deadline, rank.state = now, now + rank.promise, "alive"
        last = batch.messages[-1]
        if last.kind == "progress" and last.values.get("state") == ENDED["state"]:
            rank.state, rank.deadline = "ended", math.inf

    def apply(self, rank: RankSummary, message: HeartbeatMessage) -> bool:
        """Take the numbers of a message over; return whether it adds a point to the curves of its job."""
        if message.kind in EVENTS:
            return False
        values = message.values
        if isinstance(phase := values.get("phase"), str):
            rank.phase = phase[:80]
        if (step := _number(values, STEPS)) is not None:
            rank.step = step
        new_numbers = {name: value for name, names in NUMBERS.items() if (value := _number(values, names)) is not None}
        rank.numbers.update(new_numbers)
        job = self.view_of(rank.origin)
        key = (rank.origin.rank, rank.origin.run)
        if job is not None and job.leader in (None, key):
            _time_stages(job, message)
        if job is None or LOSS not in new_numbers:
            return False
        leader = job.ranks.get(job.leader) if job.leader is not None else None
        if leader is None or leader.state in ("ended", "replaced") or key[0] < leader.origin.rank:
            job.leader = key
        if job.leader != key:
            return False
        numbers = rank.numbers
        job.curve.append(Point(rank.step, numbers[LOSS], numbers.get(GRAD_NORM), numbers.get(STEP_SECONDS)))
        return True

    def restore(self, origin: Origin, message: HeartbeatMessage, late: bool, now: float) -> None:
        """Take over a message of the time before this server started: its rank gets all of its promise again. Where
        there is no room, the oldest give way."""
        rank = self.admit(origin, now, late)
        if rank is None:
            job = self.view_of(origin)
            self._forget_silent([view for view in self._jobs.values() if view is not job], "waiting")
            rank = self.admit(origin, now, late)
        if rank is None:
            return
        self.receive(rank, HeartbeatBatch(origin, (message,), late), now)
        rank.state = "waiting" if rank.state == "alive" else rank.state
        self.apply(rank, message)

    def sweep(self, now: float, every: float = 60.0) -> None:
        """Forget processes without messages for long."""
        if now - self._swept < every:
            return
        self._swept = now
        old = [rank for rank in self.each_rank() if now - rank.received > self._keep_seconds]
        self._forget(old)

    def _is_full(self, job: JobView | None) -> bool:
        return self._number >= MOST_RANKS or (job is None and len(self._jobs) >= MOST_JOBS)

    def _make_room(self, job: JobView | None, now: float) -> None:
        """Forget processes that have ended; if there are none, the longest silent ones of launches of which nothing
        lives: a launch that was killed must not hold the places of the next."""
        if now < self._full_until:
            return
        self._forget([rank for rank in self.each_rank() if rank.state in ("ended", "replaced")])
        if self._is_full(job):
            self._forget_silent([view for view in self._jobs.values() if not view.of(*LIVE)], "silent")
        if self._is_full(job):
            self._full_until = now + FULL_SECONDS

    def _forget_silent(self, jobs: Iterable[JobView], state: Liveness) -> None:
        """Forget the processes of ``jobs`` in a state with the oldest last messages, those of a launch together."""
        dead = sorted(
            (rank for job in jobs for rank in job.of(state)),
            key=lambda rank: (rank.received, rank.origin.job, rank.origin.launch),
        )
        self._forget(dead[:MOST_FORGOTTEN])

    def _forget(self, ranks: Iterable[RankSummary]) -> None:
        for rank in ranks:
            origin = rank.origin
            job = self._jobs[origin.job, origin.launch]
            del job.ranks[origin.rank, origin.run]
            job.runs[origin.rank].remove(origin.run)
            self._number -= 1
            if not job.ranks:
                del self._jobs[origin.job, origin.launch]

    def each_rank(self) -> Iterator[RankSummary]:
        """Yield every process."""
        for job in self._jobs.values():
            yield from job.ranks.values()


def _time_stages(job: JobView, message: HeartbeatMessage) -> None:
    """Take the seconds of stages over."""
    for name, value in message.values.items():
        timed = (message.kind in TIMED_KINDS and name not in COUNTS) or name.endswith(TIMED_ENDS)
        if not timed or isinstance(value, bool) or not isinstance(value, int | float):
            continue
        stage = name.removeprefix("phase/").removesuffix(TIMED_ENDS[0]).removesuffix(TIMED_ENDS[1])
        if stage in job.stages or len(job.stages) < MOST_STAGES:
            job.stages[stage] = float(value)


def _number(values: Mapping[str, Value], names: Iterable[str]) -> float | None:
    """Return the first of ``values`` with one of ``names`` that is a number."""
    for name in names:
        if name.endswith("_"):
            candidate: Value = next((value for key, value in values.items() if key.startswith(name)), None)
        else:
            candidate = values.get(name)
        if isinstance(candidate, int | float) and not isinstance(candidate, bool):
            return float(candidate)
    return None
