"""The documentation as a site: ``make docs``. Pages are Markdown (MyST), and read on their own as well."""

import re
from pathlib import Path
from typing import Any

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


def _write_index_for_agents(app: Any, _: Exception | None) -> None:
    """Copy ``llms.txt`` to the root of the site; its links lead to the Markdown sources that the site has."""
    if app.builder.name == "html":
        text = (Path(app.srcdir) / "llms.txt").read_text("utf-8")
        sources = re.sub(r"\]\(([\w/]+\.md)\)", r"](_sources/\1.txt)", text)
        (Path(app.outdir) / "llms.txt").write_text(sources, encoding="utf-8")


def setup(app: Any) -> None:
    """Add the copy to the end of the build; Sphinx calls this."""
    app.connect("build-finished", _write_index_for_agents)
