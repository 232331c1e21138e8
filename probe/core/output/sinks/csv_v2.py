"""CSV files in the layout of msprobe's Monitor V2, for programs that parse those."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

from probe.core.moments import derive_all
from probe.core.output.sinks.context import SinkContext
from probe.core.records import Batch, Snapshot
from probe.core.storage.files import append, open_for_append
from probe.core.storage.layout import MICRO_STEP, STEP, csv_cell, ops_of
from probe.core.storage.v2_layout import MODULE_NAME, SCOPE, STAGE, file_name, folder_name, module_name, section_of

ABOUT = (STAGE, STEP, MODULE_NAME, SCOPE)


class CsvV2Sink:
    """Writer of ``rank_0/{section}_step{first}-{last}.csv`` in the output directory; each write is one append."""

    def __init__(self, context: SinkContext) -> None:
        self._folder = context.root / folder_name(context.rank)
        self._first, self._steps_per_file = context.first_step, context.steps_per_file

    def open(self) -> None:
        self._folder.mkdir(parents=True, exist_ok=True)

    def close(self) -> None:
        """Do nothing: no file is kept open."""

    def write(self, snapshot: Snapshot) -> None:
        """Append every batch to the file of its section."""
        sections: dict[str, list[Batch]] = {}
        for batch in snapshot.batches:
            sections.setdefault(section_of(batch.signal)[0], []).append(batch)
        for section, batches in sections.items():
            micro_stepped = section == "weight_grad"
            path = self._path(section, snapshot.step)
            header = [*ABOUT, *[MICRO_STEP] * micro_stepped, *snapshot.ops]
            lines = (line for batch in batches for line in _lines(batch, snapshot.ops, micro_stepped))
            text = "" if path.exists() else ",".join(map(csv_cell, header)) + "\n"
            with open_for_append(path) as file:
                append(file, (text + "".join(lines)).encode("utf-8", "backslashreplace"))

    def _path(self, section: str, step: int) -> Path:
        first = step - (step - self._first) % self._steps_per_file
        return self._folder / file_name(section, first, first + self._steps_per_file - 1)


def _lines(batch: Batch, ops: Sequence[str], micro_stepped: bool) -> Iterator[str]:
    derived = dict(zip(written := ops_of(batch, ops), derive_all(written, batch.columns, batch.shapes), strict=True))
    scope = section_of(batch.signal)[1]
    for place, key in enumerate(batch.keys):
        values = [f"{derived[op][place]:.9g}" if op in derived else "nan" for op in ops]
        micro = [str(key.micro_step + 1)] * micro_stepped
        name = csv_cell(module_name(batch.signal, key))
        yield ",".join([str(key.stage), str(batch.step), name, csv_cell(scope), *micro, *values]) + "\n"
