"""Prechecks for calls of loss functions, and for the roots of backwards."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

from probe.core.checks.check import CheckFinding, NotApplicable
from probe.core.checks.loss_calls import LossCall
from probe.core.checks.loss_form import DoubleSoftmax, LogarithmMissing, PairwiseLoss
from probe.core.checks.undivided_accumulation import AddedMeans
from probe.core.language import message
from probe.core.prechecks.precheck import NO_CLASSES, NO_LOSS, LossPrecheck, Precheck
from probe.core.prechecks.trial import Accumulation, Trial

MANY = 0.9
ABOVE, FAR_ABOVE, BELOW = 3.0, 30.0, 0.02
CLOSE = 1e-3
"""Relative difference between a loss and the root of its backward at most."""


class SoftmaxTwice(LossPrecheck):
    """Report a cross entropy that gets probabilities, or a binary one with logits that gets what a sigmoid returned:
    both apply that function themselves, and the gradient nearly vanishes."""

    sees = "the scores that each loss function gets"
    loop = DoubleSoftmax


class NotLogProbabilities(LossPrecheck):
    """Report a negative log likelihood or a Kullback-Leibler divergence that gets probabilities in place of their
    logarithms, and a negative log likelihood of scores whose exponentials do not sum to 1 over the classes: it falls
    without a bound as the scores grow."""

    sees = "the scores that each loss function gets"
    loop = LogarithmMissing


class BroadcastLoss(LossPrecheck):
    """Report a loss whose scores and labels have shapes such as (N, 1) and (N,): each score is compared with all
    labels, and the model learns their mean."""

    sees = "shapes of the scores and labels that each loss function gets"
    loop = PairwiseLoss


class IgnoredLabels(Precheck):
    """Report a batch all of whose labels are ignored: its mean loss is NaN, its sum teaches nothing. Note one with more
    than nine of ten of them."""

    name = "ignored-labels"
    title = "Labels are ignored"
    why = "The loss is NaN, or the batch is spent on nothing."
    source = "https://docs.pytorch.org/docs/stable/generated/torch.nn.CrossEntropyLoss.html"
    sees = "the labels that each cross entropy gets"
    remedy = "Look at how labels are masked and truncated: a prompt that fills the context leaves no answer."

    def judge(self, trial: Trial) -> Iterator[CheckFinding]:
        calls = [call for call in trial.losses if call.classes and call.rows > 1]
        every = [call for call in calls if call.ignored == 1]
        share = sum(call.ignored for call in calls) / max(1, len(calls))
        evidence = {"share": share, "batches": len(every), "of": len(calls)}
        if every:
            text = message(
                "all labels are ignored in {every} of {calls} calls of the loss", every=len(every), calls=len(calls)
            )
            yield self.finding(text, evidence, step=every[0].update)
        elif share > MANY:
            text = message("{value:.0f} % of the labels are ignored", value=100 * share)
            yield self.finding(text, evidence, grade="note")

    def missing(self, trial: Trial) -> str | None:
        return None if any(call.classes for call in trial.losses) else NO_CLASSES


class InitialLoss(Precheck):
    """Note a mean cross entropy that begins above three times that of an even guess, the logarithm of the number of
    classes, and report one above thirty times; note one that begins below a fiftieth.

    A model that was trained before begins below it.
    """

    name = "initial-loss"
    title = "Loss at the beginning"
    why = "The first hundreds of updates only undo the beginning, and the run may diverge in them."
    source = "https://karpathy.github.io/2019/04/25/recipe/"
    sees = "the first cross entropy and the number of classes"
    remedy = "Initialise the last layer with small weights; if it is tied to an embedding, give that a small deviation."

    def judge(self, trial: Trial) -> Iterator[CheckFinding]:
        for call in trial.first_update():
            if call.function == "cross_entropy" and call.reduction == "mean" and call.classes > 1:
                guess = math.log(call.classes)
                evidence = {"loss": call.value, "guess": guess, "classes": call.classes}
                if call.value > ABOVE * guess:
                    text = message(
                        "the loss begins at {value:.3g}; that of a guess among {classes} is {guess:.3g}",
                        value=call.value,
                        classes=call.classes,
                        guess=guess,
                    )
                    far = call.value > FAR_ABOVE * guess
                    yield self.finding(text, evidence, grade="warning" if far else "note")
                elif call.value < BELOW * guess and call.ignored < 1:
                    text = message(
                        "the loss begins at {value:.3g}, next to nothing, as if the labels were in the inputs",
                        value=call.value,
                    )
                    yield self.finding(text, evidence, grade="note")
                return

    def missing(self, trial: Trial) -> str | None:
        seen = any(call.function == "cross_entropy" and call.reduction == "mean" for call in trial.first_update())
        return None if seen else NO_CLASSES


class SummedLoss(Precheck):
    """Note a backward whose root is a loss that is summed over the batch: a batch twice as large has twice the
    gradient, and the rate must fit the size of the batch."""

    name = "summed-loss"
    title = "Loss is summed"
    why = "The rate fits one size of batch alone."
    grade = "note"
    source = "https://docs.pytorch.org/docs/stable/generated/torch.nn.CrossEntropyLoss.html"
    sees = "the reduction and the value of each loss, and the root of each backward"
    remedy = "Take the mean, or divide by the number of labels of all micro batches and ranks."

    def judge(self, trial: Trial) -> Iterator[CheckFinding]:
        roots = [value for update in trial.accumulations for value in update.values]
        for call in trial.losses:
            is_root = any(math.isclose(call.value, root, rel_tol=CLOSE) for root in roots)
            if call.reduction == "sum" and call.rows > 1 and is_root:
                text = message(
                    "{function} is summed over {rows} labels, and the sum is the loss",
                    function=call.function,
                    rows=call.rows,
                )
                yield self.finding(text, {"loss": call.value, "labels": call.rows})
                return

    def missing(self, trial: Trial) -> str | None:
        return None if trial.losses else NO_LOSS


class UndividedAccumulation(Precheck):
    """Report an update from several micro batches of one size whose mean losses are added and not averaged: the
    gradient is as many times too large.

    Adam and its like without clipping hardly notice it: then it is a note.
    """

    name, title, why = AddedMeans.name, AddedMeans.title, AddedMeans.why
    source, remedy = AddedMeans.source, AddedMeans.remedy
    sees = "the reduction, labels and value of each loss, the root of each backward, and gradients before the update"

    def judge(self, trial: Trial) -> Iterator[CheckFinding]:
        rows = [
            (update, calls)
            for number, update in enumerate(trial.accumulations)
            if len(update.values) > 1 and (calls := [call for call in trial.losses if call.update == number])
        ]
        is_steady = all(len(update.values) != 1 for update in trial.accumulations)
        if len(rows) < 2 or not is_steady or not all(_is_undivided(update, calls) for update, calls in rows):
            return
        update, calls = rows[0]
        number = len(update.values)
        text = message(
            "an update adds the mean losses of {number} micro batches, which are not divided by their number",
            number=number,
        )
        evidence = {"micro batches": number, "loss": update.values[0]}
        yield self.finding(text, evidence, grade="note" if update.normalises else "warning")

    def missing(self, trial: Trial) -> str | None:
        if not any(len(update.values) > 1 for update in trial.accumulations):
            return NotApplicable("one backward in each update")
        return None if trial.losses else NO_LOSS


def _is_undivided(update: Accumulation, calls: Sequence[LossCall]) -> bool:
    """Return whether each root is the mean loss of other labels, by one function of one size."""
    if update.divided_later or len(calls) != len(update.values):
        return False
    alike = {(call.function, call.classes, call.rows, call.reduction) for call in calls}
    different = {call.labels for call in calls}
    if len(alike) > 1 or calls[0].reduction != "mean" or not calls[0].classes or len(different) < len(calls):
        return False
    pairs = zip(update.values, calls, strict=True)
    return all(math.isclose(root, call.value, rel_tol=CLOSE) for root, call in pairs)
