"""Watcher of the ranks of one node: a process of its own that notices a standstill and the loss of a rank."""
