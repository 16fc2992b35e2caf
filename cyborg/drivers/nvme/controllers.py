# SPDX-License-Identifier: Apache-2.0
"""NVMe controllers that the operator lists, given out whole and erased after use."""

from __future__ import annotations

import contextlib
import fnmatch
import logging
import re
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from types import MappingProxyType

from oslo_config import cfg

from cyborg.drivers import base, pci, privileged
from cyborg.drivers.nvme import admin_commands
from cyborg.drivers.pci import device_spec, readings

LOG = logging.getLogger(__name__)

CLASS = "0108*"
#: A namespace, or one of several paths to it.
_NAMESPACE = re.compile(r"nvme\d+(c\d+)?n\d+")
_BLOCK = "/sys/class/block"
_DEAD = "dead"
_STATES = (
    _DEAD,
    "new",
    "live",
    "resetting",
    "connecting",
    "deleting",
    "deleting (no io)",
    "only-admin",  # older kernels
    "reconnecting",
)
_SECTORS_OF_A_MIB = 2048
#: Seconds between two reads of the state of an erasure.
_POLL = 1.0


class NvmeController(pci.PciDriver):
    """The base of the drivers of NVMe controllers of every vendor."""

    def __init__(self, conf: cfg.ConfigOpts) -> None:
        super().__init__(conf)
        # The kernel does not show the subsystem of a controller that a guest has.
        self._subsystems: dict[tuple[str, str, str], str] = {}
        #: Likewise the namespaces of a virtual function.
        self._namespaces: dict[str, frozenset[str]] = {}

    def attributes(self, function: pci.Function, functions: pci.Snapshot) -> pci.Facts:
        """Facts that the host's driver shows as long as it has the controller."""
        facts: dict[str, str | int | None] = {}
        for path in _controllers(function, functions):
            names = _namespaces(function.address, path, functions)
            shown = [functions.number(function.address, f"{path}/{each}/size") for each in names]
            facts = {
                "product": functions.text(function.address, f"{path}/model"),
                "serial": functions.text(function.address, f"{path}/serial"),
                "firmware": functions.text(function.address, f"{path}/firmware_rev"),
                "namespaces": len(shown),
                "capacity_mib": sum(filter(None, shown)) // _SECTORS_OF_A_MIB,
            }
        return facts

    def sensors(self, function: pci.Function, functions: pci.Snapshot) -> Mapping[str, float]:
        """Those of the controller, which are not among the PCI function's."""
        return readings.hwmon(function, *_controllers(function, functions))

    def why_unhealthy(self, function: pci.Function, functions: pci.Snapshot) -> str | None:
        """The controller is dead or offline, is used by the host, or shares its disk with another.

        Volumes and RAID need not be mounted: virtual machines and storage daemons use them
        directly. If a disk has two ports, one must be kept from guests.
        """
        address = function.address
        if _was_not_started(function, functions):
            return (
                f"The host's driver could not start NVMe controller {address}: bring it online, "
                "with nvme virt-mgmt"
            )
        for path in _controllers(function, functions):
            if functions.required_state(address, f"{path}/state", _STATES) == _DEAD:
                return f"NVMe controller {address} is dead"
            for disk in _disks(address, path, functions):
                if functions.names(address, f"{disk}/holders"):
                    name = disk.rpartition("/")[2]
                    return f"The host has a volume or a RAID on {name} of NVMe controller {address}"
        return self.why_shared(function, functions)

    def why_shared(self, function: pci.Function, functions: pci.Snapshot) -> str | None:
        """Why the controller must not be given out or erased: another has the same disk."""
        mine = self._subsystem(function, functions)
        for other in functions.made(self._ports).get(mine or "", ()):
            if not {function.address, function.pf} & {other.address, other.pf} - {None}:
                ports = " and ".join(sorted((function.address, other.address)))
                return (
                    f"NVMe controllers {ports} are ports of one disk: exclude one in "
                    f"[{self.group}] device_spec"
                )
        return self._why_namespace_shared(function, functions)

    def _why_namespace_shared(
        self, function: pci.Function, functions: pci.Snapshot
    ) -> str | None:
        """Why a virtual function must not be given out: another has one of its namespaces."""
        card = functions.get(function.pf or "")
        mine = self._namespaces_of(function, functions) if card is not None else frozenset()
        for address in card.vfs if card is not None and mine else ():
            if address != function.address and address in functions:
                shared = sorted(mine & self._namespaces_of(functions[address], functions))
                if shared:
                    both = " and ".join(sorted((function.address, address)))
                    return f"NVMe controllers {both} have namespace {shared[0]}: detach it from one"
        return None

    def _namespaces_of(
        self, function: pci.Function, functions: pci.Snapshot
    ) -> frozenset[str]:
        """The world-wide names of its namespaces, as the host's driver showed them last."""
        found = {
            functions.text(function.address, f"{path}/{name}/wwid")
            for path in _controllers(function, functions)
            for name in _namespaces(function.address, path, functions)
        }
        if found - {None}:
            self._namespaces[function.address] = frozenset(name for name in found if name)
        return self._namespaces.get(function.address, frozenset())

    def why_kept(self, function: pci.Function, functions: pci.Snapshot) -> base.Refusal | None:
        """Its virtual functions have a part of its disk, and would go with it."""
        if not function.vfs:
            return None
        remedy = "[pci] device_spec, which may list those"
        return base.Refusal(reason="its virtual functions are enabled", remedy=remedy)

    def _ports(self, functions: pci.Snapshot) -> Mapping[str, Sequence[pci.Function]]:
        """The controllers of each subsystem, without those that the operator excludes."""
        found: dict[str, list[pci.Function]] = {}
        for each in functions.values():
            if fnmatch.fnmatchcase(each.class_code, CLASS):
                # A function that has just vanished, or is broken, must not fail the others.
                with contextlib.suppress(pci.Vanished, OSError):
                    subsystem = self._subsystem(each, functions)
                    spec = device_spec.first_match(self._specs, each, functions)
                    if subsystem is not None and not (spec is not None and spec.exclude):
                        found.setdefault(subsystem, []).append(each)
        return found

    def _subsystem(self, function: pci.Function, functions: pci.Snapshot) -> str | None:
        key = (function.address, function.vendor, function.device)
        for path in _controllers(function, functions):
            nqn = functions.text(function.address, f"{path}/subsysnqn")
            if nqn:
                self._subsystems[key] = nqn
        return self._subsystems.get(key)


class NvmeDriver(NvmeController):
    """Reports the controllers that ``[nvme] device_spec`` lists, and no others.

    Each is given out whole, or each of its virtual functions if the operator says so.
    """

    match = (pci.Match(class_code=CLASS),)
    type = "NVME"
    resource_class = "CUSTOM_NVME"
    listed = True
    group = "nvme"
    own_traits = (
        "OWNER_CYBORG",
        "CUSTOM_NVME_VENDOR_ID_{function.vendor}",
        "CUSTOM_NVME_PRODUCT_ID_{function.device}",
    )
    own_keys = MappingProxyType(
        {
            "clear_action": {"auto", "sanitize", "zero", "none"},
            "clear_strategy": {"auto", "crypto", "block"},
            "functions": {"whole", "virtual"},
        }
    )

    def divided(
        self, function: pci.Function, functions: pci.Snapshot, host: base.Host
    ) -> Sequence[base.Device] | None:
        """The virtual functions, if the operator wants or lists those, and not the controller."""
        own, matched = self.own(function, functions), self.exactness(functions)
        if own.get("functions") != "virtual" and function.address in matched:
            return None
        reason, remedy = None, self.option
        if own.get("clear_action") == "sanitize":
            reason = "a virtual function cannot sanitize itself alone: the whole disk is erased"
        elif not function.vfs:
            reason = "its virtual functions are to be offered, and it has none"
            remedy = "[agent] sriov_spec, which makes them"
        if reason is not None:
            self.refuse(function, reason, remedy)
            return []
        mine = matched.keys() - host.foreign
        devices = []
        for vf in (functions[address] for address in function.vfs if address in mine):
            offered = self._offered([vf], mine, host, None)
            device = self._device(vf, offered, host) if offered else None
            if device is not None:
                devices.append(self.refine(device, vf, functions))
        return devices

    def own(self, function: pci.Function, functions: pci.Snapshot) -> Mapping[str, str]:
        """The operator's values for a function; a controller's are for its virtual functions."""
        values = super().own(function, functions)
        card = functions.get(function.pf or "")
        return values if values or card is None else super().own(card, functions)

    def refine(
        self, device: base.Device, function: pci.Function, functions: pci.Snapshot
    ) -> base.Device:
        """The device, which is erased after use unless the operator says otherwise."""
        erases = self.own(function, functions).get("clear_action") != "none"
        return replace(
            device,
            deployables=tuple(
                replace(each, cleans=each.cleans or erases, clean_erases=erases)
                for each in device.deployables
            ),
        )

    def clean(self, handle: base.HeldHandle) -> None:
        """Erase everything on the controller; of a virtual function, its namespaces.

        :raises RuntimeError: the host uses it, has no driver for it, it has virtual functions,
            whose guests have a part of its disk, or it cannot be erased
        """
        functions = pci.scan()
        address = pci.join(handle.attach_info)
        function = functions.get(address)
        if function is None:
            raise RuntimeError(f"NVMe controller {address} is not on the bus")
        if self.own(function, functions).get("clear_action") == "none":
            super().clean(handle)
            return
        use = functions.use(function)
        if use is not None:
            raise RuntimeError(f"NVMe controller {address} is not erased: {use}")
        if address not in self.exactness(functions):
            raise RuntimeError(f"NVMe controller {address} is not erased: not in device_spec")
        if not functions.names(address, "nvme"):
            raise RuntimeError(f"NVMe controller {address} is not bound to the host's driver nvme")
        shared = self.why_shared(function, functions)
        if shared is not None:
            raise RuntimeError(f"NVMe controller {address} is not erased: {shared}")
        if function.vfs:
            raise RuntimeError(
                f"NVMe controller {address} is not erased: its virtual functions are enabled, and "
                "would lose what their guests have"
            )
        method = self._method(function, functions)
        LOG.info("Erasing NVMe controller %s: %s", address, method.name if method else "by zeroes")
        if method is None:
            privileged.nvme_zero(address)
        else:
            self._sanitize(address, method)

    def _method(
        self, function: pci.Function, functions: pci.Snapshot
    ) -> admin_commands.Sanitize | None:
        """The method to erase a controller; None means to write zeroes.

        :raises RuntimeError: the controller does not support what the operator wants
        """
        own = self.own(function, functions)
        action, strategy = own.get("clear_action", "auto"), own.get("clear_strategy", "auto")
        if function.pf is None:
            return _method(action, strategy, privileged.nvme_sanitize_methods(function.address))
        if action == "sanitize":
            raise RuntimeError(
                f"NVMe controller {function.address} is not erased: it would take what guests "
                "have on the rest of the disk"
            )
        return None

    def _sanitize(self, address: str, method: admin_commands.Sanitize) -> None:
        # The step may be repeated while the first erasure runs.
        if privileged.nvme_sanitize_state(address) != admin_commands.State.RUNNING:
            privileged.nvme_sanitize(address, int(method))
        deadline = time.monotonic() + self.conf.nvme.cleanup_timeout
        while (state := privileged.nvme_sanitize_state(address)) == admin_commands.State.RUNNING:
            if time.monotonic() >= deadline:
                raise RuntimeError(f"NVMe controller {address} has not erased itself in time")
            time.sleep(_POLL)
        if state not in (admin_commands.State.DONE, admin_commands.State.DONE_AND_DEALLOCATED):
            raise RuntimeError(f"NVMe controller {address} failed to erase itself")


def _method(
    action: str, strategy: str, supported: Iterable[int]
) -> admin_commands.Sanitize | None:
    """The method to erase a controller; None means to write zeroes.

    :raises RuntimeError: the controller does not support what the operator wants
    """
    if action == "zero":
        return None
    wanted = {
        "auto": (admin_commands.Sanitize.CRYPTO, admin_commands.Sanitize.BLOCK),
        "crypto": (admin_commands.Sanitize.CRYPTO,),
        "block": (admin_commands.Sanitize.BLOCK,),
    }[strategy]
    method = next((method for method in wanted if method in set(supported)), None)
    if method is None and (action == "sanitize" or strategy != "auto"):
        raise RuntimeError(f"it has no {action} erasure with strategy {strategy}")
    return method


def _was_not_started(function: pci.Function, functions: pci.Snapshot) -> bool:
    """True if the host's driver has tried a virtual function in vain: its controller is offline.

    One that was kept from that driver, or given another, looks the same online and offline.
    """
    card = functions.get(function.pf or "")
    if function.driver is not None or card is None or card.driver != "nvme":
        return False
    kept = functions.text(function.address, "driver_override") not in {None, "", "(null)"}
    return not kept and functions.text(card.address, "sriov_drivers_autoprobe") == "1"


def _controllers(function: pci.Function, functions: pci.Snapshot) -> Iterator[str]:
    for name in functions.names(function.address, "nvme"):
        yield f"nvme/{name}"


def _namespaces(address: str, controller: str, functions: pci.Snapshot) -> Iterator[str]:
    return filter(_NAMESPACE.fullmatch, functions.names(address, controller))


def _disks(address: str, controller: str, functions: pci.Snapshot) -> Iterator[str]:
    """The paths of the block devices of a controller's namespaces, each before its partitions."""
    for name in _namespaces(address, controller, functions):
        # With several paths to a namespace, the block device is elsewhere, and named without the
        # path.
        disk = re.sub(r"c\d+n", "n", name)
        place = f"{controller}/{name}" if disk == name else f"{_BLOCK}/{disk}"
        below = functions.names(address, place)
        yield place
        yield from (f"{place}/{part}" for part in below if part.startswith(f"{disk}p"))
