"""Answers in JSON against the schema that the package has."""

from __future__ import annotations

import json
from typing import Any

from probe.agents.schema import ANSWERS


def answer_of(command: str, text: str) -> dict[str, Any]:
    """The answer of a command: it has the fields of the schema, each of its type, and no other one."""
    model = ANSWERS[command]
    model.model_validate_json(text, extra="forbid", by_name=False)
    answer: dict[str, Any] = json.loads(text)
    assert (answer["schema_version"], answer["command"]) == (1, command)
    return answer
