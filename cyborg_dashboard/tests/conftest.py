# SPDX-License-Identifier: Apache-2.0
"""Horizon in this process, for users who are signed in, in front of the API over HTTP."""

from __future__ import annotations

import datetime
import os
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import django
import lxml.html
import pytest
from django.conf import settings
from django.test import client
from django.test import utils as django_utils

os.environ["DJANGO_SETTINGS_MODULE"] = "cyborg_dashboard.tests.settings"
django.setup()

from openstack_auth import policy as auth_policy  # noqa: E402
from openstack_auth import user, utils  # noqa: E402

from cyborg.tests import service  # noqa: E402
from cyborg.tests.conftest import (  # noqa: E402, F401
    conf,
    database,
    database_driver,
    database_kind,
    database_url,
    enforcer,
    lines_of_this_test_alone,
    log_as_it_was,
    sink,
    templates,
)
from cyborg_dashboard.tests.identity import Identity  # noqa: E402

#: Fixtures of these the tests of Cyborg have, too.
_MODULES = (
    "cyborg.tests.placement_server",
    "cyborg.tests.service",
    "cyborg_dashboard.tests.identity",
)


def pytest_plugin_registered(plugin: object, manager: pytest.PytestPluginManager) -> None:
    """Load the modules of fixtures; ``pytest .`` permits no ``pytest_plugins`` in this folder."""
    if getattr(plugin, "__file__", None) == __file__:
        for name in _MODULES:
            manager.import_plugin(name)


class Token:
    """A token that Keystone has given."""

    def __init__(self, text: str) -> None:
        self.id = text
        self.project = {"id": service.USER_PROJECT}
        self.expires = datetime.datetime.now(datetime.UTC) + datetime.timedelta(hours=1)


@dataclass
class Dashboard:
    """Horizon, for whoever is signed in: an administrator at first."""

    catalogue: dict[str, str]
    browser: client.Client = field(default_factory=client.Client)
    #: As Placement without Keystone takes it, too.
    token: str = "admin"
    roles: tuple[str, ...] = ("admin", "manager", "member", "reader")

    def sign_in(self, token: str, *roles: str) -> None:
        """Let somebody else look at the pages."""
        self.token, self.roles = token, roles

    def user(self, _request: object = None) -> user.User:
        """Who looks, as Keystone would tell it."""
        known = user.User(
            id="user-2",
            token=Token(self.token),
            user="somebody",
            tenant_id=service.USER_PROJECT,
            tenant_name=service.USER_PROJECT,
            roles=[{"name": role} for role in self.roles],
            enabled=True,
            authorized_tenants=[],
            service_catalog=[self._service(*each) for each in self.catalogue.items()],
            services_region="RegionOne",
            user_domain_id="default",
        )
        known._is_system_user = False
        return known

    def _service(self, kind: str, url: str) -> dict[str, Any]:
        endpoint = {"region": "RegionOne", "interface": "public", "url": url, "id": kind}
        return {"type": kind, "name": kind, "id": f"{kind}-id", "endpoints": [endpoint]}

    def get(self, path: str, **query: str) -> str:
        """The page at a path, which is served."""
        answer = self.browser.get(path, query)
        assert answer.status_code == 200, (answer.status_code, answer.headers)
        return answer.content.decode()

    def follow(self, path: str) -> str:
        """The page that a path leads to."""
        answer = self.browser.get(path, follow=True)
        assert answer.status_code == 200, answer.status_code
        return answer.content.decode()

    def post(self, path: str, **fields: Any) -> str:
        """What a form leads to: another page, or the form again."""
        answer = self.browser.post(path, fields, follow=True)
        assert answer.status_code == 200, answer.status_code
        return answer.content.decode()


def told(page: str, kind: str = "danger") -> list[str]:
    """The messages of a page: ``danger``, ``info``, ``success``."""
    found = lxml.html.fromstring(page).xpath(f"//div[contains(@class, 'alert-{kind}')]/p")
    return [_words(each) for each in found]


def words(page: str) -> str:
    """The text of the part of a page that is its own."""
    return _words(lxml.html.fromstring(page).get_element_by_id("content_body"))


def table(page: str, name: str) -> list[list[str]]:
    """The rows of a table of a page, each a list of what its cells say."""
    rows = _table(page, name).xpath(".//tbody/tr[@data-object-id]")
    return [[_words(cell) for cell in row.xpath("./td")] for row in rows]


def choices(page: str, name: str) -> list[str]:
    """What a field of a form offers."""
    return list(lxml.html.fromstring(page).xpath(f"//select[@name='{name}']/option/@value"))


def headings(page: str, name: str) -> list[str]:
    """The headings of the columns of a table."""
    found = _table(page, name).xpath(".//thead//th[contains(@class, 'normal_column')]")
    return [_words(each) for each in found]


def _table(page: str, name: str) -> Any:
    return lxml.html.fromstring(page).get_element_by_id(name)


def _words(element: Any) -> str:
    return " ".join(" ".join(element.itertext()).split())


@pytest.fixture
def dashboard(
    site: service.Site, identity: Identity, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Dashboard]:
    """Horizon in front of the API of the site."""
    catalogue = {"identity": identity.url, "placement": site.placement.url}
    one = Dashboard({"accelerator": site.endpoint, **catalogue})
    monkeypatch.setattr(utils, "get_user", one.user)
    # The navigation of every page has panels that would ask other services.
    for panel in settings.TEST_GLOBAL_MOCKS_ON_PANELS.values():
        monkeypatch.setattr(panel["method"], lambda *_: True)
    auth_policy.reset()
    django_utils.setup_test_environment()
    yield one
    django_utils.teardown_test_environment()
