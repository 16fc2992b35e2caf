# SPDX-License-Identifier: Apache-2.0
"""Production in small: the guide's cyborg.conf with quorum queues, TLS and Galera's options,
MariaDB, uWSGI, two conductors and an agent, each a process of its own.
"""

from __future__ import annotations

import contextlib
import json
import pathlib
from collections.abc import Iterator

import pytest
import sqlalchemy as sa

from cyborg import db, host_keys, work
from cyborg.db import models
from cyborg.inventory.apply import provider_uuid
from cyborg.tests import deployment, servers, tls
from cyborg.tests.deployment import Deployment
from cyborg.tests.novasink import NovaSink
from cyborg.tests.ports import free_port
from cyborg.tests.standalone_site import wait_for

pytestmark = [
    pytest.mark.services,
    pytest.mark.parametrize("database_kind", ["mysql"], indirect=True),
]

HOST = f"compute-{servers.MINE}"
CONDUCTORS = ("conductor-1", "conductor-2")
RP = provider_uuid(f"{HOST}_FakeDevice")
GROUPS = [{"resources:FPGA": "1"}]


@pytest.fixture
def vhost() -> Iterator[str]:
    with servers.new_vhost() as url:
        yield url


@pytest.fixture
def authority(tmp_path: pathlib.Path) -> tls.Authority:
    """Whom the services trust, which is ``ca.pem`` in the test's folder."""
    return tls.Authority(tmp_path)


@pytest.fixture
def broker(vhost: str, authority: tls.Authority) -> Iterator[str]:
    """The URL of a TLS port of RabbitMQ."""
    plain = sa.make_url(vhost)
    with tls.in_front_of(plain.port or 0, authority.server_context()) as port:
        yield plain.set(port=port).render_as_string(hide_password=False)


@pytest.fixture
def control(tmp_path: pathlib.Path) -> pathlib.Path:
    return tmp_path / "control.json"


@pytest.fixture
def cyborg(
    database, database_url, broker, placement, sink, tmp_path, control, request
) -> Iterator[Deployment]:
    """Everything runs, and the agent's device is on offer."""
    more = {name: text.format(folder=tmp_path) for name, text in getattr(request, "param", ())}
    placement.make_provider(HOST)
    one = Deployment(
        tmp_path,
        **deployment.options(
            database_url, broker, tmp_path / "ca.pem", placement, sink.url, control
        )
        | more,
    )
    with contextlib.ExitStack() as stack:
        stack.callback(one.kill)
        for name in CONDUCTORS:
            one.start(name, "cyborg-conductor")
        own = stack.enter_context(servers.user_of_agent(broker, HOST))
        one.enrol(HOST)
        one.start(HOST, "cyborg-agent", DEFAULT__transport_url=own)
        one.start_api(free_port())
        wait_for("the device", lambda: one.get("/devices")["devices"] and not _left())
        yield one
        # Whatever the test left to be done is done now, so that all can be checked.
        control.write_text("{}")
        wait_for("all work", _hurry)


def _left() -> list[models.Work]:
    with db.reader() as session:
        return list(session.scalars(sa.select(models.Work)))


@db.retry
def _hurry() -> bool:
    """Whether nothing is left to be done; what backs off is due now."""
    with db.writer() as session:
        db.update(session, models.Work, models.Work.owner.is_(None), due_ms=0)
    return not _left()


def _bind(cyborg: Deployment, count: int = 1, **headers: str) -> tuple[str, list[str]]:
    """Ask for ARQs of a new instance and have them bound; instance and ARQs."""
    name, instance = f"dp-{models.new_uuid()}", models.new_uuid()
    cyborg.ask("POST", "/v2/device_profiles", [{"name": name, "groups": GROUPS * count}])
    made = cyborg.ask("POST", "/v2/accelerator_requests", {"device_profile_name": name})
    arqs = [arq["uuid"] for arq in made.json()["arqs"]]
    wanted = {"hostname": HOST, "device_rp_uuid": RP, "instance_uuid": instance}
    patch = [{"path": f"/{path}", "op": "add", "value": value} for path, value in wanted.items()]
    answer = cyborg.ask(
        "PATCH", "/v2/accelerator_requests", dict.fromkeys(arqs, patch), **headers
    )
    assert answer.status_code == 202, answer.text
    return instance, arqs


def _bound(cyborg: Deployment, instance: str) -> bool:
    arqs = cyborg.get(f"/accelerator_requests?instance={instance}")["arqs"]
    return {arq["state"] for arq in arqs} == {"Bound"}


def _owner() -> str:
    """The conductor that holds a host step at present, or nothing."""
    with db.reader() as session:
        owner = session.scalar(
            sa.select(models.Work.owner).where(models.Work.kind == work.HOST_STEP)
        )
    return owner.partition("/")[0] if owner else ""


def _assert_work_is_handed_back(cyborg: Deployment, control: pathlib.Path) -> None:
    """By a conductor that is stopped, to the other one."""
    control.write_text(json.dumps({"prepare": {"hang": True}}))
    prepared = cyborg.log(HOST).count("Fake prepare")
    instance, _arqs = _bind(cyborg)
    # Before the agent can be reached, conductors try in vain and give the step back.
    wait_for("the step", lambda: cyborg.log(HOST).count("Fake prepare") > prepared)
    first = wait_for("a conductor with a host step", _owner)
    (other,) = set(CONDUCTORS) - {first}
    cyborg.terminate(first)
    # Its lease would not have ended: it is renewed while the step runs.
    cyborg.wait(first)
    assert "Giving back 1 unfinished pieces of work" in cyborg.log(first)
    wait_for("the other conductor", lambda: _owner() == other)
    control.write_text("{}")
    wait_for("the bind", lambda: _bound(cyborg, instance))


def _assert_nobody_is_trusted(cyborg: Deployment, refusal: str, **options: str) -> None:
    """A conductor with these options has found that the broker is another."""
    cyborg.start("stranger", "cyborg-conductor", **options)
    wait_for("the refusal", lambda: refusal in cyborg.log("stranger"))
    cyborg.terminate("stranger")
    cyborg.wait("stranger")


def _assert_other_brokers_are_not_trusted(
    cyborg: Deployment, vhost: str, authority: tls.Authority, folder: pathlib.Path
) -> None:
    """One that somebody else has signed, and a host that has a certificate of the same."""
    wrong = str(tls.Authority(folder, "stranger.pem").file)
    refusal = "CERTIFICATE_VERIFY_FAILED"
    _assert_nobody_is_trusted(cyborg, refusal, oslo_messaging_rabbit__ssl_ca_file=wrong)
    plain = sa.make_url(vhost)
    user, virtual = f"{plain.username}:{plain.password}", plain.database
    with tls.in_front_of(plain.port or 0, authority.server_context("host.example")) as port:
        node = f"{user}@127.0.0.1:{port}"
        for nodes in (node, f"{node},{node}"):
            url = f"rabbit://{nodes}/{virtual}"
            _assert_nobody_is_trusted(cyborg, "IP address mismatch", DEFAULT__transport_url=url)


def test_a_life_on_quorum_queues_and_tls(
    cyborg, vhost, sink, placement, control, authority, tmp_path
) -> None:
    request_id = f"req-{models.new_uuid()}"
    instance, arqs = _bind(cyborg, 4, **{"X-OpenStack-Request-ID": request_id})
    wait_for("the bind", lambda: _bound(cyborg, instance))
    wait_for("the event", lambda: sink.events == dict.fromkeys(arqs, "completed"))
    assert set(sink.request_ids) == {request_id}
    assert request_id in "".join(cyborg.log(name) for name in CONDUCTORS)
    assert request_id in cyborg.log(HOST)
    # Every message was signed.
    (key,) = host_keys.list_keys(HOST)
    assert key.used_ms is not None
    assert "Refused" not in "".join(cyborg.log(name) for name in (*CONDUCTORS, HOST))

    queues = servers.rabbitmqctl(
        "list_queues", "-p", str(sa.make_url(vhost).database), "name", "type", "durable"
    ).splitlines()[1:]
    assert any(line.startswith("cyborg-conductor\t") for line in queues)
    assert any(line.startswith("reply_") and ":" not in line for line in queues)
    # Those of the agent are its own, so that no other host can have them or delete them.
    own, replies = f"cyborg-agent.{HOST}", f"reply_{HOST}:"
    names = {line.split("\t", 1)[0] for line in queues}
    of_agent = {name for name in names if name.startswith("cyborg-agent") or ":" in name}
    assert {own, f"{own}._"} < of_agent
    assert any(name.startswith(replies) for name in of_agent)
    assert all(name.startswith((own, replies)) for name in of_agent), of_agent
    assert {line.split("\t", 1)[1] for line in queues} == {"quorum\ttrue"}

    wait_for("good health", lambda: cyborg.ask("GET", "/healthcheck").status_code == 200)
    done = cyborg.run("cyborg-status", "check", "--format", "json")
    assert (done.returncode, json.loads(done.stdout)["hosts"]["compared"]) == (0, 1)
    checked = cyborg.run("cyborg-status", "upgrade", "check").stdout
    unread = " ".join(checked.replace("|", " ").split()).count("is not read by this release")
    results = (checked.count("Result: Success"), checked.count("Result: Warning"))
    assert (results, unread) == ((6, 0), 0)

    gone = cyborg.ask("DELETE", f"/v2/accelerator_requests?instance={instance}")
    assert gone.status_code == 204
    wait_for("the handles", lambda: _hurry() and placement.offered(RP)["FPGA"] == (16, 0))
    _assert_other_brokers_are_not_trusted(cyborg, vhost, authority, tmp_path)
    _assert_work_is_handed_back(cyborg, control)
    for name in (*CONDUCTORS, HOST, "api"):
        cyborg.terminate(name)
    assert [cyborg.wait(name) for name in (*CONDUCTORS, HOST, "api")] == [0, 0, 0, 0]
    # A report may have come in just before the end; what it wants is done by the next conductor.
    cyborg.start("conductor-3", "cyborg-conductor")


_AS_JSON = {"use_json": "true", "debug": "true", "log_file": "{folder}/all.json"}


@pytest.mark.parametrize(
    "cyborg", [[(f"DEFAULT__{name}", text) for name, text in _AS_JSON.items()]], indirect=True
)
def test_each_line_of_every_log_is_an_object_that_names_its_request(
    cyborg: Deployment, sink: NovaSink, control: pathlib.Path, tmp_path: pathlib.Path
) -> None:
    request_id = f"req-{models.new_uuid()}"
    # What a driver says may be anything, and so may the reason of a failure.
    control.write_text(json.dumps({"prepare": {"fail": 'two\nlines, "quotes"'}}))
    instance, arqs = _bind(cyborg, 1, **{"X-OpenStack-Request-ID": request_id})
    wait_for("the event", lambda: sink.events == dict.fromkeys(arqs, "failed"))
    control.write_text("{}")
    cyborg.ask("DELETE", f"/v2/accelerator_requests?instance={instance}")
    wait_for("all work", _hurry)
    for name in (*CONDUCTORS, HOST, "api"):
        cyborg.terminate(name)
        cyborg.wait(name)

    lines = (tmp_path / "all.json").read_text().splitlines()
    records = [json.loads(line) for line in lines]
    assert {type(record) for record in records} == {dict}
    ids = ("global_request_id", "request_id")
    of_request = [
        record
        for record in records
        if request_id in {record["context"].get(name) for name in ids}
    ]
    spoke = {record["name"].split(".")[1] for record in of_request}
    assert {"agent", "arqs"} <= spoke
    # The API, a conductor and the agent.
    assert len({record["process"] for record in of_request}) >= 3
    assert any(record["levelname"] == "WARNING" for record in of_request)
    cyborg.start("conductor-3", "cyborg-conductor")
