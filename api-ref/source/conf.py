# SPDX-License-Identifier: Apache-2.0
"""Sphinx configuration of the API reference."""

from pathlib import Path

from sphinx.application import Sphinx

extensions = ["os_api_ref"]
project = "Accelerator API Reference"
copyright = "OpenStack contributors"
html_theme = "alabaster"


def append_resources(_app: Sphinx, page: str, source: list[str]) -> None:
    """Add each resource's part that the index does not place itself."""
    if page != "index":
        return
    for path in sorted(Path(__file__).parent.glob("*.inc")):
        if path.name not in source[0]:
            source[0] += f"\n.. include:: {path.name}\n"


def setup(app: Sphinx) -> None:
    """Called by Sphinx."""
    app.connect("source-read", append_resources)
