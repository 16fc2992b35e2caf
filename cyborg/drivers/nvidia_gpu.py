# SPDX-License-Identifier: Apache-2.0
"""NVIDIA GPUs: whole cards, and the virtual GPUs that a card is divided into."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from oslo_config import cfg

from cyborg.drivers import (
    base,
    declarative,
    facts,
    mediated,
    nvidia_vgpu,
    pci,
    pci_devices,
    pci_facts,
    privileged,
)


class NvidiaGpuDriver(declarative.PciDriver):
    """Reports each card whole, or where the operator wants it divided, each part.

    A virtual function is never a whole GPU: without a type it is nothing that a guest could use.
    """

    match = (
        declarative.Match(vendor="10de", class_code="0300*"),
        declarative.Match(vendor="10de", class_code="0302*"),
    )
    type = "GPU"
    resource_class = "PGPU"
    group = "gpu_devices"

    def __init__(self, conf: cfg.ConfigOpts) -> None:
        super().__init__(conf)
        self._wishes = nvidia_vgpu.Wishes(conf)
        self._types = nvidia_vgpu.Types()
        self._complaints: list[str] = []
        self._mediated = mediated.HostSteps()
        # The handles whose virtual functions were given a type, with those functions. The kernel
        # does not tell whose type it is, so after a restart each is given to its handle again.
        self._typed: dict[str, str] = {}

    def traits(self, function: pci.Function, functions: pci.Snapshot) -> Iterator[str]:
        """The owner and the product."""
        del functions
        yield "OWNER_CYBORG"
        yield f"CUSTOM_NVIDIA_{function.device}"

    def attributes(
        self, function: pci.Function, functions: pci.Snapshot
    ) -> Mapping[str, str | int | None]:
        """What the vendor's driver tells."""
        told = nvidia_vgpu.information(function, functions)
        return {
            "product": functions.product(function) or told.get("Model"),
            "memory_mib": nvidia_vgpu.memory_mib(function, functions),
            "firmware": told.get("Video BIOS"),
            "serial": told.get("GPU UUID"),
        }

    def divided(
        self, function: pci.Function, functions: pci.Snapshot, host: base.Host
    ) -> Sequence[base.Device] | None:
        """The parts, each on the function that offers it."""
        if not self._wishes:
            return None
        lack = nvidia_vgpu.lacking(function, functions, self._wishes)
        if lack is not None:
            self._complaints.append(lack)
            return []
        mine = self.claims(functions).keys() - host.foreign
        found = nvidia_vgpu.parts(function, functions, self._wishes, self._types, mine)
        if found is None:
            return None
        if not found:
            self.say(function, "it is to be divided, and offers nothing of the type now")
        return [self._device_of(part, functions, host.name) for part in found]

    def discover(self, host: base.Host) -> Iterator[base.Device]:
        """Every card, or its parts."""
        self._complaints = []
        yield from super().discover(host)

    def complaints(self) -> Sequence[str]:
        """Cards that are to be divided, and cannot be yet."""
        return self._complaints

    def prepare(self, handle: base.HeldHandle) -> None:
        """Create the handle's mediated device, or give its virtual function the type."""
        if handle.attach_type == "MDEV":
            self._mediated.prepare(handle)
            return
        address = pci.join(handle.attach_info)
        privileged.set_vgpu_type(address, handle.attach_info["asked_type"])
        self._typed[handle.uuid] = address

    def clean(self, handle: base.HeldHandle) -> None:
        """Undo what :meth:`prepare` has done; the guest's memory goes with it."""
        if handle.attach_type == "MDEV":
            self._mediated.clean(handle)
            return
        privileged.set_vgpu_type(pci.join(handle.attach_info), "0")
        self._typed.pop(handle.uuid, None)

    def _device_of(self, part: nvidia_vgpu.Part, functions: pci.Snapshot, host: str) -> base.Device:
        function = part.function
        card = functions[function.pf or function.address]
        attributes = {
            **pci_facts.attributes(function, functions),
            "vgpu_type": part.type,
            **({"memory_mib": part.memory_mib} if part.memory_mib else {}),
        }
        version = pci_facts.driver_version(card, functions)
        if version is not None:
            attributes["driver_version"] = version
        product = f"CUSTOM_NVIDIA_{card.device}"
        traits = [
            "OWNER_CYBORG",
            f"{product}_{nvidia_vgpu.short(part.name)}" if part.name else product,
            *(["CUSTOM_NVIDIA_MIG"] if part.is_slice else []),
            *facts.traits_of(attributes),
        ]
        deployable = base.Deployable(
            name=f"{host}_{function.address}",
            resource_class="VGPU",
            num_accelerators=part.total,
            attach_handles=_handles(part),
            traits=tuple(dict.fromkeys(facts.trait(trait) for trait in traits)),
            attributes=attributes,
            prepares=True,
            cleans=True,
            prepared=self._prepared(part),
        )
        return pci_devices.device_of(function, functions, self.type, (deployable,))

    def _prepared(self, part: nvidia_vgpu.Part) -> tuple[str, ...]:
        """The handles that a guest could use now."""
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
        return mediated.handles(part.type, part.total, place)
    return (base.AttachHandle(attach_type="PCI", attach_info={**place, "asked_type": part.type}),)
