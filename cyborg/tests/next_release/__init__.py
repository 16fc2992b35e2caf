# SPDX-License-Identifier: Apache-2.0
"""Revisions that only tests have: what releases after this one might do to its schema."""

import pathlib

#: For ``cyborg.db.schema.FURTHER``.
FOLDER = str(pathlib.Path(__file__).parent)
#: What the next release adds, and what the one after that takes away.
EXPAND, CONTRACT = "expand", "contract"
