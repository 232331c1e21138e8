"""Facts of one update, as the sentinel sees them at every step, sampled or not: what checks judge."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from probe.core.checks.beginning import Beginning
from probe.core.checks.loss_calls import LossGraph
from probe.core.checks.parameter_use import ParameterUse
from probe.core.records import Outcome

Array = npt.NDArray[np.float64]
Mask = npt.NDArray[np.bool_]


def count_of(mask: Mask) -> int:
    """Return how many are chosen: of a few hundred, in a fraction of the time of a reduction of NumPy."""
    return mask.tobytes().count(1)


def is_any(mask: Mask) -> bool:
    """Return whether any is chosen."""
    return 1 in mask.tobytes()


def is_all(mask: Mask) -> bool:
    """Return whether each is chosen."""
    return 0 not in mask.tobytes()


class Gradients(NamedTuple):
    """Gradients that one update applies, a row for each parameter of the optimizer, before they were clipped."""

    there: Mask
    """Parameters that have a gradient."""
    again: Mask
    """Gradients that still hold what the last update of this optimizer has applied, with a later backward added:
    nothing has cleared them in between. False where there is no gradient."""
    untouched: Mask
    """Gradients that are exactly those of the last update: the same object, which nothing has written since."""
    read: Callable[[], Array] | None
    """Function that waits for the norm and the sum of each gradient, ``parameters x 2`` in float64, unscaled, NaN in
    both where there is none; None if they could not be read. Norms of a shard are those of this rank's part."""


class Values(NamedTuple):
    """Parameters that were read around this update: those of the rota, or all if they are small."""

    looked: npt.NDArray[np.int64]
    """Positions among the parameters of the optimizer."""
    moved: Mask
    """For each of these, whether the update has changed any of its numbers."""
    written: Mask
    """For each of these, whether its numbers differ from those after the last update; False if they are not known."""
    seen_write: Mask
    """For each of these, whether an operation of the framework has written it since the last update."""
    known: Mask
    """For each of these, whether its numbers after the last update are known, so that ``written`` says something."""
    elements: npt.NDArray[np.int64] | None = None
    """For each of these, the number of elements that differ from those after the last update; -1 where it is unknown,
    None if it is unknown for all."""
    restored: bool = False
    """True if parameters were written, and all have the numbers that they had after an earlier update."""
    limits: Callable[[], Array] | None = None
    """Function that returns the least and the greatest number of each of these before the update, ``parameters x 2``;
    None if they are not known."""
    numbers: Callable[[], Array] | None = None
    """Function that returns norm and sum of each of these before the update, ``parameters x 2``; None if they are not
    known."""
    goes_on: bool = False
    """True if this is the first update, of parameters with the numbers that another optimizer has left in others."""
    shifts: Callable[[], Array] | None = None
    """Function that returns by how much the update has changed the least or the greatest number of each of these, the
    larger; None if it is not known."""


class UpdateFacts(NamedTuple):
    """Facts seen between the last update of one optimizer and this one, which has ended."""

    step: int
    optimizer: int
    """Number of the optimizer among those that are watched."""
    names: tuple[str, ...]
    """Names of its parameters in the model; an empty one for a parameter that no watched model has. The same object as
    long as the parameters are the same."""
    outcome: Outcome
    rates: tuple[float, ...]
    """Learning rate of each of its groups at the update; NaN where it is not known on the host."""
    gradients: Gradients
    values: Values | None
    """None if no parameter was looked at."""
    backwards: int
    """Outermost backwards since its last update that reached its parameters."""
    training: bool | None
    """True if the model was in training mode at the latest of these; None if there was none."""
    scaled: bool
    """True if the total norm was computed to clip these gradients while they still had the factor of a loss scaler."""
    reduced: bool | None
    """True if the wrapper that averages gradients over ranks did so in the latest backward; None without a wrapper."""
    clip: float
    """Least factor by which gradients were clipped, 1 if none was; NaN if it is not known on the host."""
    strangers: tuple[str, ...]
    """Parameters of the models that have a gradient and are in no optimizer of the run."""
    replaced: tuple[str, ...]
    """Parameters that the optimizer holds, that were in the model, and in whose place the model has others."""
    trainable: Mask
    """Parameters that require a gradient."""
    state_steps: int | None
    """Steps that the optimizer's state has counted before this update; None if it counts none."""
    ties: tuple[tuple[str, ...], ...]
    """Names in the models that stand for one parameter now."""
    uses: Mapping[str, ParameterUse]
    """Use of each parameter in the forward, by name, as of the latest survey of the graph; the same object as long as
    nothing has changed, empty if nothing was seen."""
    shared: tuple[str, ...] = ()
    """Parameters that several optimizers of the run hold."""
    loss: float = float("nan")
    """Sum of the roots of its backwards: the loss, if it is known on the host; NaN otherwise."""
    loss_seen: bool = False
    """True if a root was seen and ``loss`` is its value, so that NaN is the loss itself."""
    sizes: tuple[int, ...] = ()
    """Number of elements of each parameter, of a shard those of this rank's part; empty if they are not known."""
    groups: tuple[int, ...] = ()
    """Position of each parameter's group among ``rates``; empty if it is not known."""
    parameter_dtypes: tuple[str, ...] = ()
    """Dtype of each parameter, in the framework's own spelling; empty if it is not known."""
    alone: bool = True
    """True if no other optimizer of the run has been updated so far; filled in by the panel of the checks."""
    world: int = 1
    """Number of processes."""
    cut: bool = False
    """True if activations were checkpointed so that no backward reaches what lies in between: reentrant, with no input
    that requires a gradient."""
    beginning: Beginning | None = None
    """Beginning of the numbers of a root that is not finite, if its graph was walked."""
    rewritten: bool = False
    """True if something has written gradients between the latest backward and the update, such as clipping does."""
    dropped: tuple[str, ...] = ()
    """Parameters whose gradients were not finite in a backward since the last update, where these gradients had no
    factor of a scaler and the update applies those of a later backward alone: the program has dropped them."""
    own_sums: Array | None = None
    """Sum of each gradient over what the backwards since the last update have returned, NaN where there is none; None
    if just that is applied, or if gradients stay with parameters."""
    clips: Array | None = None
    """Factor by which each gradient was clipped after its norm was taken; None if none was clipped, NaN in it where
    only a device knows the factor."""
    seen: bool = True
    """False of an update in which no hook runs, such as a compiled one: its losses are known, nothing else."""
    shown: bool = True
    """False if an engine keeps the gradients elsewhere than with the parameters: the norms of this rank's parts are
    known, and not what became of the objects."""
    searches: bool = False
    """True if the optimizer evaluates a closure several times in its updates, as a line search does: how far it goes,
    if anywhere, is its own decision."""
    clipped_late: bool = False
    """True if gradients that the last update had applied were clipped after it, before any backward."""
    clipped_nothing: bool = False
    """True if a clip before the update has got no gradient."""
    early_clips: int = 0
    """Clips that have made gradients smaller to which a later backward has then added."""
    still_scaled: bool | None = None
    """True if a scaler has multiplied the loss, and has not unscaled the gradients that the update applies as they are;
    None if none has multiplied it."""
    hidden: tuple[str, ...] = ()
    """Parameters in the latest graph of a loss that are in plain containers of modules and in no optimizer."""
    loss_graph: Callable[[], LossGraph] | None = None
    """Function that waits for what the latest graph of a loss that was surveyed shows; the same object until another
    is. None if none was."""
    discarded: int = 0
    """Backwards since the last update whose gradients were cleared before another one, where the update applies just
    what the latest has left, and nothing has written the parameters in between."""
    inputs_learn: bool = False
    """True if a loss gave a gradient to something that is no known parameter, as adversarial inputs get one."""
    order_repeated: bool = False
    """True if a sampler has begun an epoch with the number, and so the order, of the one before."""
    habits: frozenset[str] = frozenset()
    """Habits of the program since the last update that harm in any loop, see :mod:`probe.core.checks.habits`."""
    forwards: int | None = None
    """Number that each forward in training mode raises by one, on the only rank; None if it is not known."""
    operations: int = 0
    """Operations that have entered graphs since the last step, if a graph was surveyed since; 0 if that is not known.
    """
    epochs: int = 0
    """Epochs of several updates that have ended."""
    scheduled: int | None = None
    """Step at which the optimizer's schedule is; None if none was stepped."""
    overrun: str = ""
    """Sentence on a schedule that goes on by several steps in each update, though it was made for the number of updates
    of the program; empty if that is not known."""
    unused: tuple[str, ...] = ()
    """Losses that modules keep, and of which no loss is made that was surveyed."""
    normalises: bool = False
    """True if the size of the update does not depend on that of the gradients: Adam and its like."""
    resting: tuple[str, ...] = ()
    """Parts of a model in training mode that are in evaluation mode, and compute otherwise in training."""
    oddities: Callable[[], Mapping[str, tuple[str, ...]]] | None = None
    """Function that waits for what the latest look for oddities shows, see :mod:`probe.core.checks.oddities`; the same
    object until another look."""
    talks: bool = False
    """True if collectives of all ranks have run between two of the first losses."""
    reduces: bool = False
    """True if as many collectives of all ranks as there are gradients have run between the backward and the update."""
    in_turn: bool = False
    """True if a backward, an update of another optimizer and a further backward have come since its last update."""
    earlier_ties: tuple[tuple[str, ...], ...] = ()
    """Names that stood for one parameter as an earlier run of the same models ended."""
    remade: bool = False
    """True if the optimizer has taken the place of one like it since the last update, and keeps numbers from one update
    to the next: those of the one before are lost."""
