"""Changes while training runs: dynamic start and stop, deeper collection, agreement between ranks."""
