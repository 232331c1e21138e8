"""Checks of the training loop: one a file, all of them on at every step."""

from __future__ import annotations

from probe.core.checks.check import Check, CheckFinding, JudgedUpdate

__all__ = ["CHECKS", "Check", "CheckFinding", "JudgedUpdate"]

CHECKS: dict[str, type[Check]] = {}
"""Checks by name. To add one, write a file with its class, and add a line here."""
