# SPDX-License-Identifier: Apache-2.0
"""How many requests a page sends does not depend on how much there is."""

from __future__ import annotations

import pytest
import requests
import sqlalchemy as sa

from cyborg import db
from cyborg.db import models
from cyborg.tests import hosts, leaving
from cyborg.tests.service import USER_PROJECT, USER_TOKEN, Site
from cyborg_dashboard.tests.conftest import Dashboard, table, words

DEVICES = "/admin/accelerator_devices/"
#: Each page, and a table of it that the fleet fills.
PAGES = {
    "/admin/accelerators/": "hosts",
    DEVICES: "devices",
    "/admin/accelerator_profiles/": "profiles",
    "/admin/accelerator_pools/": "pools",
    "/project/accelerators/": "requests",
    "/project/accelerator_profiles/": "profiles",
}
#: Horizon's default, and more than that.
SHOWN, MANY = 20, 25
GROUP = {"resources:FPGA": "1"}


def _add(first: int, count: int) -> None:
    """Let there be more of everything."""
    with db.writer() as session:
        for each in range(first, first + count):
            pool = {"name": f"pool-{each}", "function_id": "a", "function_plain": "a", "free": 0}
            arq = {"project_id": USER_PROJECT, "state": "Initial", "device_profile_name": "one"}
            session.add_all([
                models.FunctionPool(**pool, max_devices=1),
                models.DeviceProfile(name=f"profile-{each}", groups=[GROUP]),
                models.Arq(**arq, group=GROUP),
            ])
    for each in range(first, first + count):
        parts = hosts.deployable(f"h{each}_a", range(MANY))
        hosts.apply(hosts.device("a", parts), host=f"h{each}")


def test_the_requests_of_a_page_do_not_grow_with_the_rows(
    site: Site, dashboard: Dashboard, monkeypatch: pytest.MonkeyPatch
) -> None:
    sent: list[str] = []
    send = requests.Session.request

    def note(session: requests.Session, method: str, url: str, **options: object) -> object:
        sent.append(url)
        return send(session, method, url, **options)  # type: ignore[arg-type]

    monkeypatch.setattr(requests.Session, "request", note)

    def seen(page: str, name: str) -> tuple[int, int]:
        is_own = page.startswith("/project/")
        dashboard.sign_in(*(USER_TOKEN, "member", "reader") if is_own else ("admin", "admin"))
        sent.clear()
        return len(table(dashboard.get(page), name)), len(sent)

    _add(0, 1)
    (device,) = site.call("GET", "/devices")["devices"]
    few = {page: seen(page, name) for page, name in PAGES.items()}
    assert {rows for rows, _ in few.values()} == {1}
    _add(1, MANY)
    many = {page: seen(page, name) for page, name in PAGES.items()}
    assert many == {page: (SHOWN, calls) for page, (_, calls) in few.items()}
    rows, calls = seen(f"{DEVICES}device/{device['uuid']}/", "handles")
    assert (rows, calls) == (SHOWN, few[DEVICES][1] + 3)


@pytest.mark.makes_up_rows
def test_a_host_with_many_users_names_the_oldest(site: Site, dashboard: Dashboard) -> None:
    _add(0, 1)
    with db.writer() as session:
        for handle in session.scalars(sa.select(models.AttachHandle)):
            leaving.left(session, handle)
    page = dashboard.get(f"{DEVICES}host/h0/")
    assert len(table(page, "users")) == SHOWN
    assert f"In use {MANY}" in words(page)
