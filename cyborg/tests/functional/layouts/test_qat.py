# SPDX-License-Identifier: Apache-2.0
"""A QAT endpoint is given other services: from the API to sysfs, and back by a report."""

from __future__ import annotations

import pytest

from cyborg.drivers import base, pci, privileged, registry
from cyborg.tests.contract import passes
from cyborg.tests.layouts_site import VERSION, HostsDriver, LayoutsSite, StartLayouts, forget
from cyborg.tests.openstack_command import OpenStack
from cyborg.tests.privileged_acts import unbind
from cyborg.tests.service import until

pytestmark = pytest.mark.slow

OPTIONS = "[intel_qat_driver]\nlayouts = asym-sym, dc, sym;dc;asym\n"
CARD = {"card": "qat-4xxx", "name": "qat", "vfs": 4}
ARQ = {"resources:CUSTOM_QAT": "1"}


def vfs(qat: LayoutsSite) -> list[tuple[str, str]]:
    links = sorted(qat.host.device(qat.card).glob("virtfn*"))
    return [(link.readlink().name, (link / "driver").readlink().name) for link in links]


def services(qat: LayoutsSite, card: str | None = None) -> tuple[str, str]:
    folder = qat.host.device(card or qat.card) / "qat"
    return (folder / "cfg_services").read_text().strip(), (folder / "state").read_text().strip()


def reboot(address: str) -> None:
    """The kernel knows its own services again, and the agent of the host starts anew."""
    privileged.set_numvfs(address, 0)
    privileged.set_qat_services(address, "sym;asym")
    privileged.set_numvfs(address, 4)
    forget()


def unbind_all(address: str) -> None:
    """An agent has died between making the virtual functions and binding them."""
    for vf in pci.scan()[address].vfs:
        unbind(vf)
    forget()


def test_an_endpoint_is_given_other_services(start_layouts: StartLayouts) -> None:
    # Kernels before 6.4 know the services in one order only.
    old_kernels = {**CARD, "name": "old", "services": ["sym;asym", "dc"]}
    qat = start_layouts([CARD, old_kernels], "intel_qat_driver", OPTIONS)
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

    qat.give(card, "dc")

    assert (services(qat), vfs(qat)) == (("dc", "up"), before)
    assert qat.deployable(card)["program"]["verified_by"] == "cfg_services in sysfs"
    assert qat.offered(card) == {"CUSTOM_QAT": 4}
    traits = qat.traits(card)
    assert "CUSTOM_QAT_DC" in traits
    assert not traits & {"CUSTOM_QAT_SYM", "CUSTOM_QAT_ASYM"}
    assert not any("FPGA" in trait for trait in traits)

    # The driver of virtual functions is not forgotten.
    qat.host.call(unbind_all, card)
    qat.give(card, "asym-sym")
    assert vfs(qat) == before
    # A layout may be written in any case.
    qat.give(card, "DC")
    assert services(qat) == ("dc", "up")

    old = qat.host.card("old")
    for layout, written in (("dc", "dc"), ("asym-sym", "sym;asym")):
        qat.give(old, layout)
        assert services(qat, old) == (written, "up")


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
def test_what_is_refused_changes_nothing_and_a_command_gives_a_layout(start_layouts) -> None:
    qat = start_layouts([CARD], "intel_qat_driver", OPTIONS)
    card, before = qat.card, vfs(qat)
    path = f"/deployables/{qat.deployable(card)['uuid']}/program"
    for body, sentence in (
        ({"layout": "sym"}, "Its layouts are: asym-dc-sym, asym-sym, dc."),
        ({"image_name": "dc"}, "cannot have image named dc"),
    ):
        refused = qat.site.ask("POST", path, body, VERSION)
        assert (refused.status_code, sentence in refused.text) == (400, True)
    # The kernel refuses what it does not know.
    assert "Invalid argument" in qat.give_in_vain(card, "asym-dc-sym")
    # No layout is changed for a guest.
    refused = qat.ask_for_arq(card, **ARQ, **{"accel:function_id": "dc"})[0]
    assert refused.status_code in {400, 409}
    assert "not known to have function dc as its layout" in refused.text
    assert (services(qat), vfs(qat)) == (("sym;asym", "up"), before)
    assert qat.layout(card) == "asym-sym"
    assert qat.offered(card) == {"CUSTOM_QAT": 4}

    osc = OpenStack(endpoint=qat.site.endpoint)
    done = osc("deployable", "program", f"host-1_{card}", "--layout", "dc", "--wait")

    assert (done["state"], done["function_id"]) == ("succeeded", "dc")
    assert services(qat) == ("dc", "up")


def test_services_that_are_lost_are_given_again(start_layouts, monkeypatch) -> None:
    qat = start_layouts([CARD], "intel_qat_driver", OPTIONS)
    card, give = qat.card, HostsDriver.set_layout
    given: list[str | None] = []

    def give_and_lose(driver: HostsDriver, target: base.ProgramTarget) -> base.Programmed:
        done = give(driver, target)
        if not given:
            qat.host.call(reboot, card)
        given.append(done.function)
        return done

    monkeypatch.setattr(HostsDriver, "set_layout", give_and_lose)

    # Before they are reported.
    qat.give(card, "dc")

    assert services(qat) == ("dc", "up")
    assert set(given) == {"dc"}

    # Under a guest, by a reboot.
    arq, _instance = qat.arq(card, **ARQ)
    before = qat.bound(arq)
    qat.host.call(reboot, card)
    until(lambda: qat.deployable(card)["program"]["in_doubt"])
    qat.site.hurry(lambda: services(qat) == ("dc", "up") and qat.site.idle())
    assert qat.layout(card) == "dc"
    assert qat.bound(arq) == before
    assert qat.last_operation()["asked_by"] == "recovery"
    assert qat.offered(card) == {"CUSTOM_QAT": 4}


def test_a_pool_keeps_slots_of_a_layout(start_layouts: StartLayouts) -> None:
    cards = [CARD, {**CARD, "name": "other"}, {**CARD, "name": "third"}]
    qat = start_layouts(cards, "intel_qat_driver", OPTIONS)
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
