"""Private parts of MindSpore, imported from the module that has them in this version."""

try:
    from mindspore.graph.api import _no_grad as no_grad
    from mindspore.graph.api import _pynative_executor as executor
    from mindspore.graph.api import flops_collection
except ImportError:  # before 2.9
    from mindspore.common.api import _no_grad as no_grad
    from mindspore.common.api import _pynative_executor as executor
    from mindspore.common.api import flops_collection

__all__ = ["executor", "flops_collection", "no_grad"]
