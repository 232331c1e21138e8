"""Watching of programs as they are, without a line of code: ``probe run``.

Python itself starts the program, in an environment (:mod:`environment`) whose ``sitecustomize`` prepares each process
(:mod:`preparation`). When the program imports a framework, its optimizers are noted as they are made, and the model
is found at its first forward (:mod:`watch`). No module here imports a framework: what depends on one is in the
module ``finding`` of its adapter.
"""
