"""The documentation as a site: ``make docs``. Pages are Markdown (MyST), and read on their own as well."""

import re
from pathlib import Path

project = "probe"
copyright = "the authors of probe"  # noqa: A001 - Sphinx's own name
release = re.search(r'"(.+)"', (Path(__file__).parents[1] / "probe" / "__init__.py").read_text("utf-8"))[1]
extensions = ["myst_parser", "sphinx_design"]
exclude_patterns = ["pictures/*.py", "reference/*.py"]
locale_dirs = ["locale"]  # catalogues of make docs LANGUAGE=zh_CN; a page without one stays English
gettext_compact = False
source_suffix = {".md": "markdown"}
myst_enable_extensions = ["colon_fence"]
myst_heading_anchors = 3
html_theme = "furo"
html_title = "probe"
nitpicky = True
