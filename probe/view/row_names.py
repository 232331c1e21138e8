"""Rows of a signal: their labels, in the order of the model."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence

from probe.core.analysis.pictures.survey import RowStages, SurveyRow, first_files, heads_of, met
from probe.core.storage.directories import RankDirectory, RecordedRun
from probe.view.run_reader import RunReader


class RowNames:
    """Order and labels of the rows of a signal.

    Args:
        rows: rows in the order of the model, as far as it is known.
        stages: pipeline stage of each directory, by its index.
    """

    def __init__(self, rows: Iterable[SurveyRow], stages: Mapping[int, int]) -> None:
        self.rows = tuple(rows)
        self._place = {row: n for n, row in enumerate(self.rows)}
        self._stages = stages
        self._pipelined = len(set(stages.values())) > 1
        self._labels = RowStages(self.rows, self._pipelined)
        self._of_label = {self.label(row): row for row in self.rows}

    def row(self, label: str) -> SurveyRow:
        """Return the row of a label; one that is not known is taken for the name of a row without stages."""
        return self._of_label.get(label) or SurveyRow(0, 0, label)

    def directories_of(self, row: SurveyRow) -> list[int] | None:
        """Return the indices of the directories that may have a row; None if all may."""
        return [n for n, stage in self._stages.items() if stage == row.pp_stage] if self._pipelined else None

    def label(self, row: SurveyRow) -> str:
        """Return the name of a row, after its stages if there are several, as reports have it."""
        return self._labels.label(row)

    def order(self, rows: Sequence[SurveyRow]) -> list[int]:
        """Return the indices of ``rows`` in the order of the model, those that are not known last in their stage."""
        after = len(self._place)

        def key(n: int) -> tuple[int, int, int, str]:
            row = rows[n]
            return row.vpp_stage, row.pp_stage, self._place.get(row, after), row.name

        return sorted(range(len(rows)), key=key)


def stages_of(directories: Sequence[RankDirectory]) -> dict[int, int]:
    """Return the pipeline stage of each directory, by its index."""
    return {n: directory.manifest.pipeline_stage for n, directory in enumerate(directories)}


def row_names(reader: RunReader, signal: str, more: Collection[SurveyRow] = ()) -> RowNames:
    """Return the rows of the first step of a signal.

    Args:
        more: rows that are known beside these.
    """
    with reader.lock:
        run, key = reader.listing().run, ("names", signal, len(more))
        known: tuple[RecordedRun, RowNames] | None = reader.kept.get(key)
        if known is None or known[0] != run or not known[1].rows:
            reader.kept[key] = known = run, _read(reader, signal, more)
        return known[1]


def _read(reader: RunReader, signal: str, more: Collection[SurveyRow]) -> RowNames:
    listing = reader.listing()
    stages = stages_of(listing.run.directories)
    with reader.rows([signal], files={signal: first_files(listing.files.get(signal, []), stages)}) as rows:
        if signal not in rows.signals:
            return RowNames(more, stages)
        heads = heads_of(rows, signal, stages, range(len(stages)))
    every = sorted(dict.fromkeys([*met(heads), *more]), key=lambda row: (row.vpp_stage, row.pp_stage))
    return RowNames(every, stages)
