"""Checks of habits of a program that harm in any loop, and are seen where they happen."""

from __future__ import annotations

from collections.abc import Iterator
from typing import ClassVar

from probe.core.checks.check import CheckClass, CheckFinding, Grade, JudgedUpdate
from probe.core.checks.loop_check import FactCheck
from probe.core.checks.streak import Streak
from probe.core.checks.update_facts import UpdateFacts
from probe.core.language import Message, message

UPDATES = 3
"""Updates in a row."""


class Habit(FactCheck):
    """Base of these checks."""

    habit: ClassVar[str]
    """Name of the habit among :attr:`probe.core.checks.update_facts.UpdateFacts.habits`."""
    updates: ClassVar[int] = UPDATES
    """Updates in a row."""
    lacks = "no update was seen"

    def __init__(self) -> None:
        super().__init__()
        self._streak = Streak(self.updates)

    @classmethod
    def sentence(cls) -> Message:
        """Return what is found."""
        raise NotImplementedError

    def judge(self, update: JudgedUpdate) -> Iterator[CheckFinding]:
        """Return the findings with this update."""
        facts, self.judged = update.facts, True
        if self._streak.completes(self.is_met(facts), facts.step):
            yield self.finding(facts, self._streak.since, self.sentence(), {"updates": self.updates})

    def is_met(self, facts: UpdateFacts) -> bool:
        """Return whether the habit was met since the last update."""
        return self.habit in facts.habits


class MasksDrawnAnew(Habit):
    """Report checkpointing of modules with dropout that does not keep the state of the random numbers: the backward
    computes them again with other masks."""

    habit = "masks drawn anew"
    name = "checkpoint-random"
    title = "Checkpoint draws anew"
    why = "The gradients are those of other activations than the loss."
    source = "https://docs.pytorch.org/docs/stable/checkpoint.html"
    sees = "the arguments of checkpoints in training"
    remedy = "Leave out preserve_rng_state=False, or switch dropout off."

    @classmethod
    def sentence(cls) -> Message:
        """Return what is found."""
        return message("a checkpoint computes dropout again with other masks: preserve_rng_state is False")


class PartsClipped(Habit):
    """Report gradients that are divided among ranks, and that each rank clips by the norm of its own part."""

    habit = "parts clipped"
    name = "clip-of-parts"
    title = "Parts are clipped apart"
    why = "Parts are multiplied by different factors, and the update points elsewhere."
    source = "https://github.com/pytorch/pytorch/issues/72548"
    sees = "the gradients that each call to clip gets"
    remedy = "Call clip_grad_norm_ of the model that FullyShardedDataParallel returns."

    @classmethod
    def sentence(cls) -> Message:
        """Return what is found."""
        return message("each rank clips its part of the gradients by the norm of this part")


class ClippedAlone(Habit):
    """Note gradients that ranks clip, and then average or sum: some libraries do so by design."""

    habit = "reduced after a clip"
    kind: ClassVar[CheckClass] = "unusual"
    grade: ClassVar[Grade] = "note"
    name = "clip-before-reduction"
    title = "Clipped before reduction"
    why = "Each rank clips by another norm, so that the update is not that of the whole batch."
    source = "https://github.com/mindspore-lab/mindcv/issues/603"
    sees = "collectives and writes between a clip and its update"
    remedy = "Reduce the gradients first, and clip them by the norm of the result."

    @classmethod
    def sentence(cls) -> Message:
        """Return what is found."""
        return message("each rank clips its own gradients before they are reduced over the ranks")


class OtherSchedule(Habit):
    """Report a schedule of an optimizer that makes no updates, while another one has its parameters."""

    habit = "schedule of another"
    name = "schedule-of-another"
    title = "Schedule of another optimizer"
    why = "The learning rate of the optimizer that makes the updates stays where it is."
    source = "https://github.com/ildoonet/pytorch-gradual-warmup-lr/issues/27"
    sees = "the optimizers of schedules, and the parameters that optimizers hold"
    remedy = "Make the schedule with the optimizer that makes the updates, after that was made."

    @classmethod
    def sentence(cls) -> Message:
        """Return what is found."""
        return message("a schedule is stepped whose optimizer makes no updates; another one has its parameters")


class LoadedItself(Habit):
    """Report a module that loads its own parameters, which changes nothing: weights that were kept without a copy, or a
    target that is loaded from itself, or a state of which no name was found in what was to be loaded."""

    habit = "loads itself"
    updates = 1
    name = "loads-itself"
    title = "Module loads itself"
    why = "The weights are those of now, and not those that were to be loaded."
    source = "https://github.com/pytorch/tutorials/pull/188"
    sees = "the tensors that modules load"
    remedy = "Keep weights with copy.deepcopy(model.state_dict()), and look which model and which names are loaded."

    @classmethod
    def sentence(cls) -> Message:
        """Return what is found."""
        return message("a module loads a state of its own parameters, which changes nothing")


class LoadedNothing(LoadedItself):
    """Report a state that is loaded without strict, and of which no name is one of the module's."""

    habit = "loads nothing"
    name = "loads-nothing"
    title = "Nothing is loaded"
    why = "The module stays as it was initialised, and no error is raised."
    source = "https://github.com/pytorch/examples/issues/1029"
    sees = "the names that modules load"
    remedy = "Compare the names of the state with those of the module: a wrapper puts one before them, as module. does."

    @classmethod
    def sentence(cls) -> Message:
        """Return what is found."""
        return message("a module loads a state without strict, and none of its names is one of the module's")


class FirstBatch(Habit):
    """Report a loader that does not shuffle and is begun again with each update of one backward: its first batch is the
    only one."""

    habit = "begins again"
    updates = 5
    name = "first-batch-only"
    title = "Only the first batch"
    why = "The model learns one batch by heart, and never sees the others."
    source = "https://github.com/ZhaoJ9014/face.evoLVe/pull/39"
    sees = "beginnings of loaders between updates"
    remedy = "Take the next batch of one iterator: next(iter(loader)) begins again each time."

    def is_met(self, facts: UpdateFacts) -> bool:
        """Return whether the habit was met since the last update, for a single backward."""
        return super().is_met(facts) and facts.backwards == 1

    @classmethod
    def sentence(cls) -> Message:
        """Return what is found."""
        return message("each update begins an unshuffled loader again, and takes its first batch")


class PlateauOfMaximum(Habit):
    """Report a schedule of plateaus that waits for a maximum, and has lowered the rate while the number that it gets
    has fallen to nine tenths or less, and never was above the first: it gets a loss."""

    habit = "maximum falls"
    updates = 1
    name = "plateau-of-maximum"
    title = "Plateau of a maximum"
    why = "The better the model, the smaller the learning rate, until nothing is learnt."
    source = "https://github.com/FunctionLab/selene/issues/115"
    sees = "the numbers that schedules of plateaus get"
    remedy = "Pass mode='min' to ReduceLROnPlateau, or an accuracy to its step."

    @classmethod
    def sentence(cls) -> Message:
        """Return what is found."""
        return message("a schedule waits for a maximum, gets a number that falls, and lowers the learning rate")


class PenaltyConstant(Habit):
    """Report a penalty on gradients, by the name of the function that asks for these, which keeps no graph of them; an
    evaluation between two updates may do so."""

    habit = "penalty without graph"
    updates = 2
    name = "penalty-constant"
    title = "Penalty without gradient"
    why = "The penalty is in the loss that is shown, and training does not lower it."
    source = "https://github.com/ooples/AiDotNet/issues/1844"
    sees = "arguments and callers of torch.autograd.grad"
    remedy = "Pass create_graph=True to torch.autograd.grad."

    @classmethod
    def sentence(cls) -> Message:
        """Return what is found."""
        return message("gradients of a penalty are computed without create_graph, so that it has no gradient")


class SeedRepeats(Habit):
    """Note that one seed is set between each two updates, and numbers are drawn: noise, masks and steps of a diffusion
    are the same in each. A program that learns one batch by heart may mean it."""

    kind: ClassVar[CheckClass] = "unusual"
    grade: ClassVar[Grade] = "note"
    updates = 5
    name = "seed-repeats"
    title = "Seed is set again"
    why = "All random numbers of the loop are the same in each step: what they stand for is one case, learnt by heart."
    source = "https://github.com/huggingface/diffusers/issues/7991"
    sees = "seeds, and the state of the random numbers before them"
    remedy = "Set the seed once, before the loop."

    def __init__(self) -> None:
        super().__init__()
        self._seeds: frozenset[str] = frozenset()

    def is_met(self, facts: UpdateFacts) -> bool:
        """Return whether a seed was set that was set before the last update, too."""
        before, self._seeds = self._seeds, frozenset(habit for habit in facts.habits if habit.startswith("seed "))
        return not before.isdisjoint(self._seeds)

    @classmethod
    def sentence(cls) -> Message:
        """Return what is found."""
        return message("one seed is set again in each step: each draws the same random numbers")


class GraphsKept(Habit):
    """Report that the graphs of the first losses that were looked at still exist a hundred losses later: a sum or list
    of losses keeps them."""

    habit = "keeps graphs"
    updates = 1
    name = "graphs-kept"
    title = "Graphs are kept"
    why = "Memory grows with each step, until there is none."
    source = "https://docs.pytorch.org/docs/stable/notes/faq.html"
    sees = "whether the graphs of a few losses still exist"
    remedy = "Add loss.item() or loss.detach() to what is summed or listed, not the loss itself."

    @classmethod
    def sentence(cls) -> Message:
        """Return what is found."""
        return message("the graphs of the first losses still exist, a hundred losses later")


class AddsToAnother(Habit):
    """Report an optimizer that applies the gradients of two backwards, between which another one was updated: those
    that the loss of the other has left, as of a discriminator whose samples were not detached, with its own."""

    habit = "adds to another"
    updates = 5
    name = "gradients-of-another"
    title = "Gradients of another loss"
    why = "The update follows the loss of the other optimizer, too, which often means the opposite."
    source = "https://github.com/Lightning-AI/pytorch-lightning/issues/591"
    sees = "the order of backwards and updates, and gradients that are cleared"
    remedy = "Clear the gradients just before the backward of their own loss, and detach what the other one reads."

    @classmethod
    def sentence(cls) -> Message:
        """Return what is found."""
        return message("an update adds the gradients of its loss to those that a loss of another optimizer has left")
