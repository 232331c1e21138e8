"""State of the server and of its jobs in the text format of Prometheus, with a bounded number of lines.

Format: https://prometheus.io/docs/instrumenting/exposition_formats/
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence

from probe.services.server.board import JobView, RunBoard
from probe.services.server.store import HeartbeatStore

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
MOST_JOBS_SHOWN = 100
"""Jobs with lines of their own: those with the newest messages."""
STATES = ("alive", "waiting", "silent", "ended", "replaced")
JOB_GAUGES = {
    "step": "Step of the rank that stands for the job.",
    "loss": "Loss at that step.",
    "grad_norm": "Gradient norm at that step.",
    "step_seconds": "Seconds that the step took.",
}

Sample = tuple[Mapping[str, str], float]


def exposition(store: HeartbeatStore, board: RunBoard, counts: Counter[tuple[str, str]]) -> str:
    """Return the page of ``/metrics``."""
    return "".join(_lines(store, board, counts))


def _lines(store: HeartbeatStore, board: RunBoard, counts: Counter[tuple[str, str]]) -> Iterator[str]:
    requests = [({"status": status}, count) for (name, status), count in sorted(counts.items()) if name == "requests"]
    messages = [({"result": kind}, count) for (name, kind), count in sorted(counts.items()) if name == "messages"]
    yield from _family("probe_server_requests_total", "counter", "Answers by status.", requests)
    yield from _family("probe_server_messages_total", "counter", "Messages: stored, or known already.", messages)
    yield from _family("probe_server_commits_total", "counter", "Transactions.", [({}, store.commits)])
    yield from _family(
        "probe_server_commit_seconds_total", "counter", "Seconds in transactions.", [({}, store.commit_seconds)]
    )
    yield from _family("probe_server_commit_failures_total", "counter", "Failed transactions.", [({}, store.failures)])
    yield from _family("probe_server_waiting", "gauge", "Requests that wait for a commit.", [({}, store.waiting)])
    yield from _family("probe_server_jobs", "gauge", "Jobs.", [({}, len(list(board.jobs)))])
    jobs = sorted(board.jobs, key=lambda job: -job.received)[:MOST_JOBS_SHOWN]
    ranks = [({**_names(job), "state": state}, len(job.of(state))) for job in jobs for state in STATES]
    yield from _family("probe_job_ranks", "gauge", "Processes of a job by state.", ranks)
    for place, (name, help_text) in enumerate(JOB_GAUGES.items()):
        points = [(_names(job), job.curve[-1][place]) for job in jobs if job.curve]
        samples = [(names, value) for names, value in points if value is not None]
        yield from _family(f"probe_job_{name}", "gauge", help_text, samples)
    stages = [({**_names(job), "stage": stage}, value) for job in jobs for stage, value in sorted(job.stages.items())]
    yield from _family("probe_job_stage_seconds", "gauge", "Seconds of a stage of start-up or of a step.", stages)


def _names(job: JobView) -> Mapping[str, str]:
    return {"job": job.job, "launch": job.launch, "id": job.id}


def _family(name: str, kind: str, help_text: str, samples: Sequence[Sample]) -> Iterator[str]:
    yield f"# HELP {name} {help_text}\n# TYPE {name} {kind}\n"
    for labels, value in samples:
        text = ",".join(f'{label}="{_escaped(name)}"' for label, name in labels.items())
        yield f"{name}{'{' + text + '}' if text else ''} {_number(value)}\n"


def _escaped(text: str) -> str:
    return text.replace("\\", r"\\").replace('"', r"\"").replace("\n", r"\n")


def _number(value: float) -> str:
    if math.isfinite(value):
        return repr(value)
    return "NaN" if math.isnan(value) else "+Inf" if value > 0 else "-Inf"
