# SPDX-License-Identifier: Apache-2.0
"""Cards are divided for containers: from the API to sysfs, and back by a report."""

from __future__ import annotations

import pathlib
import shutil
import subprocess
from typing import Any

import pytest

from cyborg.db import models
from cyborg.inventory.apply import provider_uuid
from cyborg.tests import hosts
from cyborg.tests.layouts_site import VERSION, LayoutsSite, forget

pytestmark = pytest.mark.slow

QUEUES = "[intel_dsa_driver]\nlayouts = 2-dedicated, 4-shared, 8-shared\n"


def allocate(one: LayoutsSite, kind: str) -> dict[str, Any]:
    """A container's allocation of one slice, when it is active."""
    consumer = {"uuid": models.new_uuid(), "type": "CONTAINER"}
    groups = [{f"resources:{kind}": "1"}]
    asked = {"consumer": consumer, "groups": groups}
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


def test_queues_are_made_by_a_layout_and_containers_get_them(start_layouts: Any) -> None:
    one: LayoutsSite = start_layouts(["dsa-queues"], "intel_dsa_driver", QUEUES)
    card = one.card
    layouts = {
        key: value
        for key, value in one.deployable(card)["attributes"].items()
        if key.startswith("layout_")
    }
    # It has no eight queues.
    assert layouts == {"layout_2-dedicated": "2", "layout_4-shared": "4"}
    assert one.layout(card) is None
    assert one.give(card, "2-dedicated")["error"] is None
    assert one.offered(card) == {"CUSTOM_DSA_QUEUE": 2}
    assert settings(one, 1) == {
        "state": "enabled",
        "mode": "dedicated",
        "size": "16",
        "threshold": "0",
        "group_id": "1",
        "driver_name": "user",
    }
    allocation = allocate(one, "CUSTOM_DSA_QUEUE")
    (given,) = allocation["accelerators"]
    assert given["attach_handle_type"] == "NODES"
    assert given["attach_handle_info"] == {"pci_address": card, "queue": "0"}

    refused = one.ask(card, "4-shared")

    assert refused.status_code == 409
    free(one, allocation)
    assert one.give(card, "4-shared")["error"] is None
    assert one.offered(card) == {"CUSTOM_DSA_QUEUE": 4}
    assert settings(one, 3)["threshold"] == settings(one, 3)["size"] == "8"
    assert "CUSTOM_DSA_QUEUE_SHARED" in one.traits(card)
    assert one.ask(card, "8-shared").status_code == 400


def test_a_queue_that_the_host_uses_keeps_its_layout(start_layouts: Any) -> None:
    one: LayoutsSite = start_layouts(["dsa-enabled"], "intel_dsa_driver", QUEUES)

    operation = one.give(one.card, "4-shared")

    assert operation["state"] == "failed"
    assert "queue wq0.0" in operation["error"]
    assert one.layout(one.card) == "2-dedicated"
    assert one.offered(one.card) == {"CUSTOM_DSA_QUEUE": 2}


PARTITIONS = "[amd_gpu_driver]\nlayouts = SPX-NPS1, DPX-NPS1, TPX-NPS1, CPX-NPS1, CPX-NPS4\n"


def test_a_gpu_is_partitioned_by_a_layout(start_layouts: Any) -> None:
    one: LayoutsSite = start_layouts(["mi300x-parts"], "amd_gpu_driver", PARTITIONS)
    card = one.card
    attributes = one.deployable(card)["attributes"]
    assert attributes["layout_CPX-NPS1"] == "8"
    assert "layout_TPX-NPS1" not in attributes
    assert one.layout(card) == "SPX-NPS1"
    assert one.offered(card) == {"CUSTOM_AMD_PARTITION": 1}

    assert one.give(card, "CPX-NPS1")["error"] is None

    assert one.offered(card) == {"CUSTOM_AMD_PARTITION": 8}
    assert "CUSTOM_COMPUTE_PARTITION_CPX" in one.traits(card)
    allocation = allocate(one, "CUSTOM_AMD_PARTITION")
    assert one.ask(card, "SPX-NPS1").status_code == 409
    free(one, allocation)

    # The kernel divides the memory anew when its driver is loaded again.
    operation = one.give(card, "CPX-NPS4")
    assert operation["state"] == "failed"
    assert "when amdgpu is loaded again" in operation["error"]
    assert one.layout(card) == "CPX-NPS1"
    one.host.change("detach", card)
    one.host.change("attach", card)
    one.site.hurry(lambda: one.layout(card) == "SPX-NPS4")
    assert one.give(card, "CPX-NPS4")["error"] is None
    assert one.offered(card) == {"CUSTOM_AMD_PARTITION": 8}


def test_a_gpu_that_a_process_has_open_keeps_its_partitions(start_layouts: Any) -> None:
    one: LayoutsSite = start_layouts(
        [{"card": "mi300x-parts", "busy": True}], "amd_gpu_driver", PARTITIONS
    )

    operation = one.give(one.card, "CPX-NPS1")

    assert operation["state"] == "failed"
    assert "busy" in operation["error"]
    assert one.layout(one.card) == "SPX-NPS1"
    assert one.offered(one.card) == {"CUSTOM_AMD_PARTITION": 1}


MIG = "[gpu_devices]\nlayouts = 7x1g.10gb, 1x3g.40gb_4x1g.10gb, 1x4g.71gb, 1g.10gb\n"
MIXED = "1x3g.40gb_4x1g.10gb"
TOOL = pathlib.Path(__file__).parents[2] / "data/tools/nvidia-smi.sh"


@pytest.fixture
def mig(start_layouts: Any, tmp_path: pathlib.Path) -> LayoutsSite:
    """A card in MIG mode that has no instances yet."""
    folder = tmp_path / "agent"
    (folder / "proc/capabilities/gpu0/mig").mkdir(parents=True)
    shutil.copy(TOOL, folder / "nvidia-smi")
    shown = folder / "proc/gpus/0000:09:00.0/information"
    shown.parent.mkdir(parents=True)
    shown.write_text("Model: NVIDIA H100 80GB HBM3\nGPU UUID: GPU-1\nDevice Minor: 0\n")
    one: LayoutsSite = start_layouts(["h100-mig"], "nvidia_gpu_driver", MIG)
    return one


def lose(tool: str, card: str, left: str = "") -> None:
    """What a reboot, or somebody by hand, leaves of the instances."""
    subprocess.run([tool, "mig", "-dgi", "-i", card], check=True)
    if left:
        subprocess.run([tool, "mig", "-cgi", left, "-C", "-i", card], check=True)
    forget()


def last_error(one: LayoutsSite) -> str:
    path = "/operations?sort_key=id&sort_dir=desc&limit=1"
    (last,) = one.site.call("GET", path, version=VERSION)["operations"]
    return str(last["error"])


def test_a_card_has_slices_of_two_sizes(mig: LayoutsSite, tmp_path: pathlib.Path) -> None:
    card = mig.card
    small, large = f"{card}_1g.10gb", f"{card}_3g.40gb"
    shown = {key for key in mig.deployable(card)["attributes"] if key.startswith("layout_")}
    # No such card has slices of 71 GB, and one without counts is of virtual functions.
    assert shown == {"layout_7x1g.10gb", f"layout_{MIXED}"}

    operation = mig.give(card, MIXED)

    assert (operation["state"], operation["error"]) == ("succeeded", None)
    assert mig.layout(card) == MIXED
    assert mig.offered(small) == {"CUSTOM_MIG_1G_10GB": 4}
    assert mig.offered(large) == {"CUSTOM_MIG_3G_40GB": 1}
    asked = (tmp_path / "agent/asked").read_text()
    assert f"mig -cgi 3g.40gb,{','.join(['1g.10gb'] * 4)} -C -i {card}" in asked

    allocation = allocate(mig, "CUSTOM_MIG_1G_10GB")
    (given,) = allocation["accelerators"]
    assert given["attach_handle_info"] == {
        "pci_address": card,
        "gpu_instance": "2",
        "compute_instance": "0",
    }
    refused = mig.ask(card, "7x1g.10gb")
    assert refused.status_code == 409
    assert "or a part of it" in refused.text

    # Of a part of it that is lost, what is left stays.
    tool = tmp_path / "agent/nvidia-smi"
    mig.host.call(lose, str(tool), card, "1g.10gb," * 3 + "1g.10gb")
    noted = tmp_path / "agent/asked"
    noted.write_text("")
    mig.site.hurry(lambda: "-cgi" in noted.read_text())
    assert f"mig -cgi 3g.40gb -C -i {card}" in noted.read_text()
    assert "-dgi" not in noted.read_text()
    mig.site.hurry(lambda: mig.layout(card) == MIXED and mig.site.idle())

    # None is destroyed while a container may have it, though one has taken the place of another.
    mig.host.call(lose, str(tool), card, "2g.20gb" + ",1g.10gb" * 3)
    noted.write_text("")
    mig.site.hurry(lambda: "destroy by hand" in last_error(mig))
    assert not {"-dci", "-dgi"} & set(noted.read_text().split())
    mig.host.call(lose, str(tool), card, "3g.40gb" + ",1g.10gb" * 4)
    mig.site.hurry(lambda: mig.layout(card) == MIXED and mig.site.idle())

    # The layout that a container needs is put back, and nobody gets a slice meanwhile.
    mig.host.call(lose, str(tmp_path / "agent/nvidia-smi"), card)
    mig.site.hurry(lambda: mig.layout(card) == MIXED and mig.site.idle())
    assert mig.offered(small) == {"CUSTOM_MIG_1G_10GB": 4}
    free(mig, allocation)

    assert mig.give(card, "7x1g.10gb")["error"] is None
    assert mig.offered(small) == {"CUSTOM_MIG_1G_10GB": 7}
    mig.site.hurry(mig.site.synced)
    assert provider_uuid(f"host-1_{large}") not in mig.site.placement.below(hosts.ROOT)


def test_a_tool_that_refuses_leaves_the_slices(mig: LayoutsSite, tmp_path: pathlib.Path) -> None:
    card = mig.card
    assert mig.give(card, MIXED)["error"] is None
    tool = tmp_path / "agent/nvidia-smi"
    tool.write_text("#!/bin/sh\necho Insufficient Permissions\nexit 4\n")

    operation = mig.give(card, "7x1g.10gb")

    assert "Insufficient Permissions" in operation["error"]
    assert mig.layout(card) == MIXED
    assert mig.offered(f"{card}_1g.10gb") == {"CUSTOM_MIG_1G_10GB": 4}
