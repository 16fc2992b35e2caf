# SPDX-License-Identifier: Apache-2.0
"""The API over HTTP behind Keystone, and something of everything that personas may want."""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Iterator, Mapping
from typing import Any

import pytest
import requests
import sqlalchemy as sa
from cryptography.hazmat.primitives.asymmetric import ed25519
from oslo_config import cfg
from sqlalchemy import orm

from cyborg import db, history, profiles, work
from cyborg.api import app, server
from cyborg.db import models
from cyborg.hosts import flags
from cyborg.inventory import attributes
from cyborg.policy.enforcer import Enforcer
from cyborg.programming import operations
from cyborg.rpc import signing
from cyborg.states import allocation_states as states
from cyborg.tests import boots, callers, hosts, leaving
from cyborg.tests.keystone_server import Keystone
from cyborg.tests.personas import PROJECTS, Personas

#: Seconds within which the API answers, even on a busy machine.
PATIENCE = 180
#: What a project has: its id, a profile that is private to it, a free ARQ, one of an instance, and
#: what the history says of that, and the allocation of another consumer.
NAMES_OF_A_PROJECT = (
    *("project", "private", "private_name", "arq", "bound", "instance", "entry"),
    "allocation",
)
#: What requests can change.
_TABLES = (
    models.Allocation,
    models.Arq,
    models.Attribute,
    models.Device,
    models.DeviceProfile,
    models.Operation,
    models.FunctionPool,
    models.FunctionMiss,
    models.Host,
    models.HostKey,
)
_numbers = itertools.count(1)


class Scene:
    """A host with three cards, and a dead one; a profile for all, and things of each project.

    The second card is out of service and gone, and the third one can be programmed.
    """

    def __init__(self, url: str, personas: Personas, enforcer: Enforcer) -> None:
        self.url = url
        self._personas = personas
        self._enforcer = enforcer
        self._http = requests.Session()
        hosts.apply(hosts.card("a"), hosts.card("b"), hosts.card("c", program_mode="dynamic"))
        self._names = self._make_common()
        self._owned = {name: self._make_owned(name) for name in PROJECTS}
        with db.reader() as session:
            self._saved = {
                table: [row._asdict() for row in session.execute(sa.select(table))]
                for table in models.Base.metadata.sorted_tables
            }
        self._made = self._state()

    def _make_common(self) -> dict[str, str]:
        with db.reader() as session:
            host = session.scalars(sa.select(models.Host)).one()
            deployable, unused, programmable = session.scalars(
                sa.select(models.Deployable)
                .options(orm.joinedload(models.Deployable.device))
                .order_by(models.Deployable.name)
            )
        flags.disable_device(unused.device.uuid)
        flags.taint_device(programmable.device.uuid)
        colour = attributes.NewAttribute(deployable_id=deployable.id, key="colour", value="blue")
        (attribute,) = attributes.create_attributes([colour])
        profile = profiles.create_profile(
            name="public", groups=[dict(boots.GROUP)], description=None
        )
        off = profiles.create_profile(name="off", groups=[dict(boots.GROUP)], description=None)
        with db.writer() as session:
            its = models.DeviceProfile.id == off.id
            db.update(session, models.DeviceProfile, its, enabled=False)
            # Gone, so that it can be removed; and a deletion waits for it.
            gone = models.Device.id == unused.device.id
            db.update(session, models.Device, gone, missing=True)
            host_key = models.HostKey(
                host_name="host-2", public_key="a key", fingerprint=models.new_uuid()
            )
            session.add(host_key)
            # Dead, so that it can be removed.
            dead = models.Host(name="host-2", node="host-2", drained=True, tainted=True, down=True)
            session.add(dead)
            handle = session.scalars(
                sa.select(models.AttachHandle)
                .where(models.AttachHandle.deployable_id == unused.id)
                .limit(1)
            ).one()
            deleting = leaving.left(session, handle)
            operation = models.Operation(
                uuid=models.new_uuid(),
                deployable_uuid=programmable.uuid,
                image_uuid=models.new_uuid(),
                asked_by="user somebody",
                asked_ms=db.now_ms(),
                ended_ms=db.now_ms(),
                state=operations.FAILED,
                error="text",
                fault=operations.BROKEN,
                history=[],
            )
            queued = models.Operation(
                uuid=models.new_uuid(),
                deployable_uuid=deployable.uuid,
                active=deployable.uuid,
                image_uuid=models.new_uuid(),
                asked_by="user somebody",
                asked_ms=db.now_ms(),
                state=operations.QUEUED,
                history=[],
            )
            pool = models.FunctionPool(
                name="pool",
                function_id="aes",
                function_plain="AES",
                free=1,
                max_devices=1,
            )
            session.add_all([operation, queued, pool])
            work.want(session, work.HOST_STEP, [handle.uuid])
            work.want(session, work.PROGRAM, [deployable.uuid])
        return {
            "deleting": deleting,
            "host_key": host_key.fingerprint,
            "new_key": signing.public_text(ed25519.Ed25519PrivateKey.generate()),
            "rp": deployable.rp_uuid,
            "deployable": deployable.uuid,
            "deployable_id": str(deployable.id),
            "programmable": programmable.uuid,
            "operation": operation.uuid,
            "queued": queued.uuid,
            "function_pool": pool.uuid,
            "device": deployable.device.uuid,
            "disabled": unused.device.uuid,
            "tainted": programmable.device.uuid,
            "attribute": attribute.uuid,
            "service": dead.uuid,
            "host": host.name,
            "drained_host": "host-2",
            "device_profile": profile.uuid,
            "disabled_profile": off.uuid,
        }

    def _make_owned(self, project: str) -> dict[str, str]:
        uuid, instance = self._personas.projects[project], models.new_uuid()
        ctx = callers.admin(self._enforcer, project_id=uuid)
        arq, bound = boots.arqs(ctx, 2)
        boots.bind(ctx, [bound], instance)
        profile = profiles.create_profile(
            name=f"private-{project}",
            groups=[dict(boots.GROUP)],
            description=None,
            visibility=profiles.PRIVATE,
            projects=[uuid],
        )
        entry = models.new_uuid()
        about = {"device_uuid": self._names["device"], "project_id": uuid}
        with db.writer() as session:
            history.write(session, [{"uuid": entry, "kind": history.USED, **about}])
            db.update(session, models.Arq, models.Arq.uuid == bound, access_key="secret")
        consumer = self._make_allocation(uuid)
        owned = [uuid, profile.uuid, profile.name, arq, bound, instance, entry, consumer]
        return dict(zip(NAMES_OF_A_PROJECT, owned, strict=True))

    def _make_allocation(self, project: str) -> str:
        """One that is asked for, and has a lease."""
        consumer = {"uuid": models.new_uuid(), "type": "JOB"}
        made = models.Allocation(
            uuid=consumer["uuid"],
            project_id=project,
            user_id="somebody",
            consumer_type="JOB",
            state=states.CLAIMING,
            request={"consumer": consumer, "device_profile_name": "public"},
            alternative=0,
            plan=[],
            accelerators=1,
            lease_seconds=60,
        )
        with db.writer() as session:
            session.add(made)
            work.want(session, work.ALLOCATE, [made.uuid])
        return made.uuid

    def renew(self) -> None:
        """Put everything back to how it was."""
        with db.writer() as session:
            for table in reversed(self._saved):
                session.execute(table.delete())
            for table, rows in self._saved.items():
                if rows:
                    session.execute(table.insert(), rows)

    def names(self, project: str = "own") -> dict[str, str]:
        """The uuids and names of everything, of the project's own things, and some unused."""
        new = {"new": models.new_uuid(), "name": f"name-{next(_numbers)}"}
        return self._names | self._owned[project] | new

    def has_changed(self) -> bool:
        """Whether anything that requests can change is not as it was made."""
        return self._state() != self._made

    def _state(self) -> list[Any]:
        with db.reader() as session:
            rows = [session.execute(sa.select(model.__table__)).all() for model in _TABLES]
        return [tuple(row) for table in rows for row in table]

    def ask(
        self,
        persona: str | None,
        line: str,
        body: Any = None,
        *,
        vouched: bool = False,
        headers: Mapping[str, str] | None = None,
    ) -> requests.Response:
        """Send the request that the line says, such as ``GET /devices``, with the persona's token.

        With ``vouched`` another service sends it on behalf of the persona.
        """
        method, _, path = line.partition(" ")
        tokens = {}
        if persona is not None:
            tokens["X-Auth-Token"] = self._personas.token(persona)
        if vouched:
            tokens["X-Service-Token"] = self._personas.token("nova")
        return self._http.request(
            method,
            f"{self.url}{path}",
            json=body,
            headers={**tokens, **(headers or {})},
            timeout=PATIENCE,
        )


@pytest.fixture
def scene(
    conf: cfg.ConfigOpts,
    database: sa.Engine,
    keystone: Keystone,
    personas: Personas,
    enforcer: Enforcer,
) -> Iterator[Scene]:
    """The API, served with ``conf`` as the test has left it so far."""
    keystone.point_at(conf)
    with serving(conf) as url:
        yield Scene(url, personas, enforcer)


@contextlib.contextmanager
def serving(conf: cfg.ConfigOpts) -> Iterator[str]:
    """While the block runs, the API is served at the URL that it is given."""
    http = server.Server(conf, app.load(conf), "127.0.0.1", 0)
    port = http.listen()
    http.start()
    try:
        yield f"http://127.0.0.1:{port}/v2"
    finally:
        http.stop()
