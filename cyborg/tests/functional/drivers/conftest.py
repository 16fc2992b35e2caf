# SPDX-License-Identifier: Apache-2.0
"""Fixtures of the tests of drivers."""

from __future__ import annotations

import pathlib

import pytest


@pytest.fixture
def log(tmp_path: pathlib.Path) -> str:
    path = tmp_path / "kmsg"
    path.write_text("6,1,100,-;Linux version 6.12\n")
    return str(path)


@pytest.fixture
def kept(tmp_path: pathlib.Path) -> str:
    return f"[DEFAULT]\nstate_path = {tmp_path}\n"
