"""Schema."""

SCHEMA_VERSION = 1
