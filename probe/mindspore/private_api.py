"""What probe needs of MindSpore's dynamic graph, wherever this version keeps it."""

try:
    from mindspore.graph.api import _no_grad as no_grad
    from mindspore.graph.api import _pynative_executor as executor
except ImportError:  # before 2.9
    from mindspore.common.api import _no_grad as no_grad
    from mindspore.common.api import _pynative_executor as executor

__all__ = ["executor", "no_grad"]
