# SPDX-License-Identifier: Apache-2.0
"""What each persona may do: every rule of policy, for objects of its own project and another's."""

from __future__ import annotations

import pytest

from cyborg.policy import rules
from cyborg.tests import asks
from cyborg.tests.asks import REQUESTS
from cyborg.tests.personas import PERSONAS, PROJECTS
from cyborg.tests.scene import Scene

pytestmark = pytest.mark.slow

#: What comes of each request. Its first word is the rule, without "cyborg:". The columns are
#: :data:`personas.PERSONAS`: "=" has that role without the roles it implies, "other" is a member of
#: another project.
#:
#: ok   it is shown or done
#: -    it is not shown, or nothing is done, and that is no error
#: 403  refused
#: 404  as if it did not exist
#: A pair is what comes of it for an object of project own, and for one of project other.
TABLE = """
                            admin  manager member reader service other  =admin =manager =member
device_profile:get_all      ok     ok      ok     ok     403     ok     ok     403      403
device_profile:get_all mine ok     ok/-    ok/-   ok/-   403     -/ok   ok     403      403
device_profile:get_one      ok     ok      ok     ok     403     ok     ok     403      403
device_profile:get_one mine ok     ok/404  ok/404 ok/404 403     404/ok ok     403      403
device_profile:create       ok     403     403    403    403     403    ok     403      403
device_profile:update       ok     403     403    403    403     403    ok     403      403
device_profile:update off   ok     403     403    403    403     403    ok     403      403
device_profile:update on    ok     403     403    403    403     403    ok     403      403
device_profile:delete       ok     403     403    403    403     403    ok     403      403
device_profile:delete many  ok     403     403    403    403     403    ok     403      403
device_profile:candidates   501    403     403    403    501     403    501    403      403
arq:get_all                 ok     ok/-    ok/-   ok/-   403     -/ok   ok     403      403
arq:get_all 2.4             ok/-   ok/-    ok/-   ok/-   403     -/ok   ok/-   403      403
arq:get_all project         ok     ok/-    ok/-   ok/-   403     -/ok   ok     403      403
arq:get_all all_projects    ok     403     403    403    403     403    ok     403      403
arq:get_all instance        ok     ok/-    ok/-   ok/-   403     -/ok   ok     403      403
arq:get_one                 ok     ok/404  ok/404 ok/404 403     404/ok ok     403      403
arq:get_access_key          ok/404 ok/404  ok/404 403    403     404/ok 403    403      ok/404
arq:create                  ok     ok      ok     403    ok      ok     403    403      ok
arq:create mine             ok     ok/404  ok/404 403    ok/404  404/ok 403    403      ok/404
arq:update bind             ok     ok/404  ok/404 403    ok/404  404/ok 403    403      ok/404
arq:update project          ok     403     403    403    403     403    403    403      403
arq:update unbind           ok     ok/404  ok/404 403    ok/404  404/ok 403    403      ok/404
arq:delete                  ok     ok/404  ok/404 403    ok/404  404/ok 403    403      ok/404
arq:delete many             ok     ok/404  ok/404 403    ok/404  404/ok 403    403      ok/404
arq:delete bound            ok     ok/404  ok/404 403    ok/404  404/ok 403    403      ok/404
arq:delete instance         ok     ok/-    ok/-   403    ok/-    -/ok   403    403      ok/-
arq:get_all deleting        ok     403     403    403    403     403    ok     403      403
arq:get_all my deleting     -      403     403    403    403     403    -      403      403
arq:release                 ok     403     403    403    403     403    ok     403      403
allocation:get_all          ok     ok/-    ok/-   ok/-   403     -/ok   ok     403      403
allocation:get_one          ok     ok/404  ok/404 ok/404 403     404/ok ok     403      403
allocation:create           501    501     501    403    501     501    403    403      501
allocation:create_groups    501    403     403    403    403     403    403    403      403
allocation:renew            ok     ok/404  ok/404 403    ok/404  404/ok 403    403      ok/404
allocation:delete           ok     ok/404  ok/404 403    ok/404  404/ok 403    403      ok/404
device:get_all              ok     ok      403    403    403     403    ok     ok       403
device:get_one              ok     ok      403    403    403     403    ok     ok       403
device:disable              ok     403     403    403    403     403    ok     403      403
device:enable               ok     403     403    403    403     403    ok     403      403
device:taint                ok     403     403    403    403     403    ok     403      403
device:taint off            ok     403     403    403    403     403    ok     403      403
device:delete               ok     403     403    403    403     403    ok     403      403
deployable:get_all          ok     ok      403    403    403     403    ok     ok       403
deployable:get_one          ok     ok      403    403    403     403    ok     ok       403
deployable:program          501    403     403    403    403     403    501    403      403
deployable:program begin    ok     403     403    403    403     403    ok     403      403
operation:get_all           ok     403     403    403    403     403    ok     403      403
operation:get_one           ok     403     403    403    403     403    ok     403      403
operation:delete            ok     403     403    403    403     403    ok     403      403
function_pool:get_all       ok     403     403    403    403     403    ok     403      403
function_pool:get_one       ok     403     403    403    403     403    ok     403      403
function_pool:create        ok     403     403    403    403     403    ok     403      403
function_pool:update        ok     403     403    403    403     403    ok     403      403
function_pool:delete        ok     403     403    403    403     403    ok     403      403
function_miss:create        ok     403     403    403    ok      403    ok     403      403
history:get_all             ok     ok/-    ok/-   ok/-   403     -/ok   ok     403      403
history:get_all project     ok     ok/-    ok/-   ok/-   403     -/ok   ok     403      403
history:get_all device      ok     ok/-    ok/-   ok/-   403     -/ok   ok     403      403
attach_handle:get_all       ok     403     403    403    403     403    ok     403      403
host:get_one                ok     403     403    403    403     403    ok     403      403
host:drain                  ok     403     403    403    403     403    ok     403      403
host:undrain                ok     403     403    403    403     403    ok     403      403
host:taint                  ok     403     403    403    403     403    ok     403      403
host:taint off              ok     403     403    403    403     403    ok     403      403
host:get_keys               ok     403     403    403    403     403    ok     403      403
host:enrol_key              ok     403     403    403    403     403    ok     403      403
host:revoke_keys            ok     403     403    403    403     403    ok     403      403
summary:get_all             ok     403     403    403    403     403    ok     403      403
usage:get_all               ok/-   ok/-    ok/-   ok/-   403     -/ok   ok/-   403      403
usage:get_all project       ok     ok/-    ok/-   ok/-   403     -/ok   ok     403      403
usage:get_all all_projects  ok     403     403    403    403     403    ok     403      403
attribute:get_all           ok     ok      403    403    403     403    ok     ok       403
attribute:get_one           ok     ok      403    403    403     403    ok     ok       403
attribute:create            ok     403     403    403    403     403    ok     403      403
attribute:delete            ok     403     403    403    403     403    ok     403      403
service:get_all             ok     403     403    403    403     403    ok     403      403
service:get_one             ok     403     403    403    403     403    ok     403      403
service:delete              ok     403     403    403    403     403    ok     403      403
"""
#: Those to whom everything says 403.
REFUSED = ("guest", "system-admin", "domain-admin", "unscoped")
#: What 403 says where it is not the rule that refuses.
ONLY_ADMINISTRATORS = "is for administrators"

EXPECTED = {
    what: row | dict.fromkeys(REFUSED, "403") for what, row in asks.read_table(TABLE).items()
}
KINDS = sorted({what.partition(":")[0] for what in EXPECTED})


#: Of what two rules are asked: the first one.
_ASKED_FIRST = {"allocation:create_groups": "allocation:create"}


def _send_for_each_project(scene: Scene, persona: str, what: str) -> str:
    came = []
    for project in PROJECTS if REQUESTS[what].owned else PROJECTS[:1]:
        answer = asks.send(scene, persona, REQUESTS[what], project)
        if answer.outcome == "403":
            first = _ASKED_FIRST.get(what, what)
            said = (_refusal(what), _refusal(first), ONLY_ADMINISTRATORS)
            assert any(text in answer.text for text in said)
        came.append(answer.outcome)
    return came[0] if len(set(came)) == 1 else "/".join(came)


def _refusal(what: str) -> str:
    rule = f"cyborg:{what.partition(' ')[0]}"
    return f"Access was denied to the following resource: {rule}"


# Few tests with many requests each: to begin and to end one takes longer than twenty requests.
@pytest.mark.parametrize("kind", KINDS)
def test_each_persona_may_do_what_the_table_says(kind: str, scene: Scene) -> None:
    expected = {what: row for what, row in EXPECTED.items() if what.startswith(f"{kind}:")}
    came = {
        what: {persona: _send_for_each_project(scene, persona, what) for persona in row}
        for what, row in expected.items()
    }
    assert came == expected


def test_the_table_has_every_rule_and_every_persona() -> None:
    known = {rule.name for rule in rules.list_rules() if rule.name.startswith("cyborg:")}
    assert {f"cyborg:{what.partition(' ')[0]}" for what in EXPECTED} == known
    assert {frozenset(row) for row in EXPECTED.values()} == {frozenset(PERSONAS) - {"nova"}}
