"""Data that the page shows of jobs: aggregated by job, with the worst ranks, so that 1,000 ranks stay readable."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import Any

from probe.core.naming import STEP_SECONDS
from probe.core.run_state.heartbeat_messages import number_text, travelling
from probe.services.server.board import NUMBERS, JobView, RankSummary, RunBoard
from probe.services.server.judge import ranges
from probe.services.server.store import StoredMessage

MOST_JOBS_LISTED = 100
WORST = 20
"""Ranks of a job that are shown."""
ORDER = ("silent", "waiting", "alive", "replaced", "ended")
"""States, the worst first."""


def jobs(board: RunBoard, now: float) -> dict[str, Any]:
    """Return all jobs, those with silent ranks first, then the newest."""
    listed_jobs = sorted(board.jobs, key=lambda job: (not job.of("silent"), not job.of("alive"), -job.received))
    return {
        "jobs": [_job(job, now) for job in listed_jobs[:MOST_JOBS_LISTED]],
        "more": max(len(listed_jobs) - MOST_JOBS_LISTED, 0),
        "ranks": board.ranks,
    }


def _job(job: JobView, now: float) -> dict[str, Any]:
    last = job.curve[-1] if job.curve else None
    steps = [rank.step for rank in job.of("alive", "silent") if not math.isnan(rank.step)]
    return {
        "id": job.id,
        "job": job.job,
        "launch": job.launch,
        "world": job.world,
        "states": {state: number for state in ORDER if (number := len(job.of(state)))},
        "silent": ranges([rank.origin.rank for rank in job.of("silent")]),
        "age": round(now - job.received, 1),
        "step": number_text(last.step) if last and not math.isnan(last.step) else None,
        "behind": number_text(max(steps) - min(steps)) if steps else None,
        "loss": number_text(last.loss) if last else None,
        "grad_norm": _sent(last.grad_norm) if last else None,
        "step_seconds": _sent(last.step_seconds) if last else None,
        "events": job.events,
        "curve": [[number_text(point.step), number_text(point.loss)] for point in job.curve],
    }


def _sent(number: float | None) -> float | str | None:
    return None if number is None else number_text(number)


def worst_ranks(job: JobView, now: float) -> dict[str, Any]:
    """Return the ranks of a job that need attention: silent ones, those furthest behind, the slowest."""
    worst = sorted(job.ranks.values(), key=_urgency)[:WORST]
    return {**_job(job, now), "worst": [_rank(rank, now) for rank in worst], "processes": len(job.ranks)}


def _urgency(rank: RankSummary) -> tuple[int, bool, float, float, int]:
    broken = any(not math.isfinite(value) for value in rank.numbers.values())
    step = rank.step if math.isfinite(rank.step) else math.inf
    seconds = rank.numbers.get(STEP_SECONDS, 0.0)
    seconds = seconds if math.isfinite(seconds) else math.inf
    return ORDER.index(rank.state), not broken, step, -seconds, rank.origin.rank


def _rank(rank: RankSummary, now: float) -> dict[str, Any]:
    numbers = {name: number_text(rank.numbers[name]) for name in NUMBERS if name in rank.numbers}
    return {
        "rank": rank.origin.rank,
        "run": rank.origin.run,
        "state": rank.state,
        "age": round(now - rank.received, 1),
        "promise": number_text(rank.promise),
        "step": None if math.isnan(rank.step) else number_text(rank.step),
        "phase": rank.phase,
        **numbers,
    }


def rows(messages: Iterable[StoredMessage]) -> list[Mapping[str, Any]]:
    """Return stored messages as JSON has them."""
    return [
        {
            "id": message.id,
            **message.origin._asdict(),
            "number": message.message.number,
            "kind": message.message.kind,
            "time": message.message.time,
            "received": message.received,
            "promise": None if message.message.promise is None else number_text(message.message.promise),
            "late": message.late,
            "values": travelling(message.message.values),
        }
        for message in messages
    ]
