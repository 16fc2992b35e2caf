# SPDX-License-Identifier: Apache-2.0
"""Fixtures of the tests of consumers."""

from __future__ import annotations

import pytest

from cyborg import rpc
from cyborg.tests import hosts
from cyborg.tests.consumers import profile
from cyborg.tests.service import Site
from cyborg.tests.shared_card import SharedCard


@pytest.fixture
def rack(site: Site) -> Site:
    """A host with two cards of four and two accelerators."""
    profile(site)
    site.start_with(hosts.card("a"), hosts.card("b", range(4, 6), traits=("CUSTOM_B",)))
    return site


@pytest.fixture
def cloud(database, conf, placement, enforcer, monkeypatch) -> SharedCard:
    placement.make_provider(hosts.ROOT)
    found = SharedCard(conf, enforcer, placement)
    found.report()
    monkeypatch.setattr(rpc, "run_host_step", found.run)
    return found
