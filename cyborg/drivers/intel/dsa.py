# SPDX-License-Identifier: Apache-2.0
"""Intel DSA, which copies memory, and IAA, which compresses it: functions of the processor."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence

from oslo_config import cfg

from cyborg.drivers import base, card_tools, container_facts, pci, privileged
from cyborg.drivers.pci import devices

#: Kinds by the ids of their functions, as the kernel's driver idxd knows them.
_KINDS = {
    "0b25": "DSA",
    "0cfe": "IAA",
    "11fb": "DSA",
    "1212": "DSA",
    "1216": "IAA",
}
#: How the host's driver names the devices of the two kinds, below the function.
_NAMES = ("dsa", "iax")
_ENABLED, _HALTED = "enabled", "halted"
_STATES = (_ENABLED, _HALTED, "disabled")
_QUEUE = re.compile(r"wq\d+\.(\d{1,3})", re.ASCII)
#: How many queues there are, and whether more than one process may open each.
_LAYOUT = re.compile(r"([1-9]\d{0,2})-(dedicated|shared)", re.ASCII)


class IntelDsaDriver(pci.PciDriver):
    """Reports each function whole, or the queues that the host has enabled for user space.

    A function with layouts is given out by its queues alone.
    """

    match = tuple(pci.Match(vendor="8086", device=device) for device in _KINDS)
    type = "PCI"
    resource_class = "CUSTOM_DSA"
    group = "intel_dsa_driver"

    def __init__(self, conf: cfg.ConfigOpts) -> None:
        super().__init__(conf)
        self._layouts: list[str] = conf.intel_dsa_driver.layouts
        for name in self._layouts:
            if not _LAYOUT.fullmatch(name):
                how = "a number of queues with -dedicated or -shared, such as 4-dedicated"
                raise ValueError(f"[intel_dsa_driver] layouts: {name!r} is not a layout; use {how}")

    def resource(self, function: pci.Function) -> str:
        """One class for each of the two kinds."""
        return f"CUSTOM_{_KINDS[function.device]}"

    def traits(self, function: pci.Function, functions: pci.Snapshot) -> Iterator[str]:
        """The owner and the product."""
        yield "OWNER_CYBORG"
        yield f"CUSTOM_{_KINDS[function.device]}_PRODUCT_ID_{function.device}"

    def attributes(self, function: pci.Function, functions: pci.Snapshot) -> pci.Facts:
        """The numbers of its queues and engines, and its version."""
        path = _shown(function, functions)
        if path is None:
            return {}
        return {
            "work_queues": functions.text(function.address, f"{path}/max_work_queues"),
            "engines": functions.text(function.address, f"{path}/max_engines"),
            "firmware": functions.text(function.address, f"{path}/version"),
        }

    def divided(
        self, function: pci.Function, functions: pci.Snapshot, host: base.Host
    ) -> Sequence[base.Device] | None:
        """Its queues, if it has any for user space, or may have other ones by its layouts."""
        path = _shown(function, functions)
        queues = _queues(function, functions) if path is not None else {}
        if path is None or not (queues or self._layouts):
            return None
        kind = f"{self.resource(function)}_QUEUE"
        device = self.sliced(
            host,
            function,
            kind,
            [devices.slice_of(function, queue=number) for number in queues],
            traits=[f"{kind}_{mode}" for mode in sorted(set(queues.values()))],
            layouts=self._layouts_of(function, functions) if self._layouts else None,
            layout=_layout(queues),
        )
        return [device]

    def _layouts_of(self, function: pci.Function, functions: pci.Snapshot) -> dict[str, int]:
        """The layouts that a function has queues enough for, with the numbers of these."""
        most = functions.number(function.address, f"{_shown(function, functions)}/max_work_queues")
        numbers = {name: int(name.partition("-")[0]) for name in self._layouts}
        return {name: number for name, number in numbers.items() if number <= (most or 0)}

    def container_edits(self, handle: base.HeldHandle) -> base.ContainerEdits:
        """As the kernel says, and of a queue its own node."""
        if handle.attach_type != base.NODES:
            return container_facts.of_kernel(handle)
        address, number = handle.attach_info["pci_address"], handle.attach_info["queue"]
        functions = pci.scan()
        path = _shown(functions[address], functions) if address in functions else None
        place = f"/sys/bus/pci/devices/{address}/{path}/wq{(path or '')[3:]}.{number}"
        return container_facts.of_folder(
            place, {"CYBORG_QUEUE": f"{address} {number}"}, handle.uuid
        )

    def set_layout(self, target: base.ProgramTarget) -> base.Programmed:
        """Have a function offer other queues, which share its engines and their entries evenly."""
        address, functions = pci.join(target.control_path.cpid_info), pci.scan()
        there = address in functions
        known = self._layouts_of(functions[address], functions) if there else ()
        wanted = card_tools.asked_layout(target, known, f"PCI function {address}")
        count, _, mode = wanted.partition("-")
        try:
            if _layout(_queues(functions[address], functions)) != wanted:
                privileged.set_idxd_queues(address, int(count), mode)
        except BlockingIOError as exc:
            raise base.NothingWritten(str(exc)) from exc
        now = pci.scan()
        shown = _layout(_queues(now[address], now))
        return base.Programmed(function=shown, verified_by="the states of its queues in sysfs")

    def why_kept(self, function: pci.Function, functions: pci.Snapshot) -> base.Refusal | None:
        """The host uses it itself."""
        path, state = _shown(function, functions), _state(function, functions)
        if state != _ENABLED:
            return None
        remedy = f"accel-config disable-device {path}"
        return base.Refusal(reason=f"the host has enabled {path}", remedy=remedy)

    def why_unhealthy(self, function: pci.Function, functions: pci.Snapshot) -> str | None:
        """The device has met an error that it cannot go on after."""
        if _state(function, functions) != _HALTED:
            return None
        return f"{_shown(function, functions)} of PCI function {function.address} has halted"


def _state(function: pci.Function, functions: pci.Snapshot) -> str | None:
    """The state of the function's device, or None if the host's driver has not made one.

    :raises OSError, ValueError: it cannot be told
    """
    path = _shown(function, functions)
    if path is None:
        return None
    return functions.required_state(function.address, f"{path}/state", _STATES)


def _queues(function: pci.Function, functions: pci.Snapshot) -> dict[str, str]:
    """The modes of the queues that are enabled for user space, by their numbers."""
    path, found = _shown(function, functions), {}
    for queue in filter(None, map(_QUEUE.fullmatch, functions.names(function.address, path or ""))):
        state, kind, mode = (
            functions.text(function.address, f"{path}/{queue[0]}/{key}")
            for key in ("state", "type", "mode")
        )
        if (state, kind) == (_ENABLED, "user"):
            found[queue[1]] = mode or "dedicated"
    return found


def _layout(queues: Mapping[str, str]) -> str:
    """The layout of a function with these queues; empty if it has none."""
    numbers = Counter(queues.values())
    return "-".join(f"{numbers[mode]}-{mode}" for mode in sorted(numbers))


def _shown(function: pci.Function, functions: pci.Snapshot) -> str | None:
    """The name of the device that the host's driver has made of the function, or None."""
    names = functions.names(function.address, "")
    return next((name for name in names if name.startswith(_NAMES)), None)
