"""Watch of torch's loss functions: the scores and labels that they get, and the losses that they return."""

from __future__ import annotations

import functools
import inspect
import math
from collections.abc import Callable
from typing import Any

import torch
from torch.nn import functional

from probe.core.checks.loss_calls import Form, LossCall, Relation
from probe.core.door import FaultCounter, attempt, compiling, passage, replace
from probe.pytorch.prechecks.digests import digest

FUNCTIONS = (
    *("cross_entropy", "nll_loss", "kl_div", "binary_cross_entropy_with_logits", "binary_cross_entropy"),
    *("mse_loss", "l1_loss", "smooth_l1_loss", "huber_loss"),
)
OVER_CLASSES = "cross_entropy", "nll_loss"
MOST_SCORES = 1 << 22
"""Scores that are looked at, in whole rows at even distances."""
CLOSE, CLOSE_HALF = 1e-4, 0.05
"""Difference of a sum of probabilities from 1 at most, in single and in half precision."""
PASSES_ON = (
    "View",
    "UnsafeView",
    "Reshape",
    "Squeeze",
    "Unsqueeze",
    "Select",
    "Slice",
    "ToCopy",
    "Alias",
    "T",
    "Permute",
)
"""Nodes of the graph that change no number."""
Seen = Callable[[str, dict[str, Any], torch.Tensor], object]


def watch_losses(seen: Seen, faults: FaultCounter) -> None:
    """Call ``seen`` with the name, the arguments by name and the result of each loss function whose result requires a
    gradient, until the process ends."""
    for name in FUNCTIONS:
        replace(functional, name, _around(name, getattr(functional, name), seen, faults))


def _around(name: str, original: Callable[..., Any], seen: Seen, faults: FaultCounter) -> Callable[..., Any]:
    signature = inspect.signature(original)

    @passage
    @functools.wraps(original)
    def loss(*args: Any, **kwargs: Any) -> Any:
        result = original(*args, **kwargs)
        if not compiling():
            attempt(faults, "loss", _announce, name, signature, seen, args, kwargs, result)
        return result

    return loss


def _announce(
    name: str, signature: inspect.Signature, seen: Seen, args: tuple[Any, ...], kwargs: dict[str, Any], result: Any
) -> None:
    if issubclass(type(result), torch.Tensor) and result.requires_grad:
        bound = signature.bind(*args, **kwargs)
        bound.apply_defaults()
        seen(name, bound.arguments, result)


def loss_call(
    name: str, arguments: dict[str, Any], result: torch.Tensor, update: int, tokens: torch.Tensor | None
) -> LossCall:
    """Return the facts of a call of a loss function.

    Args:
        tokens: those that the model got in its latest call, of two axes; None if it got none.
    """
    with torch.no_grad():
        scores, labels = arguments["input"].detach(), arguments["target"].detach()
        is_classes = name in OVER_CLASSES and not labels.is_floating_point()
        ignored = labels == arguments["ignore_index"] if is_classes else torch.zeros(1, dtype=torch.bool)
        return LossCall(
            update=update,
            function=name,
            reduction=str(arguments["reduction"]),
            form=_form(arguments["input"], scores),
            classes=_classes(scores) if is_classes else 0,
            rows=labels.numel(),
            ignored=float(ignored.float().mean()) if labels.numel() else 0.0,
            value=float(result.detach()) if result.numel() == 1 else math.nan,
            relation=relation(labels, ignored, tokens)[0] if is_classes and tokens is not None else "other",
            labels=digest([labels]),
            broadcast=not is_classes and _is_broadcast(scores, labels),
        )


def _is_broadcast(scores: torch.Tensor, labels: torch.Tensor) -> bool:
    if scores.shape == labels.shape or labels.numel() < 2:
        return False
    return math.prod(torch.broadcast_shapes(scores.shape, labels.shape)) > max(scores.numel(), labels.numel())


def _classes(scores: torch.Tensor) -> int:
    return int(scores.shape[1 if scores.dim() > 1 else 0])


def _form(original: torch.Tensor, scores: torch.Tensor) -> Form:
    """Return the form of scores, whose classes are their second axis."""
    if _origin(original).startswith("Sigmoid"):
        return "sigmoid"
    if scores.dim() < 2 or scores.shape[1] < 2:
        return "probabilities" if _origin(original).startswith("Softmax") else "numbers"
    rows = scores.movedim(1, -1).flatten(0, -2)
    close = CLOSE if torch.finfo(rows.dtype).eps < CLOSE else CLOSE_HALF
    rows = rows[:: max(1, rows.numel() // MOST_SCORES)].double()
    if bool((rows >= 0).all()) and bool(((rows.sum(-1) - 1).abs() < close).all()):
        return "probabilities"
    if bool((rows <= close).all()) and bool((rows.logsumexp(-1).abs() < close).all()):
        return "log-probabilities"
    return "numbers"


def _origin(tensor: torch.Tensor) -> str:
    """Return the name of the operation that has made the numbers of a tensor."""
    node = tensor.grad_fn
    for _ in range(8):
        if node is None or not node.name().startswith(PASSES_ON):
            break
        node = node.next_functions[0][0] if node.next_functions else None
    return "" if node is None else node.name()


def relation(labels: torch.Tensor, ignored: torch.Tensor, tokens: torch.Tensor) -> tuple[Relation, int]:
    """Return how labels are related to tokens, and the axis of the tokens that is time."""
    count, long = int((~ignored).sum()), max(tokens.shape) > 1
    if not count or not long:
        return "other", 1
    for axis in (1, 0):
        length = tokens.shape[axis]
        for cut in (0, 1):
            shape = [size - cut * (number == axis) for number, size in enumerate(tokens.shape)]
            if labels.numel() != math.prod(shape) or length - cut < 2:
                continue
            rows, hidden = labels.reshape(shape), ignored.reshape(shape)
            if not cut and _agree(rows, tokens, hidden):
                return "same", axis
            following = tokens.narrow(axis, 1, length - 1)
            if _agree(rows.narrow(axis, 0, length - 1), following, hidden.narrow(axis, 0, length - 1)):
                return "next", axis
    return "other", 1


def _agree(labels: torch.Tensor, tokens: torch.Tensor, ignored: torch.Tensor) -> bool:
    """Return whether labels that are not ignored are the tokens, and more than one kind of them."""
    expected = labels[~ignored]
    return (
        expected.numel() > 1
        and bool((expected == tokens.to(labels.device)[~ignored]).all())
        and expected.unique().numel() > 1
    )
