# SPDX-License-Identifier: Apache-2.0
"""AMD GPUs: whole cards, and virtual functions of divided cards."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

from oslo_config import cfg

from cyborg.drivers import (
    base,
    card_tools,
    container_facts,
    kept_cdi,
    kept_facts,
    pci,
    privileged,
)
from cyborg.drivers.pci import devices, faults, readings, shares

#: A line of the error counters of a block: how many errors it could not correct.
_UNCORRECTABLE = re.compile(r"^ue: (\d{1,18})$", re.MULTILINE)
#: The kind of the devices for which amd-ctk keeps a CDI file, and the nodes of one GPU.
_CDI_KIND, _HARDWARE = "amd.com/gpu", re.compile(r"/dev/dri/.+")
#: The kind of the kept facts: the last word on a GPU, and what was counted when it was read.
_WORDS = "words"
#: ES1000, RV100 and Rage XL, which are soldered to servers' boards.
_SCREENS = frozenset({"4752", "4753", "5159", "515e", "5969"})
#: The numbers of partitions by how a GPU computes; with CPX each of its dies is one.
_PARTS = {"SPX": 1, "DPX": 2, "TPX": 3, "QPX": 4}
_LAYOUT = re.compile(r"([SDTQC]PX)-(NPS[1248])", re.ASCII)
#: When the kernel changes how the memory is divided.
_AT_RELOAD = "only when amdgpu is loaded again: unload and load it while nothing uses any AMD GPU"


class AmdGpuDriver(pci.PciDriver):
    """Reports each GPU, or its virtual functions as virtual GPUs if it has any.

    A GPU that is partitioned, or may be by its layouts, is given out by its partitions.
    """

    match = (
        pci.Match(vendor="1002", class_code="03*"),
        pci.Match(vendor="1002", class_code="1200*"),  # Instinct without a display
    )
    type = "GPU"
    resource_class = "PGPU"
    part_class = "VGPU"
    expose = "vfs"
    group = "amd_gpu_driver"
    own_keys = shares.KEYS
    own_traits = ("OWNER_CYBORG", "CUSTOM_AMD_{card.device}")

    def __init__(self, conf: cfg.ConfigOpts) -> None:
        super().__init__(conf)
        self._errors_max: int = conf.amd_gpu_driver.ras_uncorrectable_errors
        heals = conf.amd_gpu_driver.heal_by_word
        self._words = _Words(self.kept, self._health.faults) if heals else None
        self._layouts: list[str] = conf.amd_gpu_driver.layouts
        for name in self._layouts:
            if not _LAYOUT.fullmatch(name):
                how = "compute and memory partition, such as CPX-NPS1"
                raise ValueError(f"[amd_gpu_driver] layouts: {name!r} is not a layout; use {how}")

    def discover(self, host: base.Host) -> Iterator[base.Device]:
        """Every GPU, after a look at what an administrator has said."""
        if self._words is not None:
            self._words.faults.read(host.pci)
        yield from super().discover(host)

    def problems(self) -> Sequence[str]:
        """As those of any driver, and that the log cannot be read."""
        unread = self._words.faults.log.problem if self._words is not None else None
        why = [f"[amd_gpu_driver] heal_by_word has no effect: {unread}"] if unread else []
        return [*super().problems(), *why]

    def why_kept(self, function: pci.Function, functions: pci.Snapshot) -> base.Refusal | None:
        """Graphics of a server's board or of the processor, which are no accelerators.

        Unless the operator lists them.
        """
        card = functions.get(function.pf or function.address, function)
        spec = self.spec(function, functions)
        if not card.class_code.startswith("0300") or (spec is not None and not spec.exclude):
            return None
        if card.device in _SCREENS:
            return base.Refusal(reason="it is the screen of the server's board", remedy=self.option)
        if _is_of_processor(card, functions):
            return base.Refusal(reason="it is the processor's own graphics", remedy=self.option)
        return None

    def attributes(self, function: pci.Function, functions: pci.Snapshot) -> pci.Facts:
        """Facts that the host's driver shows of the card. It does not show a part's memory."""
        card = function.pf or function.address
        memory = functions.number(card, "mem_info_vram_total")
        return {
            "product": functions.text(card, "product_name"),
            "firmware": functions.text(card, "vbios_version"),
            "serial": functions.text(card, "unique_id"),
            "memory_mib": memory >> 20 if memory and function.pf is None else None,
            "compute_partition": functions.text(card, "current_compute_partition"),
            "memory_partition": functions.text(card, "current_memory_partition"),
            "link_group": _hive(function, functions) if function.pf is None else None,
        }

    def divided(
        self, function: pci.Function, functions: pci.Snapshot, host: base.Host
    ) -> Sequence[base.Device] | None:
        """Its partitions, if it has several, or may have other ones by its layouts."""
        shown = _shown(function, functions)
        if function.driver != "amdgpu" or function.vfs or not shown:
            return None
        parts = container_facts.partitions(function.address)
        layouts = self._layouts_of(function, functions, parts)
        if len(parts) < 2 and not layouts:
            return None
        device = self.sliced(
            host,
            function,
            "CUSTOM_AMD_PARTITION",
            [devices.slice_of(function, partition=str(number)) for number in parts],
            layouts=layouts or None,
            layout=shown,
        )
        return [device]

    def _layouts_of(
        self,
        function: pci.Function,
        functions: pci.Snapshot,
        parts: Mapping[int, Mapping[str, str]],
    ) -> dict[str, int]:
        """The layouts that the kernel offers for a GPU, with the numbers of partitions."""
        numbers = {**_PARTS, "CPX": sum(int(each.get("num_xcc", 0)) for each in parts.values())}
        files = ("available_compute_partition", "available_memory_partition")
        offered = [functions.text(function.address, each) or "" for each in files]
        compute, memory = (re.split(r"[, ]+", each) for each in offered)
        return {
            name: numbers[name[:3]]
            for name in self._layouts
            if name[:3] in compute and name[4:] in memory and numbers[name[:3]]
        }

    def set_layout(self, target: base.ProgramTarget) -> base.Programmed:
        """Have a GPU be divided into other partitions."""
        address, functions = pci.join(target.control_path.cpid_info), pci.scan()
        parts = container_facts.partitions(address)
        there = address in functions
        known = self._layouts_of(functions[address], functions, parts) if there else ()
        wanted = card_tools.asked_layout(target, known, f"GPU {address}")
        compute, memory = wanted.split("-")
        before = _shown(functions[address], functions)
        try:
            privileged.set_gpu_partition(address, "memory", memory)
            if not _now(address).endswith(memory):
                raise base.NothingWritten(f"layout: GPU {address} gets {memory} {_AT_RELOAD}")
            privileged.set_gpu_partition(address, "compute", compute)
        except OSError as exc:
            if _now(address) != before:
                raise
            raise base.NothingWritten(str(exc)) from exc
        verified_by = "current_compute_partition in sysfs"
        return base.Programmed(function=_now(address), verified_by=verified_by)

    def container_edits(self, handle: base.HeldHandle) -> base.ContainerEdits:
        """As the kernel says, and what AMD's toolkit keeps of the same nodes, if it does."""
        if handle.attach_type == base.NODES:
            place, number = handle.attach_info["pci_address"], handle.attach_info["partition"]
            found = container_facts.of_partition(place, int(number), handle.uuid)
        else:
            found = container_facts.of_kernel(handle)
        own = [each for each in found.device_nodes if _HARDWARE.fullmatch(each)]
        render = [each for each in own if each.startswith("/dev/dri/renderD")]
        if not render:
            return found
        wanted = kept_cdi.Wanted(hardware=_HARDWARE, needed=render, own=own, name="")
        return replace(found, cdi_wanted=(_CDI_KIND, wanted))

    def sensors(self, function: pci.Function, functions: pci.Snapshot) -> Mapping[str, float]:
        """Also the memory in use and the errors that were counted."""
        used = readings.file(function, "mem_info_vram_used")
        return {
            **super().sensors(function, functions),
            **({"memory_used_bytes": used} if used is not None else {}),
            **readings.errors(function),
        }

    def why_unhealthy(self, function: pci.Function, functions: pci.Snapshot) -> str | None:
        """Blocks of the card have had errors that they could not correct."""
        card = function.pf or function.address
        counts: dict[str, int] = {}
        unknown: list[str] = []
        for name in functions.names(card, "ras") if self._errors_max else ():
            if name.endswith("_err_count"):
                # While the card is reset after an error, the kernel shows no number.
                found = _UNCORRECTABLE.search(functions.text(card, f"ras/{name}") or "")
                if found is None:
                    unknown.append(name)
                else:
                    counts[name.removesuffix("_err_count")] = int(found.group(1))
        if self._words is not None and not unknown:
            counts = self._words.since(card.rpartition(".")[0], counts)
        blocks = ", ".join(sorted(block for block, count in counts.items() if count))
        if blocks and sum(counts.values()) >= self._errors_max:
            return f"The GPU {card} has had uncorrectable errors of its memory or logic: {blocks}"
        if unknown:
            raise ValueError(f"ras/{min(unknown)} of {card} holds no number of errors")
        return None


class _Words:
    """The word of an administrator on GPUs since the host started: errors before do not count."""

    def __init__(self, kept: kept_facts.KeptFacts, log: faults.FaultLog) -> None:
        self.faults = log
        self._kept = kept

    def since(self, slot: str, counts: Mapping[str, int]) -> dict[str, int]:
        """The errors of each block that were counted after the last word."""
        kept = self._kept.get(_WORDS, slot)
        known = isinstance(kept, dict) and kept["boot"] == self.faults.log.boot
        said, before = (kept["said"], kept["counts"]) if known else (-1, {})
        if self.faults.said.get(slot, -1) > said:
            said, before = self.faults.said[slot], counts
        # The counters begin anew when the driver is loaded again.
        before = {block: min(before.get(block, 0), counts[block]) for block in counts}
        if said >= 0:
            fact = {"boot": self.faults.log.boot, "said": said, "counts": before}
            self._kept.set(_WORDS, slot, fact)
        return {block: counts[block] - before[block] for block in counts}


def _shown(function: pci.Function, functions: pci.Snapshot) -> str:
    """The layout of a GPU; empty if it has no partitions."""
    shown = [
        functions.text(function.address, f"current_{kind}_partition") or ""
        for kind in ("compute", "memory")
    ]
    return "-".join(shown) if all(shown) else ""


def _now(address: str) -> str:
    functions = pci.scan()
    return _shown(functions[address], functions)


def _hive(function: pci.Function, functions: pci.Snapshot) -> str | None:
    """The name of the group of GPUs that Infinity Fabric connects to a whole card, or None."""
    number = functions.number(function.address, "xgmi_hive_info/xgmi_hive_id")
    return f"xgmi {number:x}" if number else None


def _is_of_processor(card: pci.Function, functions: pci.Snapshot) -> bool:
    """True if a display controller has no memory chips of its own: then nobody has made them."""
    shown = functions.names(card.address, "")
    return "mem_info_vram_total" in shown and "mem_info_vram_vendor" not in shown
