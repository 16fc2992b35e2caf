# SPDX-License-Identifier: Apache-2.0
"""NVIDIA GPUs: whole cards, and virtual GPUs of divided cards."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from oslo_config import cfg

from cyborg.drivers import (
    base,
    mdev_handles,
    nvidia_vgpu,
    nvidia_vgpu_types,
    nvidia_xid,
    pci,
    privileged,
    trait_names,
)
from cyborg.drivers.pci import devices, facts


class NvidiaGpuDriver(pci.PciDriver):
    """Reports each card whole, or each of its parts if the operator wants it divided.

    A virtual function is never a whole GPU: without a vGPU type a guest cannot use it.
    """

    match = (
        pci.Match(vendor="10de", class_code="0300*"),
        pci.Match(vendor="10de", class_code="0302*"),
    )
    type = "GPU"
    resource_class = "PGPU"
    group = "gpu_devices"

    def __init__(self, conf: cfg.ConfigOpts) -> None:
        super().__init__(conf)
        self._enabled_types = nvidia_vgpu.EnabledTypes(conf)
        self._types = nvidia_vgpu_types.TypeBook(self.kept)
        self._mediated = mdev_handles.HostSteps()
        self._xids = nvidia_xid.XidLog(conf, self.kept)
        # The address of the virtual function of each handle that was prepared by setting its type.
        # The kernel does not show the handle, so after a restart each is prepared again.
        self._typed: dict[str, str] = {}

    def discover(self, host: base.Host) -> Iterator[base.Device]:
        """Every card or part of one that can be given out, after a look into the kernel's log."""
        self._xids.read()
        yield from super().discover(host)

    def problems(self) -> Sequence[str]:
        """As those of any driver, and that the log cannot be read."""
        unread = self._xids.problem
        return [*super().problems(), *([unread] if unread is not None else [])]

    def why_unhealthy(self, function: pci.Function, functions: pci.Snapshot) -> str | None:
        """NVIDIA's driver has logged a fault of the card."""
        del functions
        return self._xids.why_unhealthy(function)

    def traits(self, function: pci.Function, functions: pci.Snapshot) -> Iterator[str]:
        """The owner and the product."""
        del functions
        yield "OWNER_CYBORG"
        yield f"CUSTOM_NVIDIA_{function.device}"

    def attributes(
        self, function: pci.Function, functions: pci.Snapshot
    ) -> Mapping[str, str | int | None]:
        """Facts that the vendor's driver shows."""
        shown = nvidia_vgpu.information(function, functions)
        return {
            "product": shown.get("Model"),
            "memory_mib": nvidia_vgpu.memory_mib(function, functions),
            "firmware": shown.get("Video BIOS"),
            "serial": shown.get("GPU UUID"),
        }

    def divided(
        self, function: pci.Function, functions: pci.Snapshot, host: base.Host
    ) -> Sequence[base.Device] | None:
        """The parts of the card, each on the function that offers it."""
        if not self._enabled_types:
            return None
        problem = nvidia_vgpu.why_not_divisible(function, functions, self._enabled_types)
        if problem is not None:
            self._problems.append(problem)
            self.refuse(function, problem, "[vgpu_<type>] device_addresses")
            return []
        mine = self.claims(functions).keys() - host.foreign
        found = nvidia_vgpu.parts(
            function, functions, self._enabled_types, self._types, mine
        )
        if found is None:
            return None
        if not found:
            reason = "it is to be divided, and offers nothing of the type now"
            self.refuse(function, reason, "[gpu_devices] enabled_vgpu_types")
        return [self._part_device(part, functions, host.name) for part in found]

    def prepare(self, handle: base.HeldHandle) -> None:
        """Create the handle's mediated device, or set the type of its virtual function."""
        if handle.attach_type == "MDEV":
            self._mediated.prepare(handle)
            return
        address = pci.join(handle.attach_info)
        privileged.set_vgpu_type(address, handle.attach_info["asked_type"])
        self._typed[handle.uuid] = address

    def clean(self, handle: base.HeldHandle) -> None:
        """Undo :meth:`prepare`, which also erases the guest's data in the card's memory."""
        if handle.attach_type == "MDEV":
            self._mediated.clean(handle)
            return
        if "asked_type" not in handle.attach_info:
            super().clean(handle)
            return
        privileged.set_vgpu_type(pci.join(handle.attach_info), "0")
        self._typed.pop(handle.uuid, None)

    def _part_device(
        self, part: nvidia_vgpu.Part, functions: pci.Snapshot, host: str
    ) -> base.Device:
        function = part.function
        card = functions[function.pf or function.address]
        attributes = {
            **self.common_attributes(function, functions),
            "vgpu_type": part.type,
            **({"memory_mib": part.memory_mib} if part.memory_mib else {}),
        }
        version = facts.driver_version(card, functions)
        if version is not None:
            attributes["driver_version"] = version
        product = f"CUSTOM_NVIDIA_{card.device}"
        traits = [
            "OWNER_CYBORG",
            f"{product}_{nvidia_vgpu.short(part.name)}" if part.name else product,
            *(["CUSTOM_NVIDIA_MIG"] if part.is_slice else []),
        ]
        deployable = base.Deployable(
            name=f"{host}_{function.address}",
            resource_class="VGPU",
            num_accelerators=part.total,
            attach_handles=_handles(part),
            traits=trait_names.legal_with_facts(traits, attributes),
            attributes=attributes,
            prepares=True,
            cleans=True,
            prepared=self._prepared(part),
        )
        return devices.device_of(function, self.type, (deployable,))

    def _prepared(self, part: nvidia_vgpu.Part) -> tuple[str, ...]:
        """The uuids of the handles that a guest can use now."""
        if part.created is not None:
            return part.created
        address = part.function.address
        return tuple(
            sorted(uuid for uuid, place in list(self._typed.items()) if place == address)
            if part.is_set
            else ()
        )


def _handles(part: nvidia_vgpu.Part) -> tuple[base.AttachHandle, ...]:
    place = pci.split(part.function.address)
    if part.created is not None:
        return mdev_handles.handles(part.type, part.total, place)
    return (base.AttachHandle(attach_type="PCI", attach_info={**place, "asked_type": part.type}),)
