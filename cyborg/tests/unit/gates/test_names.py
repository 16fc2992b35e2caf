# SPDX-License-Identifier: Apache-2.0
"""The gate on names of classes fires: one name, one class."""

from __future__ import annotations

import pathlib

import pytest

GATE = "names.py"
#: Classes that the gate knows to be there twice.
TWICE = ("AttachHandle", "ControlPath", "Deployable", "Device", "Host")


@pytest.fixture
def product(tmp_path: pathlib.Path) -> pathlib.Path:
    root = tmp_path / "product"
    for room in ("db", "drivers"):
        write(root, f"{room}/rows.py", *TWICE)
    return root


def write(root: pathlib.Path, path: str, *names: str) -> None:
    (root / path).parent.mkdir(parents=True, exist_ok=True)
    (root / path).write_text("".join(f"class {name}:\n    pass\n" for name in names))


@pytest.mark.parametrize("second", ["Refused", "_Refused"])
def test_two_classes_of_one_name_are_told(gate, product, second):
    write(product, "agent/a.py", "Refused")
    write(product, "rpc/b.py", "Other", second)
    first = f"{product}/agent/a.py:1 is named Refused too"
    code, said = gate(product, product)
    assert (code, said) == (1, f"{product}/rpc/b.py:3: {first}; call each by what it is\n")


@pytest.mark.parametrize("free", ["tests/unit/a.py", "osc/a.py", "api/types/a.py"])
def test_commands_types_of_the_api_and_tests_are_free(gate, product, free):
    write(product, "work.py", "List", "Lists")
    write(product, free, "List")
    assert gate(product, product) == (0, "")


@pytest.mark.parametrize("sentence", ["Raise {} if it does.", "It does.\n\n    :raises {}: so"])
def test_an_error_of_a_docstring_exists(gate, product, sentence):
    for name, code in (("Gone", 1), ("Sender", 0), ("ValueError", 0)):
        write(product, "rpc/a.py", "Sender")
        (product / "rpc/b.py").write_text(f'def f():\n    """{sentence.format(name)}"""\n')
        ended, said = gate(product, product)
        assert ended == code
        assert ("Gone" in said) == bool(code)


def test_what_need_not_be_allowed_is_told(gate, product):
    write(product, "db/rows.py", *TWICE[1:])
    assert gate(product, product) == (
        1, "names.py: AttachHandle is one class, or none; take it off TWICE\n"
    )
