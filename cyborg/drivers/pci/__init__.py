# SPDX-License-Identifier: Apache-2.0
"""The parts that drivers of PCI devices are made with: a class that declares, and the bus's walk.

:class:`PciDriver` with :class:`Match` finds and reports a vendor's devices. :class:`Snapshot` holds
the :class:`Function` values of one walk, which :func:`scan` makes.
"""

from cyborg.drivers.pci.driver import PciDriver
from cyborg.drivers.pci.kinds import may_be_accelerator, shown
from cyborg.drivers.pci.match import Match
from cyborg.drivers.pci.snapshot import (
    BOOTED_WITH,
    BRIDGE,
    Details,
    Facts,
    Function,
    Snapshot,
    Vanished,
    can_carry,
    join,
    once,
    reason_to_keep,
    split,
)
from cyborg.drivers.pci.walk import scan

__all__ = [
    "BOOTED_WITH",
    "BRIDGE",
    "Details",
    "Facts",
    "Function",
    "Match",
    "PciDriver",
    "Snapshot",
    "Vanished",
    "can_carry",
    "join",
    "may_be_accelerator",
    "once",
    "reason_to_keep",
    "scan",
    "shown",
    "split",
]
