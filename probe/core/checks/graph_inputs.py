"""Checks of what enters the graph of a loss: data, parameters, noise, and terms of its root."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from math import isfinite
from typing import ClassVar

from probe.core.checks.check import CheckClass, CheckFinding, Grade, JudgedUpdate
from probe.core.checks.graph_axes import OfShapes
from probe.core.checks.loss_calls import LossGraph
from probe.core.checks.loss_form import LossFault, part_of
from probe.core.language import message

UNUSED = 10.0
"""Operations in graphs since the last update, in units of those of the loss, from which on most are not used."""
SEEN = 3e-6
"""Part of a loss that is no rounding."""


class MadeInForward(OfShapes):
    """Report parameters that the loss uses, that no model and no optimizer has, and that are others in each graph: a
    layer is made anew in each forward."""

    name = "made-in-forward"
    title = "Layer made in forward"
    why = "The layer is random in each step, and never trained or saved."
    source = "https://docs.pytorch.org/docs/stable/notes/modules.html"
    remedy = "Make the layer in __init__, and only call it in forward."

    def __init__(self) -> None:
        super().__init__()
        self._last: tuple[Callable[[], object], ...] = ()
        """Such parameters of the graph before."""

    def fault(self, graph: LossGraph) -> LossFault | None:
        """Return the fault of a graph; None if there is none."""
        self.judged = True
        before, self._last = self._last, graph.foreign
        if not before or not self._last or any(refers() is not None for refers in before):
            return None
        text = message(
            "{number} parameters that the loss uses are made anew for each forward, and no optimizer has them",
            number=len(self._last),
        )
        return LossFault(text, {"parameters": len(self._last)})


class OneRow(OfShapes):
    """Report a table of embeddings, of more rows than sequences have positions, of which one row is looked up at all
    places of all samples: positions that are all 0, or tokens that are all unknown. So is one whose row, at all places
    of a sample, is the number of the sample: positions that count the samples."""

    name = "one-row"
    title = "One row looked up"
    why = "The model does not see what the table stands for, such as the order of the tokens."
    source = "https://github.com/huggingface/transformers/pull/42309"
    remedy = "Look at the indices: whether positions were counted, and whether tokens are of this vocabulary."
    graphs = 4

    @classmethod
    def in_graph(cls, graph: LossGraph) -> LossFault | None:
        """Return the fault of a graph; None if there is none."""
        if not graph.one_row:
            return None
        text = message("one row of the table is looked up at all places of each sample")
        return LossFault(text, {}, tuple(place for table in graph.one_row for place in part_of(table)))


class OneSample(OfShapes):
    """Note batch norms in training mode that get a single sample in each of the first losses: they normalise it by
    itself, which some do by intention."""

    kind: ClassVar[CheckClass] = "unusual"
    grade: ClassVar[Grade] = "note"
    name = "norm-of-one-sample"
    title = "Norm of one sample"
    why = "Evaluation takes other statistics than training: those of all samples, and not of each."
    source = "https://arxiv.org/abs/1803.08494"
    remedy = "Use GroupNorm, freeze the batch norms of a pretrained model, or take more samples in a batch."
    graphs = 4

    @classmethod
    def in_graph(cls, graph: LossGraph) -> LossFault | None:
        """Return the fault of a graph; None if there is none."""
        if graph.one_sample is None:
            return None
        text = message("batch norms in training mode get one sample at a time")
        return LossFault(text, {}, part_of(graph.one_sample))


class PixelsUnscaled(OfShapes):
    """Note images of whole numbers from 0 to 255 that a convolution gets, and behind which no norm follows."""

    kind: ClassVar[CheckClass] = "unusual"
    grade: ClassVar[Grade] = "note"
    name = "pixels-unscaled"
    title = "Pixels are not scaled"
    why = "Activations and gradients are a hundred times as large as the initialisation is made for."
    source = "https://karpathy.github.io/2019/04/25/recipe/"
    remedy = "Divide by 255, and subtract the mean: the net is made for numbers of size 1."
    graphs = 3

    @classmethod
    def in_graph(cls, graph: LossGraph) -> LossFault | None:
        """Return the fault of a graph; None if there is none."""
        if graph.pixels is None:
            return None
        return LossFault(message("the model gets images of whole numbers up to 255"), {}, part_of(graph.pixels))


class UnusedForwards(OfShapes):
    """Note that between two updates of one backward ten times as many operations enter graphs as that of the loss has:
    most forwards are computed with gradients, and no backward uses them."""

    kind: ClassVar[CheckClass] = "unusual"
    grade: ClassVar[Grade] = "note"
    name = "forwards-unused"
    title = "Forwards are not used"
    why = "Of all batches that are shown to the model, it learns a few."
    source = "https://github.com/DeepReinforcementLearning/DeepReinforcementLearningInAction/pull/13"
    sees = "the number of operations in graphs, now and then"
    remedy = "Look at the indentation of the backward and the update; compute what is not trained under no_grad()."
    graphs = 3

    def judge(self, update: JudgedUpdate) -> Iterator[CheckFinding]:
        """Return the findings with this update."""
        facts = update.facts
        if facts.operations and facts.alone and facts.backwards == 1 and facts.loss_graph is not None:
            graph = facts.loss_graph()
            self._ratio = facts.operations / graph.size if graph.size else 0.0
            yield from super().judge(update)

    def fault(self, graph: LossGraph) -> LossFault | None:  # noqa: ARG002 - as of the base
        """Return the fault of a graph; None if there is none."""
        if self._ratio < UNUSED:
            return None
        text = message("{ratio:.0f} times as much enters graphs as the backward of the loss uses", ratio=self._ratio)
        return LossFault(text, {"ratio": self._ratio})


class DropoutRepeats(OfShapes):
    """Report a dropout that hides the same units in each of the first losses: a seed is set in the loop."""

    name = "dropout-repeats"
    title = "Dropout repeats"
    why = "Some units are never trained, and all random numbers of the loop are the same in each step."
    source = "https://github.com/PaddlePaddle/Paddle/issues/7796"
    remedy = "Set the seed once, before the loop."
    graphs = 3

    def __init__(self) -> None:
        super().__init__()
        self._last: tuple[float, float] | None = None

    def fault(self, graph: LossGraph) -> LossFault | None:
        """Return the fault of a graph; None if there is none."""
        before, self._last = self._last, graph.dropped
        if before is None or before != self._last:
            return None
        return LossFault(message("dropout hides the same units in each step"), {"units": before[1]})


class BatchesTwice(OfShapes):
    """Report batches of several workers of an iterable data set that have the labels of the one before, in two of the
    first updates, and not in others: each worker reads all samples. It is a note where the loader is not seen:
    a program may use each batch several times."""

    name = "samples-repeated"
    title = "Each worker reads all"
    why = "Each batch comes once for each worker, and an epoch is as many epochs."
    source = "https://github.com/huggingface/datasets/issues/3423"
    remedy = "Divide the samples among the workers in __iter__, by get_worker_info()."

    def __init__(self) -> None:
        super().__init__()
        self._labels, self._is_other = 0, False

    def fault(self, graph: LossGraph) -> LossFault | None:
        """Return the fault of a graph; None if there is none."""
        calls = (call for call in graph.losses if call.labels and call.spread > 1)
        before, self._labels = self._labels, next((call.labels for call in calls), 0)
        self._is_other |= 0 < before != self._labels > 0
        if not before or before != self._labels:
            return None
        return LossFault(message("batches of several updates have the labels of the batch before"), {})

    def judge(self, update: JudgedUpdate) -> Iterator[CheckFinding]:
        """Return the findings with this update."""
        facts = update.facts
        if facts.backwards == 1 and facts.alone and not facts.searches:
            of_stream = facts.loss_graph is not None and facts.loss_graph().streams
            findings = (finding for finding in super().judge(update) if self._is_other)
            yield from findings if of_stream else (finding._replace(grade="note") for finding in findings)


class NoGradientTerm(OfShapes):
    """Report a loss of which a part has no gradient and is another one in each graph: a term of what was detached.

    The other terms must be losses of the framework, whose values are computed again.
    """

    name = "term-without-gradient"
    title = "Term without gradient"
    why = "The term is in the loss that is shown, and training does not lower it."
    source = "https://github.com/yifita/deep_cage/issues/16"
    remedy = "Leave out detach(), item() and no_grad() in what computes the term."

    def __init__(self) -> None:
        super().__init__()
        self._first = 0.0
        """Such a part of the first graph."""

    def fault(self, graph: LossGraph) -> LossFault | None:
        """Return the fault of a graph; None if there is none."""
        part, loss = graph.constant
        if not (isfinite(part) and abs(part) > SEEN * abs(loss)):
            return None
        self._first = self._first or part
        if abs(part - self._first) <= SEEN * abs(loss):
            return None
        text = message("{part:.3g} of a loss of {loss:.3g} is a term without gradient", part=part, loss=loss)
        return LossFault(text, {"part": part, "loss": loss})


class MovingGoal(OfShapes):
    """Report a distance between a score that was chosen, as of an action, and a goal of the best of other scores, that
    has a gradient on both sides: the goal of Q learning was not detached. The same of a value and a reward with a part
    of a later value of the same layer."""

    name = "goal-not-detached"
    title = "Goal is not detached"
    why = "The update pulls the goal to the score, too, and values are not those of the rewards."
    source = "https://docs.pytorch.org/tutorials/intermediate/reinforcement_q_learning.html"
    remedy = "Compute the goal under no_grad(), or detach it."

    @classmethod
    def in_graph(cls, graph: LossGraph) -> LossFault | None:
        """Return the fault of a graph; None if there is none."""
        if not graph.moving_goal:
            return None
        text = message("the goal, of later scores, has a gradient, as the scores have that are compared with it")
        return LossFault(text, {})


class DataWritten(OfShapes):
    """Report batches that are parts of one memory, which is written before each of them: an augmentation that changes
    the data set in place."""

    name = "data-written"
    title = "Data set is written"
    why = "Each epoch gets the data as the last one has left them, and not those of before."
    source = "https://github.com/facebookresearch/pycls/pull/21"
    remedy = "Copy a sample before it is changed, or use operations that return another tensor."
    graphs = 3

    def __init__(self) -> None:
        super().__init__()
        self._last: tuple[int, int, int] | None = None

    def fault(self, graph: LossGraph) -> LossFault | None:
        """Return the fault of a graph; None if there is none."""
        before, self._last = self._last, graph.batch
        if before is None or self._last is None:
            return None
        (memory, version, place), (last_memory, last_version, last_place) = self._last, before
        if memory != last_memory or version <= last_version or place == last_place:
            return None
        return LossFault(message("batches are parts of one memory, and are written before they are used"), {})


class NegatedLoss(OfShapes):
    """Report a backward whose root is the negative of a mean loss: the update raises it without a bound. A program with
    several optimizers may play one part against another."""

    name = "loss-negated"
    title = "Loss is raised"
    why = "The model learns to be wrong, and the loss falls without a bound."
    source = "https://karpathy.github.io/2019/04/25/recipe/"
    remedy = "Minimise the loss itself; losses of the framework are negative log likelihoods or distances already."

    def judge(self, update: JudgedUpdate) -> Iterator[CheckFinding]:
        """Return the findings with this update."""
        return super().judge(update) if update.facts.alone else iter(())

    @classmethod
    def in_graph(cls, graph: LossGraph) -> LossFault | None:
        """Return the fault of a graph; None if there is none."""
        if not graph.negated:
            return None
        text = message(
            "the root of the backward is the negative of {function}, which training raises", function=graph.negated
        )
        return LossFault(text, {})
