"""Parent process of ``probe run``: it starts the program, waits for it and ends as it does.

Meanwhile it compares the ranks of its node by what they write to the board, and at the end it reports on all of them.
Nothing that fails in it keeps the program from running or changes its exit code.
"""
