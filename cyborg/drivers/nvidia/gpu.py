# SPDX-License-Identifier: Apache-2.0
"""NVIDIA GPUs: whole cards, and virtual GPUs of divided cards."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence, Set
from dataclasses import replace

from oslo_config import cfg

from cyborg.drivers import (
    base,
    card_tools,
    container_facts,
    mdev_handles,
    pci,
    privileged,
    trait_names,
)
from cyborg.drivers.nvidia import (
    containers,
    mdev_layouts,
    slices,
    topology,
    vgpu,
    vgpu_types,
    xid,
)
from cyborg.drivers.nvidia import layouts as nvidia_layouts
from cyborg.drivers.nvidia import sensors as nvidia_sensors
from cyborg.drivers.pci import device_spec, devices, facts, shares

#: The kind of the kept facts: the last layout of a card.
_LAYOUTS = "layouts"
#: What shows the layout of a card, by whether that has mediated devices.
_SHOWN_BY = {False: "current_vgpu_type", True: "mdev_supported_types"}


class NvidiaGpuDriver(pci.PciDriver):
    """Reports each card whole, or each of its parts if the operator wants it divided.

    A virtual function is never a whole GPU: without a vGPU type a guest cannot use it. A card with
    layouts is one deployable, whose handles are virtual functions with the type of its layout, or
    mediated devices of that type.
    """

    match = (
        pci.Match(vendor="10de", class_code="0300*"),
        pci.Match(vendor="10de", class_code="0302*"),
    )
    type = "GPU"
    resource_class = "PGPU"
    group = "gpu_devices"
    own_keys = shares.KEYS

    def __init__(self, conf: cfg.ConfigOpts) -> None:
        super().__init__(conf)
        self._types = vgpu_types.TypeBook(self.kept)
        self._enabled_types = vgpu.EnabledTypes(conf, self._types)
        self._layouts = nvidia_layouts.Layouts(conf, self._types)
        self._slices = slices.Slices(conf, self.kept)
        self._mediated = mdev_handles.HostSteps()
        self._xids = xid.Xids(conf, self._health.faults)
        self._topology = topology.Topology(conf, self.kept)
        self._sensors = nvidia_sensors.Sensors(conf, self.kept)
        self._containers = containers.Containers(conf)
        # The address of the virtual function of each handle that was prepared by setting its type.
        # The kernel does not show the handle, so after a restart each is prepared again.
        self._typed: dict[str, str] = {}

    def discover(self, host: base.Host) -> Iterator[base.Device]:
        """Every card or part of one that can be given out, after a look into the kernel's log."""
        self._xids.read(host.pci)
        self._topology.look(host.pci)
        if self._enabled_types or self._layouts:
            self._types.learn_mediated(host.pci)
        found = super().discover(host)
        yield from self._with_sensors(found, host) if self._sensors.is_wanted else found

    def _with_sensors(
        self, found: Iterator[base.Device], host: base.Host
    ) -> Iterator[base.Device]:
        """The same devices; the cards that stay with the host are to be read for the next pass."""
        self._sensors.take()
        cards = set()
        for device in found:
            function = host.pci[pci.join(device.control_path.cpid_info)]
            card = host.pci.get(function.pf or function.address, function)
            if card.driver == "nvidia" and not _is_whole(device):
                cards.add(card.address)
            yield device
        self._sensors.want(cards)

    def remember(self) -> None:
        """As that of any driver. Only the agent calls it, so only the agent asks NVIDIA's tools."""
        super().remember()
        self._topology.ask()
        self._slices.ask()
        self._sensors.ask()

    def unmatched(self, functions: pci.Snapshot) -> Sequence[str]:
        """As any driver's, and of the lists of the types."""
        named = self._enabled_types.by_address
        absent = device_spec.absent(named, functions, "[vgpu_<type>] device_addresses")
        return [*super().unmatched(functions), *absent]

    def problems(self) -> Sequence[str]:
        """As those of any driver, and what cannot be read of all cards."""
        parts = (self._xids, self._topology, self._sensors, self._slices)
        return [*super().problems(), *(each.problem for each in parts if each.problem is not None)]

    def why_unhealthy(self, function: pci.Function, functions: pci.Snapshot) -> str | None:
        """NVIDIA's driver has logged a fault of the card, or counted errors of its memory."""
        return self._xids.why_unhealthy(function) or self._sensors.why_unhealthy(function)

    def sensors(self, function: pci.Function, functions: pci.Snapshot) -> Mapping[str, float]:
        """Those of the card, if it stays with the host."""
        return {
            **super().sensors(function, functions),
            **self._sensors.of(function.pf or function.address),
        }

    def traits(self, function: pci.Function, functions: pci.Snapshot) -> Iterator[str]:
        """The owner, the product, and whether it is linked to others."""
        yield "OWNER_CYBORG"
        yield f"CUSTOM_NVIDIA_{function.device}"
        if self._topology.attributes(function):
            yield "CUSTOM_NVLINK"

    def attributes(self, function: pci.Function, functions: pci.Snapshot) -> pci.Facts:
        """Facts that the vendor's driver shows."""
        shown = vgpu.information(function, functions)
        return {
            "product": shown.get("Model"),
            "memory_mib": vgpu.memory_mib(function, functions),
            "firmware": shown.get("Video BIOS"),
            "serial": shown.get("GPU UUID"),
            **self._topology.attributes(function),
        }

    def why_kept(self, function: pci.Function, functions: pci.Snapshot) -> base.Refusal | None:
        """It is to be given out as it is, and containers may have MIG instances of it."""
        if not self._slices.of(function):
            return None
        remedy = "destroy them while no container has one"
        return base.Refusal(reason="it is divided: it has MIG instances", remedy=remedy)

    def divided(
        self, function: pci.Function, functions: pci.Snapshot, host: base.Host
    ) -> Sequence[base.Device] | None:
        """The parts of the card, each on the function that offers it."""
        mine = self.exactness(functions).keys() - host.foreign
        parts = self._parts(function, host, mine) if self._enabled_types else None
        if parts is not None:
            return parts
        parts = self._with_slices(function, host)
        if parts is not None or not self._layouts:
            return parts
        if not self._can_have_layouts(function, functions):
            unknown = self._layouts.why_unknown(function, functions)
            if unknown is not None:
                self._problems.append(unknown)
                self.refuse(function, unknown, "[gpu_devices] layouts")
            return None if unknown is None else []
        layouts = self._layouts_of(function, functions)
        reason = None
        if not any(each.mediated for each in layouts):
            reason = nvidia_layouts.why_none(function, functions)
        if reason is None and (others := sorted(set(function.vfs) - mine)):
            reason = f"it has layouts, and {others[0]} stays with the host or is another driver's"
        if reason is not None:
            self.refuse(function, reason, "[gpu_devices] layouts")
            return []
        return [self._card_with_layouts(function, layouts, host)]

    def _with_slices(self, card: pci.Function, host: base.Host) -> Sequence[base.Device] | None:
        """A card with its MIG instances for containers; None if it has none, and no layouts."""
        profiles, layouts = self._slices.of(card), self._slices.layouts(card, host.pci)
        if not profiles and not layouts:
            return None
        device = self.sliced(
            host,
            card,
            self.resource_class,
            (),
            layouts=layouts or None,
            layout=slices.shown(profiles),
        )
        (whole,) = device.deployables
        facts_of_all = {
            key: value
            for key, value in whole.attributes.items()
            if not key.startswith(base.LAYOUT_PREFIX)
        }
        offered = slices.alone(profiles)
        if others := sorted(profiles.keys() - offered.keys()):
            self._problems.append(
                f"Compute instances of GPU instance {others[0][0]} of GPU {card.address} are not "
                "offered: nothing isolates them; let it have only one"
            )
        parts = []
        for profile in sorted({each for each in offered.values() if each is not None}):
            given = tuple(
                devices.slice_of(card, gpu_instance=gpu, compute_instance=own)
                for (gpu, own), each in offered.items()
                if each == profile
            )
            part = replace(
                whole,
                name=f"{whole.name}_{profile}",
                parent=whole.name,
                resource_class=trait_names.legal(f"CUSTOM_MIG_{profile}"),
                num_accelerators=len(given),
                attach_handles=given,
                traits=(*whole.traits, "CUSTOM_NVIDIA_MIG"),
                attributes={**facts_of_all, **slices.facts(profile)},
                program_mode=None,
                function=None,
            )
            parts.append(part)
        return [replace(device, deployables=(whole, *parts))]

    def _can_have_layouts(self, card: pci.Function, functions: pci.Snapshot) -> bool:
        if card.has_guest_driver:
            return False
        names = self._layouts.names
        return bool(card.sriov_totalvfs or mdev_layouts.of(names, card, functions))

    def _layouts_of(
        self, card: pci.Function, functions: pci.Snapshot
    ) -> tuple[nvidia_layouts.Layout, ...]:
        """The layouts that a card can have."""
        mediated = mdev_layouts.of(self._layouts.names, card, functions)
        if mediated:
            return mediated
        self._types.learn(card, functions)
        return self._layouts.of(card, functions)

    def _parts(
        self, function: pci.Function, host: base.Host, mine: Set[str]
    ) -> Sequence[base.Device] | None:
        """The parts of a card with an enabled type, or None if it is not to be divided so."""
        functions = host.pci
        problem = vgpu.why_not_divisible(function, functions, self._enabled_types)
        if problem is not None:
            self._problems.append(problem)
            self.refuse(function, problem, "[vgpu_<type>] device_addresses")
            return []
        found = vgpu.parts(function, functions, self._enabled_types, mine)
        if found is None:
            return None
        if not found:
            reason = "it is to be divided, and offers nothing of the type now"
            self.refuse(function, reason, "[gpu_devices] enabled_vgpu_types")
        return [self._part_device(part, host) for part in found]

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
        address = pci.join(handle.attach_info)
        privileged.set_vgpu_type(address, "0")
        self._typed.pop(handle.uuid, None)
        if pci.join(handle.control_path.cpid_info) != address:
            # It is part of a card with a layout, all of whose handles have their type.
            nvidia_layouts.give_again(address, handle.attach_info["asked_type"])

    def container_edits(self, handle: base.HeldHandle) -> base.ContainerEdits:
        """As the kernel says, and of a whole GPU the nodes and libraries of NVIDIA's driver."""
        if handle.attach_type == base.NODES:
            return self._containers.of_slice(handle)
        found = container_facts.of_kernel(handle)
        if not containers.is_whole(handle):
            return found
        address = pci.join(handle.attach_info)
        edits = self._containers.of_card(address, found)
        if base.SHARE_KEY not in handle.attach_info:
            return edits
        functions = pci.scan()
        # Whoever reaches the daemon can take its place, for the containers of all GPUs.
        mixed = shares.mix_projects(self.own(functions[address], functions))
        return self._containers.with_mps(edits) if mixed else edits

    def set_layout(self, target: base.ProgramTarget) -> base.Programmed:
        """Have a card's parts be of another type, and make the GPU instances for it."""
        address, asked = pci.join(target.control_path.cpid_info), target.function or ""
        functions = pci.scan()
        card = functions.get(address)
        if card is not None and self._slices.layouts(card, functions):
            return self._slices.give(card, functions, target)
        layouts = self._layouts_of(card, functions) if card is not None else ()
        layout = nvidia_layouts.named(asked, layouts)
        if card is None or layout is None:
            raise base.NothingWritten(f"GPU {address} cannot have layout {asked!r}")
        if layout.mediated:
            mdev_layouts.give(card, functions, layout, target)
        else:
            nvidia_layouts.give(self.conf, card, functions, layout, target)
        self.kept.set(_LAYOUTS, address, layout.name)
        self.kept.save()
        functions = pci.scan()
        return base.Programmed(
            function=self._shown_layout(functions[address], functions, [layout]),
            verified_by=f"{_SHOWN_BY[layout.mediated]} in sysfs",
        )

    def _shown_layout(
        self,
        card: pci.Function,
        functions: pci.Snapshot,
        layouts: Sequence[nvidia_layouts.Layout],
    ) -> str:
        if any(each.mediated for each in layouts):
            kept = str(self.kept.get(_LAYOUTS, card.address) or "")
            return mdev_layouts.shown(card, functions, layouts, kept)
        return nvidia_layouts.shown(card, functions, layouts)

    def _card_with_layouts(
        self, card: pci.Function, layouts: Sequence[nvidia_layouts.Layout], host: base.Host
    ) -> base.Device:
        functions = host.pci
        shown = self._shown_layout(card, functions, layouts)
        # Guests keep their handles until what they have lost is put back.
        name = shown or str(self.kept.get(_LAYOUTS, card.address) or "")
        layout = nvidia_layouts.named(name, layouts)
        created = mdev_layouts.created(card, functions)
        # What is kept may have been changed meanwhile: only what the card shows is kept again.
        if layout is not None and shown and (created or not layout.mediated):
            self.kept.set(_LAYOUTS, card.address, layout.name)
        own_serial = vgpu.information(card, functions).get("GPU UUID")
        attributes = {
            **self.common_attributes(card, functions),
            **({"serial": own_serial} if own_serial else {}),
            **self._topology.attributes(card),
            **{f"{base.LAYOUT_PREFIX}{each.name}": str(each.count) for each in layouts},
            **(nvidia_layouts.attributes(layout) if layout is not None else {}),
        }
        handles = _handles_with(card, functions, layout)
        tags = self.tags(card, functions)
        traits = _traits(card, layout.kind if layout is not None else None)
        deployable = base.Deployable(
            name=f"{host.name}_{card.address}",
            resource_class=tags.resource_class or "VGPU",
            num_accelerators=len(handles),
            attach_handles=handles,
            traits=trait_names.legal_names((*traits, *tags.traits)),
            attributes=attributes,
            prepares=True,
            cleans=True,
            prepared=(*self._typed_handles(card, functions), *created),
            program_mode=base.LAYOUT,
            function=shown,
        )
        device = devices.device_of(card, tags.type or self.type, (deployable,))
        return replace(device, being_written=card_tools.is_running(self.conf, card.address))

    def _typed_handles(self, function: pci.Function, functions: pci.Snapshot) -> tuple[str, ...]:
        """The uuids of prepared handles of a function or its parts, which have their type."""
        return tuple(
            sorted(
                uuid
                for uuid, place in list(self._typed.items())
                if place in (function.address, *function.vfs)
                and facts.vgpu_type(functions[place], functions) != facts.NO_VGPU_TYPE
            )
        )

    def _part_device(self, part: vgpu.VgpuPart, host: base.Host) -> base.Device:
        functions, function, prepared = host.pci, part.function, part.created
        card = functions[function.pf or function.address]
        version = facts.driver_version(card, functions)
        attributes = {
            **self.common_attributes(function, functions),
            "vgpu_type": part.type,
            **({"memory_mib": part.memory_mib} if part.memory_mib else {}),
            **({"driver_version": version} if version is not None else {}),
        }
        if prepared is None:
            prepared = self._typed_handles(function, functions)
        tags = self.tags(function, functions)
        deployable = base.Deployable(
            name=f"{host.name}_{function.address}",
            resource_class=tags.resource_class or "VGPU",
            num_accelerators=part.total,
            attach_handles=_handles(part),
            traits=trait_names.legal_names((*_traits(card, part.name), *tags.traits)),
            attributes=attributes,
            prepares=True,
            cleans=True,
            prepared=prepared,
        )
        return devices.device_of(function, tags.type or self.type, (deployable,))


def _is_whole(device: base.Device) -> bool:
    """True if a guest gets the card itself."""
    return any(
        handle.attach_type == "PCI" and "asked_type" not in handle.attach_info
        for handle in device.handles
    )


def _traits(card: pci.Function, kind: str | None) -> list[str]:
    """The traits of a part of a card that is of the type with this name, if that is known."""
    product = f"CUSTOM_NVIDIA_{card.device}"
    return [
        "OWNER_CYBORG",
        f"{product}_{vgpu.short(kind)}" if kind else product,
        *(["CUSTOM_NVIDIA_MIG"] if vgpu_types.is_slice(kind) else []),
    ]


def _handles_with(
    card: pci.Function, functions: pci.Snapshot, layout: nvidia_layouts.Layout | None
) -> tuple[base.AttachHandle, ...]:
    """The handles that guests get of a card with a layout; none where it has no layout."""
    if layout is None:
        return ()
    if layout.mediated:
        return mdev_layouts.handles(card, functions, layout)
    return nvidia_layouts.handles(card, layout)


def _handles(part: vgpu.VgpuPart) -> tuple[base.AttachHandle, ...]:
    place = pci.split(part.function.address)
    if part.created is not None:
        return mdev_handles.handles(part.type, part.total, place)
    return (base.AttachHandle(attach_type="PCI", attach_info={**place, "asked_type": part.type}),)
