"""Configuration: its schema, its files, its errors."""
