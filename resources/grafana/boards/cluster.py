"""Board of a cluster: jobs, alerts, GPUs, hosts, and the parts that watch them."""

from __future__ import annotations

from boards.board import ALERTS, CLUSTER, CLUSTERS, Board, Row, top
from boards.panel import FEW_POINTS, Panel, Query

WIRES = f'device!~"lo|veth.*|docker.*", {CLUSTER}'
FIRING = f"ALERTS{{{ALERTS}, {CLUSTER}}}"
GPU = "{{instance}} GPU {{gpu_id}}"
READ = f'instance!="", {CLUSTER}'
"""Matcher of series that were scraped: a record of a rule has no instance."""
LEFT_OUT_BY_EXPORTERS = (
    "unreadable_files",
    "unreadable_folders",
    "unreadable_devices",
    "unknown_series",
    "hidden_ranks",
)
RANKS_OF_GPUS = f"probe_rank_info{{{CLUSTER}}}"

NUMBERS = Row(
    "Now",
    (
        Panel(
            "Jobs",
            "Training jobs of which an exporter shows at least one rank.",
            "short",
            (Query(f"count(count by (job) (probe_rank_info{{{CLUSTER}}}))", "jobs"),),
            "number",
            4,
            4,
        ),
        Panel(
            "Ranks",
            "Ranks whose process exists, and all ranks. A rank that ended by itself is in neither.",
            "short",
            (
                Query(f"sum(probe_rank_up{{{CLUSTER}}})", "up"),
                Query(f"count(probe_rank_up{{{CLUSTER}}})", "all"),
            ),
            "number",
            4,
            4,
        ),
        Panel(
            "GPUs",
            "GPUs with a reading of their utilisation.",
            "short",
            (Query(f"count(count by (gpu_uuid) (gpu_utilization_percent{{{CLUSTER}}}))", "GPUs"),),
            "number",
            4,
            4,
        ),
        Panel(
            "Mean utilisation of GPUs",
            "Part of the time in which some kernel ran. 100 % is no sign that training makes progress.",
            "percent",
            (Query(f"avg(gpu_utilization_percent{{{CLUSTER}}})", "mean"),),
            "number",
            4,
            4,
        ),
        Panel(
            "Targets that are down",
            "Exporters and servers that Prometheus could not scrape.",
            "short",
            (Query(f"sum(1 - up{{{CLUSTER}}})", "down"),),
            "number",
            4,
            4,
            limit=1,
        ),
        Panel(
            "Alerts that fire",
            "Without the one that always fires.",
            "short",
            (Query(f"count({FIRING}) or vector(0)", "alerts"),),
            "number",
            4,
            4,
            limit=1,
        ),
    ),
)
JOBS = Row(
    "Jobs and alerts",
    (
        Panel(
            "Each job",
            "A line a job. Loss: mean over the ranks that log one. Throughput: sum over ranks, which counts a sample "
            "several times if several ranks work on it.",
            "short",
            (
                Query(f"count by (job) (probe_rank_up{{{CLUSTER}}})", "ranks"),
                Query(f"sum by (job) (probe_rank_up{{{CLUSTER}}})", "up"),
                Query(f"max by (job) (probe_training_step{{{CLUSTER}}})", "step"),
                Query(f"avg by (job) (probe_training_loss{{{CLUSTER}}})", "loss"),
                Query(f"sum by (job) (probe_training_throughput_samples_per_second{{{CLUSTER}}})", "throughput", "cps"),
                Query(
                    f"time() - max by (job) (probe_training_last_step_timestamp_seconds{{{CLUSTER}}})",
                    "since the last step",
                    "s",
                ),
                Query(f"sum by (job) (probe_findings_total{{{CLUSTER}}})", "findings"),
                Query(f"sum by (job) (probe_faults_total{{{CLUSTER}}})", "faults of the monitor"),
            ),
            "table",
            14,
        ),
        Panel(
            "Each alert",
            "Alerts of Prometheus that fire, with their labels.",
            "short",
            (Query(f"max by (alertname, severity, component, instance, job, rank) ({FIRING})", ""),),
            "table",
            10,
            empty="no alert fires",
            first=("alertname", "severity", "component", "job", "rank", "instance"),
        ),
    ),
)
GPUS = Row(
    "GPUs",
    (
        Panel(
            "Utilisation of GPUs",
            "Smallest, median and largest over all GPUs.",
            "percent",
            tuple(
                Query(f"quantile({part}, gpu_utilization_percent{{{CLUSTER}}})", name)
                for part, name in ((0, "smallest"), (0.5, "median"), (1, "largest"))
            ),
        ),
        Panel(
            "Utilisation of GPUs by job",
            "Mean over the GPUs of a job; ranks and GPUs are joined by the uuid in probe_rank_info.",
            "percent",
            (
                Query(
                    f"avg by (job) (max by (gpu_uuid) (gpu_utilization_percent{{{CLUSTER}}}) "
                    f"* on (gpu_uuid) group_right () {RANKS_OF_GPUS})",
                    "{{job}}",
                ),
            ),
            points=FEW_POINTS,
        ),
        Panel(
            "Memory of GPUs",
            "Part of the memory of a GPU that is in use: the fullest GPU and the median.",
            "percentunit",
            tuple(
                Query(
                    f"quantile({part}, gpu_memory_used_bytes{{{CLUSTER}}} / gpu_memory_total_bytes{{{CLUSTER}}})", name
                )
                for part, name in ((1, "fullest"), (0.5, "median"))
            ),
        ),
        Panel(
            "Hottest GPUs",
            "The five that are the hottest at the end of the shown time.",
            "celsius",
            (
                Query(
                    top(5, "instance, gpu_id", f"max by (instance, gpu_id) (gpu_temperature_celsius{{{CLUSTER}}})"),
                    GPU,
                ),
            ),
            width=6,
            limit=85,
        ),
        Panel(
            "Power",
            "Sum over all GPUs that measure it, and the sum of their limits.",
            "watt",
            (
                Query(f"sum(gpu_power_usage_watts{{{CLUSTER}}})", "use"),
                Query(f"sum(gpu_power_limit_watts{{{CLUSTER}}})", "limit"),
            ),
            width=6,
        ),
        Panel(
            "Throttled GPUs",
            "GPUs whose clock is lowered, by reason.",
            "short",
            (Query(f"sum by (reason) (gpu_throttle_active{{{CLUSTER}}})", "{{reason}}"),),
            width=6,
        ),
        Panel(
            "Errors of GPUs",
            "ECC errors over the life of the devices, by kind; on the right the code of the last Xid error of a GPU.",
            "short",
            (
                Query(f"sum by (kind) (gpu_ecc_errors_total{{{CLUSTER}}})", "{{kind}}"),
                Query(f"max by (instance, gpu_id) (gpu_xid_last_code{{{CLUSTER}}})", f"Xid of {GPU}", "none"),
            ),
            width=6,
        ),
    ),
)
NPUS = Row(
    "NPUs",
    (
        Panel(
            "Each NPU",
            "A line an NPU. Healthy: 1 if the driver reports that it is in order.",
            "short",
            tuple(
                Query(f"max by (instance, npu_id, npu_name) ({expression})", legend, unit)
                for expression, legend, unit in (
                    (f"npu_healthy{{{CLUSTER}}}", "healthy", "none"),
                    (f"npu_utilization_percent{{{CLUSTER}}}", "utilisation", "percent"),
                    (
                        f"npu_memory_used_bytes{{{CLUSTER}}} / npu_memory_total_bytes{{{CLUSTER}}}",
                        "memory",
                        "percentunit",
                    ),
                    (f"npu_temperature_celsius{{{CLUSTER}}}", "temperature", "celsius"),
                    (f"npu_power_usage_watts{{{CLUSTER}}}", "power", "watt"),
                    (f"npu_power_limit_watts{{{CLUSTER}}}", "limit of power", "watt"),
                )
            ),
            "table",
            24,
            empty="no NPU",
            first=("instance", "npu_id", "npu_name"),
        ),
    ),
)
HOSTS = Row(
    "Hosts",
    (
        Panel(
            "Busiest hosts",
            "Part of the processors in use: the five busiest hosts at the end of the shown time.",
            "percentunit",
            (
                Query(
                    top(5, "instance", f"max by (instance) (probe_host_cpu_utilization_ratio{{{CLUSTER}}})"),
                    "{{instance}}",
                ),
            ),
            width=6,
        ),
        Panel(
            "Memory of hosts",
            "Part of the memory that no program can get: the five fullest hosts at the end of the shown time.",
            "percentunit",
            (
                Query(
                    top(
                        5,
                        "instance",
                        f"1 - max by (instance) (probe_host_memory_available_bytes{{{CLUSTER}}} "
                        f"/ probe_host_memory_total_bytes{{{CLUSTER}}})",
                    ),
                    "{{instance}}",
                ),
            ),
            width=6,
            limit=0.9,
        ),
        Panel(
            "Fullest file systems",
            "Used part of the five fullest file systems at the end of the shown time.",
            "percentunit",
            (
                Query(
                    top(
                        5,
                        "instance, mountpoint",
                        f"1 - min by (instance, mountpoint) (probe_host_disk_free_bytes{{{CLUSTER}}} "
                        f"/ probe_host_disk_total_bytes{{{CLUSTER}}})",
                    ),
                    "{{instance}} {{mountpoint}}",
                ),
            ),
            width=6,
            limit=0.9,
        ),
        Panel(
            "Network",
            "Bytes a second of all hosts together, without those that stay on a host.",
            "Bps",
            (
                Query(f"sum(rate(probe_host_network_receive_bytes_total{{{WIRES}}}[$__rate_interval]))", "received"),
                Query(f"sum(rate(probe_host_network_transmit_bytes_total{{{WIRES}}}[$__rate_interval]))", "sent"),
            ),
            width=6,
        ),
        Panel(
            "Load of hosts",
            "Processes that run or wait, for each processor, on average over 1, 5 and 15 minutes: the most of a host.",
            "short",
            tuple(
                Query(f"max(probe_host_load{span}{{{CLUSTER}}} / probe_host_cpus{{{CLUSTER}}})", f"{span} min")
                for span in (1, 5, 15)
            ),
        ),
        Panel(
            "Swap space",
            "In use and in all, sum over hosts.",
            "bytes",
            (
                Query(f"sum(probe_host_swap_used_bytes{{{CLUSTER}}})", "used"),
                Query(f"sum(probe_host_swap_total_bytes{{{CLUSTER}}})", "all"),
            ),
        ),
        Panel(
            "File systems that do not answer",
            "Such as those of a network whose server is away.",
            "short",
            (Query(f"sum(probe_host_disk_hung{{{CLUSTER}}})", "file systems"),),
            limit=1,
        ),
    ),
)
PROGRAMS = Row(
    "Programs with a JSON file",
    (
        Panel(
            "Each program",
            "A line a job whose numbers the exporter reads from a JSON file (--json-file).",
            "short",
            tuple(
                Query(f"max by (job_name) ({expression})", legend, unit)
                for expression, legend, unit in (
                    (f"training_step{{{READ}}}", "step", ""),
                    (f"training_epoch{{{READ}}}", "epoch", ""),
                    (f"training_loss{{{READ}}}", "loss", ""),
                    (f"training_validation_loss{{{READ}}}", "validation loss", ""),
                    (f"training_accuracy{{{READ}}}", "accuracy", ""),
                    (f"training_gradient_norm{{{READ}}} or gradient_norm{{{READ}}}", "gradient norm", ""),
                    (f"training_learning_rate{{{READ}}}", "learning rate", "sci"),
                    (f"training_throughput_samples_per_second{{{READ}}}", "throughput", "cps"),
                    (f"training_step_seconds{{{READ}}}", "seconds of a step", "s"),
                    (f"time() - training_last_update_timestamp_seconds{{{READ}}}", "since the last update", "s"),
                )
            ),
            "table",
            24,
            empty="no such program",
        ),
    ),
)
NODES = Row(
    "Hosts, by the node exporter",
    (
        Panel(
            "Highest load",
            "Processes that run or wait, on average over a minute: five hosts, chosen at the end of the shown time.",
            "short",
            (Query(top(5, "instance", f"max by (instance) (node_load1{{{CLUSTER}}})"), "{{instance}}"),),
            width=6,
        ),
        Panel(
            "Busiest disks",
            "Part of the time in which a disk worked: five disks, chosen at the end of the shown time.",
            "percentunit",
            (
                Query(
                    top(
                        5,
                        "instance, device",
                        "max by (instance, device) "
                        f"(rate(node_disk_io_time_seconds_total{{{CLUSTER}}}[$__rate_interval]))",
                    ),
                    "{{instance}} {{device}}",
                ),
            ),
            width=6,
        ),
        Panel(
            "Errors of the network",
            "Packets a second of all hosts together that were damaged.",
            "pps",
            (
                Query(f"sum(rate(node_network_receive_errs_total{{{WIRES}}}[$__rate_interval]))", "received"),
                Query(f"sum(rate(node_network_transmit_errs_total{{{WIRES}}}[$__rate_interval]))", "sent"),
            ),
            width=6,
        ),
        Panel(
            "Processes killed for memory",
            "Processes of all hosts that the kernel has killed in the last hour, since memory ran out.",
            "short",
            (Query(f"sum(increase(node_vmstat_oom_kill{{{CLUSTER}}}[1h]))", "killed"),),
            width=6,
            limit=1,
        ),
    ),
)
WATCHERS = Row(
    "The parts that watch",
    (
        Panel(
            "Targets that are up",
            "Part of the targets of each scrape configuration that answer.",
            "percentunit",
            (Query(f"avg by (job) (up{{{CLUSTER}}})", "{{job}}"),),
            width=6,
        ),
        Panel(
            "Seconds of a scrape",
            "The slowest target of each scrape configuration.",
            "s",
            (Query(f"max by (job) (scrape_duration_seconds{{{CLUSTER}}})", "{{job}}"),),
            width=6,
        ),
        Panel(
            "Faults of the watching parts",
            "Errors inside the monitor, series that a rank left out, and exporters whose driver does not answer.",
            "short",
            (
                Query(f"sum(probe_faults_total{{{CLUSTER}}})", "faults"),
                Query(f"sum(probe_series_dropped{{{CLUSTER}}})", "series left out"),
                Query(f"sum(probe_exporter_probe_hung{{{CLUSTER}}})", "exporters with a hung driver"),
            ),
            width=6,
        ),
        Panel(
            "Ranks that send heartbeats",
            "Processes by state, as the heartbeat server sees them.",
            "short",
            (Query(f"sum by (state) (probe_job_ranks{{{CLUSTER}}})", "{{state}}"),),
            width=6,
            stacked=True,
        ),
        Panel(
            "Sources of exporters",
            "Time since the last reading of each source, and that of a scrape: the longest of an exporter.",
            "s",
            (
                Query(f"max by (source) (probe_exporter_reading_age_seconds{{{CLUSTER}}})", "{{source}}"),
                Query(f"max(probe_exporter_scrape_seconds{{{CLUSTER}}})", "scrape"),
            ),
            width=6,
        ),
        Panel(
            "Failures of exporters",
            "In the last hour: processes of a source that were started, and readings that could not be understood; "
            "what cannot be read now.",
            "short",
            (
                Query(
                    f"sum by (probe) (increase(probe_exporter_probe_starts_total{{{CLUSTER}}}[1h]))", "start {{probe}}"
                ),
                Query(f"sum(increase(probe_exporter_malformed_readings_total{{{CLUSTER}}}[1h]))", "malformed"),
                *(
                    Query(f"sum(probe_exporter_{name}{{{CLUSTER}}})", name.replace("_", " "))
                    for name in LEFT_OUT_BY_EXPORTERS
                ),
            ),
            width=6,
        ),
        Panel(
            "What exporters serve",
            "GPUs and NPUs that are read; on the right scrapes a second.",
            "short",
            (
                Query(f"sum(probe_exporter_devices{{{CLUSTER}}})", "devices"),
                Query(f"sum(rate(probe_exporter_scrapes_total{{{CLUSTER}}}[$__rate_interval]))", "scrapes", "reqps"),
            ),
            width=6,
        ),
        Panel(
            "Remediation",
            "Services whose workers all run, actions that wait and run, actions that are not rehearsed only; in the "
            "last hour actions by state, alerts by result, and entries of the history that could not be written.",
            "short",
            (
                *(
                    Query(f"sum(probe_remediation_{name}{{{CLUSTER}}})", name.replace("_", " "))
                    for name in ("up", "waiting", "running", "action_live")
                ),
                Query(
                    f"sum by (state) (increase(probe_remediation_actions_total{{{CLUSTER}}}[1h]))", "actions {{state}}"
                ),
                Query(
                    f"sum by (result) (increase(probe_remediation_alerts_total{{{CLUSTER}}}[1h]))", "alerts {{result}}"
                ),
                Query(
                    f"sum by (status) (increase(probe_remediation_requests_total{{{CLUSTER}}}[1h]))",
                    "requests {{status}}",
                ),
                Query(f"sum(increase(probe_remediation_history_failures_total{{{CLUSTER}}}[1h]))", "not written"),
                Query(
                    f"time() - max(probe_remediation_last_webhook_timestamp_seconds{{{CLUSTER}}})",
                    "since the last request",
                    "s",
                ),
            ),
            width=6,
        ),
    ),
)
SERVER = Row(
    "The heartbeat server",
    (
        Panel(
            "Requests of the heartbeat server",
            "Answers a second by status.",
            "reqps",
            (
                Query(
                    f"sum by (status) (rate(probe_server_requests_total{{{CLUSTER}}}[$__rate_interval]))", "{{status}}"
                ),
            ),
            width=6,
        ),
        Panel(
            "Messages of ranks",
            "Messages a second: stored, or known already; on the right jobs.",
            "cps",
            (
                Query(
                    f"sum by (result) (rate(probe_server_messages_total{{{CLUSTER}}}[$__rate_interval]))", "{{result}}"
                ),
                Query(f"sum(probe_server_jobs{{{CLUSTER}}})", "jobs", "none"),
            ),
            width=6,
        ),
        Panel(
            "Seconds of a commit",
            "Mean time of a transaction of the server's database.",
            "s",
            (
                Query(
                    f"sum(rate(probe_server_commit_seconds_total{{{CLUSTER}}}[$__rate_interval])) "
                    f"/ sum(rate(probe_server_commits_total{{{CLUSTER}}}[$__rate_interval]))",
                    "mean",
                ),
            ),
            width=6,
        ),
        Panel(
            "Requests that wait for a commit",
            "Those that wait now, and transactions of the last hour that failed.",
            "short",
            (
                Query(f"sum(probe_server_waiting{{{CLUSTER}}})", "waiting"),
                Query(f"sum(increase(probe_server_commit_failures_total{{{CLUSTER}}}[1h]))", "failed"),
            ),
            width=6,
        ),
    ),
)

CLUSTER_BOARD = Board(
    "cluster",
    "probe: cluster",
    "Jobs, alerts, GPUs and hosts of a cluster, and the parts that watch them.",
    (CLUSTERS,),
    (NUMBERS, JOBS, GPUS, NPUS, HOSTS, PROGRAMS, NODES, WATCHERS, SERVER),
)
