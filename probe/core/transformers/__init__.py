"""Configuration, log lines, tags and event files of MindSpore Transformers' training monitor."""
