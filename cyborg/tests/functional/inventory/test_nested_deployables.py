# SPDX-License-Identifier: Apache-2.0
"""A card whose regions are deployables of their own: from the report to the real Placement."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping

import pytest
import sqlalchemy as sa
from oslo_config import cfg

from cyborg import db, work
from cyborg.audits import consistency
from cyborg.db import models
from cyborg.drivers import base
from cyborg.hosts import removal
from cyborg.inventory import query
from cyborg.inventory.apply import provider_uuid
from cyborg.placement import compare
from cyborg.tests import hosts
from cyborg.tests.counted_statements import SqlCounter
from cyborg.tests.placement_server import PlacementServer

CountSql = Callable[[], contextlib.AbstractContextManager[SqlCounter]]

pytestmark = pytest.mark.usefixtures("database")

CARD, FIRST, SECOND = "host-1_card", "host-1_region0", "host-1_region1"
NESTED = {CARD: None, FIRST: CARD, SECOND: CARD}
FLAT = {FIRST: None, SECOND: None}
CONSUMER = "11111111-2222-3333-4444-555555555555"


def card(parents: Mapping[str, str | None], place: str = "card") -> base.Device:
    """A device with a deployable for each name; regions have two handles, others none."""
    parts = []
    for name, parent in parents.items():
        first = 10 * int(name[-1]) if name[-1].isdigit() else 0
        handles = range(first, first + 2) if "region" in name else ()
        parts.append(hosts.deployable(name, handles, parent=parent))
    return hosts.device(place, *parts)


def rows() -> dict[str, tuple[str | None, str | None, bool]]:
    """By name each deployable's parent, its root, and whether it is missing."""
    found = hosts.deployables()
    names: dict[int | None, str] = {row.id: row.name for row in found}
    return {
        row.name: (names.get(row.parent_id), names.get(row.root_id), row.missing) for row in found
    }


def parents(placement: PlacementServer) -> dict[str, str | None]:
    """By name the parent of each provider; None is the host's root."""
    found = placement.below(hosts.ROOT)
    return {
        each.name: found[each.parent_uuid].name if each.parent_uuid in found else None
        for each in found.values()
    }


def hold(name: str) -> None:
    """Let an ARQ hold the first handle of the deployable."""
    handle, deployable = models.AttachHandle, models.Deployable
    first = sa.select(handle.id).join(deployable).where(deployable.name == name).limit(1)
    with db.writer() as session:
        session.add(
            models.Arq(
                project_id="p",
                state=models.BOUND,
                device_profile_name="dp",
                group={},
                hostname=hosts.ROOT,
                device_rp_uuid=provider_uuid(name),
                consumer_uuid=CONSUMER,
                attach_handle_id=session.scalar(first),
            )
        )


def let_go() -> None:
    with db.writer() as session:
        db.delete(session, models.Arq)


@pytest.mark.every_database
def test_a_region_is_below_its_card(placement: PlacementServer, root: str) -> None:
    hosts.apply(card(NESTED))
    placement.sync()

    assert rows() == {
        CARD: (None, None, False),
        FIRST: (CARD, CARD, False),
        SECOND: (CARD, CARD, False),
    }
    assert parents(placement) == NESTED
    assert placement.offered(provider_uuid(CARD)) == {}
    assert placement.offered(provider_uuid(FIRST)) == {"FPGA": (2, 0)}
    assert placement.below(hosts.ROOT)[provider_uuid(CARD)].traits == {"CUSTOM_FAKE_DEVICE"}
    assert placement.candidates("FPGA") == {provider_uuid(FIRST), provider_uuid(SECOND)}
    placement.assert_right("host-1")


def test_below_a_region_there_may_be_more(placement: PlacementServer, root: str) -> None:
    deep = {"host-1_region2": SECOND, SECOND: FIRST, FIRST: CARD, CARD: None}
    hosts.apply(card(deep))
    placement.sync()

    assert {name: top for name, (_, top, _) in rows().items()} == {
        "host-1_region2": CARD,
        SECOND: CARD,
        FIRST: CARD,
        CARD: None,
    }
    assert parents(placement) == deep
    hosts.apply()
    placement.sync()
    assert placement.below(hosts.ROOT) == {}


@pytest.mark.parametrize(
    ("before", "after"),
    [
        (FLAT, NESTED),
        (NESTED, FLAT),
        (FLAT, {FIRST: SECOND, SECOND: None}),
        ({FIRST: SECOND, SECOND: None}, {FIRST: None, SECOND: FIRST}),
    ],
)
def test_regions_with_allocations_move(
    placement: PlacementServer,
    root: str,
    before: dict[str, str | None],
    after: dict[str, str | None],
) -> None:
    hosts.apply(card(before))
    placement.sync()
    hold(FIRST)
    placement.allocate(CONSUMER, provider_uuid(FIRST), FPGA=1)
    uuids = {row.name: row.uuid for row in hosts.deployables()}

    hosts.apply(card(after))
    placement.sync()

    assert parents(placement) == after
    kept = {row.name: row.uuid for row in hosts.deployables()}
    assert [kept[name] for name in FLAT] == [uuids[name] for name in FLAT]
    held = placement.call("GET", f"/allocations/{CONSUMER}")["allocations"]
    assert held.keys() == {provider_uuid(FIRST)}
    assert placement.offered(provider_uuid(FIRST)) == {"FPGA": (2, 0)}
    placement.assert_right("host-1")


@pytest.mark.every_database
def test_a_card_stays_as_long_as_a_region_is_held(placement: PlacementServer, root: str) -> None:
    hosts.apply(card(NESTED))
    placement.sync()
    hold(FIRST)
    placement.allocate(CONSUMER, provider_uuid(FIRST), FPGA=1)

    hosts.apply()
    placement.sync()

    assert rows() == {CARD: (None, None, True), FIRST: (CARD, CARD, True)}
    assert parents(placement) == {CARD: None, FIRST: CARD}
    assert placement.offered(provider_uuid(FIRST)) == {"FPGA": (1, 1)}
    assert consistency.violations() == []
    hosts.apply(card(NESTED))
    placement.sync()
    assert parents(placement) == NESTED
    assert [missing for _, _, missing in rows().values()] == [False] * 3
    hosts.apply()
    let_go()
    hosts.apply(errors={"another_driver": "makes this report a changed one"})
    with pytest.raises(work.TryLater, match="withdrawn until"):
        placement.sync()
    placement.release(CONSUMER)
    placement.sync()
    assert rows() == {}
    assert placement.below(hosts.ROOT) == {}


def test_a_card_that_is_reported_no_more_leaves_its_regions_to_the_host(
    placement: PlacementServer, root: str
) -> None:
    hosts.apply(card(NESTED))
    placement.sync()
    hold(FIRST)

    hosts.apply(card({SECOND: None}))
    placement.sync()

    assert rows() == {
        CARD: (None, None, True),
        FIRST: (CARD, CARD, True),
        SECOND: (None, None, False),
    }
    assert parents(placement) == {CARD: None, FIRST: CARD, SECOND: None}
    placement.assert_right("host-1")


@pytest.mark.every_database
def test_a_device_is_removed_with_all_its_levels(placement: PlacementServer, root: str) -> None:
    hosts.apply(card({"host-1_region2": FIRST, **NESTED}))
    hold(FIRST)
    hosts.apply()
    placement.sync()
    (device,) = {row.device.uuid for row in hosts.deployables()}

    given_up = removal.remove_device(device, force=True)
    placement.sync()

    assert len(given_up.resource_providers) == 2
    assert query.list_devices() == []
    assert placement.below(hosts.ROOT) == {}


def test_a_card_whose_name_another_host_has_is_left_out(root: str) -> None:
    hosts.apply(hosts.device("x", hosts.deployable("host-2_x", [50])), host="host-2")
    with db.writer() as session:
        db.update(session, models.Deployable, name=CARD)
    hosts.apply(card(FLAT))
    hosts.apply(card(NESTED))

    found = rows()
    assert [found[name] for name in FLAT] == [(None, None, False)] * 2


def test_statements_do_not_grow_with_the_regions(
    placement: PlacementServer, root: str, count_sql: CountSql
) -> None:
    counts = []
    for many in (2, 10):
        names = {f"host-1_region{number}": CARD for number in range(many)}
        hosts.apply()
        hosts.apply(card({CARD: None}))
        with count_sql() as counter:
            hosts.apply(card({CARD: None, **names}))
            hosts.apply(card({CARD: None, **dict.fromkeys(names)}))
            hosts.apply()
            placement.sync_once()
        counts.append(len(counter.matching("SELECT")))
    assert counts[0] == counts[1]


@pytest.mark.makes_up_rows
def test_what_is_in_the_wrong_place_is_found(
    placement: PlacementServer, root: str, conf: cfg.ConfigOpts
) -> None:
    hosts.apply(card(NESTED))
    placement.sync()
    body = {"name": FIRST, "parent_provider_uuid": root}
    placement.call("PUT", f"/resource_providers/{provider_uuid(FIRST)}", body)

    (sentence,) = compare.compare_host(conf, "host-1").differences
    assert sentence.endswith(f"should be called {FIRST}, below {CARD}.")
    placement.sync()
    assert parents(placement) == NESTED
    with db.writer() as session:
        db.update(session, models.Deployable, models.Deployable.name == FIRST, root_id=None)
    assert [each.sentence for each in consistency.violations()] == [
        f"Deployable {FIRST} has a parent that does not fit its device or its root."
    ]
