"""HTML page about a run, which needs nothing but a browser.

:mod:`write` makes the file. :mod:`survey` lists names and steps of a run, :mod:`layout` chooses rows and columns,
:mod:`heatmaps` fills their cells, :mod:`payload` packs them for the scripts; :mod:`findings` holds the
cause that is shown, :mod:`sections` writes text and tables, and :mod:`page` is the frame that pages share.
"""
