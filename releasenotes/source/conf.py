# SPDX-License-Identifier: Apache-2.0
"""Sphinx configuration of the release notes."""

extensions = ["reno.sphinxext"]
project = "Cyborg Release Notes"
copyright = "OpenStack contributors"
html_theme = "alabaster"
