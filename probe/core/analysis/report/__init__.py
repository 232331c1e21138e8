"""One HTML page about a run, which needs nothing but a browser.

:mod:`page` is the frame that pages share, :mod:`heatmaps` the numbers of a run in as many cells as a screen has room
for, :mod:`sections` its text and tables, and :mod:`findings` the cause that it shows.
"""
