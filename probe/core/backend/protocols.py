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
"""Removes the hook that the call which returned it has placed. Calling it twice is harmless."""
Listen = Callable[[Tensor], None]
Guard = Callable[..., Callable[..., None]]
"""Makes a function a hook that cannot raise and, on steps that are not sampled, returns at once. A second argument, a
function, is called first: if it returns true, the hook does nothing."""


class Shard(NamedTuple):
    """A tensor that is a part of one shared by several ranks, where its own type does not show that."""

    tensor: Tensor
    coverage: Coverage


class Adam(NamedTuple):
    """The hyperparameters of an update from two moments after ``steps`` steps: numbers or tensors."""

    beta1: Any
    beta2: Any
    eps: Any
    steps: Any
    """Infinitely many where moments are used as they are, not corrected for having begun at zero."""
    early: bool = False
    """Whether eps is added to the root before the root is corrected, so that it is as much larger."""


class Tensors(Protocol):
    """Operations on tensors."""

    def is_tensor(self, value: object) -> bool:
        """Whether ``value`` holds numbers that can be read now."""

    def describe(self, tensor: Tensor) -> tuple[tuple[int, ...], object, Coverage | None]:
        """Shape of the part that this process holds, the dtype as an object whose ``str`` users read, and the coverage,
        if the tensor itself knows it."""

    def identity(self, tensor: Tensor) -> tuple[Hashable, Callable[[], object]]:
        """A key that two readings share only if they are of one object at one version, and a function that returns None
        once that object is gone (its id may be used again)."""

    def hold(self, tensor: Tensor) -> Tensor | None:
        """A private copy if copying is cheaper than reducing at once (small tensors in host memory), else None."""

    def unchanged(self, tensor: Tensor, block: Block, column: int) -> bool:
        """Whether the elements still have exactly the sum in this column of their one-row block: False also where that
        is unknown without waiting, or where reducing is as cheap."""

    def moments(self, tensors: Sequence[Tensor], columns: Sequence[str], eps: float, scale: Tensor | None) -> Block:
        """Moments of non-empty tensors, ``len(tensors) x len(columns)``, without waiting for a device. A histogram, if
        asked for, is the last column and ``BINS`` wide. The values are ``scale`` times too large, and stay so: only eps
        is multiplied."""

    def agreement(self, one: Tensor, other: Tensor) -> Tensor:
        """The fraction of elements of two non-empty tensors that have the same sign, 0-d, without waiting for a device;
        a pair with a zero or NaN counts one half. Raises ValueError if the held parts of the two differ in shape."""

    def adam(self, first: Tensor, second: Tensor, about: Adam) -> tuple[Tensor, Tensor]:
        """Of non-empty moments, as float32 or float64 and without waiting: the update ``m / (sqrt(v) + eps)`` and the
        ratio ``m / sqrt(v)``, 0 where the first moment is, with ``m = first / (1 - beta1**steps)`` and ``v`` alike; an
        early eps is divided by ``sqrt(1 - beta2**steps)``."""

    def to_host(self, blocks: Sequence[Block]) -> Callable[[], npt.NDArray[np.float64]]:
        """Starts one copy of all blocks to host memory; the returned function waits for it and returns the rows."""


class DeviceClock(Protocol):
    """The clock of a device."""

    def mark(self) -> object:
        """A mark in the device's queue of this thread; None where all is done on the host."""

    def between(self, begin: Any, end: Any) -> float:
        """Seconds from one mark to a later one; waits until the device has reached it."""


class OutOfReach(Exception):  # noqa: N818 - no error
    """Gradients that will arrive where no hook can be placed, such as inside a compiled graph."""

    def __init__(self, rows: int) -> None:
        super().__init__(f"gradients of {rows} inputs")
        self.rows = rows


class StepListener(Reports, Protocol):
    """Called at every training step by :meth:`Hooks.on_step`."""

    def before(self, optimizer: Optimizer, scale: Tensor | None) -> None:
        """Called when gradients are as they will be applied, but ``scale`` times too large."""

    def after(self, optimizer: Optimizer, outcome: Outcome) -> None:
        """Called after the update: ``applied``, ``skipped`` or ``unknown`` (known to a device only)."""

    def searching(self, on: bool) -> None:
        """Called with ``True`` before a closure is evaluated again within an update, and with ``False`` after it."""

    @property
    def sampled(self) -> bool:
        """Whether the step in progress is sampled."""


class Hooks(Protocol):
    """Names and hooks of models and optimizers. Every ``on_...`` that lasts returns a function that removes its hook.

    A listener may be called in any step; where there is a ``guard``, it wraps the function that the framework will
    call.
    """

    def check_model(self, model: Module, settings: Any) -> None:
        """Raises ValueError, with the remedy, for a model that cannot be watched as ``settings`` ask."""

    def check_optimizer(self, optimizer: Optimizer) -> None:
        """Raises ValueError for an object that cannot be listened to."""

    def modules(self, model: Module) -> Iterable[tuple[str, Module]]:
        """Every module once, by the user's name for it; the root is ``""``. Wrappers around the user's modules are left
        out; a name that differs thereby is a :class:`probe.core.naming.Name`."""

    def runs(self, module: Module) -> bool:
        """Whether ``module`` itself has a forward; a container of others has none."""

    def parameters(self, model: Module) -> Iterable[tuple[str, Parameter]]:
        """Every parameter once, by its name, as in :meth:`modules`."""

    def trainable(self, parameter: Parameter) -> bool:
        """Whether a gradient hook can be placed now."""

    def value(self, optimizer: Optimizer, parameter: Parameter) -> Tensor | Shard | None:
        """The part of ``parameter`` that this process holds between steps, if any."""

    def gradient(self, optimizer: Optimizer, parameter: Parameter, main_grad: bool) -> Tensor | Shard | None:
        """The gradient held now for ``optimizer`` to apply: ``main_grad`` if asked for and there, else ``grad``."""

    def holds(self, optimizer: Optimizer, parameter: Parameter, main_grad: bool) -> bool:
        """Whether :meth:`gradient` was put there to be applied, by training or a user: False where it is a buffer that
        always exists, and may hold an earlier step's."""

    def owned(self, optimizer: Optimizer) -> Sequence[Parameter]:
        """The parameters that ``optimizer`` updates."""

    def state(self, optimizer: Optimizer, parameter: Parameter) -> Mapping[str, Tensor | Shard]:
        """The optimizer's tensors for ``parameter``, by the framework-neutral name."""

    def state_names(self, optimizer: Optimizer) -> Mapping[str, str]:
        """The framework's names of the kinds of state that have another name here."""

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
        """Identity of the object that will run this forward again in the backward, or that is running it again, if
        any."""

    def on_step(self, optimizer: Optimizer, listener: StepListener) -> Remove:
        """Listens to training steps: see ``docs/explanation/decisions/0002-training-steps.md``."""

    def on_gradient(self, parameter: Parameter, listen: Listen, *, own: bool, main_grad: bool, guard: Guard) -> Remove:
        """Listens once a backward, before any reduction: to this backward's gradient (``own``) or the sum so far, None
        while the sum is unknown. ``listen`` is called with ``apart=True`` where backwards are reduced one by one and no
        sum exists before reduction, and with ``reduced=True`` where this backward is reduced now, so that later
        gradients of the step do not contain it."""

    def forward_kind(self, root: Module) -> ForwardKind | None:
        """The kind of the running forward of a module of ``root``: None for evaluation."""

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
        With ``inside``, forwards inside compiled graphs count, too, whenever it returns true, and with ``gradients``
        ``after`` may listen to the gradients of the outputs there."""

    def on_tensor_gradient(self, tensor: Tensor, listen: Listen) -> None:
        """Listens to the gradient of ``tensor``, if it takes part in differentiation; the hook goes with the graph."""

    def watch_inputs(self, tensors: Sequence[Tensor]) -> Any:
        """Called before a forward: returns the argument for :meth:`on_input_gradients`; None if no gradient will come.

        Raises:
            OutOfReach: if gradients will come, but no hook can be placed on them.
        """

    def on_input_gradients(
        self, inputs: Any, outputs: Sequence[Tensor], listeners: Sequence[Listen], guard: Guard
    ) -> None:
        """Listens to the gradient of each input *through this module*, other branches left out."""

    def at_next_forward(self, model: Module, function: Callable[[], None]) -> Remove:
        """Calls ``function`` where hooks may be removed: in every forward of ``model`` from now on, or its backward,
        until the returned function is called."""

    def at_work(self) -> bool:
        """Whether this thread is calling hooks in such a way that none can be removed now."""


class Exchange(Protocol):
    """A channel over which some ranks send each other arrays, all of them each time."""

    received: Sequence[bytes]
    """The message of each rank when they met, in the order of the ranks."""

    def gather(self, payload: npt.NDArray[np.uint8]) -> npt.NDArray[np.uint8]:
        """The payloads of all ranks, ``len(ranks) x len(payload)``; equally long on all of them. One collective.

        Raises:
            Exception: if one of them did not come in time.
        """

    def close(self) -> None:
        """Ends the exchange on this rank."""


class Store(Protocol):
    """Bytes by key, shared by all ranks of a job. No call waits for another rank."""

    def claim(self, key: str, value: bytes) -> bytes:
        """Stores ``value`` under ``key`` unless the key is taken, atomically; returns the value that is stored now."""

    def get(self, key: str) -> bytes | None:
        """The stored value, or None."""

    def close(self) -> None:
        """Ends this rank's use of the store."""


class Groups(Protocol):
    """Process groups."""

    def rank(self) -> int:
        """This process's rank."""

    def world_size(self) -> int:
        """Number of processes."""

    def ranks_of(self, group: Any) -> list[int]:
        """Global ranks of ``group``; this rank alone if there is none."""


class Parallel(Protocol):
    """Engines that wrap models and optimizers and share their tensors out among processes. For a framework without any:
    :mod:`probe.core.backend.single_process`."""

    def acting(self, optimizer: Optimizer) -> Optimizer:
        """The object that takes the training steps of ``optimizer``: itself, one inside it, or one around it."""

    def check_again(self, parameter: Parameter) -> None:
        """Raises ValueError, with the remedy, if ``parameter`` has been wrapped in a way that hides its numbers."""

    def pipelined(self, model: Module) -> bool:
        """Whether the forward of ``model`` that begins now is one of a pipeline's schedule, which runs several micro
        batches forward before the first backward."""

    def named(self) -> Mapping[str, Sequence[int]]:
        """The groups that this rank is in, as far as an engine knows them by name, such as ``tensor_parallel``."""

    def meet(self, ranks: Sequence[int], where: str, message: bytes, seconds: float) -> Exchange:
        """Waits until all ``ranks`` have come to the place called ``where``, then connects them on the hosts' own
        network, apart from training's connections. Each sends ``message`` to the others.

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
    """Called at every transfer between ranks by :meth:`Collectives.listen`, on the thread that makes it."""

    @property
    def listening(self) -> bool:
        """Whether the listener wants calls now. Evaluating this is the only cost of a call while it is False."""

    def began(
        self, operation: str, ranks: Sequence[int], inputs: Sequence[Tensor], site: FrameType, again: bool = False
    ) -> Any:
        """Called before a call by the code at ``site``.

        Args:
            inputs: the tensors that this rank sends: no buffers that are outputs only.
            again: whether this is one more transfer of the call before.

        Returns:
            The call, for the other methods, with a method ``finish()`` that may be called on any thread at the moment
            of completion; None if no other method is to be called.
        """

    def ended(self, call: Any, outputs: Sequence[Tensor]) -> None:
        """Called when the call is complete for the code that made it, and its outputs can be read."""

    def abandoned(self, call: Any, outputs: int) -> None:
        """Called when nobody can wait for the call any more; it would have had so many outputs."""


class Collectives(Protocol):
    """Communication between ranks."""

    def listen(self, listener: CollectiveListener) -> Remove:
        """Sends ``listener`` every call from now on. Results and exceptions of calls stay the same. An asynchronous
        call ends when the code that made it waits for it, and a call that raises does not end."""

    def bytes_of(self, tensor: Tensor) -> int:
        """Size of the elements."""


Numbers = Any
"""An array of a framework's own, on its own device, that nothing differentiates: has ``+ - * / @``, comparisons, slices
to read and write, ``.shape``, ``.reshape`` and ``.sum(axis)``."""


class Arrays(Protocol):
    """Operations on arrays, with which core computes; none of them waits for a device."""

    def block(self, numbers: Numbers) -> int:
        """How many elements of an intermediate result are worth computing at once where ``numbers`` are."""

    def quiet(self) -> AbstractContextManager[object]:
        """A context in which operations are not recorded for gradients, nor cast, nor seen by other tools."""

    def member(self, module: Module, name: str) -> object:
        """The member of ``module`` that is called ``name``; None if there is none."""

    def numbers(self, tensor: Tensor) -> Numbers:
        """The elements that this process holds, as they are stored."""

    def wide(self, numbers: Numbers) -> Numbers:
        """The numbers as float64 if they are that, else as float32."""

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
        """One number a row, of scalars and vectors, in float64, as an argument for :meth:`Tensors.to_host`."""


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
    """None if the work of devices is not timed."""
    on_every_step: Callable[[Listen, Listen], Remove] = lambda began, ended: lambda: None  # noqa: ARG005
    """Calls the first function before and the second after each update of every optimizer of the process that can be
    seen, with the optimizer; returns a function that ends that."""
