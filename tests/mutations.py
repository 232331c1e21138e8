"""A hundred deliberate breaks over all rooms, which the tests named beside each must notice.

``python -m tests.mutations`` makes each in a copy of the tree, one after the other, and prints it with the first test
that fails. The exit code is 1 if one was not noticed, or if its tests fail without it, too, which proves nothing. With
``--tests TREE`` the tests are those of another tree.

Raises:
    ValueError: if a text that is to be broken is not there exactly once.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parents[1]
SECONDS = 300.0
"""After which a break counts as noticed: it hangs the tests."""


class Mutation(NamedTuple):
    """A break: in ``file``, ``old`` becomes ``new``."""

    file: str
    """Below ``probe``, or below the tree if it begins with ``resources``."""
    old: str
    new: str
    tests: str
    """Names of the test files, some of which may be gone or new in another tree."""
    only: str = ""
    """Which of their tests, as ``-k`` of pytest takes it."""


MUTATIONS = (
    # what flows
    Mutation("core/moments.py", "apart = [(shard[\"sum\"] / count - mean", "apart = [(shard[\"sum\"] / count + mean", "test_moments.py", "merge"),
    Mutation("core/moments.py", "value if name in (\"min\", \"max\") else value * times", "value * times", "test_moments.py", "copies"),
    Mutation("core/moments.py", "np.inf if name == \"min\" else -np.inf", "0.0", "test_merging.py test_moments.py test_histogram.py core/test_global_stats.py core/distributed/test_global_stats.py"),
    Mutation("core/histogram.py", "np.clip(exponents, LOW - 1, HIGH) - LOW + 2", "np.clip(exponents, LOW - 1, HIGH) - LOW + 1", "test_histogram.py"),
    Mutation("core/histogram.py", "low * (1 - part) + high * part", "low * part + high * (1 - part)", "test_histogram.py"),
    Mutation("core/histogram.py", "q * np.maximum(totals - 1, 0)", "q * np.maximum(totals, 0)", "test_histogram.py"),
    # backend
    Mutation("core/backend/numpy_moments.py", "total += float(np.dot(apart * apart, counts))", "total += float(np.dot(apart, counts))", "test_moments.py test_array_moments.py test_numpy_moments.py", "numpy or compiled or NumPy"),
    Mutation("core/backend/numpy_moments.py", "return max(_sum_of_squares(shifted) - x.size * off * off, 0.0)", "return max(_sum_of_squares(shifted) + x.size * off, 0.0)", "test_moments.py test_array_moments.py test_numpy_moments.py", "numpy or NumPy"),
    Mutation("core/backend/numpy_moments.py", "block.mean = float(centre) + off", "block.mean = float(centre) - 1e-4", "test_moments.py test_array_moments.py test_numpy_moments.py", "numpy or NumPy"),
    Mutation("core/backend/numpy_moments.py", "np.abs(flat) < eps", "np.abs(flat) <= eps", "test_moments.py test_array_moments.py test_numpy_moments.py", "numpy or NumPy"),
    Mutation("core/backend/fused_reduce.py", "[row if is_valid else None for row, is_valid in enumerate(valid, first)]", "[row for row, is_valid in enumerate(valid, first)]", "test_slab.py"),
    # rules
    Mutation("core/rules/spike.py", "-excess > bound and self._may_be_small", "excess > bound and self._may_be_small", "test_rules.py"),
    Mutation("core/rules/spike.py", "lower[slots] = np.minimum(lower[slots], sizes)", "lower[slots] = lower[slots]", "test_rules_together.py"),
    Mutation("core/rules/nan.py", "suspect[n] |= self._any_bad(op, column)", "suspect[n] = self._any_bad(op, column)", "test_rules_together.py"),
    Mutation("core/rules/spike.py", "np.maximum(silent[slots] - 1, 0)", "np.maximum(silent[slots] - 2, 0)", "test_rules.py"),
    Mutation("core/robust.py", "MAD_TO_SIGMA = 1.4826", "MAD_TO_SIGMA = 14.826", "test_rules.py"),
    Mutation("core/rules/history.py", "self._last_step[used_rows] > batch.step", "self._last_step[used_rows] > batch.step + 5", "test_rules.py test_rules_memory.py"),
    Mutation("core/rules/history.py", "self.dropped += keys * len(self._ops)", "self.dropped += keys", "test_rules.py test_rules_memory.py"),
    Mutation("core/rules/threshold.py", "named & (values > self._above)", "named & (values >= self._above + 1)", "test_rules_threshold.py"),
    Mutation("core/rules/dead.py", "off = readings.values >= self._limit", "off = readings.values > self._limit + 0.5", "test_rules_dead.py"),
    Mutation("core/rules/vanish.py", "vanishing = streak == self._args.steps", "vanishing = streak == self._args.steps + 1", "test_rules_vanish.py"),
    Mutation("core/rules/frozen.py", "frozen = at[streak[slots] == self._steps]", "frozen = at[streak[slots] >= self._steps]", "test_rules_frozen.py"),
    Mutation("core/rules/replica.py", "has_majority = 2 * len(holders) > len(rows)", "has_majority = 2 * len(holders) >= len(rows)", "test_rules_replica.py"),
    Mutation("core/rules/nan.py", "return shape == () if op == \"id\" else 0 not in shape", "return True", "test_rules.py test_alerts.py test_rules_distributions.py"),
    # storage
    Mutation("core/storage/table_files.py", "min((step for step in steps if step is not None), default=lowest)", "lowest", "test_reading_directories.py test_directories.py test_reading.py test_readers.py test_damaged_files.py matrix/test_files.py"),
    Mutation("core/storage/layout.py", "return first, first + steps_per_file - 1", "return first, first + steps_per_file", "test_sinks_csv.py test_layout.py"),
    Mutation("core/storage/batches.py", "if last is None or file.first <= last]", "if last is None or file.first < last]", "test_reading.py test_readers.py test_reading_directories.py test_directories.py"),
    Mutation("core/storage/event_file.py", "padding = -len(data) % 4", "padding = len(data) % 4", "test_sinks_tensorboard.py test_csv2tb.py"),
    Mutation("core/storage/event_file.py", "(checksum >> 15 | checksum << 17)", "(checksum >> 15 | checksum << 16)", "test_sinks_tensorboard.py test_csv2tb.py"),
    Mutation("core/storage/anomaly_runs.py", "entry.step < directory.until", "entry.step <= directory.until", "test_anomaly_runs.py"),
    Mutation("core/storage/csv_reader.py", "before += data.count(b\"\\n\")", "before += 1", "test_reading.py test_readers.py test_reading_directories.py test_directories.py test_csv2tb.py test_csv2db.py"),
    # config
    Mutation("core/config/lint.py", "if settings.forward_only and settings.backward_only:", "if settings.forward_only or settings.backward_only:", "test_settings.py test_settings_mistakes.py test_config_cli.py"),
    Mutation("core/config/errors.py", "text[: most - 3]", "text[:most]", "test_settings_mistakes.py test_settings.py"),
    Mutation("core/config/edit.py", "_past_blanks(bare, at) + 1)  # past the colon", "_past_blanks(bare, at) + 2)  # past the colon", "test_settings_edit.py"),
    Mutation("core/config/load.py", "return asked == \"true\"", "return asked != \"false\"", "test_settings.py test_settings_mistakes.py matrix/test_dynamic.py", "not pytorch and not mindspore"),
    # distributed
    Mutation("core/distributed/address_store.py", "len(payload).to_bytes(4, \"big\")", "len(payload).to_bytes(4, \"little\")", "test_address_store.py"),
    Mutation("core/distributed/secret.py", "if len(secret) < FEWEST:", "if len(secret) < 1:", "core/test_broadcast.py test_announcements.py"),
    Mutation("core/distributed/replicas.py", "mixed = (mixed ^ bits) * MIX", "mixed = (mixed | bits) * MIX", "test_rules_replica.py core/test_global_stats.py core/distributed/test_global_stats.py test_wholes.py test_whole_tensors.py"),
    Mutation("core/distributed/whole_tensors.py", "if self._taken - self._done > MOST_BYTES:", "if self._taken + self._done > MOST_BYTES:", "test_wholes.py test_whole_tensors.py core/test_global_stats.py core/distributed/test_global_stats.py"),
    # instrumentation
    Mutation("core/instrumentation/schedule.py", "self.collected += 1\n            self.finished = self.collected >= self.collect_times", "self.collected += 1\n            self.finished = self.collected > self.collect_times", "test_schedule.py", "not pytorch and not mindspore"),
    Mutation("core/instrumentation/schedule.py", "(step - self.start_step) % self.step_interval:", "step % self.step_interval:", "test_schedule.py", "not pytorch and not mindspore"),
    Mutation("core/instrumentation/schedule.py", "return -(-max(needed, self._least) // self._least) * self._least", "return max(needed, self._least)", "test_pace.py test_sampling_pace.py"),
    Mutation("core/instrumentation/schedule.py", "allowed = self._budget * self._plain", "allowed = self._budget", "test_pace.py test_cost.py test_overhead.py"),
    Mutation("core/instrumentation/recorder.py", "scale[scaled] = rows[", "scale[scaled] = 1.0 + 0.0 * rows[", "test_recorder.py test_steps.py", "not mindspore"),
    Mutation("core/instrumentation/selection.py", "self._all_xy = all_xy or not targets", "self._all_xy = all_xy", "test_selection.py test_targets.py", "not pytorch and not mindspore"),
    Mutation("core/instrumentation/signals/features/router.py", "pairs = experts * (experts - 1)", "pairs = experts * experts", "matrix/test_features.py", "router and numpy"),
    Mutation("core/instrumentation/signals/features/attention.py", "ops.log(total) - scores.sum(-1) / total", "ops.log(total) + scores.sum(-1) / total", "matrix/test_features.py", "attention and numpy"),
    # control
    Mutation("core/control/config_follower.py", "waits = at is not None and at > first", "waits = at is not None and at >= first", "test_control.py test_config_follower.py matrix/test_dynamic.py", "not pytorch and not mindspore"),
    Mutation("core/control/on_anomaly.py", "and step >= self._quiet_until:", "and step > self._quiet_until:", "test_arming.py test_on_anomaly.py"),
    Mutation("core/control/agreement.py", "math.ceil(self.seconds / a_step)", "math.floor(self.seconds * a_step)", "test_arming.py test_on_anomaly.py"),
    Mutation("core/control/planner.py", "takes_part=takes_part, until=step + 1)", "takes_part=takes_part, until=step + 2)", "matrix/test_structure.py", "numpy"),
    # output
    Mutation("core/output/history_buffer.py", "while len(self._packed_steps) > self._steps or", "while len(self._packed_steps) >= self._steps or", "test_past.py test_history_buffer.py"),
    Mutation("core/output/resume.py", "cost_step(line) < self.first", "cost_step(line) <= self.first", "test_resuming.py", "numpy"),
    Mutation("core/output/sinks/sqlite.py", "if steps * rows <= ROWS_A_TABLE", "if steps * rows <= 100 * ROWS_A_TABLE", "test_sinks_sqlite.py"),
    Mutation("core/output/sinks/parquet.py", "if snapshot.step > filling.last:", "if snapshot.step > filling.last + 1:", "test_sinks_parquet.py"),
    # monitor
    Mutation("core/config/lint.py", "min(settings.module_ranks) >= ranks:", "max(settings.module_ranks) >= ranks:", "test_doubts.py test_vain.py test_wrong_uses.py", "numpy"),
    # analysis
    Mutation("core/analysis/merge.py", "complete = (counted == numels(shapes)) & ~terms", "complete = ~terms", "test_merging.py"),
    Mutation("core/analysis/compare/differences.py", "return abs(a - b) if op == \"zeros\" or op in EXACT else excess * relative", "return excess * relative", "test_compare.py test_compare_cli.py", "not pytorch and not mindspore"),
    Mutation("core/analysis/diagnosis/nodes.py", "if one.began < other.began:", "if one.began <= other.began:", "test_causes.py"),
    Mutation("core/analysis/convert/curves.py", "while number > 0x7F:", "while number > 0xFF:", "test_csv2tb.py"),
    Mutation("core/analysis/pictures/packing.py", "np.isposinf(array), np.isneginf(array)", "np.isneginf(array), np.isposinf(array)", "test_report_sizes.py"),
    # agents
    Mutation("agents/tools.py", 'text in (run.name, self._path(run), short_name(run.name))', 'text.endswith(run.name)', "test_hostile_runs.py", "leads_out"),
    Mutation("agents/answers.py", 'any_part.sub(lambda match: json.dumps(short_name(match[0])), text)', "text", "test_hostile_runs.py", "injected"),
    # services beside training
    Mutation("services/exporter/ranks.py", "return state.started == started and state.alive", "return state.alive", "test_exporter_ranks.py", "reused or later or nobody"),
    Mutation("services/exporter/ranks.py", "return state.started == started and state.alive", "return state.started == started", "test_exporter_ranks.py", "nobody"),
    Mutation("services/exporter/reading_process.py", "return last if last is not None and self.age < self._interval + self._deadline else None", "return last", "test_exporter_devices.py", "hangs or command"),
    Mutation("services/exporter/reading_process.py", "if len(self._left) < MOST_LEFT:", "if True:", "test_exporter_devices.py", "killed"),
    Mutation("services/exporter/node_page.py", ".replace(\"\\\\\", r\"\\\\\").replace('\"', r\"\\\"\")", ".replace(\"\\\\\", r\"\\\\\")", "test_exporter_ranks.py", "hostile or client"),
    Mutation("services/exporter/ranks.py", "metrics.read() if metrics is not None and up is not False else", "metrics.read() if metrics is not None else", "test_exporter_ranks.py", "killed"),
    Mutation("services/exporter/ranks.py", "age = (view.up is not False, rank.process[1])", "age = (True, rank.process[1])", "test_exporter_ranks.py", "lives"),
    Mutation("services/exporter/readings/host.py", "self._asked.get(disk) or _Answer(disk.mountpoint)", "_Answer(disk.mountpoint)", "test_exporter_devices.py", "hangs_is_asked"),
    Mutation("services/remediation/service.py", "_identity(alert, labels, place), status == \"firing\")", "_identity(alert, labels, place), True)", "test_remediation.py", "resolved"),
    Mutation("services/remediation/workers.py", "            if action.dry_run:", "            if False:", "test_remediation.py", "rehears or rehearsal"),
    Mutation("services/remediation/workers.py", "self._record(action, state, printable(redact(message)))", "self._record(action, state, printable(message))", "test_remediation.py", "secret"),
    Mutation("services/remediation/workers.py", "if action.planned.target not in self._busy:", "if True:", "test_remediation_limits.py", "at_a_time"),
    Mutation("services/remediation/child_process.py", "            _kill_group(process.pid)\n", "            process.kill()\n", "test_remediation_limits.py", "deadline"),
    Mutation("services/remediation/child_process.py", "if not pid.isdecimal() or identity_of(int(pid)) != identity:", "if not pid.isdecimal():", "test_remediation_limits.py", "later_process"),
    Mutation("services/remediation/stale_files.py", "(\"hard link\", status.st_nlink > 1)", "(\"hard link\", status.st_nlink > 2)", "test_remediation_files.py", "links"),
    Mutation("services/remediation/training_actions.py", "all(len(rank_answers) >= job.ranks for rank_answers in by_name)", "all(len(rank_answers) >= 1 for rank_answers in by_name)", "test_remediation.py", "deadline"),
    Mutation("core/control/command_requests.py", "f\"{answer.request}.rank{answer.rank}.ack\"", "f\"{answer.request}.rank0.ack\"", "control/test_commands.py"),
    Mutation("core/control/commands.py", "if accepts and type(command) not in accepts:", "if False:", "control/test_commands.py", "types"),
    Mutation("core/control/commands.py", "while self._to_announce and not self._outstanding and step >= self._first:", "while self._to_announce and step >= self._first:", "control/test_commands.py", "read_back"),
    Mutation("core/storage/mapped_parts.py", "if len(data) == size and checksum(generation, data) == expected else", "if len(data) == size else", "test_metrics_file.py", "torn or half"),
    Mutation("core/output/metrics/mapped_file.py", "if table is None or table[0] != generation:", "if table is None:", "test_metrics_file.py", "earlier_set"),
    Mutation("core/output/sinks/prometheus.py", "{\"rank\": str(name.rank)}\n\n    def send", "{}\n\n    def send", "test_metrics_writers.py", "gateway"),
    Mutation("services/logs/json_lines.py", "text = redact(_text(value)).encode(", "text = _text(value).encode(", "test_logs_json_lines.py", "secrets"),
    Mutation("services/logs/json_lines.py", "content = (\"\\n\" if self._broken else \"\") + line", "content = line", "test_logs_json_lines.py", "cannot_be_written or full or counted"),
    Mutation("services/logs/anomalies.py", "NEGATED.search(low[max(0, start - 64) : start]) is not None\n        or ", "", "test_logs_anomalies.py"),
    Mutation("services/logs/followed_file.py", "return os.pread(self._file, len(self._beginning), 0) != self._beginning", "return False", "test_logs_files.py", "truncation"),
    Mutation("services/logs/log_scan.py", "record[\"timestamp\"] = origin.time if time is None else time", "record[\"timestamp\"] = time", "test_logs_files.py", "latest_line"),
    Mutation("services/performance/monitor.py", "if self.level is None or self.level < HEALTHY * level:", "if True:", "test_performance_monitor.py", "baseline"),
    Mutation("services/performance/monitor.py", "        if not (math.isfinite(throughput) and throughput > 0):\n            return\n", "", "test_performance_monitor.py", "without_a_throughput"),
    Mutation("services/performance/sources.py", "self._reader.inode != self._path.stat().st_ino:", "False:", "test_performance_monitor.py", "mapped"),
    Mutation("resources/prometheus/rules/training.yml", "          unless on (job) (probe_rank_info offset 5m and on (instance) up == 0)\n", "", "test_prometheus_rules.py", "unit_tests"),
    Mutation("resources/prometheus/rules/training.yml", "count by (job) (max by (job, rank) (last_over_time(probe_rank_up[30s])) == 0)", "count by (job) (min by (job, rank) (last_over_time(probe_rank_up[30s])) == 0)", "test_prometheus_rules.py", "unit_tests"),
    Mutation("resources/prometheus/rules/gpu.yml", "max_over_time(probe_exporter_devices[1h])", "min_over_time(probe_exporter_devices[1h])", "test_prometheus_rules.py", "unit_tests"),
    Mutation("resources/alertmanager/alertmanager.yml", "    equal: [cluster, node]\n", "    equal: [cluster]\n", "test_alertmanager.py", "inhibition"),
    # frameworks, command line, demonstration
    Mutation("pytorch/host_moments.py", "absent=tensor.numel() - values.numel()", "absent=tensor.numel()", "test_moments.py test_numbers.py", "torch"),
    Mutation("mindspore/device_moments.py", "_POWERS = {\"sum\": 1, \"sumsq\": 2, \"m2\": 2}", "_POWERS = {\"sum\": 1, \"sumsq\": 2, \"m2\": 1}", "test_moments.py test_tensors.py", "mindspore-device or device"),
    Mutation("cli/anomalies.py", "int(last) < int(first)", "int(last) < 0", "test_anomaly_processor.py test_anomaly_order.py test_causes_cli.py"),
    Mutation("demo/report.py", "diagnosis.first.step == injection.step", "diagnosis.first.step >= injection.step", "test_demo.py", "very_place"),
)  # fmt: skip


def files_of(tests: Path, mutation: Mutation) -> list[str]:
    """The test files that are there, relative to the tree.

    Raises:
        ValueError: if there is none.
    """
    names = tuple(f"/{name}" for name in mutation.tests.split())
    found = sorted(
        str(path.relative_to(tests.parent)) for path in tests.rglob("test_*.py") if str(path).endswith(names)
    )
    if not found:
        raise ValueError(f"{mutation.file}: no test file is called {mutation.tests}")
    return found


def place(tree: Path, file: str) -> Path:
    """The path of the file of a break."""
    return tree / file if file.startswith("resources/") else tree / "probe" / file


def broken(text: str, mutation: Mutation) -> str:
    """The file's ``text`` with the break.

    Raises:
        ValueError: if the text to be broken is not there exactly once.
    """
    if (times := text.count(mutation.old)) != 1:
        raise ValueError(f"{mutation.file}: expected once, found {times} times: {mutation.old}")
    return text.replace(mutation.old, mutation.new)


def failure(copy: Path, mutation: Mutation) -> str:
    """The first test of a break that fails in the copy, or the way in which pytest ended without one; "" if all pass."""
    command = [sys.executable, "-m", "pytest", "-x", "-q", "-p", "no:cacheprovider"]
    only = ["-k", mutation.only] if mutation.only else []
    environment = os.environ | {"PYTHONPATH": str(copy), "OMP_NUM_THREADS": "1", "PYTHONDONTWRITEBYTECODE": "1"}
    try:
        done = subprocess.run(
            [*command, *only, *files_of(copy / "tests", mutation)],
            cwd=copy,
            env=environment,
            capture_output=True,
            text=True,
            timeout=SECONDS,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return f"longer than {SECONDS:.0f} s"
    if not done.returncode:
        return ""
    failed = (line.split()[1] for line in done.stdout.splitlines() if line.startswith(("FAILED ", "ERROR ")))
    return next(failed, f"pytest ended with {done.returncode}")


def copy_of(tree: Path, tests: Path, to: Path) -> Path:
    """The tree without what is ignored, with the tests of another."""
    names = (".git", ".venv*", "build", "__pycache__", "monitor_output", "*.egg-info")
    everywhere, at_the_top = shutil.ignore_patterns(*names), shutil.ignore_patterns(*names, "tests")
    shutil.copytree(
        tree,
        to,
        ignore=lambda folder, found: (at_the_top if Path(folder) == tree else everywhere)(folder, found),
        symlinks=True,
    )
    shutil.copytree(tests, to / "tests", ignore=shutil.ignore_patterns("__pycache__"))
    return to


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--tests", type=Path, default=ROOT, metavar="TREE", help="whose tests are run")
    parser.add_argument("--only", default="", metavar="TEXT", help="breaks of files whose path contains this")
    options = parser.parse_args()
    chosen = [mutation for mutation in MUTATIONS if options.only in mutation.file]
    noticed, unbroken = 0, {}
    with tempfile.TemporaryDirectory() as folder:
        copy = copy_of(ROOT, options.tests / "tests", Path(folder, "probe"))
        texts = {each.file: place(copy, each.file).read_text(encoding="utf-8") for each in chosen}
        changed = [(each, broken(texts[each.file], each)) for each in chosen]
        for number, (mutation, text) in enumerate(changed, 1):
            path, began = place(copy, mutation.file), time.monotonic()
            about = (mutation.tests, mutation.only)
            if about not in unbroken:
                unbroken[about] = failure(copy, mutation)
            path.write_text(text, encoding="utf-8")
            test = unbroken[about] or failure(copy, mutation)
            path.write_text(texts[mutation.file], encoding="utf-8")
            word = "UNSOUND" if unbroken[about] else "noticed" if test else "MISSED "
            noticed += word == "noticed"
            seconds = time.monotonic() - began
            print(f"{number:2} {word} {seconds:5.1f} s  {mutation.file}: {mutation.new}  {test}".rstrip(), flush=True)
    print(f"{noticed} of {len(chosen)} breaks noticed")
    return 1 if noticed < len(chosen) else 0


if __name__ == "__main__":
    sys.exit(main())
