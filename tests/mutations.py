"""Sixty deliberate breaks over all rooms, which the tests named beside each must notice: ``python -m tests.mutations``.

Each is made in a copy of the tree, one after the other. The exit code is 1 if one was not noticed. With ``--tests TREE``
the tests are those of another tree.

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
    """A break: in ``file``, below ``probe``, ``old`` becomes ``new``."""

    file: str
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
    Mutation("core/backend/fused_reduce.py", "if fits or low == high == squares == 0.0 else None", "if True else None", "test_fused.py test_fused_reduce.py"),
    # rules
    Mutation("core/rules/spike.py", "spikes[n] = excess > bound or (-excess > bound", "spikes[n] = excess > bound or (excess > bound", "test_rules.py"),
    Mutation("core/rules/spike.py", "np.maximum(silent[slots] - 1, 0)", "np.maximum(silent[slots] - 2, 0)", "test_rules.py"),
    Mutation("core/rules/spike.py", "MAD_TO_SIGMA = 1.4826", "MAD_TO_SIGMA = 14.826", "test_rules.py"),
    Mutation("core/rules/history.py", "self._last_step[held] > batch.step", "self._last_step[held] > batch.step + 5", "test_rules.py test_rules_memory.py"),
    Mutation("core/rules/history.py", "self.dropped += keys * len(self._ops)", "self.dropped += keys", "test_rules.py test_rules_memory.py"),
    Mutation("core/rules/threshold.py", "named & (values > self._above)", "named & (values >= self._above + 1)", "test_rules_threshold.py"),
    Mutation("core/rules/dead.py", "off = readings.values >= self._limit", "off = readings.values > self._limit + 0.5", "test_rules_dead.py"),
    Mutation("core/rules/vanish.py", "found = streak == self._args.steps", "found = streak == self._args.steps + 1", "test_rules_vanish.py"),
    Mutation("core/rules/frozen.py", "frozen = at[streak[slots] == self._steps]", "frozen = at[streak[slots] >= self._steps]", "test_rules_frozen.py"),
    Mutation("core/rules/replica.py", "has_majority = 2 * len(holders) > len(rows)", "has_majority = 2 * len(holders) >= len(rows)", "test_rules_replica.py"),
    Mutation("core/rules/nan.py", "return shape == () if op == \"id\" else 0 not in shape", "return True", "test_rules.py test_alerts.py test_rules_distributions.py"),
    # storage
    Mutation("core/storage/layout.py", "min((step for step in rows if step is not None), default=lowest)", "lowest", "test_reading_directories.py test_directories.py test_reading.py test_readers.py test_damaged_files.py matrix/test_files.py"),
    Mutation("core/storage/batches.py", "(last is None or file.first <= last)", "(last is None or file.first < last)", "test_reading.py test_readers.py test_reading_directories.py test_directories.py"),
    Mutation("core/storage/event_file.py", "padding = -len(data) % 4", "padding = len(data) % 4", "test_sinks_tensorboard.py test_csv2tb.py"),
    Mutation("core/storage/event_file.py", "(checksum >> 15 | checksum << 17)", "(checksum >> 15 | checksum << 16)", "test_sinks_tensorboard.py test_csv2tb.py"),
    Mutation("core/storage/anomaly_runs.py", "entry.step < directory.until", "entry.step <= directory.until", "test_anomaly_runs.py"),
    Mutation("core/storage/chunks.py", "_next_line(file, max(0, begin - 1))", "_next_line(file, max(0, begin))", "test_reading.py test_readers.py test_reading_directories.py test_directories.py test_csv2tb.py test_csv2db.py"),
    # config
    Mutation("core/config/lint.py", "if settings.forward_only and settings.backward_only:", "if settings.forward_only or settings.backward_only:", "test_settings.py test_settings_mistakes.py test_config_cli.py"),
    Mutation("core/config/errors.py", "text[: LONGEST_NAME - 3]", "text[:LONGEST_NAME]", "test_settings_mistakes.py test_settings.py"),
    Mutation("core/config/edit.py", "_past_blanks(bare, at) + 1)  # past the colon", "_past_blanks(bare, at) + 2)  # past the colon", "test_settings_edit.py"),
    Mutation("core/config/load.py", "return asked == \"true\"", "return asked != \"false\"", "test_settings.py test_settings_mistakes.py matrix/test_dynamic.py", "not pytorch and not mindspore"),
    # distributed
    Mutation("core/distributed/address_store.py", "len(payload).to_bytes(4, \"big\")", "len(payload).to_bytes(4, \"little\")", "test_address_store.py"),
    Mutation("core/distributed/secret.py", "if len(secret) < FEWEST:", "if len(secret) < 1:", "core/test_broadcast.py test_announcements.py"),
    Mutation("core/distributed/replicas.py", "mixed = (mixed ^ bits) * MIX", "mixed = (mixed | bits) * MIX", "test_rules_replica.py core/test_global_stats.py core/distributed/test_global_stats.py test_wholes.py test_whole_tensors.py"),
    Mutation("core/distributed/whole_tensors.py", "if self._taken - self._done > MOST_BYTES:", "if self._taken + self._done > MOST_BYTES:", "test_wholes.py test_whole_tensors.py core/test_global_stats.py core/distributed/test_global_stats.py"),
    # instrumentation
    Mutation("core/instrumentation/schedule.py", "return self.collected >= self.collect_times", "return self.collected > self.collect_times", "test_schedule.py", "not pytorch and not mindspore"),
    Mutation("core/instrumentation/schedule.py", "(step - self.start_step) % self.step_interval:", "step % self.step_interval:", "test_schedule.py", "not pytorch and not mindspore"),
    Mutation("core/instrumentation/schedule.py", "return -(-max(needed, self._least) // self._least) * self._least", "return max(needed, self._least)", "test_pace.py test_sampling_pace.py"),
    Mutation("core/instrumentation/schedule.py", "allowed = self._budget * self._plain", "allowed = self._budget", "test_pace.py test_cost.py test_overhead.py"),
    Mutation("core/instrumentation/recorder.py", "np.where(scales >= 0, rows[scales, 0], 1.0)", "np.where(scales >= 0, 1.0, 1.0)", "test_recorder.py test_steps.py", "not mindspore"),
    Mutation("core/instrumentation/selection.py", "self._all_xy = all_xy or not targets", "self._all_xy = all_xy", "test_selection.py test_targets.py", "not pytorch and not mindspore"),
    Mutation("core/instrumentation/signals/features/router.py", "pairs = experts * (experts - 1)", "pairs = experts * experts", "matrix/test_features.py", "router and numpy"),
    Mutation("core/instrumentation/signals/features/softmax_entropy.py", "ops.log(total) - scores.sum(-1) / total", "ops.log(total) + scores.sum(-1) / total", "matrix/test_features.py", "attention and numpy"),
    # control
    Mutation("core/control/config_follower.py", "waits = at is not None and at > first", "waits = at is not None and at >= first", "test_control.py test_config_follower.py matrix/test_dynamic.py", "not pytorch and not mindspore"),
    Mutation("core/control/on_anomaly.py", "and step >= self._quiet_until:", "and step > self._quiet_until:", "test_arming.py test_on_anomaly.py"),
    Mutation("core/control/agreement.py", "math.ceil(self.seconds / a_step)", "math.floor(self.seconds * a_step)", "test_arming.py test_on_anomaly.py"),
    # output
    Mutation("core/output/history_buffer.py", "while len(self._held) > self._steps or", "while len(self._held) >= self._steps or", "test_past.py test_history_buffer.py"),
    Mutation("core/output/resume.py", "json.loads(line)[\"step\"] < self.first", "json.loads(line)[\"step\"] <= self.first", "test_resuming.py", "numpy"),
    Mutation("core/output/sinks/csv.py", "last = first + self._steps_per_file - 1", "last = first + self._steps_per_file", "test_sinks_csv.py"),
    Mutation("core/output/sinks/sqlite.py", "if steps * rows <= ROWS_A_TABLE", "if steps * rows <= 100 * ROWS_A_TABLE", "test_sinks_sqlite.py"),
    Mutation("core/output/sinks/parquet.py", "if snapshot.step > filling.last:", "if snapshot.step > filling.last + 1:", "test_sinks_parquet.py"),
    # monitor
    Mutation("core/monitor/subject.py", "min(settings.module_ranks) >= ranks:", "max(settings.module_ranks) >= ranks:", "test_doubts.py test_vain.py test_wrong_uses.py", "numpy"),
    Mutation("core/monitor/collector.py", "given.start_iteration + 1 if self.settings.print_struct", "given.start_iteration + 2 if self.settings.print_struct", "matrix/test_structure.py", "numpy"),
    # analysis
    Mutation("core/analysis/merge.py", "complete = (heard == numels(shapes)) & ~terms", "complete = ~terms", "test_merging.py"),
    Mutation("core/analysis/compare/tolerance.py", "return abs(a - b) if op == \"zeros\" or op in EXACT else excess * relative", "return excess * relative", "test_compare.py test_compare_cli.py"),
    Mutation("core/analysis/diagnosis/causality.py", "if one.began < other.began:", "if one.began <= other.began:", "test_causes.py"),
    Mutation("core/analysis/convert/curves.py", "while number > 0x7F:", "while number > 0xFF:", "test_csv2tb.py"),
    Mutation("core/analysis/report/encode.py", "<= low and high < 1 << (8 * size - 1))", "<= low and high <= 1 << (8 * size - 1))", "test_report_cells.py test_report_sizes.py test_report.py"),
    # frameworks, command line, demonstration
    Mutation("pytorch/host_moments.py", "squares - total * total / x.numel()", "squares - total / x.numel()", "test_moments.py test_numbers.py", "torch"),
    Mutation("mindspore/device_moments.py", "_POWERS = {\"sum\": 1, \"sumsq\": 2, \"m2\": 2}", "_POWERS = {\"sum\": 1, \"sumsq\": 2, \"m2\": 1}", "test_moments.py test_tensors.py", "mindspore-device or device"),
    Mutation("cli/anomalies.py", "int(last) < int(first)", "int(last) < 0", "test_anomaly_processor.py test_anomaly_order.py test_causes_cli.py"),
    Mutation("demo/verdict.py", "diagnosis.first.step == injection.step", "diagnosis.first.step >= injection.step", "test_demo.py", "very_place"),
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


def broken(text: str, mutation: Mutation) -> str:
    """The file's ``text`` with the break.

    Raises:
        ValueError: if the text to be broken is not there exactly once.
    """
    if (times := text.count(mutation.old)) != 1:
        raise ValueError(f"{mutation.file}: expected once, found {times} times: {mutation.old}")
    return text.replace(mutation.old, mutation.new)


def passed(copy: Path, mutation: Mutation) -> bool:
    """Whether the tests of a break pass in the copy."""
    command = [
        sys.executable,
        "-m",
        "pytest",
        "-x",
        "-q",
        "-p",
        "no:cacheprovider",
        *files_of(copy / "tests", mutation),
    ]
    environment = os.environ | {"PYTHONPATH": str(copy), "OMP_NUM_THREADS": "1", "PYTHONDONTWRITEBYTECODE": "1"}
    only = ["-k", mutation.only] if mutation.only else []
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
        return False
    if done.returncode not in (0, 1):  # a test module could not be imported, or no test was chosen
        raise RuntimeError(f"pytest ended with {done.returncode}:\n{done.stdout[-2000:]}{done.stderr[-2000:]}")
    return done.returncode == 0


def copy_of(tree: Path, tests: Path, to: Path) -> Path:
    """The tree without what is ignored, with the tests of another."""
    left_out = shutil.ignore_patterns(".git", ".venv*", "build", "__pycache__", "monitor_output", "*.egg-info", "tests")
    shutil.copytree(tree, to, ignore=left_out, symlinks=True)
    shutil.copytree(tests, to / "tests", ignore=shutil.ignore_patterns("__pycache__"))
    return to


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--tests", type=Path, default=ROOT, metavar="TREE", help="whose tests are run")
    parser.add_argument("--only", default="", metavar="TEXT", help="breaks of files whose path contains this")
    options = parser.parse_args()
    chosen = [mutation for mutation in MUTATIONS if options.only in mutation.file]
    missed = []
    with tempfile.TemporaryDirectory() as folder:
        copy = copy_of(ROOT, options.tests / "tests", Path(folder, "probe"))
        texts = {each.file: (copy / "probe" / each.file).read_text(encoding="utf-8") for each in chosen}
        changed = [(each, broken(texts[each.file], each)) for each in chosen]
        for number, (mutation, text) in enumerate(changed, 1):
            path, began = copy / "probe" / mutation.file, time.monotonic()
            path.write_text(text, encoding="utf-8")
            noticed = not passed(copy, mutation)
            path.write_text(texts[mutation.file], encoding="utf-8")
            missed += [] if noticed else [mutation]
            seconds = time.monotonic() - began
            word = "noticed" if noticed else "MISSED "
            print(f"{number:2} {word} {seconds:5.1f} s  {mutation.file}: {mutation.new}", flush=True)
    print(f"{len(chosen) - len(missed)} of {len(chosen)} breaks noticed")
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
