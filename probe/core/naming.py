"""Names as users see them: signals, squashed names, stage prefixes, tags."""

from __future__ import annotations

import functools
import re
from typing import NamedTuple

from probe.core.messages import encodable
from probe.core.records import Key

RUN = "run"
"""Signal of the numbers of the run."""
PHASE = "phase/"
"""Beginning of the name of the seconds spent in a phase of the run."""
RANK = "rank/"
"""Beginning of the name of another rank's number: ``rank/3/outside_seconds`` is that of rank 3."""
LOSS, VAL_LOSS, GRAD_NORM = "loss", "val_loss", "grad_norm"
BATCH_SIZE, BATCH_TOKENS = "batch_size", "tokens"
"""Numbers that programs log, and that rules, metrics and pages know by these names."""
LEARNING_RATE, LOSS_SCALE = "learning_rate", "loss_scale"
"""Numbers that are read from the optimizer at the update, unless the program has logged them."""
STEP_SECONDS = "step_seconds"
THROUGHPUT, TOKENS_PER_SECOND, MODEL_TFLOPS = "throughput", "tokens_per_second", "model_tflops"
OUTSIDE_SECONDS = "outside_seconds"
"""Seconds of a step in which a rank was not inside a collective."""
SKIPPED_UPDATE = "skipped"
"""1 if a gradient scaler has skipped the update, else 0."""
LOSS_ROOT, BACKWARDS = "loss_root", "backwards"
"""The sum of the losses whose backwards have reached the parameters of an update, as the sentinel sees them, and the
number of these backwards."""
GRADIENT_NORM, APPLIED_NORM = "gradient_norm", "gradient_norm_applied"
"""Norm of all gradients of an update together, as far as this rank holds them: before they are clipped, and after."""
SENTINEL = (LOSS_ROOT, BACKWARDS, GRADIENT_NORM, APPLIED_NORM)
"""Numbers of the sentinel; those of a second optimizer end in ``/1``."""
CLOCKS = (STEP_SECONDS, THROUGHPUT, TOKENS_PER_SECOND, MODEL_TFLOPS, OUTSIDE_SECONDS)
"""Numbers of the run that follow from clocks, as those of phases do: another run has others."""
RUN_NUMBERS = (
    *(LOSS, VAL_LOSS, GRAD_NORM, LEARNING_RATE, LOSS_SCALE, BATCH_SIZE, BATCH_TOKENS),
    *(*CLOCKS, SKIPPED_UPDATE, *SENTINEL),
)
"""Numbers of the run that have fixed names; programs log others as well."""
VALUE = "value"
"""Column of the numbers of the run."""


class Name(str):
    """Name of a module or parameter as the user knows it, if a wrapper makes the framework name it ``raw``."""

    raw: str

    __slots__ = ("raw",)

    def __new__(cls, name: str, raw: str) -> Name:
        self = super().__new__(cls, name)
        self.raw = raw
        return self


class Signal(NamedTuple):
    """Kind of measured tensor, with its place in a training step."""

    task: str
    """Name in tags."""
    phase: int
    """Causal rank within a step: weights, then forward, backward, communication, reduced gradients, state, updated
    weights, numbers of the run."""
    meaning: str


RELATIVE_UPDATE = "relative_update"
"""Signal of the size of updates relative to parameters, and its column."""
SIGNALS: dict[str, Signal] = {
    "param_origin": Signal("param_origin", 0, "parameter before the update"),
    "linear_hook": Signal("linear_hook", 0, "stable rank and spectral norm of weights"),
    "moe_router_weight_hook": Signal("moe_router_weight_hook", 0, "similarity of a router's experts"),
    "actv": Signal("actv", 1, "module inputs and outputs"),
    "attention_hook": Signal("attention_hook", 1, "entropy and largest weight of attention"),
    "moe_router_logit_hook": Signal("moe_router_logit_hook", 1, "entropy and load of a router's experts"),
    "actv_grad": Signal("actv_grad", 2, "gradients of module inputs and outputs"),
    "grad_unreduced": Signal("pre_grad", 2, "weight gradient of this rank before any reduction"),
    "other": Signal("other", 3, "inputs (pre) and outputs (post) of collective communication"),
    "grad_reduced": Signal("post_grad", 4, "weight gradient as the optimizer applies it"),
    "mg_direction": Signal("mg_direction", 5, "fraction of elements whose gradient and first moment agree in sign"),
    "param_updated": Signal("param_updated", 6, "parameter after the update"),
    "update": Signal("adam_update", 6, "Adam's update from its moments, before the learning rate"),
    "ratio": Signal("adam_ratio", 6, "Adam's first moment over the root of the second"),
    RELATIVE_UPDATE: Signal(RELATIVE_UPDATE, 6, "change of a parameter by the update, relative to it"),
    RUN: Signal(RUN, 7, "numbers of the run, such as the loss"),
}
"""Fixed signals. Optimizer state adds one signal for each kind of state tensor (``exp_avg``, ...)."""

FEATURES = ("attention_hook", "linear_hook", "moe_router_weight_hook", "moe_router_logit_hook")
"""Signals of features, whose columns are no moments: see :mod:`probe.core.instrumentation.signals.features`."""

COLUMNS: dict[str, tuple[str, ...]] = {
    "attention_hook": ("entropy", "softmax_max"),
    "linear_hook": ("sr", "kernel_norm"),
    "moe_router_weight_hook": ("router_weight_similarity",),
    "moe_router_logit_hook": ("per_token_expert_entropy", "load_max", "load_cv", "load_min", "load_share"),
    "other": ("count", "bytes", "seconds"),
    RELATIVE_UPDATE: (RELATIVE_UPDATE,),
}
"""Columns of signals that are no ops."""

STATE_PHASE = 5


def signal_of(name: str) -> Signal:
    """Signal called ``name``; one that is not fixed is optimizer state, under its own name."""
    return SIGNALS.get(name) or Signal(name, STATE_PHASE, f"optimizer state {name}")


_SQUASH = [re.compile(rf"^(?:.*\.)?({head}.*)") for head in (r"layers?\.", r"embeddings?\.", "final", "output", "norm")]


def squash_name(name: str) -> str:
    """Shorten ``name`` to the part from its last layer, embedding, final, output or norm component on.

    The first of those five that begins a component decides; a name with none of them is returned as it is. A name that
    begins with it is kept whole, so that ``layers.0.norm1`` does not lose its layer.
    """
    for pattern in _SQUASH:
        if match := pattern.match(name):
            return match.group(1)
    return name


def row_name(key: Key) -> str:
    """Return the name of a row: ``fc.input_0`` for activations, ``fc.weight`` for parameters; fit to be written."""
    return encodable(f"{key.name}.{key.part}" if key.part else key.name)


@functools.lru_cache(4096)  # for the ops of the rows of a batch
def tag(signal: str, key: Key, rank: int, micro_stepped: bool) -> str:
    """Tag of a row without its op, such as ``0:fc.input:0/rank0/actv`` or ``0:fc.weight/rank0/post_grad``.

    A repetition of a module within one micro step reads ``0:fc.input:0.call1/rank0/actv``.
    """
    micro = f":{key.micro_step}" if micro_stepped else ""
    call = f".call{key.call}" if key.call else ""
    return f"{key.stage}:{row_name(key)}{micro}{call}/rank{rank}/{encodable(signal_of(signal).task)}"
