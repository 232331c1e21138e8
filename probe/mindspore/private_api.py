"""Private parts of MindSpore's dynamic graph, imported from the module that has them in this version."""

try:
    from mindspore.graph.api import _no_grad as no_grad
    from mindspore.graph.api import _pynative_executor as executor
except ImportError:  # before 2.9
    from mindspore.common.api import _no_grad as no_grad
    from mindspore.common.api import _pynative_executor as executor

__all__ = ["executor", "no_grad"]
