# SPDX-License-Identifier: Apache-2.0
"""Intel QuickAssist (QAT): compression and cryptography, mostly given out as virtual functions."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

from oslo_config import cfg

from cyborg.drivers import base, card_tools, pci, privileged

#: Generations by the ids of their physical functions.
_GENERATIONS = {
    "0435": 2,  # DH895xCC
    "18a0": 3,  # C4xxx
    "18ee": 2,  # 200xx
    "19e2": 2,  # C3xxx
    "1f18": 1,  # C2xxx
    "37c8": 2,  # C62x
    "4940": 4,  # 4xxx
    "4942": 4,  # 401xx
    "4944": 4,  # 402xx
    "4946": 4,  # 420xx
    "4948": 6,  # 6xxx
    "6f54": 2,  # D15xx
}
_SERVICES = {"sym", "asym", "dc", "dcc", "decomp"}
_SHOWN = "qat/cfg_services"
_STATE, _STATES = "qat/state", ("up", "down")
#: What the firmware is by its heartbeat.
_BEATS, _NO_ANSWER = "0", "-1"
#: The kind of the kept facts: what virtual functions an endpoint has.
_VFS = "virtual_functions"


class IntelQatDriver(pci.PciDriver):
    """Reports QAT endpoints: each virtual function, or the endpoint if it has none.

    An endpoint with layouts, which are sets of services, is one deployable with all of its virtual
    functions, and is not offered without them.
    """

    match = tuple(pci.Match(vendor="8086", device=device) for device in _GENERATIONS)
    type = "QAT"
    resource_class = "CUSTOM_QAT"
    expose = "vfs"
    group = "intel_qat_driver"

    def __init__(self, conf: cfg.ConfigOpts) -> None:
        super().__init__(conf)
        self._layouts = list(dict.fromkeys(map(_sorted, conf.intel_qat_driver.layouts)))
        for name in self._layouts:
            if not name or (wrong := set(name.split("-")) - _SERVICES):
                known = ", ".join(sorted(_SERVICES))
                what = f"{min(wrong)} is no service" if name else "one has no service"
                raise ValueError(f"[intel_qat_driver] layouts: {what}; use some of {known}")

    def traits(self, function: pci.Function, functions: pci.Snapshot) -> Iterator[str]:
        """The generation, and the services that the endpoint is configured for."""
        physical = functions[function.pf or function.address]
        yield f"CUSTOM_QAT_GEN{_GENERATIONS[physical.device]}"
        services = functions.text(physical.address, _SHOWN) or ""
        for service in sorted(_SERVICES & set(services.split(";"))):
            yield f"CUSTOM_QAT_{service}"

    def attributes(self, function: pci.Function, functions: pci.Snapshot) -> pci.Facts:
        """The services in the kernel's words."""
        return {"qat_services": functions.text(function.pf or function.address, _SHOWN)}

    def why_unhealthy(self, function: pci.Function, functions: pci.Snapshot) -> str | None:
        """The endpoint is down, or its firmware does not answer."""
        shown = functions.names(function.address, "qat")
        if shown and functions.required_state(function.address, _STATE, _STATES) == "down":
            return f"QAT endpoint {function.address} is down"
        heartbeat = f"/sys/kernel/debug/qat_{function.driver}_{function.address}/heartbeat/status"
        try:
            beats = functions.if_there(function.address, heartbeat)
        except PermissionError:
            return None  # only root may look there
        if beats not in {None, _BEATS, _NO_ANSWER}:
            raise ValueError(f"{heartbeat} holds no state: {str(beats)[:40]!r}")
        if beats == _NO_ANSWER:
            return f"The firmware of QAT endpoint {function.address} does not answer"
        return None

    def why_kept(self, function: pci.Function, functions: pci.Snapshot) -> base.Refusal | None:
        """An endpoint with layouts has its driver, and only its virtual functions are offered."""
        if function.pf is None and self._has_layouts(function, functions):
            reason = "it has layouts and no virtual functions"
            return base.Refusal(reason=reason, remedy="[agent] sriov_spec")
        return None

    def groups(
        self,
        function: pci.Function,
        offered: Sequence[pci.Function],
        functions: pci.Snapshot,
    ) -> Sequence[Sequence[pci.Function]]:
        """All virtual functions of an endpoint with layouts are one deployable."""
        if self._has_layouts(function, functions):
            return [offered]
        return super().groups(function, offered, functions)

    def refine(
        self, device: base.Device, function: pci.Function, functions: pci.Snapshot
    ) -> base.Device:
        """The deployable of an endpoint with layouts is named for it, and shows them."""
        if not self._has_layouts(function, functions):
            return device
        (part,) = device.deployables
        first = pci.join(part.attach_handles[0].attach_info)
        count = str(part.num_accelerators)
        layouts = {f"{base.LAYOUT_PREFIX}{name}": count for name in self._layouts}
        whole = replace(
            part,
            name=f"{part.name.removesuffix(first)}{function.address}",
            attributes={**part.attributes, "pci_address": function.address, **layouts},
            program_mode=base.LAYOUT,
            function=_shown(function.address, functions),
        )
        return replace(device, deployables=(whole,))

    def set_layout(self, target: base.ProgramTarget) -> base.Programmed:
        """Have the endpoint offer other services.

        Its driver removes the virtual functions for that, so they are made again.
        """
        address, functions = pci.join(target.control_path.cpid_info), pci.scan()
        known = self._layouts if address in functions else ()
        wanted = card_tools.asked_layout(target, known, f"Endpoint {address}")
        count, driver = self._vfs_of(functions[address], functions, len(target.attach_handles))
        if _shown(address, functions) != wanted or not _is_up(address, functions):
            try:
                privileged.set_numvfs(address, 0)
            except OSError as exc:
                raise base.NothingWritten(f"Its virtual functions stay: {exc}") from exc
            try:
                privileged.set_qat_services(address, wanted.replace("-", ";"))
            except (OSError, ValueError) as exc:
                _make_vfs(address, count, driver)
                now = pci.scan()
                if _is_up(address, now) and _shown(address, now) == _shown(address, functions):
                    raise base.NothingWritten(str(exc)) from exc
                raise
        _make_vfs(address, count, driver)
        shown = _shown(address, pci.scan())
        return base.Programmed(function=shown, verified_by="cfg_services in sysfs")

    def _has_layouts(self, function: pci.Function, functions: pci.Snapshot) -> bool:
        """True if an endpoint has layouts.

        :raises OSError: that cannot be told; without them each part is a deployable
        """
        return bool(self._layouts) and functions.if_there(function.address, _SHOWN) is not None

    def _vfs_of(
        self, function: pci.Function, functions: pci.Snapshot, handles: int
    ) -> tuple[int, str | None]:
        """The number of an endpoint's virtual functions, and their driver.

        That outlives an agent that dies while it has none.
        """
        if function.vfs:
            driver = functions[function.vfs[0]].driver
            # Those without a driver may be left by an agent that died before it bound them.
            if driver is not None or self.kept.get(_VFS, function.address) is None:
                self.kept.set(_VFS, function.address, [len(function.vfs), driver])
                self.kept.save()
        count, driver = self.kept.get(_VFS, function.address) or (handles, None)
        return count, driver


def _make_vfs(address: str, count: int, driver: str | None) -> None:
    """Give an endpoint its virtual functions, each with that driver."""
    if driver is not None:
        # Any other driver of the host would be in use.
        privileged.set_drivers_autoprobe(address, on=False)
    privileged.set_numvfs(address, count)
    if driver is not None:
        for vf in pci.scan()[address].vfs:
            privileged.bind_driver(vf, driver)


def _shown(address: str, functions: pci.Snapshot) -> str:
    """The layout that an endpoint has."""
    return _sorted(functions.text(address, _SHOWN) or "")


def _is_up(address: str, functions: pci.Snapshot) -> bool:
    return functions.text(address, _STATE) == "up"


def _sorted(services: str) -> str:
    """The name of a layout: the same for the kernel's ``sym;asym`` and ``asym;sym``."""
    return "-".join(sorted(filter(None, services.replace(";", "-").split("-"))))
