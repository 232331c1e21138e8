"""Checks of settings that no training means, and of what is written without effect, as a few looks show them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, ClassVar

from probe.core.checks.check import CheckClass, CheckFinding, Grade, JudgedUpdate
from probe.core.checks.loop_check import FactCheck
from probe.core.checks.places import ancestors, listing
from probe.core.language import Message, message

EPOCHS, FEWEST_STEPS = 5, 100
"""Epochs after which a schedule should have been stepped, and steps of one at least that are taken for updates."""
LOOKS = 2
"""Number of looks that must show it."""
BETA = 0.95
"""First decay of Adam from which on it may be the second."""
MOMENTUM = 0.9
"""Part that the latest batch has in running statistics from which on they are those of this batch."""
LOST = 0.9
"""Part of the numbers with a gradient whose updates are rounded away from which on a parameter hardly moves."""
DECAY = 0.02
"""Part of the weights that weight decay takes in each update from which on it leaves none."""


def settings_of(kind: str, groups: Sequence[Mapping[str, Any]]) -> dict[str, tuple[str, ...]]:
    """Return the oddities of an optimizer of the class ``kind``: ``betas`` and ``decay``.

    Args:
        groups: options of each of its groups, under torch's names.
    """
    betas = (group["betas"] for group in groups if _exchanged(kind, group))
    decays = (decay for group in groups if (decay := _decay(kind, group)) >= DECAY)
    return {"betas": tuple(map(str, betas)), "decay": tuple(f"{100 * decay:.2g} %" for decay in decays)}


def _exchanged(kind: str, group: Mapping[str, Any]) -> bool:
    betas = group.get("betas", ())
    is_adam = "adam" in kind.lower() and len(betas) > 1
    return is_adam and all(isinstance(beta, float) for beta in betas) and betas[0] > max(betas[1], BETA)


def _decay(kind: str, group: Mapping[str, Any]) -> float:
    """Return the part of the weights that weight decay takes in each update, at the rate that a schedule begins with; 0
    where it is a part of gradients that are normalised."""
    decay, momentum = group.get("weight_decay", 0), group.get("momentum", 0)
    rates = [rate for rate in (group.get("lr"), group.get("initial_lr")) if isinstance(rate, float | int)]
    is_added = "betas" in group and "adamw" not in kind.lower()
    if is_added or not all(isinstance(number, float | int) for number in (decay, momentum)):
        return 0.0
    return float(max(rates, default=0.0) * decay / (1 - momentum if 0 < momentum < 1 else 1))


class Oddity(FactCheck):
    """Base of these checks."""

    sees = "settings of modules and optimizers, and versions and sums of some tensors in three updates; no wait"
    lacks = "the run was too short for the looks"
    kind_of_oddity: ClassVar[str]
    """Name among :attr:`probe.core.checks.update_facts.UpdateFacts.oddities`."""
    in_model: ClassVar[bool] = True
    """True if places are those of a model."""

    def __init__(self) -> None:
        super().__init__()
        self._look: object = None
        self._number, self._since = 0, -1

    @classmethod
    def sentence(cls, places: str) -> Message:
        """Return what is found at some places."""
        raise NotImplementedError

    def judge(self, update: JudgedUpdate) -> Iterator[CheckFinding]:
        """Return the findings with this update."""
        facts = update.facts
        if facts.oddities is None or facts.oddities is self._look:
            return
        self._look, places = facts.oddities, facts.oddities().get(self.kind_of_oddity, ())
        self.judged = True
        if places:
            self._since = self._since if self._number else facts.step
            self._number += 1
            if self._number == LOOKS:
                where = ancestors(places, (*facts.names, *places)) if self.in_model else ()
                text, count = self.sentence(listing(where or places)), {"places": len(places)}
                yield self.finding(facts, self._since, text, count, where)


class FrozenNormDrifts(Oddity):
    """Note batch norms whose weights are frozen, and whose statistics go on with each batch: they are in training mode,
    by oversight, or to follow other data; also in other models, such as a teacher. Those of an average of the model
    have weights that are written."""

    kind_of_oddity = "frozen norms"
    kind: ClassVar[CheckClass] = "unusual"
    grade: ClassVar[Grade] = "note"
    name = "frozen-norm-drifts"
    title = "Frozen norms drift"
    why = "What was frozen computes something else after each batch."
    source = "https://github.com/kdexd/virtex/issues/16"
    remedy = "Call eval() of frozen parts after each train() of the model."

    @classmethod
    def sentence(cls, places: str) -> Message:
        """Return what is found at some places."""
        return message("{places}: the weights are frozen, and the statistics go on with each batch", places=places)


class NormMomentum(Oddity):
    """Report batch norms whose momentum is 0.9 to 1: the part of the latest batch, which other frameworks give as 1
    less that."""

    kind_of_oddity = "norm momentum"
    name = "norm-momentum"
    title = "Momentum of norms exchanged"
    why = "Evaluations use the statistics of the latest batch alone."
    source = "https://github.com/pytorch/vision/issues/8250"
    remedy = "Give 1 less the momentum of the other framework: 0.01 for 0.99."

    @classmethod
    def sentence(cls, places: str) -> Message:
        """Return what is found at some places."""
        return message("{places}: running statistics take nine tenths or more from the latest batch", places=places)


class OneMemory(Oddity):
    """Report parameters of an optimizer that lie in the memory of another one: each update changes these numbers once
    for each."""

    kind_of_oddity = "one memory"
    name = "one-memory"
    title = "Parameters share memory"
    why = "The optimizer updates the same numbers several times, each time with a part of the gradient."
    source = "https://github.com/twitter-archive/torch-autograd/issues/165"
    remedy = "Tie weights by assigning the parameter itself, not its data."

    @classmethod
    def sentence(cls, places: str) -> Message:
        """Return what is found at some places."""
        return message("{places} has the memory of another parameter of the optimizer", places=places)


class BetasExchanged(Oddity):
    """Report an optimizer of Adam's kind whose first decay, of 0.95 or more, is above its second."""

    kind_of_oddity = "betas"
    in_model = False
    name = "betas-exchanged"
    title = "Decays of Adam exchanged"
    why = "Updates follow gradients of a thousand steps ago, divided by the size of the latest."
    source = "https://github.com/mila-iqia/blocks/issues/1159"
    remedy = "Give the smaller decay first, such as betas=(0.9, 0.999)."

    @classmethod
    def sentence(cls, places: str) -> Message:
        """Return what is found at some places."""
        return message("betas are {places}: the first decay is above the second", places=places)


class DecayTooLarge(Oddity):
    """Report weight decay that takes a fiftieth of the weights or more in each update, at the rate that the schedule
    begins with."""

    kind_of_oddity = "decay"
    in_model = False
    name = "decay-too-large"
    title = "Weight decay too large"
    why = "The weights shrink to nothing faster than they learn."
    source = "https://arxiv.org/abs/1711.05101"
    remedy = "Multiply rate and weight decay: an update usually takes a millionth to a thousandth of the weights."

    @classmethod
    def sentence(cls, places: str) -> Message:
        """Return what is found at some places."""
        return message("weight decay takes {places} of the weights in each update", places=places)


class RoundedAway(Oddity):
    """Report weights of half precision whose updates, at the rate that the schedule begins with, are less than half of
    the distance to the next number in nine tenths of the elements. Optimizers of torch round to the nearest number."""

    kind_of_oddity = "rounded away"
    name = "rounded-away"
    title = "Updates are rounded away"
    why = "The weights hardly move, and what they would learn is lost."
    source = "https://github.com/pytorch/ao/pull/1124"
    remedy = "Keep the weights in float32, and compute under autocast; or use an optimizer that rounds at random."

    @classmethod
    def sentence(cls, places: str) -> Message:
        """Return what is found at some places."""
        return message(
            "{places}: updates are too small for the precision of the weights, and change nothing", places=places
        )


class ScheduleRests(Oddity):
    """Note a schedule of an optimizer that was never stepped in five epochs, or in as many updates as it has steps
    where no sampler shows epochs, while the rate has stayed the same: a program may begin with it later."""

    kind_of_oddity = "schedules"
    kind: ClassVar[CheckClass] = "unusual"
    grade: ClassVar[Grade] = "note"
    in_model = False
    name = "schedule-rests"
    title = "Schedule is never stepped"
    why = "The learning rate stays where the schedule begins, often far below what was chosen."
    source = "https://github.com/huggingface/accelerate/issues/690"
    sees = "schedules that variables lead to, at three updates, and the epochs that samplers begin"
    remedy = "Call step() of the schedule after each update, or after each epoch if its steps are epochs."

    def __init__(self) -> None:
        super().__init__()
        self._steps: tuple[str, ...] = ()
        self._rates: tuple[float, ...] = ()
        self._updates, self._rests = 0, True

    def judge(self, update: JudgedUpdate) -> Iterator[CheckFinding]:
        """Return the findings with this update."""
        facts = update.facts
        self._rates, self._updates = self._rates or facts.rates, self._updates + 1
        self._since = self._since if self._updates > 1 else facts.step
        self._rests &= facts.rates == self._rates and facts.scheduled is None
        if facts.oddities is not None and facts.oddities is not self._look:
            self._look, self.judged = facts.oddities, True
            self._steps = facts.oddities().get(self.kind_of_oddity, ())
        is_late = not facts.epochs and any(FEWEST_STEPS <= int(steps) <= self._updates for steps in self._steps)
        if self._rests and self._steps and (facts.epochs >= EPOCHS or is_late):
            self._rests = False
            yield self.finding(facts, self._since, self.sentence(""), {"updates": self._updates})

    @classmethod
    def sentence(cls, places: str) -> Message:  # noqa: ARG003 - as of the base
        """Return what is found."""
        return message("a schedule of the optimizer was never stepped, and the learning rate has stayed the same")


class AlwaysDrops(Oddity):
    """Note modules whose forward calls the function of dropout without its mode, which is then training: it drops in
    evaluation, too. Few do so by intention."""

    kind_of_oddity = "always drops"
    kind: ClassVar[CheckClass] = "unusual"
    grade: ClassVar[Grade] = "note"
    name = "always-drops"
    title = "Dropout in evaluation"
    why = "Evaluations are worse than the model, and differ from one to the next."
    source = "https://github.com/rixwew/pytorch-fm/issues/21"
    sees = "the source of forwards that name dropout"
    remedy = "Pass training=self.training to dropout, or use nn.Dropout."

    @classmethod
    def sentence(cls, places: str) -> Message:
        """Return what is found at some places."""
        return message(
            "{places}: forward calls dropout without training=, so that it drops in evaluation, too", places=places
        )


class CopyStays(Oddity):
    """Report a copy of weights that is written with each update and keeps its numbers: an average whose decay is 1, or
    is rounded away, or that takes in itself."""

    kind_of_oddity = "copies that stay"
    name = "copy-stays"
    title = "Average never moves"
    why = "What is evaluated or saved is the model of the beginning."
    source = "https://github.com/MultimediaTechLab/YOLO/issues/97"
    remedy = "Look at the decay, the precision of the copy, and what is averaged: it must be the model that is trained."

    @classmethod
    def sentence(cls, places: str) -> Message:
        """Return what is found at some places."""
        return message("a copy of {places} is written with each update, and keeps its numbers", places=places)
