"""The manifest of a run: its beginning, changes and end."""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from pathlib import Path

from probe import __version__
from probe.core.control.status import followed
from probe.core.instrumentation.context import Run
from probe.core.launch import WATCHED
from probe.core.naming import Name
from probe.core.output.resume import Resumed
from probe.core.storage import run_directory
from probe.core.storage.manifest import DATA, MOST_CHANGES, OF_OPTIMIZERS, PIPELINE, RunDescription


@dataclass(frozen=True)
class Attached:
    """The constant facts about an attachment."""

    number: int
    """Number of the run, the same on all ranks."""
    first: int
    """Number of the first step."""
    rank: int
    mates: tuple[int, ...]
    """Ranks of the pipeline to which this rank belongs."""
    start: str
    """Time of the beginning, such as ``2026-12-03T21:34:40+0800``."""

    @property
    def pp_stage(self) -> int:
        """The pipeline stage of this rank."""
        return self.mates.index(self.rank) if self.rank in self.mates else 0


class ManifestWriter:
    """The manifest of one run: its contents so far, written as a whole at each change.

    Args:
        follows: the configuration file that is followed during training, or None.
        resumed: the directory of an earlier run that is continued.
    """

    def __init__(self, run: Run, attached: Attached, follows: Path | None, resumed: Resumed | None) -> None:
        self._attached, self._resumed, self._noted = attached, resumed, 0
        self._control: dict[str, object] = {} if follows is None else followed(follows, attached.first)
        self._changes = resumed.before.manifest.changes if resumed else []
        self._contents = self._described(run)

    def write(self, directory: Path, more: Mapping[str, object]) -> None:
        """Write ``manifest.json`` as a whole.

        Raises:
            OSError: if it cannot be written.
        """
        run_directory.write_manifest(directory, self._contents | dict(more))

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
        about = described(run, self._attached)
        self._contents |= {name: about[name] for name in OF_OPTIMIZERS}
        self.note({"step": run.clock.step, "collecting": True, "optimizer": about["optimizer"]})

    def note(self, change: dict[str, object]) -> None:
        """Add ``change``, with ``step`` and ``collecting``, to the list of changes."""
        self._changes = [*self._changes[-MOST_CHANGES:], change]
        if self._control:
            self._noted += 1
            self._control |= {"step": change["step"], "collecting": change["collecting"], "changes": self._noted}
            self._contents["control"] = self._control
        self._contents["changes"] = self._changes

    def _described(self, run: Run) -> dict[str, object]:
        fields = described(run, self._attached) | ({"control": self._control} if self._control else {})
        if self._resumed is None:
            return fields
        before = self._resumed.before
        return fields | before.manifest.continued(before.first_step, self._resumed.first)


def described(run: Run, attached: Attached) -> dict[str, object]:
    """Return the fields of the manifest that are known before the first step."""
    now, hooks = time.localtime(), run.framework.hooks
    known = RunDescription(
        probe=__version__,
        host=socket.gethostname(),
        program=os.environ.get(WATCHED, ""),
        framework=run.framework.name,
        framework_version=run.framework.version,
        rank=attached.rank,
        world_size=run.framework.groups.world_size(),
        groups=_groups(run, attached.mates),
        run=attached.number,
        first_step=attached.first,
        pp_stage=attached.pp_stage,
        model=[type(model).__name__ for _, model in run.chunks],
        optimizer=[type(optimizer).__name__ for optimizer in run.optimizers],
        optimizer_state_names=[dict(hooks.state_names(optimizer)) for optimizer in run.optimizers],
        raw_names=_raw_names(run),
        start_time=attached.start,
        time_zone=time.strftime("%Z", now),
        directory_time_zone=str(run_directory.ZONE),
        config=run.settings.model_dump(mode="json"),
    )
    return dict(known)


def _groups(run: Run, mates: Sequence[int]) -> dict[str, list[int]]:
    """Return the groups of this rank: those that the framework names, and those that the user passed."""
    groups = {name: list(ranks) for name, ranks in run.framework.parallel.named().items()}
    if len(mates) > 1:
        groups.setdefault(PIPELINE, list(mates))
    if run.replicas and run.framework.groups.world_size() > 1:  # this rank alone has no copies
        groups.setdefault(DATA, list(run.replicas))
    return groups


def _raw_names(run: Run) -> dict[str, str]:
    """Return the framework's raw names of modules and parameters that have another name in rows."""
    hooks = run.framework.hooks
    named = chain.from_iterable(chain(hooks.modules(model), hooks.parameters(model)) for _, model in run.chunks)
    return {name: name.raw for name, _ in named if isinstance(name, Name)}
