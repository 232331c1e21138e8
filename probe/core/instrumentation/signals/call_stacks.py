"""The lines of code that call each module: ``stack_info.csv``."""

from __future__ import annotations

import csv
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from io import StringIO
from pathlib import Path
from types import CodeType
from typing import Any

import probe
from probe.core.backend.call_stack import Stack, callers, machinery, stack, text
from probe.core.backend.protocols import ForwardKind
from probe.core.instrumentation.context import Run, note_unseen
from probe.core.instrumentation.selection import Watched
from probe.core.records import TextFile
from probe.core.storage.layout import STACKS

HEADER = ("module_name", "stack_info")
_OWN = tuple(str(Path(probe.__file__).parent / part) for part in ("core", "pytorch", "mindspore"))


@contextmanager
def stacks(run: Run) -> Iterator[None]:
    """Record the stack of each watched module's first training forward in the first sampled step in which one runs.

    If a resumed run continues in its directory, leave the file as it is.
    """
    if run.directory is None or (path := run.directory / STACKS).exists():
        yield
        return
    first_stacks, activations, inner = _FirstStacks(path), run.settings.xy_distribution, False
    with ExitStack() as attached:
        for model, module in run.each_module():
            if run.selection.watches(module) or (activations and run.selection.places(module)):
                inner = inner or bool(module.full)
                note, where = first_stacks.listener(module), f"stack of module {module.full!r}"
                attached.callback(run.on_forward(module.thing, model, note, None, where))

        def end_step() -> TextFile | None:
            file = first_stacks.file()
            # of a compiled model only the hooks of the whole run: they are outside the graph
            if file is None or (inner and not first_stacks.inner and run.framework.hooks.has_compiled()):
                note_unseen(run, "stack_info")
            return None if file is None or first_stacks.written else file

        with run.step_ended.added(end_step):
            yield


def calling(call: CodeType | None) -> Stack:
    """Return the lines that led to the present call of a module by ``call``, the nearest first, without those of probe
    and of the file of ``call``."""
    lines = stack(next(callers(), None))
    if call is None:
        return tuple(line for line in lines if not line[0].startswith(_OWN))
    file, name = call.co_filename, call.co_name
    first = next((number for number, line in enumerate(lines) if (line[0], line[2]) == (file, name)), 0)
    return tuple(line for line in lines[first:] if line[0] != file and not line[0].startswith(_OWN))


class _FirstStacks:
    """Stacks of the first step in which a module runs, until their file is written."""

    def __init__(self, path: Path) -> None:
        self._path, self._written = path, False
        self.inner = False
        """True if a module of a model, not only the whole model, has run."""
        self._stacks: dict[str, Stack] = {}
        self._file: TextFile | None = None

    def listener(self, module: Watched) -> Callable[[ForwardKind, Any], None]:
        """Return a function that notes the stack of ``module`` when it is called."""
        name, call, inner = f"{module.stage}:{module.name}", machinery(module.thing), bool(module.full)

        def note(kind: ForwardKind, _: Any) -> None:
            self.inner = self.inner or (inner and kind == "training")
            if kind == "training" and self._file is None and name not in self._stacks:
                self._stacks[name] = calling(call)

        return note

    def file(self) -> TextFile | None:
        """Return the file of the stacks, in the order of the calls; None if no module has run yet."""
        if self._file is None and self._stacks:
            rows = StringIO()
            writer = csv.writer(rows, lineterminator="\n")
            writer.writerow(HEADER)
            writer.writerows((name, "\n".join(map(text, lines))) for name, lines in self._stacks.items())
            self._file = TextFile(self._path, rows.getvalue(), "end of step", replaces=False)
            self._stacks = {}
        return self._file

    @property
    def written(self) -> bool:
        """True if the file exists; if it could not be written, the next step tries again."""
        self._written = self._written or self._path.is_file()
        return self._written
