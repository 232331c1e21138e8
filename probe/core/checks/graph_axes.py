"""Checks of axes and classes in the graph of a loss: those that are exchanged, mixed or weighed the wrong way."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from probe.core.checks.loss_calls import LossCall, LossGraph
from probe.core.checks.loss_form import LossFault, LossForm, part_of
from probe.core.language import message

CLASSES = 4
"""Classes at least of which no one fills several batches by being frequent."""
WEIGHED, FEWEST_LABELS, MORE, HEAVIER = 4, 4, 2.0, 1.2
"""Graphs whose labels are counted, labels of a class at least, and the factors by which a class has more labels, and
more weight."""


class OfShapes(LossForm):
    """Base of the checks of what lies before the losses."""

    absent = "no loss of the framework"

    @classmethod
    def concerns(cls, call: LossCall) -> bool:  # noqa: ARG003 - as of the base
        """Return True: any loss has a model before it."""
        return True

    @classmethod
    def found(cls, calls: Sequence[LossCall]) -> LossFault | None:  # noqa: ARG003 - as of the base
        """Return None: losses alone show nothing."""
        return None


class ExchangedAxes(OfShapes):
    """Report a view or reshape that takes one axis for another: heads are split or merged, or batch and time are
    swapped, without a transpose. Views of padding and of slices, by which relative positions are shifted, are left out.
    """

    name = "axes-exchanged"
    title = "A view exchanges axes"
    why = "Numbers of different positions or samples are mixed, and the model learns less than it could."
    source = "https://github.com/hyunwoongko/transformer/issues/15"
    remedy = "Transpose or permute the axes, and use view or reshape only to split one or to merge neighbours."

    @classmethod
    def in_graph(cls, graph: LossGraph) -> LossFault | None:
        """Return the fault of a graph; None if there is none."""
        if (view := graph.regrouped) is None:
            return None
        text = message(
            "a view from {before} to {after} moves an axis: it takes numbers of one position for those of another",
            before=str(view.before),
            after=str(view.after),
        )
        return LossFault(text, {}, part_of(view.place))


class MixedSamples(OfShapes):
    """Report a model each of whose layers of attention or recurrence takes the samples of the batch for a sequence, as
    those without batch_first do with a batch that comes first."""

    name = "samples-as-sequence"
    title = "Samples as a sequence"
    why = "Each prediction depends on the other samples of its batch, and not on its own sequence."
    source = "https://github.com/IBM/TabFormer/pull/14"
    remedy = "Pass batch_first=True to the layer, or transpose what it gets."

    @classmethod
    def in_graph(cls, graph: LossGraph) -> LossFault | None:
        """Return the fault of a graph; None if there is none."""
        if (crossing := graph.crossing) is None:
            return None
        text = message(
            "the loss compares {samples} samples, and the layers take these for the steps of {rows} sequences",
            samples=crossing.samples,
            rows=crossing.rows,
        )
        return LossFault(text, {"samples": crossing.samples, "sequences": crossing.rows}, part_of(crossing.place))


class InvertedMask(OfShapes):
    """Report attention that reads only one token, which stands in a sequence several times, and hides all others: its
    mask has padding and text exchanged."""

    name = "mask-inverted"
    title = "Mask is inverted"
    why = "The model sees the padding alone, and learns from what lies beside the attention."
    source = "https://github.com/mlwithme/TransformerTranslation/issues/6"
    remedy = "Look up whether True means hidden, as in key_padding_mask, or seen, as in attn_mask of the function."

    @classmethod
    def in_graph(cls, graph: LossGraph) -> LossFault | None:
        """Return the fault of a graph; None if there is none."""
        if graph.inverted is None:
            return None
        text = message("attention reads one token alone, several times in a sequence, and hides all others")
        return LossFault(text, {}, part_of(graph.inverted))


class SoftmaxAxis(OfShapes):
    """Report attention whose softmax is taken over the samples of the batch or over the heads, as ``softmax`` without
    ``dim`` does with three or four axes; also weights of the positions of each sample that have a sum of 1 over the
    samples of a loss."""

    name = "softmax-axis"
    title = "Softmax over another axis"
    why = "The weights of a position have no sum of 1, and depend on other samples."
    source = "https://discuss.pytorch.org/t/implicit-dimension-choice-for-softmax-warning/12314"
    remedy = "Pass dim=-1 to the softmax: over the positions that are read."

    @classmethod
    def in_graph(cls, graph: LossGraph) -> LossFault | None:
        """Return the fault of a graph; None if there is none."""
        if graph.off_axis is None:
            return None
        text = message("the weights of attention have a sum of 1 over samples or heads, and not over positions")
        return LossFault(text, {}, part_of(graph.off_axis))


class OneClass(OfShapes):
    """Report that the labels of each of the first batches are sorted and of one class, or of two neighbours, and that
    their loader does not shuffle. Losses with one class by intention, such as contrastive ones, have loaders that do.
    """

    name = "one-class-batches"
    title = "Batches of one class"
    why = "Each update unlearns the classes of the updates before it."
    source = "https://datascience.stackexchange.com/questions/76951"
    remedy = "Pass shuffle=True to the loader of the training data, or shuffle the samples once."
    absent = "no loss over classes with labels enough"
    graphs = 4

    @classmethod
    def in_graph(cls, graph: LossGraph) -> LossFault | None:
        """Return the fault of a graph; None if there is none."""
        calls = [call for call in graph.losses if call.classes >= CLASSES]
        if not calls or any(call.spread > 1 for call in calls) or not graph.in_order():
            return None
        text = message("each batch has labels of one class or two neighbours, sorted, and the loader does not shuffle")
        return LossFault(text, {"labels": calls[0].rows, "classes": calls[0].classes})


class InvertedWeights(OfShapes):
    """Report a loss over classes whose weights rise with the number of labels of each class in the first batches, from
    step to step of three classes at least: they are the frequencies, where their inverse was meant."""

    name = "class-weights"
    title = "Class weights are inverted"
    why = "Rare classes count for next to nothing, and the model learns to ignore them."
    source = "https://discuss.pytorch.org/t/weights-in-weighted-loss-nn-crossentropyloss/69514"
    remedy = "Give each class the inverse of its frequency as its weight."
    absent = "no loss with weights of classes"
    graphs = 1

    def __init__(self) -> None:
        super().__init__()
        self._graphs, self._counts, self._weights = 0, np.zeros(0), np.zeros(0)

    def fault(self, graph: LossGraph) -> LossFault | None:
        """Return the fault of the graphs so far; None if there is none."""
        table = np.array(next((call.weights for call in graph.losses if call.weights), ()))
        if not len(table) or (self._graphs and not np.array_equal(table[:, 0], self._weights)):
            return None
        self._weights, self._counts = table[:, 0], table[:, 1] + (self._counts if self._graphs else 0)
        self._graphs += 1
        counted = (self._weights > 0) & (self._counts >= FEWEST_LABELS)
        weights, counts = self._weights[counted], self._counts[counted]
        more = counts[:, None] >= MORE * counts
        is_between = (more.any(axis=0) & more.any(axis=1)).any()
        if self._graphs < WEIGHED or not is_between or (weights[:, None] < HEAVIER * weights)[more].any():
            return None
        text = message(
            "the weights of {number} classes rise with the number of their labels: the rarest weighs {least:.3g}, the "
            "most frequent {most:.3g}",
            number=len(weights),
            least=float(weights[counts.argmin()]),
            most=float(weights[counts.argmax()]),
        )
        return LossFault(text, {"classes": len(weights)})
