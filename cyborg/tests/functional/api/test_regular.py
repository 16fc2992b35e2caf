# SPDX-License-Identifier: Apache-2.0
"""Microversions from 2.4 where YAML does not reach: bounds, links, races, broken parts."""

from __future__ import annotations

from collections.abc import Callable
from concurrent import futures
from typing import Any

import pytest
import webob

from cyborg import profiles
from cyborg.common import errors
from cyborg.tests import hosts

Call = Callable[..., webob.Response]

pytestmark = pytest.mark.usefixtures("database")

#: Collections, and what their lists are called.
LISTS = {"accelerator_requests": "arqs"} | {
    name: name for name in ("devices", "deployables", "attributes", "device_profiles")
}


def error(answer: webob.Response) -> dict[str, Any]:
    """The one error of an answer, whose form is checked with it."""
    assert answer.content_type == "application/json"
    assert list(answer.json) == ["errors", "error"]
    (found,) = answer.json["errors"]
    assert answer.json["error"]["message"] == found["detail"]
    assert list(found) == ["status", "code", "title", "detail", "request_id"]
    assert found["status"] == answer.status_int
    assert found["request_id"] == answer.headers["x-openstack-request-id"]
    return dict(found)


def test_a_list_is_bounded_and_its_links_lead_through_all_of_it(call, conf, count_sql) -> None:
    hosts.apply(*map(hosts.card, "abcde"))
    for name in ("five", *"abcd"):
        profile = {"name": name, "groups": [{"resources:FPGA": "5"}]}
        assert call("POST", "/v2/device_profiles", profile).status_int == 201
    call("POST", "/v2/accelerator_requests", {"device_profile_name": "five"})
    conf.set_override("max_limit", 2, group="api")
    for collection, key in LISTS.items():
        whole = call("GET", f"/v2/{collection}", version="2.3").json[key]
        assert len(whole) >= 5
        walked, url = [], f"/v2/{collection}?sort_dir=desc&limit=1000"
        while url:
            with count_sql() as counter:
                page = call("GET", url).json
            assert len(page[key]) <= 2
            # The marker, the page, what belongs to its rows; of profiles also what fits them.
            most = 4 if collection == "device_profiles" else 3
            assert len(counter.statements) == len(counter.matching("SELECT")) <= most
            walked += page[key]
            url = page.get(f"{key}_links", [{"href": ""}])[0]["href"]
        assert [item["uuid"] for item in walked] == [item["uuid"] for item in reversed(whole)]


def test_a_next_link_follows_the_mount_and_keeps_its_arguments(call, conf) -> None:
    hosts.apply(hosts.card("a"), hosts.card("b"))
    answer = call("GET", "/devices?limit=1&model=miss+model%20info", SCRIPT_NAME="/acc")
    uuid = answer.json["devices"][0]["uuid"]
    rest = f"/v2/devices?limit=1&model=miss+model+info&marker={uuid}"
    assert answer.json["devices_links"][0]["href"] == f"http://localhost/acc{rest}"
    conf.set_override("public_endpoint", "https://public/accelerator/", group="api")
    answer = call("GET", "/devices?limit=1&model=miss+model%20info")
    href = answer.json["devices_links"][0]["href"]
    assert href == f"https://public/accelerator{rest}"


def test_a_next_link_keeps_an_argument_given_more_than_once(call: Call) -> None:
    for name in ("one", "two", "three"):
        body = {"name": name, "groups": [{"resources:FPGA": "1"}]}
        assert call("POST", "/v2/device_profiles", body).status_int == 201
    for order, names in (("sort_key=id", ["one", "three"]), ("sort_dir=desc", ["three", "one"])):
        url, found = f"/v2/device_profiles?limit=1&name=one&name=three&{order}", []
        while url:
            page = call("GET", url).json
            found += [item["name"] for item in page["device_profiles"]]
            url = page.get("device_profiles_links", [{"href": ""}])[0]["href"]
        assert found == names


@pytest.mark.parametrize(
    ("method", "url", "body", "code"),
    [
        ("POST", "/v2/device_profiles", ["x" * 200_000], 413),
        ("GET", "/v2/%ff", None, 400),
        ("POST", "/v2/accelerator_requests", {"device_profile_name": "unknown"}, 404),
        ("PATCH", "/v2/accelerator_requests", {}, 400),
        ("GET", "/v2/accelerator_requests?limit=x", None, 400),
        ("GET", "/v2/attributes?limit=1&limit=2", None, 400),
        ("GET", "/v2/attributes?sort_key=" + "x" * 300, None, 400),
        ("POST", "/v2/attributes", {"deployable_uuid": "bad", "key": "k", "value": "v"}, 400),
        ("GET", "/v2/attributes?deployable_id=99999999999", None, 400),
        ("PUT", "/v2/attributes", None, 405),
        ("GET", "/v2/a/b/c/d", None, 404),
    ],
)
def test_every_error_has_one_form(call: Call, method: str, url: str, body: Any, code: int) -> None:
    answer = call(method, url, body)
    assert answer.status_int == code
    assert 0 < len(error(answer)["detail"]) < 1000


def test_an_unknown_path_is_repeated_in_its_own_letters(call: Call) -> None:
    assert error(call("GET", "/v2/ger%C3%A4t"))["detail"].startswith("GET /v2/ger\u00e4t: ")


@pytest.mark.every_database
def test_whoever_a_policy_file_lets_delete_profiles_deletes_only_what_it_sees(ctx, tenant) -> None:
    for name, project in (("ours", "project-2"), ("theirs", "project-3")):
        profiles.create_profile(
            name=name, groups=[{}], description=None, visibility="private", projects=[project]
        )
    profiles.delete_profiles(tenant, [profiles.ProfileName("name", "ours")])
    with pytest.raises(errors.NotFound):
        profiles.delete_profiles(tenant, [profiles.ProfileName("name", "theirs")])
    assert [profile.name for profile in profiles.list_profiles(ctx)] == ["theirs"]


def test_of_many_who_replace_one_profile_one_is_the_last(call: Call) -> None:
    profile = {"groups": [{"resources:FPGA": "1"}], "visibility": "private"}
    for name in "ab":
        assert call("POST", "/v2/device_profiles", {**profile, "name": name}).status_int == 201

    def replace_at_once(asked: list[tuple[str, dict[str, Any]]]) -> list[int]:
        with futures.ThreadPoolExecutor(8) as pool:
            paths = [(f"/v2/device_profiles/{name}", body) for name, body in asked]
            made = [pool.submit(call, "PUT", *each) for each in paths]
        return sorted(future.result().status_int for future in made)

    bodies = [
        {**profile, "name": "a", "description": str(each), "projects": [f"p{each}", "shared"]}
        for each in range(8)
    ]
    assert replace_at_once([("a", body) for body in bodies]) == [200] * 8
    found = call("GET", "/v2/device_profiles/a").json
    assert found["projects"] == [f"p{found['description']}", "shared"]
    # Of two who want one name one gets it.
    assert replace_at_once([(name, {**profile, "name": "c"}) for name in "ab"]) == [200, 409]


@pytest.mark.every_database
def test_every_character_is_stored_and_looked_for_and_projects_have_no_blanks(call) -> None:
    groups = [{"accel:function_name": "\U0001f600"}]
    body = {"name": "a", "groups": groups, "description": "\U0001f600"}
    created = call("POST", "/v2/device_profiles", body)
    assert created.status_int == 201
    found = call("GET", "/v2/device_profiles/a").json
    assert (found["description"], found["groups"]) == (body["description"], body["groups"])
    for url in ("/v2/devices?vendor=%F0%9F%98%80", "/v2/device_profiles?name=%F0%9F%98%80"):
        (rows,) = call("GET", url).json.values()
        assert rows == []
    profile = {"name": "b", "groups": [{"resources:FPGA": "1"}], "visibility": "private"}
    for wrong in ("p ", " ", "p q"):
        answer = call("POST", "/v2/device_profiles", {**profile, "projects": ["p", wrong]})
        assert answer.status_int == 400
        assert error(answer)["detail"] == "projects[1] must be the id of a project, without blanks."
