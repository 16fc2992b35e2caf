# SPDX-License-Identifier: Apache-2.0
"""The name of a host's root provider, where it is not configured."""

from __future__ import annotations

import socket

import pytest
import sqlalchemy as sa
from oslo_config import cfg

from cyborg import db
from cyborg.agent import node_name
from cyborg.db import models
from cyborg.inventory.apply import provider_uuid
from cyborg.tests import hosts
from cyborg.tests.placement_server import PlacementServer

A = provider_uuid("host-1_a")


@pytest.mark.parametrize(
    ("configured", "full", "name"),
    [
        (None, "host-1.example", "host-1.example"),
        (None, "host-1", "host-1"),
        (None, "localhost", "host-1"),
        (None, "host-10.example", "host-1"),
        ("node", "host-1.example", "node"),
    ],
)
def test_the_fully_qualified_name_comes_first(
    conf: cfg.ConfigOpts,
    monkeypatch: pytest.MonkeyPatch,
    configured: str | None,
    full: str,
    name: str,
) -> None:
    conf.set_override("resource_provider_name", configured, group="agent")
    monkeypatch.setattr(socket, "getfqdn", lambda: full)
    assert node_name.of(conf) == name


def node() -> str | None:
    with db.reader() as session:
        return session.scalar(sa.select(models.Host.node))


@pytest.mark.usefixtures("database")
@pytest.mark.parametrize("root", ["host-1", "host-1.example"])
def test_the_root_may_have_either_name(placement: PlacementServer, root: str) -> None:
    placement.make_provider(root)
    for _ in range(2):
        # As an agent does whose machine is host-1.example.
        hosts.apply(hosts.card("a"))
        placement.sync()
        assert node() == root
        assert placement.below(root).keys() == {A}
        hosts.apply()
        placement.sync()
