"""Training loops of many kinds, each a few updates long and the same at each call: what the sentinel has to leave as it
is."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from typing import Any

from tests.pytorch.toys import SmallGPT, language_loss, token_batch
from tests.required import require

torch = require("torch")

from torch.utils._python_dispatch import TorchDispatchMode  # noqa: E402

STEPS = 4
Attach = Callable[[Any, Any], None]
"""Function that attaches a monitor to models and optimizers, or does nothing."""
Training = Callable[[Attach], list[Any]]
"""Loop that returns the models which it has trained."""
LOOPS: dict[str, Training] = {}
"""The loops by name."""


def loop(training: Training) -> Training:
    """Add a loop."""
    LOOPS[training.__name__] = training
    return training


def net(seed: int = 0, dtype: Any = None) -> Any:
    """Two layers and a dropout, which draws from the generator."""
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        layers = torch.nn.Linear(8, 16), torch.nn.Tanh(), torch.nn.Dropout(0.1), torch.nn.Linear(16, 4)
        return torch.nn.Sequential(*layers).to(dtype)


def batches(dtype: Any = None, steps: int = STEPS) -> Iterator[Any]:
    """A batch a step."""
    generator = torch.Generator().manual_seed(1)
    for _ in range(steps):
        yield torch.randn(6, 8, generator=generator).to(dtype)


def update(optimizer: Any, *losses: Any) -> None:
    """One update from the backwards of some losses."""
    optimizer.zero_grad()
    for loss in losses:
        loss.backward()
    optimizer.step()


def plain(attach: Attach, make: Callable[[Any], Any], dtype: Any = None) -> list[Any]:
    """The plainest loop, with an optimizer of choice."""
    model = net(dtype=dtype)
    optimizer = make(model.parameters())
    attach(model, optimizer)
    for x in batches(dtype):
        update(optimizer, model(x).pow(2).mean())
    return [model]


@loop
def adam(attach: Attach) -> list[Any]:
    return plain(attach, lambda parameters: torch.optim.Adam(parameters, 0.01))


@loop
def fused_adam(attach: Attach) -> list[Any]:
    return plain(attach, lambda parameters: torch.optim.Adam(parameters, 0.01, fused=True))


@loop
def sgd(attach: Attach) -> list[Any]:
    return plain(attach, lambda parameters: torch.optim.SGD(parameters, 0.1, momentum=0.9))


@loop
def in_bfloat16(attach: Attach) -> list[Any]:
    return plain(attach, lambda parameters: torch.optim.SGD(parameters, 0.1), torch.bfloat16)


@loop
def in_float64(attach: Attach) -> list[Any]:
    return plain(attach, lambda parameters: torch.optim.SGD(parameters, 0.1), torch.float64)


@loop
def optimizer_of_the_program(attach: Attach) -> list[Any]:
    """An optimizer that is none of torch's."""

    class Descent:
        def __init__(self, parameters: Any) -> None:
            self.param_groups = [{"params": [*parameters], "lr": 0.1}]

        def zero_grad(self) -> None:
            for parameter in self.param_groups[0]["params"]:
                parameter.grad = None

        @torch.no_grad()
        def step(self) -> None:
            for parameter in self.param_groups[0]["params"]:
                parameter.sub_(parameter.grad, alpha=0.1)

    return plain(attach, Descent)


@loop
def scaled(attach: Attach) -> list[Any]:
    """With a scaler, which skips an update whose gradients overflow."""
    model = net()
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    scaler = torch.amp.GradScaler("cpu", init_scale=1024.0, growth_interval=2)
    attach(model, optimizer)
    for step, x in enumerate(batches()):
        optimizer.zero_grad()
        scaler.scale(model(x).pow(2).mean() * (1e37 if step == 1 else 1)).backward()
        scaler.unscale_(optimizer)
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        scaler.step(optimizer)
        scaler.update()
    return [model]


@loop
def lbfgs(attach: Attach) -> list[Any]:
    """An optimizer that evaluates a closure several times an update."""
    model = net()
    optimizer = torch.optim.LBFGS(model.parameters(), 0.1, max_iter=4, line_search_fn="strong_wolfe")
    attach(model, optimizer)
    for x in batches():

        def closure(x: Any = x) -> Any:
            optimizer.zero_grad()
            loss = model(x).pow(2).mean()
            loss.backward()
            return loss

        optimizer.step(closure)
    return [model]


@loop
def accumulated(attach: Attach) -> list[Any]:
    """Several backwards an update, gradients set to zero where they are, a clip of each group of parameters."""
    model = net()
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    attach(model, optimizer)
    for x in batches():
        for part in x.chunk(3):
            (model(part).pow(2).mean() / 3).backward()
        for layer in (model[0], model[3]):
            torch.nn.utils.clip_grad_norm_(layer.parameters(), 0.1)
        optimizer.step()
        optimizer.zero_grad(set_to_none=False)
    return [model]


@loop
def adversarial(attach: Attach) -> list[Any]:
    """A generator and a discriminator with a gradient penalty; the generator's backward leaves gradients behind."""
    generator, critic = torch.nn.Linear(8, 8), net(2)
    with torch.no_grad():
        generator.weight.copy_(torch.eye(8))
    optimizers = [torch.optim.Adam(model.parameters(), 0.01) for model in (generator, critic)]
    attach([generator, critic], optimizers)
    for x in batches():
        fake = generator(x.flip(0))
        mixed = (x + fake.detach()).requires_grad_()
        (slope,) = torch.autograd.grad(critic(mixed).sum(), mixed, create_graph=True)
        update(optimizers[1], critic(fake.detach()).mean() - critic(x).mean() + (slope.norm(dim=1) - 1).pow(2).mean())
        update(optimizers[0], -critic(fake).mean())
    return [generator, critic]


@loop
def sharpness_aware(attach: Attach) -> list[Any]:
    """SAM: the gradient that is applied is that of weights nearby."""
    model = net()
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    attach(model, optimizer)
    for x in batches():
        optimizer.zero_grad()
        model(x).pow(2).mean().backward()
        with torch.no_grad():
            moves = [0.05 * parameter.grad / (parameter.grad.norm() + 1e-9) for parameter in model.parameters()]
            for parameter, move in zip(model.parameters(), moves, strict=True):
                parameter.add_(move)
        optimizer.zero_grad()
        model(x).pow(2).mean().backward()
        with torch.no_grad():
            for parameter, move in zip(model.parameters(), moves, strict=True):
                parameter.sub_(move)
        optimizer.step()
    return [model]


@loop
def projected(attach: Attach) -> list[Any]:
    """PCGrad: gradients of two tasks, projected and set by hand."""
    model = net()
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    parameters = [*model.parameters()]
    attach(model, optimizer)
    for x in batches():
        y = model(x)
        losses = y[:, 0].pow(2).mean(), (y[:, 1] - 1).pow(2).mean()
        one, other = (torch.autograd.grad(loss, parameters, retain_graph=True) for loss in losses)
        for parameter, a, b in zip(parameters, one, other, strict=True):
            dot = (a * b).sum()
            parameter.grad = a + b if dot >= 0 else a + b - dot * b / (b * b).sum().clamp(min=1e-9)
        optimizer.step()
    return [model]


@loop
def updated_in_the_backward(attach: Attach) -> list[Any]:
    """An optimizer a parameter, each of which updates as its gradient is there."""
    model = net()
    optimizers = {parameter: torch.optim.SGD([parameter], 0.1) for parameter in model.parameters()}

    def apply(parameter: Any) -> None:
        optimizers[parameter].step()
        optimizers[parameter].zero_grad()

    for parameter in model.parameters():
        parameter.register_post_accumulate_grad_hook(apply)
    attach(model, [*optimizers.values()])
    for x in batches():
        model(x).pow(2).mean().backward()
    return [model]


@loop
def assigned(attach: Attach) -> list[Any]:
    """Gradients from ``torch.autograd.grad`` that the program assigns."""
    model = net()
    optimizer = torch.optim.Adam(model.parameters(), 0.01)
    parameters = [*model.parameters()]
    attach(model, optimizer)
    for x in batches():
        for parameter, gradient in zip(
            parameters, torch.autograd.grad(model(x).pow(2).mean(), parameters), strict=True
        ):
            parameter.grad = gradient
        optimizer.step()
    return [model]


@loop
def checkpointed(attach: Attach) -> list[Any]:
    """Reentrant checkpointing: backwards within the backward."""
    model = SmallGPT(dropout=0.1, checkpoint="reentrant")
    optimizer = torch.optim.AdamW(model.parameters(), 0.01)
    attach(model, optimizer)
    for step in range(STEPS):
        update(optimizer, language_loss(model, token_batch(step)))
    return [model]


@loop
def checkpointed_without_reentry(attach: Attach) -> list[Any]:
    """Checkpointing by hooks on saved tensors."""
    model = SmallGPT(dropout=0.1, checkpoint="non-reentrant", tied=True)
    optimizer = torch.optim.AdamW(model.parameters(), 0.01)
    attach(model, optimizer)
    for step in range(STEPS):
        update(optimizer, language_loss(model, token_batch(step)))
    return [model]


@loop
def several_backwards(attach: Attach) -> list[Any]:
    """Two losses of one graph, which is retained."""
    model = net()
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    attach(model, optimizer)
    for x in batches():
        y = model(x)
        optimizer.zero_grad()
        y.pow(2).mean().backward(retain_graph=True)
        y.abs().mean().backward()
        optimizer.step()
    return [model]


@loop
def sparse(attach: Attach) -> list[Any]:
    """Sparse gradients."""
    model = torch.nn.Embedding(10, 4, sparse=True)
    torch.nn.init.constant_(model.weight, 0.5)
    optimizer = torch.optim.SparseAdam(model.parameters(), 0.01)
    attach(model, optimizer)
    for step in range(STEPS):
        update(optimizer, model(torch.tensor([step, step, 7])).pow(2).sum())
    return [model]


@loop
def complex_numbers(attach: Attach) -> list[Any]:
    """Complex parameters."""
    model = torch.nn.Module()
    model.weight = torch.nn.Parameter(torch.complex(torch.ones(8, 4), torch.full((8, 4), 0.5)))
    optimizer = torch.optim.Adam(model.parameters(), 0.01)
    attach(model, optimizer)
    for x in batches():
        update(optimizer, (x.to(torch.complex64) @ model.weight).abs().pow(2).mean())
    return [model]


@loop
def parts_without_numbers(attach: Attach) -> list[Any]:
    """A part on the meta device, and a lazy one that becomes real in the first forward."""
    model = torch.nn.Sequential(torch.nn.LazyLinear(4), torch.nn.Tanh())
    model.spare = torch.nn.Linear(3, 3, device="meta")
    optimizer = torch.optim.SGD([*model.parameters()], 0.1)
    attach(model, optimizer)
    for x in batches():
        y = model[1](model[0](x))
        if not optimizer.state:
            with torch.no_grad():
                model[0].weight.fill_(0.5), model[0].bias.zero_()
        update(optimizer, y.pow(2).mean())
    return [model[0]]


@loop
def transformed(attach: Attach) -> list[Any]:
    """``torch.func``: gradients of one sample each, and their mean by hand."""
    model = net().eval()
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    attach(model, optimizer)

    def loss(parameters: Any, x: Any) -> Any:
        return torch.func.functional_call(model, parameters, (x,)).pow(2).mean()

    for x in batches():
        parameters = {name: parameter.detach() for name, parameter in model.named_parameters()}
        rows = torch.func.vmap(torch.func.grad(loss), (None, 0))(parameters, x)
        for name, parameter in model.named_parameters():
            parameter.grad = rows[name].mean(0)
        optimizer.step()
    return [model]


@loop
def no_gradient(attach: Attach) -> list[Any]:
    """Updates without any gradient."""
    model = net()
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    attach(model, optimizer)
    for x in batches():
        model(x)
        optimizer.step()
    return [model]


@loop
def in_two_threads(attach: Attach) -> list[Any]:
    """Two trainings in one process, whose steps overlap."""
    models = [net(0).eval(), net(3).eval()]
    meeting = threading.Barrier(2)
    optimizers = [torch.optim.SGD(model.parameters(), 0.1) for model in models]
    for model, optimizer in zip(models, optimizers, strict=True):
        attach(model, optimizer)

    class Meeting(torch.autograd.Function):
        """A node whose backward waits for the other thread's."""

        @staticmethod
        def forward(_: Any, x: Any) -> Any:
            return x.clone()

        @staticmethod
        def backward(_: Any, gradient: Any) -> Any:
            meeting.wait(30)
            return gradient

    def train(number: int) -> None:
        for x in batches():
            y = models[number](x)
            update(optimizers[number], Meeting.apply(y).pow(2).mean())

    threads = [threading.Thread(target=train, args=(number,)) for number in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return models


class Counted(torch.Tensor):
    """A user's tensor, whose functions are counted."""

    calls: list[str] = []  # noqa: RUF012 - of all of them

    @classmethod
    def __torch_function__(cls, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        cls.calls.append(getattr(function, "__name__", str(function)))
        return super().__torch_function__(function, types, args, kwargs or {})


@loop
def own_tensors(attach: Attach) -> list[Any]:
    """Parameters of a class of the user's, which every function of torch calls."""
    model = torch.nn.Linear(8, 4)
    with torch.no_grad():
        weight = torch.nn.init.eye_(torch.empty(4, 8)).as_subclass(Counted)
    model.weight = torch.nn.Parameter(weight)
    optimizer = torch.optim.SGD([model.weight], 0.1)
    attach(model, optimizer)
    Counted.calls.clear()
    for x in batches():
        loss = torch.nn.functional.linear(x, model.weight).pow(2).mean()
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_([model.weight], 0.1)
        optimizer.step()
    return [model, len(Counted.calls)]


class Operations(TorchDispatchMode):
    """A user's mode, which sees every operation."""

    def __init__(self) -> None:
        super().__init__()
        self.names: list[str] = []

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.names.append(str(function))
        return function(*args, **(kwargs or {}))


@loop
def in_a_mode(attach: Attach) -> list[Any]:
    """A mode of the user's around it all; among the losses one that is NaN."""
    model = net()
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    attach(model, optimizer)
    with Operations() as operations:
        for step, x in enumerate(batches()):
            optimizer.zero_grad()
            (model(x).pow(2).mean() * (float("nan") if step == STEPS - 1 else 1.0)).backward(torch.ones(()))
            torch.nn.utils.clip_grad_norm_(model.parameters(), 0.1)
            optimizer.step()
    return [model, operations.names]
