"""Configuration of Sphinx: the pages under docs/, with CONTRIBUTING and CHANGELOG, as one site.

The root of the sources is the root of the checkout, so that links between pages are the same here
and on a forge.
"""

from typing import Final

project: Final = "Atomo"
root_doc: Final = "docs/index"
extensions: Final = ["myst_parser"]
include_patterns: Final = ["docs/**", "CONTRIBUTING.md", "CHANGELOG.md", "examples/*"]
exclude_patterns: Final = [".*", "build", "data", "dist", "runs", "src", "tests"]
source_suffix: Final = {".md": "markdown"}
myst_heading_anchors: Final = 4
myst_enable_extensions: Final = ["colon_fence"]
highlight_language: Final = "none"
html_theme: Final = "furo"
html_title: Final = "Atomo"
html_static_path: Final = ["_static"]
html_css_files: Final = ["site.css"]
html_additional_pages: Final = {"index": "redirect.html"}
templates_path: Final = ["_templates"]
html_copy_source: Final = False
smartquotes: Final = False  # they would join the dashes of options
html_show_sphinx: Final = False
html_show_copyright: Final = False
