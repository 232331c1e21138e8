"""The clock: the training step in progress, and the micro step of each forward and backward in it."""

from __future__ import annotations

import threading
from dataclasses import dataclass, field
from typing import Any

from probe.core.records import Outcome


@dataclass
class Clock:
    """The position of the run. In steps that are not sampled, hooks test ``sampled`` and nothing else."""

    step: int = 0
    sampled: bool = False
    micro_step: int = 0
    """Micro step of the forwards that run now."""
    forward_was_before: bool = False
    """True in a step whose first update has ended the one before, in which its forward had run."""
    searching: bool = False
    """True while a closure is evaluated again within an update: a line search, whose tensors are not recorded."""
    outcome: Outcome = "applied"
    """Outcome of the update before the ``after_update`` listeners are called: ``applied``, ``skipped``, ``unknown``."""
    updated: set[int] = field(default_factory=set)
    """Identities of the parameters whose optimizer has updated in this step while others have not yet."""
    _reached: dict[int | None, int] = field(default_factory=dict)
    """The micro step of the forward whose outputs each backward has reached; under None, that of the latest."""
    _passed: dict[int, int] = field(default_factory=dict)
    """Number of micro batches forwarded through each chunk of a pipeline."""
    backward: int | None = None
    """Identity of the backward of the latest gradient since the last forward; None before the first."""
    _forward: bool = False
    _whole: bool = False
    _lock: Any = field(default_factory=threading.Lock, repr=False, compare=False)

    def begin(self, step: int, sampled: bool) -> None:
        """Begin the next training step."""
        self.step, self.sampled, self.micro_step = step, sampled, 0
        self._forward = self._whole = self.forward_was_before = False
        self.backward, self._reached, self._passed = None, {}, {}

    def backward_step(self, identity: int) -> int:
        """Return the micro step of gradients that the backward with this identity computes: that of the forward whose
        outputs it has reached; of one that runs inside another, that of the latest; if none was reached, the micro step
        in progress."""
        reached = self._reached
        return reached.get(identity, reached.get(None, self.micro_step))

    def forward_began(self, whole: bool, pipeline: int | None = None) -> int:
        """Note a forward of the whole model or, where that is never called, of a module. The first forward after a
        backward begins another micro batch.

        A pipeline runs several micro batches forward before the first backward: every forward of the chunk ``pipeline``
        is another micro batch.

        Returns:
            The micro step of this forward.
        """
        if self._whole and not whole:
            return self.micro_step
        with self._lock:
            return self._begin_forward(whole, pipeline)

    def _begin_forward(self, whole: bool, pipeline: int | None) -> int:
        self._whole = whole
        for latest in (None, -1):  # frameworks may not distinguish backwards
            self._reached.pop(latest, None)
        if pipeline is not None:
            self.micro_step = self._passed.get(pipeline, 0)
            self._passed[pipeline] = self.micro_step + 1
        elif self.backward is not None:
            self.micro_step += 1
        self.backward = None
        self._forward = True
        return self.micro_step

    def backward_reached(self, micro_step: int, identity: int) -> None:
        """Note that the backward with this identity has reached the outputs of a forward of ``micro_step``."""
        self._reached[identity] = self._reached[None] = micro_step

    def backward_began(self, identity: int) -> None:
        """Note the first gradient of a backward; if no forward was noted, count each backward as a micro batch."""
        if not self._forward and self.backward not in (None, identity):
            self.micro_step += 1
        self.backward = identity
