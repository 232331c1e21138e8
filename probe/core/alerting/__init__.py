"""Alerts: their queue, spool and channels, apart from delivery."""
