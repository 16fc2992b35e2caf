# SPDX-License-Identifier: Apache-2.0
"""A QAT endpoint is given other services: from the API to sysfs, and back by a report."""

from __future__ import annotations

from typing import Any

import pytest

from cyborg.drivers import base, pci, privileged, registry
from cyborg.tests.contract import passes
from cyborg.tests.layouts_site import VERSION, HostsDriver, LayoutsSite, forget
from cyborg.tests.openstack_command import OpenStack
from cyborg.tests.privileged_acts import unbind
from cyborg.tests.service import until

pytestmark = pytest.mark.slow

OPTIONS = "[intel_qat_driver]\nlayouts = asym-sym, dc, sym;dc;asym\n"
CARD = {"card": "qat-4xxx", "name": "qat", "vfs": 4}
ARQ = {"resources:CUSTOM_QAT": "1"}


@pytest.fixture
def qat(start_layouts: Any) -> LayoutsSite:
    one: LayoutsSite = start_layouts([CARD], "intel_qat_driver", OPTIONS)
    return one


def vfs(qat: LayoutsSite) -> list[tuple[str, str]]:
    links = sorted(qat.host.device(qat.card).glob("virtfn*"))
    return [
        (link.readlink().name, (link / "driver").readlink().name)
        for link in links
    ]


def services(qat: LayoutsSite) -> tuple[str, str]:
    folder = qat.host.device(qat.card) / "qat"
    return (folder / "cfg_services").read_text().strip(), (folder / "state").read_text().strip()


def reboot(address: str) -> None:
    """The kernel knows its own services again, and the agent of the host starts anew."""
    privileged.set_numvfs(address, 0)
    privileged.set_qat_services(address, "sym;asym")
    privileged.set_numvfs(address, 4)
    forget()


def test_an_endpoint_is_given_other_services(qat: LayoutsSite) -> None:
    card, before = qat.card, vfs(qat)
    shown = qat.deployable(card)
    assert shown["program"]["mode"] == "layout"
    assert qat.layout(card) == "asym-sym"
    assert shown["attributes"]["layout_dc"] == "4"
    assert qat.offered(card) == {"CUSTOM_QAT": 4}
    assert "CUSTOM_QAT_SYM" in qat.traits(card)
    # What it has is not written again.
    assert qat.give(card, "asym-sym")["history"][-1]["text"].endswith("already.")
    assert qat.host.writes() == []

    operation = qat.give(card, "dc")

    assert (operation["state"], operation["error"]) == ("succeeded", None)
    assert services(qat) == ("dc", "up")
    assert vfs(qat) == before
    assert qat.layout(card) == "dc"
    assert qat.deployable(card)["program"]["verified_by"] == "cfg_services in sysfs"
    assert qat.offered(card) == {"CUSTOM_QAT": 4}
    traits = qat.traits(card)
    assert "CUSTOM_QAT_DC" in traits
    assert not traits & {"CUSTOM_QAT_SYM", "CUSTOM_QAT_ASYM"}
    assert not any("FPGA" in trait for trait in traits)


def unbind_all(address: str) -> None:
    """An agent has died between making the virtual functions and binding them."""
    for vf in pci.scan()[address].vfs:
        unbind(vf)
    forget()


def test_the_driver_of_virtual_functions_is_not_forgotten(qat: LayoutsSite) -> None:
    card, before = qat.card, vfs(qat)
    # A layout may be written in any case.
    assert qat.give(card, "DC")["error"] is None
    assert services(qat) == ("dc", "up")

    qat.host.call(unbind_all, card)
    assert qat.give(card, "asym-sym")["error"] is None

    assert vfs(qat) == before


def test_a_kernel_may_know_the_services_in_one_order_only(start_layouts: Any) -> None:
    """As those before 6.4."""
    card = {**CARD, "services": ["sym;asym", "dc"]}
    qat: LayoutsSite = start_layouts([card], "intel_qat_driver", OPTIONS)
    address = qat.card
    qat.give(address, "dc")

    operation = qat.give(address, "asym-sym")

    assert (operation["state"], operation["error"]) == ("succeeded", None)
    assert services(qat) == ("sym;asym", "up")


WORDS = "use some of asym, dc, dcc, decomp, sym"


@pytest.mark.parametrize(
    ("driver", "group", "layouts", "remedy"),
    [
        ("intel_qat_driver", "intel_qat_driver", "dc, smy", WORDS),
        ("intel_qat_driver", "intel_qat_driver", "dc, -", WORDS),
        ("nvidia_gpu_driver", "gpu_devices", "L40S 12Q", ""),
        ("xilinx_fpga_driver", "xilinx_fpga_driver", "xilinx u250", ""),
    ],
)
def test_a_layout_that_there_cannot_be_is_an_error_of_the_driver(
    driver: str, group: str, layouts: str, remedy: str
) -> None:
    conf = passes.configured(f"[{group}]\nlayouts = {layouts}\n", [driver], "host-1")

    loaded = registry.load(conf)

    assert loaded.drivers == {}
    assert f"[{group}] layouts: " in loaded.errors[driver]
    assert remedy in loaded.errors[driver]


@pytest.mark.usefixtures("quiet_openstack")
def test_a_layout_is_given_by_a_command(qat: LayoutsSite) -> None:
    osc = OpenStack(endpoint=qat.site.endpoint)

    done = osc("deployable", "program", f"host-1_{qat.card}", "--layout", "dc", "--wait")

    assert (done["state"], done["function_id"]) == ("succeeded", "dc")
    assert services(qat) == ("dc", "up")


def test_no_layout_is_changed_for_a_guest(qat: LayoutsSite) -> None:
    card = qat.card
    profile = [{"name": "other", "groups": [{**ARQ, "accel:function_id": "dc"}]}]
    qat.site.call("POST", "/device_profiles", profile)
    made = qat.site.call("POST", "/accelerator_requests", {"device_profile_name": "other"})
    rp = qat.deployable(card)["rp_uuid"]
    wanted = {"hostname": "host-1", "device_rp_uuid": rp, "instance_uuid": made["arqs"][0]["uuid"]}
    patch = [{"path": f"/{key}", "op": "add", "value": val} for key, val in wanted.items()]

    refused = qat.site.ask("PATCH", "/accelerator_requests", {made["arqs"][0]["uuid"]: patch})

    assert refused.status_code in {400, 409}
    assert "not known to have function dc as its layout" in refused.text
    assert services(qat) == ("sym;asym", "up")


def test_what_is_no_layout_of_it_or_the_kernel_refuses_changes_nothing(qat: LayoutsSite) -> None:
    card, before = qat.card, vfs(qat)
    path = f"/deployables/{qat.deployable(card)['uuid']}/program"
    for body, sentence in (
        ({"layout": "sym"}, "Its layouts are: asym-dc-sym, asym-sym, dc."),
        ({"image_name": "dc"}, "cannot have image named dc"),
    ):
        refused = qat.site.ask("POST", path, body, VERSION)
        assert (refused.status_code, sentence in refused.text) == (400, True)

    operation = qat.give(card, "asym-dc-sym")

    assert operation["state"] == "failed"
    assert "Invalid argument" in operation["error"]
    assert services(qat) == ("sym;asym", "up")
    assert vfs(qat) == before
    assert qat.layout(card) == "asym-sym"
    assert qat.offered(card) == {"CUSTOM_QAT": 4}


def test_a_guest_gets_its_services_back_after_a_reboot(qat: LayoutsSite) -> None:
    card = qat.card
    assert qat.give(card, "dc")["error"] is None
    arq, _instance = qat.arq(card, **ARQ)
    before = qat.bound(arq)

    qat.host.call(reboot, card)
    until(lambda: qat.deployable(card)["program"]["in_doubt"])

    qat.site.hurry(lambda: services(qat) == ("dc", "up") and qat.site.idle())
    assert qat.layout(card) == "dc"
    assert qat.bound(arq) == before
    last = qat.site.call("GET", "/operations?sort_key=id&sort_dir=desc&limit=1", version=VERSION)
    assert last["operations"][0]["asked_by"] == "recovery"
    assert qat.offered(card) == {"CUSTOM_QAT": 4}


def test_a_layout_that_is_lost_before_it_is_reported_is_given_again(
    qat: LayoutsSite, monkeypatch: pytest.MonkeyPatch
) -> None:
    card, give = qat.card, HostsDriver.set_layout
    given: list[str | None] = []

    def give_and_lose(driver: HostsDriver, target: base.ProgramTarget) -> base.Programmed:
        done = give(driver, target)
        if not given:
            qat.host.call(reboot, card)
        given.append(done.function)
        return done

    monkeypatch.setattr(HostsDriver, "set_layout", give_and_lose)

    operation = qat.give(card, "dc")

    assert (operation["state"], operation["error"]) == ("succeeded", None)
    assert services(qat) == ("dc", "up")
    assert set(given) == {"dc"}


def test_a_pool_keeps_slots_of_a_layout(start_layouts: Any) -> None:
    cards = [CARD, {**CARD, "name": "other"}, {**CARD, "name": "third"}]
    qat: LayoutsSite = start_layouts(cards, "intel_qat_driver", OPTIONS)
    names = [qat.host.card(each) for each in ("qat", "other", "third")]
    body = {"name": "dc", "function_id": "dc", "free": 8, "max_devices": 2}

    uuid = qat.site.call("POST", "/function_pools", body, "2.4")["uuid"]

    def has(*counts: int) -> bool:
        pool = qat.site.call("GET", f"/function_pools/{uuid}", version="2.4")
        return (pool["ready"], pool["pending"]) == counts

    qat.site.hurry(lambda: has(8, 0))
    # One is given away: the third card takes its place only if the pool may have three.
    qat.bound(qat.arq(next(each for each in names if qat.layout(each) == "dc"), **ARQ)[0])
    qat.site.hurry(lambda: has(7, 0) and qat.site.idle())
    assert sorted(filter(None, map(qat.layout, names))) == ["asym-sym", "dc", "dc"]
