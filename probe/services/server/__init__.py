"""Heartbeat server: stores the messages of many ranks, notices those that fall silent, shows them on a page."""
