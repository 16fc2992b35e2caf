# SPDX-License-Identifier: Apache-2.0
"""Fixtures of the tests of messages."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from cyborg.tests import servers


@pytest.fixture
def vhost() -> Iterator[str]:
    """The broker's account of conductors."""
    with servers.new_vhost() as url:
        yield url
