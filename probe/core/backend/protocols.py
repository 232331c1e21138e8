"""The contract with a framework: protocols that its modules of plain functions satisfy.

``probe.pytorch`` and ``probe.mindspore`` are two examples, which mypy holds to these protocols. Nothing else in core
knows a framework.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from types import FrameType
from typing import Any, Literal, NamedTuple, Protocol

import numpy as np
import numpy.typing as npt

from probe.core.backend import single_process
from probe.core.backend.shield import Reports
from probe.core.records import Coverage, Outcome

Tensor = Any
Module = Any
Parameter = Any
Optimizer = Any
Block = Any
"""Moments of one or more tensors, on whatever device they were computed: opaque to core."""
ForwardKind = Literal["training", "recompute"]
"""A forward of training: the first, or one that activation checkpointing runs again in the backward."""
Remove = Callable[[], None]
"""Takes away the hook that the call which returned it has placed. Calling it twice is harmless."""
Listen = Callable[[Tensor], None]
Guard = Callable[..., Callable[..., None]]
"""Makes a function a hook that cannot raise and, on steps that are not sampled, returns at once. A second argument is
asked before that, whether to do nothing."""


class Shard(NamedTuple):
    """A tensor that does not tell by itself that it is a part of one shared by several ranks."""

    tensor: Tensor
    coverage: Coverage


class Adam(NamedTuple):
    """What an optimizer of two moments, which have seen so many steps, makes updates with: numbers or tensors."""

    beta1: Any
    beta2: Any
    eps: Any
    steps: Any
    """Infinitely many where moments are used as they are, not corrected for having begun at zero."""
    early: bool = False
    """Whether eps is added to the root before that is corrected, and is as much larger."""


class Tensors(Protocol):
    """What core asks of tensors."""

    def is_tensor(self, value: object) -> bool:
        """Whether ``value`` holds numbers that can be read now."""

    def describe(self, tensor: Tensor) -> tuple[tuple[int, ...], object, Coverage | None]:
        """Shape of what this process holds, the dtype as an object whose ``str`` is what users read, and of what whole
        it is a part, if the tensor itself knows."""

    def identity(self, tensor: Tensor) -> tuple[Hashable, Callable[[], object]]:
        """A key that two readings share only if they see one object at one version, and what gives None once that
        object is gone (its id may be given again)."""

    def hold(self, tensor: Tensor) -> Tensor | None:
        """A private copy if copying is cheaper than reducing at once (small tensors in host memory), else None."""

    def unchanged(self, tensor: Tensor, block: Block, column: int) -> bool:
        """Whether the elements still have exactly the sum that stands in this column of their one-row block: False also
        where it is not known without waiting, or where reducing is as cheap."""

    def moments(self, tensors: Sequence[Tensor], columns: Sequence[str], eps: float, scale: Tensor | None) -> Block:
        """Moments of non-empty tensors, ``len(tensors) x len(columns)``, without waiting for a device. A histogram, if
        asked for, is the last column and ``BINS`` wide. The values are ``scale`` times too large, and stay so: only eps
        is multiplied."""

    def agreement(self, one: Tensor, other: Tensor) -> Tensor:
        """The fraction of elements of two non-empty tensors that have the same sign, 0-d, without waiting for a device;
        a pair with a zero or NaN counts one half. Raises ValueError if what is held of the two differs in shape."""

    def adam(self, first: Tensor, second: Tensor, about: Adam) -> tuple[Tensor, Tensor]:
        """Of non-empty moments, as float32 or float64 and without waiting: the update ``m / (sqrt(v) + eps)`` and the
        ratio ``m / sqrt(v)``, 0 where the first moment is, with ``m = first / (1 - beta1**steps)`` and ``v`` alike; an
        early eps is divided by ``sqrt(1 - beta2**steps)``."""

    def to_host(self, blocks: Sequence[Block]) -> Callable[[], npt.NDArray[np.float64]]:
        """Starts one copy of all blocks to host memory; the function returned waits for it and gives the rows."""


class DeviceClock(Protocol):
    """What core asks of a device's time."""

    def mark(self) -> object:
        """A mark in the order of what the device does for this thread; None where all is done on the host."""

    def between(self, begin: Any, end: Any) -> float:
        """Seconds from one mark to a later one; waits until the device has come there."""


class OutOfReach(Exception):  # noqa: N818 - no error
    """Gradients that will come where nobody can listen, such as inside a compiled graph."""

    def __init__(self, rows: int) -> None:
        super().__init__(f"gradients of {rows} inputs")
        self.rows = rows


class StepListener(Reports, Protocol):
    """Told of every training step by :meth:`Hooks.on_step`."""

    def before(self, optimizer: Optimizer, scale: Tensor | None) -> None:
        """Gradients are as they will be applied, but ``scale`` times too large."""

    def after(self, optimizer: Optimizer, outcome: Outcome) -> None:
        """``applied``, ``skipped`` or ``unknown`` (known to a device only)."""

    def searching(self, on: bool) -> None:
        """A closure is evaluated again within an update, from ``True`` until ``False``."""

    @property
    def sampled(self) -> bool:
        """Whether anything is to be found out about the step in progress."""


class Hooks(Protocol):
    """What core asks of models and optimizers. Every ``on_...`` that lasts returns what takes its hook away.

    A listener may be called on any step; where there is a ``guard``, it wraps the very function that the framework will
    call.
    """

    def check_model(self, model: Module, settings: Any) -> None:
        """Raises ValueError, saying what to do, for a model that cannot be watched as ``settings`` ask."""

    def check_optimizer(self, optimizer: Optimizer) -> None:
        """Raises ValueError for what cannot be listened to."""

    def modules(self, model: Module) -> Iterable[tuple[str, Module]]:
        """Every module once, by the name that the user has given it; the root is ``""``. What wraps the user's modules
        is left out; where that makes a name another one, it is a :class:`probe.core.naming.Name`."""

    def runs(self, module: Module) -> bool:
        """Whether ``module`` itself has a forward; a mere container of others has none."""

    def parameters(self, model: Module) -> Iterable[tuple[str, Parameter]]:
        """Every parameter once, by name as :meth:`modules`."""

    def trainable(self, parameter: Parameter) -> bool:
        """Whether a gradient hook can be placed now."""

    def value(self, optimizer: Optimizer, parameter: Parameter) -> Tensor | Shard | None:
        """What this process holds of ``parameter`` between steps, if anything."""

    def gradient(self, optimizer: Optimizer, parameter: Parameter, main_grad: bool) -> Tensor | Shard | None:
        """The gradient held now for ``optimizer`` to apply: ``main_grad`` if asked for and there, else ``grad``."""

    def holds(self, optimizer: Optimizer, parameter: Parameter, main_grad: bool) -> bool:
        """Whether :meth:`gradient` is what was put there to be applied, by whomever: False where it is a buffer that is
        always there, and may be left over."""

    def owned(self, optimizer: Optimizer) -> Sequence[Parameter]:
        """The parameters that ``optimizer`` updates."""

    def state(self, optimizer: Optimizer, parameter: Parameter) -> Mapping[str, Tensor | Shard]:
        """The optimizer's tensors for ``parameter``, by the framework-neutral name."""

    def state_names(self, optimizer: Optimizer) -> Mapping[str, str]:
        """What the framework calls those kinds of state that go by another name here."""

    def adam(self, optimizer: Optimizer) -> Callable[[Parameter], Adam | None]:
        """A function from a parameter to the hyperparameters of its Adam update, valid until the next step; it returns
        None for an optimizer that is not Adam-like or has not begun."""

    def loss_scale(self) -> Tensor | None:
        """The factor on the losses of the step in progress, if known."""

    def held_scale(self, optimizer: Optimizer) -> Tensor | None:
        """The factor that the gradients held for ``optimizer`` still carry, if known."""

    def backward_id(self) -> int:
        """Identity of the running backward pass; -1 outside of one."""

    def differentiates(self) -> bool:
        """Whether operations now become part of a graph."""

    def feeds(self, models: Iterable[Module]) -> bool:
        """Whether the running backward leads to parameters of ``models``."""

    def recomputed_by(self) -> int | None:
        """Identity of what will run this forward again in the backward, or of what is running it again, if any."""

    def on_step(self, optimizer: Optimizer, listener: StepListener) -> Remove:
        """Listens to training steps: see ``docs/explanation/decisions/0002-training-steps.md``."""

    def on_gradient(self, parameter: Parameter, listen: Listen, *, own: bool, main_grad: bool, guard: Guard) -> Remove:
        """Listens once a backward, before any reduction: to this backward's gradient (``own``) or the sum so far, None
        while that is not known. Where backwards are reduced one by one, so that no sum exists before reduction,
        ``listen`` is called with ``apart=True``; with ``reduced=True`` where this one is reduced now, so that what
        comes later in the step does not contain it."""

    def forward_kind(self, root: Module) -> ForwardKind | None:
        """What the running forward of a module of ``root`` is: ``training``, ``recompute``, or None for evaluation."""

    def on_forward(
        self,
        module: Module,
        before: Callable[..., None],
        after: Callable[..., None],
        guard: Guard,
        *,
        inside: Callable[[], bool] | None = None,
        gradients: bool = False,
    ) -> Remove:
        """Listens to every forward of ``module``: ``before`` gets ``args`` and ``kwargs``, ``after`` the outputs.
        ``inside`` asks to be heard inside compiled graphs, too, whenever it says so, and then ``gradients`` that
        ``after`` may listen to those of the outputs."""

    def on_tensor_gradient(self, tensor: Tensor, listen: Listen) -> None:
        """Listens to the gradient of ``tensor``, if it takes part in differentiation; the hook goes with the graph."""

    def watch_inputs(self, tensors: Sequence[Tensor]) -> Any:
        """Called before a forward: what :meth:`on_input_gradients` needs to know; None if no gradient will come.

        Raises:
            OutOfReach: if gradients will come, and nobody can listen to them.
        """

    def on_input_gradients(
        self, inputs: Any, outputs: Sequence[Tensor], listeners: Sequence[Listen], guard: Guard
    ) -> None:
        """Listens to the gradient of each input *through this module*, other branches left out."""

    def at_next_forward(self, model: Module, function: Callable[[], None]) -> Remove:
        """Calls ``function`` where hooks may be taken away: in the next forward of ``model`` or its backward, and in
        each after it, until what is returned is called."""

    def at_work(self) -> bool:
        """Whether this thread is calling hooks in such a way that none can be taken away now."""


class Exchange(Protocol):
    """A way for some ranks to tell each other something, all of them each time."""

    heard: Sequence[bytes]
    """What each rank said when they met, in the order of the ranks."""

    def gather(self, payload: npt.NDArray[np.uint8]) -> npt.NDArray[np.uint8]:
        """What all ranks give, ``len(ranks) x len(payload)``; equally long on all of them. One collective.

        Raises:
            Exception: if one of them did not come in time.
        """

    def close(self) -> None:
        """Nothing more will be said."""


class Store(Protocol):
    """Where the ranks of a job keep bytes by name, for all of them to see. Nothing here waits for what another rank has
    still to do."""

    def claim(self, key: str, value: bytes) -> bytes:
        """Keeps ``value`` under ``key`` unless something is there, in one move; what is there then."""

    def get(self, key: str) -> bytes | None:
        """What is kept, or None."""

    def close(self) -> None:
        """This rank uses it no longer."""


class Groups(Protocol):
    """What core asks of process groups."""

    def rank(self) -> int:
        """This process's rank."""

    def world_size(self) -> int:
        """Number of processes."""

    def ranks_of(self, group: Any) -> list[int]:
        """Global ranks of ``group``; this rank alone if there is none."""


class Parallel(Protocol):
    """What core asks where others wrap models and optimizers and share their tensors out among processes. What a
    framework answers without any of that is :mod:`probe.core.backend.single_process`."""

    def acting(self, optimizer: Optimizer) -> Optimizer:
        """What takes the training steps of ``optimizer``: itself, or what it wraps or is wrapped by."""

    def check_again(self, parameter: Parameter) -> None:
        """Raises ValueError, saying what to do, if ``parameter`` has been wrapped in a way that hides its numbers."""

    def pipelined(self, model: Module) -> bool:
        """Whether the forward of ``model`` that begins now is one of a pipeline's schedule, which runs several micro
        batches forward before the first backward."""

    def named(self) -> Mapping[str, Sequence[int]]:
        """The groups that this rank is in, as far as what trains in parallel here knows them by name, such as
        ``tensor_parallel``."""

    def meet(self, ranks: Sequence[int], where: str, said: bytes, seconds: float) -> Exchange:
        """Waits until all ``ranks`` have come to the place called ``where``, then connects them on the hosts' own
        network, apart from what training uses.

        Raises:
            TimeoutError: if one of them did not come within ``seconds``, naming it.
        """

    def has_store(self) -> bool:
        """Whether the job keeps a store of its own, which :meth:`store` finds."""

    def store(self, where: str) -> Store:
        """The part called ``where`` of the store that the job keeps.

        Raises:
            Exception: if there is none.
        """


class CollectiveListener(Reports, Protocol):
    """Told of every transfer between ranks by :meth:`Collectives.listen`, on the thread that makes it."""

    @property
    def listening(self) -> bool:
        """Whether calls are to be told of now. All that a call costs while this is False."""

    def began(
        self, operation: str, ranks: Sequence[int], inputs: Sequence[Tensor], site: FrameType, again: bool = False
    ) -> Any:
        """A call is about to be made by the code at ``site``. ``inputs`` are the tensors that this rank sends, without
        buffers to be filled; ``again``: one more transfer of the call before. Returns a value for the other methods
        whose ``finish()`` may be called on any thread at completion; None if the call needs no further report."""

    def ended(self, call: Any, outputs: Sequence[Tensor]) -> None:
        """The call is complete for who made it, and what this rank gets can be read."""

    def abandoned(self, call: Any, outputs: int) -> None:
        """Nobody can wait for the call any more; it would have had so many outputs."""


class Collectives(Protocol):
    """What core asks of communication."""

    def listen(self, listener: CollectiveListener) -> Remove:
        """Tells of every call from now on. What a call returns and raises stays what it was; where it is asynchronous,
        nothing is waited for: it ends when who made it waits. A call that raises does not end."""

    def bytes_of(self, tensor: Tensor) -> int:
        """Size of the elements."""


Numbers = Any
"""An array of a framework's own, on its own device, that nothing differentiates: has ``+ - * / @``, comparisons, slices
to read and write, ``.shape``, ``.reshape`` and ``.sum(axis)``."""


class Arrays(Protocol):
    """What core asks for to compute with tensors: a few operations, none of which waits for a device."""

    def block(self, numbers: Numbers) -> int:
        """How many elements of an intermediate result are worth computing at once where ``numbers`` are."""

    def quiet(self) -> AbstractContextManager[object]:
        """Inside, nothing is recorded for gradients, nothing is cast, and no one sees what is computed."""

    def member(self, module: Module, name: str) -> object:
        """What ``module`` calls ``name``; None if it has no such thing."""

    def numbers(self, tensor: Tensor) -> Numbers:
        """The elements that this process holds, as they are stored."""

    def wide(self, numbers: Numbers) -> Numbers:
        """As float64 if they are that, else as float32."""

    def on_host(self, numbers: Numbers) -> bool:
        """Whether a number can be read without waiting."""

    def is_floating(self, numbers: Numbers) -> bool:
        """Whether the elements are floating numbers: no flags, integers or complex ones."""

    def like(self, array: npt.NDArray[np.float64], numbers: Numbers) -> Numbers:
        """``array`` where ``numbers`` are, of their dtype."""

    def zeros(self, shape: tuple[int, ...], numbers: Numbers) -> Numbers:
        """Zeros where ``numbers`` are, of their dtype."""

    def positions(self, count: int, numbers: Numbers) -> Numbers:
        """0, 1, ..., ``count - 1`` where ``numbers`` are."""

    def turned(self, numbers: Numbers) -> Numbers:
        """With the last two dimensions swapped."""

    def ordered(self, numbers: Numbers, axes: tuple[int, ...]) -> Numbers:
        """With the dimensions in this order."""

    def largest(self, numbers: Numbers) -> Numbers:
        """Of the last dimension, which stays with length 1; NaN where one is NaN."""

    def magnitude(self, numbers: Numbers) -> Numbers:
        """Without sign."""

    def exp(self, numbers: Numbers) -> Numbers:
        """Of each element."""

    def log(self, numbers: Numbers) -> Numbers:
        """Of each element, the natural one."""

    def root(self, numbers: Numbers) -> Numbers:
        """Of each element, the square one."""

    def where(self, condition: Numbers, value: float, other: Numbers) -> Numbers:
        """``value`` where ``condition`` is true, else the element of ``other``."""

    def counts(self, numbers: Numbers, largest: int, above: float) -> Numbers:
        """In how many rows of a matrix each column is among those of the ``largest`` greatest elements, if greater than
        ``above``."""

    def column(self, scalars: Sequence[Numbers]) -> Block:
        """One number a row, of scalars and vectors, in float64: what :meth:`Tensors.to_host` takes."""


class FrameworkAdapter(NamedTuple):
    """A framework, as core sees it."""

    name: str
    version: str
    tensors: Tensors
    hooks: Hooks
    groups: Groups
    collectives: Collectives | None = None
    """None if communication cannot be listened to."""
    parallel: Parallel = single_process
    arrays: Arrays | None = None
    """None if nothing but moments can be computed."""
    prepare: Callable[[Any], Remove] = lambda settings: lambda: None  # noqa: ARG005
    """Called once with the settings when a monitor attaches; returns an undo function, which is called at stop."""
    capturing: Callable[[], bool] = lambda: False
    """True while a CUDA graph is captured: kernels are recorded and replayed later, without Python."""
    clock: DeviceClock | None = None
    """None if what devices do is not measured."""
    on_every_step: Callable[[Listen, Listen], Remove] = lambda began, ended: lambda: None  # noqa: ARG005
    """Calls the first before and the second after each update of every optimizer of the process that can be seen, with
    the optimizer; returns what ends that."""
