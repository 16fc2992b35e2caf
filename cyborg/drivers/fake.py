# SPDX-License-Identifier: Apache-2.0
"""Devices that do not exist, for tests, demonstrations and simulated large hosts.

The first looks like upstream Cyborg's fake device, so that the same device profiles fit it.
"""

from __future__ import annotations

import json
import logging
import pathlib
import time
import urllib.parse
from collections.abc import Iterator, Sequence
from typing import Any, ClassVar

from oslo_config import cfg

from cyborg.common import files
from cyborg.drivers import base, value_checks

LOG = logging.getLogger(__name__)

#: Seconds between two reads of the control file while a step hangs.
_POLL = 0.05
#: How much of a bitstream is read for its header.
_HEADER_MAX = 4096


class FakeDriver:
    """Shows ``[fake_driver] devices`` devices, whose host steps do what a control file says."""

    driver_api: ClassVar[int] = 1

    def __init__(self, conf: cfg.ConfigOpts) -> None:
        self._options = conf.fake_driver
        # The control path of each prepared handle, by the handle's uuid. It is lost when the agent
        # ends, as the kernel's devices are lost when a host is rebooted.
        self._prepared: dict[str, base.ControlPath] = {}
        self._programs = _Programs(self._options.state_dir)

    def discover(self, host: base.Host) -> Iterator[base.Device]:
        """Every fake device."""
        found = [self._device(host.name, number) for number in range(self._options.devices)]
        self._act("discover", f"{len(found)} devices")
        yield from found

    def prepare(self, handle: base.HeldHandle) -> None:
        """Pretend to make the handle ready."""
        self._act("prepare", _place(handle))
        self._prepared[handle.uuid] = handle.control_path

    def clean(self, handle: base.HeldHandle) -> None:
        """Pretend to remove every trace of the last use."""
        self._act("clean", _place(handle))
        self._prepared.pop(handle.uuid, None)

    def container_edits(self, handle: base.HeldHandle) -> base.ContainerEdits:
        """The facts that are harmless, and the same on every host."""
        self._act("container_edits", _place(handle))
        name = f"CYBORG_FAKE_{handle.uuid.replace('-', '_').upper()}"
        mount = base.Mount(host_path="/usr/share", container_path="/opt/fake")
        return base.ContainerEdits(
            device_nodes=("/dev/null",), env={name: _place(handle)}, mounts=(mount,)
        )

    def program(self, target: base.ProgramTarget, bitstream: pathlib.Path) -> base.Programmed:
        """Pretend to load the function that the bitstream names."""
        function = _function_of(bitstream)
        LOG.info("Fake program of %s with %s", target.deployable, function)
        self._fail_at("start", base.NothingWritten)
        target.check_permit()
        self._programs.load(target.deployable, "")
        self._wait("program")
        self._fail_at("middle", RuntimeError)
        self._programs.load(target.deployable, function)
        self._fail_at("end", RuntimeError)
        return base.Programmed(
            function=self._programs.loaded(target.deployable),
            verified_by="the fake card's memory",
        )

    def _device(self, host: str, number: int) -> base.Device:
        # Every device is on a PCI bus of its own, beginning with upstream's 0c.
        domain, bus = divmod(0x0C + number, 0x100)
        place = {"domain": f"{domain:04x}", "bus": f"{bus:02x}"}
        handles = tuple(
            base.AttachHandle(
                attach_type="TEST_PCI",
                attach_info=place | {"device": f"{slot >> 3:x}", "function": f"{slot & 7:x}"},
            )
            for slot in range(1, self._options.handles_per_device + 1)
        )
        path = base.ControlPath(
            cpid_type="PCI", cpid_info=place | {"device": "00", "function": "0"}
        )
        name = f"{host}_FakeDevice" + (f"_{number}" if number else "")
        return base.Device(
            type="FPGA",
            vendor="0xABCD",
            model="miss model info",
            std_board_info=json.dumps({"device_id": "0xabcd", "class": "Fake class"}),
            vendor_board_info="fake_vendor_info",
            unhealthy=self._wanted("unhealthy").get(str(number)),
            control_path=path,
            deployables=tuple(self._deployables(name, path, handles)),
        )

    def _deployables(
        self, name: str, path: base.ControlPath, handles: Sequence[base.AttachHandle]
    ) -> Iterator[base.Deployable]:
        """One for each region; several of them are below one for the card."""
        regions = self._options.regions
        if regions == 1:
            yield self._deployable(name, path, handles)
            return
        yield base.Deployable(
            name=name,
            resource_class="FPGA",
            num_accelerators=0,
            attach_handles=(),
            traits=("CUSTOM_FAKE_DEVICE",),
        )
        share = len(handles) // regions
        for region in range(regions):
            own = handles[region * share : (region + 1) * share]
            yield self._deployable(f"{name}_region_{region}", path, own, parent=name)

    def _deployable(
        self,
        name: str,
        path: base.ControlPath,
        handles: Sequence[base.AttachHandle],
        parent: str | None = None,
    ) -> base.Deployable:
        steps, mode = self._options.host_step, self._options.program_mode
        prepared = sorted(uuid for uuid, card in self._prepared.copy().items() if card == path)
        return base.Deployable(
            name=name,
            resource_class="FPGA",
            num_accelerators=len(handles),
            attach_handles=tuple(handles),
            traits=("CUSTOM_FAKE_DEVICE",),
            prepares=steps,
            cleans=steps,
            prepared=tuple(prepared) if steps else None,
            parent=parent,
            program_mode=mode,
            function=self._programs.loaded(name) if mode else None,
            function_vendor="FAKE" if mode else "",
        )

    def _act(self, action: str, what: str) -> None:
        # Devices are looked for every few seconds.
        level = logging.DEBUG if action == "discover" else logging.INFO
        LOG.log(level, "Fake %s of %s", action, what)
        self._wait(action)
        sentence = self._wanted(action).get("fail")
        if sentence:
            raise RuntimeError(sentence)

    def _wait(self, action: str) -> None:
        time.sleep(self._wanted(action).get("seconds", 0))
        while self._wanted(action).get("hang"):
            time.sleep(_POLL)

    def _fail_at(self, place: str, kind: type[Exception]) -> None:
        wanted = self._wanted("program")
        if wanted.get("fail") and wanted.get("fail_at", "middle") == place:
            raise kind(wanted["fail"])

    def _wanted(self, action: str) -> dict[str, Any]:
        if not self._options.host_step_control:
            return {}
        try:
            text = pathlib.Path(self._options.host_step_control).read_text(encoding="utf-8")
        except FileNotFoundError:
            return {}
        wanted: dict[str, Any] = json.loads(text or "{}").get(action, {})
        return wanted


class _Programs:
    """The functions that fake FPGAs run: in files, which survive the agent, or else in memory."""

    def __init__(self, state_dir: str | None) -> None:
        self._folder = pathlib.Path(state_dir) if state_dir else None
        self._in_memory: dict[str, str] = {}

    def loaded(self, deployable: str) -> str:
        """The id of the function that is loaded; empty if none is."""
        if self._folder is None:
            return self._in_memory.get(deployable, "")
        try:
            return self._path(self._folder, deployable).read_text(encoding="utf-8")
        except FileNotFoundError:
            return ""

    def load(self, deployable: str, function: str) -> None:
        """Load a function; an empty one erases what is there."""
        if self._folder is None:
            self._in_memory[deployable] = function
            return
        self._folder.mkdir(parents=True, exist_ok=True)
        files.replace(self._path(self._folder, deployable), function, mode=0o644)

    def _path(self, folder: pathlib.Path, deployable: str) -> pathlib.Path:
        return folder / f"{urllib.parse.quote(deployable, safe='')}.function"


def _function_of(bitstream: pathlib.Path) -> str:
    """The function that a bitstream of the fake FPGA names in the JSON object it begins with.

    :raises cyborg.drivers.base.NothingWritten: it is no such bitstream
    """
    with bitstream.open("rb") as file:
        header = file.read(_HEADER_MAX).decode("utf-8", "replace")
    try:
        document, _end = json.JSONDecoder().raw_decode(header)
        function = document["function"]
        value_checks.function_id(function)
    except (KeyError, TypeError, ValueError) as exc:
        raise base.NothingWritten(f"This is not a bitstream of the fake FPGA: {exc}") from exc
    return str(function)


def _place(handle: base.HeldHandle) -> str:
    return base.canonical_json(dict(handle.attach_info))
