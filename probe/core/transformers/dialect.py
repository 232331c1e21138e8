"""MindSpore Transformers as a dialect: every key that is read of its configuration, with its section and its effect."""

from __future__ import annotations

from collections.abc import Mapping

from probe.core.config.dialect import TOP, Dialect, DialectKey, keys_of, not_here
from probe.core.fields import Section
from probe.core.transformers.schema import (
    ELSEWHERE,
    NOT_HERE,
    OTHER_SECTIONS,
    TOP_KEYS,
    LossSection,
    StateSection,
    TensorboardSection,
    TrainState,
    TrainStateEvents,
    TrainStateSection,
)
from probe.core.transformers.text_page import NAMES

MONITOR, EVENTS, CALLBACKS, DYNAMIC = "monitor_config", "tensorboard", "callbacks", "monitor"
"""Sections that are read."""
_EVERYWHERE = (
    *("target", "invert", "step_interval", "type", "log_interval", "queue_size", "local_norm", "local_loss"),
    *(LossSection.model_fields.keys() - {"per_print_times"}),
    *(name for keys in OTHER_SECTIONS.values() for name in keys),
    *(set(NAMES) - {MONITOR}),
)
"""Names that other sections of the program have, too."""
_SECTIONS: dict[str, type[Section]] = {
    MONITOR: StateSection,
    EVENTS: TensorboardSection,
    CALLBACKS: LossSection,
    DYNAMIC: TrainStateSection,
    f"{DYNAMIC}.train_state": TrainState,
    f"{DYNAMIC}.tensorboard": TrainStateEvents,
}


def _supported(key: DialectKey) -> DialectKey:
    """Return a key of a section, without an effect if it has none here."""
    return key._replace(effect=NOT_HERE[key.name], supported=False) if key.name in NOT_HERE else key


def _asks(value: object) -> bool:
    """Return whether a value of a key that is not supported asks for anything; of a section, its switches do."""
    if isinstance(value, Mapping):
        return any(_asks(below) for key, below in value.items() if str(key).endswith(("format", "_on", "threshold")))
    return bool(value)


TRANSFORMERS = Dialect(
    "MindSpore Transformers",
    (
        *(DialectKey(TOP, name, effect) for name, effect in TOP_KEYS.items()),
        DialectKey(TOP, DYNAMIC, "Section of the dynamic graph, instead of `monitor_config`."),
        *(DialectKey(TOP, name, "A tag of the TEXT page.") for name in NAMES if name not in TOP_KEYS),
        *(_supported(key) for section, model in _SECTIONS.items() for key in keys_of(model, section)),
        *(DialectKey(section, *pair) for section, keys in OTHER_SECTIONS.items() for pair in keys.items()),
        *(key for section, keys in ELSEWHERE.items() for key in not_here(section, keys)),
    ),
    ambiguous=_EVERYWHERE,
    sections=(TOP, *_SECTIONS.keys() - {CALLBACKS}),
    asks=_asks,
)
