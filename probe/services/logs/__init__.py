"""JSON lines of our own logger, and a parser of the logs of training programs and the system around them."""

from probe.services.logs.json_lines import structured
from probe.services.logs.parser import TrainingLogParser

__all__ = ["TrainingLogParser", "structured"]
