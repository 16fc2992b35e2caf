# SPDX-License-Identifier: Apache-2.0
"""No project gets more than its limit in Keystone, whoever asks at the same time."""

from __future__ import annotations

import itertools
from concurrent import futures
from typing import Any

import pytest
from oslo_config import cfg
from oslo_limit import limit
from oslo_limit import opts as limit_opts

from cyborg import history, profiles, quotas
from cyborg.arqs import binding, service
from cyborg.db import models
from cyborg.handles import release
from cyborg.policy import context
from cyborg.tests import boots, hosts
from cyborg.tests.keystone_server import Keystone
from cyborg.tests.personas import Personas
from cyborg.tests.scene import Scene

pytestmark = pytest.mark.usefixtures("database")

_numbers = itertools.count(1)


def make_profile(*groups: dict[str, str]) -> str:
    name = f"p{next(_numbers)}"
    profiles.create_profile(name=name, groups=list(groups), description=None)
    return name


@pytest.mark.every_database
def test_of_many_at_once_only_those_within_the_limit_get_theirs(ctx, tenant) -> None:
    profile = make_profile(dict(boots.GROUP))
    limits = {quotas.REQUESTS: 5}
    for _ in range(2):
        service.create(ctx, profile, limits)
    service.create(tenant, profile, limits)

    def ask(_number: int) -> bool:
        try:
            service.create(ctx, profile, limits)
        except quotas.QuotaExceeded:
            return False
        return True

    with futures.ThreadPoolExecutor(32) as pool:
        assert sum(pool.map(ask, range(32))) == 3
    assert len(service.list_arqs(ctx, project_id="project-1")) == 5


def test_each_class_has_its_own_limit(ctx: context.RequestContext) -> None:
    limits = {"class:FPGA": 3, "class:PGPU": -1, quotas.REQUESTS: 20}
    two, gpu = make_profile({"resources:FPGA": "2"}), make_profile({"resources:PGPU": "9"})
    counted = service.create(ctx, two, limits)
    refusal = "quota .* class:FPGA: used 2, limit 3, asked for 2\\."
    with pytest.raises(quotas.QuotaExceeded, match=refusal):
        service.create(ctx, two, limits)
    service.create(ctx, gpu, limits)
    with pytest.raises(quotas.QuotaExceeded, match="accelerator_requests: used 11, limit 20"):
        service.create(ctx, make_profile({"resources:CUSTOM_NIC": "10"}), limits)
    # All are refused, or none. What is deleted counts no more.
    assert len(service.list_arqs(ctx)) == 11
    release.delete_arqs(ctx, [arq.uuid for arq in counted])
    # A card with two handles counts twice.
    both = make_profile({"resources:FPGA": "1", "trait:CUSTOM_FPGA_XILINX": "required"})
    with pytest.raises(quotas.QuotaExceeded, match="used 0, limit 1, asked for 2"):
        service.create(ctx, both, {"class:FPGA": 1})


@pytest.mark.every_database
def test_what_is_moved_to_a_project_counts_there(ctx, tenant) -> None:
    hosts.apply(hosts.card("a"))
    profile, limits = make_profile({"resources:FPGA": "2"}), {"class:FPGA": 3}
    service.create(tenant, profile, limits)
    one, two = (arq.uuid for arq in service.create(ctx, profile))

    def move(*arqs: str) -> None:
        where = boots.target(models.new_uuid(), project_id="project-2")
        binding.request_changes(ctx, dict.fromkeys(arqs, where), [], limits={"project-2": limits})

    with pytest.raises(quotas.QuotaExceeded, match="used 2, limit 3, asked for 2"):
        move(one, two)
    assert boots.states(tenant) == dict.fromkeys(boots.states(tenant), models.INITIAL)
    (kept, _) = history.list_entries("project-2", kind=history.BIND_FAILED)
    assert "used 2, limit 3" in (kept.reason or "")
    move(one)
    assert boots.states(tenant)[one] == models.BOUND
    with pytest.raises(quotas.QuotaExceeded, match="used 3, limit 3, asked for 1"):
        move(two)
    # What is there already does not count again, and a quota of before may be exceeded.
    where = boots.target(models.new_uuid())
    first = next(uuid for uuid, state in boots.states(tenant).items() if state == models.INITIAL)
    binding.request_changes(tenant, {first: where}, [], limits={"project-2": {"class:FPGA": 0}})


@pytest.mark.every_database
def test_of_many_moved_at_once_only_those_within_the_limit_are(ctx, tenant) -> None:
    hosts.apply(hosts.card("a", range(12)))
    profile, limits = make_profile(dict(boots.GROUP)), {quotas.REQUESTS: 3}
    arqs = [service.create(ctx, profile)[0].uuid for _ in range(8)]

    def ask(number: int) -> bool:
        try:
            if number % 2:
                service.create(tenant, profile, limits)
            else:
                where = boots.target(models.new_uuid(), project_id="project-2")
                moved = {arqs[number // 2]: where}
                binding.request_changes(ctx, moved, [], limits={"project-2": limits})
        except quotas.QuotaExceeded:
            return False
        return True

    with futures.ThreadPoolExecutor(16) as pool:
        assert sum(pool.map(ask, range(16))) == 3
    assert len(service.list_arqs(ctx, project_id="project-2")) == 3


def test_a_move_asks_keystone_for_the_limits_of_the_project(site, ctx, monkeypatch) -> None:
    asked = []

    def limits_of(_conf: cfg.ConfigOpts, project: str | None) -> quotas.Limits:
        asked.append(project)
        return {"class:FPGA": 0} if project == "project-9" else {}

    monkeypatch.setattr(quotas, "limits_of", limits_of)
    site.start_with(hosts.card("a"))
    patch = boots.patch(boots.arqs(ctx), models.new_uuid(), project_id="project-9")
    refused = site.ask("PATCH", "/accelerator_requests", patch, "2.1")
    assert (refused.status_code, asked) == (403, ["project-9"])
    assert "class:FPGA: used 0, limit 0, asked for 1" in refused.text


@pytest.fixture
def registered(conf: cfg.ConfigOpts, keystone: Keystone, monkeypatch: pytest.MonkeyPatch) -> Any:
    """``registered(name, limit)`` makes a limit of all projects; ``[oslo_limit]`` is configured."""
    # Both modules know the global configuration only.
    for module in (limit, limit_opts):
        monkeypatch.setattr(module, "CONF", conf)
    monkeypatch.setattr(limit, "_SDK_CONNECTION", None)
    limit_opts.register_opts(conf)
    api = keystone.api(keystone.log_in(keystone.admin_user, system_scope="all"))
    known = {"name": f"cyborg-{next(_numbers)}", "type": f"accelerator-{models.new_uuid()}"}
    service_id = api.post("/services", json={"service": known}).json()["service"]["id"]
    endpoint = {"service_id": service_id, "interface": "public", "url": "http://127.0.0.1:1/v2"}
    made = api.post("/endpoints", json={"endpoint": endpoint}).json()["endpoint"]
    from keystoneauth1 import loading  # noqa: PLC0415

    conf.register_opts(loading.get_auth_plugin_conf_options("password"), group="oslo_limit")
    for name, value in {
        "auth_type": "password",
        "auth_url": keystone.url,
        "username": keystone.admin_user,
        "password": keystone.password,
        "user_domain_id": "default",
        "system_scope": "all",
        "endpoint_id": made["id"],
        "endpoint_override": keystone.url,
    }.items():
        conf.set_override(name, value, group="oslo_limit")

    def register(name: str, most: int, project: str | None = None) -> None:
        about = {"service_id": service_id, "resource_name": name}
        if project is None:
            body = {"registered_limits": [about | {"default_limit": most}]}
            api.post("/registered_limits", json=body, raise_exc=True)
        else:
            body = {"limits": [about | {"resource_limit": most, "project_id": project}]}
            api.post("/limits", json=body, raise_exc=True)

    return register


def test_keystone_has_the_limits(registered, scene: Scene, personas: Personas, conf) -> None:
    """Over HTTP, with the real Keystone: a project's own limit, and that of all others."""

    def create(persona: str) -> Any:
        body = {"device_profile_name": "public"}
        return scene.ask(persona, "POST /accelerator_requests", body)

    # Where they are asked in vain nothing is created.
    endpoint = conf.oslo_limit.endpoint_id
    conf.set_override("endpoint_id", models.new_uuid(), group="oslo_limit")
    answer = create("member")
    assert answer.status_code == 503
    assert "[oslo_limit] does not fit Keystone" in answer.text
    conf.set_override("endpoint_id", endpoint, group="oslo_limit")
    # Nothing is limited that Keystone has no limit of.
    assert create("member").status_code == 201
    registered("class:FPGA", 0)
    refused = create("other")
    assert refused.status_code == 403
    assert "class:FPGA: used 2, limit 0, asked for 1" in refused.text
    registered("class:FPGA", 4, personas.projects["own"])
    assert create("member").status_code == 201
    assert "used 4, limit 4, asked for 1" in create("member").text
    assert create("other").status_code == 403
    conf.clear_override("auth_type", group="oslo_limit")
    assert create("member").status_code == 201
