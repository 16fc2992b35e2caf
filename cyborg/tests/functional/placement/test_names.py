# SPDX-License-Identifier: Apache-2.0
"""Traits and classes that Cyborg has made in the real Placement, and that nothing names now."""

from __future__ import annotations

import contextlib

import pytest
import sqlalchemy as sa
import webob
from oslo_config import cfg

from cyborg import db
from cyborg.common.request_groups import TAINT, RequestGroup
from cyborg.conductor import periodic_tasks
from cyborg.db import models
from cyborg.inventory import acceptance
from cyborg.placement import audit, client, names
from cyborg.tests import hosts
from cyborg.tests.novasink import NovaSink
from cyborg.tests.placement_server import PlacementServer

pytestmark = pytest.mark.usefixtures("database")


def custom(placement: PlacementServer, collection: str) -> set[str]:
    key = collection.replace("-", "_")
    found = placement.call("GET", f"/{collection}")[key]
    all_names = {each if isinstance(each, str) else each["name"] for each in found}
    return {name for name in all_names if name.startswith("CUSTOM_")}


def traits(placement: PlacementServer) -> set[str]:
    return custom(placement, "traits")


def make_due() -> None:
    with db.writer() as session:
        db.update(session, models.MadeName, due_ms=0)


def sweep(conf: cfg.ConfigOpts) -> None:
    make_due()
    audit.sweep_names(conf)


def recorded() -> set[str]:
    with db.reader() as session:
        return set(session.scalars(sa.select(models.MadeName.path)))


def report(placement: PlacementServer, *its: str, resource_class: str = "FPGA") -> None:
    hosts.apply(hosts.card("a", traits=its, resource_class=resource_class))
    placement.sync()


def test_what_nothing_names_is_removed(
    placement: PlacementServer, root: str, conf: cfg.ConfigOpts
) -> None:
    report(placement, "CUSTOM_OLD", "CUSTOM_KEPT", resource_class="CUSTOM_CLASS_OLD")
    report(placement, "CUSTOM_KEPT", "CUSTOM_NEW", resource_class="CUSTOM_CLASS_NEW")
    assert "CUSTOM_OLD" in traits(placement)
    audit.sweep_names(conf)
    assert "CUSTOM_OLD" in traits(placement), "it was swept before its time"
    sweep(conf)
    assert traits(placement) >= {"CUSTOM_KEPT", "CUSTOM_NEW"}
    assert "CUSTOM_OLD" not in traits(placement)
    assert custom(placement, "resource_classes") == {"CUSTOM_CLASS_NEW"}
    assert recorded() == {
        "/traits/CUSTOM_KEPT",
        "/traits/CUSTOM_NEW",
        "/resource_classes/CUSTOM_CLASS_NEW",
    }
    assert audit.sweep_names in periodic_tasks.TASKS
    # It is made again when it is wanted again, though this process has made it before.
    report(placement, "CUSTOM_OLD", "CUSTOM_KEPT")
    assert "CUSTOM_OLD" in placement.below(hosts.ROOT).popitem()[1].traits


def test_what_others_have_and_what_anything_names_stays(
    placement: PlacementServer, root: str, conf: cfg.ConfigOpts, sink: NovaSink
) -> None:
    placement.call("PUT", "/traits/CUSTOM_THEIRS")
    for tainted in (True, False):
        with db.writer() as session:
            db.update(session, models.Device, tainted=tainted)
        report(placement, *(f"CUSTOM_{name}" for name in NAMED), "CUSTOM_THEIRS", "CUSTOM_UNNAMED")
    client.Client(conf)._ensure("/traits", [TAINT])
    # Somebody else has taken a liking to a trait that we have made.
    placement.set_traits(placement.make_provider("storage-1"), "CUSTOM_LIKED")
    asks = {"trait:CUSTOM_ASKED": "required", "trait:CUSTOM_SHUNNED": "forbidden"}
    with db.writer() as session:
        session.add(models.DeviceProfile(name="dp", groups=[{"resources:FPGA": "1"} | asks]))
    sink.flavors = {
        "small": {},
        "plain": {"hw:cpu_policy": "shared"},
        "big": {"trait:CUSTOM_OF_FLAVOR": "required"},
    }
    report(placement)

    sink.status = 503
    sweep(conf)
    assert "CUSTOM_UNNAMED" in traits(placement), "nobody could say what flavors name"
    sink.status = None
    sweep(conf)
    kept = {TAINT, *(f"CUSTOM_{name}" for name in NAMED)}
    assert traits(placement) == {"CUSTOM_THEIRS", *kept}
    assert recorded() == {f"/traits/{name}" for name in kept}


#: Each is another's, or named by something.
NAMED = ("LIKED", "ASKED", "SHUNNED", "OF_FLAVOR")


class Killed(BaseException):
    """Stands for the end of the process."""


def test_what_was_made_just_before_the_end_of_the_process_is_removed(
    placement: PlacementServer, root: str, conf: cfg.ConfigOpts, monkeypatch: pytest.MonkeyPatch
) -> None:
    note, killed = names.note, list[str]()

    def kill(path: str, host_name: str | None, *, is_made: bool = False) -> None:
        if is_made:
            killed.append(path)
            raise Killed
        note(path, host_name)

    hosts.apply(hosts.card("a", traits=("CUSTOM_OURS", "CUSTOM_THEIRS")))
    placement.call("PUT", "/traits/CUSTOM_THEIRS")
    with monkeypatch.context() as patch:
        patch.setattr(names, "note", kill)
        with contextlib.suppress(Killed):
            client.Client(conf)._ensure("/traits", ["CUSTOM_OURS"])
    assert killed
    client.Client(conf)._ensure("/traits", ["CUSTOM_OURS", "CUSTOM_THEIRS"])
    report(placement)
    sweep(conf)
    assert traits(placement) & {"CUSTOM_OURS", "CUSTOM_THEIRS"} == {"CUSTOM_THEIRS"}


@pytest.mark.parametrize("is_ours", [True, False])
def test_what_others_make_in_the_same_moment_is_theirs(
    placement: PlacementServer, root: str, conf: cfg.ConfigOpts, *, is_ours: bool
) -> None:
    """Unless another process of ours has made it, and recorded that."""

    def make_first(method: str, path: str) -> None:
        if (method, path) == ("PUT", "/traits/CUSTOM_X"):
            placement.before = None
            placement.call("PUT", path)
            if is_ours:
                names.note(path, None, is_made=True)

    placement.before = make_first
    client.Client(conf)._ensure("/traits", ["CUSTOM_X"])
    assert "CUSTOM_X" in traits(placement)
    assert recorded() == ({"/traits/CUSTOM_X"} if is_ours else set())


def test_who_asks_for_what_was_removed_is_answered(
    placement: PlacementServer, root: str, conf: cfg.ConfigOpts
) -> None:
    group = RequestGroup.parse({"resources:CUSTOM_X": "1", "trait:CUSTOM_Y": "required"})
    api = client.Client(conf)
    assert list(api.find_candidates([group], 10).providers) == []
    assert recorded() == {"/resource_classes/CUSTOM_X", "/traits/CUSTOM_Y"}
    # As the conductor does, which is another process.
    for path in recorded():
        placement.call("DELETE", path)
    assert list(api.find_candidates([group], 10).providers) == []


def test_a_host_that_invents_traits_for_hours_has_few_at_a_time(
    placement: PlacementServer,
    root: str,
    conf: cfg.ConfigOpts,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(acceptance, "_NAMES_MAX", 20)
    hosts.apply(hosts.card("c", traits=("CUSTOM_OTHER",)), host="host-1")
    for number in range(30):
        invented = tuple(f"CUSTOM_LIE_{number}_{n}" for n in range(5))
        true = hosts.card("b", traits=("CUSTOM_TRUE",))
        hosts.apply(true, hosts.card("a", traits=invented))
        placement.sync()
    assert len(recorded()) <= 20
    error = hosts.errors_of("host-1")[hosts.DRIVER]
    assert "had more than 20 traits and resource classes" in error
    # What is true was taken all the time, and what is known of the liar's device is as it was.
    names_now = {row.name for row in hosts.deployables() if not row.missing}
    assert {"host-1_a", "host-1_b"} <= names_now
    # What it invents later finds room again, and no more of it.
    for _ in range(2):
        sweep(conf)
        assert len(recorded()) <= 20
    hosts.apply(true, hosts.card("a", traits=("CUSTOM_LIE_AGAIN",)))
    placement.sync()
    assert "CUSTOM_LIE_AGAIN" in traits(placement)
    assert hosts.errors_of("host-1") == {}


def test_a_sweep_goes_on_when_placement_is_back(
    placement: PlacementServer, root: str, conf: cfg.ConfigOpts
) -> None:
    report(placement, "CUSTOM_OLD")
    report(placement)
    placement.before = lambda _method, _path: webob.Response(status=503)
    sweep(conf)
    placement.obey()
    assert recorded() == {"/traits/CUSTOM_OLD"}
    sweep(conf)
    assert recorded() == set()
    assert names.unnamed() == []
