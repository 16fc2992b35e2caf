# SPDX-License-Identifier: Apache-2.0
"""Disks with two ports: two controllers whose guests would share what is written."""

from __future__ import annotations

import functools
from collections.abc import Sequence

from cyborg.tests.contract import passes
from cyborg.tests.found_cards import erase, found, names, twice

LISTED = '[nvme]\ndevice_spec = {"vendor_id": "144d"}\n'


def _ports(addresses: Sequence[str]) -> str:
    return (
        f"NVMe controllers {' and '.join(addresses)} are ports of one disk: "
        "exclude one in [nvme] device_spec"
    )


def test_of_a_disk_with_two_ports_one_has_to_be_excluded(simulate):
    simulated = simulate({"cards": [{"card": "nvme-dual-port", "count": 2}, "nvme-pm1733"]})
    first, second = (simulated.card("nvme-dual-port", number) for number in range(2))

    devices = found(simulated, "nvme_driver", LISTED)

    ports = _ports([first, second])
    assert [device.unhealthy for device in devices] == [ports, ports, None]
    assert f"{first} is not erased: {ports}" in simulated.call(erase, first)
    only = f'[nvme]\ndevice_spec = {{"address": "{second}", "exclude": true}}\n'
    devices = found(simulated, "nvme_driver", only + LISTED.removeprefix("[nvme]\n"))
    assert [device.unhealthy for device in devices] == [None, None]
    assert names(devices)[0] == f"host-1_{first}"
    # A port whose other a guest has is given to nobody.
    folder = f"{simulated.path(first)}/nvme"
    shown = f"/sys/{folder}/{simulated.files.names(folder)[0]}/subsysnqn"
    again = functools.partial(twice, anew=False)
    passes = simulated.call(again, "nvme_driver", LISTED, {shown: ""}, [first])
    told = [[each.unhealthy for each in devices] for devices in passes]
    assert told == [[ports, ports, None]] * 2


def test_a_controller_that_is_pulled_is_nobody_elses_ailment(simulate):
    """It goes after the walk, before anything more is read of it."""
    simulated = simulate({"cards": [{"card": "nvme-pm1733", "count": 3}]})
    pulled = simulated.card("nvme-pm1733", 1)

    others = simulated.call(passes.judged_without, "nvme_driver", LISTED, pulled)

    assert others == {simulated.card("nvme-pm1733", number): None for number in (0, 2)}
