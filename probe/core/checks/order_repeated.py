"""Check for epochs that have one order."""

from __future__ import annotations

from collections.abc import Iterator

from probe.core.checks.check import CheckFinding, JudgedUpdate
from probe.core.checks.loop_check import FactCheck
from probe.core.language import message


class OrderRepeated(FactCheck):
    """Report a sampler that divides samples among ranks and begins a second epoch with the number of the first, and one
    that begins it with the same random numbers: the order is the same."""

    name = "same-order"
    title = "Same order each epoch"
    why = "The model learns the order, and gradients of neighbours in it agree."
    source = "https://docs.pytorch.org/docs/stable/data.html#torch.utils.data.distributed.DistributedSampler"
    sees = "the number of the epoch, or the state of the random numbers, at each beginning of a sampler"
    remedy = (
        "Pass shuffle=True to the loader, or call sampler.set_epoch(epoch) at the beginning of each epoch; set seeds "
        "once, before the loop."
    )

    def __init__(self) -> None:
        super().__init__()
        self._reported = False

    def judge(self, update: JudgedUpdate) -> Iterator[CheckFinding]:
        """Return the findings with this update."""
        facts, self.judged = update.facts, True
        if facts.order_repeated and not self._reported:
            self._reported = True
            text = message(
                "a second epoch has the order of the first: set_epoch was not called, or a seed is set in the loop"
            )
            yield self.finding(facts, facts.step, text, {"epochs": 2})
