"""Board of the ranks of one job: progress, stragglers, and their GPUs."""

from __future__ import annotations

from boards.board import CLUSTER, CLUSTERS, JOB, JOBS, OF_RANKS, Board, Row, Variable, top
from boards.panel import FEW_POINTS, Panel, Query

RANKS = f'{JOB}, rank=~"$rank"'
MOST = 10
"""Curves of single ranks in a panel."""
RANK = "rank {{rank}}"
LAG = f"scalar(max(probe_training_step{{{JOB}}})) - max by (rank) (probe_training_step{{{RANKS}}})"
AGE = f"max by (rank) (probe_training_progress_age_seconds{{{RANKS}}} / probe_training_step_budget_seconds{{{RANKS}}})"
OUTSIDE = (
    f"max by (rank) (probe_training_outside_collectives_seconds{{{RANKS}}}) "
    f"/ scalar(quantile(0.5, probe_training_outside_collectives_seconds{{{JOB}}}))"
)
OVERHEAD = f"max by (rank) (probe_overhead_ratio{{{RANKS}}})"


def joined(metric: str) -> str:
    """Return a query of a metric of GPUs by rank."""
    return (
        f"max by (rank) (max by (gpu_uuid) ({metric}{{{CLUSTER}}}) "
        f"* on (gpu_uuid) group_right () probe_rank_info{{{RANKS}}})"
    )


NUMBERS = Row(
    "All ranks",
    (
        Panel(
            "Ranks",
            "A line a rank: where it runs, its phase, its progress, and the seconds of its last step.",
            "short",
            (
                Query(f"max by (rank, host, pid, gpu_uuid) (probe_rank_info{{{RANKS}}})", ""),
                Query(f"max by (rank) (probe_rank_up{{{RANKS}}})", "up"),
                Query(f"max by (rank, phase) (probe_training_phase{{{RANKS}}} == 1)", ""),
                Query(f"max by (rank) (probe_training_step{{{RANKS}}})", "step"),
                Query(LAG, "steps behind"),
                Query(f"max by (rank) (probe_training_step_seconds{{{RANKS}}})", "seconds of a step", "s"),
                Query(
                    f"max by (rank) (probe_training_outside_collectives_seconds{{{RANKS}}})",
                    "outside of collectives",
                    "s",
                ),
                Query(f"max by (rank) (probe_training_progress_age_seconds{{{RANKS}}})", "since progress", "s"),
                Query(f"max by (rank) (probe_training_step_budget_seconds{{{RANKS}}})", "budget", "s"),
            ),
            "table",
            24,
            9,
            first=("rank", "host", "pid", "gpu_uuid", "phase"),
        ),
    ),
)
PROGRESS = Row(
    "Progress",
    (
        Panel(
            "Ranks that are up",
            "Ranks whose process exists, and all ranks.",
            "short",
            (
                Query(f"sum(probe_rank_up{{{RANKS}}})", "up"),
                Query(f"count(probe_rank_up{{{RANKS}}})", "all"),
            ),
        ),
        Panel(
            "Steps of the first and the last rank",
            "Between ranks that train together the distance is at most a step or two.",
            "short",
            (
                Query(f"max(probe_training_step{{{RANKS}}})", "first"),
                Query(f"min(probe_training_step{{{RANKS}}})", "last"),
            ),
        ),
        Panel(
            "Steps behind the first rank",
            f"The {MOST} ranks that are the farthest behind at the end of the shown time.",
            "short",
            (Query(top(MOST, "rank", LAG), RANK),),
        ),
        Panel(
            "Ranks by phase",
            "One rank alone in a phase that takes long is the one that the others wait for.",
            "short",
            (Query(f"count by (phase) (probe_training_phase{{{RANKS}}} == 1)", "{{phase}}"),),
            stacked=True,
        ),
        Panel(
            "Time without progress",
            f"As a part of the longest that is no reason for an alert in this phase; the {MOST} largest at the end.",
            "percentunit",
            (Query(top(MOST, "rank", AGE), RANK),),
            limit=1,
        ),
        Panel(
            "Most findings",
            f"Findings of all rules since the process began, the {MOST} ranks with the most.",
            "short",
            (Query(f"topk({MOST}, sum by (rank) (probe_findings_total{{{RANKS}}}))", RANK),),
            "bars",
        ),
    ),
)
SPEED = Row(
    "Stragglers",
    (
        Panel(
            "Seconds of a step",
            "Spread over ranks. All wait for the slowest in a collective, so the times of whole steps hardly differ.",
            "s",
            tuple(
                Query(f"quantile({part}, probe_training_step_seconds{{{RANKS}}})", name)
                for part, name in ((1, "largest"), (0.9, "90 %"), (0.5, "median"), (0, "smallest"))
            ),
        ),
        Panel(
            "Time outside of collectives",
            f"By the median of all ranks: a straggler has more. The {MOST} largest at the end; needs cc_distribution.",
            "short",
            (Query(top(MOST, "rank", OUTSIDE), RANK),),
            limit=1.5,
        ),
        Panel(
            "Slowest ranks outside of collectives",
            f"Mean over the last ten minutes, the {MOST} slowest ranks.",
            "s",
            (
                Query(
                    f"topk({MOST}, max by (rank) "
                    f"(avg_over_time(probe_training_outside_collectives_seconds{{{RANKS}}}[10m])))",
                    RANK,
                ),
            ),
            "bars",
        ),
    ),
)
GPUS = Row(
    "GPUs by rank",
    (
        Panel(
            "Least utilised GPUs",
            f"The {MOST} ranks whose GPU is the least busy at the end of the shown time.",
            "percent",
            (Query(top(MOST, "rank", joined("gpu_utilization_percent"), smallest=True), RANK),),
            width=6,
            points=FEW_POINTS,
        ),
        Panel(
            "Memory of GPUs",
            f"Bytes in use on the GPUs of the {MOST} ranks that use the most at the end of the shown time.",
            "bytes",
            (Query(top(MOST, "rank", joined("gpu_memory_used_bytes")), RANK),),
            width=6,
            points=FEW_POINTS,
        ),
        Panel(
            "Temperature of GPUs",
            f"The {MOST} ranks with the hottest GPUs at the end of the shown time: heat lowers clocks.",
            "celsius",
            (Query(top(MOST, "rank", joined("gpu_temperature_celsius")), RANK),),
            width=6,
            points=FEW_POINTS,
            limit=85,
        ),
        Panel(
            "Cost of the monitor",
            f"Part of the time of training, the {MOST} largest at the end of the shown time.",
            "percentunit",
            (Query(top(MOST, "rank", OVERHEAD), RANK),),
            width=6,
        ),
    ),
)

RANKS_BOARD = Board(
    "ranks",
    "probe: ranks",
    "Progress, stragglers and GPUs of the ranks of one job.",
    (
        CLUSTERS,
        JOBS,
        Variable("rank", "Rank", f"label_values({{{OF_RANKS}, {JOB}}}, rank)", every=True, numeric=True),
    ),
    (NUMBERS, PROGRESS, SPEED, GPUS),
)
