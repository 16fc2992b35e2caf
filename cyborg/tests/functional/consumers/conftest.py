# SPDX-License-Identifier: Apache-2.0
"""Fixtures of the tests of consumers."""

from __future__ import annotations

import pytest

from cyborg.tests import hosts
from cyborg.tests.consumers import profile
from cyborg.tests.service import Site


@pytest.fixture
def rack(site: Site) -> Site:
    """A host with two cards of four and two accelerators."""
    profile(site)
    site.start_with(hosts.card("a"), hosts.card("b", range(4, 6), traits=("CUSTOM_B",)))
    return site
