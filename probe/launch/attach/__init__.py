"""Watching of a training that runs already: ``probe attach PID``.

The command (:mod:`processes`) asks the interpreter of the process, by ``sys.remote_exec`` of Python 3.14 (PEP 768), to
run a script of ours (:mod:`injection`). That imports the monitor, finds the optimizers, waits for the end of a training
step and goes on as ``probe run`` does (:mod:`joining`). Requests, answers and the step that several processes agree on
lie in a folder (:mod:`request`, :mod:`exchange`).
"""
