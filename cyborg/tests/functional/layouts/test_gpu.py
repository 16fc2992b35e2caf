# SPDX-License-Identifier: Apache-2.0
"""An NVIDIA card is divided anew: from the API to vGPU types and GPU instances, and back."""

from __future__ import annotations

import json
import pathlib

import pytest

from cyborg.drivers import pci, privileged
from cyborg.tests.contract import passes
from cyborg.tests.found_cards import whys
from cyborg.tests.layouts_site import LayoutsSite, StartLayouts, forget

pytestmark = pytest.mark.slow

LAYOUTS = "H100XM-40C, H100XM-4C, H100XM-20C, 1g.10gb, 3g.40gb, L40S-12Q, H100XM-1-10CME, DC-1-12Q"
OPTIONS = f"[gpu_devices]\nlayouts = {LAYOUTS}\n"
CARD = {"card": "h100", "name": "gpu", "vfs": 8}
MIG = {**CARD, "card": "h100-mig"}
ARQ = {"resources:VGPU": "1"}
TOOL = (pathlib.Path(__file__).parents[2] / "data/tools/nvidia-smi.sh").read_text()
#: A card in MIG mode shows its types only when there are GPU instances. Of 20C, which the card
#: does not have, the vendor is wrong.
VENDORS_LIST = """<?xml version="1.0" encoding="UTF-8"?>
<vgpuconfig>
  <vgpuType id="1205" name="NVIDIA H100XM-1-10C" class="Compute"/>
  <vgpuType id="1206" name="NVIDIA H100XM-1-10CME" class="Compute"/>
  <vgpuType id="1207" name="NVIDIA H100XM-3-40C" class="Compute"/>
  <vgpuType id="1558" name="NVIDIA DC-1-12Q" class="Quadro"/>
  <vgpuType id="1561" name="NVIDIA DC-1-24Q" class="Quadro"/>
  <vgpuType id="1999" name="NVIDIA H100XM-20C" class="Compute"/>
  <pgpu>
    <devId vendorId="0x10de" deviceId="0x2330" subsystemVendorId="0x10de" subsystemId="0x16c1"/>
    <supportedVgpu vgpuId="1205"><maxVgpus>7</maxVgpus></supportedVgpu>
    <supportedVgpu vgpuId="1206"><maxVgpus>1</maxVgpus></supportedVgpu>
    <supportedVgpu vgpuId="1207"><maxVgpus>2</maxVgpus></supportedVgpu>
    <supportedVgpu vgpuId="1999"><maxVgpus>4</maxVgpus></supportedVgpu>
  </pgpu>
  <pgpu>
    <devId vendorId="0x10de" deviceId="0x2bb5" subsystemVendorId="0x10de" subsystemId="0x0"/>
    <supportedVgpu vgpuId="1558"><maxVgpus>8</maxVgpus></supportedVgpu>
    <supportedVgpu vgpuId="1561"><maxVgpus>4</maxVgpus></supportedVgpu>
  </pgpu>
</vgpuconfig>
"""


FILES = {"nvidia-smi": TOOL, "vgpuConfig.xml": VENDORS_LIST}
DRIVER = "nvidia_gpu_driver"


def types(site: LayoutsSite, card: str | None = None) -> list[str]:
    """The types of the virtual functions."""
    links = site.host.device(card or site.card).glob("virtfn*")
    vfs = sorted(path.readlink().name for path in links)
    files = (site.host.device(vf) / "nvidia/current_vgpu_type" for vf in vfs)
    return [file.read_text().strip() for file in files]


def reboot(vfs: list[str]) -> None:
    """No virtual function has a type any more, and the agent of the host starts anew."""
    for vf in vfs:
        privileged.set_vgpu_type(vf, "0")
    forget()


def test_a_card_is_divided_into_one_type_and_then_into_another(start_layouts: StartLayouts) -> None:
    gpu = start_layouts([CARD], DRIVER, OPTIONS, {"nvidia-smi": TOOL})
    card = gpu.card
    shown = gpu.deployable(card)
    assert shown["program"]["mode"] == "layout"
    assert gpu.layouts(card) == {"H100XM-40C": "2", "H100XM-4C": "8"}
    assert (gpu.layout(card), shown["num_accelerators"]) == (None, 0)
    assert gpu.offered(card).get("VGPU", 0) == 0

    gpu.give(card, "h100xm-4c")

    assert types(gpu) == ["1132"] * 8
    assert gpu.offered(card) == {"VGPU": 8}

    gpu.give(card, "H100XM-40C")

    halves = ["1137"] * 2 + ["0"] * 6
    assert (types(gpu), gpu.offered(card)) == (halves, {"VGPU": 2})
    traits = gpu.traits(card)
    assert {"CUSTOM_NVIDIA_2330_H100XM_40C", "CUSTOM_MEMORY_GIB_40"} <= traits
    assert "CUSTOM_NVIDIA_2330_H100XM_4C" not in traits
    assert gpu.deployable(card)["program"]["verified_by"] == "current_vgpu_type in sysfs"

    # What the card refuses changes nothing: it has no such type, and is not in MIG mode.
    (gpu.state / "vgpuConfig.xml").write_text(VENDORS_LIST)
    gpu.site.hurry(lambda: "3g.40gb" in gpu.layouts(card))
    for layout, reason in (("H100XM-20C", "Invalid argument"), ("3g.40gb", "Unable to change")):
        assert reason in gpu.give_in_vain(card, layout)
        assert (types(gpu), gpu.layout(card)) == (halves, "H100XM-40C")
        assert gpu.offered(card) == {"VGPU": 2}


def test_a_guest_keeps_its_part_and_what_it_had_is_erased(start_layouts: StartLayouts) -> None:
    gpu = start_layouts([CARD], DRIVER, OPTIONS)
    card = gpu.card
    gpu.give(card, "H100XM-40C")
    arq, instance = gpu.arq(card, **ARQ)
    assert gpu.bound(arq)["asked_type"] == "1137"

    refused = gpu.ask(card, "H100XM-4C")

    assert (refused.status_code, arq in refused.text) == (409, True)
    gpu.site.call("DELETE", f"/accelerator_requests?instance={instance}")
    gpu.site.hurry(gpu.site.idle)
    assert types(gpu) == ["1137"] * 2 + ["0"] * 6
    writes = [text for path, text in gpu.host.writes() if path.endswith("current_vgpu_type")]
    assert writes == ["1137", "1137", "0", "1137"]

    # A part that has lost its type gets it again.
    arqs = [gpu.arq(card, **ARQ)[0] for _ in range(2)]
    second = pci.join(sorted((gpu.bound(arq) for arq in arqs), key=pci.join)[1])
    gpu.host.call(reboot, [second])
    gpu.site.hurry(lambda: types(gpu)[:2] == ["1137"] * 2 and gpu.site.idle())
    assert gpu.layout(card) == "H100XM-40C"


def test_cards_in_mig_mode_get_gpu_instances(start_layouts: StartLayouts) -> None:
    other = {**MIG, "card": "rtxpro6000-mig", "name": "other"}
    mig = start_layouts([MIG, other], DRIVER, OPTIONS, FILES)
    card, shared = mig.host.card("gpu"), mig.host.card("other")

    mig.give(card, "1g.10gb")

    assert types(mig, card) == ["1205"] * 7 + ["0"]
    assert mig.offered(card) == {"VGPU": 7}
    assert "CUSTOM_NVIDIA_MIG" in mig.traits(card)

    mig.give(card, "3g.40gb")

    assert types(mig, card) == ["1207"] * 2 + ["0"] * 6
    assert mig.offered(card) == {"VGPU": 2}
    mig.give(card, "H100XM-1-10CME")
    assert types(mig, card) == ["1206"] + ["0"] * 7
    # Parts that share a GPU instance in time get it together.
    mig.give(shared, "DC-1-12Q")
    assert types(mig, shared) == ["1558"] * 8
    assert mig.offered(shared) == {"VGPU": 8}
    sizes = ",".join(["1g.10gb"] * 7), "3g.40gb,3g.40gb", "1g.10gb+me"
    asked = [(size, card) for size in sizes] + [(",".join(["1g.24gb+gfx"] * 4), shared)]
    assert (mig.state / "asked").read_text().splitlines() == [
        f"mig {words} -i {where}"
        for size, where in asked
        for words in ("-dci", "-dgi", f"-cgi {size} -C")
    ]

    # A tool that fails changes nothing.
    (mig.state / "nvidia-smi").write_text("#!/bin/sh\necho Insufficient Permissions\nexit 4\n")
    assert "Insufficient Permissions" in mig.give_in_vain(card, "1g.10gb")
    assert types(mig, card) == ["1206"] + ["0"] * 7
    assert mig.layout(card) == "H100XM-1-10CME"
    assert mig.offered(card) == {"VGPU": 1}


def lose(card: str) -> None:
    """What a reboot leaves of a card in MIG mode."""
    reboot(list(pci.scan()[card].vfs))
    pathlib.Path("/sys/.simulated").write_text(json.dumps(["divide", card, ""]))


def test_a_guest_gets_its_gpu_instance_back_after_a_reboot(start_layouts: StartLayouts) -> None:
    mig = start_layouts([MIG], DRIVER, OPTIONS, FILES)
    card = mig.card
    mig.give(card, "1g.10gb")
    arq, instance = mig.arq(card, **ARQ)
    before = mig.bound(arq)

    mig.host.call(lose, card)

    mig.site.hurry(lambda: types(mig) == ["1205"] * 7 + ["0"] and mig.site.idle())
    assert mig.bound(arq) == before
    assert mig.offered(card) == {"VGPU": 7}

    # A guest that leaves when all is lost is not cleaned in vain for ever.
    mig.host.call(lose, card)
    mig.site.call("DELETE", f"/accelerator_requests?instance={instance}")

    mig.site.hurry(mig.site.idle)
    mig.give(card, "3g.40gb")
    assert types(mig) == ["1207"] * 2 + ["0"] * 6


@pytest.mark.parametrize(
    ("card", "reason"),
    [
        ({**CARD, "vfs": 0}, "it has layouts and no virtual functions; run sriov-manage"),
        (
            {**CARD, "card": "a100"},
            "it has layouts, and not all of its virtual functions take vGPU types",
        ),
    ],
    ids=["no virtual functions", "mediated devices"],
)
def test_a_card_that_cannot_have_layouts_is_not_offered(simulate, card, reason) -> None:
    guests = {**CARD, "vfs": 0, "name": "vm", "driver": "vfio-pci"}
    simulated = simulate({"cards": [card, "t4", guests]})

    (only,) = simulated.call(passes.run, ["nvidia_gpu_driver"], OPTIONS)

    # Cards without SR-IOV, or that a guest may have, are given out whole.
    parts = [part for device in only.devices["nvidia_gpu_driver"] for part in device.deployables]
    assert [part.resource_class for part in parts] == ["PGPU", "PGPU"]
    whole = (reason, "[gpu_devices] layouts")
    assert simulated.call(whys, "nvidia_gpu_driver", OPTIONS) == {simulated.card("gpu"): whole}
