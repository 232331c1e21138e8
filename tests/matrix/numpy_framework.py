"""A toy framework on NumPy and its adapter: the worked example of adding a framework, in under a hundred lines of code.

First the framework: tensors that know what they were made of, modules, an optimizer. Then core's questions about it,
answered one a line; :mod:`probe.core.backend.protocols` says what each of them means.
"""

from itertools import count
from types import SimpleNamespace

import numpy as np

from probe.core.backend import numpy_ops
from probe.core.backend.numpy_moments import agreement, moments, update_and_ratio
from probe.core.backend.protocols import FrameworkAdapter
from probe.core.monitor.trainer_mon import Monitor


class Tensor:
    """An array, the tensors it was made of, and for each of them what turns this one's gradient into that one's."""

    numbers, in_backward = count(), -1

    def __init__(self, data, *sources, parameter=False):
        self.data, self.grad, self.listeners, self.number = np.asarray(data), None, [], next(Tensor.numbers)
        self.sources = [(tensor, pull) for tensor, pull in sources if tensor.differentiable]
        self.differentiable = parameter or bool(self.sources)

    def backward(self):
        """Pass every tensor in the graph its gradient, the youngest first; parameters add it to theirs."""
        gradients, Tensor.in_backward = {self: np.ones_like(self.data)}, self.number
        while gradients:
            gradient = gradients.pop(tensor := max(gradients, key=lambda tensor: tensor.number))
            if not tensor.sources:
                tensor.grad = Tensor(gradient if tensor.grad is None else tensor.grad.data + gradient)
            for listen in tensor.listeners:
                listen(Tensor(gradient))
            for source, pull in tensor.sources:
                gradients[source] = gradients.get(source, 0) + pull(gradient)
        Tensor.in_backward = -1


class Module:
    """Modules and parameters by name, and what they do with an input."""

    def __init__(self, forward, **members):
        self.forward, self.members, self.training, self.before, self.after = forward, members, True, [], []

    def named(self, kind, prefix=""):
        """Everything of one kind inside, with its dotted name."""
        for name, member in self.members.items():
            yield from [(prefix + name, member)] if isinstance(member, kind) else []
            yield from member.named(kind, f"{prefix}{name}.") if isinstance(member, Module) else []

    def __call__(self, *args, **kwargs):
        args, kwargs = tuple(map(_apart, args)), {name: _apart(x) for name, x in kwargs.items()}
        for listen in list(self.before):
            listen(args, kwargs)
        outputs = self.forward(*args, **kwargs)
        for listen in list(self.after):
            listen(outputs)
        return outputs


def _apart(x):
    """``x`` for one module alone: its gradient is the one through that module, whoever else uses ``x``."""
    return Tensor(x.data, (x, lambda gradient: gradient)) if isinstance(x, Tensor) else x


class SGD:
    """Gradient descent with momentum; a step uses the gradients up."""

    def __init__(self, parameters, lr, momentum):
        self.parameters, self.lr, self.momentum, self.state, self.listeners = parameters, lr, momentum, {}, []

    def step(self):
        for listener in self.listeners:
            listener.before(self, None)
        for parameter in [parameter for parameter in self.parameters if parameter.grad is not None]:
            old = self.state[parameter]["momentum_buffer"].data if parameter in self.state else 0
            self.state[parameter] = {"momentum_buffer": (buffer := Tensor(self.momentum * old + parameter.grad.data))}
            parameter.data, parameter.grad = parameter.data - self.lr * buffer.data, None
        for listener in self.listeners:
            listener.after(self, "applied")


def _add(listeners, listener, *more):
    _, also = listeners.append(listener), _add(*more) if more else lambda: None
    return lambda: (listener in listeners and listeners.remove(listener), also())


TENSORS = SimpleNamespace(
    is_tensor=lambda value: isinstance(value, Tensor),
    describe=lambda tensor: (tensor.data.shape, tensor.data.dtype, None),
    identity=lambda tensor: (object(), lambda: None),
    **dict.fromkeys(("hold", "number", "host_place"), lambda *_: None),
    moments=lambda tensors, columns, eps, scale: moments([tensor.data for tensor in tensors], columns, eps),
    agreement=lambda one, other: Tensor(agreement(one.data, other.data)),
    adam=lambda first, second, about: tuple(map(Tensor, update_and_ratio(first.data, second.data, about))),
    numbers=lambda tensor: tensor.data,
    to_host=lambda blocks: lambda: np.concatenate(blocks),
)


def _ranks_of(group):
    if group is not None:
        raise ValueError(f"expected None, got {group!r}")
    return [0]


NONE = "check_model", "check_optimizer", "loss_scale", "held_scale", "found_inf", "graph_size", "recomputed_by"
HOOKS = SimpleNamespace(
    modules=lambda model: [("", model), *model.named(Module)],
    parameters=lambda model: model.named(Tensor),
    structure=lambda model: tuple(id(thing) for kind in (Module, Tensor) for _, thing in model.named(kind)),
    **{"runs": lambda module: module.forward is not None, "tokens": lambda things: [*map(id, things)]},  # noqa: PIE804
    **{"value": lambda optimizer, parameter: parameter, "watch_inputs": lambda tensors: tensors},  # noqa: PIE804
    gradients_of=lambda optimizer, main_grad: lambda parameter: parameter.grad,
    holds=lambda optimizer, parameter, main_grad: parameter.grad is not None,
    **{"owned": lambda optimizer: optimizer.parameters, "learning_rate": lambda optimizer: optimizer.lr},  # noqa: PIE804
    state=lambda optimizer, parameter: optimizer.state.get(parameter, {}),
    **dict.fromkeys(("state_names", "may_rest", "has_compiled", "at_work"), lambda *_: {}),
    adam=lambda optimizer: lambda parameter: None,
    backward_id=lambda: Tensor.in_backward,
    on_step=lambda optimizer, listener: _add(optimizer.listeners, listener),
    on_gradient=lambda p, hear, own, main_grad, guard: _add(p.listeners, guard(lambda g: hear(g if own else p.grad))),
    forward_kind=lambda root: "training" if root.training else None,
    on_forward=lambda module, before, after, guard, **_: _add(module.before, guard(before), module.after, guard(after)),
    on_tensor_gradient=lambda tensor, listen: tensor.listeners.append(listen),
    on_input_gradients=lambda xs, _, hear, guard: [x.listeners.append(guard(h)) for x, h in zip(xs, hear, strict=True)],
    at_next_forward=lambda model, function, faults: _add(model.before, lambda *_: function()),
    **dict.fromkeys(NONE, lambda *_: None),
    **dict.fromkeys(("trainable", "differentiates", "feeds"), lambda *_: True),
)
ARRAYS = SimpleNamespace(**vars(numpy_ops) | {"member": lambda module, name: module.members.get(name)})
GROUPS = SimpleNamespace(rank=lambda: 0, world_size=lambda: 1, ranks_of=_ranks_of, replicas=lambda _: [])


class TrainerMon(Monitor):
    """Watches the training of a :class:`Module`."""

    framework = FrameworkAdapter("numpy", np.__version__, TENSORS, HOOKS, GROUPS, arrays=ARRAYS)
