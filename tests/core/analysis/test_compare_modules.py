"""Where two runs part within the tolerance: in which module, in which dtype, and where there is only rounding."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from typer.testing import CliRunner

from probe.cli import app
from probe.core.analysis.compare.compare import Comparison, compare
from probe.core.analysis.compare.explain import about, verdict
from probe.core.backend.numpy_moments import moments
from probe.core.language import in_language
from probe.core.moments import columns_for
from probe.core.output.sinks.context import SinkContext
from probe.core.output.sinks.csv import CsvSink
from probe.core.records import Batch, Key, Snapshot
from probe.core.storage.run_directory import write_manifest
from tests.core.analysis.test_report import PageFile
from tests.required import require

require("duckdb")

OPS = ("norm", "min", "max", "mean", "std")
COLUMNS = columns_for(OPS)
Array = npt.NDArray[Any]
Signals = dict[str, dict[Key, Array]]


NAMES = re.compile(r"block[.\w]*|param_\w+|actv\w*|grad_\w+|--\w+|micro step|rank|float\d+|norm|mean|min|max|std|inf")
"""Words of sentences that are the same in every language."""


def exact(x: Array) -> Array:
    """GELU by the normal distribution."""
    return x * 0.5 * (1 + np.vectorize(_erf)(x / np.sqrt(2)))


def _erf(x: float) -> float:
    from math import erf

    return erf(x)


def by_tanh(x: Array) -> Array:
    """GELU by the usual approximation."""
    return 0.5 * x * (1 + np.tanh(np.sqrt(2 / np.pi) * (x + 0.044715 * x**3)))


def step_of(step: int, gelu: Callable[[Array], Array] = exact, weight: float = 1.0, kind: type = np.float64) -> Signals:
    """A linear module, a GELU and a norm, within a block: what goes in and comes out, and the parameters."""
    random = np.random.default_rng(step)
    parameters = np.random.default_rng(1)
    x = random.normal(size=(16, 8)).astype(kind)
    w, b = (0.3 * parameters.normal(size=size).astype(kind) for size in ((8, 24), 24))
    w = weight * w
    h = (x @ w + b).astype(kind)
    g = gelu(h).astype(kind)
    y = ((g - g.mean()) / g.std()).astype(kind)
    modules = {"block.fc": (x, h), "block.act": (h, g), "block.norm": (g, y), "block": (x, y)}
    forward = {Key(name, ("input", "output")[n]): pair[n] for name, pair in modules.items() for n in (0, 1)}
    return {"param_origin": {Key("block.fc.weight"): w, Key("block.fc.bias"): b}, "actv": forward}


def write(
    root: Path,
    signals_of: Callable[[int], Signals],
    steps: range = range(3),
    dtypes: Mapping[str, str] | None = None,
    dtype: str = "torch.float32",
) -> Path:
    """Write a run of one rank as a monitored rank writes it.

    Args:
        dtypes: dtypes of some rows, by name.
        dtype: that of the others.
    """
    directory = root / "Dec03_21-34-40-rank0-00000000"
    directory.mkdir(parents=True)
    write_manifest(directory, {"rank": 0, "start_time": "2025-12-03T21:34:40+0800", "run": 0, "first_step": 0})
    sink = CsvSink(SinkContext(directory, root, 0, steps_per_file=2))
    sink.open()
    for step in steps:
        batches = [_batch(signal, step, rows, dtypes or {}, dtype) for signal, rows in signals_of(step).items()]
        sink.write(Snapshot(step, 0, 0.0, batches, OPS))
    sink.close()
    return root


def _batch(signal: str, step: int, rows: dict[Key, Array], dtypes: Mapping[str, str], dtype: str) -> Batch:
    block = np.array([moments([np.asarray(x, np.float64)], COLUMNS, 1e-8)[0] for x in rows.values()])
    names = (".".join(filter(None, (key.name, key.part))) for key in rows)
    return Batch(
        signal=signal,
        step=step,
        keys=tuple(rows),
        shapes=tuple(x.shape for x in rows.values()),
        dtypes=tuple(dtypes.get(name, dtype) for name in names),
        order=np.arange(len(rows)),
        columns={name: block[:, n] for n, name in enumerate(COLUMNS)},
        micro_stepped=signal == "actv",
    )


def both(root: Path, a: Callable[[int], Signals], b: Callable[[int], Signals], **options: Any) -> Comparison:
    return compare(write(root / "a", a, **options), write(root / "b", b, **options))


def in_single(step: int) -> Signals:
    return step_of(step, kind=np.float32)


def without_parameters(step: int) -> Signals:
    return {"actv": step_of(step, weight=1.0001)["actv"]}


def test_a_module_that_computes_otherwise_is_named(tmp_path: Path) -> None:
    """By what goes in and what comes out, although all rows are within the tolerance; the modules around it are not."""
    found = both(tmp_path, step_of, lambda step: step_of(step, by_tanh))
    assert (found.beyond, found.same, found.agrees) == (0, False, False)
    assert [(jump.module, jump.signal, jump.step) for jump in found.jumps] == [
        ("block.act", "actv", 0),
        ("block", "actv", 0),
    ]
    assert found.jumps[0].before == 0
    assert 2e-5 < found.jumps[0].after < 1e-3
    done = CliRunner().invoke(app, ["compare", str(tmp_path / "a"), str(tmp_path / "b")])
    assert done.exit_code == 1
    assert (
        "The runs part in module block.act: what goes into it is equal to the digits that were written" in done.output
    )
    assert "the same" not in done.output


def test_sentences_are_in_chinese_too(tmp_path: Path) -> None:
    """Whole, with the numbers of the English ones; names stay."""
    for number, other in enumerate((step_of, in_single, lambda step: step_of(step, by_tanh), without_parameters)):
        found = both(tmp_path / str(number), step_of, other)
        for english in (verdict(found), *about(found)):
            chinese = in_language(english, "zh_CN")
            assert Counter(re.findall(r"\d+", chinese)) == Counter(re.findall(r"\d+", english))
            assert re.findall(r"[A-Za-z]{3,}", NAMES.sub("", chinese)) == []


def test_rounding_within_modules_parts_nothing(tmp_path: Path) -> None:
    """A run in another precision agrees within the tolerance, which is less than to be the same."""
    found = both(tmp_path, step_of, in_single)
    assert (found.jumps, found.agrees, found.same) == ([], True, False)
    assert verdict(found).startswith("The runs agree within 0.001: 30 pairs of rows are within 0.001 of each other; ")
    assert "the same" not in verdict(found)


def test_the_json_and_the_page_say_within_too(tmp_path: Path) -> None:
    """The same is only what is equal to the digits that were written."""
    one, other = write(tmp_path / "a", step_of), write(tmp_path / "b", in_single)
    for run, same in ((one, True), (other, False)):
        page = tmp_path / "page.html"
        done = CliRunner().invoke(app, ["compare", str(one), str(run), "--json", "-o", str(page)])
        answer = json.loads(done.stdout)
        assert (done.exit_code, answer["same"], answer["agrees"]) == (0, same, True)
        assert ("the same" in answer["verdict"]) == ("are the same" in str(PageFile(page).answers)) == same


@pytest.mark.parametrize("parameters", [True, False])
def test_parameters_that_differ_are_no_fault_of_their_module(tmp_path: Path, parameters: bool) -> None:
    """They go into it; where they are not recorded, the first step of a run alone is judged."""

    def a(step: int) -> Signals:
        return step_of(step) if parameters else {"actv": step_of(step)["actv"]}

    def b(step: int) -> Signals:
        return step_of(step, weight=1.0001) if parameters else without_parameters(step)

    found = both(tmp_path, a, b, steps=range(5, 8))
    assert (found.beyond, found.jumps) == (0, [])
    if not parameters:
        begun = both(tmp_path / "begun", a, b)
        assert [jump.module for jump in begun.jumps][:1] == ["block.fc"]


def test_a_module_in_another_dtype_is_named(tmp_path: Path) -> None:
    """Its output first, whatever the tolerance."""
    usual = {f"block.{name}": "torch.bfloat16" for name in ("fc.output", "act.input", "act.output", "norm.input")}
    one = write(
        tmp_path / "a", step_of, dtypes=usual | dict.fromkeys(("block.norm.output", "block.output"), "torch.float32")
    )
    other = write(tmp_path / "b", step_of, dtypes=usual | {"block.fc.output": "torch.float32"})
    found = compare(one, other)
    assert not found.agrees
    assert (found.first[0].name, found.first[0].step, found.first[0].dtypes_differ) == ("block.fc.output", 0, True)
    assert "dtype torch.bfloat16 against torch.float32" in verdict(found)


def test_another_spelling_or_precision_of_a_whole_run_is_no_difference(tmp_path: Path) -> None:
    """Frameworks spell dtypes in their own way; a run in another precision is named as such."""
    a = write(tmp_path / "a", step_of)
    assert compare(a, write(tmp_path / "spelling", step_of, dtype="Float32")).same
    found = compare(a, write(tmp_path / "precision", step_of, dtype="torch.bfloat16"))
    assert (found.precision, found.beyond) == (["param_origin", "actv"], 0)
    assert "dtypes of most names differ, so that they are not compared: param_origin, actv" in list(about(found))


def with_key_bias(seed: int, size: float = 1e-9, late: float | None = None) -> Callable[[int], Signals]:
    """Gradients and parameters of which those of a key's bias are rounding, as an optimizer that divides by the size of
    the gradient makes them."""

    def signals(step: int) -> Signals:
        random, noise = np.random.default_rng(step), np.random.default_rng([seed, step])
        names = ("q.weight", "k.weight", "k.bias", "v.weight")
        made = {Key(name): random.normal(size=12) for name in names}
        bias = {Key("k.bias"): noise.normal(size=12)}
        moved = made | bias if late is None or step < 2 else made | {Key("k.bias"): np.full(12, late)}
        return {
            "param_origin": moved,
            "grad_reduced": made | {Key("k.bias"): size * bias[Key("k.bias")]},
            "exp_avg": made | bias,
        }

    return signals


def test_rows_that_are_rounding_differ_in_nothing(tmp_path: Path) -> None:
    """A parameter whose gradient is nothing but rounding in both runs, with its optimizer's state."""
    found = both(tmp_path, with_key_bias(1), with_key_bias(2))
    assert (found.beyond, found.agrees, found.same) == (0, True, False)
    assert found.largest < 1e-5
    real = both(tmp_path / "real", with_key_bias(1, 1e-3), with_key_bias(2, 1e-3))
    assert {row.name for row in real.first} == {"k.bias"}
    broken = both(tmp_path / "broken", with_key_bias(1), with_key_bias(2, late=np.nan))
    assert [(row.name, row.signal, row.step) for row in broken.first] == [("k.bias", "param_origin", 2)]
