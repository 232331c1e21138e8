"""Kinds of action. To add one, write its class and a line here."""

from __future__ import annotations

from probe.services.remediation.cleaning import CleanFolders
from probe.services.remediation.planned_action import Action
from probe.services.remediation.program_actions import LowerPowerLimit, RunProgram
from probe.services.remediation.training_actions import CommandTraining, RelieveHost

ACTIONS: dict[str, type[Action]] = {
    "clean_folders": CleanFolders,
    "command_training": CommandTraining,
    "lower_power_limit": LowerPowerLimit,
    "relieve_host": RelieveHost,
    "run_program": RunProgram,
}
"""Kinds of action by name."""
