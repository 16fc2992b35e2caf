# SPDX-License-Identifier: Apache-2.0
"""What Nova's own libvirt driver makes of our attach handles in the guest's domain."""

from __future__ import annotations

from xml.etree import ElementTree

import pytest

from cyborg.db import models
from cyborg.drivers import base
from cyborg.tests import hosts
from cyborg.tests.compute import Compute
from cyborg.tests.service import Site

PLACES = (
    {"domain": "0000", "bus": "3b", "device": "00", "function": "0"},
    {"domain": "0001", "bus": "af", "device": "1f", "function": "7"},
)
TYPED = PLACES[0] | {"domain": "0002"}


@pytest.fixture
def boot(site: Site, compute: Compute):
    """ARQs of a guest on a device with these handles, as Nova gets them."""

    def boot(kind: str, *infos: dict[str, str]) -> list[dict[str, object]]:
        handles = tuple(base.AttachHandle(attach_type=kind, attach_info=info) for info in infos)
        site.start_with(
            hosts.device(
                "x",
                hosts.deployable(
                    "host-1_x",
                    resource_class="PGPU",
                    attach_handles=handles,
                    num_accelerators=len(handles),
                    traits=(),
                ),
            )
        )
        profile = compute.make_profile({"resources:PGPU": str(len(handles))})
        return compute.boot(profile, models.new_uuid())

    return boot


def test_pci_functions_become_managed_hostdevs(boot, compute: Compute) -> None:
    # The page on drivers says so of typed ones. Once these are not managed they can be attached.
    typed = TYPED | {"asked_type": "1137", "managed": "false"}
    answer = compute.client.guest_devices(boot("PCI", *PLACES, typed))

    hostdevs = ElementTree.fromstring(answer["xml"]).findall("hostdev")
    managed = {"mode": "subsystem", "type": "pci", "managed": "yes"}
    assert [dev.attrib for dev in hostdevs] == [managed] * 3
    addresses = [address.attrib for dev in hostdevs for address in dev.iter("address")]
    assert sorted(addresses, key=lambda address: address["domain"]) == [
        {"domain": "0x0000", "bus": "0x3b", "slot": "0x00", "function": "0x0"},
        {"domain": "0x0001", "bus": "0xaf", "slot": "0x1f", "function": "0x7"},
        {"domain": "0x0002", "bus": "0x3b", "slot": "0x00", "function": "0x0"},
    ]
    assert answer["created"] == []


def test_mediated_devices_are_those_of_their_handles(boot, compute: Compute) -> None:
    (arq,) = boot("MDEV", PLACES[0] | {"asked_type": "nvidia-474", "vgpu_mark": "nvidia-474_0"})

    answer = compute.client.guest_devices([arq])

    (hostdev,) = ElementTree.fromstring(answer["xml"]).findall("hostdev")
    assert hostdev.attrib["type"] == "mdev"
    (address,) = hostdev.iter("address")
    uuid = address.attrib["uuid"]
    assert uuid == arq["attach_handle_uuid"]
    assert answer["created"] == [["pci_0000_3b_00_0", "nvidia-474", uuid]]
