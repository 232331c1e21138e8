"""A toy framework on NumPy and its adapter: the worked example of adding a framework, in under a hundred lines.

First the framework: tensors that know what they were made of, modules, an optimizer. Then what core asks of it.
"""

import itertools
from types import SimpleNamespace

import numpy as np

from probe.core import array_moments
from probe.core.framework import FrameworkAdapter
from probe.core.trainer_mon import Monitor


class Tensor:
    """An array, the tensors it was made of, and for each a function from the gradient of this one to that one's."""

    backwards, running = itertools.count(), -1

    def __init__(self, data, *sources, parameter=False):
        self.data, self.grad, self.listeners = np.asarray(data), None, []
        self.sources = [(tensor, pull) for tensor, pull in sources if tensor.differentiable]
        self.differentiable = parameter or bool(self.sources)

    def backward(self):
        """Tells every tensor in the graph of its gradient, which parameters add to what they have."""
        Tensor.running, gradients, order = next(Tensor.backwards), {self: np.ones_like(self.data)}, {}
        self._walk(order)
        for tensor in reversed(order):
            gradient = gradients.pop(tensor)
            if not tensor.sources:
                tensor.grad = Tensor(gradient if tensor.grad is None else tensor.grad.data + gradient)
            for listen in list(tensor.listeners):
                listen(Tensor(gradient))
            for source, pull in tensor.sources:
                gradients[source] = gradients.get(source, 0) + pull(gradient)
        Tensor.running = -1

    def _walk(self, order):
        for source, _ in self.sources:
            source._walk(order) if source not in order else None
        order[self] = True


class Module:
    """Modules and parameters by name, and a ``forward``."""

    def __init__(self, forward, **members):
        self.forward, self.members, self.training, self.before, self.after = forward, members, True, [], []

    def named(self, kind, prefix=""):
        """Everything of one kind inside, once each, with its dotted name."""
        for name, member in self.members.items():
            if isinstance(member, kind):
                yield prefix + name, member
            if isinstance(member, Module):
                yield from member.named(kind, f"{prefix}{name}.")

    def __call__(self, *args, **kwargs):
        # An input of its own stands in for each, so that its gradient is the one through this module.
        args = [Tensor(x.data, (x, lambda g: g)) if isinstance(x, Tensor) else x for x in args]
        for listen in list(self.before):
            listen(args, kwargs)
        outputs = self.forward(self, *args, **kwargs)
        for listen in list(self.after):
            listen(outputs)
        return outputs
