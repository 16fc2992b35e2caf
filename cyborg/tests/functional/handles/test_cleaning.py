# SPDX-License-Identifier: Apache-2.0
"""PCI functions are reset between two guests, and what cannot be cleaned is kept from others."""

from __future__ import annotations

import queue
import threading
from typing import Any

import pytest
import sqlalchemy as sa
from oslo_config import cfg

from cyborg import db, rpc
from cyborg.agent import cleaning as agent_cleaning
from cyborg.agent import discovery, host_steps, pass_counter
from cyborg.audits import consistency
from cyborg.common import errors
from cyborg.conductor import gauges
from cyborg.db import models
from cyborg.drivers import base, pci, privileged, registry
from cyborg.drivers.pci import cleaning, passthrough
from cyborg.handles import release
from cyborg.policy import context
from cyborg.tests import boots, engine, hosts
from cyborg.tests.contract import passes
from cyborg.tests.service import PATIENCE, RP, SERVER, Site, until

SPEC = '[pci]\ndevice_spec = {"vendor_id": "8086", "product_id": "37c8"}\n'
CARD = "qat-c62x"
INSPUR, KEEPS = '"vendor_id": "1bd4"', '"clear_action": "none"'


def wanted(policy: str) -> str:
    return f"{SPEC}[cleaning]\n{policy}\n"


def found(host: Any, policy: str) -> base.Device:
    (only,) = host.call(passes.run, ["pci_driver"], wanted(policy))
    assert only.errors == {}
    (device,) = [
        each
        for each in only.devices["pci_driver"]
        if pci.join(each.control_path.cpid_info) == host.card(CARD)
    ]
    return device


def clean(address: str) -> str:
    """Let the driver clean a handle; what went wrong, or an empty text."""
    return passes.clean("pci_driver", wanted("default = on"), address)


def card(reset_method: str, **more: object) -> dict[str, Any]:
    bare = {"driver": "vfio-pci", "sriov": None, "module": None}
    return {"cards": [{"card": CARD, "reset_method": reset_method, **bare, **more}]}


#: By what the kernel can do: the policy, whether the card is cleaned then, and whether withheld.
PERMITTED: dict[str, list[tuple[str, bool, bool]]] = {
    "pm": [("default = required", True, False)],
    "bus": [("default = required", True, False)],
    "": [
        ("default = on", False, False),
        ("default = required", True, True),
        ("classes = CUSTOM_PCI:required", True, True),
        ("drivers = pci_driver:required", True, True),
        ("default = required\ndrivers = pci_driver:on", False, False),
    ],
    "flr bus": [
        ("default = off", False, False),
        ("default = on", True, False),
        ("default = on\nclasses = CUSTOM_PCI:off", False, False),
        ("classes = CUSTOM_NIC:required", False, False),
        ("drivers = intel_qat_driver:required", False, False),
        ("classes = CUSTOM_PCI:off\ndrivers = pci_driver:required", False, False),
    ],
}


@pytest.mark.parametrize("methods", PERMITTED)
def test_what_the_policy_and_the_kernel_permit(simulate, methods):
    host = simulate(card(methods))
    for policy, cleans, withheld in PERMITTED[methods]:
        device = found(host, policy)
        assert [each.cleans for each in device.deployables] == [cleans], policy
        said = "[cleaning] requires that it is reset" in (device.unhealthy or "")
        assert said is withheld, policy


def test_a_reset_of_the_bus_must_not_reset_a_neighbour(simulate):
    neighbour = {
        "id": "8086:37c9", "subsystem": "8086:0002", "class": "0b4000", "driver": "vfio-pci",
        "link": {"speed": "8.0 GT/s PCIe", "width": 16},
    }  # fmt: skip
    device = found(simulate(card("bus", functions=[neighbour])), "default = required")
    assert "would reset its neighbours too" in (device.unhealthy or "")


def test_a_function_is_reset_that_can_be(simulate_live):
    """No other is: the kernel may have no way."""
    host = simulate_live(card("flr bus"))
    address = host.card(CARD)
    assert "0000:fe:00.0 is not on the bus" in host.call(clean, "0000:fe:00.0")
    assert host.writes() == []
    assert host.call(clean, address) == ""
    ((path, text),) = host.writes()
    assert (path.endswith(f"/{address}/reset"), text) == (True, "1")

    host = simulate_live(card(""))
    assert "the kernel has no way" in host.call(clean, host.card(CARD))
    assert host.writes() == []


class Sysfs(pci.Details):
    """Every function can be reset alone."""

    def read(self, address: str, path: str) -> str:
        if path != "reset_method":
            raise FileNotFoundError(path)
        return "flr bus"

    def names(self, address: str, path: str) -> list[str]:
        return []

    def exists(self, address: str) -> bool:
        return True

    def location(self, address: str) -> str:
        return address

    def product(self, vendor: str, device: str) -> str | None:
        return None


def function(address: str, pf: str | None = None) -> pci.Function:
    return pci.Function(
        address=address,
        vendor="8086",
        device="37c9",
        subsystem_vendor="8086",
        subsystem_device="0002",
        class_code="0b4000",
        pf=pf,
    )


@pytest.mark.parametrize("who", ["nobody", "a guest", "unknown"])
def test_one_function_of_a_card_is_reset_at_a_time(conf, monkeypatch, who: str) -> None:
    card, vfs = "0000:3d:00.0", ("0000:3d:01.0", "0000:3d:02.1")
    bus = pci.Snapshot([function(card), *(function(vf, card) for vf in vfs)], Sysfs(), {})
    resets: queue.Queue[str] = queue.Queue()
    gate = threading.Event()

    def reset(address: str) -> None:
        resets.put(address)
        gate.wait(PATIENCE)

    monkeypatch.setattr(pci, "scan", lambda: bus)
    monkeypatch.setattr(cleaning, "scan", lambda: bus)
    monkeypatch.setattr(privileged, "reset_function", reset)
    monkeypatch.setattr(host_steps, "AT_ONCE", 0.0)
    holders = {"nobody": {}, "a guest": {vfs[1]: RP}, "unknown": None}
    said = [{}, holders[who]]
    monkeypatch.setattr(rpc, "held_handles", lambda _conf, _host: said.pop(0))
    drivers = {"pci_driver": passthrough.PciPassthroughDriver(conf)}
    agent = host_steps.StepEndpoint(conf, drivers, 1, pass_counter.PassCounter(lambda: None))

    def clean_it(address: str, wait: float) -> None:
        place = pci.split(address)
        step = rpc.HostStep(
            action="clean",
            driver="pci_driver",
            attach_handle_uuid=address,
            attach_type="PCI",
            attach_info=place,
            cpid_type="PCI",
            cpid_info=place,
            asked_ms=1,
            agent_started=1,
            arq_uuid=RP,
        )
        agent.host_step({}, step.to_wire(), wait)

    try:
        for vf in vfs:
            with pytest.raises(rpc.HostStepRunning) as running:
                clean_it(vf, 0.2)
        assert f"until attach handle {vfs[0]} of the same card is clean" in str(running.value)
        assert resets.get(timeout=PATIENCE) == vfs[0]
        assert resets.empty()
    finally:
        gate.set()
    if who != "nobody":
        # An administrator gave up the second one while it waited, and a guest may have it.
        with pytest.raises(errors.CyborgError, match=r"has it by now|No conductor says"):
            clean_it(vfs[1], PATIENCE)
        assert resets.empty()
    else:
        clean_it(vfs[1], PATIENCE)
        assert resets.get(timeout=PATIENCE) == vfs[1]


@pytest.mark.parametrize(
    ("driver", "text"),
    [
        ("inspur_nvme_ssd_driver", ""),
        ("pci_driver", f"[pci]\ndevice_spec = {{{INSPUR}}}\n"),
        ("nvme_driver", f"[nvme]\ndevice_spec = {{{INSPUR}, {KEEPS}}}\n"),
    ],
)
def test_a_reset_makes_no_disk_clean(simulate, driver, text):
    disk = {"card": "nvme-inspur", "driver": "vfio-pci", "reset_method": "flr"}
    host = simulate({"cards": [disk]})
    for policy in ("on", "required"):
        (only,) = host.call(passes.run, [driver], f"{text}[cleaning]\ndefault = {policy}\n")
        (device,) = only.devices[driver]
        withheld = "a reset does not erase the disks" in (device.unhealthy or "")
        assert withheld is (policy == "required")


def test_a_disk_that_nothing_erases_is_not_offered_where_that_is_required(conf):
    """Whatever its driver is, such as that of namespaces of an NVMe-oF target."""
    for policy, erases, withheld in (
        ("on", False, False), ("required", False, True), ("required", True, False)
    ):  # fmt: skip
        conf.set_override("default", policy, group="cleaning")
        part = hosts.deployable("host-1_a", cleans=True, clean_erases=erases)
        device = hosts.device("a", part, type="NVME")
        said = agent_cleaning._noted(conf, {"nvmf_spdk_driver"}, device).unhealthy
        assert ("nothing erases" in (said or "")) is withheld, (policy, erases)
        assert (said is None) is not withheld


def noted(text: str) -> list[tuple[bool, bool]]:
    """Whether each deployable of an agent's report is cleaned, and waits for that while away."""
    conf = passes.configured(text, ["pci_driver"], "host-1")
    loaded = registry.load(conf)
    found = discovery.Discovery("host-1", loaded.drivers, timeout=PATIENCE).run()
    findings = agent_cleaning.noted(conf, found, loaded.drivers)
    return [
        (part.cleans, part.clean_erases)
        for device in findings.devices["pci_driver"]
        for part in device.deployables
    ]


def test_what_is_required_is_cleaned_after_an_absence(simulate):
    host = simulate(card("flr"))
    for policy, flags in (
        ("default = off", (False, False)),
        ("default = on", (True, False)),
        ("default = required", (True, True)),
        ("classes = CUSTOM_PCI:on\ndefault = required", (True, False)),
    ):
        assert host.call(noted, wanted(policy)) == [flags], policy


def kept(site: Site, kind: str = "clean_failed") -> list[dict[str, Any]]:
    answer = site.call("GET", f"/history?kind={kind}", version="2.4")
    return list(answer["history"])


def handles(site: Site, query: str = "") -> list[dict[str, Any]]:
    answer = site.call("GET", f"/attach_handles{query}", version="2.4")
    return list(answer["attach_handles"])


def free(site: Site) -> dict[str, float]:
    return {
        sample.labels["state"]: sample.value
        for family in gauges.Gauges(site.conf).collect()
        for sample in family.samples
        if sample.name == "cyborg_attach_handles"
    }


def give_up(site: Site, arq: str) -> None:
    """An administrator gives it up and says why."""
    path = f"/accelerator_requests/{arq}/release?force=true"
    reason = {"reason": "The card was reset by hand"}
    assert site.ask("POST", path, {"reason": ""}, version="2.4").status_code == 400
    site.call("POST", path, reason, version="2.4")
    (failed,) = (each for each in kept(site) if each["arq_uuid"] == arq)
    assert failed["ended_at"] is not None
    (entry,) = kept(site, "released")
    assert (entry["reason"], entry["arq_uuid"]) == (reason["reason"], arq)
    assert None not in (entry["ended_at"], entry["device_uuid"], entry["attach_handle_uuid"])
    for each in (failed, entry):
        assert each["actor"].startswith("user ")


def test_a_handle_that_is_not_clean_is_shown_and_given_to_nobody(site, ctx) -> None:
    site.conf.set_override("database_interval", 0, group="metrics")
    site.start(host_step=True)
    arqs = unclean, given_up = boots.arqs(ctx, 2)
    boots.bind(ctx, arqs, SERVER, hostname="host-1", device_rp_uuid=RP)
    until(lambda: boots.states(ctx) == dict.fromkeys(arqs, "Bound"))
    site.fail("clean")
    release.delete_arqs(ctx, arqs)
    until(lambda: len(kept(site)) == 2)
    give_up(site, given_up)
    (failed,) = (each for each in kept(site) if each["arq_uuid"] == unclean)
    assert ("out of order" in failed["reason"], failed["ended_at"]) == (True, None)
    assert free(site)["clean_failed"] == 1
    (sentence,) = (each.sentence for each in consistency.withheld())
    assert unclean in sentence
    (handle,) = handles(site, "?state=clean_failed")
    assert "out of order" in handle["state_reason"]
    assert (handle["arq_uuid"], handle["instance_uuid"]) == (unclean, None)
    assert kept(site, "cleaned") == []
    site.obey()
    until(lambda: kept(site, "cleaned"))
    assert [each["ended_at"] is None for each in kept(site)] == [False, False]
    assert free(site)["clean_failed"] == 0
    assert consistency.withheld() == []
    assert {each["state"] for each in handles(site)} == {"free"}
    assert handle["uuid"] in {each["uuid"] for each in handles(site)}
    (entry,) = kept(site, "cleaned")
    for name in ("arq_uuid", "device_uuid", "attach_handle_uuid", "resource_class"):
        assert entry[name] == failed[name], name
    assert entry["project_id"] is not None


class HostOfOneCard:
    """What a host answers that cleans all handles but ``left``."""

    def __init__(self) -> None:
        self.left: set[str] = set()
        self.error: Exception = rpc.HostStepFailed("the card does not answer")
        self.cleaned: list[str] = []

    def run_host_step(self, _conf: object, _host: str, step: rpc.HostStep, _limit: float) -> None:
        address = str(step.attach_info["device"])
        if address in self.left:
            raise self.error
        self.cleaned.append(address)


@pytest.fixture
def host_of_one_card(database: sa.Engine, monkeypatch: pytest.MonkeyPatch) -> HostOfOneCard:
    """A card that is one accelerator and has two functions, both of which are cleaned."""
    hosts.apply(hosts.card("a", range(2), num_accelerators=1, cleans=True))
    host = HostOfOneCard()
    monkeypatch.setattr(rpc, "run_host_step", host.run_host_step)
    return host


@pytest.mark.every_database
def test_no_function_of_a_card_is_given_out_before_all_are_clean(
    conf: cfg.ConfigOpts, ctx: context.RequestContext, host_of_one_card: HostOfOneCard
) -> None:
    first = boots.boot(conf, ctx, 2)
    host_of_one_card.left = {"01"}
    release.delete_instance_arqs(ctx, first)
    engine.drain(conf)
    assert host_of_one_card.cleaned == ["00"]

    boots.boot(conf, ctx)
    assert list(boots.states(ctx).values()) == [models.BIND_FAILED]

    host_of_one_card.left = set()
    engine.make_due()
    engine.drain(conf)
    boots.boot(conf, ctx, 2)
    assert sorted(boots.states(ctx).values()) == [models.BIND_FAILED] + [models.BOUND] * 2


@pytest.mark.parametrize(
    ("error", "noted"),
    [
        (rpc.HostUnreachable("no answer in 60 s"), ["Host host-1 does not answer: no answer"]),
        (rpc.HostStepRunning("it takes long"), []),
        (rpc.BrokerUnreachable("no broker"), []),
    ],
)
def test_a_host_that_does_not_answer_has_not_cleaned(
    conf, ctx, host_of_one_card, error, noted
) -> None:
    instance = boots.boot(conf, ctx)
    host_of_one_card.left, host_of_one_card.error = {"00"}, error
    release.delete_instance_arqs(ctx, instance)
    engine.drain(conf)
    said = list(zip(noted, [each.sentence for each in consistency.withheld()], strict=True))
    assert all(reason in sentence for reason, sentence in said)
    host_of_one_card.left = set()
    engine.make_due()
    engine.drain(conf)
    assert consistency.withheld() == []


@pytest.mark.parametrize(("kind", "seconds"), [("FPGA", 300), ("SSD", 86_400)])
def test_a_clean_that_hangs_for_long_has_failed(conf, ctx, host_of_one_card, kind, seconds) -> None:
    """A disk may be erased for a day. How long it waited for others does not count."""
    instance = boots.boot(conf, ctx)
    host_of_one_card.left = {"00"}
    release.delete_instance_arqs(ctx, instance)
    for ago, said in ((seconds - 60, []), (seconds, [f"for {seconds // 60} minutes: it is busy"])):
        host_of_one_card.error = rpc.HostStepRunning("it is busy", seconds=ago)
        wanted = 10 * seconds
        with db.writer() as session:
            db.update(session, models.Device, type=kind)
            db.update(session, models.Work, due_ms=0, wanted_ms=db.now_ms() - wanted * 1000)
        engine.drain(conf)
        found = [each.sentence for each in consistency.withheld()]
        assert [part for part in said if part in " ".join(found)] == said
        assert len(found) == len(said)
