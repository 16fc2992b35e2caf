# SPDX-License-Identifier: Apache-2.0
"""A member who wants what is not the project's, and another site whose page sends forms."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import sqlalchemy as sa
from django import urls
from django.test import client

from cyborg import db
from cyborg.db import models
from cyborg.programming import operations
from cyborg.tests import hosts, shown_fleet
from cyborg.tests.service import USER_TOKEN, Site
from cyborg_dashboard.admin import devices, overview, pools, profiles
from cyborg_dashboard.tests.conftest import Dashboard, table, told, words

#: By the slug of its panel, the pages for administrators.
ADMIN = {
    "accelerators": overview,
    "accelerator_devices": devices,
    "accelerator_profiles": profiles,
    "accelerator_pools": pools,
}
OWN, OFFERED = "/project/accelerators/", "/project/accelerator_profiles/"
GROUPS = [{"resources:FPGA": "1"}]
#: The names that the other project has given.
SECRETS = ("of-others-profile", "of-others-job")
Ids = dict[str, str]


def cloud(site: Site, profile: str) -> Ids:
    """Ids of the things of a cloud with a card, by the panel about them."""
    private = {"name": profile, "groups": GROUPS, "visibility": "private", "projects": ["other"]}
    pool = {"name": "warm", "function_id": "aes", "free": 1, "max_devices": 1}
    return {
        "accelerator_devices": site.call("GET", "/devices")["devices"][0]["uuid"],
        "accelerator_profiles": site.call("POST", "/device_profiles", private, "2.4")["uuid"],
        "accelerator_pools": site.call("POST", "/function_pools", pool, "2.4")["uuid"],
    }


@pytest.fixture
def foreign(site: Site) -> Ids:
    """The same, with a request and an allocation of another project."""
    site.start_with(hosts.card())
    profile, job = SECRETS
    found = cloud(site, profile) | {"allocations": models.new_uuid()}
    (arq,) = site.call("POST", "/accelerator_requests", {"device_profile_name": profile})["arqs"]
    consumer = {"uuid": found["allocations"], "type": "JOB", "name": job}
    site.call("POST", "/allocations", {"consumer": consumer, "groups": GROUPS}, "2.4")
    return found | {"requests": arq["uuid"]}


def places(known: Ids) -> Iterator[str]:
    """Each page for administrators; where it is about one thing, about one that there is."""
    for slug, module in ADMIN.items():
        for page in module.urlpatterns:
            kinds = [type(each).__name__ for each in page.pattern.converters.values()]
            given = [hosts.ROOT if kind == "PathConverter" else known[slug] for kind in kinds]
            yield urls.reverse(f"horizon:admin:{slug}:{page.name}", args=given)


def test_a_member_is_shown_nothing_of_others(foreign: Ids, dashboard: Dashboard) -> None:
    dashboard.sign_in(USER_TOKEN, "member", "reader")
    for place in places(foreign):
        answers = [dashboard.browser.get(place), dashboard.browser.post(place)]
        assert [each.status_code for each in answers] == [403, 403], place
    behind = [{f"{kind}_after": foreign[kind]} for kind in ("requests", "allocations")]
    for page, query in ((OWN, {}), (OFFERED, {}), *((OWN, each) for each in behind)):
        shown = dashboard.get(page, **query)
        assert [each for each in SECRETS if each in shown] == []
        for name in ("requests", "allocations") if page == OWN else ("profiles",):
            assert table(shown, name) == []
        assert len(told(shown)) == len(query)


def test_a_page_of_another_site_sends_no_form(
    foreign: Ids, site: Site, dashboard: Dashboard
) -> None:
    dashboard.browser = client.Client(enforce_csrf_checks=True)
    for place in places(foreign):
        assert dashboard.browser.post(place, {"reason": "why not"}).status_code == 403, place
    assert site.call("GET", "/devices", version="2.3")["devices"][0]["status"] == "enabled"


@pytest.mark.makes_up_rows
def test_what_others_name_is_no_markup(site: Site, dashboard: Dashboard) -> None:
    site.populate()
    known = cloud(site, "one")
    operation = {"deployable_uuid": models.new_uuid(), "asked_ms": 0, "asked_by": ""}
    with db.writer() as session:
        session.add(models.Operation(**operation, state=operations.FAILED, history=[]))
    shown_fleet.poison()
    with db.writer() as session:
        # Resource classes have letters, digits and underscores only.
        attribute = models.Attribute
        db.update(session, attribute, attribute.key == "rc", value="FPGA")
        its = session.scalars(sa.select(models.Operation.uuid)).one()
    at = f"/admin/accelerator_devices/operation/{its}/"
    host = urls.reverse("horizon:admin:accelerator_devices:host", args=[shown_fleet.NAME])
    drain = urls.reverse("horizon:admin:accelerator_devices:hosts_drain", args=[shown_fleet.NAME])
    for page in (*places(known), at, host, drain, OWN, OFFERED):
        shown = dashboard.follow(page)
        assert "<script>document" not in shown, page
        assert "\u202e" not in words(shown), page
        assert len(shown) < 400_000


@pytest.mark.makes_up_rows
@pytest.mark.parametrize("name", ["", "a\nb", "..", "a/../b?c#d"])
def test_a_host_of_any_name_leaves_the_panels_as_they_are(
    site: Site, dashboard: Dashboard, name: str
) -> None:
    site.populate()
    with db.writer() as session:
        db.update(session, models.Host, node=name)
    for slug in ("accelerators", "accelerator_devices"):
        page = dashboard.get(f"/admin/{slug}/")
        assert told(page) == []
