"""Performance of a run: every number derived again by NumPy from what was written."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import pytest

from probe.core.analysis.performance.analyse import analysed
from probe.core.analysis.performance.export import as_json
from probe.core.analysis.performance.step_table import NoNumbersError
from probe.core.naming import OUTSIDE_SECONDS, STEP_SECONDS, TOKENS_PER_SECOND
from probe.core.output.sinks import SINKS
from probe.core.records import Key
from probe.core.storage.layout import call_site
from probe.core.storage.performance_file import DeviceReading, PerformanceReading, line
from tests.core.analysis.performance_data import of, write_calls, write_costs, write_rank
from tests.core.output.sink_data import batch, context, snapshot
from tests.matrix import numpy_harness
from tests.matrix.test_run_numbers import Training, numbers_in
from tests.required import require

require("duckdb")

RANKS, STEPS = 3, 200
SECONDS = np.exp(0.1 * np.random.default_rng(7).standard_normal((RANKS, STEPS))) * 0.5
BATCH = 32


def healthy(rank: int, step: int) -> dict[str, float]:
    """Numbers of a step as a monitor writes them: the first step has no seconds."""
    seconds = SECONDS[rank, step]
    values = {"loss": 3.0 - 0.01 * step + rank, "learning_rate": 1e-3, "batch_size": BATCH, "skipped": float(step == 9)}
    values |= {"phase/data_seconds": 0.1 * seconds}
    values |= {"phase/evaluation_seconds": 0.3} if step % 50 == 49 else {}
    return values | ({STEP_SECONDS: seconds, "throughput": BATCH / seconds} if step else {})


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of three ranks."""
    path = tmp_path_factory.mktemp("run")
    for rank in range(RANKS):
        directory = write_rank(path, rank, range(STEPS), lambda step, rank=rank: healthy(rank, step))
        write_costs(directory, [(step, 0.25 + rank, 0.01 * rank) for step in range(0, STEPS, 10)])
    return path


def test_seconds_of_steps(root: Path) -> None:
    """Of a step the median of the ranks; of a rank the median and the 95th percentile of its steps."""
    found = of(root)
    each = np.median(SECONDS[:, 1:], axis=0)
    assert found.span[:3] == (0, STEPS - 1, STEPS)
    assert found.span.skipped == 1
    assert found.span.seconds == pytest.approx(each.sum())
    assert (found.span.median, found.span.p95) == pytest.approx(tuple(np.quantile(each, (0.5, 0.95))))
    assert (found.span.longest, found.span.longest_step) == (pytest.approx(each.max()), 1 + int(each.argmax()))
    for rank, pace in enumerate(found.paces):
        own = SECONDS[rank, 1:]
        assert pace[:2] == (rank, STEPS - 1)
        assert (pace.median, pace.p95) == pytest.approx((np.median(own), np.quantile(own, 0.95)))


def test_throughput(root: Path) -> None:
    """The average is that over time, not over steps; steps a second stand beside samples."""
    found = of(root)
    each, speed = np.median(SECONDS[:, 1:], axis=0), np.median(BATCH / SECONDS[:, 1:], axis=0)
    samples, steps = found.rates
    assert (samples.unit, samples.ranks, steps.unit, steps.ranks) == ("samples", RANKS, "steps", RANKS)
    assert samples.average == pytest.approx((speed * each).sum() / each.sum())
    assert steps.average == pytest.approx(len(each) / each.sum())
    kept = np.delete(speed, [48, 98, 148, 198])  # those with an evaluation
    assert samples.now == pytest.approx(np.median(kept[-10:]))
    assert found.drops == []
    assert found.found == []


def test_tokens_are_judged_where_they_are_logged(tmp_path: Path) -> None:
    """Samples of other lengths make no drop, since tokens a second stay."""

    def numbers(step: int) -> Mapping[str, float]:
        length = 1000.0 if step < 100 else 4000.0
        seconds = 0.2 if step < 100 else 0.8
        return {STEP_SECONDS: seconds, "throughput": 8 / seconds, TOKENS_PER_SECOND: 8 * length / seconds}

    write_rank(tmp_path, 0, range(200), numbers)
    found = of(tmp_path)
    assert [rate.unit for rate in found.rates] == ["tokens", "samples", "steps"]
    assert found.drops == []


def test_time_by_phase(root: Path) -> None:
    """Seconds and shares over all ranks; the rest is what no phase has."""
    data, rest = (each for each in of(root).phases if each.name != "evaluation")
    evaluation = next(each for each in of(root).phases if each.name == "evaluation")
    total = SECONDS[:, 1:].sum()
    assert data.name == "data"
    assert (data.seconds, data.share) == pytest.approx((0.1 * total / RANKS, 0.1))
    assert (data.steps, data.step_seconds) == (STEPS - 1, pytest.approx(0.1 * SECONDS[:, 1:].mean()))
    assert evaluation[1:] == pytest.approx((4 * 0.3, 4 * 0.3 * RANKS / total, 4, 0.3))
    assert rest.name is None
    assert rest.seconds == pytest.approx(0.9 * total / RANKS - 4 * 0.3)


def test_own_cost(root: Path) -> None:
    """Mean seconds of a collected step, and the overhead of the last one; a torn last line is left out."""
    with next(root.glob("*-rank2-*/cost.jsonl")).open("a", encoding="utf-8") as file:
        file.write('{"step": 500, "hooks_sec')
    costs = of(root).costs
    assert [(cost.rank, cost.steps, cost.overhead) for cost in costs] == [(0, 20, 0.0), (1, 20, 0.01), (2, 20, 0.02)]
    assert [cost.step_seconds for cost in costs] == pytest.approx([1.0, 2.0, 3.0])


def test_the_last_hours(root: Path) -> None:
    """Counted back from the end by the seconds of steps; the standard is still that of the whole run."""
    each = np.concatenate([[0.0], np.median(SECONDS[:, 1:], axis=0)])
    left = np.cumsum(each[::-1])[::-1]
    hours = 20.0 / 3600
    first = int(np.flatnonzero(left <= 20.0)[0])
    found = of(root, hours)
    assert (found.span.first, found.span.number) == (first, STEPS - first)
    assert found.span.seconds == pytest.approx(each[first:].sum())
    assert found.paces[1].median == pytest.approx(np.median(SECONDS[1, first:]))
    assert found.levels == of(root).levels
    assert found.stretches[0].first_step == first
    assert of(root, 1000.0).span == of(root).span


def test_communication_by_call_site(tmp_path: Path) -> None:
    """Of completed calls, over all groups and ranks; shares of the sampled steps' time; rates of what was timed."""
    for rank in range(2):
        directory = write_rank(tmp_path, rank, range(60), lambda step: {STEP_SECONDS: 2.0} if step else {})
        group = "ranks0-1" if rank else "ranks0+2"
        calls = [
            (step, f"{name}", *numbers)
            for step in (10, 20)
            for name, numbers in (
                (f"all_reduce.{group}.train.py[23].post", (3, 3000, 0.5)),
                (f"all_reduce.{group}.train.py[23].pre", (3, 3000, 0.5)),
                (f"all_gather.{group}.model/layer.py[7].post", (1, 500, math.nan if step == 10 else 0.25)),
                (f"barrier.{group}.train.py[40].post", (1, 0, math.nan)),
            )
        ]
        write_calls(directory, calls)
    found = of(tmp_path).communication
    assert found is not None
    reduce, gather, barrier = found.sites
    assert reduce[:5] == ("all_reduce", "train.py[23]", 12, 12000, 2.0)
    assert (reduce.share, reduce.bytes_per_second) == (0.25, 6000)
    assert gather[:5] == ("all_gather", "model/layer.py[7]", 4, 2000, 0.5)
    assert (gather.share, gather.bytes_per_second) == (0.0625, 2000)
    assert barrier[:4] == ("barrier", "train.py[40]", 4, 0)
    assert math.isnan(barrier.seconds)
    assert (found.steps, found.calls, found.bytes, found.seconds) == (2, 20, 14000, 2.5)
    assert (found.share, found.bytes_per_second) == (2.5 / 8, 13000 / 2.5)


@pytest.mark.parametrize(
    ("name", "place"),
    [
        ("all_reduce.ranks0-3.train.py[23].post", ("all_reduce", "train.py[23]")),
        ("send.ranks0-6by2.a/ranks.py[1].pre", ("send", "a/ranks.py[1]")),
        ("batch_isend_irecv.ranks0+3+4.post.py[2].post", ("batch_isend_irecv", "post.py[2]")),
        ("foreign", ("foreign", "")),
    ],
)
def test_call_sites_are_parsed(name: str, place: tuple[str, str]) -> None:
    """Operation and line, without the group and the direction."""
    assert call_site(name) == place


def test_a_rank_that_loads_data_slowly_for_a_while(tmp_path: Path) -> None:
    """It is named with the steps, though its median over the whole run is that of the others."""
    for rank in range(4):
        write_rank(
            tmp_path,
            rank,
            range(400),
            lambda step, rank=rank: {
                STEP_SECONDS: 1.0,
                "phase/data_seconds": 0.4 if rank == 2 and 200 <= step < 320 else 0.1,
            },
        )
    (slow,) = of(tmp_path).slow
    assert slow[:4] == (2, "phase/data_seconds", 0.4, 0.1)
    assert (slow.first_step, slow.last_step, slow.share) == (200, 319, pytest.approx(0.3))
    assert of(tmp_path).found == ["straggler"]


@pytest.mark.parametrize("logged", [True, False])
def test_the_time_outside_of_collectives_is_compared(tmp_path: Path, logged: bool) -> None:
    """As the monitor has logged it, or computed of the rows about collectives."""
    for rank in range(4):
        waited = 0.2 if rank == 1 else 0.8

        def numbers(step: int, waited: float = waited) -> Mapping[str, float]:
            outside = {OUTSIDE_SECONDS: 1.0 - waited} if logged and step % 10 == 0 else {}
            return {STEP_SECONDS: 1.0, **outside}

        directory = write_rank(tmp_path, rank, range(100), numbers)
        calls = [(step, "all_reduce.ranks0-3.t.py[1].post", 1, 8, waited) for step in range(0, 100, 10)]
        write_calls(directory, calls)
    (slow,) = of(tmp_path).slow
    assert slow[:2] == (1, OUTSIDE_SECONDS)
    assert (slow.seconds, slow.expected) == pytest.approx((0.8, 0.2))


def test_ranks_of_other_pipeline_stages_are_not_compared(tmp_path: Path) -> None:
    """The last stage has more to do; within a stage one rank stands out."""
    outside = (0.1, 0.1, 0.1, 0.6, 0.6, 0.95)
    for rank, seconds in enumerate(outside):
        write_rank(
            tmp_path,
            rank,
            range(60),
            lambda step, seconds=seconds: {STEP_SECONDS: 1.0, OUTSIDE_SECONDS: seconds},
            world_size=6,
            pp_stage=rank // 3,
        )
    assert [(slow.rank, slow.expected) for slow in of(tmp_path).slow] == [(5, 0.6)]


def test_learning_rate_beside_loss(tmp_path: Path) -> None:
    """A stretch ends where the learning rate leaps; slopes are those of the line that was written, spikes or not."""

    def numbers(step: int) -> Mapping[str, float]:
        loss = 5.0 - 0.004 * step if step < 260 else 3.96 - 0.001 * (step - 260)
        loss = math.nan if step == 300 else 100.0 if step in (50, 51) else loss
        return {STEP_SECONDS: 0.1, "loss": loss, "learning_rate": 1e-3 if step < 260 else 1e-4}

    write_rank(tmp_path, 0, range(400), numbers)
    found = of(tmp_path).stretches
    before, after = ([each for each in found if (each.first_step < 260) == early] for early in (True, False))
    assert before[-1].last_step == 259
    assert after[0].first_step == 260
    assert [each.slope for each in before] == pytest.approx([-4.0] * len(before), rel=1e-6)
    assert [each.slope for each in after] == pytest.approx([-1.0] * len(after), rel=1e-6)
    assert {each.learning_rate_first for each in before} == {1e-3}
    assert {each.learning_rate_last for each in after} == {1e-4}
    assert sum(each.not_finite for each in found) == 1
    first = before[0]
    losses = np.array([numbers(step)["loss"] for step in range(first.first_step, first.last_step + 1)])
    assert first.loss == np.median(losses)


def test_memory_and_utilization_that_were_logged(tmp_path: Path) -> None:
    """Mean, highest value and its rank; the score takes the mean of the devices and the throughput."""
    for rank in range(2):
        write_rank(
            tmp_path,
            rank,
            range(100),
            lambda step, rank=rank: {
                STEP_SECONDS: 0.5,
                "gpu_utilization/0": 80.0 + rank,
                "gpu_memory_used_bytes": 1e9 * (1 + rank) + step,
                "memorable": 5.0,
            },
        )
    found = of(tmp_path)
    use, memory = (next(each for each in found.devices.logged if each.name.startswith(n)) for n in ("gpu_u", "gpu_m"))
    assert use == ("gpu_utilization/0", 80.5, 81.0, 1)
    assert memory[1:] == (pytest.approx(1.5e9 + 49.5), 2e9 + 99, 1)
    assert len(found.devices.logged) == 2
    assert found.efficiency.score == pytest.approx(0.6 * 80.5 + 0.4 * 100)
    assert found.efficiency.rating == "Good"


def test_readings_of_a_performance_monitor(tmp_path: Path) -> None:
    """All devices of all files count; lines of another program are problems, and earlier readings another run's."""
    write_rank(
        tmp_path, 0, range(100), lambda step: {STEP_SECONDS: 0.5}, start_time="2026-11-03T21:34:40+0800", world_size=1
    )
    began = 1793712880.0
    for node in range(2):
        gpus = tuple(DeviceReading(str(n), "H", 10.0 * n + node, 40.0 + n, 80.0) for n in range(2))
        some = [PerformanceReading(began + at, gpus, 25.0 + at, 50.0) for at in (-100.0, 0.0, 10.0)]
        (tmp_path / f"performance-{node}.jsonl").write_text("".join(map(line, some)) + "no reading\n", encoding="utf-8")
    found, problems = analysed(tmp_path)
    assert [problem.line for problem in problems.kept] == [4, 4]
    assert [(each.source, each.id, each.readings) for each in found.devices.devices] == [
        (f"performance-{node}.jsonl", str(n), 2) for node in range(2) for n in range(2)
    ]
    assert found.devices.devices[3].utilization_percent == 11.0
    assert found.devices.devices[3].memory_percent == 100 * 41 / 80
    assert found.devices.hosts[0] == ("performance-0.jsonl", 2, 30.0, 50.0, 50.0)
    assert found.efficiency.gpu_utilization == np.mean([0, 10, 1, 11])
    assert found.efficiency.rating == "Critical"
    assert found.found == ["rating"]


def test_a_phase_that_one_rank_alone_has(tmp_path: Path) -> None:
    """Names are complete, whichever rank logs them."""
    for rank in range(4):
        write_rank(
            tmp_path,
            rank,
            range(50),
            lambda step, rank=rank: {STEP_SECONDS: 1.0, **({"phase/saving_seconds": 0.5} if rank == 2 else {})},
        )
    saving, rest = of(tmp_path).phases
    assert saving == ("saving", 50 * 0.5 / 4, 0.125, 50, 0.5)
    assert (rest.name, rest.share) == (None, 0.875)


def test_a_resumed_run_is_one(tmp_path: Path) -> None:
    """Steps that were done again count once, and slow steps after the resume are no drop."""
    write_rank(tmp_path, 0, range(150), lambda step: {STEP_SECONDS: 1.0}, time="Dec03_21-34-40")
    write_rank(
        tmp_path, 0, range(100, 300), lambda step: {STEP_SECONDS: 9.0 if step < 115 else 1.0}, time="Dec03_22-34-40"
    )
    found = of(tmp_path)
    assert (found.span.number, found.span.seconds) == (300, 285 + 15 * 9)
    assert found.drops == []


@pytest.mark.parametrize("sink", ["csv", "parquet", "sqlite"])
def test_every_format_gives_the_same(tmp_path: Path, sink: str) -> None:
    """Numbers that the sinks have written, NaN among them."""
    directory = tmp_path / "Dec03_21-34-40-rank0-0123abcd"
    writer = SINKS[sink](context(tmp_path, directory=directory, rank=0, steps_per_file=40))
    writer.open()
    for step in range(120):
        values = {STEP_SECONDS: SECONDS[0, step], "loss": math.nan if step == 7 else 2.0, "phase/data_seconds": 0.01}
        keys = tuple(map(Key, values))
        shapes, dtypes = ((),) * len(keys), ("float64",) * len(keys)
        rows = batch("run", step, {"value": [*values.values()]}, keys=keys, shapes=shapes, dtypes=dtypes)
        writer.write(snapshot(step, rows, ops=()))
    writer.close()
    found = of(tmp_path)
    assert found.span.seconds == pytest.approx(SECONDS[0, :120].sum())
    assert found.phases[0].seconds == pytest.approx(1.2)
    assert sum(stretch.not_finite for stretch in found.stretches) == 1


def test_a_real_run(output_dir: Path) -> None:
    """The numbers of a training with a monitor are those of its files, read by Python's own reader."""
    training = Training(numpy_harness, wg_distribution=True).begin()
    for step in range(60):
        with training.monitor.phase("data"):
            training.monitor.log(loss=1.0 / (step + 1), batch_size=4)
        training.step()
    training.end()
    values = numbers_in(output_dir)
    seconds = [value for (_, name), value in values.items() if name == STEP_SECONDS]
    found, problems = analysed(output_dir)
    assert problems.lines() == []
    assert (found.span.number, len(seconds)) == (60, 59)
    assert found.span.seconds == pytest.approx(sum(seconds))
    assert found.span.median == pytest.approx(np.median(seconds))
    assert found.rates[0].average == pytest.approx(4 * 59 / sum(seconds), rel=1e-6)
    data = sum(value for (step, name), value in values.items() if name == "phase/data_seconds" and step)
    assert found.phases[0].seconds == pytest.approx(data)
    assert found.stretches[-1].loss == pytest.approx(np.median([1.0 / (step + 1) for step in range(50, 60)]), rel=1e-5)
    assert found.costs[0].steps == 60


def test_json_has_no_nan(root: Path) -> None:
    """It is strict JSON with null for what is unknown."""
    found, problems = analysed(root)
    exported = as_json(found, problems)
    assert json.loads(json.dumps(exported, allow_nan=False)) == exported
    assert exported["efficiency"]["score"] is None
    assert exported["throughput"]["rates"][0]["unit"] == "samples"


def test_a_run_without_seconds_of_steps_is_refused(tmp_path: Path) -> None:
    """With advice; nothing is guessed."""
    write_rank(tmp_path, 0, range(3), lambda step: {"loss": 1.0})
    with pytest.raises(NoNumbersError, match=r"no step_seconds: set run\.enable"):
        analysed(tmp_path)
