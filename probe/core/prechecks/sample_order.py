"""Precheck for the order of samples."""

from __future__ import annotations

from collections.abc import Iterator

from probe.core.checks.check import CheckFinding, NotApplicable
from probe.core.prechecks.precheck import Precheck
from probe.core.prechecks.trial import Trial


class SampleOrder(Precheck):
    """Report a sampler that divides samples among ranks and begins a second epoch with the number of the first: the
    order is the same. Note loaders that do not shuffle, and ranks whose loaders do not divide the samples."""

    name = "same-order"
    title = "Same order each epoch"
    why = "The model learns the order, and gradients of neighbours in it agree."
    source = "https://docs.pytorch.org/docs/stable/data.html#torch.utils.data.distributed.DistributedSampler"
    sees = "classes of the samplers of loaders, and the number of the epoch at each of their beginnings"
    remedy = "Call sampler.set_epoch(epoch) at the beginning of each epoch, and pass shuffle=True to the loader."

    def judge(self, trial: Trial) -> Iterator[CheckFinding]:
        """Yield the findings in a trial."""
        for loader in trial.loaders:
            if loader.repeated_epoch:
                yield self.finding("a second epoch has the order of the first: set_epoch was not called", {"epochs": 2})
                return
        divided = [loader.distributed for loader in trial.loaders if loader.sampler]
        if trial.world > 1 and divided and not any(divided):
            text = f"no loader divides its samples among the {trial.world} ranks"
            yield self.finding(text, {"ranks": trial.world, "loaders": len(divided)}, grade="note")
        elif trial.loaders and all(loader.shuffles is False for loader in trial.loaders):
            text = f"no loader shuffles: {trial.loaders[0].sampler} has the same order in each epoch"
            yield self.finding(text, {"loaders": len(trial.loaders)}, grade="note")

    def missing(self, trial: Trial) -> str | None:
        """Return why nothing can be judged."""
        return None if trial.loaders else NotApplicable("no loader of the framework")
