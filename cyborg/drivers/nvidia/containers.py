# SPDX-License-Identifier: Apache-2.0
"""The needs of a container that uses an NVIDIA GPU: device nodes, libraries and hooks.

The nodes are not in sysfs. The libraries are those of a device in the CDI files that NVIDIA's
toolkit keeps, or else of what its tool says when it is asked.
"""

from __future__ import annotations

import logging
import pathlib
import re
import threading
from collections.abc import Collection, Iterable
from dataclasses import replace

from oslo_config import cfg

from cyborg.drivers import base, card_tools, container_facts, kept_cdi, pci, privileged
from cyborg.drivers.nvidia import vgpu
from cyborg.drivers.pci import sysfs

LOG = logging.getLogger(__name__)

KIND = "nvidia.com/gpu"
_DEV = pathlib.Path("/dev")
#: Nodes of the whole host that programs need beside those of a GPU.
_BESIDE = ("nvidiactl", "nvidia-uvm", "nvidia-uvm-tools", "nvidia-modeset")
#: Nodes that belong to one GPU, or to an instance of it.
_HARDWARE = re.compile(r"/dev/(nvidia[0-9]+|nvidia-caps/.+|dri/.+)", re.ASCII)
_MINOR = re.compile(r"[0-9]{1,4}", re.ASCII)
#: Seconds for each of two runs of the tool, which a bind waits for.
_PATIENCE = 20.0
#: The tool's own log among what it says.
_LOG_LINE = re.compile(r'time=\S+ level=|time="[^"]*" level=')
_HOW = "Install nvidia-container-toolkit, so that they get its libraries too"


def information(address: str) -> dict[str, str]:
    """The facts that the vendor's driver shows of a GPU now; none if it does not drive it."""
    return vgpu.parsed(sysfs.optional(f"{vgpu.PROC}/gpus/{address}/information") or "")


def present(names: Iterable[str]) -> list[str]:
    """The device nodes that are there, by their paths."""
    return [str(_DEV / name) for name in names if (_DEV / name).exists()]


class Containers:
    """The needs of containers, and what the tool has said of GPUs since the agent was started."""

    def __init__(self, conf: cfg.ConfigOpts) -> None:
        self._conf = conf
        #: The device and the version of the kernel's driver when the tool was asked, by name.
        self._said: dict[str, tuple[str, str | None]] = {}
        self._asking = threading.Lock()
        self._is_told = False

    def of_card(self, address: str, found: base.ContainerEdits) -> base.ContainerEdits:
        """The needs of a whole GPU that NVIDIA's driver has; ``found`` is what the kernel says."""
        shown = information(address)
        minor, uuid = shown.get("Device Minor", ""), shown.get("GPU UUID", "")
        nodes = present([f"nvidia{minor}"]) if _MINOR.fullmatch(minor) else []
        return self.with_libraries(uuid, nodes, found)

    def of_slice(self, handle: base.HeldHandle) -> base.ContainerEdits:
        """The needs of a MIG instance: the nodes of its GPU, and of its own capabilities.

        :raises FileNotFoundError: it is not there now
        """
        address = handle.attach_info["pci_address"]
        gpu, own = handle.attach_info["gpu_instance"], handle.attach_info["compute_instance"]
        shown = information(address)
        minor, uuid = shown.get("Device Minor", ""), shown.get("GPU UUID", "")
        place = f"{vgpu.PROC}/capabilities/gpu{minor}/mig/gi{gpu}"
        said = (vgpu.parsed(sysfs.text(f"{place}/{each}access")) for each in ("", f"ci{own}/"))
        caps = [f"nvidia-caps/nvidia-cap{each['DeviceFileMinor']}" for each in said]
        nodes = present([f"nvidia{minor}", *caps])
        if len(nodes) <= len(caps):
            raise FileNotFoundError(f"MIG instance {gpu}/{own} of GPU {address} lacks its nodes")
        named = {"CYBORG_MIG": f"MIG-{uuid}/{gpu}/{own}"}
        env = container_facts.named(named, handle.uuid)
        return self.with_libraries(f"{uuid}-{gpu}-{own}", nodes, base.ContainerEdits(env=env))

    def with_libraries(
        self, name: str, nodes: Collection[str], found: base.ContainerEdits
    ) -> base.ContainerEdits:
        """The needs of what is named so and is used by these nodes, which are its own."""
        if not nodes:
            return found
        own = {*nodes, *found.device_nodes}
        wanted = kept_cdi.Wanted(hardware=_HARDWARE, needed=nodes, own=own, name=name)
        device = kept_cdi.fitting(self._conf, KIND, wanted) or self._asked(wanted)
        return replace(
            found,
            device_nodes=tuple(sorted({*own, *present(_BESIDE)})),
            cdi_devices=(device,) if device is not None else (),
        )

    def with_mps(self, edits: base.ContainerEdits) -> base.ContainerEdits:
        """The needs of a share, with a way to the daemon of MPS if that runs.

        Without the daemon the shares have the GPU by turns.
        """
        folder = self._conf.gpu_devices.mps_dir
        if folder is None or not pathlib.Path(folder, "control").exists():
            return edits
        mount = base.Mount(host_path=folder, container_path=folder, options=("rw", "bind"))
        env = {**edits.env, "CUDA_MPS_PIPE_DIRECTORY": folder}
        return replace(edits, env=env, mounts=(*edits.mounts, mount))

    def _asked(self, wanted: kept_cdi.Wanted) -> str | None:
        """The device that the tool describes; None if it cannot be asked.

        :raises BlockingIOError: a tool that was started before has not ended yet
        """
        version = sysfs.optional("/sys/module/nvidia/version")
        with self._asking:
            device, then = self._said.get(wanted.name, (None, None))
            kind = device.partition("=")[0] if device is not None and then == version else ""
            if kind and kept_cdi.fitting(self._conf, kind, wanted) == device:
                return device
            try:
                device = kept_cdi.say(self._conf, self._ask(wanted.name), wanted)
            except BlockingIOError:
                raise
            except (OSError, TypeError, ValueError) as exc:
                self._tell(exc)
                return None
            self._said[wanted.name] = device, version
            return device

    def _ask(self, name: str) -> str:
        lock = card_tools.lock_file(self._conf, "cdi")
        lines = privileged.nvidia_cdi(name, _PATIENCE, lock).splitlines(keepends=True)
        return "".join(line for line in lines if not _LOG_LINE.match(line))

    def _tell(self, why: Exception) -> None:
        level = logging.DEBUG if self._is_told else logging.WARNING
        self._is_told = True
        LOG.log(level, "Containers get the device nodes of GPUs alone: %s. %s", why, _HOW)


def is_whole(handle: base.HeldHandle) -> bool:
    """True if the handle is a GPU that NVIDIA's driver of this host has, and no part of one."""
    if handle.attach_type != "PCI" or "asked_type" in handle.attach_info:
        return False
    address = pci.join(handle.attach_info)
    return sysfs.link(f"/sys/bus/pci/devices/{address}/driver") == "nvidia"
