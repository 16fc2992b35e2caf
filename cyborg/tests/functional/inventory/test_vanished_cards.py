# SPDX-License-Identifier: Apache-2.0
"""A card that vanishes stays as missing for a while; one in the slot of another needs a look."""

from __future__ import annotations

import json
import logging

import pytest
import sqlalchemy as sa
from oslo_config import cfg

from cyborg import db
from cyborg.conductor import endpoint, gauges
from cyborg.db import models
from cyborg.drivers import base
from cyborg.hosts import flags
from cyborg.inventory import missing
from cyborg.inventory import report as inventory_report
from cyborg.tests import hosts, listening, moving
from cyborg.tests.logs import ours_of
from cyborg.tests.moving import card, rows
from cyborg.tests.placement_server import PlacementServer
from cyborg.tests.service import until

pytestmark = [pytest.mark.usefixtures("database")]

every_database = pytest.mark.every_database

KEEP = 3600
#: Another vendor's card is where ours was; other cards of ours are elsewhere.
BUS = ("0000:41 8086", "0000:44 1002")


def report(
    *devices: base.Device, present: tuple[str, ...] = BUS, keep: int = KEEP, **more: object
) -> None:
    said = hosts.report(*devices, present=present, **more)  # type: ignore[arg-type]
    inventory_report.apply_report(said, keep_vanished=keep)


def uuid() -> str:
    with db.reader() as session:
        return session.scalars(sa.select(models.Device.uuid)).one()


def let_pass(seconds: int) -> None:
    with db.writer() as session:
        later = models.Device.kept_until_ms - seconds * 1000
        db.update(session, models.Device, kept_until_ms=later)


@every_database
def test_an_idle_card_that_vanishes_stays_as_missing(
    conf: cfg.ConfigOpts, caplog: pytest.LogCaptureFixture
) -> None:
    report(card("41", "S1"))
    before = uuid()
    with listening.ear(conf, "memory") as ear:
        report()
        listening.send(conf)
        until(lambda: ear.heard)
    assert [(one.priority, one.event) for one in ear.heard] == [("WARN", "device.missing")]
    assert (uuid(), rows()["S1"].missing) == (before, True)
    told = [each.message for each in ours_of(caplog) if each.levelno == logging.WARNING]
    assert [before in text and "vanished" in text for text in told] == [True]

    # Reports go on, and nothing changes.
    report()
    missing.forget(conf)
    assert uuid() == before

    report(card("41", "S1"))
    assert (uuid(), rows()["S1"].missing) == (before, False)
    let_pass(KEEP)
    missing.forget(conf)
    assert uuid() == before

    report()
    let_pass(KEEP + 1)
    missing.forget(conf)
    assert rows() == {}


@every_database
def test_a_vanished_card_that_a_guest_has_is_forgotten_when_that_goes(
    conf: cfg.ConfigOpts,
) -> None:
    report(card("41", "S1"))
    moving.hold("S1")
    report()
    let_pass(KEEP + 1)
    missing.forget(conf)
    assert set(rows()) == {"S1"}
    with db.writer() as session:
        db.delete(session, models.Arq, sa.true())
    report(card("44", "S2"))
    assert set(rows()) == {"S2"}


@pytest.mark.parametrize(
    "how",
    [
        {"keep": 0},
        # Its bus has a function of its vendor: a list does not have it any more.
        {"present": ("0000:41 1002",)},
        # Its driver is not enabled any more.
        {"by_driver": {"other_driver": []}},
        # Nobody has looked at the bus.
        {"present": ()},
    ],
    ids=["option", "list", "driver", "no bus"],
)
def test_a_card_that_is_configured_away_goes_at_once(how: dict[str, object]) -> None:
    report(card("41", "S1"))
    report(**how)  # type: ignore[arg-type]
    assert rows() == {}


def test_a_card_at_whose_address_another_is_stays_as_missing() -> None:
    report(card("41", "S1"))
    report(card("41", "S9"), present=("0000:41 1002",))
    assert {serial: row.missing for serial, row in rows().items()} == {"S1": True, "S9": False}


def test_a_vanished_card_offers_nothing(placement: PlacementServer, root: str) -> None:
    report(card("41", "S1"))
    placement.sync()
    report()
    placement.sync()
    assert placement.offered(rows()["S1"].provider) == {}
    with db.reader() as session:
        found = {labels: count for name, labels, count in gauges._devices(session)}
    assert found["GPU", "missing"] == 1

    report(card("41", "S1"))
    placement.sync()
    assert placement.offered(rows()["S1"].provider) == {"PGPU": (1, 0)}


@every_database
@pytest.mark.parametrize(
    ("before", "after", "is_disabled"),
    [
        ([card("41", None)], [card("41", None, board="0c99")], True),
        ([card("41", None)], [card("41", None, "73a3")], True),
        ([card("41", "S1")], [card("41", None, "73a3")], True),
        ([card("41", "S1")], [card("41", None, board="0c35")], True),
        ([card("41", "S1")], [card("41", "S2", "73a3")], False),
        ([card("41", "S1")], [card("41", "S1", board="0c99")], False),
        ([card("41", "S1", type="NVME")], [card("41", "S2", type="NVME")], True),
        ([card("41", "S1", type="NVME")], [card("42", "S2", type="NVME")], False),
        ([card("3b", None), card("3c", None)], [card("3c", None), card("3d", None)], True),
    ],
    ids=[
        *("board", "product", "no serial", "no serial, board", "serial", "same", "disk", "slot"),
        "a shift by one",
    ],
)
def test_a_card_that_may_be_another_waits_for_a_look(
    before: list[base.Device], after: list[base.Device], *, is_disabled: bool
) -> None:
    hosts.apply(*before)
    hosts.apply(*after)
    with db.reader() as session:
        devices = session.scalars(sa.select(models.Device)).all()
    assert len(devices) == len(after)
    for found in devices:
        assert found.status == ("maintaining" if is_disabled else "enabled")
        assert bool(found.disabled_reason) is is_disabled
        flags.enable_device(found.uuid)

    hosts.apply(*after)
    with db.reader() as session:
        assert set(session.scalars(sa.select(models.Device.status))) == {"enabled"}


def test_the_option_is_what_a_conductor_goes_by(conf: cfg.ConfigOpts) -> None:
    conf.set_override("keep_vanished", 0, group="conductor")
    conductor = endpoint.ConductorEndpoint(conf, lambda: None)
    for devices in ([card("41", "S1")], [], []):
        said = hosts.report(*devices, present=BUS).to_wire()
        conductor.report({}, json.loads(json.dumps(said)))
    assert rows() == {}
