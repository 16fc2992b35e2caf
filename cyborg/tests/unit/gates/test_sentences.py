# SPDX-License-Identifier: Apache-2.0
"""The gate on sentences fires where people read, and nowhere else."""

from __future__ import annotations

import pathlib

import pytest

GATE = "sentences.py"
LONG = "word " * 41


@pytest.mark.parametrize(
    ("path", "text", "why"),
    [
        ("cyborg/conf/a.py", '"""Good. What is left."""', "begins without its subject"),
        ("cyborg/agent/a.py", 'LOG.info("Those of host %s are gone", host)', "without its subject"),
        ("cyborg/agent/a.py", f'HELP = "{LONG}"', "41 words"),
        ("cyborg/osc/a.py", '"""Show what is set and is new."""', "what is … is"),
        ("cyborg/db/a.py", 'TEXT = "Ask whoever made it."', "read twice"),
        ("cyborg_dashboard/a.py", 'HELP = "What is set stays."', "without its subject"),
        ("README.rst", "Title\n=====\n\nGood.\nWho reads is sure.\n", "without its subject"),
        ("doc/source/user/a.rst", f"* {LONG}\n", "41 words"),
        ("api-ref/source/a.inc", "Good; those are not.\n", None),
        ("doc/source/user/a.rst", "What it is\n==========\n\nIs it? What is it?\n", None),
        ("doc/source/user/a.rst", f"::\n\n    {LONG}\n\n.. note:: {LONG}\n", None),
        ("cyborg/agent/a.py", '"""What is left to authors."""', None),
        ("cyborg/conf/a.py", 'def _own() -> None:\n    """What is left."""', None),
        ("cyborg/tests/a.py", '"""What is left."""', None),
    ],
)
def test_it_tells_what_has_to_be_read_twice(gate, tmp_path, path, text, why):
    page: pathlib.Path = tmp_path / path
    page.parent.mkdir(parents=True, exist_ok=True)
    page.write_text(text)
    code, said = gate(tmp_path)
    assert code == (why is not None), said
    assert (why or "") in said
    assert said.count("\n") == code
