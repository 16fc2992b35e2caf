# SPDX-License-Identifier: Apache-2.0
"""What one project can do to the others: it cannot fill the tables, and learns no names."""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable, Iterator, Mapping
from concurrent import futures
from typing import Any

import pytest
import sqlalchemy as sa
import webob
from oslo_config import cfg
from oslo_policy import opts

from cyborg import db
from cyborg.db import models
from cyborg.tests import boots, engine, hosts, messages, servers
from cyborg.tests.mounted_api import Api

MEMBER = {"X-Project-Id": "p1", "X-User-Id": "u1", "X-Roles": "member,reader"}
MANAGER = {**MEMBER, "X-Roles": "manager,member,reader"}
SERVICE = {"X-Project-Id": "services", "X-User-Id": "nova", "X-Roles": "service"}
ADMIN: Mapping[str, str] = {}

INSTANCE = "aaaaaaaa-0000-4000-8000-000000000001"

JOB = {"uuid": INSTANCE, "type": "JOB"}
PART, PUBLIC_PART = {"device_profile_name": "{}"}, {"device_profile_name": "public"}

#: The uuid of a private profile, and of none.
HIDDEN, ABSENT = "bbbbbbbb-0000-4000-8000-000000000001", "bbbbbbbb-0000-4000-8000-000000000002"

Ask = Callable[..., webob.Response]


@pytest.fixture
def ask(conf: cfg.ConfigOpts, database: sa.Engine) -> Iterator[Ask]:
    """``ask(method, path, body, who)`` at the newest microversion, or at another one."""
    conf.set_override("auth_strategy", "noauth", group="api")
    with messages.transport(conf, "memory"):
        api = Api(conf)

        def asking(
            method: str, path: str, body: Any = None, who: Mapping[str, str] = ADMIN, **more: str
        ) -> webob.Response:
            return api.ask(method, f"/v2{path}", body, **who, **more)

        yield asking


def make_profile(ask: Ask, name: str, groups: int = 1, **changes: object) -> None:
    body = {"name": name, "groups": [{"resources:FPGA": "1", "accel:function_id": "aes"}] * groups}
    answer = ask("POST", "/device_profiles", body | changes)
    assert answer.status_int == 201, answer.text


@pytest.mark.makes_up_rows
def test_a_project_has_so_many_requests_without_an_accelerator(ask, conf) -> None:
    conf.set_override("max_unbound_arqs", 3, group="api")
    make_profile(ask, "two", groups=2)
    new = {"device_profile_name": "two"}
    first = ask("POST", "/accelerator_requests", new, MEMBER).json["arqs"]
    assert len(first) == 2
    refused = ask("POST", "/accelerator_requests", new, MEMBER)
    assert refused.status_int == 403
    assert "has 2 accelerator requests without an accelerator, and may have 3" in refused.text
    # Another project has its own, what has an accelerator does not count, nor does what is gone.
    assert ask("POST", "/accelerator_requests", new, {**MEMBER, "X-Project-Id": "p2"}).json["arqs"]
    hosts.apply(hosts.card("a"))
    with db.writer() as session:
        held = session.scalars(sa.select(models.AttachHandle.id)).first()
        arq = models.Arq
        db.update(session, arq, arq.uuid == first[0]["uuid"], attach_handle_id=held)
    assert ask("POST", "/accelerator_requests", new, MEMBER).status_int == 201
    assert ask("POST", "/accelerator_requests", new, MEMBER).status_int == 403
    gone = first[1]["uuid"]
    assert ask("DELETE", f"/accelerator_requests?arqs={gone}", None, MEMBER).status_int == 204
    conf.set_override("max_unbound_arqs", 4, group="api")
    assert ask("POST", "/accelerator_requests", new, MEMBER).status_int == 201
    conf.set_override("max_unbound_arqs", 0, group="api")
    assert ask("POST", "/accelerator_requests", new, MEMBER).status_int == 201


@pytest.mark.every_database
def test_requests_at_once_are_counted_one_after_another(ask: Ask, conf: cfg.ConfigOpts) -> None:
    conf.set_override("max_unbound_arqs", 3, group="api")
    make_profile(ask, "one")
    new = {"device_profile_name": "one"}
    with futures.ThreadPoolExecutor(8) as pool:
        asked = [pool.submit(ask, "POST", "/accelerator_requests", new, MEMBER) for _ in range(8)]
        found = [each.result().status_int for each in asked]
    assert sorted(found) == [201] * 3 + [403] * 5


def test_a_list_without_pages_has_an_end(ask: Ask, conf: cfg.ConfigOpts) -> None:
    conf.set_override("max_whole_list", 2, group="api")
    for name in ("one", "two"):
        make_profile(ask, name)
    assert len(ask("GET", "/device_profiles", version="2.0").json["device_profiles"]) == 2
    make_profile(ask, "three")
    hosts.apply(*map(hosts.card, "abc"))
    for path in ("device_profiles", "devices", "deployables"):
        answer = ask("GET", f"/{path}", version="2.3")
        assert answer.status_int == 400
        assert "more than 2 items. Ask for microversion 2.4" in answer.text
        assert len(ask("GET", f"/{path}", version="2.4").json[path]) == 3
    for limit, status in (("2", 200), ("3", 400)):
        query = f"filters.field=limit&filters.value={limit}"
        assert ask("GET", f"/devices?{query}", version="2.0").status_int == status


#: Requests in which a profile is named.
NAMING: list[tuple[str, str, Any]] = [
    ("GET", "/device_profiles/{}", None),
    ("GET", "/device_profiles/{}/candidates", None),
    ("GET", "/device_profiles?name={}", None),
    ("GET", "/device_profiles?marker={}", None),
    ("PUT", "/device_profiles/{}", {"name": "{}", "groups": [{}]}),
    ("DELETE", "/device_profiles/{}", None),
    ("DELETE", "/device_profiles?value={}", None),
    ("POST", "/device_profiles", {"name": "{}", "groups": [{}]}),
    ("POST", "/accelerator_requests", {"device_profile_name": "{}"}),
    ("POST", "/function_misses", {"device_profile_name": "{}"}),
    ("POST", "/allocations", {"consumer": JOB, "device_profile_name": "{}"}),
    ("POST", "/allocations", {"consumer": JOB, "device_profile_name": "{}", "dry_run": True}),
    ("POST", "/allocations", {"consumer": JOB, "alternatives": [PUBLIC_PART, PART]}),
    ("POST", "/allocations", {"consumer": JOB, "parts": [PUBLIC_PART, PART]}),
    ("POST", "/device_profiles/{}/enable", None),
    ("POST", "/device_profiles/{}/disable", None),
]


def test_a_private_profile_looks_like_none(ask) -> None:
    make_profile(ask, "public")
    make_profile(ask, "hidden", visibility="private", projects=["p9"], uuid=HIDDEN)

    def answer(name: str) -> list[object]:
        filled = json.loads(json.dumps(body).replace('"{}"', json.dumps(name)))
        found = ask(method, path.format(name), filled, who)
        text = found.text.replace(name, "NAME").partition("request_id")[0]
        return [found.status_int, text]

    others = (MEMBER, MANAGER, SERVICE, {**SERVICE, "X-Roles": "member,service"})
    for who, (method, path, body) in itertools.product(others, NAMING):
        assert answer("hidden") == answer("absent"), (who, method, path, body)
        assert answer(HIDDEN) == answer(ABSENT), (who, method, path, body)


KUBE = {**MEMBER, "X-Roles": "member,reader,cyborg_kube"}


@pytest.fixture
def kube_policy(conf: cfg.ConfigOpts) -> None:
    """The policy file that is shipped for nodes of Kubernetes."""
    shipped = servers.REPOSITORY / "etc" / "kubernetes" / "policy.yaml"
    opts.set_defaults(conf)
    conf.set_override("policy_file", str(shipped), group="oslo_policy")


def test_a_node_of_kubernetes_allocates_by_groups_and_learns_no_names(kube_policy, ask) -> None:
    make_profile(ask, "hidden", visibility="private", projects=["p9"])
    group = {"groups": [{"resources:FPGA": "1"}]}
    for name in ("hidden", "absent"):
        assert ask("POST", "/device_profiles", {"name": name, **group}, KUBE).status_int == 403
    # There is no Placement here: 501 is said where it is permitted.
    for who, status in ((MEMBER, 403), (KUBE, 501)):
        assert ask("POST", "/allocations", {"consumer": JOB, **group}, who).status_int == status


HOT = "0000:3b:00.0 on host-1 is hot by /sys/class/hwmon/hwmon1"


def bind_of_member(ask: Ask) -> tuple[str, dict[str, Any]]:
    """A new request of the project, and the body that binds it."""
    make_profile(ask, "one")
    new = {"device_profile_name": "one"}
    (arq,) = ask("POST", "/accelerator_requests", new, MEMBER).json["arqs"]
    where = {"hostname": "host-1.example", "device_rp_uuid": boots.RP, "instance_uuid": INSTANCE}
    patch = [{"op": "add", "path": f"/{name}", "value": value} for name, value in where.items()]
    return arq["uuid"], {arq["uuid"]: patch}


def test_a_tenant_learns_what_happened_and_not_where(ask: Ask, conf: cfg.ConfigOpts) -> None:
    hosts.apply(hosts.card("a", program_mode="dynamic", function="aes"))
    uuid, body = bind_of_member(ask)
    assert ask("PATCH", "/accelerator_requests", body).status_int == 202
    hosts.apply(hosts.card("a", program_mode="dynamic", function="aes", unhealthy=HOT))
    engine.drain(conf)

    def reason(who: Mapping[str, str]) -> str:
        found = ask("GET", f"/accelerator_requests/{uuid}", who=who).json
        assert found["state"] == "BindFailed"
        return str(found["state_reason"])

    assert reason(ADMIN) == f"Provider {boots.RP} is unhealthy: {HOT}."
    assert reason(MEMBER) == f"Provider {boots.RP} is unhealthy."
    nova = {**MEMBER, "X-Service-Roles": "service"}
    refused = ask("GET", f"/accelerator_requests?instance={INSTANCE}", None, nova)
    assert refused.status_int == 409
    assert "is unhealthy. Delete" in refused.text


def test_a_refused_bind_tells_a_tenant_what_and_not_where(ask: Ask) -> None:
    hosts.apply(hosts.card("a", program_mode="dynamic", function="aes", unhealthy=HOT))
    _, body = bind_of_member(ask)

    def refusal(who: Mapping[str, str]) -> str:
        answer = ask("PATCH", "/accelerator_requests", body, who)
        assert answer.status_int == 409, answer.text
        return str(answer.json["errors"][0]["detail"])

    device = f"the device of provider {boots.RP}"
    what = f"device_rp_uuid: {device} is unhealthy; choose another provider"
    assert refusal({**MEMBER, "X-Service-Roles": "service"}) == f"{what}."
    assert refusal(ADMIN) == f"{what}: {HOT}"
    # Administrators find in the history why, whoever was refused.
    with db.reader() as session:
        kept = set(session.scalars(sa.select(models.HistoryEntry.private_reason)))
    assert f"{what}: {HOT}" in kept
    with db.writer() as session:
        db.update(session, models.Device, unhealthy=None)
        session.add(
            models.ResourceProvider(
                uuid=boots.RP,
                name="host-1_a",
                host_id=session.scalars(sa.select(models.Host.id)).one(),
                withheld="instance-of-others holds it.",
            )
        )
    assert "instance-of-others" not in refusal({**MEMBER, "X-Service-Roles": "service"})
    assert "instance-of-others" in refusal(ADMIN)
