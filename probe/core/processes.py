"""What core asks of a framework where several processes train: the second part of :mod:`probe.core.framework`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import FrameType
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
import numpy.typing as npt

if TYPE_CHECKING:
    from probe.core.framework import Module, Optimizer, Parameter, Remove, Tensor


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
    framework answers without any of that is :mod:`probe.core.alone`."""

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


class CollectiveListener(Protocol):
    """Told of every transfer between ranks by :meth:`Collectives.listen`, on the thread that makes it."""

    @property
    def listening(self) -> bool:
        """Whether calls are to be told of now. All that a call costs while this is False."""

    def began(
        self, operation: str, ranks: Sequence[int], inputs: Sequence[Tensor], site: FrameType, again: bool = False
    ) -> Any:
        """A call is about to be made by the code at ``site``. ``inputs`` are what this rank gives: no buffer that is
        only to be filled; ``again`` says that it is one more transfer of the call before. What is returned is for the
        other methods, and has ``finish()``, which may be called on any thread at the moment of completion; None if
        nothing more is to be told of the call."""

    def ended(self, call: Any, outputs: Sequence[Tensor]) -> None:
        """The call is complete for who made it, and what this rank gets can be read."""

    def abandoned(self, call: Any, outputs: int) -> None:
        """Nobody can wait for the call any more; it would have had so many outputs."""

    def failed(self, where: str, error: Exception) -> None:
        """Something of the adapter's own has failed, and training goes on."""


class Collectives(Protocol):
    """What core asks of communication."""

    def listen(self, listener: CollectiveListener) -> Remove:
        """Tells of every call from now on. What a call returns and raises stays what it was; where it is asynchronous,
        nothing is waited for: it ends when who made it waits. A call that raises does not end."""

    def bytes_of(self, tensor: Tensor) -> int:
        """Size of the elements."""
