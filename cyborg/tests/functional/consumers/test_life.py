# SPDX-License-Identifier: Apache-2.0
"""Allocations of consumers that Nova knows nothing of, over HTTP, with a real Placement."""

from __future__ import annotations

import functools
import uuid
from typing import Any

import pytest
import sqlalchemy as sa

from cyborg import db, quotas, work
from cyborg.allocations import choosing, plans, service, wishes
from cyborg.db import models
from cyborg.inventory.apply import provider_uuid
from cyborg.policy.enforcer import Enforcer
from cyborg.tests import boots, callers, hosts
from cyborg.tests.consumers import (
    FPGA,
    as_member,
    ask,
    before_the_claim,
    call,
    claimed,
    leave,
    profile,
    refusal,
    wish,
)
from cyborg.tests.novasink import NovaSink
from cyborg.tests.service import USER_PROJECT, Site, until


@pytest.mark.every_database
def test_one_call_gives_a_consumer_what_it_needs(rack: Site, sink: NovaSink) -> None:
    body = wish()
    found = call(rack, "POST", "", body)
    consumer = body["consumer"]["uuid"]
    assert (found["uuid"], found["state"], found["hosts"]) == (
        consumer, "Active", ["host-1.example"]
    )  # fmt: skip
    (accelerator,) = found["accelerators"]
    assert accelerator["attach_handle_type"] == "TEST_PCI"
    assert accelerator["attach_handle_info"]["bus"] == "0c"
    assert claimed(rack, consumer) == {accelerator["device_rp_uuid"]: {"FPGA": 1}}
    assert call(rack, "GET", f"/{consumer}") == found
    assert call(rack, "GET", "?consumer_name=edge")["allocations"] == [found]
    with db.reader() as session:
        (arq,) = session.scalars(sa.select(models.Arq))
    assert (arq.uuid, arq.instance_asked_ms) == (accelerator["arq_uuid"], None)
    assert arq.consumer_uuid == consumer
    refused = ask(rack, "POST", f"/{consumer}/renew")
    assert (refused.status_code, "no lease" in refused.text) == (409, True)

    leave(rack, consumer)
    assert ask(rack, "GET", f"/{consumer}").status_code == 404
    assert rack.held() == {}
    # Nova is told nothing of it.
    assert not sink.events


def test_a_part_may_name_its_provider(rack: Site) -> None:
    named = provider_uuid("host-1_b")
    part = plans.Part(groups=[FPGA], provider=named)
    (place,) = choosing.Chooser(rack.conf, plans.PACK, 1).choose([part]) or ()
    assert place.rp_uuid == named
    # It gets no other later.
    (again,) = plans.parts(plans.load(plans.store([place])))
    assert again.provider == named
    assert choosing.Chooser(rack.conf, plans.PACK, 1, None, [named]).choose([again]) is None
    free = choosing.Chooser(rack.conf, plans.PACK, 1).choose([plans.Part(groups=[FPGA])])
    assert free is not None

    named = provider_uuid("host-1_a")
    # The other card has fewer that are free, so it would be the first choice.
    body = wish(parts=[{"groups": [FPGA], "device_rp_uuid": named.upper()}] * 4)
    found = call(rack, "POST", "", body)
    assert {each["device_rp_uuid"] for each in found["accelerators"]} == {named}
    for provider, sentence in (
        (named, "the most that is free of one is 0"),
        (str(uuid.uuid4()), "that offer it is"),
    ):
        more = wish(parts=[{"groups": [FPGA], "device_rp_uuid": provider}])
        assert sentence in refusal(rack, more)


def test_the_same_request_again_changes_nothing(rack: Site) -> None:
    body = wish()
    found = call(rack, "POST", "", body)
    assert call(rack, "POST", "", body) == found
    who = body["consumer"] | {"uuid": body["consumer"]["uuid"].upper()}
    part = {"device_profile_name": "p", "count": 1}
    in_full = {"consumer": who, "placing": "pack", "lease_seconds": None, "parts": [part]}
    assert call(rack, "POST", "", in_full) == found
    elsewhere = {**in_full, "alternatives": [{"parts": [part], "hosts": "host-2"}]}
    del elsewhere["parts"]
    refusal(rack, elsewhere)
    another = elsewhere | {"consumer": {"uuid": str(uuid.uuid4()), "type": "PROXY"}}
    assert "on a host like host-2" in refusal(rack, another)
    other = wish(body["consumer"]["uuid"], groups=[FPGA])
    assert "delete that first" in refusal(rack, other)
    dry = call(rack, "POST", "", other | {"dry_run": True})
    assert dry["state"] == "Impossible"
    assert dry["state_reason"].startswith(body["consumer"]["uuid"])
    assert len(rack.held()) == 1


def test_a_project_has_so_many_requests_without_an_accelerator(rack: Site) -> None:
    rack.conf.set_override("max_unbound_arqs", 1, group="api")
    profile(rack, {}, {}, name="two")
    body = wish(device_profile_name="two")
    said = refusal(rack, body, 403)
    assert "has 0 accelerator requests without an accelerator, and may have 1" in said
    dry = call(rack, "POST", "", body | {"dry_run": True})
    assert "may have 1" in dry["state_reason"]
    assert claimed(rack, body["consumer"]["uuid"]) == {}
    assert call(rack, "GET")["allocations"] == []
    # What has an accelerator does not count.
    for _ in range(2):
        call(rack, "POST", "", wish())


def failures(site: Site, consumer: str | None = None) -> list[str]:
    """Why a consumer, or the project, could not be served, as its owner reads it."""
    found = as_member(site, "GET", "/history?kind=bind_failed", below="").json()["history"]
    return [each["reason"] for each in found if each["instance_uuid"] == consumer]


def test_an_owner_reads_why_it_was_refused(rack: Site) -> None:
    profile(rack, *[{}] * 7, name="many")
    body = wish(device_profile_name="many")
    for _ in range(2):
        assert as_member(rack, "POST", "", body).status_code == 409
    assert as_member(rack, "POST", "", body | {"dry_run": True}).status_code == 202
    (reason,) = failures(rack, body["consumer"]["uuid"])
    assert reason.startswith("There is no room for this now:")
    other = wish(device_profile_name="unknown")
    assert as_member(rack, "POST", "", other).status_code == 404
    (reason,) = failures(rack, other["consumer"]["uuid"])
    assert reason in as_member(rack, "POST", "", other).text
    # Nova does not say for which instance it creates ARQs.
    unknown = {"device_profile_name": "unknown"}
    refused = as_member(rack, "POST", "/accelerator_requests", unknown, below="")
    assert refused.status_code == 404
    assert [each for each in failures(rack) if each in refused.text]


@pytest.mark.every_database
def test_what_is_short_is_said_group_by_group(rack: Site) -> None:
    five, none, has = (
        {"resources:FPGA": "5"}, {"trait:CUSTOM_NONE": "required"}, {"trait:CUSTOM_B": "required"}
    )  # fmt: skip
    profile(rack, five, none, has, name="big")
    said = refusal(rack, wish(device_profile_name="big"))
    assert "group 0 asks for 5 FPGA, and of 2 that fit, the most that is free of" in said
    assert "one is 4 (6 in all)" in said
    assert "group 1 asks for 1 FPGA, and none of 2 has trait CUSTOM_NONE" in said
    assert "group 2" not in said
    profile(rack, {"resources:FPGA": "4"}, {"resources:FPGA": "4"}, name="twice")
    gpu = "group 0 asks for 1 CUSTOM_GPU, and no device offers that"
    elsewhere = {"device_profile_name": "p", "hosts": "other-*"}
    for asked, sentence in (
        ({"groups": [{"resources:CUSTOM_GPU": "1"}]}, gpu),
        (elsewhere, "none of 2 that offer it is on a host like other-*"),
        ({"device_profile_name": "twice"}, "each group has room by itself"),
    ):
        assert sentence in refusal(rack, wish(**asked))
    assert rack.held() == {}


@pytest.mark.every_database
def test_several_handles_may_be_one_accelerator(site: Site) -> None:
    profile(site)
    site.start_with(hosts.card("a", num_accelerators=1))
    said = refusal(site, wish(groups=[{"resources:FPGA": "2"}]))
    assert "the most that is free of one is 1 (1 in all)" in said
    call(site, "POST", "", wish())
    assert "the most that is free of one is 0 (0 in all)" in refusal(site, wish())


def test_the_first_alternative_with_room_is_taken(rack: Site) -> None:
    alternatives = [
        {"groups": [{"resources:FPGA": "5"}]},
        {"groups": [FPGA | {"trait:CUSTOM_B": "required"}], "hosts": "host-1"},
        {"device_profile_name": "p"},
    ]
    found = call(rack, "POST", "", wish(alternatives=alternatives))
    assert found["alternative"] == 1
    (accelerator,) = found["accelerators"]
    assert accelerator["device_rp_uuid"] == provider_uuid("host-1_b")
    assert accelerator["device_profile_name"] is None
    # The smaller card is packed first.
    for placing, card in (("pack", "host-1_b"), ("spread", "host-1_a")):
        (given,) = call(rack, "POST", "", wish(groups=[FPGA], placing=placing))["accelerators"]
        assert given["device_rp_uuid"] == provider_uuid(card)


def test_a_dry_run_claims_nothing(rack: Site) -> None:
    found = call(rack, "POST", "", wish(device_profile_name="p", dry_run=True))
    assert (found["state"], found["alternative"]) == ("Possible", None)
    assert found["hosts"] == ["host-1.example"]
    assert found["accelerators"][0]["arq_uuid"] is None
    assert found["accelerators"][0]["hostname"] == "host-1.example"
    seen = as_member(rack, "POST", "", wish(device_profile_name="p", dry_run=True)).json()
    assert (seen["state"], seen["alternative"], seen["hosts"]) == ("Possible", None, [])
    (accelerator,) = seen["accelerators"]
    assert (accelerator["hostname"], accelerator["device_rp_uuid"]) == (None, None)
    refused = call(rack, "POST", "", wish(groups=[{"resources:FPGA": "5"}], dry_run=True))
    assert refused["state"] == "Impossible"
    assert "the most that is free of one is 4" in refused["state_reason"]
    # Who may not look at hosts is not told whether there is one of that name.
    for number, groups in enumerate(([FPGA] * 9, [{"resources:FPGA": "5"}])):
        profile(rack, *groups, name=f"large-{number}")
        told = set()
        for name in ("host-1", "host-9", "host-*"):
            asked = wish(device_profile_name=f"large-{number}", hosts=name, dry_run=True)
            told.add(as_member(rack, "POST", "", asked).json()["state_reason"])
        assert len(told) == 1, told
    assert call(rack, "GET")["allocations"] == []
    assert claimed(rack, found["uuid"]) == {}


@pytest.mark.every_database
def test_an_expired_lease_is_released(rack: Site) -> None:
    body = wish(device_profile_name="p", lease_seconds=3600)
    found = call(rack, "POST", "", body)
    assert found["lease_ends_at"] > found["created_at"]
    path = f"/{found['uuid']}"
    renewed = call(rack, "POST", f"{path}/renew", {"lease_seconds": 7200})
    assert renewed["lease_ends_at"] > found["lease_ends_at"]
    again = call(rack, "POST", f"{path}/renew")
    assert again["lease_ends_at"] >= renewed["lease_ends_at"]
    with db.writer() as session:
        db.update(session, models.Allocation, lease_ms=1)
    service.release_expired(rack.conf)
    # The conductor may be just about it, and is not waited for.
    until(lambda: ask(rack, "GET", path).status_code == 404)
    assert ask(rack, "POST", f"{path}/renew").status_code == 404
    rack.hurry(rack.idle)
    assert claimed(rack, found["uuid"]) == {}
    # The consumer may have it again.
    assert call(rack, "POST", "", body)["state"] == "Active"


def test_a_gang_is_allocated_on_several_hosts_or_not_at_all(rack: Site) -> None:
    for name in ("host-2", "host-3"):
        rack.placement.make_provider(f"{name}.example")
        hosts.apply(hosts.device("x", hosts.deployable(f"{name}_x", range(2))), host=name)
    rack.hurry(rack.idle)
    two = {"groups": [{"resources:FPGA": "2"}], "count": 3, "hosts": "host-2"}
    refusal(rack, wish(parts=[two]))
    one = {"device_profile_name": "p", "hosts": "host-2"}
    parts = [{**two, "count": 2, "hosts": "host-*"}, one]
    found = call(rack, "POST", "", wish(parts=parts, placing="spread"))
    assert (found["state"], len(found["accelerators"])) == ("Active", 5)
    assert "host-2.example" in found["hosts"]
    assert sum(each["FPGA"] for each in claimed(rack, found["uuid"]).values()) == 5
    # Ten accelerators, of which five are left.
    refusal(rack, wish(parts=[{**two, "count": 4, "hosts": "*"}]))
    assert len(rack.held()) == 5
    leave(rack, found["uuid"])


def test_others_who_are_faster(rack: Site) -> None:
    """Between choice and claim somebody takes the place that was chosen, and then all of it."""

    def steal(card: str, amount: int) -> None:
        rack.placement.allocate(str(uuid.uuid4()), provider_uuid(card), FPGA=amount)

    before_the_claim(rack, lambda: steal("host-1_b", 2))
    (found,) = call(rack, "POST", "", wish())["accelerators"]
    assert found["device_rp_uuid"] == provider_uuid("host-1_a")
    before_the_claim(rack, lambda: steal("host-1_a", 3))
    body = wish()
    said = refusal(rack, body)
    assert "the most that is free" in said or "no room" in said
    assert claimed(rack, body["consumer"]["uuid"]) == {}
    failed = call(rack, "GET", f"/{body['consumer']['uuid']}")
    assert (failed["state"], failed["accelerators"]) == ("Failed", [])


def test_a_claim_of_somebody_else_is_left_alone(rack: Site) -> None:
    body = wish()
    consumer = body["consumer"]["uuid"]
    rack.placement.allocate(consumer, provider_uuid("host-1_a"), FPGA=1)
    refused = as_member(rack, "POST", "", body)
    assert refused.status_code == 409
    assert "give another uuid" in refused.text
    failed = as_member(rack, "GET", f"/{consumer}").json()
    assert failed["state_reason"].startswith("Placement has an allocation of consumer")
    assert failures(rack, consumer) == [failed["state_reason"]]
    call(rack, "DELETE", f"/{consumer}")
    rack.hurry(rack.idle)
    assert claimed(rack, consumer) == {provider_uuid("host-1_a"): {"FPGA": 1}}


def test_its_owner_reads_what_happened_and_not_where(rack: Site) -> None:
    """Between choice and bind the place becomes one that gives out nothing."""

    def change(model: type[models.Base], column: str, value: object) -> None:
        with db.writer() as session:
            db.update(session, model, sa.true(), **{column: value})

    for model, column, before, value, public, private in (
        (models.Host, "drained", False, True, "the host is drained", "host-1"),
        (models.Host, "down", False, True, "the host is down", "host-1"),
        (models.Device, "unhealthy", None, "0000:3b:00.0 is hot.", "is unhealthy", "0000:3b:00.0"),
    ):
        before_the_claim(rack, functools.partial(change, model, column, value))
        body = wish()
        refused = as_member(rack, "POST", "", body)
        change(model, column, before)
        assert refused.status_code == 409
        path = f"/{body['consumer']['uuid']}"
        for text in (refused.text, as_member(rack, "GET", path).json()["state_reason"]):
            assert public in text
            assert "host-1" not in text
            assert "0000:" not in text
        full = call(rack, "GET", path)["state_reason"]
        assert (public in full, private in full) == (True, True)


def test_an_instance_is_no_consumer(rack: Site, sink: NovaSink) -> None:
    with_arq = str(uuid.uuid4())
    (arq,) = rack.call("POST", "/accelerator_requests", {"device_profile_name": "p"})["arqs"]
    patch = boots.patch([arq["uuid"]], with_arq, hostname="host-1")
    rack.call("PATCH", "/accelerator_requests", patch)
    assert "is an instance" in refusal(rack, wish(with_arq))

    # Nor is a server without accelerators, as far as Nova tells.
    body = wish()
    consumer = body["consumer"]["uuid"]
    sink.servers.add(consumer)
    assert f"consumer: {consumer} is an instance of Nova's" in refusal(rack, body)
    assert claimed(rack, consumer) == {}
    sink.servers.clear()
    sink.hidden.add(consumer)
    assert "does not say" in refusal(rack, body, 503)
    sink.sees_all = False
    assert "role admin" in refusal(rack, body, 503)
    sink.silent.add(consumer)
    assert "Nova cannot be reached" in refusal(rack, body, 503)
    sink.stop()
    rack.conf.set_override("auth_type", None, group="nova")
    assert call(rack, "POST", "", body)["state"] == "Active"


def test_what_an_administrator_takes_away_ends_all_of_it(rack: Site) -> None:
    profile(rack, {}, {}, name="two")
    found = call(rack, "POST", "", wish(device_profile_name="two"))
    lost, _ = found["accelerators"]
    rack.call("DELETE", f"/accelerator_requests?arqs={lost['arq_uuid']}")
    rack.hurry(rack.idle)
    failed = call(rack, "GET", f"/{found['uuid']}")
    assert (failed["state"], "administrator" in failed["state_reason"]) == ("Failed", True)
    assert (rack.held(), claimed(rack, found["uuid"])) == ({}, {})


def test_a_host_step_that_fails_gives_all_of_it_back(site: Site) -> None:
    profile(site, {}, {})
    site.start(host_step=True)
    site.fail("prepare")
    body = wish()
    refusal(site, body)
    site.obey()
    site.hurry(site.idle)
    assert (site.held(), claimed(site, body["consumer"]["uuid"])) == ({}, {})
    assert call(site, "POST", "", body)["state"] == "Active"
    call(site, "DELETE", f"/{body['consumer']['uuid']}")
    until(site.synced)


def test_what_alternatives_have_in_common_is_looked_for_once(rack, monkeypatch, count_sql) -> None:
    asked: list[str] = []
    rack.placement.before = lambda _, path: asked.append(path)
    # Each of the two alternatives may have two tries.
    monkeypatch.setattr("cyborg.allocations.choosing._MOST_TRIES", 4)
    both = {"groups": [{"resources:FPGA": "3"}], "count": 2}
    alternatives = [{"parts": [both]}, {"parts": [{**both, "count": 1}]}]
    found = call(rack, "POST", "", wish(alternatives=alternatives, dry_run=True))
    assert (found["state"], found["alternative"]) == ("Possible", 1)
    assert len([path for path in asked if path.startswith("/allocation_candidates")]) == 1

    many = {"groups": [{"resources:FPGA": "5"}], "count": 5}
    with count_sql() as counter:
        said = refusal(rack, wish(alternatives=[{"parts": [many]}] * 2))
    assert "alternative 1: group 0 asks for 5 FPGA" in said
    assert "group 4 asks for 5 FPGA" in said
    selects = [each for each in counter.statements if "count(" in each and "deployables" in each]
    assert len(selects) == 1


def test_without_alternatives_none_was_chosen(rack: Site) -> None:
    for fields, chosen in (
        ({"device_profile_name": "p"}, None),
        ({"groups": [FPGA]}, None),
        ({"parts": [{"device_profile_name": "p"}]}, None),
        ({"alternatives": [{"device_profile_name": "p"}]}, 0),
    ):
        body = wish(**fields)
        assert call(rack, "POST", "", body | {"dry_run": True})["alternative"] == chosen
        for _ in range(2):
            assert call(rack, "POST", "", body)["alternative"] == chosen
        assert call(rack, "GET", f"/{body['consumer']['uuid']}")["alternative"] == chosen


TWICE = {"resources:FPGA": "1", "resources: FPGA": "1"}
NO_SUCH = {"resources:FPGA": "1", "trait:HW_NONE": "required"}
NEVER = {
    "resources:FPGA": "1", "accel:function_id": "aaaa",
    "trait:CUSTOM_FPGA_FUNCTION_ID_INTEL_BBBB": "required",
}


#: As many parts as there may be in all.
FITTING: list[dict[str, Any]] = [{"parts": [{"device_profile_name": "p", "count": 8}]}] * 8
#: Fields of a request, and what the refusal names.
REFUSED: list[tuple[dict[str, Any], str]] = [
    ({"groups": [{"resources:FPGA": "1000"}, FPGA]}, "groups ask for 1001"),
    ({"groups": [{}]}, "groups: 0 accelerators are asked for in all; ask for 1 to 1000."),
    ({"device_profile_name": "none"}, "device_profile_name: 0 accelerators"),
    ({"parts": [{"groups": [{"resources:FPGA": "600"}], "count": 2}]}, "parts: 1200 acc"),
    (
        {"alternatives": [{"groups": [FPGA]}, {"groups": [{}]}]},
        "alternatives[1]: 0 accelerators",
    ),
    (
        {"alternatives": [{"groups": [FPGA]}, {"parts": [{"groups": [{}]}]}]},
        "alternatives[1]: 0 accelerators",
    ),
    ({"groups": [FPGA, TWICE]}, "groups[1] has the key"),
    ({"parts": [{"groups": [FPGA]}, {"groups": [TWICE]}]}, "parts[1]: groups[0] has the key"),
    (
        {"alternatives": [{"groups": [FPGA]}, {"parts": [{"groups": [NO_SUCH]}]}]},
        "alternatives[1].parts[0]: groups[0]: there is no standard trait HW_NONE",
    ),
    (
        {"parts": [{"groups": [FPGA, FPGA], "count": 3}, {"groups": [FPGA, NEVER]}]},
        "parts[1]: groups[1] can never be bound",
    ),
    (
        {"parts": [{"groups": [FPGA]}, {"device_profile_name": "never"}]},
        "parts[1].device_profile_name: groups[0] can never be bound",
    ),
    (
        {"alternatives": [*FITTING, {"device_profile_name": "p"}]},
        "alternatives: there are 65 parts in all, each times its count; the most is 64.",
    ),
]


def test_a_refusal_names_what_was_written(rack: Site) -> None:
    with db.writer() as session:
        for name, group in (("none", {}), ("never", NEVER)):
            # Imported, from where the rules were others.
            session.add(models.DeviceProfile(name=name, groups=[group], description=None))
    for fields, named in REFUSED:
        assert named in refusal(rack, wish(**fields), 400)
    refusal(rack, {"device_profile_name": "p"}, 400)
    wrong: list[dict[str, Any]] = [
        {"device_profile_name": "p", "groups": [FPGA]},
        {"groups": []},
        {"parts": []},
        {"alternatives": []},
        {"alternatives": [{"hosts": "x"}]},
        {"device_profile_name": "p", "lease_seconds": 0},
        {"device_profile_name": "p", "placing": "anywhere"},
        {"groups": [{"accel:preferred_function": "x"}]},
        {"parts": [{"device_profile_name": "p", "count": 60}] * 2},
    ]
    for fields in wrong:
        refusal(rack, wish(**fields), 400)
    refusal(rack, wish(device_profile_name="gone"), 404)
    assert rack.ask("POST", "/allocations", wish(), "2.3").status_code == 404
    assert work.ALLOCATE not in {row.kind for row in rack.work()}
    # No part too many, though more than there is room for.
    found = call(rack, "POST", "", wish(alternatives=FITTING, dry_run=True))
    assert found["state"] == "Impossible"
    # Hosts are matched by stars alone.
    for pattern in ("*" * 200 + "x", "*o" * 60 + "x*", "host-?*", "[h]ost-1*"):
        refusal(rack, wish(groups=[FPGA], hosts=pattern))
    found = call(rack, "POST", "", wish(groups=[FPGA], hosts="**OST-1*.EX*le", dry_run=True))
    assert found["state"] == "Possible"


SMALL = {"groups": [FPGA]}
LARGE = {"groups": [{"resources:FPGA": "2"}]}
OTHER = {"groups": [{"resources:FPGA": "1", "trait:CUSTOM_B": "required"}] * 2}


def tried(rack: Site, limits: dict[str, int], *alternatives: dict[str, Any]) -> int:
    """The alternative that a consumer gets who has these limits, asked for twice."""
    body = wish(alternatives=list(alternatives))
    consumer = body["consumer"]["uuid"]
    enforcer = Enforcer(rack.conf, service_token_roles={"service"})
    ctx = callers.admin(enforcer, project_id=f"project {consumer}")
    asked = wishes.read(ctx, consumer, body)
    before = service.preview(rack.conf, ctx, asked, limits).alternative
    for _ in range(2):
        service.create(rack.conf, ctx, asked, limits)
    assert service.get(ctx, consumer).row.alternative == before
    service.delete(ctx, consumer)
    return before


@pytest.mark.every_database
def test_an_alternative_within_the_quota_is_taken(rack: Site) -> None:
    one = {"class:FPGA": 1}
    assert tried(rack, {}, LARGE, SMALL) == 0
    assert tried(rack, one, LARGE, SMALL) == 1
    assert tried(rack, {quotas.REQUESTS: 1}, LARGE, OTHER, SMALL, LARGE) == 2
    assert tried(rack, one, SMALL, LARGE) == 0
    # One without room comes before, and one without room behind.
    none = {"groups": [{"resources:FPGA": "1", "trait:CUSTOM_NONE": "required"}]}
    assert tried(rack, one, none, LARGE, SMALL, none) == 2
    for alternatives in ([LARGE], [LARGE, OTHER], [none, LARGE], [LARGE, none]):
        with pytest.raises(quotas.QuotaExceeded, match="used 0, limit 1, asked for 2"):
            tried(rack, one, *alternatives)
    # Nothing that was tried is left.
    with db.reader() as session:
        ours = sa.select(sa.func.count()).where(models.Arq.state != models.DELETING)
        assert session.scalar(ours) == 0


def test_groups_of_ones_own_are_for_administrators(rack: Site) -> None:
    refused = as_member(rack, "POST", "", wish(groups=[FPGA]))
    named = "cyborg:allocation:create_groups" in refused.text
    assert (refused.status_code, named) == (403, True)
    body = wish()
    assert as_member(rack, "POST", "", body).json()["project_id"] == USER_PROJECT
    # The administrator's project is another one.
    assert "another project" in ask(rack, "POST", "", body).text
