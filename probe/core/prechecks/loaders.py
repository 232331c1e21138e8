"""Prechecks for loaders of data."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator

from probe.core.checks.check import CheckFinding, NotApplicable
from probe.core.checks.order_repeated import OrderRepeated
from probe.core.language import message
from probe.core.prechecks.precheck import Precheck
from probe.core.prechecks.trial import Trial, WorkerFacts


class WorkerNumbers(Precheck):
    """Report workers of one loader that begin with the same random numbers and use them: augmentations of their samples
    repeat one another."""

    name = "same-worker-numbers"
    title = "Workers draw alike"
    why = "Each augmentation is drawn as often as there are workers."
    source = "https://tanelp.github.io/posts/a-bug-that-plagues-thousands-of-open-source-ml-projects/"
    sees = "state of the random generators of each worker process, before and after its first batch"
    remedy = "Seed in worker_init_fn from torch.initial_seed(), which differs between workers and epochs."

    def judge(self, trial: Trial) -> Iterator[CheckFinding]:
        for workers in _by_loader(trial):
            names = {name for worker in workers for name in worker.generators}
            for name in sorted(names):
                states = [worker.generators[name] for worker in workers if name in worker.generators]
                alike = len(states) - len(set(states))
                if alike:
                    text = message(
                        "{alike} of {workers} workers begin with the same random numbers of {name}",
                        alike=alike + 1,
                        workers=len(workers),
                        name=name,
                    )
                    yield self.finding(text, {"alike": alike + 1, "workers": len(workers)})
                    return

    def missing(self, trial: Trial) -> str | None:
        return None if _by_loader(trial) else NotApplicable("no loader with several workers")


class SamplesRepeated(Precheck):
    """Report workers of a stream of samples that return the same batch: each reads the whole stream."""

    name = "samples-repeated"
    title = "Workers read alike"
    why = "An epoch is as many epochs as there are workers."
    source = "https://docs.pytorch.org/docs/stable/data.html#torch.utils.data.IterableDataset"
    sees = "digests of the first batch of each worker of a stream"
    remedy = "Divide the stream in __iter__ by get_worker_info(), so that each worker yields a part of it."

    def judge(self, trial: Trial) -> Iterator[CheckFinding]:
        for workers in _by_loader(trial):
            batches = [worker.batch for worker in workers if worker.batch]
            if len(batches) > len(set(batches)):
                text = message(
                    "workers of a stream return the same first batch: each of {workers} yields all samples",
                    workers=len(workers),
                )
                yield self.finding(text, {"workers": len(workers)})
                return

    def missing(self, trial: Trial) -> str | None:
        seen = any(worker.batch for workers in _by_loader(trial) for worker in workers)
        return None if seen else NotApplicable("no stream with several workers")


def _by_loader(trial: Trial) -> list[list[WorkerFacts]]:
    """Return the workers of each loader that has several."""
    loaders: defaultdict[str, list[WorkerFacts]] = defaultdict(list)
    for worker in trial.workers:
        loaders[worker.loader].append(worker)
    return [workers for workers in loaders.values() if len(workers) > 1]


class SampleOrder(Precheck):
    """Report a sampler that divides samples among ranks and begins a second epoch with the number of the first: the
    order is the same. Note loaders that do not shuffle, and ranks whose loaders do not divide the samples."""

    name, title, why = OrderRepeated.name, OrderRepeated.title, OrderRepeated.why
    source, remedy = OrderRepeated.source, OrderRepeated.remedy
    sees = "classes of the samplers of loaders, and the number of the epoch at each of their beginnings"

    def judge(self, trial: Trial) -> Iterator[CheckFinding]:
        for loader in trial.loaders:
            if loader.repeated_epoch:
                yield self.finding(
                    message("a second epoch has the order of the first: set_epoch was not called"),
                    {"epochs": 2},
                )
                return
        divided = [loader.distributed for loader in trial.loaders if loader.sampler]
        if trial.world > 1 and divided and not any(divided):
            text = message("no loader divides its samples among the {world} ranks", world=trial.world)
            yield self.finding(text, {"ranks": trial.world, "loaders": len(divided)}, grade="note")
        elif trial.loaders and all(loader.shuffles is False for loader in trial.loaders):
            text = message(
                "no loader shuffles: {sampler} has the same order in each epoch", sampler=trial.loaders[0].sampler
            )
            yield self.finding(text, {"loaders": len(trial.loaders)}, grade="note")

    def missing(self, trial: Trial) -> str | None:
        return None if trial.loaders else NotApplicable("no loader of the framework")
