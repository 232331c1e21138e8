"""Names of modules as earlier tools shortened them: ``0.mlp.fc`` for ``decoder.layers.0.mlp.fc``.

Their documentation has such names in ``targets`` and ``l2_targets``. A short name is read as the full name in the
model, unless something in the model has exactly the short name.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Iterable, Iterator
from itertools import chain
from typing import Any, NamedTuple

from probe.core.backend.protocols import Hooks
from probe.core.config.schema import Settings
from probe.core.instrumentation.selection import names_of

_BEHIND = tuple(re.compile(rf"(?:.*?\.)??{head}\.(.+)") for head in ("layers?", "embeddings?"))
_STAGE = re.compile(r"(\d+):(.*)", re.DOTALL)

_log = logging.getLogger("probe")


def older_name(name: str) -> str | None:
    """Return the rest of ``name`` after the first layers component or, if there is none, after the first embedding
    component; None if there is neither."""
    matches = (pattern.fullmatch(name) for pattern in _BEHIND)
    return next((match[1] for match in matches if match), None)


class _Known(NamedTuple):
    """The names of a model chunk."""

    stage: int
    names: dict[str, None]
    older: dict[str, list[str]]
    """The full names that each older name may mean."""


def there(hooks: Hooks, chunks: Iterable[tuple[int, Any]]) -> Iterator[tuple[int, list[str]]]:
    """Yield the stage of each model chunk with the names of its modules and parameters."""
    for stage, model in chunks:
        yield stage, [name for name, _ in chain(hooks.modules(model), hooks.parameters(model))]


def read(settings: Settings, chunks: Iterable[tuple[int, Iterable[str]]]) -> Settings:
    """Return ``settings`` with the model's own names in ``targets`` and ``l2_targets``.

    Args:
        chunks: as :func:`there` yields them; read only if ``settings`` name anything.
    """
    if not settings.targets and not settings.recording_l2_features:
        return settings
    in_chunks = [_known(stage, names) for stage, names in chunks]
    targets = {new: places for name, places in settings.targets.items() for new in _present(name, in_chunks, "targets")}
    hooks = {hook: names for hook, names in settings.l2_targets if names}
    present = {
        hook: tuple(new for name in names for new in _present(name, in_chunks, f"l2_targets.{hook}"))
        for hook, names in hooks.items()
    }
    return settings.model_copy(
        update={"targets": targets, "l2_targets": settings.l2_targets.model_copy(update=present)}
    )


def _known(stage: int, names: Iterable[str]) -> _Known:
    chunk = _Known(stage, {}, {})
    for full in names:
        chunk.names.update(dict.fromkeys(names_of(full)))
        if (older := older_name(full)) is not None:
            chunk.older.setdefault(older, []).append(full)
    return chunk


def _present(target: str, in_chunks: list[_Known], key: str) -> Iterator[str]:
    """Yield ``target`` or, if nothing has that name, the full names for which it is an older name."""
    prefix = _STAGE.fullmatch(target)
    name = prefix[2] if prefix else target
    chunks = [chunk for chunk in in_chunks if prefix is None or chunk.stage == int(prefix[1])]
    meant = [f"{chunk.stage}:{full}" for chunk in chunks for full in chunk.older.get(name, ())]
    if not meant or any(name in chunk.names or target in chunk.names for chunk in chunks):
        yield target
        return
    _log.info("%s: %s is taken for %s", key, target, ", ".join(meant))
    yield from meant
