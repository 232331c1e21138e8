"""A stand-in for a ``torch`` that is MindSpore underneath, such as msadapter and mindtorch. It is neither of them.

msadapter 0.1.0 and mindtorch 0.4.0 do not import on MindSpore 2.7 or 2.10 (``cannot import name 'set_adapter_config'
from 'mindspore.common.api'``). So this states the contract that :mod:`probe.mindspore` counts on, and keeps it with as
little as that takes; gradients come from MindSpore's own engine.

- Models have ``named_modules()``, ``named_parameters()``, ``training``, ``train()`` and ``eval()``, and
  ``register_forward_pre_hook(hook)`` and ``register_forward_hook(hook)`` with handles that have ``remove()``. Either
  they are plain Python and can pass keyword arguments to hooks (``with_kwargs=True``): :data:`PLAIN`. Or they are cells
  that keep hooks of their own, which get positional arguments alone, and never run those of ``nn.Cell``: :data:`CELLS`.
- Parameters are ``mindspore.Parameter``; backwards add up in ``.grad``.
- Optimizers have ``step(closure=None)``, ``zero_grad()`` and ``param_groups``. Either they keep
  ``state[parameter][kind]``: :data:`PLAIN`. Or they are MindSpore's experimental optimizers, whose ``state`` stays
  empty, with ``step(grads=None, closure=None)``, and which may also be called with the gradients: :data:`CELLS`.
- The package keeps MindSpore recording operations, and gives tensors ``backward()``: :func:`imported`.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple

from tests.required import require

ms = require("mindspore")

from mindspore import nn, ops  # noqa: E402 - only where MindSpore is
from mindspore._c_expression import run_backward  # noqa: E402

from probe.mindspore.private_api import executor  # noqa: E402

Hooks = dict[int, tuple[Callable[..., Any], bool]]


@contextmanager
def imported() -> Iterator[None]:
    """Change MindSpore as importing such a package does, and undo it at the end."""
    recording = executor.grad_flag()
    executor.set_grad_flag(True)
    ms.Tensor.backward = backward
    try:
        yield
    finally:
        del ms.Tensor.backward
        executor.set_grad_flag(recording)


def backward(tensor: Any) -> None:
    """``Tensor.backward``: adds gradients to ``.grad`` of every parameter that ``tensor`` comes from."""
    run_backward((tensor,), None, False, False, None)


class Parameter(ms.Parameter, ms.Tensor):
    """A parameter with ``grad``."""

    def __new__(cls, data: Any, **_: Any) -> Parameter:
        new = ms.Tensor.__new__(cls)
        ms.Tensor.__init__(new, data)
        new.init_mode, new.is_default_input_init = None, False
        return new

    @property
    def grad(self) -> Any:
        """The sum over the backwards since it was None."""
        return self._grad

    @grad.setter
    def grad(self, value: Any) -> None:
        self._grad = value


class Handle:
    """Takes one hook away."""

    def __init__(self, hooks: Hooks) -> None:
        self._hooks, self._key = hooks, max(hooks, default=-1) + 1

    def hold(self, hook: Callable[..., Any], with_kwargs: bool) -> Handle:
        self._hooks[self._key] = hook, with_kwargs
        return self

    def remove(self) -> None:
        self._hooks.pop(self._key, None)


class Named:
    """Methods of both kinds of modules."""

    forward_pre_hooks: Hooks
    forward_hooks: Hooks

    def children(self) -> dict[str, Any]:
        raise NotImplementedError

    def own_parameters(self) -> dict[str, Any]:
        raise NotImplementedError

    def named_modules(self, prefix: str = "") -> Iterator[tuple[str, Any]]:
        yield prefix, self
        for name, child in self.children().items():
            yield from child.named_modules(f"{prefix}.{name}" if prefix else name)

    def named_parameters(self) -> Iterator[tuple[str, Any]]:
        for path, module in self.named_modules():
            for name, parameter in module.own_parameters().items():
                yield f"{path}.{name}" if path else name, parameter

    def parameters(self) -> list[Any]:
        return [parameter for _, parameter in self.named_parameters()]

    def eval(self) -> Any:
        return self.train(False)

    def train(self, mode: bool = True) -> Any:
        for _, module in self.named_modules():
            object.__setattr__(module, "training", mode)
        return self

    def run(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """The forward with the hooks around it."""
        for hook, with_kwargs in tuple(self.forward_pre_hooks.values()):
            changed = hook(self, args, kwargs) if with_kwargs else hook(self, args)
            assert changed is None
        outputs = self.forward(*args, **kwargs)
        for hook, _ in tuple(self.forward_hooks.values()):
            changed = hook(self, args, outputs)
            assert changed is None
        return outputs


class Module(Named):
    """A module in plain Python."""

    def __init__(self) -> None:
        self.training = True
        self.forward_pre_hooks, self.forward_hooks = {}, {}

    def children(self) -> dict[str, Any]:
        return {name: value for name, value in vars(self).items() if isinstance(value, Module)}

    def own_parameters(self) -> dict[str, Any]:
        return {name: value for name, value in vars(self).items() if isinstance(value, Parameter)}

    def register_forward_pre_hook(self, hook: Callable[..., Any], *, with_kwargs: bool = False) -> Handle:
        return Handle(self.forward_pre_hooks).hold(hook, with_kwargs)

    def register_forward_hook(self, hook: Callable[..., Any]) -> Handle:
        return Handle(self.forward_hooks).hold(hook, False)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self.run(args, kwargs)


class CellModule(Named, nn.Cell):
    """A module that is a cell, with hooks of its own."""

    def __init__(self) -> None:
        nn.Cell.__init__(self)
        object.__setattr__(self, "training", True)
        object.__setattr__(self, "forward_pre_hooks", {})
        object.__setattr__(self, "forward_hooks", {})

    def children(self) -> dict[str, Any]:
        return dict(self._cells)

    def own_parameters(self) -> dict[str, Any]:
        return dict(self._params)

    def register_forward_pre_hook(self, hook: Callable[..., Any]) -> Handle:
        return Handle(self.forward_pre_hooks).hold(hook, False)

    def register_forward_hook(self, hook: Callable[..., Any]) -> Handle:
        return Handle(self.forward_hooks).hold(hook, False)

    def construct(self, *args: Any, **kwargs: Any) -> Any:
        return self.forward(*args, **kwargs)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self.run(args, kwargs)


class Dense:
    """``torch.nn.Linear``, for either kind of module."""

    def __init__(self, weight: Any, bias: Any = None) -> None:
        super().__init__()
        self.weight = Parameter(ms.Tensor(weight, ms.float32), name="weight")
        if bias is not None:
            self.bias = Parameter(ms.Tensor(bias, ms.float32), name="bias")

    def forward(self, x: Any) -> Any:
        return ops.dense(x, self.weight, getattr(self, "bias", None))


class Rectifier:
    """``torch.nn.ReLU``, for either kind of module."""

    def forward(self, x: Any) -> Any:
        return ops.relu(x)


class Linear(Dense, Module):
    """A layer in plain Python."""


class ReLU(Rectifier, Module):
    """A ReLU in plain Python."""


class CellLinear(Dense, CellModule):
    """A layer that is a cell."""


class CellReLU(Rectifier, CellModule):
    """A ReLU that is a cell."""


class Optimizer:
    """An optimizer in plain Python that keeps its state by parameter."""

    def __init__(self, parameters: Iterable[Any], **options: Any) -> None:
        self.param_groups = [{"params": list(parameters), **options}]
        self.state: dict[Any, dict[str, Any]] = defaultdict(dict)

    def zero_grad(self) -> None:
        for group in self.param_groups:
            for parameter in group["params"]:
                parameter.grad = None

    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        loss = None if closure is None else closure()
        with ms._no_grad():
            for group in self.param_groups:
                for parameter in group["params"]:
                    if parameter.grad is not None:
                        ops.assign(parameter, self.update(parameter, self.state[parameter], group))
        return loss

    def update(self, parameter: Any, state: dict[str, Any], group: dict[str, Any]) -> Any:
        raise NotImplementedError


class SGD(Optimizer):
    """``torch.optim.SGD``."""

    def __init__(self, parameters: Iterable[Any], lr: float, momentum: float = 0.0) -> None:
        super().__init__(parameters, lr=lr, momentum=momentum)

    def update(self, parameter: Any, state: dict[str, Any], group: dict[str, Any]) -> Any:
        change = parameter.grad
        if group["momentum"]:
            held = state.get("momentum_buffer")
            change = state["momentum_buffer"] = change * 1 if held is None else held * group["momentum"] + change
        return parameter - change * group["lr"]


class Adam(Optimizer):
    """``torch.optim.Adam``."""

    def __init__(self, parameters: Iterable[Any], lr: float) -> None:
        super().__init__(parameters, lr=lr)

    def update(self, parameter: Any, state: dict[str, Any], group: dict[str, Any]) -> Any:
        state["step"] = state.get("step", ms.Tensor(0.0, ms.float32)) + 1
        for kind, beta, new in (("exp_avg", 0.9, parameter.grad), ("exp_avg_sq", 0.999, parameter.grad**2)):
            state[kind] = state.get(kind, ops.zeros_like(parameter)) * beta + new * (1 - beta)
        first = state["exp_avg"] / (1 - 0.9 ** state["step"])
        second = state["exp_avg_sq"] / (1 - 0.999 ** state["step"])
        return parameter - group["lr"] * first / (second**0.5 + 1e-8)


class Stepping:
    """Additions of such a package to MindSpore's experimental optimizers."""

    def zero_grad(self) -> None:
        for parameter in self.parameters:
            parameter.grad = None

    def step(self, grads: Sequence[Any] | None = None, closure: Callable[[], Any] | None = None) -> Any:
        loss = None if closure is None else closure()
        held = [ops.zeros_like(p) if p.grad is None else p.grad for p in self.parameters] if grads is None else grads
        self.construct(tuple(held))
        return loss


class CellSGD(Stepping, ms.experimental.optim.SGD):
    """MindSpore's experimental SGD with ``step``."""


class CellAdam(Stepping, ms.experimental.optim.Adam):
    """MindSpore's experimental Adam with ``step``."""


class Torch(NamedTuple):
    """Namespaces that a script knows as ``torch.nn`` and ``torch.optim``."""

    Module: Any
    Linear: Any
    ReLU: Any
    SGD: Any
    Adam: Any


PLAIN = Torch(Module, Linear, ReLU, SGD, Adam)
CELLS = Torch(CellModule, CellLinear, CellReLU, CellSGD, CellAdam)
