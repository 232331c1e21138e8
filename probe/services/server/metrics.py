"""State of the server and of its jobs for Prometheus, with a bounded number of lines."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from prometheus_client.core import Metric

from probe.services.server.board import JobView, RunBoard
from probe.services.server.store import HeartbeatStore
from probe.services.web.prometheus import Samples, counter, gauge, page

MOST_JOBS_SHOWN = 100
"""Jobs with lines of their own: those with the newest messages."""
STATES = ("alive", "waiting", "silent", "ended", "replaced")
JOB_GAUGES = {
    "step": "Step of the rank that stands for the job.",
    "loss": "Loss at that step.",
    "grad_norm": "Gradient norm at that step.",
    "step_seconds": "Seconds that the step took.",
}
NAMES = ("job", "launch", "id")
"""Labels of a job."""


def exposition(store: HeartbeatStore, board: RunBoard, counts: Counter[tuple[str, str]]) -> bytes:
    """Return the page of ``/metrics``."""
    return page([*_of_server(store, board, counts), *_of_jobs(board)])


def _of_server(store: HeartbeatStore, board: RunBoard, counts: Counter[tuple[str, str]]) -> Iterator[Metric]:
    def counted(kind: str) -> Samples:
        return [((label,), count) for (name, label), count in sorted(counts.items()) if name == kind]

    yield counter("probe_server_requests_total", "Answers by status.", counted("requests"), ["status"])
    yield counter("probe_server_messages_total", "Messages: stored, or known already.", counted("messages"), ["result"])
    yield counter("probe_server_commits_total", "Transactions.", store.commits)
    yield counter("probe_server_commit_seconds_total", "Seconds in transactions.", store.commit_seconds)
    yield counter("probe_server_commit_failures_total", "Failed transactions.", store.failures)
    yield gauge("probe_server_waiting", "Requests that wait for a commit.", store.waiting)
    yield gauge("probe_server_jobs", "Jobs.", len(list(board.jobs)))


def _of_jobs(board: RunBoard) -> Iterator[Metric]:
    jobs = sorted(board.jobs, key=lambda job: -job.received)[:MOST_JOBS_SHOWN]
    ranks = [((*_names(job), state), len(job.of(state))) for job in jobs for state in STATES]
    yield gauge("probe_job_ranks", "Processes of a job by state.", ranks, [*NAMES, "state"])
    for place, (name, help_text) in enumerate(JOB_GAUGES.items()):
        points = [(_names(job), job.curve[-1][place]) for job in jobs if job.curve]
        samples = [(names, value) for names, value in points if value is not None]
        yield gauge(f"probe_job_{name}", help_text, samples, NAMES)
    stages = [((*_names(job), stage), seconds) for job in jobs for stage, seconds in sorted(job.stages.items())]
    yield gauge("probe_job_stage_seconds", "Seconds of a stage of start-up or of a step.", stages, [*NAMES, "stage"])


def _names(job: JobView) -> tuple[str, str, str]:
    return job.job, job.launch, job.id
