"""Reference of everything that a configuration or a finding names: keys, rules and checks."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from inspect import getdoc
from typing import Any, NamedTuple

from pydantic import BaseModel
from pydantic.fields import FieldInfo

from probe.core.checks import CHECKS
from probe.core.config.errors import nearest
from probe.core.config.schema import Settings
from probe.core.fields import describe, inner_sections
from probe.core.language import invalid, message
from probe.core.prechecks import PRECHECKS
from probe.core.rules import RULES
from probe.core.run_state.rules import RUN_RULES

JUDGES: Mapping[str, Mapping[str, Any]] = {
    "rule about rows": RULES,
    "rule about numbers of the run": RUN_RULES,
    "check of the loop": CHECKS,
    "check before training": PRECHECKS,
}
"""Classes that judge a run, by their kind."""


class KeyReference(NamedTuple):
    """Reference of one key."""

    key: str
    rule: str
    """Rule or channel whose argument this is, or empty."""
    type: str
    default: str
    range: str
    meaning: str

    @property
    def short(self) -> str:
        """First sentence of the meaning."""
        return re.split(r"(?<=\.) |(?<=。)", self.meaning, maxsplit=1)[0]


def form_of(entry: KeyReference) -> str:
    """Return the template of the text about the type and the range."""
    return f"{entry.type} ({{range}})" if entry.range else entry.type


class JudgeReference(NamedTuple):
    """Reference of a rule or of a check."""

    name: str
    kind: str
    """Key of :data:`JUDGES`."""
    title: str
    meaning: str
    why: str
    sees: str
    remedy: str
    """Empty if none is known."""
    source: str


class References(NamedTuple):
    """Everything that a name stands for."""

    keys: list[KeyReference]
    judges: list[JudgeReference]


def entries(model: type[BaseModel] = Settings, above: str = "", rule: str = "") -> Iterator[KeyReference]:
    """Reference of every key of ``model`` and of the mappings inside it, in the order of their declaration."""
    for name, field in model.model_fields.items():
        key = f"{above}.{name}" if above else name
        form = describe(field.annotation, field.metadata)
        meaning = " ".join((field.description or "").split())
        yield KeyReference(key, rule, form.type, _default(field), form.range, meaning)
        for inner, inner_rule in inner_sections(field):
            yield from entries(inner, key, inner_rule or rule)


def _default(field: FieldInfo) -> str:
    if field.is_required():
        return "required"
    value = field.get_default(call_default_factory=True, validated_data={})
    if isinstance(value, BaseModel):
        return "{}"
    return "none" if value is None else json.dumps(value, default=lambda rule: rule.rule_name)


def judges() -> Iterator[JudgeReference]:
    """Reference of every rule and check."""
    for kind, classes in JUDGES.items():
        for name, judge in classes.items():
            about = " ".join((getdoc(judge) or "").partition("\n\n")[0].split())
            remedy = getattr(judge, "remedy", "")
            yield JudgeReference(name, kind, judge.title, about, judge.why, judge.sees, remedy, judge.source)


def references(name: str) -> References:
    """Return the keys and judges of a name.

    Args:
        name: a key as errors print it, such as ``alert.rules[0].args``, the last part of one, or a rule or check.
            Empty: all keys.

    Raises:
        ValueError: if there is none, with the nearest name.
    """
    key = re.sub(r"\[[^\]]*\]", "", name)
    keys, named = [*entries()], [judge for judge in judges() if name.casefold() == judge.name.casefold()]
    if named:
        return References([], named)
    chosen = [entry for entry in keys if not key or f"{entry.key}.".startswith(f"{key}.")]
    chosen = chosen or [entry for entry in keys if entry.key.endswith(f".{key}")]
    if not chosen:
        close = nearest(key, [*(entry.key for entry in keys), *(judge.name for judge in judges())])
        hint = message("; did you mean {name}?", name=close) if close else message("; `probe config explain` lists all")
        parts = [entry.key for entry in keys if key.casefold() in entry.key.casefold()][:9]
        if not close and parts:
            hint = message("; there are {names}", names=", ".join(dict.fromkeys(parts)))
        raise invalid("no key {key}{hint}", key=key, hint=hint)
    return References(chosen, [])
