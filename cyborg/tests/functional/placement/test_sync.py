# SPDX-License-Identifier: Apache-2.0
"""One host's providers in the real Placement, made and kept as the database wants them."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Callable

import pytest
import sqlalchemy as sa
import webob
from oslo_config import cfg

from cyborg import db, liveness, work
from cyborg.db import models
from cyborg.drivers import trait_names
from cyborg.hosts import flags
from cyborg.inventory.apply import provider_uuid
from cyborg.placement import client, sync
from cyborg.placement.tree import Inventory
from cyborg.states import handle_states
from cyborg.tests import hosts, leaving
from cyborg.tests.counted_statements import SqlCounter
from cyborg.tests.passing_time import let_nova_forget
from cyborg.tests.placement_server import PlacementServer

CountSql = Callable[[], contextlib.AbstractContextManager[SqlCounter]]

pytestmark = pytest.mark.usefixtures("database")

NAME = "host-1_a"
A = provider_uuid(NAME)
CONSUMER = "11111111-2222-3333-4444-555555555555"
LIST = "GET /resource_providers"


def test_a_new_device_becomes_a_nested_provider(placement: PlacementServer, root: str) -> None:
    hosts.apply(hosts.card("a"), hosts.card("b", range(2), resource_class="CUSTOM_B", traits=()))
    placement.sync()
    below = placement.below(hosts.ROOT)
    b = below.pop(provider_uuid("host-1_b"))
    assert b.inventories == {"CUSTOM_B": Inventory(total=2, reserved=0, max_unit=2)}
    (a,) = below.values()
    assert (a.uuid, a.name, a.parent_uuid) == (A, NAME, root)
    assert a.inventories == {"FPGA": Inventory(total=4, reserved=0, max_unit=4)}
    assert a.traits == {"CUSTOM_FAKE_DEVICE"}
    placement.assert_right("host-1")


def test_placement_takes_every_trait_that_is_made_of_facts(
    placement: PlacementServer, root: str
) -> None:
    told: dict[str, str | int] = {
        "product": "A100 — PCIe/40GB" + "!x" * 300,
        "firmware": "_",
        "memory_mib": 40536,
    }
    names = {trait_names.legal(name) for name in ("HW_NIC_SRIOV", "HW_NIC_TELEPATHY", "4711")}
    traits = {*trait_names.of_facts({**told, "numa_node": 0}), *names}
    hosts.apply(hosts.card("a", traits=tuple(traits), attributes=told))
    placement.sync()
    (found,) = placement.below(hosts.ROOT).values()
    assert found.traits == traits
    assert {"HW_NIC_SRIOV", "CUSTOM_MEMORY_GIB_40", "CUSTOM_NUMA_NODE_0"} < found.traits
    assert len(found.traits) == 6


@pytest.mark.parametrize("by", ["nova", "cyborg"])
def test_the_root_is_waited_for_or_made_where_there_is_no_nova(
    placement: PlacementServer, conf: cfg.ConfigOpts, by: str
) -> None:
    hosts.apply(hosts.card())
    with pytest.raises(work.TryLater, match=r"no root provider host-1\.example yet"):
        placement.sync()
    if by == "nova":
        placement.make_provider(hosts.ROOT)
    else:
        conf.set_override("create_root_provider", True, group="placement")
    placement.sync()
    placement.assert_right("host-1")


def test_a_host_without_devices_needs_no_placement(
    placement: PlacementServer, conf: cfg.ConfigOpts
) -> None:
    hosts.apply()
    placement.sync()
    sync.sync_host(conf, "unknown", lambda: None)
    assert placement.calls == []


def test_only_what_changed_is_written(
    placement: PlacementServer, card: str, count_sql: CountSql
) -> None:
    with count_sql() as counter:
        placement.sync_once()
    assert placement.calls == [LIST]
    assert counter.matching("SELECT") == counter.statements
    assert len(counter.statements) <= 5

    placement.calls.clear()
    hosts.apply(hosts.card("a", range(3)), hosts.card("b"))
    placement.sync()
    b = provider_uuid("host-1_b")
    assert placement.calls == [
        LIST,
        *([f"PUT /resource_providers/{A}/inventories"] if b > A else []),
        "POST /resource_providers",
        f"PUT /resource_providers/{b}/traits",
        f"PUT /resource_providers/{b}/inventories",
        *([f"PUT /resource_providers/{A}/inventories"] if b < A else []),
    ]
    placement.assert_right("host-1")


@pytest.mark.parametrize("many", [2, 40])
def test_statements_do_not_grow_with_the_devices(
    placement: PlacementServer, root: str, count_sql: CountSql, many: int
) -> None:
    hosts.apply(*(hosts.card(str(number)) for number in range(many)))
    with count_sql() as counter:
        placement.sync_once()
    # Two are for the trait, which is recorded before it is made, and after.
    assert len(counter.statements) <= 9, counter.statements
    hosts.apply(
        *(hosts.card(str(number), range(3), traits=("CUSTOM_X",)) for number in range(many))
    )
    with count_sql() as counter:
        placement.sync_once()
    assert len(counter.statements) <= 9, counter.statements
    placement.assert_right("host-1")


def test_an_allocation_makes_one_provider_be_read_once(
    placement: PlacementServer, root: str
) -> None:
    hosts.apply(hosts.card("a"), hosts.card("b"))
    placement.sync()
    placement.allocate(CONSUMER, A, FPGA=1)
    placement.calls.clear()
    for _ in range(2):
        placement.sync()
    path = f"GET /resource_providers/{A}"
    assert placement.calls == [LIST, f"{path}/inventories", f"{path}/traits", LIST]


def test_a_disabled_device_is_reserved_whole_and_stays_so_whatever_is_reported(
    placement: PlacementServer, root: str
) -> None:
    names = [f"host-1_a{number}" for number in range(3)]

    def report(sizes: tuple[int, int, int]) -> None:
        parts = [
            hosts.deployable(name, range(10 * number, 10 * number + size))
            for number, (name, size) in enumerate(zip(names, sizes, strict=True))
        ]
        hosts.apply(hosts.device("a", *parts), hosts.card("b", range(40, 44)))
        placement.sync()

    def offers() -> dict[str, tuple[int, int, int]]:
        found = placement.below(hosts.ROOT).values()
        offered = {provider.name: provider.inventories["FPGA"] for provider in found}
        return {name: (inv.total, inv.reserved, inv.max_unit) for name, inv in offered.items()}

    report((4, 2, 1))
    (device,) = {found.device.uuid for found in hosts.deployables() if found.name in names}
    flags.disable_device(device)
    placement.sync()
    off = {"host-1_a0": (4, 4, 4), "host-1_a1": (2, 2, 2), "host-1_a2": (1, 1, 1)}
    other = {"host-1_b": (4, 0, 4)}
    assert offers() == off | other
    # The same again, and then one part has more.
    report((4, 2, 1))
    assert offers() == off | other
    report((4, 3, 1))
    assert offers() == off | other | {"host-1_a1": (3, 3, 3)}
    flags.enable_device(device)
    placement.sync()
    on = {"host-1_a0": (4, 0, 4), "host-1_a1": (3, 0, 3), "host-1_a2": (1, 0, 1)}
    assert offers() == on | other


def test_the_provider_of_a_device_that_vanishes_is_deleted_once_nova_has_forgotten_it(
    placement: PlacementServer, card: str
) -> None:
    """nova-compute asks for the allocations of each provider that it remembers."""
    hosts.apply()
    placement.sync()
    of_card = f"/resource_providers/{A}"
    assert placement.calls == [LIST, f"PUT {of_card}/inventories", f"PUT {of_card}"]
    placement.assert_right("host-1")
    placement.calls.clear()
    placement.sync()
    assert placement.calls == [LIST]
    assert placement.call("GET", f"{of_card}/allocations")["allocations"] == {}
    assert placement.offered(A) == {}
    let_nova_forget()
    # Placement says that it has deleted it, and keeps it.
    placement.before = lambda method, _: webob.Response(status=204) if method == "DELETE" else None
    with pytest.raises(client.PlacementError, match="yes to DELETE"):
        placement.sync()
    placement.obey()
    placement.calls.clear()
    placement.sync()
    assert placement.calls == [LIST, f"DELETE {of_card}", LIST]
    assert placement.find(A) is None
    assert not db.read_all(sa.select(models.ResourceProvider))


def test_a_device_that_comes_back_gets_its_provider_back(
    placement: PlacementServer, card: str
) -> None:
    before = placement.below(hosts.ROOT)
    placement.set_traits(A, *before[A].traits, "CUSTOM_OF_OPERATOR")
    hosts.apply()
    placement.sync()
    assert placement.below(hosts.ROOT) == {}
    hosts.apply(hosts.card(traits=("CUSTOM_NEW",)))
    placement.sync()
    let_nova_forget()
    placement.sync()
    traits = frozenset({"CUSTOM_NEW", "CUSTOM_OF_OPERATOR"})
    assert placement.below(hosts.ROOT) == {A: dataclasses.replace(before[A], traits=traits)}


def test_a_detached_provider_that_is_put_back_is_detached_again(
    placement: PlacementServer, root: str, card: str
) -> None:
    hosts.apply()
    placement.sync()
    let_nova_forget()
    body = {"name": NAME, "parent_provider_uuid": root}
    placement.call("PUT", f"/resource_providers/{A}", body)
    for _ in range(2):
        placement.sync()
        assert placement.below(hosts.ROOT) == {}
        assert placement.find(A) == A


def test_a_provider_with_allocations_or_children_is_withdrawn_and_deleted_later(
    placement: PlacementServer, card: str
) -> None:
    placement.allocate(CONSUMER, A, FPGA=1)
    hosts.apply()
    for _ in range(2):
        with pytest.raises(work.TryLater, match=f"Provider {NAME}: withdrawn until"):
            placement.sync()
        assert placement.offered(A) == {"FPGA": (4, 4)}
    assert placement.calls[-2:] == [LIST, f"PUT /resource_providers/{A}/inventories"]
    child = placement.make_provider("child of somebody else", A)
    placement.release(CONSUMER)
    with pytest.raises(work.TryLater, match="others have made providers below it"):
        placement.sync()
    assert placement.offered(A) == {"FPGA": (4, 4)}
    placement.call("DELETE", f"/resource_providers/{child}")
    placement.sync()
    placement.assert_right("host-1")


def test_a_class_with_allocations_is_kept_withdrawn(placement: PlacementServer, card: str) -> None:
    placement.allocate(CONSUMER, A, FPGA=1)
    hosts.apply(hosts.card(resource_class="CUSTOM_NEW"))
    with pytest.raises(work.TryLater, match="kept withdrawn what is still allocated"):
        placement.sync()
    assert placement.offered(A) == {"FPGA": (4, 4), "CUSTOM_NEW": (4, 0)}
    placement.release(CONSUMER)
    placement.sync()
    placement.assert_right("host-1")


def test_less_than_is_allocated_can_be_said(placement: PlacementServer, card: str) -> None:
    placement.allocate(CONSUMER, A, FPGA=4)
    hosts.apply(hosts.card("a", range(2)))
    placement.sync()
    placement.assert_right("host-1")


def test_a_refused_provider_does_not_stop_the_others(placement: PlacementServer, root: str) -> None:
    hosts.apply(hosts.card("a", traits=("HW_NO_SUCH_TRAIT",)), hosts.card("b"), hosts.card("c"))
    with pytest.raises(work.TryLater, match=f"Provider {NAME}: .* No such trait HW_NO_SUCH_TRAIT"):
        placement.sync()
    below = placement.below(hosts.ROOT)
    assert below.pop(A).inventories == {}
    assert [provider.inventories["FPGA"].total for provider in below.values()] == [4, 4]


@pytest.mark.every_database
def test_what_is_held_and_gone_or_dirty_is_reserved(placement: PlacementServer, root: str) -> None:
    hosts.apply(hosts.card("a", range(6)))
    # Handle number to the state of the ARQ that holds it; two are left.
    held = {
        0: models.BOUND,
        1: models.BIND_STARTED,
        2: None,
        3: None,
        4: models.BOUND,
    }
    with db.writer() as session:
        handles = session.scalars(sa.select(models.AttachHandle).order_by(models.AttachHandle.id))
        for number, found in enumerate(handles.all()):
            if number in held and held[number] is None:
                leaving.left(session, found)
            elif number in held:
                session.add(
                    models.Arq(
                        project_id="p",
                        state=held[number],
                        device_profile_name="dp",
                        group={},
                        attach_handle_id=found.id,
                    )
                )
    placement.sync()
    # Two are dirty.
    assert placement.offered(A) == {"FPGA": (6, 2)}
    hosts.apply(hosts.card("a", [0, 1, 5]))
    placement.sync()
    # Gone but held: the two dirty ones and a Bound one.
    assert placement.offered(A) == {"FPGA": (6, 3)}
    hosts.apply()
    placement.sync()
    placement.assert_right("host-1")
    total, reserved = placement.offered(A)["FPGA"]
    assert total == reserved == 4
    with db.writer() as session:
        db.delete(session, models.Arq)
        handle_states.change(session, handle_states.Event.GIVEN_UP)
    hosts.apply(errors={"another_driver": "makes this report a changed one"})
    placement.sync()
    assert placement.below(hosts.ROOT) == {}


@pytest.mark.parametrize("back", [range(4), range(3)], ids=["as before", "changed"])
def test_a_host_that_is_down_offers_nothing_until_it_reports(
    placement: PlacementServer, card: str, conf: cfg.ConfigOpts, back: range
) -> None:
    placement.allocate(CONSUMER, A, FPGA=1)
    with db.writer() as session:
        late_ms = (conf.conductor.host_down_time + 1) * 1000
        db.update(session, models.Host, last_seen_ms=models.Host.last_seen_ms - late_ms)
    liveness.mark_hosts_down(conf)
    assert work.is_wanted(work.PLACEMENT, "host-1")
    placement.sync()
    assert placement.offered(A) == {"FPGA": (4, 4)}
    assert placement.candidates("FPGA") == set()
    placement.assert_right("host-1")

    liveness.mark_hosts_down(conf)
    assert not work.is_wanted(work.PLACEMENT, "host-1")

    hosts.apply(hosts.card("a", back))
    assert work.is_wanted(work.PLACEMENT, "host-1")
    placement.sync()
    assert placement.offered(A) == {"FPGA": (len(back), 0)}
    assert placement.candidates("FPGA") == {A}
    placement.assert_right("host-1")
    # What its guests have was theirs all the time.
    assert set(placement.call("GET", f"/allocations/{CONSUMER}")["allocations"]) == {A}
