"""The parts of a configuration that are mappings themselves, but for alerts."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Annotated

from pydantic import AfterValidator, Field

from probe.core.fields import Flag, Integer, Names, Place, Section, Selector, Text, wrong


def _expression(text: str) -> str:
    try:
        re.compile(text)
    except re.error:
        raise wrong(r"a regular expression such as train.py\[23\]") from None
    return text


class Target(Section):
    """What of one module is watched."""

    input: Place = None
    """Which of the module's positional inputs is watched, by its type: `tensor`, or `tuple[2]:0` for element 0 of a
    tuple of 2 (`tuple[2]` means the same). `list[3]:1` and `dict[2]:0` read alike, a dict in the order of its keys. Of
    input, output, input_grad and output_grad only those listed are watched; `{}` watches all four with every tensor in
    them."""
    output: Place = None
    """Which of the module's outputs is watched, written as for input."""
    input_grad: Place = None
    """Which gradient with respect to the module's inputs is watched, written as for input."""
    output_grad: Place = None
    """Which gradient with respect to the module's outputs is watched, written as for input."""

    @property
    def places(self) -> Mapping[str, Selector | None]:
        """The watched places, each with its selector; None stands for every tensor there."""
        listed = {name: place for name in type(self).model_fields if (place := getattr(self, name)) is not None}
        return listed or dict.fromkeys(type(self).model_fields)


class CcDistribution(Section):
    """Monitoring of collective communication."""

    enable: Flag = False
    """Whether collectives are monitored, in runs of several processes, from the construction of the monitor on. The
    calls are logged once, before the update of the second training step."""
    cc_codeline: tuple[Annotated[Text, AfterValidator(_expression)], ...] = ()
    r"""Lines of code whose collectives are monitored, as regular expressions such as `train.py\[23\]`, which are
    searched in the lines `path[line] function` of a call's stack. Empty: all."""
    cc_pre_hook: Flag = False
    """Whether the tensors before communication are monitored too. The rule AnomalyCommNan needs them, and collects them
    in any case."""
    cc_log_only: Flag = False
    """Whether the calls (stack, dtype, group) are only logged, once, and nothing is collected; before the update of the
    second training step training is then stopped, on every rank, by the exception TrainingStopped."""


class Arm(Section):
    """What is collected besides when something was found."""

    xy_distribution: Flag = False
    """Whether inputs, outputs and their gradients are collected."""
    wg_distribution: Flag = False
    """Whether weight gradients are collected."""
    param_distribution: Flag = False
    """Whether parameters are collected."""
    mv_distribution: Flag = False
    """Whether the optimizer's state is collected."""
    targets: Annotated[Text, Names(("suspects", "all"))] = "suspects"
    """Of which modules: `suspects` are the blocks (such as `layers.1`) that the first findings were about; `all` is the
    whole model."""


class OnAnomaly(Section):
    """Deeper monitoring that the run switches on by itself."""

    arm: Arm
    """What is collected besides what the configuration says anyway."""
    steps: Integer = Field(10, ge=1)
    """For how many steps; each of them is collected, whatever step_interval says."""
    cool_down: Integer = Field(100, ge=0)
    """Steps after that in which nothing that is found switches it on again."""


class L2Targets(Section):
    """Modules of the interpretable features."""

    attention_hook: tuple[Text, ...] | None = None
    """Attention modules whose `entropy` and `softmax_max`, means over the queries, are recorded at each call, by their
    exact names such as `0:layers.0.attention`: modules that are given query and key. Missing or empty: none."""
    linear_hook: tuple[Text, ...] | None = None
    """Linear modules whose `kernel_norm`, the spectral norm of the weight, and `sr`, its Frobenius norm divided by the
    spectral norm, are recorded once a step. Missing: none; empty list: every module with a two-dimensional `weight` or
    `wg`."""
    moe_router_weight_hook: tuple[Text, ...] | None = None
    """Router modules of mixtures of experts whose `router_weight_similarity`, the mean cosine between the weights of
    two experts, is recorded once a step. Missing or empty: none."""
    moe_router_logit_hook: tuple[Text, ...] | None = None
    """Router modules of mixtures of experts whose first output are logits: `per_token_expert_entropy`, the mean over
    tokens, and the load of the experts, `load_max` (largest divided by mean) and `load_cv` (standard deviation divided
    by mean), are recorded at each call. Missing or empty: none."""
