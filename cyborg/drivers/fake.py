# SPDX-License-Identifier: Apache-2.0
"""Devices that do not exist, for tests, demonstrations and simulated large hosts.

The first looks like upstream Cyborg's fake device, so that the same device profiles fit it.
"""

from __future__ import annotations

import json
import logging
import pathlib
import time
from collections.abc import Iterator
from typing import Any

from oslo_config import cfg

from cyborg.drivers import base

LOG = logging.getLogger(__name__)

#: Seconds between two looks at the control file while a step hangs.
_POLL = 0.05


class FakeDriver:
    """Shows ``[fake_driver] devices`` devices, whose host steps do what a control file says."""

    def __init__(self, conf: cfg.ConfigOpts) -> None:
        self._options = conf.fake_driver
        # Uuids of the handles that are prepared, with the control path of each. Lost when the
        # agent ends, as what a kernel has made is lost when its host ends.
        self._prepared: dict[str, base.ControlPath] = {}

    def discover(self, host: base.Host) -> Iterator[base.Device]:
        """Every fake device."""
        for number in range(self._options.devices):
            yield self._device(host.name, number)

    def prepare(self, handle: base.HeldHandle) -> None:
        """Pretend to make the handle ready."""
        self._step("prepare", handle)
        self._prepared[handle.uuid] = handle.control_path

    def clean(self, handle: base.HeldHandle) -> None:
        """Pretend to remove every trace of the last use."""
        self._step("clean", handle)
        self._prepared.pop(handle.uuid, None)

    def _device(self, host: str, number: int) -> base.Device:
        # Every device is on a PCI bus of its own, beginning with upstream's 0c.
        domain, bus = divmod(0x0C + number, 0x100)
        place = {"domain": f"{domain:04x}", "bus": f"{bus:02x}"}
        steps = self._options.host_step
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
        prepared = sorted(uuid for uuid, of in self._prepared.copy().items() if of == path)
        deployable = base.Deployable(
            name=f"{host}_FakeDevice" + (f"_{number}" if number else ""),
            resource_class="FPGA",
            num_accelerators=len(handles),
            attach_handles=handles,
            traits=("CUSTOM_FAKE_DEVICE",),
            prepares=steps,
            cleans=steps,
            prepared=tuple(prepared) if steps else None,
        )
        return base.Device(
            type="FPGA",
            vendor="0xABCD",
            model="miss model info",
            std_board_info=json.dumps({"device_id": "0xabcd", "class": "Fake class"}),
            vendor_board_info="fake_vendor_info",
            control_path=path,
            deployables=(deployable,),
        )

    def _step(self, action: str, handle: base.HeldHandle) -> None:
        LOG.info("Fake %s of %s", action, base.canonical_json(dict(handle.attach_info)))
        wanted = self._wanted(action)
        time.sleep(wanted.get("seconds", 0))
        while self._wanted(action).get("hang"):
            time.sleep(_POLL)
        sentence = self._wanted(action).get("fail")
        if sentence:
            raise RuntimeError(sentence)

    def _wanted(self, action: str) -> dict[str, Any]:
        if not self._options.host_step_control:
            return {}
        try:
            text = pathlib.Path(self._options.host_step_control).read_text(encoding="utf-8")
        except FileNotFoundError:
            return {}
        wanted: dict[str, Any] = json.loads(text or "{}").get(action, {})
        return wanted
