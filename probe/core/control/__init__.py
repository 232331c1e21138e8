"""Changes during training: dynamic start and stop, deeper collection, agreement between ranks."""
