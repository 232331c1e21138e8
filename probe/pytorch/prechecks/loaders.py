"""Loaders of data: their samplers, and the first batch of each of their worker processes. None is iterated here."""

from __future__ import annotations

import functools
import json
import os
import weakref
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch.utils import data
from torch.utils.data._utils import fetch
from torch.utils.data.distributed import DistributedSampler

from probe.core.door import FaultCounter, attempt, passage, replace
from probe.core.prechecks.trial import LoaderFacts, WorkerFacts
from probe.launch.made_objects import note_made
from probe.pytorch.prechecks.digests import digest, generator_digests, tensors_in

WORKERS = "worker-*.json"
SHUFFLES = {
    "RandomSampler": True,
    "SubsetRandomSampler": True,
    "WeightedRandomSampler": True,
    "SequentialSampler": False,
}


class LoaderWatch:
    """Loaders that were made.

    Args:
        folder: for the files of worker processes.
    """

    def __init__(self, folder: Path, faults: FaultCounter) -> None:
        self._folder, self._faults = folder, faults
        self._loaders: list[weakref.ref[Any]] = []
        self._epochs: dict[int, list[int]] = {}
        """Epochs at the beginnings of iterations, by the identity of the sampler."""

    def begin(self) -> None:
        """Note loaders, their iterations and workers from now on."""
        note_made(data.DataLoader, self._made)
        replace(DistributedSampler, "__iter__", self._around_iter(DistributedSampler.__iter__))
        for kind in (fetch._MapDatasetFetcher, fetch._IterableDatasetFetcher):
            replace(kind, "fetch", self._around_fetch(kind.fetch, kind is fetch._IterableDatasetFetcher))

    def _made(self, loader: Any) -> None:
        self._loaders.append(weakref.ref(loader))

    def _around_iter(self, original: Callable[..., Any]) -> Callable[..., Any]:
        @passage
        @functools.wraps(original)
        def __iter__(sampler: Any) -> Any:  # noqa: N807
            if torch.is_grad_enabled() and sampler.shuffle:
                self._epochs.setdefault(id(sampler), []).append(int(sampler.epoch))
            return original(sampler)

        return __iter__

    def _around_fetch(self, original: Callable[..., Any], is_stream: bool) -> Callable[..., Any]:
        @passage
        @functools.wraps(original)
        def fetch_batch(fetcher: Any, *args: Any, **kwargs: Any) -> Any:
            worker = data.get_worker_info()
            path = None if worker is None else self._folder / f"worker-{os.getpid()}.json"
            if worker is None or path is None or path.exists():
                return original(fetcher, *args, **kwargs)
            before = attempt(self._faults, "worker", generator_digests) or {}
            batch = original(fetcher, *args, **kwargs)
            attempt(self._faults, "worker", _write, path, worker, before, batch if is_stream else None)
            return batch

        return fetch_batch

    def rows(self) -> list[LoaderFacts]:
        """Return the facts of all loaders."""
        return [_facts(loader, self._epochs) for reference in self._loaders if (loader := reference()) is not None]

    def workers(self) -> list[WorkerFacts]:
        """Return the facts that worker processes of this process have written."""
        facts = []
        for path in sorted(self._folder.glob(WORKERS)):
            values = json.loads(path.read_text(encoding="utf-8"))
            if values.pop("parent") == os.getpid():
                facts.append(WorkerFacts(**values))
        return facts


def _write(path: Path, worker: Any, before: dict[str, int], batch: Any) -> None:
    """Write the facts of a worker with its first batch: generators that it has used, by their state before it."""
    after = generator_digests()
    facts = WorkerFacts(
        loader=f"{os.getppid()}-{worker.seed - worker.id}",
        worker=worker.id,
        generators={name: state for name, state in before.items() if after.get(name) != state},
        batch=digest(tensors) if (tensors := [*tensors_in(batch)]) else 0,
    )
    path.write_text(json.dumps(facts._asdict() | {"parent": os.getppid()}), encoding="utf-8")


def _facts(loader: Any, epochs: dict[int, list[int]]) -> LoaderFacts:
    sampler, is_sharded = (None, False) if isinstance(loader.dataset, data.IterableDataset) else _sampler(loader)
    begun = epochs.get(id(sampler), [])
    kind = "" if sampler is None else type(sampler).__name__
    shuffles = sampler.shuffle if isinstance(sampler, DistributedSampler) else SHUFFLES.get(kind)
    is_distributed = is_sharded or isinstance(sampler, DistributedSampler)
    return LoaderFacts(kind, shuffles, is_distributed, int(loader.num_workers), len(begun) > len(set(begun)))


def _sampler(loader: Any) -> tuple[Any, bool]:
    """Return the sampler that chooses the samples of a loader, and whether one around it divides them among ranks. A
    loader that got batches of numbers has a sampler, too, which it does not use."""
    batches, is_sharded = loader.batch_sampler, False
    while (inner := getattr(batches, "batch_sampler", None)) is not None:
        batches, is_sharded = inner, is_sharded or "Shard" in type(batches).__name__
    return (loader.sampler if batches is None else getattr(batches, "sampler", batches)), is_sharded
