# SPDX-License-Identifier: Apache-2.0
"""Cards are divided for containers: from the API to sysfs, and back by a report."""

from __future__ import annotations

import pathlib
import subprocess
from typing import Any

import pytest

from cyborg.db import models
from cyborg.inventory.apply import provider_uuid
from cyborg.tests import hosts
from cyborg.tests.layouts_site import VERSION, LayoutsSite, StartLayouts, forget

pytestmark = pytest.mark.slow

QUEUES = "[intel_dsa_driver]\nlayouts = 2-dedicated, 4-shared, 8-shared\n"


def allocate(one: LayoutsSite, name: str, kind: str) -> dict[str, Any]:
    """A container's allocation of one slice of a card, when it is active."""
    consumer = {"uuid": models.new_uuid(), "type": "CONTAINER"}
    place = provider_uuid(f"host-1_{name}")
    part = {"groups": [{f"resources:{kind}": "1"}], "device_rp_uuid": place}
    asked = {"consumer": consumer, "parts": [part]}
    answer = one.site.ask("POST", "/allocations", asked, VERSION)
    assert answer.status_code in {201, 202}, answer.text

    def read() -> dict[str, Any] | None:
        path = f"/allocations/{consumer['uuid']}"
        found: dict[str, Any] = one.site.call("GET", path, version=VERSION)
        return found if found["state"] == "Active" else None

    active: dict[str, Any] = one.site.hurry(read)
    return active


def free(one: LayoutsSite, allocation: dict[str, Any]) -> None:
    uuid = allocation["consumer"]["uuid"]
    one.site.call("DELETE", f"/allocations/{uuid}", version=VERSION)
    one.site.hurry(one.site.idle)


def settings(one: LayoutsSite, number: int) -> dict[str, str]:
    place = next(one.host.device(one.card).glob("dsa*")) / f"wq0.{number}"
    names = ("state", "mode", "size", "threshold", "group_id", "driver_name")
    return {name: (place / name).read_text().strip() for name in names}


def test_queues_are_made_by_a_layout_and_containers_get_them(start_layouts: StartLayouts) -> None:
    one = start_layouts(["dsa-queues", "dsa-enabled"], "intel_dsa_driver", QUEUES)
    card = one.card
    # It has no eight queues.
    assert one.layouts(card) == {"2-dedicated": "2", "4-shared": "4"}
    assert one.layout(card) is None
    one.give(card, "2-dedicated")
    assert one.offered(card) == {"CUSTOM_DSA_QUEUE": 2}
    assert settings(one, 1) == {
        "state": "enabled",
        "mode": "dedicated",
        "size": "16",
        "threshold": "0",
        "group_id": "1",
        "driver_name": "user",
    }
    allocation = allocate(one, card, "CUSTOM_DSA_QUEUE")
    (given,) = allocation["accelerators"]
    assert given["attach_handle_type"] == "NODES"
    assert given["attach_handle_info"] == {"pci_address": card, "queue": "0"}
    assert one.ask(card, "4-shared").status_code == 409
    free(one, allocation)
    one.give(card, "4-shared")
    assert one.offered(card) == {"CUSTOM_DSA_QUEUE": 4}
    assert settings(one, 3)["threshold"] == settings(one, 3)["size"] == "8"
    assert "CUSTOM_DSA_QUEUE_SHARED" in one.traits(card)
    assert one.ask(card, "8-shared").status_code == 400

    # A queue that the host uses keeps its layout.
    used = one.host.card("dsa-enabled")
    assert "queue wq1.0" in one.give_in_vain(used, "4-shared")
    assert one.layout(used) == "2-dedicated"
    assert one.offered(used) == {"CUSTOM_DSA_QUEUE": 2}


PARTITIONS = "[amd_gpu_driver]\nlayouts = SPX-NPS1, DPX-NPS1, TPX-NPS1, CPX-NPS1, CPX-NPS4\n"


def test_a_gpu_is_partitioned_by_a_layout(start_layouts: StartLayouts) -> None:
    one = start_layouts(["mi300x-parts"], "amd_gpu_driver", PARTITIONS)
    card = one.card
    layouts = one.layouts(card)
    assert (layouts["CPX-NPS1"], "TPX-NPS1" in layouts) == ("8", False)
    assert one.layout(card) == "SPX-NPS1"
    assert one.offered(card) == {"CUSTOM_AMD_PARTITION": 1}

    one.give(card, "CPX-NPS1")

    assert one.offered(card) == {"CUSTOM_AMD_PARTITION": 8}
    assert "CUSTOM_COMPUTE_PARTITION_CPX" in one.traits(card)
    allocation = allocate(one, card, "CUSTOM_AMD_PARTITION")
    assert one.ask(card, "SPX-NPS1").status_code == 409
    free(one, allocation)

    # The kernel divides the memory anew when its driver is loaded again.
    assert "when amdgpu is loaded again" in one.give_in_vain(card, "CPX-NPS4")
    assert one.layout(card) == "CPX-NPS1"
    one.host.change("detach", card)
    one.host.change("attach", card)
    one.site.hurry(lambda: one.layout(card) == "SPX-NPS4")
    one.give(card, "CPX-NPS4")
    assert one.offered(card) == {"CUSTOM_AMD_PARTITION": 8}


def test_a_gpu_that_a_process_has_open_keeps_its_partitions(start_layouts: StartLayouts) -> None:
    busy = {"card": "mi300x-parts", "busy": True}
    one = start_layouts([busy], "amd_gpu_driver", PARTITIONS)
    assert "busy" in one.give_in_vain(one.card, "CPX-NPS1")
    assert one.layout(one.card) == "SPX-NPS1"
    assert one.offered(one.card) == {"CUSTOM_AMD_PARTITION": 1}


MIG = "[gpu_devices]\nlayouts = 7x1g.10gb, 1x3g.40gb_4x1g.10gb, 1x4g.71gb, 1g.10gb\n"
MIXED = "1x3g.40gb_4x1g.10gb"
TOOL = (pathlib.Path(__file__).parents[2] / "data/tools/nvidia-smi.sh").read_text()
#: One that only shows the instances.
REFUSES = """#!/bin/sh
case "$*" in *-lci*) exec "$0.real" "$@" ;; esac
echo Insufficient Permissions
exit 4
"""
#: A card in MIG mode that has no instances yet.
FILES = {
    "nvidia-smi": TOOL,
    "nvidia-smi.real": TOOL,
    "proc/capabilities/gpu0/mig/config": "",
    "proc/gpus/0000:09:00.0/information": (
        "Model: NVIDIA H100 80GB HBM3\nGPU UUID: GPU-1\nDevice Minor: 0\n"
    ),
}


def lose(tool: str, card: str, left: str = "") -> None:
    """What a reboot, or somebody by hand, leaves of the instances."""
    subprocess.run([tool, "mig", "-dgi", "-i", card], check=True)
    if left:
        subprocess.run([tool, "mig", "-cgi", left, "-C", "-i", card], check=True)
    forget()


def give_back(mig: LayoutsSite) -> None:
    """Let slices that are lost come back, whose layout a container needs."""
    mig.site.hurry(lambda: mig.layout(mig.card) == MIXED and mig.site.idle())


def test_a_card_has_slices_of_two_sizes(start_layouts: StartLayouts) -> None:
    mig = start_layouts(["h100-mig"], "nvidia_gpu_driver", MIG, FILES)
    card, tool, noted = mig.card, mig.state / "nvidia-smi", mig.state / "asked"
    small, large = f"{card}_1g.10gb", f"{card}_3g.40gb"
    # No such card has slices of 71 GB, and one without counts is of virtual functions.
    assert mig.layouts(card).keys() == {"7x1g.10gb", MIXED}
    mig.give(card, MIXED)
    assert mig.offered(small) == {"CUSTOM_MIG_1G_10GB": 4}
    assert mig.offered(large) == {"CUSTOM_MIG_3G_40GB": 1}
    assert f"mig -cgi 3g.40gb,{','.join(['1g.10gb'] * 4)} -C -i {card}" in noted.read_text()

    # A tool that refuses leaves the slices.
    for refuses in (REFUSES, "#!/bin/sh\necho Insufficient Permissions\nexit 4\n"):
        tool.write_text(refuses)
        assert "Insufficient Permissions" in mig.give_in_vain(card, "7x1g.10gb")
        assert mig.layout(card) == MIXED
    tool.write_text(TOOL)
    mig.site.hurry(lambda: mig.offered(small) == {"CUSTOM_MIG_1G_10GB": 4})

    allocation = allocate(mig, small, "CUSTOM_MIG_1G_10GB")
    (given,) = allocation["accelerators"]
    instances = {"gpu_instance": "2", "compute_instance": "0"}
    assert given["attach_handle_info"] == {"pci_address": card, **instances}
    refused = mig.ask(card, "7x1g.10gb")
    assert (refused.status_code, "or a part of it" in refused.text) == (409, True)

    # Of a part of it that is lost, what is left stays.
    mig.host.call(lose, str(tool), card, "1g.10gb," * 3 + "1g.10gb")
    noted.write_text("")
    mig.site.hurry(lambda: "-cgi" in noted.read_text())
    assert f"mig -cgi 3g.40gb -C -i {card}" in noted.read_text()
    assert "-dgi" not in noted.read_text()
    give_back(mig)

    # None is destroyed while a container may have it, though one has taken the place of another.
    mig.host.call(lose, str(tool), card, "2g.20gb" + ",1g.10gb" * 3)
    noted.write_text("")
    mig.site.hurry(lambda: "destroy by hand" in str(mig.last_operation()["error"]))
    assert not {"-dci", "-dgi"} & set(noted.read_text().split())
    mig.host.call(lose, str(tool), card, "3g.40gb" + ",1g.10gb" * 4)
    give_back(mig)

    # The layout that a container needs is put back, and nobody gets a slice meanwhile.
    mig.host.call(lose, str(tool), card)
    give_back(mig)
    assert mig.offered(small) == {"CUSTOM_MIG_1G_10GB": 4}
    free(mig, allocation)

    mig.give(card, "7x1g.10gb")
    assert mig.offered(small) == {"CUSTOM_MIG_1G_10GB": 7}
    mig.site.hurry(mig.site.synced)
    assert provider_uuid(f"host-1_{large}") not in mig.site.placement.below(hosts.ROOT)
