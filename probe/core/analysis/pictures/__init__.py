"""Numbers behind the pictures of a run: data alone, which the page shows and other front ends may show.

:mod:`survey` lists names and steps, :mod:`layout` chooses rows and columns, :mod:`heatmaps` and :mod:`run_cells` fill
their cells, :mod:`payload` packs them; :mod:`run_curves`, :mod:`performance_picture`, :mod:`run_details` and
:mod:`farthest` are about the run as a whole, and :mod:`static_page` writes the page with its answers into one file.
"""
