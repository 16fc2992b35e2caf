# SPDX-License-Identifier: Apache-2.0
"""What happens when something is written to sysfs: the tree changes, or the kernel's errno comes.

As in ``drivers/pci/iov.c``, ``drivers/pci/pci-sysfs.c``, ``drivers/base/bus.c`` and the mdev core.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Callable

from cyborg.tests.simulated import amd, idxd, vgpu
from cyborg.tests.simulated.layout import Function
from cyborg.tests.simulated.tree import Tree

_QAT_SERVICES = frozenset(
    {"sym;asym", "asym;sym", "dc", "sym", "asym", "dc;sym", "sym;dc", "dc;asym", "asym;dc", "dcc"}
)


class Kernel:
    """Carries out writes on a tree, one at a time."""

    def __init__(self, tree: Tree) -> None:
        self._tree = tree
        self._files = tree.files
        self._written: dict[str, Callable[[str, str], None]] = {
            "bind": self._bind,
            "cfg_services": self._cfg_services,
            "create": self._create,
            "current_vgpu_type": self._current_vgpu_type,
            "driver_override": self._driver_override,
            "drivers_probe": self._drivers_probe,
            "remove": self._remove,
            "reset": self._reset,
            "reset_method": self._reset_method,
            "sriov_drivers_autoprobe": self._switch,
            "sriov_numvfs": self._sriov_numvfs,
            "state": self._state,
            "unbind": self._unbind,
        }

    def write(self, path: str, text: str) -> None:
        """Write to a file; the path may lead over links."""
        above, _slash, name = path.rpartition("/")
        place = self._files.real(above)
        if name in idxd.ATTRIBUTES and self._files.target(f"{place}/subsystem") == "dsa":
            idxd.configure(self._files, place, name, text.strip())
        elif name.startswith("current_") and name.endswith("_partition"):
            amd.divide(self._files, self._function(place), name.split("_")[1], text.strip())
        elif name in self._written:
            self._written[name](place, text.strip())
        else:
            self._files.put(f"{place}/{name}", text.strip())

    # Virtual functions.

    def _sriov_numvfs(self, place: str, text: str) -> None:
        count = _number(text)
        pf = self._function(place)
        now = len(self._tree.vfs(pf.address))
        if count > min(pf.facts["sriov"]["total"], 0xFFFF):
            raise OSError(errno.ERANGE, "more than there can be")
        if count == now:
            return
        if self._tree.driver(pf.address) != pf.facts["driver"]:
            raise OSError(errno.ENOENT, "no driver that makes virtual functions")
        if count and now:
            raise OSError(errno.EBUSY, "there are virtual functions already")
        if count:
            probe = self._files.read(f"{place}/sriov_drivers_autoprobe") == "1"
            self._tree.enable(pf.address, count, probe=probe)
        else:
            self._tree.disable(pf.address)

    # Drivers.

    def _bind(self, place: str, text: str) -> None:
        driver = os.path.basename(place)
        if place.startswith("bus/dsa/"):
            idxd.bind(self._files, driver, text)
            return
        function = self._listed(text)
        if not self._matches(function, driver):
            raise OSError(errno.ENODEV, "the driver does not match")
        if self._tree.driver(function.address) is not None:
            raise OSError(errno.EBUSY, "the function has a driver")
        self._tree.attach(function.address, driver)

    def _unbind(self, place: str, text: str) -> None:
        if place.startswith("bus/dsa/"):
            idxd.unbind(self._files, text)
            return
        function = self._listed(text)
        if self._tree.driver(function.address) != os.path.basename(place):
            raise OSError(errno.ENODEV, "the function is not bound to this driver")
        self._tree.detach(function.address)

    def _driver_override(self, place: str, text: str) -> None:
        self._files.put(f"{place}/driver_override", text or "(null)")

    def _drivers_probe(self, place: str, text: str) -> None:
        function = self._listed(text)
        if self._tree.driver(function.address) is not None:
            return
        for driver in self._files.names("bus/pci/drivers"):
            if self._matches(function, driver):
                self._tree.attach(function.address, driver)
                return

    def _matches(self, function: Function, driver: str) -> bool:
        override = self._files.read(f"{function.path}/driver_override")
        return driver == (function.facts["driver"] if override == "(null)" else override)

    # Removal.

    def _remove(self, place: str, text: str) -> None:
        if not _number(text):
            return
        if self._files.target(f"{place}/subsystem") != "mdev":
            self._tree.pull(os.path.basename(place))
            return
        properties = self._tree.properties(place)
        vgpu.remove(self._files, place)
        self._tree.say("remove", place, properties)
        self._tree.refresh(self._function(os.path.dirname(place)))

    def _reset(self, place: str, text: str) -> None:
        if _number(text) != 1:
            raise OSError(errno.EINVAL, "not 1")
        if not self._files.read(f"{place}/reset_method"):
            raise OSError(errno.ENOTTY, "the function cannot be reset")

    def _reset_method(self, place: str, text: str) -> None:
        able = self._function(place).facts.get("reset_method", "flr bus").split()
        if text == "default":
            text = " ".join(able)
        if not set(text.split()) <= set(able):
            raise OSError(errno.EINVAL, "no such way to reset the function")
        self._files.put(f"{place}/reset_method", text or "\n")

    # What single drivers take.

    def _create(self, place: str, text: str) -> None:
        path = vgpu.create(self._files, place, text)
        self._tree.refresh(self._function(os.path.dirname(path)))
        self._tree.say("add", path)

    def _current_vgpu_type(self, place: str, text: str) -> None:
        function = self._function(os.path.dirname(place))
        vgpu.give(self._files, function, text)
        self._tree.refresh(function)

    def _state(self, place: str, text: str) -> None:
        if text not in {"up", "down"}:
            raise OSError(errno.EINVAL, "neither up nor down")
        if text == "down":
            # The driver takes its virtual functions away.
            self._tree.disable(os.path.basename(os.path.dirname(place)))
        self._files.put(f"{place}/state", text)

    def _cfg_services(self, place: str, text: str) -> None:
        known = self._function(os.path.dirname(place)).facts.get("services", _QAT_SERVICES)
        if text not in known or self._files.read(f"{place}/state") == "up":
            raise OSError(errno.EINVAL, "no services, or the device is up")
        self._files.put(f"{place}/cfg_services", text)

    def _switch(self, place: str, text: str) -> None:
        if text not in {"0", "1"}:
            raise OSError(errno.EINVAL, "neither yes nor no")
        self._files.put(f"{place}/sriov_drivers_autoprobe", text)

    def _function(self, place: str) -> Function:
        return self._tree.function(os.path.basename(place))

    def _listed(self, address: str) -> Function:
        if address not in self._files.names("bus/pci/devices"):
            raise OSError(errno.ENODEV, "no such function")
        return self._tree.function(address)


def _number(text: str) -> int:
    """A number as the kernel takes it, decimal, octal or hexadecimal."""
    try:
        value = int(text, 8 if text.startswith("0") and text.isdigit() else 0)
    except ValueError:
        value = -1
    if value < 0:
        raise OSError(errno.EINVAL, "no number")
    return value
