# SPDX-License-Identifier: Apache-2.0
"""Sphinx configuration of the documentation."""

import pathlib
import sys

_DOC = pathlib.Path(__file__).resolve().parent.parent
# Cyborg itself, whose rules of policy are shown, and our own directives.
sys.path[:0] = [str(_DOC.parent), str(_DOC / "ext")]

project = "Cyborg"
copyright = "OpenStack contributors"
html_theme = "alabaster"
extensions = ["config_options", "policy_rules"]
