"""Sources: one for each signal or group of signals."""
