# SPDX-License-Identifier: Apache-2.0
"""NVIDIA cards with mediated devices are divided anew: all of those on a card are of one type."""

from __future__ import annotations

import uuid

import pytest

from cyborg.drivers import pci, privileged
from cyborg.tests.layouts_site import LayoutsSite, StartLayouts, forget
from cyborg.tests.service import until

pytestmark = pytest.mark.slow

OPTIONS = "[gpu_devices]\nlayouts = T4-1Q, T4-16Q, A100-10C, A100-40C, H100XM-40C\n"
ARQ = {"resources:VGPU": "1"}
#: One whose mediated devices are on the card itself, and one with them on virtual functions.
T4 = {"card": "t4", "name": "t4"}
A100 = {"card": "a100", "name": "a100", "vfs": 6}


def made(site: LayoutsSite, parent: str) -> dict[str, list[str]]:
    """The mediated devices of a function by their types, without types that have none."""
    kinds = site.host.device(parent).glob("mdev_supported_types/*/devices")
    found = {each.parent.name: sorted(path.name for path in each.iterdir()) for each in kinds}
    return {kind: uuids for kind, uuids in found.items() if uuids}


def make(parent: str, kind: str) -> None:
    privileged.create_mdev(parent, kind, str(uuid.uuid4()))


def divide(site: LayoutsSite, gpu: str, *layouts: tuple[str, int, str]) -> None:
    """Give a card one layout and then another, of which a guest has a part."""
    first, then = layouts
    assert site.layouts(gpu) == {name: str(count) for name, count, _ in layouts}
    assert site.offered(gpu).get("VGPU", 0) == 0

    site.give(gpu, first[0])

    assert site.offered(gpu) == {"VGPU": first[1]}
    arq, instance = site.arq(gpu, **ARQ)
    info = site.bound(arq)
    assert (info["asked_type"], list(made(site, pci.join(info)))) == (first[2], [first[2]])

    # Nothing is changed under a guest, and what it has outlives the agent.
    refused = site.ask(gpu, then[0])
    assert (refused.status_code, arq in refused.text) == (409, True)
    site.host.call(forget)
    leave(site, instance)
    assert made(site, pci.join(info)) == {}
    assert (site.layout(gpu), site.offered(gpu)) == (first[0], {"VGPU": first[1]})

    site.give(gpu, then[0])

    assert site.offered(gpu) == {"VGPU": then[1]}
    arq, instance = site.arq(gpu, **ARQ)
    assert site.bound(arq)["asked_type"] == then[2]
    leave(site, instance)


def leave(site: LayoutsSite, instance: str) -> None:
    site.site.call("DELETE", f"/accelerator_requests?instance={instance}")
    site.site.hurry(site.site.idle)


def test_cards_are_divided_into_one_type_and_then_into_another(start_layouts: StartLayouts) -> None:
    site = start_layouts([T4, A100], "nvidia_gpu_driver", OPTIONS)
    on_card, on_vfs = site.host.card("t4"), site.host.card("a100")
    divide(site, on_vfs, ("A100-10C", 4, "nvidia-471"), ("A100-40C", 1, "nvidia-474"))
    divide(site, on_card, ("T4-1Q", 16, "nvidia-230"), ("T4-16Q", 1, "nvidia-234"))

    # A card with somebody else's devices is not changed.
    site.host.call(make, on_card, "nvidia-222")
    error = site.give_in_vain(on_card, "T4-1Q")
    assert f"GPU {on_card} has mediated devices of type GRID T4-1B" in error
    # It is not offered while it is not what it should be: two reports must lack all its handles.
    until(lambda: site.offered(on_card).get("VGPU", 0) == 0)
