# SPDX-License-Identifier: Apache-2.0
"""Profiles that are disabled, described and counted, and many attributes made at once."""

from __future__ import annotations

import pytest
import sqlalchemy as sa

from cyborg import db, profiles
from cyborg.arqs import service
from cyborg.db import models
from cyborg.handles import release
from cyborg.policy import context
from cyborg.tests import boots, hosts
from cyborg.tests.mounted_api import Api

pytestmark = pytest.mark.usefixtures("database")

PATH = "/v2/device_profiles"
BODY = {"name": "one", "groups": [dict(boots.GROUP)]}


def names(api: Api, query: str = "", version: str = "latest") -> list[str]:
    answer = api.ask("GET", PATH + query, version=version)
    return [row["name"] for row in answer.json["device_profiles"]]


def test_no_request_is_made_of_a_disabled_profile(api: Api) -> None:
    api.call("POST", PATH, BODY)
    wanted = {"device_profile_name": "one"}
    api.call("POST", "/v2/accelerator_requests", wanted)
    for _ in range(2):
        api.call("POST", f"{PATH}/one/disable")
    refused = api.ask("POST", "/v2/accelerator_requests", wanted)
    assert refused.status_int == 409
    assert "profile one is disabled; choose another" in refused.text
    assert len(api.call("GET", "/v2/accelerator_requests")["arqs"]) == 1
    assert api.call("GET", f"{PATH}/one")["enabled"] is False
    # Nova, which asks for 2.0, finds none, and refuses the server.
    for version in ("2.0", "2.3"):
        assert names(api, "?name=one", version) == []
        assert api.ask("GET", f"{PATH}?enabled=false", version=version).status_int == 400
    assert names(api) == names(api, "?enabled=false") == ["one"]
    assert names(api, "?enabled=true") == []

    # What replaces its content does not enable it.
    api.call("PUT", f"{PATH}/one", BODY)
    assert names(api, version="2.3") == []
    api.call("POST", f"{PATH}/one/enable")
    assert names(api, "?name=one", "2.0") == ["one"]
    api.call("POST", "/v2/accelerator_requests", wanted)
    assert api.ask("POST", f"{PATH}/two/enable").status_int == 404
    assert api.ask("POST", f"{PATH}/one/enable", version="2.3").status_int == 404


def test_descriptions(api: Api) -> None:
    extra = {"owner": "ml", "price": "B"}
    assert api.call("POST", PATH, {**BODY, "extra": extra})["extra"] == extra
    assert api.call("PUT", f"{PATH}/one", BODY)["extra"] == {}
    many = {str(number): "" for number in range(51)}
    for wrong, field in (
        ({"a": 1}, "extra.a must be a text"),
        ({"": "a"}, "extra: names must have 1 to 255"),
        ({"a": "b" * 1025}, "extra.a must have 0 to 1024 characters"),
        (many, "extra must have at most 50 names"),
    ):
        refused = api.ask("POST", PATH, {**BODY, "name": "two", "extra": wrong})
        assert refused.status_int == 400
        assert field in refused.text


@pytest.mark.every_database
def test_requests_are_counted_by_the_profile_they_were_made_of(api, ctx, enforcer) -> None:
    for name, amount in (("one", "2"), ("two", "1")):
        group = {**boots.GROUP, "resources:FPGA": amount}
        profiles.create_profile(name=name, groups=[group], description=None)
    made = [arq.uuid for arq in service.create(ctx, "one")]
    other = context.RequestContext(enforcer=enforcer, project_id="other", roles=["member"])
    service.create(other, "one")
    assert [row["in_use"] for row in api.call("GET", PATH)["device_profiles"]] == [4, 0]
    (found, unused) = profiles.list_profiles(other, with_in_use=True)
    assert (found.in_use, unused.in_use) == (2, 0)
    # Another name changes nothing, nor another profile of the former name.
    api.call("PUT", f"{PATH}/one", {**BODY, "name": "three"})
    api.call("POST", PATH, BODY)
    assert api.call("GET", f"{PATH}/three")["in_use"] == 4
    assert api.call("GET", f"{PATH}/one")["in_use"] == 0
    release.delete_arqs(ctx, made)
    assert api.call("GET", f"{PATH}/three")["in_use"] == 2


@pytest.mark.every_database
def test_the_keys_of_a_group_keep_their_order(api: Api) -> None:
    keys = {"trait:CUSTOM_B": "required", "resources:FPGA": "1", "trait:CUSTOM_A": "required"}

    for order in (list(keys), sorted(keys), sorted(keys, reverse=True)):
        body = {**BODY, "groups": [{key: keys[key] for key in order}]}
        if order == list(keys):
            api.call("POST", PATH, body)
        else:
            api.call("PUT", f"{PATH}/one", body)
        assert [list(group) for group in api.call("GET", f"{PATH}/one")["groups"]] == [order]


def fact(deployable: str, key: str, value: str = "CUSTOM_A") -> dict[str, str]:
    return {"deployable_uuid": deployable, "key": key, "value": value}


@pytest.mark.every_database
def test_many_attributes_are_made_or_none(api: Api) -> None:
    hosts.apply(hosts.card("a"), hosts.card("b"))
    hosts.apply(hosts.device("c", hosts.deployable("host-2_c")), host="host-2")
    one, two, three = (row["uuid"] for row in api.call("GET", "/v2/deployables")["deployables"])
    with db.writer() as session:
        session.execute(sa.delete(models.Work))
    sent = [fact(one, "trait_x"), fact(three, "trait_x"), fact(one, "site", "s")]
    made = api.call("POST", "/v2/attributes", {"attributes": sent})["attributes"]
    assert [{key: row[key] for key in sent[0]} for row in made] == sent
    with db.reader() as session:
        assert set(session.scalars(sa.select(models.Work.key))) == {"host-1", "host-2"}
    taken = models.new_uuid()
    for wrong, code in (
        ([fact(two, "new"), fact(three, "site", "t"), fact(one, "site", "t")], 409),
        ([fact(two, "new"), fact(two, "new", "again")], 409),
        ([fact(two, "new") | {"uuid": taken}, fact(one, "new") | {"uuid": taken}], 409),
        ([fact(two, "new"), fact(one, "other") | {"uuid": made[0]["uuid"]}], 409),
        ([fact(two, "new"), fact(taken, "new")], 400),
        ([fact(two, "new"), fact(one, "traits", "no trait")], 400),
        ([fact(two, "new"), {"key": "a", "value": "b"}], 400),
        ([], 400),
        ([fact(two, "new")] * 1001, 400),
    ):
        answer = api.ask("POST", "/v2/attributes", {"attributes": wrong})
        assert answer.status_int == code, answer.text
    left = api.call("GET", f"/v2/attributes?deployable_uuid={two}")["attributes"]
    assert "new" not in {row["key"] for row in left}
    old = api.ask("POST", "/v2/attributes", {"attributes": sent}, version="2.3")
    assert old.status_int == 400
