# SPDX-License-Identifier: Apache-2.0
"""A simulated host on disk: written from a layout, and changed as a kernel would change it."""

from __future__ import annotations

import os
import pathlib
from collections.abc import Callable, Mapping
from typing import Any

from cyborg.tests.simulated import amd, cards, host_own, idxd, kernel_text, proc, vgpu
from cyborg.tests.simulated.files import Files
from cyborg.tests.simulated.layout import Function, Layout

#: Directories that every kernel has, whatever the host's devices are.
_ALWAYS = (
    "bus/pci/devices",
    "class/block",
    "class/net",
    "dev/block",
    "devices",
    "kernel/iommu_groups",
    "module",
)

#: Told of each change: the properties of the uevent.
Listener = Callable[[Mapping[str, str]], None]


class Tree:
    """``root/sys``, and ``root/proc`` for the few files that drivers read there."""

    def __init__(
        self, root: pathlib.Path, layout: Layout, listener: Listener | None = None
    ) -> None:
        self.root = root
        self.layout = layout
        self.files = Files(root / "sys")
        self._listener = listener
        self._groups = 0
        self._shared_groups: dict[str, int] = {}
        self._complete = False

    # What there is.

    def card(self, name: str, number: int = 0) -> str:
        """The address of a card's first function, by the name in the host's file."""
        return self.layout.named[name][number]

    def path(self, address: str) -> str:
        """The directory of a function that is on the bus, below ``sys``."""
        link = f"{self.files.root}/bus/pci/devices/{address}"
        return os.path.normpath(f"bus/pci/devices/{os.readlink(link)}")

    def vfs(self, address: str) -> list[str]:
        return list(self._numbers(address).values())

    def driver(self, address: str) -> str | None:
        return self.files.target(f"{self.path(address)}/driver")

    def function(self, address: str) -> Function:
        """What a function is, a virtual one too."""
        pf = self.files.target(f"{self.path(address)}/physfn")
        if pf is None:
            return self.layout.functions[address]
        numbers = {vf: number for number, vf in self._numbers(pf).items()}
        return self.layout.virtual(self.layout.functions[pf], numbers[address])

    # What changes.

    def build(self) -> Tree:
        for name in _ALWAYS:
            self.files.directory(name)
        self.files.put("bus/pci/drivers_probe", "")
        self._driver("vfio-pci")
        for function in list(self.layout.functions.values()):
            self.appear(function)
        host_own.write(self.files, self.layout)
        proc.write(self.root, self.layout, self.files)
        self._complete = True
        return self

    def add(self, card: str, **keys: Any) -> str:
        """Plug in one more card; the address of its first function."""
        added = self.layout.add(cards.card({"card": card, **keys}))
        for function in added:
            self.appear(function)
        return self.layout.cards[-1]

    def appear(self, function: Function) -> None:
        """A function is found on the bus, is bound, and its virtual functions are enabled."""
        self._create(function)
        self.say("add", function.path)
        if function.facts["bound"]:
            self._attach(function, function.facts["bound"])
        if count := function.facts.get("vfs", 0):
            self._enable(function, count, probe=True)
        self.refresh(function)

    def enable(self, address: str, count: int, *, probe: bool = True) -> None:
        """Make virtual functions; the events come in the order seen on Linux 6.1 and 6.12."""
        function = self.function(address)
        self._enable(function, count, probe=probe)
        self.refresh(function)
        self.say("change", function.path)

    def disable(self, address: str) -> None:
        """Take away all virtual functions of a physical one."""
        path = self.path(address)
        for vf in reversed(self.vfs(address)):
            self.pull(vf)
        if self.files.path(f"{path}/sriov_numvfs").exists():
            self.files.put(f"{path}/sriov_numvfs", 0)

    def attach(self, address: str, driver: str | None = None) -> None:
        function = self.function(address)
        self._attach(function, driver or function.facts["driver"])
        self.refresh(function)

    def detach(self, address: str) -> None:
        """Unbind a function, which takes its VFs away and all that its driver showed."""
        function, driver = self.function(address), self.driver(address)
        if driver is None:
            return
        self.disable(address)
        self._undrive(function)
        self.files.unlink(f"bus/pci/drivers/{driver}/{address}")
        self.files.unlink(f"{function.path}/driver")
        self._set_driver(function, None)
        self.say("unbind", function.path)
        self.refresh(function)

    def pull(self, address: str) -> None:
        """Take a function off the bus, with all that hangs on it."""
        function = self.function(address)
        properties = self.properties(function.path)
        for below in self.files.names(function.path):
            if below.count(":") == 2:
                self.pull(below)
        self.detach(address)
        self.disable(address)
        if function.pf is not None:
            number = function.names["vf"]
            self.files.unlink(f"{self.path(function.pf)}/virtfn{number}")
        group = self.files.target(f"{function.path}/iommu_group")
        if group is not None:
            members = f"kernel/iommu_groups/{group}/devices"
            self.files.unlink(f"{members}/{address}")
            if not self.files.names(members):
                self.files.drop(f"kernel/iommu_groups/{group}")
        self.files.drop(function.path)
        self.say("remove", function.path, properties)

    def degrade(
        self, address: str, *, speed: str | None = None, width: int | None = None
    ) -> None:
        for name, value in (("speed", speed), ("width", width)):
            if value is not None:
                self.files.put(f"{self.path(address)}/current_link_{name}", value)

    def divide(self, address: str, profiles: str) -> None:
        """Give a GPU in MIG mode these GPU instances."""
        vgpu.divide(self.files, self.layout.functions[address], profiles)

    def load_shell(self, address: str, shell: str) -> None:
        """Let an FPGA card of two stages have this shell on its base, or none."""
        path = f"{self.path(address)}/logic_uuids"
        base = self.files.read(path).split()[0]
        self.files.put(path, f"{base}\n{shell}" if shell else base)

    def refresh(self, function: Function) -> None:
        """What is left of a card's virtual GPUs depends on all its functions."""
        vgpu.refresh(self.files, self.layout.functions[function.pf or function.address])

    def properties(self, path: str) -> dict[str, str]:
        """What the uevents of a device say of it."""
        lines = self.files.read(f"{path}/uevent").split("\n")
        subsystem = self.files.target(f"{path}/subsystem") or ""
        return {"SUBSYSTEM": subsystem, **dict(line.split("=", 1) for line in lines if line)}

    def say(self, action: str, path: str, properties: Mapping[str, str] | None = None) -> None:
        """Tell the listener what happened to a device; one that is gone gave its properties."""
        if not self._complete or self._listener is None:
            return
        if properties is None:
            properties = self.properties(path)
        self._listener({"ACTION": action, "DEVPATH": f"/{path}", **properties})

    # What a function consists of.

    def _numbers(self, address: str) -> dict[int, str]:
        path = self.path(address)
        names = [name for name in self.files.names(path) if name.startswith("virtfn")]
        numbers = sorted(int(name.removeprefix("virtfn")) for name in names)
        return {number: self.files.target(f"{path}/virtfn{number}") or "" for number in numbers}

    def _create(self, function: Function) -> None:
        path = function.path
        uevent = kernel_text.uevent(function.facts, function.address, None)
        self.files.device(path, "pci", uevent, _core(function))
        if self.layout.host.get("iommu", True):
            group = f"kernel/iommu_groups/{self._group(function.facts.get('group'))}"
            self.files.link(f"{group}/devices/{function.address}", path)
            self.files.link(f"{path}/iommu_group", group)

    def _group(self, name: str | None) -> int:
        number = self._groups
        self._groups += 1
        return self._shared_groups.setdefault(name, number) if name is not None else number

    def _enable(self, pf: Function, count: int, *, probe: bool) -> None:
        for number in range(count):
            vf = self.layout.virtual(pf, number)
            self._create(vf)
            self.say("add", vf.path)
            self.files.link(f"{vf.path}/physfn", pf.path)
            self.files.link(f"{pf.path}/virtfn{number}", vf.path)
            self.say("change", vf.path)
            if probe and vf.facts["bound"]:
                self._attach(vf, vf.facts["bound"])
        self.files.put(f"{pf.path}/sriov_numvfs", count)

    def _attach(self, function: Function, driver: str) -> None:
        self._driver(driver, function.facts.get("module"))
        self.files.link(f"{function.path}/driver", f"bus/pci/drivers/{driver}")
        self.files.link(f"bus/pci/drivers/{driver}/{function.address}", function.path)
        self._set_driver(function, driver)
        if driver == function.facts["driver"]:
            self._drive(function)
        self.say("bind", function.path)

    def _driver(self, driver: str, module: Mapping[str, str] | None = None) -> None:
        home = f"bus/pci/drivers/{driver}"
        if self.files.path(home).exists():
            return
        for name in ("bind", "unbind"):
            self.files.put(f"{home}/{name}", "")
        name = module["name"] if module else driver.replace("-", "_")
        self.files.directory(f"module/{name}")
        if module and "version" in module:
            self.files.put(f"module/{name}/version", module["version"])
        self.files.link(f"{home}/module", f"module/{name}")

    def _set_driver(self, function: Function, driver: str | None) -> None:
        text = kernel_text.uevent(function.facts, function.address, driver)
        self.files.put(f"{function.path}/uevent", text)
        self.files.put(f"{function.path}/enable", 1 if driver else 0)

    def _drive(self, function: Function) -> None:
        facts, path = function.facts, function.path
        for name, value in function.fill(facts.get("attributes", {})).items():
            self.files.put(f"{path}/{name}", value)
        for name, value in function.fill(facts.get("files", {})).items():
            self.files.put(name, value)
        for name, node in function.fill(facts.get("nodes", {})).items():
            self._child(path, name, node)
        vgpu.offer(self.files, function)
        amd.offer(self.files, function)
        if any(node["subsystem"] == "dsa" for node in facts.get("nodes", {}).values()):
            idxd.offer(self.files)

    def _child(self, path: str, name: str, node: Mapping[str, Any]) -> None:
        properties, attributes = node.get("uevent", {}), dict(node.get("attributes", {}))
        if "driver" in node:
            properties = {"DRIVER": node["driver"], **properties}
        if "MAJOR" in properties:
            attributes["dev"] = f"{properties['MAJOR']}:{properties['MINOR']}"
        uevent = "\n".join(f"{key}={value}" for key, value in properties.items())
        place = _place(path, name)
        self.files.device(
            place, node["subsystem"], uevent, attributes, node.get("directories", ())
        )
        for link, target in node.get("links", {}).items():
            self.files.link(f"{place}/{link}", path if target == "." else _place(path, target))
        if "driver" in node:
            home = f"bus/{node['subsystem']}/drivers/{node['driver']}"
            self.files.link(f"{home}/{os.path.basename(name)}", place)
            self.files.link(f"{place}/driver", home)

    def _undrive(self, function: Function) -> None:
        vgpu.withdraw(self.files, function)
        for name in function.fill(function.facts.get("files", {})):
            self.files.unlink(name)
        for name in function.fill(function.facts.get("nodes", {})):
            if name.startswith("/") and self.files.path(_place("", name)).exists():
                self.files.drop(_place("", name))
        core = {"driver", "iommu_group", "physfn", "subsystem", "uevent", *_core(function)}
        for name in self.files.names(function.path):
            if name not in core and not name.startswith("virtfn") and name.count(":") != 2:
                self.files.drop(f"{function.path}/{name}")


def _place(path: str, name: str) -> str:
    """Where a child device is: below its function, or with ``/`` among the virtual devices."""
    return f"devices/virtual{name}" if name.startswith("/") else f"{path}/{name}"


def _core(function: Function) -> dict[str, object]:
    attributes = kernel_text.attributes(function.facts, virtual=function.pf is not None)
    if function.pf is None and "sriov" in function.facts:
        attributes |= kernel_text.sriov(function.facts)
    return attributes
