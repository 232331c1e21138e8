"""Names as earlier tools shortened them mean what the model has."""

from __future__ import annotations

from typing import Any

import pytest

from probe.core.config.load import load
from probe.core.config.schema import Settings
from probe.core.instrumentation.target_aliases import older_name, read

DECODER = [
    "",
    "embedding.word_embeddings",
    "decoder.layers.0.mlp",
    "decoder.layers.0.mlp.linear_fc2",
    "decoder.layers.0.mlp.linear_fc2.weight",
    "decoder.layers.10.mlp",
]


@pytest.mark.parametrize(
    ("name", "older"),
    [
        ("module.decoder.layers.63.mlp.linear_fc2", "63.mlp.linear_fc2"),
        ("a.layers.1.b.layers.2.c", "1.b.layers.2.c"),
        ("layer.3.attention", "3.attention"),
        ("model.embedding.word_embeddings.weight", "word_embeddings.weight"),
        ("embeddings.position", "position"),
        ("encoder.players.0.mlp", None),
        ("decoder.layers", None),
        ("fc", None),
    ],
)
def test_what_earlier_tools_called_it(name: str, older: str | None) -> None:
    """All up to the first layers component is gone, or up to the first embedding component."""
    assert older_name(name) == older


def targets(*names: str, there: list[str], more: Any = None) -> list[str]:
    """The targets that are meant by ``names`` in a model chunk, and another where there is one."""
    chunks = [(0, there), *([(1, more)] if more else [])]
    return list(read(load({"targets": {name: {} for name in names}}), chunks).targets)


@pytest.mark.parametrize("given", ["0:0.mlp.linear_fc2", "0.mlp.linear_fc2"])
def test_a_target_by_its_older_name(given: str) -> None:
    """With the stage in front or without."""
    assert targets(given, there=DECODER) == ["0:decoder.layers.0.mlp.linear_fc2"]


def test_what_the_model_has_goes_first() -> None:
    """A name that something has, in full or squashed, is left as it is, and so is one that nothing ever had."""
    children = ["0", "0.mlp", "1", "1.layers.0.mlp", "1.layers.2.fc"]
    given = ["0:0.mlp", "0.mlp", "layers.2.fc", "0:nowhere", "7:2.fc", "1"]
    assert targets(*given, there=children) == given


def test_all_that_had_the_name_are_meant() -> None:
    """An encoder and a decoder; and every stage, unless one is named."""
    both = ["encoder.layers.0.mlp", "decoder.layers.0.mlp"]
    assert targets("0.mlp", there=both) == [f"0:{name}" for name in both]
    assert targets("0.mlp", there=both[:1], more=both[1:]) == ["0:encoder.layers.0.mlp", "1:decoder.layers.0.mlp"]
    assert targets("1:0.mlp", there=both[:1], more=both[1:]) == ["1:decoder.layers.0.mlp"]


def test_places_stay_with_their_target() -> None:
    """Places chosen under an older name are chosen under the module's own name."""
    found = read(load({"targets": {"0:10.mlp": {"output": "tensor"}, "fc": {}}}), [(0, DECODER)]).targets
    assert {name: str(target.output) for name, target in found.items()} == {
        "0:decoder.layers.10.mlp": "tensor",
        "fc": "None",
    }


def test_modules_of_features() -> None:
    """The documentation's own example; a list that is empty stays so, and one that is missing stays missing."""
    hooks = {"attention_hook": ["0:0.mlp", "0:1.mlp"], "linear_hook": []}
    read_ = read(load({"recording_l2_features": True, "l2_targets": hooks}), [(0, DECODER)]).l2_targets
    assert read_.attention_hook == ("0:decoder.layers.0.mlp", "0:1.mlp")
    assert (read_.linear_hook, read_.moe_router_weight_hook) == ((), None)


def test_without_names_nothing_is_looked_at() -> None:
    """Settings that name nothing are the same object."""
    settings = Settings()
    assert read(settings, iter(())) is settings
