"""The rules and sinks that a configuration names."""

from __future__ import annotations

from dataclasses import replace

from probe.core.config.schema import Settings
from probe.core.output.resume import Resumed
from probe.core.output.sinks import Sink, factory, written_beside
from probe.core.output.sinks.context import SinkContext
from probe.core.rules import Rule
from probe.core.rules import factory as rule_factory


class Stages:
    """Rules and sinks of a run; those whose configuration has not changed are kept.

    Args:
        resumed: the directory of an earlier run that is continued: the first sink.
    """

    def __init__(self, rank: int, resumed: Resumed | None) -> None:
        self._rank, self._resumed = rank, resumed
        self._rules: list[tuple[object, Rule]] = []
        """Rules with the values from which they were made."""
        self._sinks: list[tuple[object, Sink]] = []
        self._made: set[str] = set()
        """Names of all sinks made so far."""

    @property
    def rules(self) -> list[Rule]:
        """The rules of the latest configuration."""
        return [rule for _, rule in self._rules]

    @property
    def sinks(self) -> list[Sink]:
        """The sinks of the latest configuration."""
        return [sink for _, sink in self._sinks]

    def choose(self, settings: Settings, context: SinkContext) -> None:
        """Make the rules and sinks of ``settings`` that do not exist yet.

        Raises:
            Exception: if one cannot be made; then nothing changes.
        """
        rules: list[tuple[object, Rule]] = []
        known = list(self._rules)
        for rule in settings.alert.rules:
            made_of = rule, settings.statistics
            kept = next((pair for pair in known if pair[0] == made_of), None)
            if kept is not None:
                known.remove(kept)  # two equal rules are kept as two
            rules.append(kept or (made_of, rule_factory(rule.rule_name)(rule.args, self._rank, settings.statistics)))
        sinks: list[tuple[object, Sink]] = [(None, self._resumed)] if self._resumed else []
        for name in (*settings.formats, *written_beside(settings.formats)):
            make = factory(name)
            if make is not None:
                known_sink = next((one for of, one in self._sinks if of == (name, context)), None)
                sinks.append(((name, context), known_sink or make(self._context_of_new(name, context))))
        self._rules, self._sinks = rules, sinks
        self._made.update(settings.formats)

    def _context_of_new(self, name: str, context: SinkContext) -> SinkContext:
        """Return the context of a new sink: only the first one with this name resumes an earlier run."""
        return replace(context, resumed_at=None) if name in self._made else context
