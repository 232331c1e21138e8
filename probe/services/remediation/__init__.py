"""Remediation: actions that alerts of Alertmanager begin, within limits and with a history."""
