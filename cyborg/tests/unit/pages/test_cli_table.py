# SPDX-License-Identifier: Apache-2.0
"""What the commands know of the API is what the API is."""

from __future__ import annotations

import json
import pathlib
import runpy

WRITER = pathlib.Path(__file__).parents[4] / "tools/cli_table.py"


def test_the_table_of_lists_is_up_to_date() -> None:
    written = runpy.run_path(str(WRITER))
    assert json.loads(written["TABLE"].read_text()) == written["table"]()
