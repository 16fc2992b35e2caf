# SPDX-License-Identifier: Apache-2.0
"""What others do to our providers, and to theirs beside them, in the real Placement."""

from __future__ import annotations

import pytest
from oslo_config import cfg

from cyborg import db, work
from cyborg.db import models
from cyborg.inventory.apply import provider_uuid
from cyborg.placement import sync
from cyborg.tests import hosts
from cyborg.tests.placement_server import PlacementServer

pytestmark = pytest.mark.usefixtures("database")

NAME = "host-1_a"
A = provider_uuid(NAME)
CONSUMER = "11111111-2222-3333-4444-555555555555"
LIST = "GET /resource_providers"


def test_a_full_read_finds_what_the_generation_hides(
    placement: PlacementServer, root: str, card: str
) -> None:
    before = placement.generation(A)
    placement.call("DELETE", f"/resource_providers/{A}")
    body = {"name": NAME, "uuid": A, "parent_provider_uuid": root}
    placement.call("POST", "/resource_providers", body)
    while placement.generation(A) < before:
        placement.set_inventories(A)
    placement.sync()
    assert placement.offered(A) == {}
    placement.sync(full=True)
    placement.assert_right("host-1")


def test_what_others_put_on_our_provider_stays(placement: PlacementServer, card: str) -> None:
    placement.set_traits(A, "CUSTOM_FAKE_DEVICE", "CUSTOM_OPERATOR", "OWNER_NOVA")
    placement.set_inventories(A, FPGA={"total": 4}, VGPU={"total": 7})
    hosts.apply(hosts.card("a", range(3), traits=("CUSTOM_NEW",), resource_class="CUSTOM_NEW"))
    for _ in range(2):
        placement.sync()
    found = placement.below(hosts.ROOT)[A]
    assert found.traits == {"CUSTOM_NEW", "CUSTOM_OPERATOR", "OWNER_NOVA"}
    assert placement.offered(A) == {"CUSTOM_NEW": (3, 0), "VGPU": (7, 0)}
    hosts.apply(hosts.card("a", range(2)))
    placement.sync()
    assert placement.calls[-3:] == [
        LIST,
        f"PUT /resource_providers/{A}/traits",
        f"PUT /resource_providers/{A}/inventories",
    ]
    assert "CUSTOM_OPERATOR" in placement.below(hosts.ROOT)[A].traits
    assert placement.offered(A) == {"FPGA": (2, 0), "VGPU": (7, 0)}


def test_what_we_took_away_and_an_operator_put_there_is_his(
    placement: PlacementServer, card: str
) -> None:
    hosts.apply(hosts.card(traits=()))
    placement.sync()
    placement.set_traits(A, "CUSTOM_FAKE_DEVICE")
    hosts.apply(hosts.card("a", range(3), traits=()))
    placement.sync()
    assert placement.below(hosts.ROOT)[A].traits == {"CUSTOM_FAKE_DEVICE"}


def test_providers_of_others_are_never_written(placement: PlacementServer, root: str) -> None:
    novas = placement.make_provider(f"{hosts.ROOT}_0000:81:00.0", root)
    placement.set_inventories(novas, VGPU={"total": 3})
    before = placement.generation(root), placement.below(hosts.ROOT)[novas]
    hosts.apply(hosts.card())
    placement.sync()
    hosts.apply()
    placement.sync(full=True)
    assert (placement.generation(root), placement.below(hosts.ROOT)[novas]) == before
    assert list(placement.below(hosts.ROOT)) == [novas]


def test_a_change_in_between_is_read_again(placement: PlacementServer, card: str) -> None:
    changes = iter(range(1, 3))

    def allocate_meanwhile(method: str, path: str) -> None:
        if method == "PUT" and (number := next(changes, None)):
            placement.allocate(CONSUMER[:-1] + str(number), A, FPGA=1)

    placement.before = allocate_meanwhile
    hosts.apply(hosts.card("a", range(3)))
    placement.sync()
    placement.assert_right("host-1")
    assert placement.calls.count(f"PUT /resource_providers/{A}/inventories") == 3


def test_endless_changes_are_given_up_for_now(placement: PlacementServer, card: str) -> None:
    def change_always(method: str, path: str) -> None:
        if method == "PUT":
            placement.set_inventories(A, FPGA={"total": 9})

    placement.before = change_always
    hosts.apply(hosts.card("a", range(3)))
    with pytest.raises(work.TryLater, match="kept changing"):
        placement.sync()
    placement.before = None
    placement.sync()
    placement.assert_right("host-1")


def test_a_provider_deleted_in_between_is_made_anew(placement: PlacementServer, card: str) -> None:
    def delete_meanwhile(method: str, path: str) -> None:
        if method == "PUT":
            placement.before = None
            placement.call("DELETE", f"/resource_providers/{A}")

    placement.before = delete_meanwhile
    hosts.apply(hosts.card("a", range(3)))
    placement.sync()
    placement.assert_right("host-1")


def test_an_existing_provider_is_adopted_and_moved_below_its_root(
    placement: PlacementServer, root: str
) -> None:
    other = placement.make_provider("another root")
    body = {"name": "a former name", "uuid": A, "parent_provider_uuid": other}
    placement.call("POST", "/resource_providers", body)
    placement.set_inventories(A, FPGA={"total": 1})
    hosts.apply(hosts.card())
    placement.sync()
    placement.assert_right("host-1")


def test_the_providers_follow_when_the_host_gets_another_root(
    placement: PlacementServer, root: str, card: str
) -> None:
    placement.make_provider("new-root")
    with db.writer() as session:
        db.update(session, models.Host, node="new-root")
    placement.allocate(CONSUMER, A, FPGA=1)
    placement.sync()
    assert placement.below(hosts.ROOT) == {}
    placement.assert_right("host-1")


def test_the_provider_follows_when_another_host_has_the_deployable(
    placement: PlacementServer, conf: cfg.ConfigOpts, card: str
) -> None:
    placement.make_provider("host-1_2.example")
    hosts.apply(hosts.card("2_a"))
    placement.sync()
    placement.allocate(CONSUMER, provider_uuid("host-1_2_a"), FPGA=1)
    hosts.apply(host="host-1")
    hosts.apply(hosts.card("2_a"), host="host-1_2")
    sync.sync_host(conf, "host-1_2", lambda: None)
    placement.sync()
    assert placement.below(hosts.ROOT) == {}
    placement.assert_right("host-1_2")


def test_a_gone_device_is_withdrawn_below_a_former_root_too(
    placement: PlacementServer, root: str, card: str
) -> None:
    placement.allocate(CONSUMER, A, FPGA=1)
    with db.writer() as session:
        db.update(session, models.Host, node="new-root")
    hosts.apply()
    with db.writer() as session:
        db.update(session, models.Host, node="new-root")
    with pytest.raises(work.TryLater, match="withdrawn"):
        placement.sync()
    assert placement.offered(A) == {"FPGA": (4, 4)}
    placement.release(CONSUMER)
    placement.sync()
    assert placement.below(hosts.ROOT) == {}


def test_a_provider_name_that_another_has_is_a_sentence(
    placement: PlacementServer, root: str
) -> None:
    placement.make_provider(NAME)
    hosts.apply(hosts.card("a"), hosts.card("b"))
    with pytest.raises(work.TryLater, match=f"Provider {NAME}: another provider, which Cyborg"):
        placement.sync()
    assert [provider.name for provider in placement.below(hosts.ROOT).values()] == ["host-1_b"]


def test_a_custom_name_that_an_operator_removed_is_made_again(
    placement: PlacementServer, card: str
) -> None:
    hosts.apply(hosts.card("a", traits=("CUSTOM_X",)))
    placement.sync()
    placement.call("DELETE", "/traits/CUSTOM_FAKE_DEVICE")
    hosts.apply(hosts.card())
    with pytest.raises(work.TryLater, match="No such trait CUSTOM_FAKE_DEVICE"):
        placement.sync()
    placement.sync()
    placement.assert_right("host-1")
