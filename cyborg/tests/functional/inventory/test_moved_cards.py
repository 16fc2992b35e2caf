# SPDX-License-Identifier: Apache-2.0
"""A card is known by its serial, wherever firmware puts it; its guests never get another one."""

from __future__ import annotations

import itertools
import json

import pytest
import sqlalchemy as sa
from oslo_config import cfg

from cyborg import db
from cyborg.arqs import service as arqs
from cyborg.db import models
from cyborg.drivers import base
from cyborg.inventory import report as inventory_report
from cyborg.inventory.apply import provider_uuid
from cyborg.policy import context
from cyborg.tests import hosts, listening
from cyborg.tests.moving import card, hold, place, rows
from cyborg.tests.placement_server import PlacementServer
from cyborg.tests.service import until

pytestmark = pytest.mark.usefixtures("database")

every_database = pytest.mark.every_database


def shown(ctx: context.RequestContext) -> dict[str, dict[str, str]]:
    """What Nova reads of the cards of each instance."""
    found = arqs.list_arqs(ctx)
    return {str(arq.consumer_uuid): json.loads(arq.attach_info or "{}") for arq in found}


@every_database
@pytest.mark.parametrize(
    ("now", "new"),
    [
        *((now, None) for now in itertools.permutations(("41", "42", "43"))),
        (("42", "43", "44"), None),
        # The last one is where nobody was, and the first one is new.
        (("42", "43", "44"), "41"),
        (("44", "41", "42"), None),
        (("41", "42", "44"), None),
    ],
)
def test_cards_change_places_and_stay_themselves(now: tuple[str, ...], new: str | None) -> None:
    serials = ("S1", "S2", "S3")
    before = ("41", "42", "43")
    hosts.apply(*map(card, before, serials))
    hold("S1")
    had = rows()

    hosts.apply(*([card(new, "S9", "73a3")] if new else ()), *map(card, now, serials))

    found = rows()
    if new:
        comer = found.pop("S9")
        assert comer.path == f"0000:{new}:00.0"
        assert comer.provider not in {row.provider for row in had.values()}
    assert found.keys() == set(serials)
    for serial, bus in zip(serials, now, strict=True):
        assert found[serial] == had[serial]._replace(
            name=f"host-1_0000:{bus}:00.0", path=f"0000:{bus}:00.0", info=place(bus)
        )


def test_providers_in_placement_follow_their_cards(placement: PlacementServer, root: str) -> None:
    serials = ("S1", "S2", "S3")
    hosts.apply(*map(card, ("41", "42", "43"), serials))
    placement.sync()
    guest = hold("S1")
    placement.allocate(guest, rows()["S1"].provider, PGPU=1)

    hosts.apply(*map(card, ("42", "43", "41"), serials), card("44", "S4"))
    placement.sync()

    below = placement.below(hosts.ROOT)
    assert {uuid: each.name for uuid, each in below.items()} == {
        each.provider: each.name for each in rows().values()
    }
    assert placement.find("host-1_0000:42:00.0") == provider_uuid("host-1_0000:41:00.0")
    placement.assert_right("host-1")


@pytest.mark.parametrize("comer", [("S9", "740f"), ("S9", "73a3"), (None, "73a3")])
@every_database
def test_another_card_at_the_address_of_a_guests_is_another_device(
    comer: tuple[str | None, str], ctx: context.RequestContext
) -> None:
    hosts.apply(card("41", "S1"))
    guest = hold("S1")

    hosts.apply(card("41", *comer))

    found = rows()
    assert set(found) == {"S1", comer[0]}
    assert (found["S1"].missing, found[comer[0]].missing) == (True, False)
    assert found["S1"].provider != found[comer[0]].provider
    assert found[comer[0]].name == "host-1_0000:41:00.0"
    # Nova finds no address, and so fails.
    assert shown(ctx)[guest] == {f"was_{key}": value for key, value in place("41").items()}

    hosts.apply(card("41", *comer), card("45", "S1"))

    assert not rows()["S1"].missing
    assert rows()["S1"].name == "host-1_0000:45:00.0"
    assert shown(ctx)[guest] == place("45")


def test_a_serial_that_several_cards_show_tells_nothing() -> None:
    hosts.apply(card("41", "SAME"), card("42", "SAME"))
    with db.reader() as session:
        before = set(session.scalars(sa.select(models.Device.uuid)))

    hosts.apply(card("42", "SAME"), card("41", "SAME"))

    with db.reader() as session:
        assert set(session.scalars(sa.select(models.Device.uuid))) == before


@pytest.mark.parametrize("junk", ["0000000000000000", "N/A", "Unknown", "ff-ff-ff-ff"])
def test_what_is_no_serial_is_taken_for_none(junk: str) -> None:
    hosts.apply(card("41", junk))
    assert set(rows()) == {None}


def test_a_serial_that_a_guest_hides_is_not_forgotten() -> None:
    """With vfio-pci the vendor's files are not there; the kernel may show the serial of PCI."""
    hosts.apply(card("41", "S1"), card("42", "S2"))
    of_pci = "00-80-ee-00-00-00-41-80"
    hosts.apply(card("41", None), card("42", of_pci))
    assert set(rows()) == {"S1", "S2"}

    hosts.apply(card("42", "S1"), card("41", "S2"))

    assert {each: rows()[each].path[5:7] for each in rows()} == {"S1": "42", "S2": "41"}


def test_a_card_does_not_come_to_where_nothing_is_known_now() -> None:
    """The driver of the other card fails, so that may still be where it was."""
    one, two = card("41", "S1"), card("42", "S2")
    hosts.apply(by_driver={"a": [one], "b": [two]})
    had = rows()

    hold("S1")
    hosts.apply(by_driver={"a": [card("42", "S1")]}, errors={"b": "It hangs."})
    assert rows()["S2"] == had["S2"]
    assert rows()["S1"].missing
    # Nobody takes what may be at its old place now for it.
    assert "bus" not in rows()["S1"].info

    hosts.apply(by_driver={"a": [card("42", "S1")], "b": [card("41", "S2")]})
    assert {each: rows()[each].path[5:7] for each in rows()} == {"S1": "42", "S2": "41"}


def test_that_a_card_has_moved_is_told(conf: cfg.ConfigOpts) -> None:
    with listening.ear(conf, "memory") as ear:
        hosts.apply(card("41", "S1"))
        hosts.apply(card("42", "S1"))
        listening.send(conf)
        until(lambda: len(ear.heard) == 2)
    assert {(one.priority, one.event) for one in ear.heard} == {
        ("INFO", "device.create.end"),
        ("WARN", "device.moved"),
    }


def test_one_card_after_the_other_is_replaced_in_a_slot() -> None:
    for serial in ("S1", "S2", "S3"):
        hosts.apply(card("41", serial))
        hold(serial)

    assert {each: rows()[each].missing for each in rows()} == {"S1": True, "S2": True, "S3": False}

    hosts.apply(card("41", "S1"), card("42", "S2"), card("43", "S3"))

    assert {each: rows()[each].path[5:7] for each in rows()} == {"S1": "41", "S2": "42", "S3": "43"}


def with_parts(bus: str, next_bus: str, serial: str) -> base.Device:
    """A card whose virtual functions are on the bus behind its own."""
    places = ({**place(next_bus), "function": str(number)} for number in range(2))
    handles = tuple(base.AttachHandle(attach_type="PCI", attach_info=each) for each in places)
    return card(bus, serial, attach_handles=handles, num_accelerators=2)


@pytest.mark.makes_up_rows
def test_parts_on_the_bus_behind_their_card_follow_it() -> None:
    hosts.apply(with_parts("41", "42", "S1"), with_parts("51", "52", "S2"))
    handle = models.AttachHandle
    with db.writer() as session:
        query = sa.select(handle).where(handle.attach_info.contains('"42"')).limit(1)
        held = session.scalars(query).one()
        arq = {"project_id": "p", "state": models.BOUND, "device_profile_name": "dp", "group": {}}
        session.add(models.Arq(**arq, attach_handle_id=held.id))
        uuid = held.uuid

    hosts.apply(with_parts("43", "44", "S1"), with_parts("41", "42", "S2"))

    with db.reader() as session:
        now = session.scalars(sa.select(handle).where(handle.uuid == uuid)).one()
        assert (json.loads(now.attach_info)["bus"], now.missing) == ("44", False)


def test_a_disk_that_shows_its_serial_late_is_looked_at_if_a_guest_has_it() -> None:
    hosts.apply(card("41", "S1", type="NVME"))
    for serial in (None, "S1"):
        shown = hosts.report(card("42", serial, type="NVME"), present=("0000:42 1002",))
        inventory_report.apply_report(shown, keep_vanished=1000)
        if serial is None:
            hold(None)

    assert rows()["S1"].status == models.MAINTAINING
