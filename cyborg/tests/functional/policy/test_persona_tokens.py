# SPDX-License-Identifier: Apache-2.0
"""Tokens: of services that vouch for a request, worn out, forged or restricted; and no token."""

from __future__ import annotations

import contextlib
import dataclasses
import http.client
import urllib.parse

import pytest
import requests

from cyborg.tests import asks
from cyborg.tests import scene as scenes
from cyborg.tests.asks import ARQS, REQUESTS, Ask
from cyborg.tests.keystone_server import Keystone
from cyborg.tests.personas import Personas
from cyborg.tests.scene import Scene

#: What comes of requests by the X-Service-Token that is sent beside a member's token: nova's has
#: the role that is asked for, those of an admin and of a member have not.
TABLE = """
                     none  nova  admin  member  gibberish  revoked  expired
arq:update bind      403   ok    401    401     401        401      401
arq:update unbind    403   ok    401    401     401        401      401
arq:delete bound     403   ok    401    401     401        401      401
arq:delete both      403   ok    401    401     401        401      401
arq:delete instance  403   ok    401    401     401        401      401
arq:delete           ok    ok    401    401     401        401      401
"""
EXPECTED = asks.read_table(TABLE)
BOTH = asks.old(f"DELETE {ARQS}?arqs={{arq}},{{bound}}")
#: What 403 says for want of a service token.
REFUSALS = ("requires a service token", "is bound to instance")


def ask(what: str, *, vouched: bool = False) -> Ask:
    """The request of that name, by default with no service token of its own."""
    known = REQUESTS | {"arq:delete both": BOTH}
    return dataclasses.replace(known[what], vouched=vouched)


def service_tokens(keystone: Keystone, personas: Personas) -> dict[str, dict[str, str]]:
    """The header for each column of the table."""
    revoked = personas.new_token("nova")
    personas.revoke(revoked)
    tokens = {name: personas.token(name) for name in ("nova", "admin", "member")}
    tokens |= {"gibberish": "gibberish", "revoked": revoked}
    tokens["expired"] = keystone.expired_service_token
    return {"none": {}} | {name: {"X-Service-Token": token} for name, token in tokens.items()}


def sent(scene: Scene, what: str, headers: dict[str, str]) -> str:
    """What comes of the request with the headers of a service token."""
    answer = asks.send(scene, "member", ask(what), headers=headers)
    assert answer.outcome != "403" or any(text in answer.text for text in REFUSALS)
    return answer.outcome


def test_a_service_has_to_vouch_for_what_becomes_of_instances(scene, keystone, personas) -> None:
    tokens = service_tokens(keystone, personas)
    came = {
        what: {name: sent(scene, what, headers) for name, headers in tokens.items()}
        for what in EXPECTED
    }
    assert came == EXPECTED
    # No persona does without.
    needing = [what for what in EXPECTED if what != "arq:delete"]
    for persona in ("admin", "service"):
        alone = {what: asks.send(scene, persona, ask(what)).outcome for what in needing}
        assert alone == dict.fromkeys(needing, "403")


# The middleware takes any valid token; still only those with the role count.
ANY = (("service_token_roles_required", False), {"admin": "403", "member": "403", "nova": "ok"})
# Another role is that of services, and the usual one is not.
ANOTHER = (("service_token_roles", ["guest"]), {"nova": "401", "guest": "ok"})


@pytest.mark.parametrize(("option", "outcomes"), [ANY, ANOTHER], ids=["any token", "another role"])
def test_the_operator_says_which_service_tokens_count(
    conf, keystone, personas, request, option, outcomes
) -> None:
    keystone.point_at(conf)
    conf.set_override(*option, group="keystone_authtoken")
    scene = request.getfixturevalue("scene")
    for name, outcome in outcomes.items():
        headers = {"X-Service-Token": personas.token(name)}
        for what in ("arq:update bind", "arq:delete instance", "arq:delete bound"):
            assert sent(scene, what, headers) == outcome


def test_without_a_valid_token_nothing_is_done(scene, keystone, personas) -> None:
    revoked = personas.new_token("admin")
    personas.revoke(revoked)
    for headers in ({}, {"X-Auth-Token": "gibberish"}, {"X-Auth-Token": revoked}):
        came = {
            what: asks.send(scene, None, request, headers=headers).outcome
            for what, request in REQUESTS.items()
        }
        assert came == dict.fromkeys(REQUESTS, "401")
    # What began in time goes on when a service vouches for it.
    expired = {"X-Auth-Token": keystone.expired_service_token}
    for vouched, outcome in ((False, "401"), (True, "ok")):
        answer = asks.send(scene, None, ask("arq:create", vouched=vouched), headers=expired)
        assert answer.outcome == outcome
    # An application credential is good for what it is restricted to.
    rule = {"service": "accelerator", "method": "GET", "path": "/v2/device_profiles"}
    restricted = {"X-Auth-Token": personas.restricted_token("member", rule)}
    for what, outcome in (
        ("device_profile:get_all", "ok"), ("device_profile:get_one", "401"), ("arq:get_all", "401")
    ):
        assert asks.send(scene, None, REQUESTS[what], headers=restricted).outcome == outcome


def test_identity_is_what_keystone_says_not_what_headers_say(scene, personas) -> None:
    forged = {
        "X-Identity-Status": "Confirmed",
        "X-Service-Identity-Status": "Confirmed",
        "X-User-Id": "u",
        "X-Project-Id": personas.projects["other"],
        "X-Tenant-Id": personas.projects["other"],
        "X-Roles": "admin,member,reader,service",
        "X-Role": "admin",
        "X-Service-Roles": "service",
        "X-Is-Admin-Project": "True",
    }
    assert asks.send(scene, None, REQUESTS["arq:get_all"], headers=forged).outcome == "401"
    for project, outcome in {"own": "ok", "other": "-"}.items():
        answer = asks.send(scene, "reader", REQUESTS["arq:get_all"], project, headers=forged)
        assert answer.outcome == outcome
    assert asks.send(scene, "reader", REQUESTS["arq:create"], headers=forged).outcome == "403"
    assert asks.send(scene, "member", ask("arq:update bind"), headers=forged).outcome == "403"


def test_versions_are_public_and_nothing_else_by_any_spelling(scene: Scene) -> None:
    # Not by a library that would spell a path in its own way.
    url = urllib.parse.urlsplit(scene.url)

    def get(path: str, **headers: str) -> int:
        connection = http.client.HTTPConnection(url.netloc, timeout=scenes.PATIENCE)
        with contextlib.closing(connection):
            connection.request("GET", path, headers=headers)
            return connection.getresponse().status

    for path in ("/", "/v2", "/v2/", "/v2.json", "/v2/openapi.json"):
        assert get(path) == get(path, **{"X-Auth-Token": "gibberish"}) == 200
    for path in (
        "/device_profiles",
        "/v2//device_profiles",
        "//v2/device_profiles",
        "/v2/./device_profiles",
        "/v2/%2e/device_profiles",
        "/v2.json/device_profiles",
        "/v2/device_profiles.json",
        "/v2/device_profiles?/v2",
        "/v2;/device_profiles",
        "/v2%2Fdevice_profiles",
        "/x/../v2/device_profiles",
        "/nothing",
        "/v1",
    ):
        # The built-in server refuses some before anybody is asked.
        assert get(path) in {400, 401}


def test_what_another_project_has_is_answered_like_what_nobody_has(scene, personas) -> None:
    # What is created belongs to the project of the token.
    for persona in ("member", "other", "service"):
        made = scene.ask(persona, f"POST {ARQS}", {"device_profile_name": "public"}).json()
        assert [arq["project_id"] for arq in made["arqs"]] == [personas.project(persona)]
    unbind = [{"op": "remove", "path": "/hostname"}]
    for name, line in (
        ("arq", f"GET {ARQS}/{{}}"),
        ("arq", f"DELETE {ARQS}/{{}}"),
        ("arq", f"DELETE {ARQS}?arqs={{}}"),
        ("bound", f"DELETE {ARQS}/{{}}"),
        ("bound", f"PATCH {ARQS}"),
        ("private", "GET /device_profiles/{}"),
    ):
        texts = set()
        for uuid in (scene.names("other")[name], scene.names()["new"]):
            body = {uuid: unbind} if line.startswith("PATCH") else None
            answer = scene.ask("member", line.format(uuid), body, vouched=True)
            assert answer.status_code == 404
            texts.add(answer.text.replace(uuid, "it"))
        assert len(texts) == 1
    latest = {"OpenStack-API-Version": "accelerator 2.4"}
    theirs, nothing = scene.names("other")["arq"], scene.names()["new"]
    came = [
        scene.ask("reader", f"GET {ARQS}?marker={uuid}", headers=latest).json()["errors"][0]
        for uuid in (theirs, nothing)
    ]
    assert [error["status"] for error in came] == [400, 400]
    assert came[0]["detail"].replace(theirs, nothing) == came[1]["detail"]
    own = scene.names()["arq"]
    assert scene.ask("reader", f"GET {ARQS}?marker={own}", headers=latest).status_code == 200


def test_without_keystone_it_says_that_it_is_unavailable(conf, database, keystone) -> None:
    keystone.point_at(conf)
    conf.set_override("auth_url", "http://127.0.0.1:9/v3", group="keystone_authtoken")
    conf.set_override("http_request_max_retries", 0, group="keystone_authtoken")
    with scenes.serving(conf) as url:
        answer = requests.get(
            f"{url}/devices", headers={"X-Auth-Token": "any"}, timeout=scenes.PATIENCE
        )
        assert answer.status_code == 503
        assert requests.get(url, timeout=scenes.PATIENCE).status_code == 200
