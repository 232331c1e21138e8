"""Check for a loss over classes that stays at what guessing would give, or above."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterator
from itertools import islice
from statistics import fmean, median, variance

from probe.core.checks.check import CheckFinding, JudgedUpdate, NotApplicable
from probe.core.checks.loop_check import ChangeCheck
from probe.core.checks.update_facts import UpdateFacts
from probe.core.language import message

UPDATES, OF_TOKENS, HALF = 120, 1000, 50
"""Updates at least before it is judged, of as many classes at most, those of a model of tokens, which often begins with
a plateau, and those of each half that are compared."""
CLASSES = 4
"""Classes at least: whether one of two things happens is often all but a guess."""
GUESS = 0.97
"""Part of the loss of an even guess from which on a loss is no better."""
ERRORS = 2.0
"""Standard errors by which the later half must be lower to be falling."""
FAR, UNTRAINED, EARLY = 3.0, 0.3, 20
"""Multiple of the loss of an even guess above which a loss has run away, relative distance from the guess at which a
model that knows nothing begins, and updates in a row."""
RISE, FALLEN = 1e-3, 0.1
"""Relative rise of a rate that is a warm-up, and the part of its highest below which a schedule is at its end."""


class NoBetterThanGuess(ChangeCheck):
    """Report a mean cross entropy that is no lower than the logarithm of the number of classes, which an even guess
    gives, and that has not fallen in the latest hundred updates, of a run in which it never was lower. Report a loss
    that begins there and then is three times as high, twenty updates in a row among the first hundred.

    It is judged after 120 updates, of a model of tokens after 1000, after as many as there are classes if these are
    more, and not in a warm-up. Losses of two or three classes, and those whose classes are the samples of the batch,
    are left out.
    """

    name = "no-better-than-guess"
    title = "No better than guessing"
    why = "Nothing is learnt: labels that belong to other samples, a rate that is far off, a model that passes nothing."
    source = "https://github.com/nitbix/toupee/issues/83"
    sees = "the loss of each update, and the graph of a loss now and then"
    remedy = (
        "Overfit one batch; look whether inputs and labels belong together, and try rates ten times lower and higher."
    )
    lacks = NotApplicable(f"no mean cross entropy of {CLASSES} classes, or fewer than {UPDATES} updates")

    def __init__(self) -> None:
        super().__init__()
        self._graph: object = None
        self._classes, self._factor, self._pattern, self._least = 0, math.nan, b"", UPDATES
        self._losses: deque[float] = deque(maxlen=2 * HALF)
        self._first = math.nan
        self._updates, self._since, self._rate, self._highest, self._ended = 0, -1, 0.0, 0.0, False

    def judge(self, update: JudgedUpdate) -> Iterator[CheckFinding]:
        """Return the findings with this update."""
        facts = update.facts
        if self._ended or not facts.alone or not facts.loss_seen or not facts.backwards:
            return
        if math.isnan(self._first):
            self._first = facts.loss / facts.backwards
        if facts.loss_graph is not None and facts.loss_graph is not self._graph:
            self._look(facts)
            self._pattern = update.pattern
        if self._ended or not self._classes or update.pattern != self._pattern:  # a loss of another task
            return
        rate, before = max(facts.rates, default=math.nan), self._rate
        self._rate, self._highest = rate, max(self._highest, rate)
        if rate > before * (1 + RISE):
            self._losses.clear()
        loss = facts.loss / (facts.backwards * self._factor)
        if not math.isfinite(loss) or not rate >= FALLEN * self._highest:
            return
        self._updates += 1
        self._since = self._since if self._losses else facts.step
        self._losses.append(loss)
        if len(self._losses) < 2 * HALF:
            yield from self._run_away(facts)
            return
        self.judged = True
        earlier, later = [*islice(self._losses, HALF)], [*islice(self._losses, HALF, None)]
        guess, middle = math.log(self._classes), median(later)
        if min(median(earlier), middle) < GUESS * guess:  # something was learnt, and what undoes that is another matter
            self._ended = True
            return
        error = math.sqrt((variance(earlier) + variance(later)) / HALF)
        if self._updates < max(self._least, self._classes) or fmean(earlier) - fmean(later) > ERRORS * error:
            return
        self._ended = True
        text = message(
            "the loss is {loss:.4g} and does not fall; an even guess among {classes} classes has {guess:.4g}",
            loss=middle,
            classes=self._classes,
            guess=guess,
        )
        evidence = {"loss": middle, "guess": guess, "updates": self._updates}
        yield self.finding(facts, self._since, text, evidence)

    def _run_away(self, facts: UpdateFacts) -> Iterator[CheckFinding]:
        latest, guess, first = [*self._losses][-EARLY:], math.log(self._classes), self._first / self._factor
        is_untrained = abs(first / guess - 1) <= UNTRAINED
        if self._updates > 2 * HALF or len(latest) < EARLY or min(latest) < FAR * guess or not is_untrained:
            return
        self._ended = self.judged = True
        text = message(
            "the loss has risen from {first:.4g} to {loss:.4g}; an even guess among {classes} classes has {guess:.4g}",
            first=first,
            loss=(loss := median(latest)),
            classes=self._classes,
            guess=guess,
        )
        yield self.finding(facts, self._since, text, {"loss": loss, "guess": guess, "updates": self._updates})

    def _look(self, facts: UpdateFacts) -> None:
        """Take the number of classes of the loss, and the factor by which the root is its mean; a program with several
        losses in turn is not judged."""
        assert facts.loss_graph is not None, "the caller has looked"
        first, self._graph, graph = self._graph is None, facts.loss_graph, facts.loss_graph()
        calls = [call for call in graph.losses if call.classes >= CLASSES and call.classes != call.rows]
        is_mean = len(calls) == len(graph.losses) == 1 and graph.factor > 0
        classes = calls[0].classes if is_mean else 0
        self._ended = not classes or (not first and (classes, graph.factor) != (self._classes, self._factor))
        self._classes, self._factor, self._least = classes, graph.factor, OF_TOKENS if graph.tokens else UPDATES
