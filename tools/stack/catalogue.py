# SPDX-License-Identifier: Apache-2.0
"""Services, endpoints and users in Keystone. Each function may be repeated."""

from __future__ import annotations

import settings
from keystoneauth1.identity import v3
from openstack import connection

#: Services other than Keystone itself, which its bootstrap command registers.
_SERVICES = {name: kind for name, (_, kind) in settings.WSGI.items() if name != "keystone"}
#: A project, and its user without special rights.
MEMBER = "tenant"


def connect(known: settings.Known, user: str, project: str) -> connection.Connection:
    """A connection of openstacksdk for a user."""
    auth = v3.Password(
        auth_url=known.url("keystone"),
        username=user,
        password=known.password,
        project_name=project,
        user_domain_id="default",
        project_domain_id="default",
    )
    return connection.Connection(
        session=_session(auth), region_name=settings.REGION, interface="public"
    )


def _session(auth: v3.Password) -> connection.ks_session.Session:
    return connection.ks_session.Session(auth=auth)


def fill(known: settings.Known) -> None:
    """Create what does not exist."""
    cloud = connect(known, "admin", "admin")
    _ensure_project(cloud, "service")
    for role in ("service", "member", "reader", "manager"):
        if cloud.identity.find_role(role) is None:
            cloud.identity.create_role(name=role)
    for name, kind in _SERVICES.items():
        _ensure_user(cloud, known, name, "service", ("admin", "service"))
        _ensure_endpoint(cloud, known, name, kind)
    _ensure_project(cloud, MEMBER)
    _ensure_user(cloud, known, MEMBER, MEMBER, ("member",))


def _ensure_project(cloud: connection.Connection, name: str) -> None:
    if cloud.identity.find_project(name) is None:
        cloud.identity.create_project(name=name, domain_id="default")


def _ensure_user(
    cloud: connection.Connection,
    known: settings.Known,
    name: str,
    project_name: str,
    roles: tuple[str, ...],
) -> None:
    user = cloud.identity.find_user(name) or cloud.identity.create_user(
        name=name, password=known.password, domain_id="default"
    )
    project = cloud.identity.find_project(project_name, ignore_missing=False)
    for role_name in roles:
        role = cloud.identity.find_role(role_name, ignore_missing=False)
        project.assign_role_to_user(cloud.identity, user, role, inherited=False)


def _ensure_endpoint(
    cloud: connection.Connection, known: settings.Known, name: str, kind: str
) -> None:
    service = cloud.identity.find_service(name) or cloud.identity.create_service(
        name=name, type=kind
    )
    # Nova appends paths to the accelerator endpoint, so it must contain the version.
    path = {"cyborg": "/v2", "nova": "/v2.1"}.get(name, "")
    if not list(cloud.identity.endpoints(service_id=service.id)):
        cloud.identity.create_endpoint(
            service_id=service.id,
            interface="public",
            region_id=settings.REGION,
            url=known.url(name) + path,
        )
