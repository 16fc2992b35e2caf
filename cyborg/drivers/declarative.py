# SPDX-License-Identifier: Apache-2.0
"""The former path of :mod:`cyborg.drivers.pci`, for drivers that are installed from elsewhere."""

from cyborg.drivers import pci
from cyborg.drivers.pci import Match

__all__ = ["Match", "PciDriver"]


class PciDriver(pci.PciDriver):
    """With the hook :meth:`why_unhealthy` under its former name."""

    def ailment(self, function: pci.Function, functions: pci.Snapshot) -> str | None:
        """Why a device is unhealthy, or None."""
        del function, functions
        return None

    def why_unhealthy(self, function: pci.Function, functions: pci.Snapshot) -> str | None:
        """As :meth:`ailment` says."""
        return self.ailment(function, functions)
