# SPDX-License-Identifier: Apache-2.0
"""NVIDIA cards with mediated devices are divided anew: all of those on a card are of one type."""

from __future__ import annotations

import uuid
from typing import Any

import pytest

from cyborg.drivers import pci, privileged
from cyborg.tests.layouts_site import LayoutsSite, forget
from cyborg.tests.service import until

pytestmark = pytest.mark.slow

OPTIONS = "[gpu_devices]\nlayouts = T4-1Q, T4-16Q, A100-10C, A100-40C, H100XM-40C\n"
ARQ = {"resources:VGPU": "1"}
#: One whose mediated devices are on the card itself, and one with them on virtual functions.
T4 = {"card": "t4", "name": "gpu"}
A100 = {"card": "a100", "name": "gpu", "vfs": 6}


def made(site: LayoutsSite, parent: str) -> dict[str, list[str]]:
    """The mediated devices of a function by their types, without types that have none."""
    kinds = site.host.device(parent).glob("mdev_supported_types/*/devices")
    found = {each.parent.name: sorted(path.name for path in each.iterdir()) for each in kinds}
    return {kind: uuids for kind, uuids in found.items() if uuids}


def make(parent: str, kind: str) -> None:
    privileged.create_mdev(parent, kind, str(uuid.uuid4()))


@pytest.mark.parametrize(
    ("card", "first", "then"),
    [
        (T4, ("T4-1Q", 16, "nvidia-230"), ("T4-16Q", 1, "nvidia-234")),
        (A100, ("A100-10C", 4, "nvidia-471"), ("A100-40C", 1, "nvidia-474")),
    ],
    ids=["on the card", "on virtual functions"],
)
def test_a_card_is_divided_into_one_type_and_then_into_another(
    start_layouts: Any,
    card: dict[str, Any],
    first: tuple[str, int, str],
    then: tuple[str, int, str],
) -> None:
    site: LayoutsSite = start_layouts([card], "nvidia_gpu_driver", OPTIONS)
    gpu = site.card
    shown = site.deployable(gpu)["attributes"]
    layouts = {key: value for key, value in shown.items() if key.startswith("layout_")}
    assert layouts == {f"layout_{name}": str(count) for name, count, _ in (first, then)}
    assert site.offered(gpu).get("VGPU", 0) == 0

    assert site.give(gpu, first[0])["error"] is None

    assert site.offered(gpu) == {"VGPU": first[1]}
    arq, instance = site.arq(gpu, **ARQ)
    info = site.bound(arq)
    assert (info["asked_type"], list(made(site, pci.join(info)))) == (first[2], [first[2]])

    # Nothing is changed under a guest, and what it has outlives the agent.
    refused = site.ask(gpu, then[0])
    assert (refused.status_code, arq in refused.text) == (409, True)
    site.host.call(forget)
    site.site.call("DELETE", f"/accelerator_requests?instance={instance}")
    site.site.hurry(site.site.idle)
    assert made(site, pci.join(info)) == {}
    assert (site.layout(gpu), site.offered(gpu)) == (first[0], {"VGPU": first[1]})

    assert site.give(gpu, then[0])["error"] is None

    assert site.offered(gpu) == {"VGPU": then[1]}
    arq, _instance = site.arq(gpu, **ARQ)
    assert site.bound(arq)["asked_type"] == then[2]


def test_a_card_with_somebody_elses_devices_is_not_changed(start_layouts: Any) -> None:
    site: LayoutsSite = start_layouts([T4], "nvidia_gpu_driver", OPTIONS)
    gpu = site.card
    assert site.give(gpu, "T4-16Q")["error"] is None
    site.host.call(make, gpu, "nvidia-222")

    operation = site.give(gpu, "T4-1Q")

    assert operation["state"] == "failed"
    assert f"GPU {gpu} has mediated devices of type GRID T4-1B" in operation["error"]
    # It is not offered while it is not what it should be: two reports must lack all its handles.
    until(lambda: site.offered(gpu).get("VGPU", 0) == 0)
