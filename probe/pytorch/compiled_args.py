"""Arguments and outputs of modules as text, which operators accept besides tensors.

The text is a literal such as ``((0, None), {'mask': 1, 'causal': True})``, in which a number is that of a tensor.
"""

from __future__ import annotations

import ast
import enum
import functools
import logging
from collections import OrderedDict, defaultdict
from collections.abc import Iterable
from dataclasses import fields, is_dataclass
from typing import Any

import torch

_log = logging.getLogger("probe")


def written(value: Any, tensors: list[torch.Tensor], depth: int) -> str:
    """Return ``value`` as text; append its tensors to ``tensors``. ``torch.compile`` traces this plain code whole.

    Numbers are left out: the compiler would compare them with those of the next call. Tensors of subclasses (DTensor)
    are left out: an operator would need their distribution over ranks.
    """
    if isinstance(value, torch.Tensor):
        if type(value) not in (torch.Tensor, torch.nn.Parameter) or value.device.type == "meta":
            return left_out()
        tensors.append(value)
        return str(len(tensors) - 1)
    if isinstance(value, (bool, str)):
        return repr(value)
    if isinstance(value, enum.Enum):
        return repr(value.name)
    return _container(value, tensors, depth - 1) if depth else "None"


@functools.cache
def _warn_once() -> None:
    _log.warning(
        "tensors of subclasses, such as DTensor, are not recorded inside compiled graphs, nor are those on 'meta'"
    )


def left_out() -> str:
    """Return the text of a tensor that is left out; the compiler calls this, not the graph."""
    _warn_once()
    return "None"


def _container(value: Any, tensors: list[torch.Tensor], depth: int) -> str:
    if type(value) in (dict, OrderedDict, defaultdict):
        return _mapping(value.items(), tensors, depth)
    if type(value) in (tuple, list) or (isinstance(value, tuple) and hasattr(type(value), "_fields")):
        inside = "".join([written(item, tensors, depth) + ", " for item in value])
        return f"({inside})" if isinstance(value, tuple) else f"[{inside}]"
    if is_dataclass(value) and not isinstance(value, type):
        members = [(field.name, getattr(value, field.name)) for field in fields(value)]
        if isinstance(value, dict):  # an output of transformers, which holds no None
            members = [(name, member) for name, member in members if member is not None]
        return _mapping(members, tensors, depth)
    return "None"


def _mapping(items: Iterable[tuple[Any, Any]], tensors: list[torch.Tensor], depth: int) -> str:
    inside = "".join([f"{str(key)!r}: {written(item, tensors, depth)}, " for key, item in items])
    return "{" + inside + "}"


def read(form: str, tensors: list[torch.Tensor]) -> Any:
    """Return the values that :func:`written` has made into text, with these tensors; a dataclass becomes a mapping."""
    return _built(_literal(form), tensors)


@functools.lru_cache(maxsize=4096)
def _literal(form: str) -> Any:
    return ast.literal_eval(form)


def _built(form: Any, tensors: list[torch.Tensor]) -> Any:
    if isinstance(form, dict):
        return {key: _built(part, tensors) for key, part in form.items()}
    if isinstance(form, (tuple, list)):
        return type(form)(_built(part, tensors) for part in form)
    return tensors[form] if isinstance(form, int) and not isinstance(form, bool) else form
