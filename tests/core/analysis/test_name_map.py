"""Runs whose names differ: mapping files, and what the two frameworks call their parameters."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from probe.core.analysis.compare.compare import compare
from probe.core.analysis.compare.name_map import NameMap, Pairs, entry, pair, read
from probe.core.analysis.compare.pairing import Options
from tests.core.analysis.compare_data import Array, Where, write_run
from tests.required import require

pytestmark = pytest.mark.slow

require("duckdb")

RENAMED = {"layers.0": "h.0", "layers.1": "h.1", "embedding": "wte", "head": "lm.head"}


def written(tmp_path: Path, content: object) -> Path:
    path = tmp_path / "map.json"
    path.write_text(json.dumps(content), encoding="utf-8")
    return path


@pytest.mark.parametrize(
    ("of_a", "of_b", "name", "expected"),
    [
        ("fc", "linear", "fc", "linear"),
        ("fc", "linear", "fc.weight", "linear.weight"),
        ("fc", "linear", "fc.output.call1", "linear.output.call1"),
        ("fc", "linear", "fc2.weight", None),
        ("fc", "linear", "block.fc.weight", None),
        ("layers.*.fc", "h.*.linear", "layers.12.fc.bias", "h.12.linear.bias"),
        ("layers.*.fc", "h.*.linear", "layers.1.attention.fc.bias", None),
        ("*.*.fc", "x.*_*.y", "layers.3.fc", "x.layers_3.y"),
        ("a+b", "c", "a+b.w", "c.w"),
        (r"re:layers\.(\d+)\.(.*)", r"\2.of\1", "layers.7.fc.bias", "fc.bias.of7"),
        (r"re:layers\.(\d+)", r"h\1", "layers.7.fc", None),
    ],
)
def test_a_line_of_a_mapping(of_a: str, of_b: str, name: str, expected: str | None) -> None:
    """A name stands for all beneath it, ``*`` for one component; ``re:`` begins an expression for a whole name."""
    assert entry(of_a, of_b).map(name) == expected


def test_renamed_modules_are_compared(tmp_path: Path) -> None:
    """With a mapping of all names runs are the same, and a row that differs is listed under both names."""
    place = Where("actv", "layers.1.fc1", 2, 1, 0)

    def change(at: Where, tensor: Array) -> Array:
        return tensor * (2 if at == place else 1)

    a, b = write_run(tmp_path / "a"), write_run(tmp_path / "b", rename=RENAMED)
    c = write_run(tmp_path / "c", change, rename=RENAMED)
    names = read(written(tmp_path, {"names": {"layers.*": "h.*", "embedding": "wte", "head": "lm.head"}}))
    assert compare(a, b, Options(mapping=names)).same
    (row,) = compare(a, c, Options(mapping=names)).first
    assert (row.name, row.name_b) == ("layers.1.fc1.output", "h.1.fc1.output")


def test_signals_may_be_called_otherwise(tmp_path: Path) -> None:
    """A signal of A is compared with that of B by the mapping; without one, it is in A alone."""
    a, b = write_run(tmp_path / "a"), write_run(tmp_path / "b", signals={"grad_reduced": "mean_grad"})
    found = compare(a, b)
    assert (found.only_signals.a, found.only_signals.b, found.same) == (["grad_reduced"], ["mean_grad"], False)
    path = tmp_path / "map.yaml"
    path.write_text("signals:\n  grad_reduced: mean_grad\n", encoding="utf-8")
    assert compare(a, b, Options(mapping=read(path))).same


def test_runs_without_a_common_name_are_not_the_same(tmp_path: Path) -> None:
    """Runs without common rows are not the same; the names of each are listed."""
    a, b = write_run(tmp_path / "a"), write_run(tmp_path / "b", rename={"": "model"})
    rename = {module: f"model.{module}" for module in ("embedding", "layers", "head")}
    c = write_run(tmp_path / "c", rename=rename)
    assert compare(a, b).same
    found = compare(a, c, Options(common=True))
    assert (found.rows, found.same) == (0, False)
    assert "grad_reduced head.bias (6 rows) (nearest: 'model.head.bias')" in found.only_names.a


NAMES_A = ["fc.weight", "fc.bias", "norm.weight", "norm.bias", "embedding.weight", "norm.input"]
NAMES_B = ["fc.weight", "fc.bias", "norm.gamma", "norm.beta", "embedding.embedding_table", "norm.input"]


def test_frameworks_names_of_parameters_are_known() -> None:
    """Weights and biases of norms and embeddings have other names on MindSpore; both ways round, and only across."""
    wanted = dict(zip(NAMES_A[2:5], NAMES_B[2:5], strict=True))
    assert pair(NameMap(), NAMES_A, NAMES_B, across=True) == Pairs(wanted, 3)
    assert pair(NameMap(), NAMES_B, NAMES_A, across=True) == Pairs({b: a for a, b in wanted.items()}, 3)
    assert pair(NameMap(), NAMES_A, NAMES_B, across=False) == Pairs({}, 0)


@pytest.mark.parametrize(("dtype", "is_same"), [("Float32", True), ("torch.float32", False)])
def test_a_framework_that_no_manifest_names_is_known_by_its_dtypes(tmp_path: Path, dtype: str, is_same: bool) -> None:
    """As in files of the existing tool: MindSpore writes Float32."""
    a = write_run(tmp_path / "a", steps=range(2), framework="")
    gamma = {"layers.0.fc1.weight": "layers.0.fc1.gamma"}
    b = write_run(tmp_path / "b", steps=range(2), framework="", dtype=dtype, rename=gamma)
    found = compare(a, b)
    assert (found.same, found.by_framework) == (is_same, int(is_same))


def test_a_mapping_goes_before_the_frameworks_names() -> None:
    """The file's entry for a name holds."""
    names = NameMap((entry("norm.weight", "fc.other"),))
    assert pair(names, NAMES_A, [*NAMES_B, "fc.other"], across=True).renamed["norm.weight"] == "fc.other"


WRONG = [
    ({"names": {"layer.0": "h.0"}}, "'layer.0' is no name of A (nearest: 'layers.0')"),
    ({"names": {"layers.0": "g.0"}}, "'g.0' is no name of B: expected 'g.0.fc1.bias' there (nearest: 'h.0')"),
    ({"names": {"layers.*": "h"}}, "'layers.*': 'h': expected as many * on both sides"),
    ({"names": {"re:(": "h"}}, "expected a regular expression and its replacement"),
    ({"names": {"re:layers": r"\1"}}, "expected a regular expression and its replacement"),
    ({"names": {"layers.0": "h.0", "layers.1": "h.0"}}, "of A would both be 'h.0.fc1.bias' of B"),
    ({"names": {"layers.0": 3}}, "names: 'layers.0': expected a text for a text; there is 3"),
    ({"names": ["layers.0"]}, "names: expected names of A, each with that of B; there is list"),
    ({"name": {}}, "unknown key 'name' (nearest: 'names'); there are names, signals"),
    (["layers.0"], 'expected {"names": {...}, "signals": {...}}; there is list'),
    ({"signals": {"grad_reduce": "actv"}}, "signals: 'grad_reduce' is no signal of A (nearest: 'grad_reduced')"),
    ({"signals": {"actv": "moment"}}, "signals: 'moment' is no signal of B"),
]


@pytest.fixture(scope="module")
def pair_of_runs(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    root = tmp_path_factory.mktemp("runs")
    return write_run(root / "a", steps=range(2)), write_run(root / "b", steps=range(2), rename=RENAMED)


@pytest.mark.parametrize(("content", "expected"), WRONG)
def test_what_is_wrong_with_a_mapping_is_told(
    tmp_path: Path, pair_of_runs: tuple[Path, Path], content: object, expected: str
) -> None:
    """The message has the file, the expected form, and the nearest name."""
    path = written(tmp_path, content)
    with pytest.raises(ValueError) as told:  # noqa: PT011 - its text is compared below
        compare(*pair_of_runs, Options(mapping=read(path)))
    assert expected in str(told.value)
    assert all(line.startswith(str(path)) for line in str(told.value).splitlines())


def test_everything_wrong_is_told_at_once(tmp_path: Path, pair_of_runs: tuple[Path, Path]) -> None:
    """Each unknown name has its line."""
    path = written(tmp_path, {"names": {"layer.0": "h.0", "embeding": "wte", "head": "lm.hat"}})
    with pytest.raises(ValueError) as told:  # noqa: PT011 - its text is compared below
        compare(*pair_of_runs, Options(mapping=read(path)))
    assert len(str(told.value).splitlines()) == 3


@pytest.mark.parametrize(("name", "text"), [("map.json", "{"), ("map.yaml", "a: [")])
def test_a_file_that_is_no_mapping_is_told(tmp_path: Path, name: str, text: str) -> None:
    """This includes a file that does not exist."""
    path = tmp_path / name
    with pytest.raises(ValueError, match=f"{name}: expected a mapping file"):
        read(path)
    path.write_text(text, encoding="utf-8")
    with pytest.raises(ValueError, match=f"{name}: expected {path.suffix[1:].upper()}"):
        read(path)
