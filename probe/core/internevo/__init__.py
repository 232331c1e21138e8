"""InternEvo's monitor: messages to Feishu about a run, and heartbeats."""
