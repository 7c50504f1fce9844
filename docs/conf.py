"""The site: `make docs` builds it in docs/_build, where a warning or a dead link is an error.

Its source is the whole repository, so that links to results, which are pages too, are the same
there and in a checkout.
"""

from __future__ import annotations

import re

project = "autoddl"
html_title = "autoddl"
extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx_click"]
html_theme = "furo"
root_doc = "docs/index"
include_patterns = ["*.md", "docs/*.md", "calibration/*.md"]
include_patterns += ["benchmarks/results/*.md", "benchmarks/results/**/*.md"]
exclude_patterns = [".*", "docs/_build"]
default_role = "code"
smartquotes = False  # options have two dashes
myst_heading_anchors = 3
autodoc_member_order = "bysource"
autodoc_typehints = "none"  # the signature has them

ARGUMENT = re.compile(r"^([a-z_]\w*):\s+(\S.*)$")


def argument_list(
    app: object, what: str, name: str, obj: object, opts: object, lines: list[str]
) -> None:
    """Our docstrings list arguments as `name: what it is`: make a field list of those lines."""
    del app, what, name, obj, opts
    written: list[str] = []
    for line in lines:
        if found := ARGUMENT.match(line):
            if written and not written[-1].startswith((":", "    ")):
                written.append("")
            written.append(f":param {found[1]}: {found[2]}")
        elif line.startswith(" ") and written and written[-1].startswith((":", "    ")):
            written.append("    " + line.strip())
        else:
            if line and written and written[-1].startswith((":", "    ")):
                written.append("")
            written.append(line)
    lines[:] = written


def setup(app) -> None:  # noqa: ANN001
    app.connect("autodoc-process-docstring", argument_list)
