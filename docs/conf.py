"""The documentation as a site: ``make docs``. Pages are Markdown (MyST), and read on their own as well."""

import re
from pathlib import Path
from typing import Any

project = "probe"
copyright = "the authors of probe"  # noqa: A001 - Sphinx's own name
release = re.search(r'"(.+)"', (Path(__file__).parents[1] / "probe" / "__init__.py").read_text("utf-8"))[1]
extensions = ["myst_parser", "sphinx_design", "sphinx_copybutton"]
exclude_patterns = ["pictures/*.py", "reference/*.py"]
locale_dirs = ["locale"]  # catalogues of make docs LANGUAGE=zh_CN; a page without one stays English
gettext_compact = False
source_suffix = {".md": "markdown"}
myst_enable_extensions = ["colon_fence"]
myst_heading_anchors = 3
html_theme = "furo"
html_title = "probe"
html_static_path = ["site.css"]
html_css_files = ["site.css"]
copybutton_prompt_text = "$ "  # commands are copied, without the prompt and the output
nitpicky = True


def collapse(_app: object, _page: str, _template: str, context: dict[str, Any], _document: object) -> None:
    """Fold the groups of the sidebar, but for that of the page; on a page of none, the first one is open."""
    caption = r'<p class="caption"[^>]*>(.*?)</p>'
    before, *parts = re.split(caption, context.get("furo_navigation_tree", ""), flags=re.DOTALL)
    groups = [*zip(parts[::2], parts[1::2], strict=True)]
    current = next((number for number, (_, pages) in enumerate(groups) if 'class="current' in pages), 0)
    for number, (title, pages) in enumerate(groups):
        state = " open" if number == current else ""
        before += f'<details{state}><summary class="caption">{title}</summary>{pages}</details>\n'
    context["furo_navigation_tree"] = before


def _write_index_for_agents(app: Any, _: Exception | None) -> None:
    """Copy ``llms.txt`` to the root of the site; its links lead to the Markdown sources that the site has."""
    if app.builder.name == "html":
        text = (Path(app.srcdir) / "llms.txt").read_text("utf-8")
        sources = re.sub(r"\]\(([\w/]+\.md)\)", r"](_sources/\1.txt)", text)
        (Path(app.outdir) / "llms.txt").write_text(sources, encoding="utf-8")


def setup(app: Any) -> None:
    """Connect what a page is changed by, after the theme has made its sidebar, and what ends a build."""
    app.connect("html-page-context", collapse, priority=800)
    app.connect("build-finished", _write_index_for_agents)
