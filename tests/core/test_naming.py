"""Names as users read them."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

from probe.core import naming
from probe.core.instrumentation.selection import named
from probe.core.naming import SIGNALS, row_name, signal_of, squash_name, tag
from probe.core.records import Key
from tests.sources import parsed


@pytest.mark.parametrize(
    ("full", "squashed"),
    [
        ("module.language_model.encoder.layers.0.mlp.weight", "layers.0.mlp.weight"),
        ("a.layers.1.b.layers.2.c", "layers.2.c"),
        ("a.layer.3.w", "layer.3.w"),
        ("a.embedding.word_embeddings.weight", "embedding.word_embeddings.weight"),
        ("a.embeddings.word.weight", "embeddings.word.weight"),
        ("m.final_layernorm.weight", "final_layernorm.weight"),
        ("m.output_layer.weight", "output_layer.weight"),
        ("visual.blocks.0.norm1.weight", "norm1.weight"),
        ("model.embed_tokens.weight", "model.embed_tokens.weight"),
        ("norm.weight", "norm.weight"),
        ("layers.0.w", "layers.0.w"),
        ("layers.0.norm1.weight", "layers.0.norm1.weight"),
        ("layers.0.attention.output.weight", "layers.0.attention.output.weight"),
        ("model.layers.0.norm.weight", "layers.0.norm.weight"),
        ("m.final.layers", "final.layers"),
        ("", ""),
    ],
)
def test_squashing(full: str, squashed: str) -> None:
    """A name is cut to its last layer, embedding, final, output or norm component: the first of these decides."""
    assert squash_name(full) == squashed


def watched(squash: bool, *full_names: str, stage: int = 0) -> list[str]:
    things = [(full, object()) for full in full_names]
    return [thing.name for thing in named(stage, things, full_names, set(), squash)]


def test_names_are_full_unless_squashed() -> None:
    """Without squash_name a name stays as the framework has it."""
    assert watched(False, "m.layers.0.w", "m.layers.1.w") == ["m.layers.0.w", "m.layers.1.w"]
    assert watched(True, "m.layers.0.w", "m.layers.1.w") == ["layers.0.w", "layers.1.w"]


def test_names_that_would_become_the_same_stay_full() -> None:
    """Two encoders with the same layer names keep different names, whichever comes first; other names are shortened."""
    names = ["a.layers.0.w", "b.layers.0.w", "a.layers.1.w"]
    assert watched(True, *names) == ["a.layers.0.w", "b.layers.0.w", "layers.1.w"]
    assert watched(True, *reversed(names)) == ["layers.1.w", "b.layers.0.w", "a.layers.0.w"]


def test_what_comes_later_changes_no_name() -> None:
    """Rows have been written under the short name: it stays, and the other is called by its full name."""
    taken = set[tuple[int, str]]()
    (first,) = named(0, [("a.layers.0.w", object())], ["a.layers.0.w"], taken, True)
    (later,) = named(0, [("b.layers.0.w", object())], ["a.layers.0.w", "b.layers.0.w"], taken, True)
    assert [first.name, later.name] == ["layers.0.w", "b.layers.0.w"]


def test_no_name_is_squashed_to_the_full_name_of_another() -> None:
    """Whichever comes first, a thing whose own name is short keeps it for itself."""
    assert watched(True, "visual.layers.0", "layers.0") == ["visual.layers.0", "layers.0"]
    assert watched(True, "layers.0", "visual.layers.0") == ["layers.0", "visual.layers.0"]


def test_stages_do_not_take_names_from_each_other() -> None:
    """Chunks of a virtual pipeline repeat names."""
    taken, full = set[tuple[int, str]](), "m.layers.0.w"
    names = [[thing.name for thing in named(stage, [(full, object())], [full], taken, True)] for stage in (0, 1)]
    assert names == [["layers.0.w"]] * 2


@pytest.mark.parametrize(
    ("signal", "key", "micro_stepped", "expected"),
    [
        ("actv", Key("fc", "input", 2), True, "0:fc.input:2/rank3/actv"),
        ("actv", Key("fc", "output_1", 0, 0, 1), True, "1:fc.output_1:0/rank3/actv"),
        ("actv", Key("fc", "input", 1, 2), True, "0:fc.input:1.call2/rank3/actv"),
        ("actv_grad", Key("", "input"), True, "0:.input:0/rank3/actv_grad"),
        ("grad_reduced", Key("fc.weight"), False, "0:fc.weight/rank3/post_grad"),
        ("grad_unreduced", Key("fc.weight", "", 1), True, "0:fc.weight:1/rank3/pre_grad"),
        ("exp_avg", Key("fc.weight"), False, "0:fc.weight/rank3/exp_avg"),
        ("momentum_buffer", Key("fc.weight"), False, "0:fc.weight/rank3/momentum_buffer"),
    ],
)
def test_tags(signal: str, key: Key, micro_stepped: bool, expected: str) -> None:
    """Tags are those of the documentation, except for repeated calls."""
    assert tag(signal, key, 3, micro_stepped) == expected


def test_tags_tell_every_row_apart() -> None:
    """No two keys of a signal share a tag."""
    keys = [
        Key(n, p, m, c, s) for n in ("a", "b") for p in ("", "input") for m in (0, 1) for c in (0, 1) for s in (0, 1)
    ]
    assert len({tag("actv", key, 0, True) for key in keys}) == len(keys)


def test_row_names() -> None:
    """Activations carry their part, the root module has no name of its own."""
    assert row_name(Key("fc", "input_0")) == "fc.input_0"
    assert row_name(Key("", "output")) == ".output"
    assert row_name(Key("fc.weight")) == "fc.weight"


def test_optimizer_state_comes_between_gradients_and_updated_weights() -> None:
    """Any signal that is not fixed is optimizer state."""
    assert SIGNALS["grad_reduced"].phase < signal_of("exp_avg").phase < SIGNALS["param_updated"].phase
    assert signal_of("square_avg").task == "square_avg"


ROOT = Path(__file__).parents[2]
WRITTEN = {naming.STEP_SECONDS, naming.TOKENS_PER_SECOND, naming.MODEL_TFLOPS, naming.OUTSIDE_SECONDS}
"""Numbers of the run that have names of our own; the others have words that also name other things."""
OTHERWISE = {
    "probe/core/naming.py": "their home",
    "probe/core/analysis/performance/export.py": "a field of the JSON of `probe performance`",
    "probe/services/logs/metrics.py": "units in logs of other programs",
    "probe/services/logs/names.py": "names in logs of other programs",
    "probe/services/server/app.py": "a field of the page's JSON and of the server's points",
}


def literals(tree: ast.AST) -> Iterator[tuple[int, str]]:
    """Line and text of each string that is a whole literal."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            yield node.lineno, node.value


def read_by_literal(tree: ast.AST) -> Iterator[tuple[int, str]]:
    """Line and name of each ``step.values["name"]``, ``step.values.get("name")`` and their like."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Subscript):
            holder, key = node.value, node.slice
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.args:
            holder, key = node.func.value, node.args[0]
            if node.func.attr not in ("get", "setdefault", "pop"):
                continue
        else:
            continue
        of_step = isinstance(holder, ast.Attribute) and holder.attr == "values"
        if of_step and isinstance(key, ast.Constant) and isinstance(key.value, str):
            yield node.lineno, key.value


def test_numbers_of_the_run_are_named_in_one_place() -> None:
    """Whoever writes or reads one, tests included, imports its name: so no reader waits for one that nobody writes."""
    spelled = []
    for path in sorted([*ROOT.glob("probe/**/*.py"), *ROOT.glob("tests/**/*.py")]):
        name = path.relative_to(ROOT).as_posix()
        source = path.read_text(encoding="utf-8")
        tree = parsed(source)
        found = [] if name in OTHERWISE else [(line, text) for line, text in literals(tree) if text in WRITTEN]
        if "RunStep" in source and name.startswith("probe/"):
            found += read_by_literal(tree)
        spelled += [f"{name}:{line}: {text}" for line, text in found]
    assert spelled == []
