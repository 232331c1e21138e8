"""Contract with a framework: protocols that its modules of plain functions satisfy.

``probe.pytorch`` and ``probe.mindspore`` are two examples, which mypy checks against these protocols. Nothing else in
core depends on a framework.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Hashable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from types import FrameType
from typing import Any, Literal, NamedTuple, Protocol, runtime_checkable

import numpy as np
import numpy.typing as npt

from probe.core.backend import single_process
from probe.core.door import FaultCounter
from probe.core.records import Coverage, Outcome

Tensor = Any
Module = Any
Parameter = Any
Optimizer = Any
Block = Any
"""Moments of one or more tensors, on the device that computed them: opaque to core."""
Numbers = Any
"""Array of a framework on its own device, never differentiated, with ``+ - * / @``, comparisons, slices to read and
write, ``.shape``, ``.reshape`` and ``.sum(axis)``."""
ForwardKind = Literal["training", "recompute"]
"""Kind of a forward in training: the first, or one that activation checkpointing runs again in the backward."""
Described = tuple[tuple[int, ...], object, Coverage | None]
"""Shape of the part that this process holds, dtype as an object whose ``str`` users read, and coverage."""
HostPlace = tuple[int, int, int, Described]
"""Numbers side by side in host memory: address, number, kind (one of ``fused_reduce.KINDS``) and description."""
Remove = Callable[[], None]
"""Function that removes the hook placed by the call that returned this function. It may be called twice."""


@runtime_checkable
class PausableHook(Protocol):
    """Hook that can be paused: taken out of the framework, and put back where it was. A call removes it for good, as
    :data:`Remove` does."""

    def __call__(self) -> None: ...

    def rest(self) -> None:
        """Take the hook out."""

    def wake(self) -> None:
        """Put the hook back, in the same place among other hooks, unless it was removed."""


Listen = Callable[[Tensor], None]
Guard = Callable[[Callable[..., None]], Callable[..., None]]
"""Function that turns a function into a hook, which never raises and has no effect in steps that are not sampled."""


def unheard(*_: object) -> None:
    """Listen to nothing: a hook that calls only this need not be placed."""


class Shard(NamedTuple):
    """Tensor that is one rank's part of a whole, with its coverage, for types that do not show their coverage."""

    tensor: Tensor
    coverage: Coverage


class Adam(NamedTuple):
    """Hyperparameters of an update from two moments after ``steps`` steps: numbers or tensors."""

    beta1: Any
    beta2: Any
    eps: Any
    steps: Any
    """Infinite if moments are used without correction for their initial value of zero."""
    early: bool = False
    """True if eps is added to the root before the root is corrected, so that the correction enlarges eps, too."""


class Tensors(Protocol):
    """Operations on tensors."""

    def is_tensor(self, value: object) -> bool:
        """Return whether ``value`` holds numbers that can be read now."""

    def host_place(self, tensor: Tensor) -> HostPlace | None:
        """Return the place of a non-empty tensor that the compiled pass can read at once; None for any other."""

    def describe(self, tensor: Tensor) -> Described:
        """Return the description of ``tensor``; the coverage is there only if the tensor itself has one."""

    def identity(self, tensor: Tensor) -> tuple[Hashable, Callable[[], object]]:
        """Return a key that is equal for two readings only if they are of one object at one version, and a function
        that returns None once that object is gone (its id may be used again)."""

    def hold(self, tensor: Tensor) -> Tensor | None:
        """Return a private copy if that is cheaper than reducing at once (small tensors in host memory), else None."""

    def number(self, tensor: Tensor) -> float | None:
        """Return the element of a tensor of one element if that is in host memory, else None."""

    def moments(self, tensors: Sequence[Tensor], columns: Sequence[str], eps: float, scale: Tensor | None) -> Block:
        """Return moments of non-empty tensors, ``len(tensors) x len(columns)``, without waiting for a device. A
        histogram, if in ``columns``, comes last and is ``BINS`` wide. The values are ``scale`` times too large, and
        stay so: only eps is multiplied."""

    def agreement(self, one: Tensor, other: Tensor) -> Tensor:
        """Return the fraction of equal signs in two non-empty tensors, 0-d, without waiting for a device; a pair with a
        zero or NaN counts one half. Raise ValueError if the held parts of the two differ in shape."""

    def adam(self, first: Tensor, second: Tensor, settings: Adam) -> tuple[Tensor, Tensor]:
        """Return the update ``m / (sqrt(v) + eps)`` and the ratio ``m / sqrt(v)``, 0 where the first moment is 0, of
        non-empty moments, with ``m = first / (1 - beta1**steps)`` and ``v`` alike, as float32 or float64 and without
        waiting; an early eps is divided by ``sqrt(1 - beta2**steps)``."""

    def numbers(self, tensor: Tensor) -> Numbers:
        """Return the elements that this process holds, as they are stored."""

    def to_host(self, blocks: Sequence[Block]) -> Callable[[], npt.NDArray[np.float64]]:
        """Start one copy of all blocks to host memory; return a function that waits for it and returns the rows."""


class DeviceClock(Protocol):
    """Clock of a device."""

    def mark(self) -> object:
        """Return a mark in this thread's queue of the device; None if all work is done on the host."""

    def between(self, begin: Any, end: Any) -> float:
        """Return the seconds from one mark to a later one; wait until the device has reached the later one."""


class OutOfReach(Exception):  # noqa: N818 - no error
    """Gradients that will arrive where no hook can be placed, such as inside a compiled graph."""

    def __init__(self, rows: int) -> None:
        super().__init__(f"gradients of {rows} inputs")
        self.rows = rows


class Listener(Protocol):
    """Listener that an adapter calls."""

    @property
    def faults(self) -> FaultCounter:
        """The counter of failures of the adapter itself, after which training continues."""


class StepListener(Listener, Protocol):
    """Listener that :meth:`Hooks.on_step` calls at every training step."""

    def before(self, optimizer: Optimizer, scale: Tensor | None) -> None:
        """Receive the optimizer when gradients are as they will be applied, but ``scale`` times too large."""

    def after(self, optimizer: Optimizer, outcome: Outcome) -> None:
        """Receive the outcome of the update: ``applied``, ``skipped`` or ``unknown`` (known to a device only)."""

    def compiled(self, optimizer: Optimizer, updates: Callable[[], int]) -> None:
        """Receive an optimizer whose update a compiler has traced, so that no other method is called in it, and a
        function whose result changes with each update."""

    def searching(self, on: bool) -> None:
        """Receive True before a closure is evaluated again within an update, and False after it."""

    @property
    def sampled(self) -> bool:
        """True if the step in progress is sampled."""

    @property
    def reads_gradients(self) -> bool:
        """True if gradients are read in the step in progress, sampled or not."""


class Hooks(Protocol):
    """Names and hooks of models and optimizers. Every ``on_...`` whose hook lasts returns a function that removes it.

    A listener may be called in any step; a ``guard`` wraps the function that the framework will call. Hooks that need
    not be there in steps that are not sampled are each a :class:`PausableHook`.
    """

    def check_model(self, model: Module, settings: Any) -> None:
        """Raise ValueError, with the remedy, for a model that cannot be watched as ``settings`` require."""

    def check_optimizer(self, optimizer: Optimizer) -> None:
        """Raise ValueError for an object whose steps cannot be listened to."""

    def modules(self, model: Module) -> Iterable[tuple[str, Module]]:
        """Return every module once, with its name in the user's model; the root is ``""``. Wrappers around the user's
        modules are left out; if that changes a name, it is a :class:`probe.core.naming.Name`."""

    def runs(self, module: Module) -> bool:
        """Return whether ``module`` itself has a forward; a container of others has none."""

    def parameters(self, model: Module) -> Iterable[tuple[str, Parameter]]:
        """Return every parameter once, with its name, as in :meth:`modules`."""

    def structure(self, model: Module) -> tuple[int, ...]:
        """Return numbers that are others if modules or parameters of ``model`` are, or if one has been wrapped in a way
        that hides its numbers; cheaply, since it is called in every sampled step."""

    def tokens(self, parameters: Sequence[Parameter]) -> list[int]:
        """Return the identities of what hooks of ``parameters`` are placed on; cheaply, as :meth:`structure`."""

    def trainable(self, parameter: Parameter) -> bool:
        """Return whether a gradient hook can be placed now."""

    def value(self, optimizer: Optimizer, parameter: Parameter) -> Tensor | Shard | None:
        """Return the part of ``parameter`` that this process holds between steps, if any."""

    def gradients_of(self, optimizer: Optimizer, main_grad: bool) -> Callable[[Parameter], Tensor | Shard | None]:
        """Return a function from a parameter to the gradient that ``optimizer`` will apply: ``main_grad`` if requested
        and present, else ``grad``. It is valid until the update."""

    def holds(self, optimizer: Optimizer, parameter: Parameter, main_grad: bool) -> bool:
        """Return whether training or a user has set the gradient to be applied; False for a buffer that always
        exists, and may hold an earlier step's gradient."""

    def owned(self, optimizer: Optimizer) -> Sequence[Parameter]:
        """Return the parameters that ``optimizer`` updates."""

    def state(self, optimizer: Optimizer, parameter: Parameter) -> Mapping[str, Tensor | Shard]:
        """Return the optimizer's tensors for ``parameter``, by the framework-neutral name."""

    def state_names(self, optimizer: Optimizer) -> Mapping[str, str]:
        """Return the framework's names of the kinds of state that have another name here."""

    def adam(self, optimizer: Optimizer) -> Callable[[Parameter], Adam | None]:
        """Return a function from a parameter to the hyperparameters of its Adam update, valid until the next step. The
        function returns None if the optimizer is not Adam-like or has taken no step."""

    def learning_rate(self, optimizer: Optimizer) -> object:
        """Return the learning rate of the optimizer's first group of parameters, a number or a tensor; None if it has
        none. Never wait for a device."""

    def loss_scale(self, parameters: Callable[[], Iterable[Parameter]] = ...) -> Tensor | None:
        """Return the factor on the loss whose backward runs, as its gradients reach ``parameters``; outside of a
        backward, that on the latest loss. None if it is not known."""

    def found_inf(self, optimizer: Optimizer) -> Tensor | None:
        """Return the number on a device that is not 0 if the update that has just ended with the outcome ``unknown``
        was skipped; None if there is none."""

    def held_scale(self, optimizer: Optimizer) -> Tensor | None:
        """Return the factor that the gradients held for ``optimizer`` still carry, if known."""

    def backward_id(self) -> int:
        """Return the identity of the running backward pass; -1 if none is running."""

    def graph_size(self) -> int | None:
        """Return a number that grows by one with each operation that this thread makes part of a graph; None if the
        framework does not count them."""

    def differentiates(self) -> bool:
        """Return whether operations now become part of a graph."""

    def feeds(self, models: Iterable[Module]) -> bool:
        """Return whether the running backward leads to parameters of ``models``."""

    def recomputed_by(self) -> int | None:
        """Return the identity of the object that will run this forward again in the backward, or is running it again
        now; None if there is none."""

    def on_step(self, optimizer: Optimizer, listener: StepListener) -> Remove:
        """Listen to training steps: see ``docs/explanation/decisions/0002-training-steps.md``."""

    def on_gradient(self, parameter: Parameter, listen: Listen, *, own: bool, main_grad: bool, guard: Guard) -> Remove:
        """Listen once a backward, before any reduction: to this backward's gradient (``own``) or the sum so far, None
        while the sum is unknown. Call ``listen`` with ``apart=True`` if backwards are reduced one by one, so that no
        sum exists before reduction, and with ``reduced=True`` if this backward is reduced now, so that later gradients
        of the step do not contain it."""

    def forward_kind(self, root: Module) -> ForwardKind | None:
        """Return the kind of the running forward of a module of ``root``; None for evaluation."""

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
        """Listen to every forward of ``module``: ``before`` receives ``args`` and ``kwargs``, ``after`` the outputs; if
        the forward raises, it receives None while the exception is handled (older frameworks do not call it). If
        ``inside`` is passed, include forwards inside compiled graphs whenever it returns true; if ``gradients``,
        ``after`` may listen to the gradients of the outputs there."""

    def on_tensor_gradient(self, tensor: Tensor, listen: Listen) -> None:
        """Listen to the gradient of ``tensor``, if it takes part in differentiation; the hook goes with the graph."""

    def watch_inputs(self, tensors: Sequence[Tensor]) -> Any:
        """Return, before a forward, the argument for :meth:`on_input_gradients`; None if no gradient will arrive.

        Raises:
            OutOfReach: if gradients will arrive, but no hook can be placed on them.
        """

    def on_input_gradients(
        self, inputs: Any, outputs: Sequence[Tensor], listeners: Sequence[Listen], guard: Guard
    ) -> None:
        """Listen to the gradient of each input *through this module*, other branches left out."""

    def has_compiled(self) -> bool:
        """Return whether a compiler may run parts of a model in which no hook runs, while hooks of the whole do."""

    def may_rest(self) -> bool:
        """Return whether a :class:`PausableHook` may be taken out where no backward runs."""

    def at_next_forward(self, model: Module, function: Callable[[], None], faults: FaultCounter) -> Remove:
        """Call ``function`` at times when hooks may be removed: in every forward of ``model`` from now on, or its
        backward, until the returned function is called. ``faults`` counts what it raises."""

    def at_work(self) -> bool:
        """Return whether this thread is calling hooks in a way that prevents their removal now."""


class Exchange(Protocol):
    """Channel over which some ranks send each other arrays; all of them take part each time."""

    received: Sequence[bytes]
    """Message of each rank when they met, in the order of the ranks."""

    def gather(self, payload: npt.NDArray[np.uint8]) -> npt.NDArray[np.uint8]:
        """Return the payloads of all ranks, ``len(ranks) x len(payload)``, by one collective. All are equally long.

        Raises:
            Exception: if one of the ranks did not arrive in time.
        """

    def close(self) -> None:
        """End the exchange on this rank."""


class Store(Protocol):
    """Bytes by key, shared by all ranks of a job. No call waits for another rank."""

    def claim(self, key: str, value: bytes) -> bytes:
        """Store ``value`` under ``key`` unless the key is taken, atomically; return the value that is stored now."""

    def get(self, key: str) -> bytes | None:
        """Return the stored value, or None."""

    def close(self) -> None:
        """End this rank's use of the store."""


class Groups(Protocol):
    """Process groups."""

    def rank(self) -> int:
        """Return this process's rank."""

    def world_size(self) -> int:
        """Return the number of processes."""

    def ranks_of(self, group: Any) -> list[int]:
        """Return the global ranks of ``group``; this rank alone if ``group`` is None."""

    def replicas(self, models: Iterable[Module]) -> Sequence[int]:
        """Return the ranks among which a wrapper of ``models``, or of a part of one, averages gradients: they hold the
        same parameters. Return nothing if no wrapper does, or several do among different ranks."""


class Parallel(Protocol):
    """Engines that wrap models and optimizers and distribute their tensors among processes. A framework without engines
    uses :mod:`probe.core.backend.single_process`."""

    def acting(self, optimizer: Optimizer) -> Optimizer:
        """Return the object that takes the training steps of ``optimizer``: itself, one inside it, or one around it."""

    def check_again(self, parameter: Parameter) -> None:
        """Raise ValueError, with the remedy, if ``parameter`` has been wrapped in a way that hides its numbers. Called
        when :meth:`Hooks.structure` has changed."""

    def pipelined(self, model: Module) -> bool:
        """Return whether the forward of ``model`` that begins now belongs to a pipeline's schedule, which runs several
        micro batches forward before the first backward."""

    def named(self) -> Mapping[str, Sequence[int]]:
        """Return the groups of this rank that an engine knows by name, such as ``tensor_parallel``."""

    def meet(self, ranks: Sequence[int], where: str, message: bytes, seconds: float) -> Exchange:
        """Wait until all ``ranks`` have come to the place called ``where``, then connect them on the hosts' own
        network, apart from training's connections. Send ``message`` to the others.

        Raises:
            TimeoutError: with the ranks that did not arrive within ``seconds``.
        """

    def has_store(self) -> bool:
        """Return whether the job keeps a store of its own, which :meth:`store` returns."""

    def store(self, where: str) -> Store:
        """Return the part called ``where`` of the store that the job keeps.

        Raises:
            Exception: if there is none.
        """


class CollectiveListener(Listener, Protocol):
    """Listener that :meth:`Collectives.listen` calls at every transfer between ranks, on the calling thread."""

    @property
    def listening(self) -> bool:
        """True if the listener wants calls now. Evaluating this is the only cost of a call while it is False."""

    def began(
        self, operation: str, ranks: Sequence[int], inputs: Sequence[Tensor], site: FrameType, again: bool = False
    ) -> Any:
        """Receive the start of a call by the code at ``site``.

        Args:
            inputs: the tensors that this rank sends, without buffers that are only outputs.
            again: True if this is one more transfer of the previous call.

        Returns:
            The call, for the other methods, with a method ``finish()`` that may be called on any thread at the moment
            of completion; None if no other method is to be called.
        """

    def ended(self, call: Any, outputs: Sequence[Tensor]) -> None:
        """Receive the outputs when the call is complete for the code that made it, so that they can be read."""

    def abandoned(self, call: Any, outputs: int) -> None:
        """Receive the number of outputs of a call that no code can wait for any more."""


class Collectives(Protocol):
    """Communication between ranks."""

    def listen(self, listener: CollectiveListener) -> Remove:
        """Send ``listener`` every call from now on, without changing results and exceptions of calls. An asynchronous
        call ends when the code that made it waits for it, and a call that raises does not end."""

    def bytes_of(self, tensor: Tensor) -> int:
        """Return the bytes of all elements."""


class Arrays(Protocol):
    """Operations on arrays for computations in core; none of them waits for a device."""

    def block(self, numbers: Numbers) -> int:
        """Return the number of elements of an intermediate result to compute at once on the device of ``numbers``."""

    def quiet(self) -> AbstractContextManager[object]:
        """Return a context in which operations are not recorded for gradients, cast, or seen by other tools."""

    def member(self, module: Module, name: str) -> object:
        """Return the member of ``module`` that is called ``name``; None if there is none."""

    def wide(self, numbers: Numbers) -> Numbers:
        """Return float64 numbers unchanged, others as float32."""

    def on_host(self, numbers: Numbers) -> bool:
        """Return whether a number can be read without waiting."""

    def is_floating(self, numbers: Numbers) -> bool:
        """Return whether the elements are floating-point numbers: no flags, integers or complex numbers."""

    def like(self, array: npt.NDArray[np.float64], numbers: Numbers) -> Numbers:
        """Return ``array`` on the device of ``numbers``, with their dtype."""

    def zeros(self, shape: tuple[int, ...], numbers: Numbers) -> Numbers:
        """Return zeros on the device of ``numbers``, with their dtype."""

    def positions(self, count: int, numbers: Numbers) -> Numbers:
        """Return 0, 1, ..., ``count - 1`` on the device of ``numbers``."""

    def turned(self, numbers: Numbers) -> Numbers:
        """Return the numbers with the last two dimensions swapped."""

    def ordered(self, numbers: Numbers, axes: tuple[int, ...]) -> Numbers:
        """Return the numbers with the dimensions in the order ``axes``."""

    def largest(self, numbers: Numbers) -> Numbers:
        """Return the maximum of the last dimension, which stays with length 1; NaN if one element is NaN."""

    def magnitude(self, numbers: Numbers) -> Numbers:
        """Return the absolute values."""

    def exp(self, numbers: Numbers) -> Numbers:
        """Return the exponential of each element."""

    def log(self, numbers: Numbers) -> Numbers:
        """Return the natural logarithm of each element."""

    def root(self, numbers: Numbers) -> Numbers:
        """Return the square root of each element."""

    def where(self, condition: Numbers, value: float, other: Numbers) -> Numbers:
        """Return ``value`` where ``condition`` is true, else the element of ``other``."""

    def counts(self, numbers: Numbers, largest: int, above: float) -> Numbers:
        """Return, for each column of a matrix, the number of rows in which its element is one of the ``largest``
        greatest and greater than ``above``."""

    def column(self, scalars: Sequence[Numbers]) -> Block:
        """Return scalars and vectors in float64, one number a row, as an argument for :meth:`Tensors.to_host`."""


class ParameterReader(Protocol):
    """Reader of the moments of some parameters."""

    def read(self, positions: Sequence[int]) -> tuple[Sequence[int], Callable[[], npt.NDArray[np.float64]]]:
        """Return those of ``positions`` whose parameters have numbers in this process now, and a function that waits
        for their moments, a row each."""


class OwnGradientReader(Protocol):
    """Reader of the gradients that backwards bring to some parameters, before any reduction."""

    def take(self) -> tuple[list[int], Callable[[], npt.NDArray[np.float64]]]:
        """Return the positions of the parameters with gradients since the last call, and a function that waits for the
        norm and the sum of each; of several backwards, the root of the sum of squares."""

    def remove(self) -> None:
        """End the reading."""


class TrainingLoop(Protocol):
    """Events of a training loop between two updates. All of it is called in steps that are not sampled, too; nothing
    waits for a device, and nothing is kept alive."""

    def on_backward(
        self,
        began: Callable[[Tensor | None, Collection[int]], None],
        ended: Callable[[], None],
        faults: FaultCounter,
    ) -> Remove:
        """Call ``began`` before each backward that runs in no other, with its root if that is a loss (one element, no
        gradient passed in) and the identities of the inputs that were asked for; ``ended`` after it."""

    def on_total_norm(
        self,
        measured: Callable[[Sequence[Tensor]], None],
        clipped: Callable[[float | Tensor, Callable[[float], float]], None],
        faults: FaultCounter,
    ) -> Remove:
        """Call ``measured`` with the gradients whose total norm is about to be computed, and ``clipped`` with that
        norm, a tensor where only a device knows it and NaN where nothing does, and with a function from the norm to
        the factor by which gradients are then multiplied."""

    def on_epoch(self, began: Callable[[object, int], None], faults: FaultCounter) -> Remove:
        """Call ``began`` as a sampler begins an epoch whose order it draws by the number of the epoch, with the sampler
        and that number."""

    def on_cut(self, cut: Callable[[], None], faults: FaultCounter) -> Remove:
        """Call ``cut`` whenever, in training, activations are checkpointed so that no backward will reach what lies in
        between."""

    def on_habit(self, noted: Callable[[str, Optimizer | None], None], faults: FaultCounter) -> Remove:
        """Call ``noted`` with each habit of the program that is met: ``masks drawn anew``, a checkpoint of dropout that
        does not keep the state of the random numbers; ``schedule``, a step of a schedule, with its optimizer, if that
        has made no update; those of :mod:`probe.core.checks.habits`; and ``clip by value`` before such a clip."""

    def advanced(self, optimizer: Optimizer) -> int | None:
        """Return the step at which the schedule of an optimizer is that was stepped last; None if none was."""

    def overrun(self, optimizer: Optimizer, times: int) -> str:
        """Return a sentence on the schedule of an optimizer, which advances ``times`` steps in each update, if it ends
        at a number of steps that the program has for itself; empty if it does not."""

    def divided(self, parameters: Sequence[Parameter]) -> bool:
        """Return whether ``parameters`` and their gradients are parts of a rank, which no total norm takes together."""

    def scale_of(self, root: Tensor) -> Tensor | None:
        """Return the factor by which a scaler has multiplied a loss, if one has."""

    def first_not_finite(self, root: Tensor, names: Mapping[int, str]) -> Any:
        """Return where the numbers that are not finite begin in the graph of a root whose backward has not begun, as a
        :class:`probe.core.checks.beginning.Beginning`; None if that cannot be seen. Takes up to 200 ms.

        Args:
            names: names of the parameters, by identity.
        """

    def uses(self, root: Tensor, names: Mapping[int, str]) -> Mapping[str, Any]:
        """Return the :class:`probe.core.checks.parameter_use.ParameterUse` of each parameter, by name, in the graph of
        a loss whose backward has not begun, with one under an empty name if other leaves get a gradient, too; empty if
        that cannot be seen. Takes some milliseconds.

        Args:
            names: names of the parameters, by identity.
        """

    def unregistered(self, model: Module) -> Mapping[int, str]:
        """Return the trainable parameters of modules that plain containers of a model hold, by identity, with the names
        that they would have if these were registered."""

    def loss_graph(self, root: Tensor, names: Mapping[int, str]) -> Callable[[], Any] | None:
        """Return a function that waits for the :class:`probe.core.checks.loss_calls.LossGraph` of a loss whose backward
        has not begun; None if its graph cannot be seen. Takes some milliseconds.

        Args:
            names: names of the parameters by identity.
        """

    def kept_losses(self, models: Sequence[Module], root: Tensor) -> Mapping[str, bool]:
        """Return the names under which modules keep losses of their own, each with whether ``root`` is made of it."""

    def collectives(self) -> int:
        """Return the number of collectives of all ranks so far; 0 if nothing counts them."""

    def life(self, root: Tensor) -> Sequence[Callable[[], object]]:
        """Return a function that returns something as long as the graph of ``root`` exists; nothing if none can."""

    def held(self, parameters: Sequence[Parameter]) -> Sequence[Tensor | None]:
        """Return the gradient that each parameter holds now. Where gradients are arguments and results: the one with
        which the update that runs was called, that the backward has returned that ends, or that is clipped now."""

    def shows_gradients(self, optimizer: Optimizer) -> bool:
        """Return whether the gradients of the update by ``optimizer`` that runs can be seen: not if both were compiled
        together, or if it keeps them elsewhere than with its parameters."""

    def keeps_elsewhere(self, optimizer: Optimizer) -> bool:
        """Return whether ``optimizer`` is of an engine that keeps the gradients of its updates elsewhere than with the
        parameters, where :meth:`Hooks.gradients_of` finds them."""

    def keeps(self, parameters: Sequence[Parameter]) -> bool:
        """Return whether gradients stay with ``parameters`` from a backward to the update, so that they were cleared if
        they are gone."""

    def origins(self, gradients: Sequence[Tensor]) -> Sequence[int]:
        """Return the identities of the gradients of which a clip has made these; their own if it changes them in place,
        or none has."""

    def versions(self, tensors: Sequence[Tensor | None]) -> Sequence[int]:
        """Return a number for each tensor that every write by an operation changes; -1 for None, and for a tensor whose
        writes are not counted."""

    def reference(self, tensor: Tensor) -> Callable[[], object]:
        """Return a function that returns ``tensor`` as long as it exists, and None afterwards."""

    def reader(self, parameters: Sequence[Parameter], columns: tuple[str, ...]) -> ParameterReader:
        """Return a reader of moments of ``parameters``."""

    def own_gradients(
        self, parameters: Sequence[Parameter], blind: Callable[[], bool], faults: FaultCounter
    ) -> OwnGradientReader | None:
        """Begin to read this process's own gradients of ``parameters``; None if the framework does not show them.

        Args:
            blind: returns true while no number can be read.
        """

    def sizes(self, parameters: Sequence[Parameter]) -> tuple[int, ...]:
        """Return the number of elements of each parameter that this process holds."""

    def dtypes(self, parameters: Sequence[Parameter]) -> tuple[str, ...]:
        """Return the dtype of each parameter."""

    def groups(self, optimizer: Optimizer) -> tuple[int, ...]:
        """Return the position of each parameter's group among those of :meth:`rates`, in the order of the parameters;
        empty if it is not known."""

    def forwards(self, models: Sequence[Module]) -> int | None:
        """Return a number that each forward in training mode raises by one; None if nothing shows it."""

    def resting(self, models: Sequence[Module]) -> tuple[str, ...]:
        """Return the names of larger parts of models in training mode that are in evaluation mode, and compute
        otherwise in training."""

    def oddities(self, models: Sequence[Module], optimizer: Optimizer) -> Callable[[], Mapping[str, tuple[str, ...]]]:
        """Return a function that waits for the oddities of models and optimizer, by kind, each with its places: see
        :mod:`probe.core.checks.oddities`. Takes some milliseconds."""

    def normalises(self, optimizer: Optimizer) -> bool:
        """Return whether the size of an update does not depend on that of the gradients, as far as is known."""

    def requires(self, parameters: Sequence[Parameter]) -> Sequence[bool]:
        """Return which parameters require a gradient."""

    def training(self, models: Sequence[Module]) -> bool:
        """Return whether any of ``models`` is in training mode."""

    def rates(self, optimizer: Optimizer) -> tuple[float, ...]:
        """Return the learning rate of each group; NaN where only a device knows it."""

    def counted(self, optimizer: Optimizer, parameters: Sequence[Parameter]) -> int | Tensor | None:
        """Return the number of steps in the optimizer's state, as a tensor where only a device knows it; None if none
        is counted."""

    def ties(self, model: Module) -> tuple[tuple[str, ...], ...]:
        """Return the names that stand for one parameter, for each parameter with several."""

    def reduces(self, models: Sequence[Module]) -> bool | None:
        """Return whether a wrapper averages the gradients of the backward that runs over ranks; None without one."""

    def part_ways(self, models: Sequence[Module]) -> bool:
        """Return whether ranks train apart for a while by intention, and average parameters instead of gradients."""


def _no_step(_began: Callable[..., None], _ended: Callable[..., None], _faults: FaultCounter) -> Remove:
    """Listen to nothing: no optimizer of the process is visible."""
    return lambda: None


class FrameworkAdapter(NamedTuple):
    """Framework as seen by core."""

    name: str
    version: str
    tensors: Tensors
    hooks: Hooks
    groups: Groups
    collectives: Collectives | None = None
    """None if communication cannot be listened to."""
    parallel: Parallel = single_process
    arrays: Arrays | None = None
    """None if only moments can be computed."""
    loop: TrainingLoop | None = None
    """None if what happens between updates cannot be seen in steps that are not sampled."""
    prepare: Callable[[Any], Remove] = lambda settings: lambda: None  # noqa: ARG005
    """Function that is called once with the settings when a monitor attaches; the function it returns is called at
    stop."""
    capturing: Callable[[], bool] | None = None
    """Function that returns true while a CUDA graph is captured: kernels are recorded and replayed later, without
    Python; None if none ever is."""
    clock: DeviceClock | None = None
    """None if the work of devices is not timed."""
    on_every_step: Callable[[Callable[..., None], Callable[..., None], FaultCounter], Remove] = _no_step
    """Function that has its first argument called before, its second after each update of every visible optimizer of
    the process, with the optimizer first; returns a function that ends this."""
