"""MindSpore's communication functions: which of their arguments are inputs, and which are outputs."""

from __future__ import annotations

from typing import NamedTuple

HOMES = (
    "mindspore.communication.comm_func",
    "mindspore.ops.function.comm_func",
    "mindspore.mint.distributed.distributed",
)
"""Modules whose functions are replaced by listening ones, if this version has them."""

WORLD = (None, "hccl_world_group", "nccl_world_group", "mccl_world_group")
"""Default names of the group of all processes, on any device."""
FILLED = ("output", "gather_list", "tensor_list", "object_gather_list", "scatter_object_output_list")
"""Beginnings of the names of parameters that are outputs only."""


class Direction(NamedTuple):
    """The ranks on which a function has input tensors, and output tensors."""

    inputs: str = "all"
    outputs: str = "all"
    """``all``, ``none``, or the name of the parameter that holds the only rank."""


FUNCTIONS = {
    "all_reduce": Direction(),
    "all_gather_into_tensor": Direction(),
    "all_gather_into_tensor_uneven": Direction(),
    "all_gather": Direction(),
    "all_gather_object": Direction(),
    "all_to_all": Direction(),
    "all_to_all_single": Direction(),
    "all_to_all_v_c": Direction(),
    "all_to_all_with_output_shape": Direction(),
    "all_to_all_single_with_output_shape": Direction(),
    "reduce_scatter": Direction(),
    "reduce_scatter_tensor": Direction(),
    "reduce_scatter_tensor_uneven": Direction(),
    "broadcast": Direction(inputs="src"),
    "broadcast_object_list": Direction(inputs="src"),
    "scatter": Direction(inputs="src"),
    "scatter_tensor": Direction(inputs="src"),
    "scatter_object_list": Direction(inputs="src"),
    "reduce": Direction(outputs="dst"),
    "gather": Direction(outputs="dst"),
    "gather_into_tensor": Direction(outputs="dst"),
    "gather_object": Direction(outputs="dst"),
    "send": Direction(outputs="none"),
    "isend": Direction(outputs="none"),
    "send_object_list": Direction(outputs="none"),
    "recv": Direction(inputs="none"),
    "irecv": Direction(inputs="none"),
    "recv_object_list": Direction(inputs="none"),
    "batch_isend_irecv": Direction(),
    "barrier": Direction("none", "none"),
}
"""Every function that transfers data, in any of these modules."""
