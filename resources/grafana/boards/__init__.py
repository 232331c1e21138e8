"""Dashboards of Grafana as data: panels, their queries, and the functions that turn them into Grafana's types."""
