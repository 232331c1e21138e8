"""Board of one job: learning, speed, and the health of ranks and monitor."""

from __future__ import annotations

from boards.board import CLUSTER, CLUSTERS, JOB, JOBS, OF_RANKS, Board, Row
from boards.panel import FEW_POINTS, Panel, Query

OF_JOBS = OF_RANKS.replace('"probe_rank', '"probe_job_ranks|probe_rank')
JOBS_WITH_HEARTBEATS = JOBS._replace(query=JOBS.query.replace(OF_RANKS, OF_JOBS))
"""Choice of a job, also of one of which heartbeats alone are known."""
GPUS_OF_RANKS = f"* on (gpu_uuid) group_right () probe_rank_info{{{JOB}}}"

NUMBERS = Row(
    "Now",
    (
        Panel(
            "Step",
            "Last step that some rank has finished.",
            "short",
            (Query(f"max(probe_training_step{{{JOB}}})", "step"),),
            "number",
            4,
            4,
        ),
        Panel(
            "Mean loss",
            "Mean over the ranks that log one.",
            "short",
            (Query(f"avg(probe_training_loss{{{JOB}}})", "loss"),),
            "number",
            4,
            4,
        ),
        Panel(
            "Ranks",
            "Ranks whose process exists, and all ranks.",
            "short",
            (Query(f"sum(probe_rank_up{{{JOB}}})", "up"), Query(f"count(probe_rank_up{{{JOB}}})", "all")),
            "number",
            4,
            4,
        ),
        Panel(
            "Since the last step",
            "Time since some rank has finished a step.",
            "s",
            (Query(f"time() - max(probe_training_last_step_timestamp_seconds{{{JOB}}})", "seconds"),),
            "number",
            4,
            4,
        ),
        Panel(
            "Part of the budget",
            "Time without progress of the slowest rank as a part of the longest that is no reason for an alert.",
            "percentunit",
            (
                Query(
                    f"max(probe_training_progress_age_seconds{{{JOB}}} / probe_training_step_budget_seconds{{{JOB}}})",
                    "part",
                ),
            ),
            "number",
            4,
            4,
            limit=1,
        ),
        Panel(
            "Findings",
            "Findings of all rules on all ranks since the processes began.",
            "short",
            (Query(f"sum(probe_findings_total{{{JOB}}})", "findings"),),
            "number",
            4,
            4,
            limit=1,
        ),
    ),
)
LEARNING = Row(
    "Learning",
    (
        Panel(
            "Loss",
            "Smallest, mean and largest over ranks. The mean is missing while a rank has NaN.",
            "short",
            (
                Query(f"avg(probe_training_loss{{{JOB}}})", "mean"),
                Query(f"min(probe_training_loss{{{JOB}}})", "smallest"),
                Query(f"max(probe_training_loss{{{JOB}}})", "largest"),
            ),
        ),
        Panel(
            "Loss and learning rate",
            "The learning rate has the axis on the right: a loss that rises with it points at the schedule.",
            "short",
            (
                Query(f"avg(probe_training_loss{{{JOB}}})", "loss"),
                Query(f"max(probe_training_learning_rate{{{JOB}}})", "learning rate", "sci"),
            ),
        ),
        Panel(
            "Validation loss",
            "Last loss on validation data beside that of training: a growing distance is overfitting.",
            "short",
            (
                Query(f"avg(probe_training_validation_loss{{{JOB}}})", "validation"),
                Query(f"avg(probe_training_loss{{{JOB}}})", "training"),
            ),
        ),
        Panel(
            "Perplexity and accuracy",
            "Perplexity: e to the validation loss, right if that is a cross entropy in nats. Accuracy: as the program "
            "logs it.",
            "short",
            (
                Query(f"exp(avg(probe_training_validation_loss{{{JOB}}}))", "perplexity"),
                Query(f"avg(probe_training_accuracy{{{JOB}}})", "accuracy", "none"),
            ),
        ),
        Panel(
            "Gradient norm",
            "Norm of all gradients: the largest and the median over ranks.",
            "short",
            (
                Query(f"max(probe_training_gradient_norm{{{JOB}}})", "largest"),
                Query(f"quantile(0.5, probe_training_gradient_norm{{{JOB}}})", "median"),
            ),
            logarithmic=True,
        ),
        Panel(
            "Loss scale and skipped steps",
            "Factor of the gradient scaler, and the steps of the last five minutes whose update it has skipped.",
            "short",
            (
                Query(f"min(probe_training_loss_scale{{{JOB}}})", "loss scale"),
                Query(f"max(increase(probe_training_skipped_steps_total{{{JOB}}}[5m]))", "skipped steps", "none"),
            ),
        ),
    ),
)
SPEED = Row(
    "Speed",
    (
        Panel(
            "Throughput",
            "Sum over ranks. A sample that several ranks work on counts several times.",
            "cps",
            (
                Query(f"sum(probe_training_throughput_samples_per_second{{{JOB}}})", "samples"),
                Query(f"sum(probe_training_throughput_tokens_per_second{{{JOB}}})", "tokens", "ops"),
            ),
        ),
        Panel(
            "Floating-point operations",
            "Operations of the model a second, sum over ranks; needs run.flops_per_step.",
            "flops",
            (Query(f"sum(probe_training_model_flops_per_second{{{JOB}}})", "model"),),
        ),
        Panel(
            "Samples and tokens of a step",
            "Sum over ranks of that which the program logs as batch_size and tokens.",
            "short",
            (
                Query(f"sum(probe_training_batch_size_samples{{{JOB}}})", "samples"),
                Query(f"sum(probe_training_batch_size_tokens{{{JOB}}})", "tokens", "none"),
            ),
        ),
        Panel(
            "Seconds of a step",
            "Time from the end of a step to the end of the next: smallest, median and largest over ranks; on the right "
            "steps a second.",
            "s",
            (
                *(
                    Query(f"quantile({part}, probe_training_step_seconds{{{JOB}}})", name)
                    for part, name in ((1, "largest"), (0.5, "median"), (0, "smallest"))
                ),
                Query(f"avg(rate(probe_training_steps_total{{{JOB}}}[$__rate_interval]))", "steps a second", "ops"),
            ),
        ),
        Panel(
            "Time by phase",
            "Part of the time of all ranks that is spent in each phase.",
            "percentunit",
            (
                Query(
                    f"sum by (phase) (rate(probe_training_phase_seconds_total{{{JOB}}}[$__rate_interval])) "
                    f"/ scalar(count(probe_rank_up{{{JOB}}}))",
                    "{{phase}}",
                ),
            ),
            stacked=True,
        ),
        Panel(
            "Utilisation of its GPUs",
            "Smallest, median and largest over the GPUs of the job; joined by the uuid in probe_rank_info.",
            "percent",
            tuple(
                Query(
                    f"quantile({part}, max by (gpu_uuid) (gpu_utilization_percent{{{CLUSTER}}}) {GPUS_OF_RANKS})", name
                )
                for part, name in ((0, "smallest"), (0.5, "median"), (1, "largest"))
            ),
            points=FEW_POINTS,
        ),
    ),
)
HEALTH = Row(
    "Health",
    (
        Panel(
            "Findings by rule",
            "Findings since the processes began, sum over ranks.",
            "short",
            (Query(f"sum by (rule) (probe_findings_total{{{JOB}}})", "{{rule}}"),),
        ),
        Panel(
            "Ranks without a number",
            "Ranks whose loss or gradient norm is NaN.",
            "short",
            tuple(
                Query(f"sum(probe_training_{name}{{{JOB}}} != bool probe_training_{name}{{{JOB}}})", text)
                for name, text in (("loss", "loss"), ("gradient_norm", "gradient norm"))
            ),
            limit=1,
        ),
        Panel(
            "Other numbers",
            "Numbers that the program logs under names of its own, mean over ranks.",
            "short",
            (Query(f"avg by (name) (probe_training_number{{{JOB}}})", "{{name}}"),),
        ),
        Panel(
            "Cost of the monitor",
            "Time of the monitor as a part of the time that training takes without it: mean and largest over ranks.",
            "percentunit",
            (
                Query(f"avg(probe_overhead_ratio{{{JOB}}})", "mean"),
                Query(f"max(probe_overhead_ratio{{{JOB}}})", "largest"),
            ),
        ),
        Panel(
            "Faults of the monitor",
            "Errors inside the monitor, from which training went on, and series that a rank left out.",
            "short",
            (
                Query(f"sum(probe_faults_total{{{JOB}}})", "faults"),
                Query(f"sum(probe_series_dropped{{{JOB}}})", "series left out"),
            ),
        ),
        Panel(
            "Ranks by phase",
            "Ranks that are in each phase.",
            "short",
            (Query(f"count by (phase) (probe_training_phase{{{JOB}}} == 1)", "{{phase}}"),),
            stacked=True,
        ),
    ),
)
HEARTBEATS = Row(
    "Heartbeats, by the heartbeat server",
    (
        Panel(
            "Loss by heartbeats",
            "Loss of the rank that stands for the job; on the right the norm of its gradients.",
            "short",
            (
                Query(f"max by (launch) (probe_job_loss{{{JOB}}})", "loss {{launch}}"),
                Query(f"max by (launch) (probe_job_grad_norm{{{JOB}}})", "gradient norm {{launch}}", "none"),
            ),
            width=6,
        ),
        Panel(
            "Step by heartbeats",
            "Step of the rank that stands for the job.",
            "short",
            (Query(f"max by (launch) (probe_job_step{{{JOB}}})", "{{launch}}"),),
            width=6,
        ),
        Panel(
            "Seconds of a step by heartbeats",
            "Of the rank that stands for the job.",
            "s",
            (Query(f"max by (launch) (probe_job_step_seconds{{{JOB}}})", "{{launch}}"),),
            width=6,
        ),
        Panel(
            "Seconds of stages",
            "Stages of start-up and of a step as heartbeats have them: numbers of init_time and stage_time, and those "
            "of train_metrics that are called ..._time or ..._seconds.",
            "s",
            (Query(f"max by (stage) (probe_job_stage_seconds{{{JOB}}})", "{{stage}}"),),
            width=6,
        ),
    ),
)

JOB_BOARD = Board(
    "job",
    "probe: job",
    "Learning, speed and health of one training job.",
    (CLUSTERS, JOBS_WITH_HEARTBEATS),
    (NUMBERS, LEARNING, SPEED, HEALTH, HEARTBEATS),
)
