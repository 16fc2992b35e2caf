# SPDX-License-Identifier: Apache-2.0
"""A browser, and the status page of a small fleet before it."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from cyborg.tests import callers, scene, shown_fleet
from cyborg.tests.browser import Browser


@pytest.fixture(scope="session")
def chromium(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    """One for all tests: its start takes longer than many a test."""
    one = Browser(tmp_path_factory.mktemp("chromium"))
    yield one
    one.driver.quit()


@pytest.fixture
def browser(conf, database, enforcer, chromium) -> Iterator[Browser]:
    """The browser, which has not opened the page of the fleet yet."""
    conf.set_override("auth_strategy", "noauth", group="api")
    conf.set_override("status_page", True, group="api")
    projects = shown_fleet.PROJECTS
    shown_fleet.make([callers.admin(enforcer, project_id=each) for each in projects])
    with scene.serving(conf) as url:
        chromium.reset(url.removesuffix("/v2"))
        yield chromium
        # Its connections end before the server does.
        chromium.driver.get("about:blank")
