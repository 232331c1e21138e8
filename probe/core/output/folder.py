"""The directory of a run and rank, and its manifest. The directory is that of an earlier run, which is resumed, or one
that is made when it is needed; the manifest has the run's beginning, its changes and its end."""

from __future__ import annotations

import os
import socket
import threading
import time
from collections.abc import Mapping, Sequence
from itertools import chain
from pathlib import Path

from probe import __version__
from probe.core.config.schema import Settings
from probe.core.control.status import followed
from probe.core.instrumentation.context import Run
from probe.core.launch import WATCHED
from probe.core.naming import Name
from probe.core.output.metrics.hub import MetricsHub
from probe.core.output.resume import Resumed, resume
from probe.core.output.sinks import KEPT, Sink
from probe.core.output.sinks.context import SinkContext
from probe.core.storage import run_directory
from probe.core.storage.manifest import DATA, FILE, MOST_CHANGES, OF_OPTIMIZERS, PIPELINE, RunDescription


class OutputFolder:
    """The directory of a run and rank.

    Args:
        number: number of the run, the same on all ranks.
        rank: rank in names.
        mates: ranks of the pipeline to which this rank belongs.
        first: number of the first step.

    Raises:
        ValueError: if a directory is resumed without the number of the first step.
    """

    def __init__(self, settings: Settings, number: int, rank: int, mates: tuple[int, ...], first: int) -> None:
        self.number, self.rank = number, rank
        self._mates = mates
        self.pp_stage = mates.index(rank) if rank in mates else 0
        """The pipeline stage of this rank."""
        # training may change its directory
        self.root = run_directory.output_root(os.environ, settings.output_dir).absolute()
        writes = set(settings.formats) - {KEPT}
        self.resumed: Resumed | None = resume(self.root, rank, settings.append_output, first) if writes else None
        """The directory of an earlier run that is continued."""
        self.path: Path | None = None
        """The directory; None until it is made."""
        self.name = self.resumed.directory.name if self.resumed else run_directory.directory_name(rank, time.time())
        self._start = run_directory.time_text(time.localtime())
        """Time of the beginning, such as ``2026-12-03T21:34:40+0800``."""
        self.first = first
        """Number of the first step."""
        self._lock = threading.RLock()
        self._contents: dict[str, object] = {}
        """Contents of the manifest so far; empty before :meth:`begin`."""
        self._control: dict[str, object] = {}
        self._changes: list[dict[str, object]] = []
        self._noted = 0
        """Number of changes of this run."""

    def make(self) -> Path:
        """Return the directory; make it if it does not exist yet.

        Raises:
            OSError: if it cannot be made.
        """
        with self._lock:
            if self.path is None:
                old = self.resumed.directory if self.resumed else None
                self.path = old or run_directory.create(self.root, self.name)
            return self.path

    def context(
        self,
        directory: Path | None,
        settings: Settings,
        first: int,
        metrics: MetricsHub | None,
        run_numbers: bool = False,
    ) -> SinkContext:
        """Return the context of sinks that write from step ``first`` on.

        Args:
            directory: None if nothing is written.
            run_numbers: whether they write numbers of the run, not rows about tensors.
        """
        return SinkContext(
            directory=directory or self.root,
            root=self.root,
            rank=self.rank,
            ndigits=None if run_numbers else settings.ndigits,
            steps_per_file=settings.run.steps_per_file if run_numbers else settings.step_count_per_record,
            pp_stage=self.pp_stage,
            group_mates=self._mates,
            dump=settings.alert.dump and not run_numbers,
            is_summed_up=settings.sentinel.enable and not run_numbers,
            run=self.name,
            start=self._start,
            first_step=first,
            resumed_at=self.resumed.first if self.resumed else None,
            run_numbers=run_numbers,
            options=settings.sink_options,
            metrics=metrics,
        )

    # The manifest.

    def begin(self, run: Run, first: int, follows: Path | None) -> None:
        """Begin the manifest with the facts about ``run``, whose first step here is ``first``.

        Args:
            follows: the configuration file that is followed during training, or None.
        """
        with self._lock:
            self.first, self._noted = first, 0
            self._control = {} if follows is None else followed(follows, first)
            self._changes = self.resumed.before.manifest.changes if self.resumed else []
            self._contents = self._described(run)

    def files_of_numbers(self, run: Run, first: int, metrics: MetricsHub) -> tuple[SinkContext, Sequence[Sink]]:
        """Return the context of the sinks that write numbers of ``run``, and the sink that resumes a directory. Write
        the manifest of a run that has no rows about tensors so far, unless there is one.

        Raises:
            OSError: if it cannot be written.
        """
        with self._lock:
            if not self._contents and not (self.make() / FILE).exists():
                self.begin(run, first, None)
                self.write({})
        context = self.context(self.make(), run.settings, first, metrics, run_numbers=True)
        return context, [self.resumed] if self.resumed else []

    def write(self, more: Mapping[str, object]) -> None:
        """Write ``manifest.json`` as a whole.

        Raises:
            OSError: if it cannot be written.
        """
        run_directory.write_manifest(self.make(), self._contents | dict(more))

    def configured(self, run: Run, plan: str) -> None:
        """Note the configuration in effect from the step of ``run`` on, the keys that have changed, and the name of the
        plan."""
        before, now = self._contents["config"], run.settings.model_dump(mode="json")
        assert isinstance(before, dict)
        changed = {key: value for key, value in now.items() if before.get(key) != value}
        self._contents |= self._described(run)
        self.note({"step": run.clock.step, "collecting": True, "plan": plan, "changed": changed})

    def succeeded(self, run: Run) -> None:
        """Note that an optimizer has replaced another."""
        described = self._described(run)
        self._contents |= {name: described[name] for name in OF_OPTIMIZERS}
        self.note({"step": run.clock.step, "collecting": True, "optimizer": described["optimizer"]})

    def note(self, change: dict[str, object]) -> None:
        """Add ``change``, with ``step`` and ``collecting``, to the list of changes."""
        self._changes = [*self._changes[-MOST_CHANGES:], change]
        if self._control:
            self._noted += 1
            self._control |= {"step": change["step"], "collecting": change["collecting"], "changes": self._noted}
            self._contents["control"] = self._control
        self._contents["changes"] = self._changes

    def _described(self, run: Run) -> dict[str, object]:
        """Return the fields of the manifest that are known before the first step."""
        now, groups = time.localtime(), run.framework.groups
        description = RunDescription(
            probe=__version__,
            host=socket.gethostname(),
            program=os.environ.get(WATCHED, ""),
            framework=run.framework.name,
            framework_version=run.framework.version,
            rank=self.rank,
            world_size=groups.world_size(),
            groups=self._groups(run),
            run=self.number,
            first_step=self.first,
            pp_stage=self.pp_stage,
            model=[type(model).__name__ for _, model in run.chunks],
            optimizer=[type(optimizer).__name__ for optimizer in run.optimizers],
            optimizer_state_names=[dict(run.framework.hooks.state_names(optimizer)) for optimizer in run.optimizers],
            raw_names=_raw_names(run),
            start_time=self._start,
            time_zone=time.strftime("%Z", now),
            directory_time_zone=str(run_directory.ZONE),
            config=run.settings.model_dump(mode="json"),
        )
        fields = dict(description) | ({"control": self._control} if self._control else {})
        if self.resumed is None:
            return fields
        before = self.resumed.before
        return fields | before.manifest.continued(before.first_step, self.resumed.first)

    def _groups(self, run: Run) -> dict[str, list[int]]:
        """Return the groups of this rank: those that the framework names, and those that the user passed."""
        groups = {name: list(ranks) for name, ranks in run.framework.parallel.named().items()}
        if len(self._mates) > 1:
            groups.setdefault(PIPELINE, list(self._mates))
        if run.replicas and run.framework.groups.world_size() > 1:  # this rank alone has no copies
            groups.setdefault(DATA, list(run.replicas))
        return groups


def _raw_names(run: Run) -> dict[str, str]:
    """Return the framework's raw names of modules and parameters that have another name in rows."""
    hooks = run.framework.hooks
    named = chain.from_iterable(chain(hooks.modules(model), hooks.parameters(model)) for _, model in run.chunks)
    return {name: name.raw for name, _ in named if isinstance(name, Name)}
