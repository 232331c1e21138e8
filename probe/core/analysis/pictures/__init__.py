"""Numbers behind the pictures of a run: data alone, which the page shows and other front ends may show.

:mod:`cells` makes cells of rows, for the server of the page as for a page in a file, and :mod:`packing` packs arrays.
:mod:`run_details`, :mod:`rank_table` and :mod:`farthest` are about the run as a whole.

For a page in a file :mod:`survey` lists names and steps, :mod:`layout` chooses rows and columns, :mod:`run_cells` fills
their cells, and :mod:`payload` names and packs them; :mod:`static_page` writes the page.
"""
