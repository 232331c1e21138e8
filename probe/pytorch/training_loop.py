"""Events of a training loop of torch between two updates: its backwards, the total norms by which it clips, and the
gradients that parameters hold. Everything here is called in every step, sampled or not, and waits for no device."""

from __future__ import annotations

import functools
import math
import re
import sys
import weakref
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from itertools import islice
from typing import Any

import numpy as np
import torch
from torch.nn import utils
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.modules.dropout import _DropoutNd
from torch.nn.parallel import DistributedDataParallel
from torch.nn.parameter import is_lazy
from torch.nn.utils import clip_grad
from torch.optim import lr_scheduler
from torch.utils import checkpoint
from torch.utils.data import DataLoader, IterableDataset, RandomSampler, SequentialSampler
from torch.utils.data.distributed import DistributedSampler

from probe.core.backend import fused_reduce
from probe.core.backend.call_stack import callers
from probe.core.backend.fused_reduce import FixedArrays
from probe.core.backend.module_trees import ModuleTree
from probe.core.backend.patch import Shared, Undo
from probe.core.backend.protocols import Remove
from probe.core.door import FaultCounter, attempt, compiling, passage, replace
from probe.pytorch import loss_scale, tensors
from probe.pytorch.dtensor import PLAIN, local
from probe.pytorch.engines import steps
from probe.pytorch.engines.fsdp1 import is_flat
from probe.pytorch.graph_walk import first_not_finite, uses  # noqa: F401 - functions of the protocol
from probe.pytorch.groups import collectives  # noqa: F401 - a function of the protocol
from probe.pytorch.host_moments import Array, host_place
from probe.pytorch.loss_graphs import kept_losses, life, loss_graph  # noqa: F401 - functions of the protocol
from probe.pytorch.loss_graphs.inputs import BEGUN, STREAMS
from probe.pytorch.modes import unseen
from probe.pytorch.oddities import oddities  # noqa: F401 - a function of the protocol
from probe.pytorch.own_gradients import GradientSums as own_gradients  # noqa: F401, N813

Began = Callable[[torch.Tensor | None, Collection[int]], None]
Clipped = Callable[[float | torch.Tensor, Callable[[float], float]], None]
_ENGINE = "_engine_run_backward"
"""Function of torch 2.7 to 2.13 where ``backward`` and ``grad`` enter the engine."""
_SCHEDULES = "megatron.core.pipeline_parallel.schedules"
"""Module of Megatron-Core that enters the engine past torch, in its ``custom_backward`` (0.12 to 0.16)."""
_TOTAL = (clip_grad, "_get_total_norm"), (utils, "get_total_norm")
_CLIP = (clip_grad, "_clip_grads_with_norm_"), (utils, "clip_grads_with_norm_")
"""The two halves of ``clip_grad_norm_`` in torch 2.6 to 2.13, as it calls them and as programs do."""


_TREE = ModuleTree(torch.nn.Module, "_parameters", "_modules", ("_buffers",))
NORMALISING = "betas", "alpha", "rho", "beta2_decay"
"""Options of optimizers whose updates do not depend on the size of the gradient."""
NEAR = 8
"""Number of frames up to that of a clip from what it calls, those of this package among them."""
PENALTY = re.compile(r"grad\w*penalty|r[12]_penalty|^_?(compute_|calc_)?penalty$", re.IGNORECASE)
"""Names of functions that make a loss of gradients. Those of adversarial training look for inputs by them."""
FALLS, FALLEN = 3, 0.9
"""Numbers after the first, and the part of it to which they fall, where a schedule waits for them to rise."""
LOCAL_SGD = "PostLocalSGDState"
"""Class of ``torch.distributed`` for the state of a hook with which ranks train apart (torch 2.13)."""
_level = getattr(torch._C._functorch, "maybe_current_level", lambda: None)
"""Level of the active transformations of ``torch.func``, whose tensors have no numbers."""


class _Backwards:
    """Listener to the outermost backwards of this process."""

    def __init__(self, began: Began, ended: Callable[[], None], faults: FaultCounter) -> None:
        self.began, self.ended, self.faults = began, ended, faults


class _Norms:
    """Listener to total norms, and to the clipping by them."""

    def __init__(
        self, measured: Callable[[Sequence[torch.Tensor]], None], clipped: Clipped, faults: FaultCounter
    ) -> None:
        self.measured, self.clipped, self.faults = measured, clipped, faults


def on_backward(began: Began, ended: Callable[[], None], faults: FaultCounter) -> Remove:
    """Call ``began`` before each backward on a thread on which none runs, with its root if that is a loss (one element,
    no gradient passed in) and the identities of the inputs that were asked for; ``ended`` after it, if it did not
    raise."""
    return _backwards.listen(_Backwards(began, ended, faults))


def on_total_norm(measured: Callable[[Sequence[torch.Tensor]], None], clipped: Clipped, faults: FaultCounter) -> Remove:
    """Call ``measured`` with the gradients whose total norm is about to be computed, and ``clipped`` with that norm, a
    tensor where only a device knows it, and a function from it to the factor by which gradients are then multiplied."""
    return _norms.listen(_Norms(measured, clipped, faults))


def _enter() -> Iterator[Undo]:
    if hasattr(torch.autograd, _ENGINE):
        original = getattr(torch.autograd, _ENGINE)
        yield replace(torch.autograd, _ENGINE, functools.wraps(original)(_around_engine(original)))
    schedules = sys.modules.get(_SCHEDULES)
    if schedules is not None and hasattr(schedules, "custom_backward"):
        backward = schedules.custom_backward
        yield replace(schedules, "custom_backward", functools.wraps(backward)(_around_freed(backward)))


_backwards: Shared[_Backwards] = Shared(_enter, weak=True)


def _around_engine(original: Callable[..., Any]) -> Callable[..., Any]:
    @passage
    def run_backward(*args: Any, **kwargs: Any) -> Any:
        if compiling() or torch._C._current_graph_task_id() != -1:
            return original(*args, **kwargs)
        for listener in _backwards:
            attempt(listener.faults, "backward", _announce, listener.began, args)
        for habits in _habits:
            attempt(habits.faults, "habit", _penalised, habits.noted, args)
        result = original(*args, **kwargs)
        for listener in _backwards:
            attempt(listener.faults, "backward", listener.ended)
        return result

    return run_backward


def _around_freed(original: Callable[..., Any]) -> Callable[..., Any]:
    @passage
    def custom_backward(output: Any, grad_output: Any, *args: Any, **kwargs: Any) -> Any:
        if compiling() or torch._C._current_graph_task_id() != -1:
            return original(output, grad_output, *args, **kwargs)
        # activations that a stage has sent on are freed, and have one element, too
        root = output if grad_output is None else None
        for listener in _backwards:
            attempt(listener.faults, "backward", listener.began, root, ())
        result = original(output, grad_output, *args, **kwargs)
        for listener in _backwards:
            attempt(listener.faults, "backward", listener.ended)
        return result

    return custom_backward


def _announce(began: Began, args: tuple[Any, ...]) -> None:
    """Announce a backward by the arguments of the engine, which torch passes by position: roots, their gradients,
    whether the graph is kept and made, inputs."""
    roots, gradients, _, makes_graph, inputs, *_ = args
    with torch._C.DisableTorchFunction():
        root = None if _level() is not None else _loss(roots, gradients)
    # gradients that will be differentiated again are not those that an update applies
    began(root, set() if makes_graph else set(map(id, inputs or ())))


def _loss(roots: Any, gradients: Any) -> torch.Tensor | None:
    """Return the root of a backward if it is a loss: no gradient but 1 was passed in, as far as the host knows."""
    if len(roots) != 1 or not tensors.is_tensor(root := roots[0]):
        return None
    if root.numel() != 1 or root.grad_fn is None or root.is_complex():
        return None
    passed = gradients[0] if gradients else None
    if passed is not None and issubclass(type(passed), torch.Tensor) and tensors.number(passed) not in (None, 1.0):
        return None
    return root


def scale_of(root: torch.Tensor) -> torch.Tensor | None:
    """Return the factor by which a scaler has multiplied a loss; None if none has."""
    return loss_scale.scale_of(root)


def _measure() -> Iterator[Undo]:
    for names, around in ((_TOTAL, _around_total), (_CLIP, _around_clip)):
        for module, name in names:
            if hasattr(module, name):
                original = getattr(module, name)
                yield replace(module, name, functools.wraps(original)(around(original)))


_norms: Shared[_Norms] = Shared(_measure, weak=True)


def _around_total(original: Callable[..., Any]) -> Callable[..., Any]:
    @passage
    def total_norm(*args: Any, **kwargs: Any) -> Any:
        gradients = args[0] if args else kwargs.get("tensors")
        if not compiling() and isinstance(gradients, list | tuple):
            for listener in _norms:
                attempt(listener.faults, "total norm", listener.measured, gradients)
        return original(*args, **kwargs)

    return total_norm


def _around_clip(original: Callable[..., Any]) -> Callable[..., Any]:
    @passage
    def clip_grads(parameters: Any, max_norm: Any, total_norm: Any, *args: Any, **kwargs: Any) -> Any:
        if not compiling():
            for listener in _norms:
                attempt(listener.faults, "clip", _clipping, listener.clipped, max_norm, total_norm)
        return original(parameters, max_norm, total_norm, *args, **kwargs)

    return clip_grads


def _clipping(clipped: Clipped, limit: Any, total: Any) -> None:
    most, number = _on_host(limit), _on_host(total)
    is_elsewhere = issubclass(type(total), torch.Tensor) and local(total).device.type != "cpu"
    clipped(total if is_elsewhere else number, functools.partial(_factor, most))


def _factor(limit: float, total: float) -> float:
    """Return the factor of ``clip_grads_with_norm_`` (torch 2.13)."""
    factor = limit / (total + 1e-6)
    return 1.0 if factor > 1 else factor


def on_cut(cut: Callable[[], None], faults: FaultCounter) -> Remove:
    """Call ``cut`` whenever, in training, activations are checkpointed reentrantly of which no input requires a
    gradient: the backward does not reach what lies in between."""
    return _cuts.listen(_Cuts(cut, faults))


class _Cuts:
    """Listener to checkpoints that no backward will reach."""

    def __init__(self, cut: Callable[[], None], faults: FaultCounter) -> None:
        self.cut, self.faults = cut, faults


def _checkpoint() -> Iterator[Undo]:
    original = checkpoint.CheckpointFunction.apply
    yield replace(checkpoint.CheckpointFunction, "apply", functools.wraps(original)(_around_checkpoint(original)))


_cuts: Shared[_Cuts] = Shared(_checkpoint, weak=True)


def _around_checkpoint(original: Callable[..., Any]) -> Callable[..., Any]:
    @passage
    def apply(*args: Any, **kwargs: Any) -> Any:
        if not compiling() and torch.is_grad_enabled():
            for listener in _cuts:
                attempt(listener.faults, "checkpoint", _look_at_inputs, listener.cut, args)
            for habits in _habits:
                attempt(habits.faults, "checkpoint", _drawn_anew, habits.noted, *args)
        return original(*args, **kwargs)

    return apply


def _look_at_inputs(cut: Callable[[], None], args: tuple[Any, ...]) -> None:
    with torch._C.DisableTorchFunction():
        if not any(value.requires_grad for value in args if issubclass(type(value), torch.Tensor)):
            cut()


def on_epoch(began: Callable[[object, int], None], faults: FaultCounter) -> Remove:
    """Call ``began`` as a loader begins an epoch in which a sampler draws the samples of this rank by the number of the
    epoch, with the sampler and that number; or by random numbers, with its class and a number for their state."""
    return _epochs.listen(_Epochs(began, faults))


class _Epochs:
    """Listener to the beginnings of epochs."""

    def __init__(self, began: Callable[[object, int], None], faults: FaultCounter) -> None:
        self.began, self.faults = began, faults


def _sample() -> Iterator[Undo]:
    for kind, number in ((DistributedSampler, _epoch_of), (RandomSampler, _state_of)):
        original = kind.__iter__
        yield replace(kind, "__iter__", functools.wraps(original)(_around_samples(original, number)))


_epochs: Shared[_Epochs] = Shared(_sample, weak=True)


def _around_samples(original: Callable[..., Any], number: Callable[[Any], tuple[Any, int]]) -> Callable[..., Any]:
    @passage
    def samples(sampler: Any) -> Any:
        if torch.is_grad_enabled() and getattr(sampler, "shuffle", True):
            for listener in _epochs:
                attempt(listener.faults, "epoch", lambda began: began(*number(sampler)), listener.began)
        return original(sampler)

    return samples


def _epoch_of(sampler: Any) -> tuple[Any, int]:
    return sampler, int(sampler.epoch)


def _state_of(sampler: Any) -> tuple[Any, int]:
    """Return the class of a sampler, which programs make anew for each epoch, and a number for the state of the random
    numbers that its order follows from."""
    generator = torch.default_generator if sampler.generator is None else sampler.generator
    with torch._C.DisableTorchFunction(), unseen():
        return type(sampler), hash((len(sampler), generator.get_state().numpy().tobytes()))


def on_habit(noted: Callable[[str, Any], None], faults: FaultCounter) -> Remove:
    """Call ``noted`` with ``masks drawn anew`` where activations with dropout are checkpointed without the state of the
    random numbers, with ``clip by value`` before such a clip, ``maximum falls`` (see ``_measured``), and with
    ``schedule`` and its optimizer where a schedule is stepped whose optimizer has not."""
    return _habits.listen(_Habits(noted, faults))


class _Habits:
    """Listener to habits."""

    def __init__(self, noted: Callable[[str, Any], None], faults: FaultCounter) -> None:
        self.noted, self.faults = noted, faults


_GENERATOR = "_checkpoint_without_reentrant_generator"
"""Function of torch 2.4 to 2.13 that runs a checkpoint which is not reentrant."""
_GROUPS = "_group_tensors_by_device_and_dtype"
"""Function that clips call in torch 2.4 to 2.13."""
_ADVANCE = "_enable_get_lr_call"
"""Context of torch 2.4 to 2.13 in which a schedule takes a step: ``step`` itself warns of what its caller does."""
_SEED = "_manual_seed_impl" if hasattr(torch.random, "_manual_seed_impl") else "_seed_custom_device"
"""Function that ``torch.manual_seed`` calls, before devices are seeded or after. That one itself is pickled by its
name, and compilers know it by its identity."""
_maxima: weakref.WeakKeyDictionary[Any, list[tuple[float, ...]]] = weakref.WeakKeyDictionary()
"""Numbers that schedules have got which wait for a maximum, each with the rates."""
_schedules: weakref.WeakKeyDictionary[Any, weakref.ref[lr_scheduler.LRScheduler]] = weakref.WeakKeyDictionary()
"""Schedule that was stepped last, by optimizer."""


def _listen_to_habits() -> Iterator[Undo]:
    for owner, name, look in (
        (checkpoint, _GENERATOR, _drawn_anew),
        (getattr(lr_scheduler, _ADVANCE, object), "__init__", _scheduled),
        (torch.nn.Module, "load_state_dict", _loaded),
        (clip_grad, _GROUPS, _valued),
        (lr_scheduler.ReduceLROnPlateau, "step", _measured),
        (DataLoader, "__iter__", _begun),
        (torch.random, _SEED, _seeded),
    ):
        if owner is not object and hasattr(owner, name):
            original = getattr(owner, name)
            yield replace(owner, name, functools.wraps(original)(_before(original, look)))


_habits: Shared[_Habits] = Shared(_listen_to_habits, weak=True)


def _before(original: Callable[..., Any], look: Callable[..., None]) -> Callable[..., Any]:
    """Return ``original``, before which listeners learn what ``look`` sees in its arguments."""

    @passage
    def call(*args: Any, **kwargs: Any) -> Any:
        if not compiling():
            for listener in _habits:
                attempt(listener.faults, "habit", functools.partial(look, listener.noted, *args, **kwargs))
        return original(*args, **kwargs)

    return call


def _drawn_anew(
    noted: Callable[[str, Any], None], function: Any = None, keeps_state: Any = True, *_: Any, **__: Any
) -> None:
    part = getattr(function, "__self__", function)
    if not keeps_state and torch.is_grad_enabled() and isinstance(part, torch.nn.Module) and _drops(part):
        noted("masks drawn anew", None)


def _loaded(
    noted: Callable[[str, Any], None], module: Any, state_dict: Any = None, strict: Any = True, *_: Any, **__: Any
) -> None:
    """Note a state that is the module's own, which changes nothing, and one of which no name is the module's."""
    if not isinstance(state_dict, dict) or not state_dict:
        return
    with torch._C.DisableTorchFunction():
        members = dict((*module.named_parameters(), *module.named_buffers()))
        if not strict and members and members.keys().isdisjoint(state_dict):
            noted("loads nothing", None)
        places = {thing.data_ptr() for thing in members.values() if type(thing) in PLAIN} - {0}
        numbers = [value for value in state_dict.values() if torch.is_tensor(value) and value.numel()]
        if numbers and all(type(value) in PLAIN and value.data_ptr() in places for value in numbers):
            noted("loads itself", None)


def _valued(noted: Callable[[str, Any], None], *_: Any, **__: Any) -> None:
    """Note a clip by value; other clips take norms."""
    if any(frame.f_code.co_name == "clip_grad_value_" for frame in islice(callers(), NEAR)):
        noted("clip by value", None)


def _begun(noted: Callable[[str, Any], None], loader: Any, *_: Any, **__: Any) -> None:
    """Note a sampler, and a beginning of a loader whose first batch is the same each time, with others behind it."""
    if isinstance(loader.dataset, IterableDataset):
        STREAMS.update([loader] if loader.num_workers > 1 else ())
        return
    sampler = getattr(loader.batch_sampler, "sampler", loader.sampler)
    BEGUN[id(sampler)] = sampler
    if torch.is_grad_enabled() and type(loader.sampler) is SequentialSampler and len(loader) > 1:
        noted("begins again", None)


def _penalised(noted: Callable[[str, Any], None], args: tuple[Any, ...]) -> None:
    """Note gradients, without a graph, that a penalty is made of, by the name of the function."""
    create_graph, inputs = args[3:5] if len(args) > 4 else (True, ())
    if not inputs or create_graph or not torch.is_grad_enabled():
        return
    if any(isinstance(leaf, torch.nn.Parameter) for leaf in inputs):  # of a loop, or statistics such as those of Fisher
        return
    if any(PENALTY.search(frame.f_code.co_name) for frame in islice(callers(), NEAR)):
        noted("penalty without graph", None)


def _seeded(noted: Callable[[str, Any], None], seed: Any = None, *_: Any, **__: Any) -> None:
    """Note a seed that was the last one, too, if random numbers were drawn since."""
    generator = torch.default_generator
    if not isinstance(seed, int) or seed != generator.initial_seed() or not torch.is_grad_enabled():
        return
    with torch._C.DisableTorchFunction(), unseen():
        drawn = not torch.equal(generator.get_state(), torch.Generator().manual_seed(seed).get_state())
        on_devices = torch.cuda.default_generators if torch.cuda.is_initialized() else ()
        if drawn or any(generator.get_offset() for generator in on_devices):
            noted(f"seed {seed}", None)


def _drops(part: torch.nn.Module) -> bool:
    return any(isinstance(module, _DropoutNd) and module.training and module.p > 0 for module in part.modules())


def _scheduled(noted: Callable[[str, Any], None], _: Any, schedule: Any) -> None:
    _schedules[schedule.optimizer] = weakref.ref(schedule)
    if not getattr(schedule.optimizer, "_opt_called", False):  # else another steps through it, as SAM does
        noted("schedule", schedule.optimizer)


def _measured(noted: Callable[[str, Any], None], schedule: Any, metrics: Any = None, *_: Any, **__: Any) -> None:
    """Note a schedule that waits for a maximum, and has lowered the rate while the number that it gets only fell."""
    number = _on_host(metrics)
    if schedule.mode != "max" or math.isnan(number):
        return
    rate, seen = rates(schedule.optimizer), _maxima.setdefault(schedule, [])
    seen.append((number, *rate))
    first, *others = (values[0] for values in seen)
    if len(others) >= FALLS and max(others) < first > 0 and number <= FALLEN * first and rate < seen[0][1:]:
        noted("maximum falls", None)


def advanced(optimizer: Any) -> int | None:
    """Return the step at which the schedule of ``optimizer`` is that was stepped last; None if none was."""
    reference = _schedules.get(optimizer)
    schedule = None if reference is None else reference()
    step = getattr(schedule, "last_epoch", None)
    return step if isinstance(step, int) else None


def overrun(optimizer: Any, times: int) -> str:
    """Return a sentence on the schedule of ``optimizer``, which advances ``times`` steps in each update, if it ends at
    a number of steps that a frame of the program has for itself; empty if it does not."""
    from probe.pytorch.prechecks.schedules import overrun as found  # imports what is needed but then

    schedule = _schedules[optimizer]()
    return "" if schedule is None else found(schedule, times, sys._getframe())


def divided(parameters: Sequence[Any]) -> bool:
    """Return whether ``parameters`` are what ``FullyShardedDataParallel`` leaves a rank, end to end."""
    return is_flat(parameters[0]) and all(parameter.dim() == 1 for parameter in parameters)


def held(parameters: Sequence[Any]) -> list[torch.Tensor | None]:
    """Return the gradient that each parameter holds: ``grad``, else ``main_grad``."""
    with torch._C.DisableTorchFunction():
        return [_held(parameter) if (grad := parameter.grad) is None else grad for parameter in parameters]


def _held(parameter: Any) -> torch.Tensor | None:
    return getattr(parameter, "main_grad", None)


def shows_gradients(optimizer: Any) -> bool:
    """Return whether ``optimizer`` applies the gradients that its parameters hold: engines that divide optimizers among
    ranks keep them elsewhere. A compiled update that shows none is not listened to."""
    return steps.is_native(optimizer)


def keeps_elsewhere(optimizer: Any) -> bool:
    """Return whether ``optimizer`` is of an engine that has parts of the gradients in buffers of its own."""
    return not steps.is_native(optimizer)


def keeps(parameters: Sequence[Any]) -> bool:  # noqa: ARG001
    """Return True: gradients stay with ``parameters`` until they are cleared."""
    return True


def origins(gradients: Iterable[torch.Tensor]) -> list[int]:
    """Return the identities of ``gradients``: a clip changes them in place."""
    return [*map(id, gradients)]


def versions(tensors: Iterable[torch.Tensor | None]) -> list[int]:
    """Return a number for each tensor that every write by an operation changes; -1 for None."""
    tensors = [*tensors]
    with torch._C.DisableTorchFunction():
        try:
            return [
                -1 if tensor is None else tensor._version if type(tensor) in PLAIN else _version(tensor)
                for tensor in tensors
            ]
        except RuntimeError:  # an inference tensor among them counts no writes
            return [-1 if tensor is None or tensor.is_inference() else _version(tensor) for tensor in tensors]


def _version(tensor: torch.Tensor) -> int:
    part = local(tensor)
    # FSDP2 adds past the distributed tensor to its part
    return tensor._version if part is tensor else tensor._version + part._version


class RepeatedReader:
    """Reader of the same parameters again and again: where their numbers stay in host memory, one call of the compiled
    pass reads them.

    Args:
        columns: moments to read.
    """

    def __init__(self, parameters: Sequence[Any], columns: tuple[str, ...]) -> None:
        self._parameters, self._columns = parameters, columns
        self._look()

    def _look(self) -> None:
        """Note where the numbers of the parameters lie."""
        self._host_places = [host_place(parameter) for parameter in self._parameters]
        self._reads = None not in self._host_places and fused_reduce.places(self._columns) is not None
        self._chosen: Sequence[int] = ()
        self._read: Sequence[Any] = ()
        """Parameters that were read last."""
        self._arrays = FixedArrays(self._columns, (), ())

    def read(self, positions: Sequence[int]) -> tuple[Sequence[int], Callable[[], Array]]:
        """Return those of ``positions`` whose parameters have numbers in this process now, and a function that waits
        for their moments."""
        quick, rows = self._in_one_pass(positions) if self._reads else ((), _no_rows)
        if quick is positions:
            return positions, rows
        others = [*positions] if not quick else sorted({*positions}.difference(quick))
        with torch._C.DisableTorchFunction():
            others = [position for position in others if _has_numbers(self._parameters[position])]
        if not others:
            return quick, rows
        wait = tensors.to_host([tensors.moments([self._parameters[n] for n in others], self._columns, 0.0)])
        rank = {position: number for number, position in enumerate((*quick, *others))}
        present = [position for position in positions if position in rank]
        first = rows().reshape(-1, len(self._columns))
        return present, lambda: np.concatenate([first, wait()])[[rank[position] for position in present]]

    def _in_one_pass(self, positions: Sequence[int]) -> tuple[Sequence[int], Callable[[], Array]]:
        """Return the positions of parameters that could be read so, and a function that returns their moments. Those
        with immense or tiny numbers are left out; because of these, others must not be read in another way, which
        would round otherwise."""
        if positions is not self._chosen:
            self._choose(positions)
        if [parameter.data_ptr() for parameter in self._read] != self._arrays.addresses:
            self._look()
            if not self._reads:
                return (), _no_rows
            self._choose(positions)
        rows, valid = self._arrays.read()
        if 0 not in valid:
            return positions, rows
        numbers = rows()[np.frombuffer(valid, np.bool_)]
        return [position for position, is_valid in zip(positions, valid, strict=True) if is_valid], lambda: numbers

    def _choose(self, positions: Sequence[int]) -> None:
        """Keep what is read of the parameters at ``positions``."""
        places = [place for position in positions if (place := self._host_places[position]) is not None]
        self._read = [self._parameters[position] for position in positions]
        where = [place[0] for place in places], [place[1] for place in places], [place[2] for place in places]
        self._arrays, self._chosen = FixedArrays(self._columns, *where), positions


def _no_rows() -> Array:
    return np.empty((0, 0))


def _has_numbers(parameter: Any) -> bool:
    if is_lazy(parameter):
        return False
    part = local(parameter)
    if not tensors.is_tensor(part):
        return False
    return part.layout is torch.strided and part.data_ptr() != 0  # 0: the storage was freed


def reader(parameters: Sequence[Any], columns: tuple[str, ...]) -> RepeatedReader:
    """Return a reader of the moments of ``parameters``."""
    return RepeatedReader(parameters, columns)


def sizes(parameters: Iterable[Any]) -> tuple[int, ...]:
    """Return the number of elements of each parameter that this process holds."""
    with torch._C.DisableTorchFunction():
        return tuple(0 if is_lazy(parameter) else local(parameter).numel() for parameter in parameters)


def dtypes(parameters: Iterable[Any]) -> tuple[str, ...]:
    """Return the dtype of each parameter."""
    with torch._C.DisableTorchFunction():
        return tuple(str(parameter.dtype) for parameter in parameters)


def groups(optimizer: Any) -> tuple[int, ...]:
    """Return the position of each parameter's group, in the order of the groups."""
    numbered = enumerate(getattr(optimizer, "param_groups", ()))
    return tuple(number for number, group in numbered for _ in group["params"])


def normalises(optimizer: Any) -> bool:
    """Return whether the size of an update does not depend on that of the gradients: those of Adam and its like."""
    return any(name in group for group in getattr(optimizer, "param_groups", ()) for name in NORMALISING)


def requires(parameters: Iterable[Any]) -> list[bool]:
    """Return which parameters require a gradient."""
    with torch._C.DisableTorchFunction():
        return [bool(parameter.requires_grad) for parameter in parameters]


def training(models: Iterable[torch.nn.Module]) -> bool:
    """Return whether any of the models is in training mode."""
    return any(model.training for model in models)


def forwards(models: Iterable[torch.nn.Module]) -> int | None:
    """Return a number that each forward in training raises by one, of the first batch normalization in training mode;
    None if there is none."""
    for model in models:
        if model not in _first_norms:
            norms = (module for module in model.modules() if isinstance(module, _BatchNorm))
            _first_norms[model] = next((weakref.ref(norm) for norm in norms if norm.track_running_stats), None)
        reference = _first_norms[model]
        norm = None if reference is None else reference()
        if norm is not None and norm.training and norm.num_batches_tracked is not None:
            return norm.num_batches_tracked._version
    return None


_first_norms: weakref.WeakKeyDictionary[torch.nn.Module, weakref.ref[_BatchNorm] | None] = weakref.WeakKeyDictionary()


def resting(models: Iterable[torch.nn.Module]) -> tuple[str, ...]:
    """Return the names of parts in evaluation mode: see :meth:`probe.core.backend.module_trees.ModuleTree.resting`."""
    return _TREE.resting(models, _is_active, _is_trained)


def _is_trained(part: torch.nn.Module) -> bool:
    """Return whether the first parameter of a part requires a gradient: a part is frozen as a whole."""
    first = next(part.parameters(), None)
    return first is not None and first.requires_grad


def _is_active(part: torch.nn.Module) -> bool:
    """Return whether a part computes otherwise in training."""
    return any(isinstance(module, _BatchNorm | _DropoutNd) for module in part.modules())


def rates(optimizer: Any) -> tuple[float, ...]:
    """Return the learning rate of each group; NaN where only a device knows it."""
    return tuple(_on_host(group.get("lr")) for group in getattr(optimizer, "param_groups", ()))


def _on_host(value: Any) -> float:
    if isinstance(value, torch.Tensor):
        number = tensors.number(value) if value.numel() == 1 else None
        return math.nan if number is None else number
    return float(value) if isinstance(value, int | float) else math.nan


def counted(optimizer: Any, parameters: Sequence[Any]) -> int | torch.Tensor | None:
    """Return the number of steps in the state of the first of ``parameters``, the tensor itself where only a device
    knows it (``fused`` and ``capturable`` optimizers); None if none is counted."""
    state = getattr(optimizer, "state", None)
    if not isinstance(state, dict) or not parameters:
        return None
    count = state.get(parameters[0], {}).get("step")
    steps = _on_host(count)
    if not math.isnan(steps):
        return int(steps)
    is_elsewhere = tensors.is_tensor(count) and count.numel() == 1 and count.device.type != "cpu"
    return count if is_elsewhere else None


def unregistered(model: torch.nn.Module) -> dict[int, str]:
    """Return the trainable parameters of modules that plain containers of ``model`` hold, by identity, with their
    names."""
    return {identity: name for identity, (name, _) in _TREE.unregistered(model, _is_own).items()}


def _is_own(thing: Any) -> bool:
    """Return whether ``thing`` is a parameter of the program that requires a gradient, and not one of an engine."""
    return isinstance(thing, torch.nn.Parameter) and thing.requires_grad and not getattr(thing, "_is_flat_param", False)


def ties(model: torch.nn.Module) -> tuple[tuple[str, ...], ...]:
    """Return the names that stand for one parameter of ``model``, for each parameter with several."""
    return _TREE.ties(model)


def reduces(models: Iterable[torch.nn.Module]) -> bool | None:
    """Return whether a wrapper averages the gradients of the backward that runs over ranks; None without a wrapper."""
    flags = [bool(model.require_backward_grad_sync) for model in models if isinstance(model, DistributedDataParallel)]
    return all(flags) if flags else None


def part_ways(models: Iterable[torch.nn.Module]) -> bool:
    """Return whether a hook of ``DistributedDataParallel`` stops to average gradients over all ranks (local SGD)."""
    wrappers = (module for model in models for module in model.modules() if isinstance(module, DistributedDataParallel))
    states = (type(state).__name__ for wrapper in wrappers for _, state in getattr(wrapper, "_comm_hooks", ()))
    return LOCAL_SGD in states


def reference(tensor: torch.Tensor) -> Callable[[], object]:
    """Return a function that returns ``tensor`` as long as it exists."""
    return weakref.ref(tensor)
