# SPDX-License-Identifier: Apache-2.0
"""Who may come to the API: users of a real Keystone with real tokens, one user a persona."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import pytest
from keystoneauth1 import adapter, plugin, session
from keystoneauth1.identity import v3

from cyborg.tests import keystone_server
from cyborg.tests.keystone_server import Keystone

PROJECTS = ("own", "other")
#: What a token can be for besides a project; None is a token for nothing in particular.
SCOPES = {"system": {"system_scope": "all"}, "domain": {"domain_id": "default"}, None: {}}


@dataclass(frozen=True)
class Persona:
    """A role somewhere, and a token for that place.

    Each of the roles admin, manager, member and reader implies those after it. With ``alone`` the
    token is an application credential's, which has the role without those.
    """

    role: str | None
    scope: str | None = "own"
    alone: bool = False


PERSONAS = {
    "admin": Persona("admin"),
    "manager": Persona("manager"),
    "member": Persona("member"),
    "reader": Persona("reader"),
    "service": Persona("service"),
    "other": Persona("member", "other"),
    "=admin": Persona("admin", alone=True),
    "=manager": Persona("manager", alone=True),
    "=member": Persona("member", alone=True),
    # A role that means nothing here: Keystone gives no token for a project without any role.
    "guest": Persona("guest"),
    "system-admin": Persona("admin", "system"),
    "domain-admin": Persona("admin", "domain"),
    "unscoped": Persona(None, None),
    "nova": Persona("service", "service"),
}


class Personas:
    """The users in Keystone, with the ids of their projects."""

    def __init__(self, keystone: Keystone, known: dict[str, Any]) -> None:
        self.keystone = keystone
        self.projects: dict[str, str] = known["projects"]
        self._credentials: dict[str, dict[str, Any]] = known["credentials"]
        self._tokens: dict[str, str] = {}

    def log_in(self, name: str) -> plugin.BaseAuthPlugin:
        """How the persona gets a token."""
        if name in self._credentials:
            return _log_in_by(self.keystone, self._credentials[name])
        return _log_in(self.keystone, name)

    def new_token(self, name: str) -> str:
        """A token that no other test has."""
        return str(self.log_in(name).get_token(session.Session()))

    def restricted_token(self, name: str, *rules: dict[str, str]) -> str:
        """A token that is good for the requests of these access rules only."""
        asked = {"name": f"{name}-restricted", "access_rules": rules}
        credential = _make_credential(self.keystone, self.log_in(name), **asked)
        return str(_log_in_by(self.keystone, credential).get_token(session.Session()))

    def token(self, name: str) -> str:
        """The persona's token."""
        if name not in self._tokens:
            self._tokens[name] = self.new_token(name)
        return self._tokens[name]

    def revoke(self, token: str) -> None:
        """Make a token invalid."""
        self.keystone.api().delete("/auth/tokens", headers={"X-Subject-Token": token})

    def project(self, name: str) -> str | None:
        """The id of the project that the persona's token is for."""
        return self.projects.get(PERSONAS[name].scope or "")


def _log_in(keystone: Keystone, name: str) -> v3.Password:
    user, scope = _user(name), PERSONAS[name].scope
    if scope in SCOPES:
        return keystone.log_in(user, unscoped=scope is None, **SCOPES[scope])
    return keystone.log_in(user, scope)


def _log_in_by(keystone: Keystone, credential: dict[str, Any]) -> v3.ApplicationCredential:
    return v3.ApplicationCredential(keystone.url, **credential)


def _user(name: str) -> str:
    # The cloud's administrator is named admin, too.
    return f"user-{name}"


def _make(keystone: Keystone) -> dict[str, Any]:
    """Make projects, users and their roles, as the cloud's administrator."""
    api = keystone.api()

    def make(what: str, **fields: Any) -> str:
        return str(api.post(f"/{what}s", json={what: fields}).json()[what]["id"])

    make("role", name="guest")
    roles = {role["name"]: role["id"] for role in api.get("/roles").json()["roles"]}
    for name in PROJECTS:
        make("project", name=name, domain_id="default")
    projects = {found["name"]: found["id"] for found in api.get("/projects").json()["projects"]}
    places = {name: f"/projects/{uuid}" for name, uuid in projects.items()}
    places |= {"system": "/system", "domain": "/domains/default"}
    for name, persona in PERSONAS.items():
        user = make("user", name=_user(name), password=keystone.password, domain_id="default")
        if persona.role is not None and persona.scope is not None:
            api.put(f"{places[persona.scope]}/users/{user}/roles/{roles[persona.role]}")
    # Without it in the catalogue, no application credential can be for this API only.
    make("service", name="cyborg", type="accelerator")
    credentials = {}
    with _no_implications(api):
        for name, persona in PERSONAS.items():
            if persona.alone:
                asked = {"name": name, "roles": [{"name": persona.role}]}
                credentials[name] = _make_credential(keystone, _log_in(keystone, name), **asked)
    return {"projects": projects, "credentials": credentials}


@contextlib.contextmanager
def _no_implications(api: adapter.Adapter) -> Iterator[None]:
    """While the block runs, no role implies another.

    An application credential gets the implied roles, too, but those at the time it is made.
    """
    paths = [
        f"/roles/{inference['prior_role']['id']}/implies/{implied['id']}"
        for inference in api.get("/role_inferences").json()["role_inferences"]
        for implied in inference["implies"]
    ]
    for path in paths:
        api.delete(path)
    yield
    for path in paths:
        api.put(path)


def _make_credential(
    keystone: Keystone, auth: plugin.BaseAuthPlugin, **fields: Any
) -> dict[str, str]:
    """Make an application credential of the user who logs in, and return what it logs in by."""
    user = auth.get_user_id(session.Session())
    path = f"/users/{user}/application_credentials"
    answer = keystone.api(auth).post(path, json={"application_credential": fields}).json()
    made = answer["application_credential"]
    return {
        "application_credential_id": made["id"],
        "application_credential_secret": made["secret"],
    }


@pytest.fixture(scope="session")
def personas(request, tmp_path_factory, keystone) -> Personas:
    """All of :data:`PERSONAS`, made by the first test process that needs them."""
    folder = keystone_server.shared(request, tmp_path_factory, "keystone")
    known = keystone_server.made_once(folder / "personas.json", lambda: _make(keystone))
    return Personas(keystone, known)
