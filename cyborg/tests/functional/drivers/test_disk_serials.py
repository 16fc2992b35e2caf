# SPDX-License-Identifier: Apache-2.0
"""Nothing is done to a disk that does not show the serial by which it is known."""

from __future__ import annotations

from cyborg.agent import cards
from cyborg.drivers import base, pci, registry
from cyborg.tests.contract import passes

#: That of PCI, which is shown under any driver; the vendor's is another text.
OF_PCI, OTHER_OF_PCI = "00-80-ee-00-00-00-41-80", "00-80-ee-00-00-00-99-99"


def why(address, serial):
    options = '[nvme]\ndevice_spec = {"vendor_id": "144d"}\n'
    conf = passes.configured(options, ["nvme_driver"], "host-1")
    path = base.ControlPath(cpid_type="PCI", cpid_info=pci.split(address))
    driver = registry.load(conf).drivers["nvme_driver"]
    return cards.why_other(driver, path, {"serial": serial})


def test_a_disk_must_show_the_serial_of_the_kind_that_is_known(simulate):
    simulated = simulate({"cards": [{"card": "nvme-pm1733", "sriov": None}]})
    disk = simulated.card("nvme-pm1733")
    simulated.files.put(f"{simulated.path(disk)}/serial_number", OF_PCI)

    def known(*serials: str) -> list[str]:
        return [each for each in serials if simulated.call(why, disk, each) is None]

    assert known(OF_PCI, OTHER_OF_PCI, "ANOTHER") == [OF_PCI]
    simulated.detach(disk)
    simulated.attach(disk, "vfio-pci")
    simulated.files.put(f"{simulated.path(disk)}/serial_number", OF_PCI)
    assert known(OF_PCI, "ANOTHER") == [OF_PCI]
