# SPDX-License-Identifier: Apache-2.0
"""A device that is reached over the network, through its whole life at an SPDK target."""

from __future__ import annotations

import pathlib
from collections.abc import Iterator
from typing import Any

import pytest
import requests
import sqlalchemy as sa

from cyborg import db, notifications
from cyborg.agent import service as agent_service
from cyborg.api import versions
from cyborg.arqs import service
from cyborg.common import errors
from cyborg.db import models
from cyborg.handles import giving_up
from cyborg.inventory.apply import provider_uuid
from cyborg.policy import context
from cyborg.tests.listening import Ear, silence
from cyborg.tests.service import PATIENCE, USER_TOKEN, Site, until
from cyborg.tests.spdk_server import HOST, OTHER, SpdkServer

pytestmark = pytest.mark.slow

NQN = "nqn.2016-06.io.spdk:cnode1"
RP = provider_uuid(f"host-1_{NQN}")
DRIVER = "nvmf_spdk_driver"
INSTANCE = "aaaaaaaa-0000-4000-8000-000000000001"


@pytest.fixture
def ear(site: Site) -> Iterator[Ear]:
    """Somebody who hears what the site announces; asked for before ``started``."""
    one = Ear(site.conf)
    notifications.configure(site.conf)
    one.listen()
    yield one
    silence()
    one.stop()


@pytest.fixture
def started(site: Site, spdk: SpdkServer) -> Iterator[Site]:
    options = {"rpc_address": spdk.address, "host_nqn": HOST, "reuse_without_erasing": True}
    for name, value in {**options, "timeout": 60}.items():
        site.conf.set_override(name, value, group="nvmf_spdk")
    site.conf.set_override("enabled_drivers", ["fake_driver", DRIVER], group="agent")
    site.conf.set_override("report_interval", 1, group="agent")
    site.start()
    yield site
    # What is under way ends while there is a target yet.
    site.stop()


def _asked(site: Site, name: str = "remote") -> str:
    """An ARQ that is to be bound to the target's first subsystem."""
    group = {"resources:CUSTOM_NVMF": "1", "trait:CUSTOM_NVMF_TCP": "required"}
    site.call("POST", "/device_profiles", [{"name": name, "groups": [group]}])
    body = {"device_profile_name": name}
    uuid: str = site.call("POST", "/accelerator_requests", body)["arqs"][0]["uuid"]
    target = {"hostname": "host-1", "device_rp_uuid": RP, "instance_uuid": INSTANCE}
    operations = [{"path": f"/{key}", "op": "add", "value": value} for key, value in target.items()]
    site.call("PATCH", "/accelerator_requests", {uuid: operations})
    return uuid


def _if_bound(site: Site, uuid: str) -> dict[str, Any] | None:
    arq: dict[str, Any] = site.call("GET", f"/accelerator_requests/{uuid}", version="2.4")
    assert arq["state"] in {"BindStarted", "Bound"}, arq["state_reason"]
    return arq if arq["state"] == "Bound" else None


def _bound(site: Site, name: str = "remote") -> dict[str, Any]:
    """An ARQ for the target's first subsystem, once it is bound."""
    uuid = _asked(site, name)
    return until(lambda: _if_bound(site, uuid))


def _device(site: Site) -> dict[str, Any]:
    found = site.call("GET", "/devices?type=NVME", version="2.4")["devices"]
    uuid = site.call("GET", f"/deployables?rp_uuid={RP}", version="2.4")
    wanted = uuid["deployables"][0]["device_uuid"]
    return next(device for device in found if device["uuid"] == wanted)


def _driver_errors() -> dict[str, str]:
    with db.reader() as session:
        return dict(session.scalars(sa.select(models.Host.driver_errors)).one())


def test_after_a_forced_release_the_guest_is_let_in_no_more(
    started: Site, spdk: SpdkServer, ctx: context.RequestContext
) -> None:
    arq = _bound(started)
    started.hurry(started.idle)
    assert spdk.hosts(1) == [HOST]
    giving_up.release_arq(ctx, arq["uuid"], force=True)
    until(lambda: spdk.hosts(1) == [])
    # The next one has it, under the same name.
    _bound(started, "another")
    assert spdk.hosts(1) == [HOST]


def test_a_guest_is_prepared_again_as_one_that_may_be_using_it(
    started: Site, spdk: SpdkServer, tmp_path: pathlib.Path
) -> None:
    _bound(started)
    # As if the agent had lost what it had noted, and the operator had set this since.
    kept = tmp_path / "state" / "facts" / "nvmf_spdk.json"
    kept.unlink()
    started.conf.set_override("key_dir", str(tmp_path / "keys"), group="nvmf_spdk")
    started.replace(agent_service.Agent)
    started.hurry(kept.exists)
    started.hurry(started.idle)
    assert "nvmf_subsystem_remove_host" not in spdk.calls
    assert spdk.connect(1, HOST)


def test_whoever_has_it_keeps_it_while_the_target_is_away(
    started: Site, spdk: SpdkServer
) -> None:
    arq = _bound(started)
    assert arq["attach_handle_type"] == "NVMF"
    assert arq["attach_handle_info"] == {
        "trtype": "TCP",
        "traddr": "192.0.2.10",
        "trsvcid": "4420",
        "subnqn": NQN,
        "nsid": "1",
        "uuid": "1b3e7c11-5a55-4a5e-9a3c-0d5f6f0d2a01",
    }
    assert spdk.hosts(1) == [HOST]
    # It comes back without its hosts.
    spdk.restart()
    started.hurry(lambda: spdk.hosts(1) == [HOST])
    assert spdk.hosts(2) == spdk.hosts(3) == []
    before = _device(started)
    spdk.stop()
    # First it may be told that it was cut off in the middle of an answer.
    until(lambda: "cannot be reached" in _driver_errors().get(DRIVER, ""))
    started.call("DELETE", f"/accelerator_requests?instance={INSTANCE}")
    until(lambda: any(row.last_error for row in started.work("host-step")))
    assert len(started.held()) == 1
    assert _device(started) == before
    spdk.start()
    started.hurry(lambda: not started.held())
    assert spdk.hosts(1) == []
    until(lambda: not _driver_errors())


def test_what_another_host_has_is_offered_to_nobody_and_the_api_says_why(
    started: Site, spdk: SpdkServer
) -> None:
    spdk.subsystem(1)["hosts"].append({"nqn": OTHER})
    until(lambda: _device(started)["health"] == "unhealthy")
    assert _device(started)["health_reason"] == f"subsystem {NQN}: host {OTHER} may connect to it"
    until(started.synced)
    assert started.placement.offered(RP) == {"CUSTOM_NVMF": (1, 1)}
    spdk.subsystem(1)["hosts"].clear()
    until(lambda: _device(started)["health"] == "healthy")
    until(started.synced)
    assert started.placement.offered(RP) == {"CUSTOM_NVMF": (1, 0)}


REMOTE = "nqn.2014-08.org.nvmexpress:uuid:5b0f3c1e-0000-4000-8000-000000000009"
NEWEST = str(versions.REGULAR)


def _as_member(
    site: Site, method: str, path: str, body: object = None, version: str = NEWEST
) -> requests.Response:
    headers = {"OpenStack-API-Version": f"accelerator {version}", "X-Auth-Token": USER_TOKEN}
    url = f"{site.endpoint}{path}"
    return requests.request(method, url, json=body, headers=headers, timeout=PATIENCE)


def test_a_consumer_on_another_host_connects_by_a_key_that_only_its_owner_gets(
    ear: Ear,
    started: Site,
    spdk: SpdkServer,
    ctx: context.RequestContext,
    tmp_path: pathlib.Path,
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level("DEBUG")
    started.conf.set_override("key_dir", str(tmp_path / "keys"), group="nvmf_spdk")
    started.hurry(started.idle)
    group = {"resources:CUSTOM_NVMF": "1", "trait:CUSTOM_NVMF_TCP": "required"}
    started.call("POST", "/device_profiles", [{"name": "remote", "groups": [group]}])
    who = {"uuid": INSTANCE, "type": "PROXY", "nqn": REMOTE}
    body = {"consumer": who, "device_profile_name": "remote"}
    assert _as_member(started, "POST", "/allocations", body, "2.3").status_code == 404
    assert _as_member(started, "POST", "/allocations", body).status_code == 202

    def active() -> dict[str, Any] | None:
        shown: dict[str, Any] = _as_member(started, "GET", f"/allocations/{INSTANCE}").json()
        return shown if shown["state"] == "Active" else None

    found = until(active)
    assert found["consumer"] == {**who, "name": None}
    (given,) = found["accelerators"]
    number = int(given["attach_handle_info"]["subnqn"][-1])
    assert spdk.hosts(number) == [REMOTE]
    path = f"/accelerator_requests/{given['arq_uuid']}/access_key"
    key = _as_member(started, "GET", path).json()
    assert key["attach_handle_uuid"] == given["attach_handle_uuid"]
    secret = key["dhchap_key"]
    assert spdk.connect(number, REMOTE, secret)
    assert not spdk.connect(number, REMOTE)

    # An administrator of another project sees all the rest.
    assert started.ask("GET", path, version=NEWEST).status_code in {403, 404}
    with pytest.raises(errors.NotFound):
        service.access_key(ctx, given["arq_uuid"])
    for shown in (f"/allocations/{INSTANCE}", "/allocations", "/accelerator_requests", "/history"):
        assert secret not in started.ask("GET", shown, version=NEWEST).text
    until(lambda: "accelerator_request.bind.end" in ear.events)
    assert all(secret not in str(one) for one in ear.heard)
    assert "is Bound: its handle is prepared" in caplog.text
    assert secret not in caplog.text

    assert _as_member(started, "DELETE", f"/allocations/{INSTANCE}").status_code == 204
    started.hurry(lambda: not started.held())
    assert (spdk.hosts(number), spdk.keys) == ([], {})
    assert _as_member(started, "GET", path).status_code == 404


def test_a_key_that_cannot_be_stored_is_in_no_log_and_no_error(
    started: Site, tmp_path: pathlib.Path, caplog: pytest.LogCaptureFixture
) -> None:
    keys = tmp_path / "keys"
    started.conf.set_override("key_dir", str(keys), group="nvmf_spdk")

    def refuse(
        _conn: object, _cursor: object, statement: str, parameters: object, *_: object
    ) -> tuple[str, object]:
        if statement.startswith("UPDATE arqs") and "access_key=" in statement:
            statement += " AND no_such_column = 1"
        return statement, parameters

    sa.event.listen(db.engine(), "before_cursor_execute", refuse, retval=True)
    try:
        arq = _asked(started)
        step = until(lambda: [row for row in started.work("host-step") if row.last_error])
    finally:
        sa.event.remove(db.engine(), "before_cursor_execute", refuse)
    (file,) = keys.iterdir()
    secret = file.read_text()
    assert "no_such_column" in caplog.text
    assert secret not in caplog.text
    assert secret not in str(step[0].last_error)
    started.hurry(lambda: _if_bound(started, arq))
