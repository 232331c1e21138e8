"""The configuration: its schema, its files, its errors."""
