# SPDX-License-Identifier: Apache-2.0
"""An ARQ that is bound again while something is still to be done to the handle that it has left."""

from __future__ import annotations

from typing import Any

import pytest
import sqlalchemy as sa
from oslo_config import cfg
from sqlalchemy import orm

from cyborg import db, rpc, work
from cyborg.arqs import binding, service
from cyborg.arqs.bind_requests import BindTarget
from cyborg.audits import consistency
from cyborg.common import errors
from cyborg.db import models
from cyborg.handles import giving_up
from cyborg.hosts import draining
from cyborg.importing import store
from cyborg.importing.convert import ImportedArq
from cyborg.tests import boots, hosts, leaving
from cyborg.tests.cloud import Cloud
from cyborg.tests.mounted_api import Api

pytestmark = [pytest.mark.usefixtures("host_with_cards"), pytest.mark.makes_up_rows]


def ask(cloud: Cloud, letter: str) -> tuple[str, BindTarget]:
    """An ARQ, and where it is to be bound, which Placement has been asked for."""
    instance, card = models.new_uuid(), cloud.cards[letter]
    cloud.placement.allocate(instance, card.provider, FPGA=1)
    (arq,) = service.create(cloud.ctx, "FPGA")
    return arq.uuid, boots.target(instance, device_rp_uuid=card.provider)


def bind_again(cloud: Cloud, arq: str, target: BindTarget) -> int:
    """Unbind an ARQ and bind it anew; the id of the handle that it has then."""
    binding.request_changes(cloud.ctx, {}, [arq])
    binding.request_changes(cloud.ctx, {arq: target}, [])
    while cloud.do_one(["bind"]):
        pass
    return handle_of(arq)


def handle_of(arq: str) -> int:
    """The id of the handle that an ARQ has."""
    with db.reader() as session:
        query = sa.select(models.Arq.attach_handle_id).where(models.Arq.uuid == arq)
        return int(session.scalars(query).one() or 0)


@pytest.mark.every_database
@pytest.mark.parametrize("ends_well", [True, False])
def test_a_late_answer_for_the_old_handle_says_nothing_of_the_new_one(
    cloud: Cloud, monkeypatch: pytest.MonkeyPatch, *, ends_well: bool
) -> None:
    prepared, new, answering = [], list[int](), rpc.run_host_step
    arq, target = ask(cloud, "c")

    def step(_conf: cfg.ConfigOpts, _host: str, asked: rpc.HostStep, *_: Any) -> str | None:
        prepared.append((asked.action, asked.attach_handle_uuid))
        if len(prepared) == 1:
            new.append(bind_again(cloud, arq, target))
            if not ends_well:
                raise rpc.HostStepFailed("no")
            return "the key of the old handle"
        raise rpc.HostUnreachable("it never answers")

    monkeypatch.setattr(rpc, "run_host_step", step)
    binding.request_changes(cloud.ctx, {arq: target}, [])
    while cloud.do_one():
        pass

    assert service.get_arq(cloud.ctx, arq).state == models.BIND_STARTED
    assert handle_of(arq) == new[0]
    with pytest.raises(errors.Conflict, match="is BindStarted"):
        service.access_key(cloud.ctx, arq)
    monkeypatch.setattr(rpc, "run_host_step", answering)
    cloud.work_off()
    assert service.get_arq(cloud.ctx, arq).state == models.BOUND
    assert consistency.violations() == []


def test_what_it_has_left_is_another_use_than_the_present_one(cloud: Cloud) -> None:
    arq, target = ask(cloud, "c")
    cloud.agent = "is away"
    binding.request_changes(cloud.ctx, {arq: target}, [])
    while cloud.do_one(["bind"]):
        pass
    left = handle_of(arq)
    has = bind_again(cloud, arq, target)
    assert len({0, left, has}) == 3

    users = draining.drain("host-1", None, 10).users
    assert [(each.arq_uuid, each.state) for each in users] == [
        (arq, models.DELETING),
        (arq, models.BIND_STARTED),
    ]
    (given_up,) = giving_up.release_arq(cloud.ctx, arq, force=True).arqs
    assert (given_up.host_step, given_up.state) == ("clean", models.BIND_STARTED)
    assert handle_of(arq) == has
    cloud.agent = "works"
    cloud.work_off()


def first_of(session: orm.Session, name: str) -> models.AttachHandle:
    """The first handle of a deployable."""
    query = sa.select(models.AttachHandle).join(models.Deployable)
    query = query.where(models.Deployable.name == name).order_by(models.AttachHandle.id)
    return session.scalars(query.limit(1)).one()


def left_on_two_hosts() -> str:
    """An ARQ that has left a handle of host-0, which is down, and one of host-1."""
    hosts.apply(hosts.device("x", hosts.deployable("host-0_x", cleans=True)), host="host-0")
    with db.writer() as session:
        db.update(session, models.Host, models.Host.name == "host-0", down=True)
        here, there = (first_of(session, name) for name in ("host-1_b", "host-0_x"))
        arq = leaving.left(session, here)
        leaving.left(session, there, uuid=arq)
        work.want(session, work.HOST_STEP, [there.uuid, here.uuid])
    return arq


@pytest.mark.every_database
def test_each_host_is_judged_and_named_where_an_arq_has_left_something(cloud, conf) -> None:
    conf.set_override("auth_strategy", "noauth", group="api")
    api, arq = Api(conf), left_on_two_hosts()
    path = f"/v2/accelerator_requests/{arq}/release"
    refused = api.ask("POST", path)
    assert refused.status_int == 409
    assert "its host host-1 is not known to be down" in refused.text
    cloud.go_down()

    given_up = api.call("POST", path)["given_up"]

    handles = [each["attach_handle_uuid"] for each in given_up["arqs"]]
    assert [each["host_step"] for each in given_up["arqs"]] == ["clean", "clean"]
    assert given_up["not_excluded"] == [
        f"Host {host} may still clean attach handle {handle}, if it was asked before."
        for host, handle in zip(("host-1", "host-0"), handles, strict=True)
    ]


def test_what_waits_for_cleaning_keeps_what_its_host_cannot_read_meanwhile(cloud: Cloud) -> None:
    with db.writer() as session:
        left = first_of(session, cloud.cards["b"].name)
        fact = {"key": "size_gib", "value": "931", "origin": "driver"}
        session.add(models.Attribute(deployable_id=left.deployable_id, **fact))
        leaving.left(session, left)
        work.want(session, work.HOST_STEP, [left.uuid])

    hosts.apply(*(each.device() for each in cloud.cards.values()))

    (row,) = (row for row in hosts.deployables() if row.id == left.deployable_id)
    assert "size_gib" in {each.key for each in row.attributes}


@pytest.mark.every_database
@pytest.mark.parametrize("state", [models.DELETING, models.UNBOUND, models.BIND_FAILED])
def test_an_imported_handle_that_is_to_be_cleaned_is_left_once(cloud: Cloud, state: str) -> None:
    """A second import finds it clean, and perhaps in use."""
    with db.reader() as session:
        handle = first_of(session, cloud.cards["a"].name).uuid
    bound = state == models.BIND_FAILED
    values = {
        "uuid": models.new_uuid(),
        "created_at": models.utcnow(),
        "updated_at": None,
        "project_id": "p",
        "state": state,
        "state_reason": None,
        "device_profile_name": "x",
        "device_profile_group_id": 0,
        "group": {"resources:FPGA": "1"},
        "resource_class": "FPGA",
        "hostname": "host-1" if bound else None,
        "device_rp_uuid": cloud.cards["a"].provider if bound else None,
        "consumer_uuid": models.new_uuid() if bound else None,
        "bind_started_ms": 1 if bound else None,
    }
    request = ImportedArq(values=values, handle=handle, used=None, needs_step=True)
    store.store_arqs([request])
    with db.reader() as session:
        left = session.scalars(sa.select(models.AttachHandle).filter_by(uuid=handle)).one()
        assert (left.is_left, left.left_arq) == (True, values["uuid"])
    assert consistency.violations() == []
    cloud.work_off()

    with db.writer() as session:
        db.delete(session, models.Arq)
        guest = {"state": models.BOUND, "device_profile_name": "x", "group": {}}
        session.add(models.Arq(project_id="p", attach_handle_id=left.id, **guest))
    store.store_arqs([request])
    with db.reader() as session:
        again = session.scalars(sa.select(models.AttachHandle).filter_by(uuid=handle)).one()
        assert not again.is_left
